//! A tournament tree that finds the next thread. Replacing one key costs as many comparisons as the tree is deep.

/// Key of a thread that does not wait for its turn.
pub(crate) const NEVER: u64 = u64::MAX;

/// Minimum of a fixed number of keys; of equal keys, the lowest number.
pub(crate) struct Tournament {
    /// `winners[1]` is the root; the children of `k` are `2k` and `2k + 1`. Each entry has the key in its upper 64 bits
    /// and the key's number below. The path to the root is known in advance, and comparing takes no branch.
    winners: Vec<u128>,
}

impl Tournament {
    /// For `count` keys, all [`NEVER`].
    pub fn new(count: usize) -> Self {
        let leaves = count.next_power_of_two().max(2);
        let mut tree = Self {
            winners: vec![u128::MAX; 2 * leaves],
        };
        for number in 0..leaves {
            tree.set(number, NEVER);
        }
        tree
    }

    /// The smallest key and its number; if all keys are [`NEVER`], any number.
    #[inline]
    pub fn least(&self) -> (u64, usize) {
        let winner = self.winners[1];
        ((winner >> 64) as u64, winner as u32 as usize)
    }

    #[inline]
    pub fn set(&mut self, number: usize, key: u64) {
        let mut least = u128::from(key) << 64 | number as u128;
        let mut node = self.winners.len() / 2 + number;
        self.winners[node] = least;
        while node > 1 {
            least = least.min(self.winners[node ^ 1]);
            node /= 2;
            self.winners[node] = least;
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
                prop_assert_eq!(Some(tree.least()), least);
            }
        }
    }
}
