//! The directory: which caches have a line, and in which state. It has an entry for each line in any L2 or L3, with a bit
//! for each CPU and each node's L3, and locks that guard entries and caches.
//!
//! All lines that compete for a set of an L2 or L3 are in one set of the directory, so one lock guards a line, the lines
//! that it evicts, and their order of use. An entry stays in its slot while
//! any cache has the line. Caches know their lines by slot, and an evicted line need not be looked up.
//!
//! # A set
//! A set is whole host cache lines of eight words each. Bit 0 of word 0 is the lock. The other bits depend on the size:
//!
//! - With up to `LINEAR_SEARCH_SLOTS_MAX` slots, they are a bit for each slot that is taken. Slots are searched one by
//!   one from the lowest, and the lowest free slot is taken first, so that a set with few lines fits the lock's host
//!   cache line.
//! - With more slots, bits 1–31 are the number of slots ever taken, and bits 32–63 the first free one of these + 1. The
//!   heads of hash chains follow, one to a bucket and two to a word (slot + 1), then each slot's
//!   successor in the same form.
//!
//! Then come the slots. A slot's word 0 is the line's number above `LINE_SHIFT`, whether an L3 has the line
//! modified, the state in the L2s that have it (2 bits), and the first `FIRST_BITS` bits of its holders;
//! each further word has 64 more.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::lock;
use crate::sets::Place;

/// Most slots of a set that is searched slot by slot.
const LINEAR_SEARCH_SLOTS_MAX: usize = 63;
/// Bits of holders in an entry's first word.
const FIRST_BITS: usize = 19;
const FIRST_MASK: u64 = (1 << FIRST_BITS) - 1;
const STATE_SHIFT: u32 = FIRST_BITS as u32;
const STATE_MASK: u64 = 3 << STATE_SHIFT;
const L3_MODIFIED: u64 = 1 << (FIRST_BITS + 2);
/// This leaves 42 of 64 bits: the 47 bits of an address without the lowest 5, those within the shortest line.
const LINE_SHIFT: u32 = FIRST_BITS as u32 + 3;
/// Words and bytes of a host cache line.
const HOST_LINE_WORDS: usize = 8;
const HOST_LINE_BYTES: usize = 64;

/// The directory.
pub struct Directory {
    set_mask: u64,
    slot_words: usize,
    /// Position of the first slot's first word in a set.
    first: usize,
    /// Hash chains of a large set, a power of two.
    buckets: usize,
    set_words: usize,
    words: Box<[AtomicU64]>,
    /// Position of the first set's first word, at the beginning of a host cache line.
    begin: usize,
}

/// A cache that may have a line: the position of its bit in an entry.
#[derive(Clone, Copy)]
pub struct Holder {
    word: usize,
    mask: u64,
}

impl Holder {
    /// CPUs by position, then the nodes' L3s.
    pub fn new(number: usize) -> Self {
        match number.checked_sub(FIRST_BITS) {
            None => Self {
                word: 0,
                mask: 1 << number,
            },
            Some(further) => Self {
                word: 1 + further / 64,
                mask: 1 << (further % 64),
            },
        }
    }
}

impl Directory {
    /// A directory with `sets` sets (a power of two), for up to `lines_of_set` lines in each, and `holders` caches.
    pub fn new(sets: u64, lines_of_set: usize, holders: usize) -> Self {
        // While a line replaces another, both are known.
        let slots = lines_of_set + 1;
        let slot_words = 1 + holders.saturating_sub(FIRST_BITS).div_ceil(64);
        let (buckets, first) = if slots <= LINEAR_SEARCH_SLOTS_MAX {
            (0, 1)
        } else {
            let buckets = slots.next_power_of_two();
            (buckets, 1 + (buckets + slots).div_ceil(2))
        };
        let set_words = (first + slots * slot_words).next_multiple_of(HOST_LINE_WORDS);
        let all = sets as usize * set_words + HOST_LINE_WORDS;
        let words: Box<[AtomicU64]> = (0..all).map(|_| AtomicU64::new(0)).collect();
        Self {
            set_mask: sets - 1,
            slot_words,
            first,
            buckets,
            set_words,
            begin: words.as_ptr().align_offset(HOST_LINE_BYTES) % HOST_LINE_WORDS,
            words,
        }
    }

    #[inline]
    fn first_word(&self, line: u64) -> usize {
        self.begin + (line & self.set_mask) as usize * self.set_words
    }

    #[inline]
    fn words(&self, line: u64) -> &[AtomicU64] {
        let first = self.first_word(line);
        // SAFETY: `new` made `set_words` for each set after `begin`, and nothing changes these.
        unsafe { self.words.get_unchecked(first..first + self.set_words) }
    }

    /// Where the host has its sets, for prefetching.
    pub fn place(&self) -> Place {
        let sets = self.words.get(self.begin..).unwrap_or_default();
        Place::new(sets, self.set_mask, self.set_words)
    }

    /// May its sets be locked as `Set<true>`? That is so if sets are small and entries have one word, as for
    /// most machines.
    #[inline]
    pub fn is_simple(&self) -> bool {
        self.buckets == 0 && self.slot_words == 1
    }

    /// Locks the line's set until the result is dropped.
    #[inline]
    pub fn lock<const SIMPLE: bool>(&self, line: u64) -> Set<'_, SIMPLE> {
        let words = self.words(line);
        let head = words.first().map_or(0, lock::take);
        Set {
            directory: self,
            words,
            head: Cell::new(head),
        }
    }

    /// Number of sets.
    #[cfg(test)]
    pub fn sets(&self) -> u64 {
        self.set_mask + 1
    }
}

/// A locked set. `SIMPLE`: the directory is simple, and the code shorter.
pub struct Set<'a, const SIMPLE: bool> {
    directory: &'a Directory,
    words: &'a [AtomicU64],
    /// Word 0, which is stored when the set is unlocked.
    head: Cell<u64>,
}

impl<const SIMPLE: bool> Drop for Set<'_, SIMPLE> {
    #[inline]
    fn drop(&mut self) {
        if let Some(word) = self.words.first() {
            lock::release(word, self.head.get());
        }
    }
}

impl<const SIMPLE: bool> Set<'_, SIMPLE> {
    #[inline]
    fn get(&self, number: usize) -> u64 {
        self.words.get(number).map_or(0, |word| word.load(Relaxed))
    }

    #[inline]
    fn put(&self, number: usize, value: u64) {
        if let Some(word) = self.words.get(number) {
            word.store(value, Relaxed);
        }
    }

    #[inline]
    fn slot(&self, slot: usize) -> usize {
        if SIMPLE {
            return 1 + slot;
        }
        self.directory.first + slot * self.directory.slot_words
    }

    /// The entry's word that has the holder's bit.
    #[inline]
    fn word_of(&self, slot: usize, holder: Holder) -> usize {
        if SIMPLE {
            return 1 + slot;
        }
        self.slot(slot) + holder.word
    }

    #[inline]
    fn small(&self) -> bool {
        SIMPLE || self.directory.buckets == 0
    }

    /// The slot of that line.
    #[inline]
    pub fn find(&self, line: u64) -> Option<usize> {
        let is_it = |slot: usize| self.get(self.slot(slot)) >> LINE_SHIFT == line;
        if self.small() {
            let mut taken = self.head.get() >> 1;
            while taken != 0 {
                let slot = taken.trailing_zeros() as usize;
                if is_it(slot) {
                    return Some(slot);
                }
                taken &= taken - 1;
            }
            return None;
        }
        let mut next = self.link(self.bucket(line));
        while let Some(slot) = next.checked_sub(1) {
            if is_it(slot) {
                return Some(slot);
            }
            next = self.link(self.successor(slot));
        }
        None
    }

    /// Takes a slot for a line that has none, with its first holder.
    #[inline]
    pub fn add(&self, line: u64, state: u64, holder: Holder) -> usize {
        let slot = if self.small() {
            let head = self.head.get();
            let slot = (!(head >> 1)).trailing_zeros() as usize;
            self.head.set(head | 2 << slot);
            slot
        } else {
            self.add_to_chain(line)
        };
        let word = line << LINE_SHIFT | state << STATE_SHIFT;
        if SIMPLE || holder.word == 0 {
            self.put(self.slot(slot), word | holder.mask);
        } else {
            self.put(self.slot(slot), word);
            self.put(self.slot(slot) + holder.word, holder.mask);
        }
        slot
    }

    /// Removes a holder of the line. If it was the last, the slot becomes free; otherwise `state` is the state in
    /// the L2s that still have the line.
    #[inline]
    pub fn give_up(&self, slot: usize, holder: Holder, state: u64) {
        self.clear(slot, holder);
        let first = self.slot(slot);
        let left = self.get(first);
        let others = || (1..self.directory.slot_words).any(|word| self.get(first + word) != 0);
        if left & FIRST_MASK != 0 || !SIMPLE && others() {
            self.put(first, left & !STATE_MASK | state << STATE_SHIFT);
        } else if self.small() {
            self.head.set(self.head.get() & !(2 << slot));
        } else {
            self.take_from_chain(slot, left >> LINE_SHIFT);
        }
    }

    fn bucket(&self, line: u64) -> usize {
        let hash = (line / (self.directory.set_mask + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.directory.buckets - 1)
    }

    fn successor(&self, slot: usize) -> usize {
        self.directory.buckets + slot
    }

    /// Reads a link of a hash chain; links are stored two to a word.
    fn link(&self, number: usize) -> usize {
        (self.get(1 + number / 2) >> (32 * (number % 2))) as u32 as usize
    }

    fn set_link(&self, number: usize, value: usize) {
        let shift = 32 * (number % 2);
        let kept = self.get(1 + number / 2) & !(0xffff_ffff << shift);
        self.put(1 + number / 2, kept | (value as u64) << shift);
    }

    #[inline(never)]
    fn add_to_chain(&self, line: u64) -> usize {
        let head = self.head.get();
        let (ever, free) = (head >> 1 & 0x7fff_ffff, head >> 32);
        let slot = match (free as usize).checked_sub(1) {
            Some(slot) => {
                let next = self.link(self.successor(slot)) as u64;
                self.head.set(1 | ever << 1 | next << 32);
                slot
            }
            None => {
                self.head.set(1 | (ever + 1) << 1);
                ever as usize
            }
        };
        let bucket = self.bucket(line);
        self.set_link(self.successor(slot), self.link(bucket));
        self.set_link(bucket, slot + 1);
        slot
    }

    #[inline(never)]
    fn take_from_chain(&self, slot: usize, line: u64) {
        let mut before = self.bucket(line);
        while self.link(before) != slot + 1 {
            match self.link(before).checked_sub(1) {
                Some(other) => before = self.successor(other),
                None => return,
            }
        }
        self.set_link(before, self.link(self.successor(slot)));
        let head = self.head.get();
        self.set_link(self.successor(slot), (head >> 32) as usize);
        self.head.set(head & 0xffff_ffff | (slot as u64 + 1) << 32);
    }

    /// The entry of the line in that slot.
    #[inline]
    pub fn entry(&self, slot: usize) -> Entry {
        Entry(self.get(self.slot(slot)))
    }

    /// Changes the state of the line in the L2s that have it.
    #[inline]
    pub fn set_state(&self, slot: usize, state: u64) {
        let word = self.slot(slot);
        self.put(word, self.get(word) & !STATE_MASK | state << STATE_SHIFT);
    }

    /// Sets whether an L3 has the line modified.
    #[inline]
    pub fn set_l3_modified(&self, slot: usize, modified: bool) {
        let word = self.slot(slot);
        let bit = if modified { L3_MODIFIED } else { 0 };
        self.put(word, self.get(word) & !L3_MODIFIED | bit);
    }

    /// Does that cache have the line?
    #[inline]
    pub fn has(&self, slot: usize, holder: Holder) -> bool {
        self.get(self.word_of(slot, holder)) & holder.mask != 0
    }

    /// Adds a holder of the line.
    #[inline]
    pub fn set(&self, slot: usize, holder: Holder) {
        let word = self.word_of(slot, holder);
        self.put(word, self.get(word) | holder.mask);
    }

    /// Removes a holder of the line, which is not the last.
    #[inline]
    pub fn clear(&self, slot: usize, holder: Holder) {
        let word = self.word_of(slot, holder);
        self.put(word, self.get(word) & !holder.mask);
    }

    /// Numbers of all caches that have the line. Holders that were returned already may be removed meanwhile.
    #[inline]
    pub fn holders(&self, slot: usize) -> impl Iterator<Item = usize> {
        let word = self.slot(slot);
        let mut left = self.get(word) & FIRST_MASK;
        let (mut number, mut offset) = (0, 0);
        std::iter::from_fn(move || {
            while left == 0 {
                number += 1;
                if number >= self.directory.slot_words {
                    return None;
                }
                left = self.get(word + number);
                offset = FIRST_BITS + (number - 1) * 64;
            }
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            Some(offset + bit)
        })
    }

    /// Slots that are taken.
    #[cfg(test)]
    pub fn taken_slots(&self) -> Vec<usize> {
        let head = self.head.get();
        if self.small() {
            let taken = |slot: &usize| head & 2 << slot != 0;
            (0..LINEAR_SEARCH_SLOTS_MAX).filter(taken).collect()
        } else {
            let taken = |slot: &usize| self.holders(*slot).next().is_some();
            let ever = head as u32 as usize >> 1;
            (0..ever).filter(taken).collect()
        }
    }
}

/// A line and its states, without its holders.
#[derive(Clone, Copy)]
pub struct Entry(u64);

impl Entry {
    /// The line.
    #[inline]
    pub fn line(self) -> u64 {
        self.0 >> LINE_SHIFT
    }

    /// State in the L2s that have the line. Unless the line is shared, one L2 has it at most.
    #[inline]
    pub fn state(self) -> u64 {
        (self.0 & STATE_MASK) >> STATE_SHIFT
    }

    /// Does an L3 have the line modified? Then only that L3 and L2s of its node have it.
    #[inline]
    pub fn l3_modified(self) -> bool {
        self.0 & L3_MODIFIED != 0
    }
}
