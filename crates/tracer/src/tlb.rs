//! Translation look-aside buffers: set-associative, with the least recently used entry evicted first.
//!
//! One host thread at a time runs a CPU's thread, so nothing here is contended; atomics are used as
//! plain memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nearpage_wire::tracer_setup;

/// A TLB. Pages are numbers; tables store n + 1 for number n, and 0 for none.
pub struct Tlb {
    set_mask: u64,
    ways: usize,
    entries: Box<[Entry]>,
    /// Entries of each set, as a ring in the order of [`Entry::queued`]. The entry at its head either is the oldest, or has
    /// been used since it was put there and belongs further back.
    rings: Box<[AtomicU32]>,
    /// Where each set's ring begins.
    heads: Box<[AtomicU32]>,
    /// For each hash, the first entry whose page has it, + 1. There are four times as many hashes as entries.
    chains: Box<[AtomicU32]>,
    chains_shift: u32,
    /// For each short hash, the page with it that was used last, and its entry: page + 1 above [`ENTRY_BITS`], entry
    /// below.
    latest: [AtomicU64; LATEST],
    clock: AtomicU64,
}

const LATEST: usize = 64;
const ENTRY_BITS: u32 = 16;

#[derive(Default)]
struct Entry {
    page: AtomicU64,
    /// When it was used last.
    used: AtomicU64,
    /// Its time of last use when it was put in its place in the ring.
    queued: AtomicU64,
    /// The next one in its chain, + 1.
    next: AtomicU32,
}

fn numbers(count: usize, number: impl Fn(usize) -> u32) -> Box<[AtomicU32]> {
    (0..count).map(|at| AtomicU32::new(number(at))).collect()
}

impl Tlb {
    /// An empty TLB.
    pub fn new(shape: &tracer_setup::Tlb) -> Self {
        let sets = shape.sets() as usize;
        let ways = shape.usable_ways() as usize;
        let chains = (4 * sets * ways).next_power_of_two();
        Self {
            set_mask: sets as u64 - 1,
            ways,
            entries: (0..sets * ways).map(|_| Entry::default()).collect(),
            rings: numbers(sets * ways, |entry| entry as u32),
            heads: numbers(sets, |_| 0),
            chains: numbers(chains, |_| 0),
            chains_shift: 64 - chains.trailing_zeros(),
            latest: [const { AtomicU64::new(0) }; LATEST],
            clock: AtomicU64::new(0),
        }
    }

    #[inline]
    fn chain(&self, page: u64) -> Option<&AtomicU32> {
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.chains_shift;
        self.chains.get(hash as usize)
    }

    #[inline]
    fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)
    }

    #[inline]
    fn latest(&self, page: u64) -> &AtomicU64 {
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LATEST.trailing_zeros());
        &self.latest[hash as usize % LATEST]
    }

    /// Uses the page if it is here; returns whether it is.
    #[inline]
    pub fn quick(&self, page: u64) -> bool {
        let latest = self.latest(page).load(Relaxed);
        if latest >> ENTRY_BITS == page + 1
            && let Some(entry) = self.entry((latest & ((1 << ENTRY_BITS) - 1)) as u32)
        {
            self.use_now(entry);
            return true;
        }
        self.search(page)
    }

    #[inline(never)]
    fn search(&self, page: u64) -> bool {
        let mut number = self.chain(page).map_or(0, |first| first.load(Relaxed));
        // 0 is none: there is no entry before the first.
        while let Some(entry) = self.entry(number.wrapping_sub(1)) {
            if entry.page.load(Relaxed) == page + 1 {
                self.note(page, number - 1);
                self.use_now(entry);
                return true;
            }
            number = entry.next.load(Relaxed);
        }
        false
    }

    #[inline]
    fn note(&self, page: u64, number: u32) {
        if number >> ENTRY_BITS == 0 {
            let latest = (page + 1) << ENTRY_BITS | u64::from(number);
            self.latest(page).store(latest, Relaxed);
        }
    }

    #[inline]
    fn use_now(&self, entry: &Entry) {
        let now = self.clock.load(Relaxed) + 1;
        self.clock.store(now, Relaxed);
        entry.used.store(now, Relaxed);
    }

    /// Inserts a page that is not here.
    pub fn fill(&self, page: u64) {
        let set = (page & self.set_mask) as usize;
        let first = set * self.ways;
        let ring = self.rings.get(first..first + self.ways);
        let (Some(ring), Some(head)) = (ring, self.heads.get(set)) else {
            return;
        };
        let Some((number, at)) = self.oldest(ring, head.load(Relaxed) as usize) else {
            return;
        };
        let Some(entry) = self.entry(number) else {
            return;
        };
        self.forget(number, entry);
        entry.page.store(page + 1, Relaxed);
        if let Some(chain) = self.chain(page) {
            entry.next.store(chain.load(Relaxed), Relaxed);
            chain.store(number + 1, Relaxed);
        }
        self.note(page, number);
        self.use_now(entry);
        entry.queued.store(entry.used.load(Relaxed), Relaxed);
        // The new entry moves from the ring's head to its end, which is the same place.
        head.store(self.after(at) as u32, Relaxed);
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.ways { 0 } else { at + 1 }
    }

    /// The set's least recently used entry, and its place in the ring, where the ring's head now is.
    #[inline]
    fn oldest(&self, ring: &[AtomicU32], mut head: usize) -> Option<(u32, usize)> {
        loop {
            let number = ring.get(head)?.load(Relaxed);
            let entry = self.entry(number)?;
            let used = entry.used.load(Relaxed);
            if used == entry.queued.load(Relaxed) {
                return Some((number, head));
            }
            // The entry moves back, behind all entries that were put in their places before its last use.
            entry.queued.store(used, Relaxed);
            let mut at = head;
            head = self.after(head);
            while at != head {
                let before = if at == 0 { self.ways } else { at } - 1;
                let other = ring.get(before)?.load(Relaxed);
                if self.entry(other)?.queued.load(Relaxed) <= used {
                    break;
                }
                ring.get(at)?.store(other, Relaxed);
                at = before;
            }
            ring.get(at)?.store(number, Relaxed);
        }
    }

    /// Empties an entry and takes it from its chain.
    fn forget(&self, number: u32, entry: &Entry) {
        let page = entry.page.load(Relaxed);
        if page == 0 {
            return;
        }
        let latest = self.latest(page - 1);
        if latest.load(Relaxed) >> ENTRY_BITS == page {
            latest.store(0, Relaxed);
        }
        entry.page.store(0, Relaxed);
        let Some(mut link) = self.chain(page - 1) else {
            return;
        };
        while link.load(Relaxed) != number + 1 {
            match self.entry(link.load(Relaxed).wrapping_sub(1)) {
                Some(other) => link = &other.next,
                None => return,
            }
        }
        link.store(entry.next.load(Relaxed), Relaxed);
    }

    /// Empties the entries of these pages; they are the first to be filled again.
    pub fn flush(&self, pages: std::ops::Range<u64>) {
        let mut any = false;
        for (number, entry) in self.entries.iter().enumerate() {
            let page = entry.page.load(Relaxed);
            if page != 0 && pages.contains(&(page - 1)) {
                self.forget(number as u32, entry);
                entry.used.store(0, Relaxed);
                any = true;
            }
        }
        if any {
            for (ring, head) in self.rings.chunks(self.ways).zip(&self.heads) {
                let mut order: Vec<u32> = ring.iter().map(|place| place.load(Relaxed)).collect();
                let used = |number: &u32| {
                    let entry = self.entry(*number);
                    entry.map_or(0, |entry| entry.used.load(Relaxed))
                };
                order.sort_by_key(used);
                for (place, number) in ring.iter().zip(order) {
                    place.store(number, Relaxed);
                }
                head.store(0, Relaxed);
            }
            for entry in &self.entries {
                entry.queued.store(entry.used.load(Relaxed), Relaxed);
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

    /// A simple model of the TLB: a list for each set, with the page used last in front.
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
    fn the_tlb_agrees_with_a_simple_model() {
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
