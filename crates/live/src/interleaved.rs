//! Pages that were interleaved because no stock kernel replicates them. To a policy such a page has one
//! home like any other, and whichever node happens to be seen most would get it. Here they stay where
//! they were put until one node alone uses them.

use rustc_hash::FxHashMap;

/// Samples before a page's use is known to be another one.
const SAMPLES_MIN: u32 = 16;
/// Of so many all but one are the node's that it may move to.
const ONE_IN: u32 = 10;
/// What was seen counts half once there is so much of it.
const SAMPLES_MAX: u32 = 32;

/// Samples of each interleaved page by node, by its number.
#[derive(Debug, Default)]
pub struct Interleaved {
    pages: FxHashMap<u32, Box<[u32]>>,
    /// Pages whose use has changed.
    ended: Vec<u32>,
}

impl Interleaved {
    /// The page with this number belongs where interleaving puts it.
    pub fn insert(&mut self, number: u32, nodes: usize) {
        let unseen = || vec![0; nodes].into_boxed_slice();
        self.pages.entry(number).or_insert_with(unseen);
    }

    /// Is the page with this number interleaved in place of being copied?
    pub fn has(&self, number: u32) -> bool {
        self.pages.contains_key(&number)
    }

    /// Pages that are not interleaved any more, as their use has changed; each once.
    pub fn take_ended(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.ended)
    }

    /// The number stands for another page, or for none; or its copies are not wanted any more.
    pub fn forget(&mut self, number: u32) {
        self.pages.remove(&number);
    }

    /// A page was sampled on a node.
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

    /// Is a page to stay, though a policy wants it on this node? One whose use has changed is not
    /// interleaved any more.
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
