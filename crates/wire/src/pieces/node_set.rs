//! Sets of memory nodes.

/// Nodes from this number on are not placed on (Linux has at most 1024).
pub const NODES_MAX: usize = 1024;

/// A set of nodes in the layout of memory policy calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSet {
    /// Bit n of all words together is node n.
    pub words: [u64; NODES_MAX / 64],
}

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self {
        words: [0; NODES_MAX / 64],
    };

    /// A set of one node.
    pub fn of(node: u32) -> Self {
        let mut set = Self::EMPTY;
        set.insert(node);
        set
    }

    /// Adds a node; numbers from [`NODES_MAX`] on are ignored.
    pub fn insert(&mut self, node: u32) {
        if let Some(word) = self.words.get_mut(node as usize / 64) {
            *word |= 1 << (node % 64);
        }
    }

    /// Whether the node is in the set.
    pub fn contains(&self, node: u32) -> bool {
        self.words
            .get(node as usize / 64)
            .is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    /// The nodes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..NODES_MAX as u32).filter(|node| self.contains(*node))
    }

    /// The n-th node in ascending order, from 0.
    pub fn nth(&self, n: usize) -> Option<u32> {
        let mut left = n;
        for (index, word) in self.words.iter().enumerate() {
            let here = word.count_ones() as usize;
            if left < here {
                // Without the lowest `left` bits, the lowest set bit is the result.
                let rest = (0..left).fold(*word, |rest, _| rest & rest.wrapping_sub(1));
                return Some(index as u32 * 64 + rest.trailing_zeros());
            }
            left -= here;
        }
        None
    }

    /// The node of the page with this number if pages go round the nodes; none if there is no node.
    pub fn in_turn(&self, number: usize) -> Option<u32> {
        self.nth(number.checked_rem(self.len())?)
    }

    /// Nodes that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, mask) in both.words.iter_mut().zip(other.words) {
            *word &= mask;
        }
        both
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        let counts = self.words.iter().map(|word| word.count_ones() as usize);
        counts.sum()
    }

    /// Whether the set has no node.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }
}
