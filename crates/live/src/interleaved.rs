//! Pages that are interleaved because no stock kernel replicates them. A policy sees a single home of such a page and
//! would move it to the node that is seen most often. Here the pages stay until one node alone uses them.

use rustc_hash::FxHashMap;

/// Number of samples before the use of a page counts as changed.
const SAMPLES_MIN: u32 = 16;
/// A page may move to a node with all but one in this number of its samples.
const ONE_IN: u32 = 10;
/// Number of samples above which the counts of a page are halved.
const SAMPLES_MAX: u32 = 32;

/// Samples of each interleaved page by node, by its number.
#[derive(Debug, Default)]
pub struct Interleaved {
    pages: FxHashMap<u32, Box<[u32]>>,
    /// Pages that are no longer interleaved, because their use has changed.
    ended: Vec<u32>,
}

impl Interleaved {
    /// Adds the page with this number.
    pub fn insert(&mut self, number: u32, nodes: usize) {
        let unseen = || vec![0; nodes].into_boxed_slice();
        self.pages.entry(number).or_insert_with(unseen);
    }

    /// Is the page with this number interleaved instead of replicated?
    pub fn has(&self, number: u32) -> bool {
        self.pages.contains_key(&number)
    }

    /// Returns the pages that are no longer interleaved because their use has changed, each once.
    pub fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }

    /// Drops a number that stands for another page or for none, or whose copies are no longer wanted.
    pub fn forget(&mut self, number: u32) {
        self.pages.remove(&number);
    }

    /// Counts a sample of a page on a node.
    #[inline]
    pub fn sampled(&mut self, number: u32, node: u16) {
        if self.pages.is_empty() {
            return;
        }
        if let Some(by_node) = self.pages.get_mut(&number) {
            by_node[usize::from(node)] += 1;
            if by_node.iter().sum::<u32>() > SAMPLES_MAX {
                by_node.iter_mut().for_each(|count| *count /= 2);
            }
        }
    }

    /// Does a page stay although a policy requests this node? A page whose use has changed is no longer interleaved.
    pub fn stays(&mut self, number: u32, node: u16) -> bool {
        let Some(by_node) = self.pages.get(&number) else {
            return false;
        };
        let all: u32 = by_node.iter().sum();
        let others = all - by_node[usize::from(node)];
        let stays = all < SAMPLES_MIN || others * ONE_IN > all;
        if !stays {
            self.pages.remove(&number);
            self.ended.push(number);
        }
        stays
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_stays_until_one_node_alone_uses_it() {
        let mut pages = Interleaved::default();
        assert!(!pages.stays(7, 2), "it is not interleaved");
        pages.insert(7, 4);
        for _ in 0..SAMPLES_MIN - 1 {
            pages.sampled(7, 2);
            assert!(pages.stays(7, 2), "too few samples");
        }
        pages.sampled(7, 2);
        pages.insert(7, 4);
        assert!(pages.stays(7, 1), "another node's");
        assert!(!pages.stays(7, 2));
        assert!(!pages.stays(7, 1), "not interleaved any more");
    }

    #[test]
    fn older_interleavings_count_less() {
        let mut pages = Interleaved::default();
        pages.insert(7, 4);
        (0..400).for_each(|at| pages.sampled(7, at % 4));
        assert!((0..4).all(|node| pages.stays(7, node)));
        (0..80).for_each(|_| pages.sampled(7, 3));
        assert!(!pages.stays(7, 3));
        pages.insert(8, 4);
        (0..20).for_each(|_| pages.sampled(8, 0));
        pages.forget(8);
        assert!(!pages.stays(8, 0));
    }
}
