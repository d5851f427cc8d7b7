//! Which ranges carry a policy of ours, so that memory given back is not left with it; and how many
//! mappings that cost.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

use super::memory::Zeroed;
use super::order::spread;
use super::remap::each_mapping;

const BUCKETS: usize = 1 << 12;
const SLOTS: usize = 8;
/// Buckets that an address may be in.
const SPAN: usize = 2;

/// A range with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// First byte of the policy's pages.
    pub start: usize,
    /// Their bytes.
    pub length: usize,
    /// Mappings that it was granted.
    pub mappings: u32,
    /// Is it the program's to unmap, or the C library's when the object is freed? Otherwise the
    /// memory stays and is used again.
    pub is_unmapped: bool,
}

/// Placed heap objects and mappings by address, at most 32 Ki. Zeroed memory has none.
pub struct PlacedRanges {
    count: AtomicUsize,
    /// Keys apart from the rest: a `free` looks at no more than two cache lines.
    keys: [[AtomicUsize; SLOTS]; BUCKETS],
    ranges: [[Range; SLOTS]; BUCKETS],
}

struct Range {
    start: AtomicUsize,
    length: AtomicUsize,
    /// Mappings in the high half, 1 in the low for what is unmapped.
    rest: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for PlacedRanges {}

/// A key whose range is being written.
const BEING_WRITTEN: usize = 1;

impl PlacedRanges {
    fn slots(&self, address: usize) -> impl Iterator<Item = (&AtomicUsize, &Range)> {
        let bucket = spread(address as u64);
        (0..SPAN).flat_map(move |next| {
            let bucket = (bucket + next) % BUCKETS;
            self.keys[bucket].iter().zip(&self.ranges[bucket])
        })
    }

    /// Remembers what was placed at `address`; false where there is no room.
    pub fn insert(&self, address: usize, placed: Placed) -> bool {
        self.remove(address);
        let free = |(key, _): &(&AtomicUsize, &Range)| {
            key.load(Relaxed) == 0
                && key
                    .compare_exchange(0, BEING_WRITTEN, Acquire, Relaxed)
                    .is_ok()
        };
        let Some((key, range)) = self.slots(address).find(free) else {
            return false;
        };
        range.start.store(placed.start, Relaxed);
        range.length.store(placed.length, Relaxed);
        range.rest.store(
            u64::from(placed.mappings) << 32 | u64::from(placed.is_unmapped),
            Relaxed,
        );
        self.count.fetch_add(1, Relaxed);
        key.store(address, Release);
        true
    }

    /// What was placed at `address`, which is thereby forgotten.
    #[inline]
    pub fn remove(&self, address: usize) -> Option<Placed> {
        if self.count.load(Relaxed) == 0 || address <= BEING_WRITTEN {
            return None;
        }
        let (key, range) = self
            .slots(address)
            .find(|(key, _)| key.load(Acquire) == address)?;
        let rest = range.rest.load(Relaxed);
        let placed = Placed {
            start: range.start.load(Relaxed),
            length: range.length.load(Relaxed),
            mappings: (rest >> 32) as u32,
            is_unmapped: rest & 1 == 1,
        };
        key.compare_exchange(address, 0, AcqRel, Relaxed).ok()?;
        self.count.fetch_sub(1, Relaxed);
        Some(placed)
    }
}

/// Mappings that placement may still add to the process.
pub struct Mappings {
    max: AtomicU64,
    used: AtomicU64,
    /// Mappings of the process before any was added.
    before: AtomicU64,
    /// Requests in vain since the last count, and how many of them the next count waits for.
    in_vain: AtomicU64,
    patience: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Mappings {}

impl Mappings {
    /// Grants up to `max`.
    pub fn start(&self, max: u64) {
        self.max.store(max, Relaxed);
        self.used.store(0, Relaxed);
        self.before
            .store(mappings_of_the_process().unwrap_or(0), Relaxed);
        self.patience.store(1, Relaxed);
    }

    /// Most that may be in use.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// In use, as far as is known.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Takes up to `wanted`, at least `least` or none.
    pub fn take(&self, wanted: u64, least: u64) -> u64 {
        let taken = self.try_take(wanted, least);
        if taken == wanted {
            return taken;
        }
        // Pieces in the heap are not given back when objects are freed, though the next object at
        // the same place needs no new ones. Count what there really is, less and less often while
        // that does not help.
        if self.in_vain.fetch_add(1, Relaxed) + 1 < self.patience.load(Relaxed) {
            return taken;
        }
        self.in_vain.store(0, Relaxed);
        self.give_back(taken);
        let used = self.used();
        if let Some(now) = mappings_of_the_process() {
            let really = now.saturating_sub(self.before.load(Relaxed)).min(used);
            let _ = self.used.compare_exchange(used, really, Relaxed, Relaxed);
            let helped = used - really > self.max() / 4;
            let patience = self.patience.load(Relaxed);
            self.patience.store(
                if helped {
                    1
                } else {
                    (patience * 2).min(1 << 20)
                },
                Relaxed,
            );
        }
        self.try_take(wanted, least)
    }

    fn try_take(&self, wanted: u64, least: u64) -> u64 {
        let mut taken = 0;
        let _ = self.used.fetch_update(Relaxed, Relaxed, |used| {
            taken = self.max().saturating_sub(used).min(wanted);
            if taken < least {
                taken = 0;
            }
            Some(used + taken)
        });
        taken
    }

    /// Returns mappings that are gone.
    pub fn give_back(&self, count: u64) {
        let _ = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(count)));
    }

    /// The kernel has no more to give.
    pub fn exhaust(&self) {
        self.used.fetch_max(self.max(), Relaxed);
    }
}

fn mappings_of_the_process() -> Option<u64> {
    let mut count = 0;
    each_mapping(|_| count += 1).ok()?;
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::memory::zeroed;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_is_remembered_is_found_once() {
        let ranges = zeroed::<PlacedRanges>().unwrap();
        let placed = Placed {
            start: 0x1000,
            length: 0x3000,
            mappings: 7,
            is_unmapped: true,
        };
        assert_eq!(ranges.remove(0x1010), None);
        assert!(ranges.insert(0x1010, placed));
        assert_eq!(ranges.remove(0x1010), Some(placed));
        assert_eq!(ranges.remove(0x1010), None);
    }

    proptest! {
        #[test]
        fn the_table_is_a_map_that_may_be_full(steps in proptest::collection::vec((any::<bool>(), 1usize..200), 0..400)) {
            let ranges = zeroed::<PlacedRanges>().unwrap();
            let mut model = BTreeMap::new();
            for (step, (insert, page)) in steps.into_iter().enumerate() {
                let (address, placed) =
                    (page * 4096 + 16, Placed { start: page * 4096, length: step, mappings: 1, is_unmapped: false });
                if insert {
                    if ranges.insert(address, placed) {
                        model.insert(address, placed);
                    } else {
                        model.remove(&address);
                    }
                } else {
                    prop_assert_eq!(ranges.remove(address), model.remove(&address));
                }
            }
        }
    }

    #[test]
    fn mappings_are_granted_counted_and_returned() {
        let mappings = zeroed::<Mappings>().unwrap();
        mappings.start(100);
        assert_eq!(mappings.take(60, 2), 60);
        // In vain, but the process really has hardly more mappings than before.
        assert!(mappings.take(60, 2) >= 40);
        mappings.start(10);
        assert_eq!(mappings.take(9, 1), 9);
        mappings.give_back(4);
        assert_eq!(mappings.take(5, 5), 5);
        mappings.exhaust();
        assert_eq!(mappings.used(), 10);
        assert!(mappings_of_the_process().unwrap() > 3);
    }
}
