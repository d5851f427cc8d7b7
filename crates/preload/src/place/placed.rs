//! The tables of placed ranges, whose policies are removed when they are freed, and of objects that wait for their
//! placement; and the number of mappings that policies add to the process.

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};

use super::memory::Zeroed;
use super::order::spread;
use super::recognise::Origin;
use super::remap::each_mapping;

const BUCKETS: usize = 1 << 12;
const SLOTS: usize = 8;
/// Consecutive buckets in which an address is looked for.
const SPAN: usize = 2;

/// A range with a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// First byte of the policy's pages.
    pub start: usize,
    /// Their bytes.
    pub length: usize,
    /// Mappings that were granted for it.
    pub mappings: u32,
    /// Does freeing it unmap the memory? Otherwise the memory stays in the heap and is used again.
    pub is_unmapped: bool,
}

/// An object that is placed when the second thread is created, or a phase begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its rule.
    pub rule: u32,
    /// Its number among the objects of its call site and thread, if its rule uses numbers.
    pub number: u32,
    /// Its bytes.
    pub size_bytes: usize,
    /// Heap object or mapping.
    pub origin: Origin,
}

/// The value that a table keeps for an address, in three words.
pub trait AddressEntry: Copy {
    /// The value's three words.
    fn words(self) -> [u64; 3];
    /// The value of these words, which [`Self::words`] returned.
    fn of(words: [u64; 3]) -> Self;
}

impl AddressEntry for Placed {
    fn words(self) -> [u64; 3] {
        let rest = u64::from(self.mappings) << 32 | u64::from(self.is_unmapped);
        [self.start as u64, self.length as u64, rest]
    }

    fn of([start, length, rest]: [u64; 3]) -> Self {
        Self {
            start: start as usize,
            length: length as usize,
            mappings: (rest >> 32) as u32,
            is_unmapped: rest & 1 == 1,
        }
    }
}

impl AddressEntry for Waiting {
    fn words(self) -> [u64; 3] {
        let is_mapping = self.origin == Origin::Mapping;
        let rule = u64::from(self.number) << 32 | u64::from(self.rule);
        [rule, self.size_bytes as u64, is_mapping.into()]
    }

    fn of([rule, size_bytes, is_mapping]: [u64; 3]) -> Self {
        Self {
            rule: rule as u32,
            number: (rule >> 32) as u32,
            size_bytes: size_bytes as usize,
            origin: match is_mapping {
                0 => Origin::Heap,
                _ => Origin::Mapping,
            },
        }
    }
}

/// Heap objects and mappings by address, at most 32 Ki. Zeroed memory has none.
pub struct Objects<T> {
    count: AtomicUsize,
    /// Keys, separate from the values, so that a `free` reads two cache lines at most.
    keys: [[AtomicUsize; SLOTS]; BUCKETS],
    values: [[Words; SLOTS]; BUCKETS],
    kept: PhantomData<T>,
}

type Words = [AtomicU64; 3];

// SAFETY: atomics only.
unsafe impl<T: AddressEntry> Zeroed for Objects<T> {}

/// A key whose value is being written.
const BEING_WRITTEN: usize = 1;

impl<T: AddressEntry> Objects<T> {
    fn slots(&self, address: usize) -> impl Iterator<Item = (&AtomicUsize, &Words)> {
        let bucket = spread(address as u64);
        (0..SPAN).flat_map(move |next| {
            let bucket = (bucket + next) % BUCKETS;
            self.keys[bucket].iter().zip(&self.values[bucket])
        })
    }

    /// Remembers the object at `address`; false if the table has no room.
    pub fn insert(&self, address: usize, object: T) -> bool {
        self.remove(address);
        let free = |(key, _): &(&AtomicUsize, &Words)| {
            key.load(Relaxed) == 0
                && key
                    .compare_exchange(0, BEING_WRITTEN, Acquire, Relaxed)
                    .is_ok()
        };
        let Some((key, value)) = self.slots(address).find(free) else {
            return false;
        };
        for (to, from) in value.iter().zip(object.words()) {
            to.store(from, Relaxed);
        }
        self.count.fetch_add(1, Relaxed);
        key.store(address, Release);
        true
    }

    /// Takes the object at `address` out of the table.
    #[inline]
    pub fn remove(&self, address: usize) -> Option<T> {
        if self.count.load(Relaxed) == 0 || address <= BEING_WRITTEN {
            return None;
        }
        let (key, value) = self
            .slots(address)
            .find(|(key, _)| key.load(Acquire) == address)?;
        self.take(address, key, value)
    }

    fn take(&self, address: usize, key: &AtomicUsize, value: &Words) -> Option<T> {
        let object = T::of(value.each_ref().map(|word| word.load(Relaxed)));
        key.compare_exchange(address, 0, AcqRel, Relaxed).ok()?;
        self.count.fetch_sub(1, Relaxed);
        Some(object)
    }

    /// Takes every object out of the table and passes it to `taken`. Objects that are inserted or removed meanwhile may be
    /// missed.
    pub fn take_all(&self, mut taken: impl FnMut(usize, T)) {
        let keys = self.keys.iter().flatten();
        for (key, value) in keys.zip(self.values.iter().flatten()) {
            if self.count.load(Relaxed) == 0 {
                return;
            }
            let address = key.load(Acquire);
            if address > BEING_WRITTEN
                && let Some(object) = self.take(address, key, value)
            {
                taken(address, object);
            }
        }
    }
}

/// Mappings that placement may still add to the process.
pub struct Mappings {
    max: AtomicU64,
    used: AtomicU64,
    /// Mappings of the process before any was added.
    before: AtomicU64,
    /// Refused requests since the last count, and how many refusals the next count waits for.
    in_vain: AtomicU64,
    patience: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Mappings {}

impl Mappings {
    /// Sets how many mappings may be granted.
    pub fn start(&self, max: u64) {
        self.max.store(max, Relaxed);
        self.used.store(0, Relaxed);
        self.before
            .store(mappings_of_the_process().unwrap_or(0), Relaxed);
        self.patience.store(1, Relaxed);
    }

    /// The most mappings that may be in use.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Mappings in use, as counted last.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Takes up to `wanted` mappings; if fewer than `least` are left, none.
    pub fn take(&self, wanted: u64, least: u64) -> u64 {
        let taken = self.try_take(wanted, least);
        if taken == wanted {
            return taken;
        }
        // Mappings of freed heap objects stay in use, but the next object in the same memory needs no
        // new ones, so the number in use may be too high. The real mappings are counted, ever less often while that
        // gains nothing.
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

    /// Returns mappings that no longer exist.
    pub fn give_back(&self, count: u64) {
        let _ = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(count)));
    }

    /// Grants no further mapping: the kernel has refused one.
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
    fn a_remembered_object_is_found_once() {
        let ranges = zeroed::<Objects<Placed>>().unwrap();
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

    #[test]
    fn waiting_objects_are_taken_together_once() {
        let waiting = zeroed::<Objects<Waiting>>().unwrap();
        let object = |rule: u32| Waiting {
            rule,
            number: 2 * rule,
            size_bytes: 8192 * (1 + rule as usize),
            origin: if rule.is_multiple_of(2) {
                Origin::Heap
            } else {
                Origin::Mapping
            },
        };
        for rule in 0..1000 {
            assert!(waiting.insert(0x10_0010 + rule as usize * 8192, object(rule)));
        }
        assert_eq!(waiting.remove(0x10_0010 + 7 * 8192), Some(object(7)));
        let mut taken = BTreeMap::new();
        waiting.take_all(|address, object| {
            assert_eq!(taken.insert(address, object), None);
        });
        let expected = (0..1000)
            .filter(|&rule| rule != 7)
            .map(|rule| (0x10_0010 + rule as usize * 8192, object(rule)));
        assert_eq!(taken, expected.collect());
        waiting.take_all(|address, _| panic!("{address:#x} twice"));
        assert_eq!(waiting.remove(0x10_0010), None);
    }

    proptest! {
        #[test]
        fn the_table_is_a_map_that_may_be_full(steps in proptest::collection::vec((any::<bool>(), 1usize..200), 0..400)) {
            let ranges = zeroed::<Objects<Placed>>().unwrap();
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
        // More than is left, but the count finds hardly more mappings than before.
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
