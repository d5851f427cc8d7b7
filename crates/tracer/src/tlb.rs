//! Translation look-aside buffers: set-associative, least recently used goes first.
//!
//! One host thread at a time runs a CPU's thread, so nothing here is contended; atomics are used as
//! plain memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nearpage_wire::tracer_setup;

/// A TLB. Pages are numbers; in tables, 0 is none and n + 1 is page n.
pub struct Tlb {
    set_mask: u64,
    ways: u32,
    entries: Box<[Entry]>,
    /// First and last entry of each set's list, + 1: the one used last and the one to go.
    lists: Box<[[AtomicU32; 2]]>,
    /// Where each page is: entry + 1, found from a hash of the page by linear probing. Four times
    /// as many as entries.
    index: Box<[AtomicU32]>,
    index_shift: u32,
    /// Page used last, + 1.
    last: AtomicU64,
}

#[derive(Default)]
struct Entry {
    page: AtomicU64,
    /// Neighbours in its set's list, + 1: used later, used earlier.
    later: AtomicU32,
    earlier: AtomicU32,
}

impl Tlb {
    /// An empty one.
    pub fn new(shape: &tracer_setup::Tlb) -> Self {
        let (sets, ways) = (shape.sets(), shape.usable_ways());
        let index = (4 * sets * ways).next_power_of_two();
        let zeros = |count: u32| (0..count).map(|_| AtomicU32::new(0)).collect();
        let tlb = Self {
            set_mask: u64::from(sets) - 1,
            ways,
            entries: (0..sets * ways).map(|_| Entry::default()).collect(),
            lists: (0..sets).map(|_| Default::default()).collect(),
            index: zeros(index),
            index_shift: 64 - index.trailing_zeros(),
            last: AtomicU64::new(0),
        };
        for set in 0..sets {
            for way in 0..ways {
                tlb.to_front(set as usize, set * ways + way);
            }
        }
        tlb
    }

    #[inline]
    fn home(&self, page: u64) -> usize {
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.index_shift) as usize
    }

    fn page_of(&self, number: u32) -> u64 {
        let entry = self.entries.get(number as usize);
        entry.map_or(0, |entry| entry.page.load(Relaxed))
    }

    /// Entry of the page + 1, or 0; and its place in the index, or the empty one where it would be.
    #[inline]
    fn find(&self, page: u64) -> (u32, usize) {
        let mut at = self.home(page);
        loop {
            let found = self.index.get(at).map_or(0, |place| place.load(Relaxed));
            if found == 0 || self.page_of(found - 1) == page + 1 {
                return (found, at);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Uses the page if it is the one used last. `false`: ask [`Self::access`].
    #[inline]
    pub fn quick(&self, page: u64) -> bool {
        if self.last.load(Relaxed) == page + 1 {
            return true;
        }
        let (found, _) = self.find(page);
        if found == 0 {
            return false;
        }
        self.use_now(page, found - 1);
        true
    }

    #[inline]
    fn use_now(&self, page: u64, number: u32) {
        let set = (page & self.set_mask) as usize;
        self.last.store(page + 1, Relaxed);
        let front = self.lists.get(set).map(|[front, _]| front.load(Relaxed));
        if front != Some(number + 1) {
            self.unlink(set, number);
            self.to_front(set, number);
        }
    }

    #[inline]
    fn unlink(&self, set: usize, number: u32) {
        let (Some(entry), Some([front, back])) =
            (self.entries.get(number as usize), self.lists.get(set))
        else {
            return;
        };
        let (later, earlier) = (entry.later.load(Relaxed), entry.earlier.load(Relaxed));
        match self.entries.get((later as usize).wrapping_sub(1)) {
            Some(neighbour) => neighbour.earlier.store(earlier, Relaxed),
            None => front.store(earlier, Relaxed),
        }
        match self.entries.get((earlier as usize).wrapping_sub(1)) {
            Some(neighbour) => neighbour.later.store(later, Relaxed),
            None => back.store(later, Relaxed),
        }
    }

    #[inline]
    fn to_front(&self, set: usize, number: u32) {
        let (Some(entry), Some([front, back])) =
            (self.entries.get(number as usize), self.lists.get(set))
        else {
            return;
        };
        let second = front.load(Relaxed);
        entry.later.store(0, Relaxed);
        entry.earlier.store(second, Relaxed);
        match self.entries.get((second as usize).wrapping_sub(1)) {
            Some(neighbour) => neighbour.later.store(number + 1, Relaxed),
            None => back.store(number + 1, Relaxed),
        }
        front.store(number + 1, Relaxed);
    }

    /// Uses the page; puts it here if it is not. Was it?
    pub fn access(&self, page: u64) -> bool {
        if self.quick(page) {
            return true;
        }
        let set = (page & self.set_mask) as usize;
        let oldest = self
            .lists
            .get(set)
            .map_or(0, |[_, back]| back.load(Relaxed));
        let Some(entry) = self.entries.get((oldest as usize).wrapping_sub(1)) else {
            return false;
        };
        self.forget(entry);
        entry.page.store(page + 1, Relaxed);
        let (_, place) = self.find(page);
        if let Some(place) = self.index.get(place) {
            place.store(oldest, Relaxed);
        }
        self.use_now(page, oldest - 1);
        false
    }

    /// Empties an entry and takes it from the index.
    fn forget(&self, entry: &Entry) {
        let page = entry.page.load(Relaxed);
        if page == 0 {
            return;
        }
        if self.last.load(Relaxed) == page {
            self.last.store(0, Relaxed);
        }
        let (_, mut hole) = self.find(page - 1);
        let mask = self.index.len() - 1;
        let at_place = |at: usize| self.index.get(at).map_or(0, |place| place.load(Relaxed));
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let here = at_place(at);
            if here == 0 {
                break;
            }
            let home = self.home(self.page_of(here - 1).wrapping_sub(1));
            // Would a search from its home pass the hole?
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let Some(place) = self.index.get(hole) {
                    place.store(here, Relaxed);
                }
                hole = at;
            }
        }
        if let Some(place) = self.index.get(hole) {
            place.store(0, Relaxed);
        }
        entry.page.store(0, Relaxed);
    }

    /// Empties the entries of these pages; they are the first to be filled again.
    pub fn flush(&self, pages: std::ops::Range<u64>) {
        for number in 0..self.entries.len() as u32 {
            let page = self.page_of(number);
            if page == 0 || !pages.contains(&(page - 1)) {
                continue;
            }
            let Some(entry) = self.entries.get(number as usize) else {
                return;
            };
            self.forget(entry);
            let set = (number / self.ways) as usize;
            self.unlink(set, number);
            let Some([front, back]) = self.lists.get(set) else {
                return;
            };
            let last = back.load(Relaxed);
            entry.earlier.store(0, Relaxed);
            entry.later.store(last, Relaxed);
            match self.entries.get((last as usize).wrapping_sub(1)) {
                Some(neighbour) => neighbour.earlier.store(number + 1, Relaxed),
                None => front.store(number + 1, Relaxed),
            }
            back.store(number + 1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tlb(entries: u32, ways: u32, reserved: u32) -> Tlb {
        Tlb::new(&tracer_setup::Tlb {
            entries,
            ways,
            reserved,
        })
    }

    fn uses(tlb: &Tlb, page: u64) -> bool {
        tlb.quick(page) || tlb.access(page)
    }

    #[test]
    fn reserved_entries_are_not_the_programs() {
        let tlb = tlb(64, 64, 8);
        for round in 0..3 {
            for page in 0..56 {
                assert_eq!(uses(&tlb, page), round > 0);
            }
        }
        // One page more than fits, in turn: least recently used is always the next.
        (56..60).for_each(|page| assert!(!uses(&tlb, page)));
        (0..56).for_each(|page| assert!(!uses(&tlb, page)));
    }

    #[test]
    fn the_least_recently_used_entry_of_the_set_goes() {
        let tlb = tlb(8, 2, 0);
        assert!(!uses(&tlb, 0) && !uses(&tlb, 4) && !uses(&tlb, 1));
        assert!(uses(&tlb, 0) && !uses(&tlb, 8) && uses(&tlb, 0) && !uses(&tlb, 4));
        assert!(uses(&tlb, 1));
    }

    #[test]
    fn flushed_pages_miss_and_others_stay() {
        let tlb = tlb(16, 16, 0);
        (0..10).for_each(|page| assert!(!uses(&tlb, page)));
        tlb.flush(3..5);
        for page in (0..10).rev() {
            assert_eq!(uses(&tlb, page), !(3..5).contains(&page), "{page}");
        }
    }

    /// The same TLB, written to be read: a list for each set, the page used last in front.
    struct Plain {
        sets: Vec<Vec<u64>>,
        ways: usize,
    }

    impl Plain {
        fn access(&mut self, page: u64) -> bool {
            let count = self.sets.len() as u64;
            let set = &mut self.sets[(page % count) as usize];
            let was = set.iter().position(|entry| *entry == page);
            if let Some(place) = was {
                set.remove(place);
            }
            set.insert(0, page);
            set.truncate(self.ways);
            was.is_some()
        }
    }

    #[test]
    fn it_does_what_a_plain_one_does() {
        for (seed, (entries, ways)) in [(8, 8), (16, 4), (56, 56), (64, 1), (12, 3)]
            .into_iter()
            .enumerate()
        {
            let tlb = tlb(entries, ways, 0);
            let sets = (entries / ways) as usize;
            let mut plain = Plain {
                sets: vec![vec![]; sets],
                ways: ways as usize,
            };
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed as u64 + 1);
            for step in 0..20_000_u64 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let page = random % (2 * u64::from(entries));
                if step % 500 == 499 {
                    tlb.flush(page..page + 9);
                    let kept = |page_here: &u64| !(page..page + 9).contains(page_here);
                    plain.sets.iter_mut().for_each(|set| set.retain(kept));
                }
                assert_eq!(uses(&tlb, page), plain.access(page), "step {step}");
            }
        }
    }
}
