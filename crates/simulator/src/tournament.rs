//! Which of the threads is next: a tournament tree, in which replacing one key costs as many
//! comparisons as the tree is deep.

/// Key of what is not waiting for its turn.
pub(crate) const NEVER: u64 = u64::MAX;

/// Smallest of a fixed number of keys; of equal ones, the lowest number.
pub(crate) struct Tournament {
    keys: Vec<u64>,
    /// `winners[1]` is the whole tree's; the children of `k` are `2k` and `2k + 1`.
    winners: Vec<u32>,
}

impl Tournament {
    /// For `count` keys, all [`NEVER`].
    pub fn new(count: usize) -> Self {
        let leaves = count.next_power_of_two().max(2);
        let mut tree = Self {
            keys: vec![NEVER; leaves],
            winners: vec![0; 2 * leaves],
        };
        for leaf in 0..leaves {
            tree.winners[leaves + leaf] = leaf as u32;
        }
        for node in (1..leaves).rev() {
            tree.winners[node] = tree.winners[2 * node];
        }
        tree
    }

    /// The smallest key and its number; `None` where all are [`NEVER`].
    #[inline]
    pub fn least(&self) -> Option<(u64, usize)> {
        let winner = self.winners[1] as usize;
        let key = self.keys[winner];
        (key != NEVER).then_some((key, winner))
    }

    /// Replaces a key.
    #[inline]
    pub fn set(&mut self, number: usize, key: u64) {
        self.keys[number] = key;
        let leaves = self.keys.len();
        let mut node = (leaves + number) / 2;
        while node >= 1 {
            let (left, right) = (self.winners[2 * node], self.winners[2 * node + 1]);
            let left_wins = self.keys[left as usize] <= self.keys[right as usize];
            self.winners[node] = if left_wins { left } else { right };
            node /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn least_is_the_least(count in 1usize..70, sets in prop::collection::vec((0usize..70, 0u64..20), 0..300)) {
            let mut tree = Tournament::new(count);
            let mut keys = vec![NEVER; count];
            for (number, key) in sets {
                let number = number % count;
                let key = if key == 19 { NEVER } else { key };
                tree.set(number, key);
                keys[number] = key;
                let least = keys.iter().copied().enumerate().map(|(at, key)| (key, at)).min();
                prop_assert_eq!(tree.least(), least.filter(|least| least.0 != NEVER));
            }
        }
    }
}
