//! Translation look-aside buffers: set-associative, least recently used goes first.
//!
//! One host thread at a time runs a CPU's thread, so nothing here is contended; atomics are used as
//! plain memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use nearpage_wire::tracer_setup;

/// Entries of the index in front; a power of two.
const INDEX: usize = 256;

/// A TLB. Pages are numbers; 0 in a table is none, n + 1 is page n.
pub struct Tlb {
    set_mask: u64,
    ways: usize,
    pages: Box<[AtomicU64]>,
    /// When each entry was last used, but for the one used last.
    used: Box<[AtomicU64]>,
    /// Where a page is, if it is anywhere: page + 1 and its place, by the low bits of its number.
    index: Box<[[AtomicU64; 2]; INDEX]>,
    /// Page used last, + 1, and its place.
    last: [AtomicU64; 2],
    clock: AtomicU64,
}

impl Tlb {
    /// An empty one.
    pub fn new(shape: &tracer_setup::Tlb) -> Self {
        let entries = (shape.sets() * shape.usable_ways()) as usize;
        let zeros = || (0..entries).map(|_| AtomicU64::new(0)).collect();
        Self {
            set_mask: u64::from(shape.sets()) - 1,
            ways: shape.usable_ways() as usize,
            pages: zeros(),
            used: zeros(),
            index: Box::new([const { [const { AtomicU64::new(0) }; 2] }; INDEX]),
            last: Default::default(),
            clock: AtomicU64::new(0),
        }
    }

    /// Is the page here, where looking is quick? `false`: ask [`Self::access`].
    #[inline]
    pub fn quick(&self, page: u64) -> bool {
        if self.last[0].load(Relaxed) == page + 1 {
            return true;
        }
        let [indexed, place] = &self.index[page as usize % INDEX];
        if indexed.load(Relaxed) != page + 1 {
            return false;
        }
        self.use_now(page, place.load(Relaxed));
        true
    }

    #[inline]
    fn use_now(&self, page: u64, place: u64) {
        let now = self.clock.load(Relaxed) + 1;
        self.clock.store(now, Relaxed);
        if let Some(used) = self.used.get(place as usize) {
            used.store(now, Relaxed);
        }
        self.last[0].store(page + 1, Relaxed);
        self.last[1].store(place, Relaxed);
    }

    /// Uses the page; puts it here if it is not. Was it?
    pub fn access(&self, page: u64) -> bool {
        let first = (page & self.set_mask) as usize * self.ways;
        let set = first..first + self.ways;
        let places = self.pages.get(set.clone()).unwrap_or_default();
        let found = places
            .iter()
            .position(|entry| entry.load(Relaxed) == page + 1);
        let way = found.unwrap_or_else(|| {
            let used = self.used.get(set).unwrap_or_default();
            let oldest = (0..used.len()).min_by_key(|way| used[*way].load(Relaxed));
            let way = oldest.unwrap_or(0);
            if let Some(entry) = places.get(way) {
                self.forget(entry.swap(page + 1, Relaxed));
            }
            way
        });
        let place = (first + way) as u64;
        let indexed = &self.index[page as usize % INDEX];
        indexed[0].store(page + 1, Relaxed);
        indexed[1].store(place, Relaxed);
        self.use_now(page, place);
        found.is_some()
    }

    /// Takes what stood in an entry out of the index.
    fn forget(&self, entry: u64) {
        if entry == 0 {
            return;
        }
        let indexed = &self.index[(entry - 1) as usize % INDEX][0];
        if indexed.load(Relaxed) == entry {
            indexed.store(0, Relaxed);
        }
        if self.last[0].load(Relaxed) == entry {
            self.last[0].store(0, Relaxed);
        }
    }

    /// Empties the entries of these pages.
    pub fn flush(&self, pages: std::ops::Range<u64>) {
        for (entry, used) in self.pages.iter().zip(&self.used) {
            let value = entry.load(Relaxed);
            if value != 0 && pages.contains(&(value - 1)) {
                self.forget(value);
                entry.store(0, Relaxed);
                used.store(0, Relaxed);
            }
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
}
