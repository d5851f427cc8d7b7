//! Translation look-aside buffers: set-associative, least recently used goes first.
//!
//! One host thread at a time runs a CPU's thread, so nothing here is contended; atomics are used as
//! plain memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nearpage_wire::tracer_setup;

/// A TLB. Pages are numbers; in tables, 0 is none and n + 1 is page n.
pub struct Tlb {
    set_mask: u64,
    ways: usize,
    entries: Box<[Entry]>,
    /// Where each page is, found from a hash of the page by linear probing. At least four times as
    /// many as entries.
    index: Box<[Place]>,
    index_shift: u32,
    /// Page used last, + 1.
    last: AtomicU64,
    clock: AtomicU64,
}

#[derive(Default)]
struct Place {
    page: AtomicU64,
    entry: AtomicU32,
}

#[derive(Default)]
struct Entry {
    page: AtomicU64,
    /// When it was used last, above [`NUMBER_BITS`] of its own number.
    used: AtomicU64,
}

const NUMBER_BITS: u32 = 17;

impl Tlb {
    /// An empty one.
    pub fn new(shape: &tracer_setup::Tlb) -> Self {
        let entries = shape.sets() * shape.usable_ways();
        let index = (4 * entries).next_power_of_two();
        let entry = |number| Entry {
            page: AtomicU64::new(0),
            used: AtomicU64::new(u64::from(number)),
        };
        Self {
            set_mask: u64::from(shape.sets()) - 1,
            ways: shape.usable_ways() as usize,
            entries: (0..entries).map(entry).collect(),
            index: (0..index).map(|_| Place::default()).collect(),
            index_shift: 64 - index.trailing_zeros(),
            last: AtomicU64::new(0),
            clock: AtomicU64::new(0),
        }
    }

    #[inline]
    fn home(&self, page: u64) -> usize {
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.index_shift) as usize
    }

    #[inline]
    fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)
    }

    /// Place of the page in the index, or the empty one where it would be.
    #[inline]
    fn place(&self, page: u64) -> Option<&Place> {
        let mut at = self.home(page);
        loop {
            let place = self.index.get(at)?;
            let here = place.page.load(Relaxed);
            if here == page + 1 || here == 0 {
                return Some(place);
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Uses the page if it is here. Is it?
    #[inline]
    pub fn quick(&self, page: u64) -> bool {
        if self.last.load(Relaxed) == page + 1 {
            return true;
        }
        match self.place(page) {
            Some(place) if place.page.load(Relaxed) != 0 => {
                self.use_now(page, place.entry.load(Relaxed));
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn use_now(&self, page: u64, number: u32) {
        let now = self.clock.load(Relaxed) + 1;
        self.clock.store(now, Relaxed);
        if let Some(entry) = self.entry(number) {
            entry
                .used
                .store(now << NUMBER_BITS | u64::from(number), Relaxed);
        }
        self.last.store(page + 1, Relaxed);
    }

    /// Puts a page here that is not.
    pub fn fill(&self, page: u64) {
        let first = (page & self.set_mask) as usize * self.ways;
        let set = self.entries.get(first..first + self.ways);
        // Four minima side by side, for the sake of those with many ways.
        let (groups, rest) = set.unwrap_or_default().as_chunks::<4>();
        let mut oldest = [u64::MAX; 4];
        for group in groups {
            for way in 0..4 {
                oldest[way] = oldest[way].min(group[way].used.load(Relaxed));
            }
        }
        let rest = rest.iter().map(|entry| entry.used.load(Relaxed));
        let oldest = oldest.into_iter().chain(rest).min().unwrap_or(0);
        let number = (oldest & ((1 << NUMBER_BITS) - 1)) as u32;
        let Some(entry) = self.entry(number) else {
            return;
        };
        self.forget(entry);
        entry.page.store(page + 1, Relaxed);
        if let Some(place) = self.place(page) {
            place.page.store(page + 1, Relaxed);
            place.entry.store(number, Relaxed);
        }
        self.use_now(page, number);
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
        let mask = self.index.len() - 1;
        let page_at = |at: usize| {
            self.index
                .get(at)
                .map_or(0, |place| place.page.load(Relaxed))
        };
        let mut hole = self.home(page - 1);
        while page_at(hole) != page {
            if page_at(hole) == 0 {
                return;
            }
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let here = page_at(at);
            if here == 0 {
                break;
            }
            let home = self.home(here - 1);
            // Would a search from its home pass the hole?
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                if let (Some(to), Some(from)) = (self.index.get(hole), self.index.get(at)) {
                    to.page.store(here, Relaxed);
                    to.entry.store(from.entry.load(Relaxed), Relaxed);
                }
                hole = at;
            }
        }
        if let Some(place) = self.index.get(hole) {
            place.page.store(0, Relaxed);
        }
        entry.page.store(0, Relaxed);
    }

    /// Empties the entries of these pages; they are the first to be filled again.
    pub fn flush(&self, pages: std::ops::Range<u64>) {
        for (number, entry) in self.entries.iter().enumerate() {
            let page = entry.page.load(Relaxed);
            if page != 0 && pages.contains(&(page - 1)) {
                self.forget(entry);
                entry.used.store(number as u64, Relaxed);
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
        let here = tlb.quick(page);
        if !here {
            tlb.fill(page);
        }
        here
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
