//! A hash table of sums. Key and sum lie side by side, so a look-up takes one cache miss, where a general map takes
//! two, and can be prefetched. Attribution spends most of its time here.

use crate::{array::Array, near::prefetch};

/// Key of a sum.
pub(crate) trait Key: Copy + Eq {
    /// The value that marks free slots and is no valid key.
    const FREE: Self;

    /// A hash in which each bit depends on all bits of the key.
    fn hash(self) -> u64;
}

/// Keys hold two small numbers, one in each half; two rounds spread both over all bits.
impl Key for u64 {
    const FREE: u64 = u64::MAX;

    #[inline]
    fn hash(self) -> u64 {
        let once = self.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (once ^ (once >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }
}

impl Key for (u64, u64) {
    const FREE: (u64, u64) = (u64::MAX, u64::MAX);

    #[inline]
    fn hash(self) -> u64 {
        (self.0 ^ self.1.rotate_left(32).wrapping_mul(0xC2B2_AE3D_27D4_EB4F)).hash()
    }
}

/// The alignment keeps a slot within one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot<K, S> {
    key: K,
    sum: S,
}

const SLOTS_MIN: usize = 8;

/// Sums by key, for any key except [`Key::FREE`].
#[derive(Clone, Debug)]
pub(crate) struct SumTable<K: Copy, S: Copy> {
    /// A power of two of slots with linear probing. At most half are used, as the branch of each further probe is
    /// unpredictable. In a packed table all slots are used, in no order.
    slots: Array<Slot<K, S>>,
    used: usize,
}

impl<K: Copy, S: Copy> Default for SumTable<K, S> {
    fn default() -> Self {
        SumTable {
            slots: Array::default(),
            used: 0,
        }
    }
}

impl<K: Key, S: Copy + Default> SumTable<K, S> {
    pub fn len(&self) -> usize {
        self.used
    }

    /// Takes the sums out into a packed table without room for more, which needs less memory until a sum is added.
    /// `self` stays empty, with its room allocated.
    pub fn take_packed(&mut self) -> Self {
        let used = self.slots.iter().filter(|slot| slot.key != K::FREE);
        let packed = Self {
            slots: Array::Small(used.copied().collect()),
            used: self.used,
        };
        match self.is_packed() {
            true => *self = Self::default(),
            false => self.slots.fill(Slot {
                key: K::FREE,
                sum: S::default(),
            }),
        }
        self.used = 0;
        packed
    }

    fn is_packed(&self) -> bool {
        self.used * 2 > self.slots.len()
    }

    /// Makes room for `sums` sums.
    pub fn reserve(&mut self, sums: usize) {
        if sums * 2 > self.slots.len() {
            self.grow(sums);
        }
    }

    /// Prefetches the slot of `key`.
    #[inline]
    pub fn prefetch(&self, key: K) {
        if !self.slots.is_empty() && !self.is_packed() {
            prefetch(&self.slots[self.place(key)]);
        }
    }

    /// The sum of `key`, and whether the sum is new.
    #[inline]
    pub fn entry(&mut self, key: K) -> (&mut S, bool) {
        if (self.used + 1) * 2 > self.slots.len() {
            self.grow(self.used + 1);
        }
        let at = self.probe(key);
        let slot = &mut self.slots[at];
        let new = slot.key != key;
        if new {
            slot.key = key;
            self.used += 1;
        }
        (&mut slot.sum, new)
    }

    /// The sum of `key`. A new sum is added only if there are fewer than `entries_max`.
    #[inline]
    pub fn entry_within(&mut self, key: K, entries_max: usize) -> Option<&mut S> {
        let full = self.used >= entries_max;
        if full && self.is_packed() {
            self.grow(self.used);
        }
        if full && self.slots[self.probe(key)].key != key {
            return None;
        }
        Some(self.entry(key).0)
    }

    /// Position of `key`, or of the free slot for it.
    #[inline]
    fn probe(&self, key: K) -> usize {
        let mut at = self.place(key);
        while self.slots[at].key != key && self.slots[at].key != K::FREE {
            at = (at + 1) & (self.slots.len() - 1);
        }
        at
    }

    #[inline]
    fn place(&self, key: K) -> usize {
        (key.hash() >> (u64::BITS - self.slots.len().trailing_zeros())) as usize
    }

    /// Grows to room for `sums` sums, at least the current number.
    #[cold]
    fn grow(&mut self, sums: usize) {
        let free = Slot {
            key: K::FREE,
            sum: S::default(),
        };
        let larger = Array::filled(free, (sums * 2).next_power_of_two().max(SLOTS_MIN));
        let slots = std::mem::replace(&mut self.slots, larger);
        for slot in slots.iter().filter(|slot| slot.key != K::FREE) {
            let at = self.probe(slot.key);
            self.slots[at] = *slot;
        }
    }

    /// All keys with their sums, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &S)> {
        self.slots
            .iter()
            .filter(|slot| slot.key != K::FREE)
            .map(|slot| (slot.key, &slot.sum))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_an_ordered_map(keys in prop::collection::vec((0u64..40, 0u64..40), 0..600), bound in 1usize..900) {
            let (mut table, mut model) = (SumTable::<u64, u64>::default(), BTreeMap::<u64, u64>::new());
            let (mut bounded, mut first) = (SumTable::<(u64, u64), u64>::default(), BTreeMap::<(u64, u64), u64>::new());
            for (page, thread) in keys {
                let key = page << 32 | thread;
                let (sum, new) = table.entry(key);
                *sum += 1;
                prop_assert_eq!(new, !model.contains_key(&key));
                *model.entry(key).or_default() += 1;

                let key = (page, thread);
                let room = first.len() < bound || first.contains_key(&key);
                let entry = bounded.entry_within(key, bound);
                prop_assert_eq!(entry.is_some(), room);
                if let Some(sum) = entry {
                    *sum += 1;
                    *first.entry(key).or_default() += 1;
                }
            }
            table = table.take_packed();
            if let Some((&key, sum)) = model.iter_mut().next() {
                // A key of a packed table is found when sums are added.
                table.prefetch(key);
                prop_assert!(!table.clone().entry(key).1);
                let entry = table.entry_within(key, 0).expect("it has a sum");
                *entry += 1;
                *sum += 1;
            }
            let mut taken = table.take_packed();
            prop_assert_eq!(table.len(), 0);
            prop_assert!(table.iter().next().is_none());
            prop_assert!(table.entry(7 << 32).1);
            std::mem::swap(&mut table, &mut taken);
            table.reserve(bound);
            prop_assert_eq!(table.len(), model.len());
            let found: BTreeMap<u64, u64> = table.iter().map(|(key, sum)| (key, *sum)).collect();
            prop_assert_eq!(found, model);
            let found: BTreeMap<(u64, u64), u64> = bounded.iter().map(|(key, sum)| (key, *sum)).collect();
            prop_assert_eq!(found, first);
        }
    }
}
