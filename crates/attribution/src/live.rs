//! The objects that live at one moment, found by address.

use crate::{array::Array, near::prefetch};

/// An address range that belongs to an object. Never across two cache lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub(crate) struct Range {
    /// First address.
    pub start: u64,
    /// Past the last address.
    pub end: u64,
    /// First address of the object; less than `start` for what is left of a mapping that was
    /// partly replaced.
    pub base: u64,
    /// Its group.
    pub group: u32,
    /// Its position in the object table.
    pub object: u32,
}

/// Ranges in a block of consecutive ones.
const BLOCK_MAX: usize = 128;

/// Where a block's ranges are, and what a search in it begins with.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Block {
    /// The first and the last of its `start`s.
    first: u64,
    last: u64,
    /// Number of its place in [`Shelves`].
    shelf: u32,
    length: u32,
}

/// Room for the ranges of each block, on huge pages.
#[derive(Debug, Default)]
struct Shelves {
    /// `start` of each range, apart so that a search touches few cache lines.
    starts: Array<u64>,
    ranges: Array<Range>,
    used: usize,
    free: Vec<u32>,
}

impl Shelves {
    fn take(&mut self) -> u32 {
        if let Some(shelf) = self.free.pop() {
            return shelf;
        }
        if self.used * BLOCK_MAX == self.starts.len() {
            let nothing = Range {
                start: 0,
                end: 0,
                base: 0,
                group: 0,
                object: 0,
            };
            let more = (2 * self.starts.len()).max(BLOCK_MAX);
            let mut starts = Array::filled(0, more);
            let mut ranges = Array::filled(nothing, more);
            starts[..self.starts.len()].copy_from_slice(&self.starts);
            ranges[..self.ranges.len()].copy_from_slice(&self.ranges);
            (self.starts, self.ranges) = (starts, ranges);
        }
        self.used += 1;
        self.used as u32 - 1
    }

    #[inline]
    fn starts(&self, block: &Block) -> &[u64] {
        &self.starts[block.shelf as usize * BLOCK_MAX..][..block.length as usize]
    }

    #[inline]
    fn ranges(&self, block: &Block) -> &[Range] {
        &self.ranges[block.shelf as usize * BLOCK_MAX..][..block.length as usize]
    }

    /// Makes room for a range in a block that has some.
    fn insert(&mut self, block: &mut Block, at: usize, range: Range) {
        let from = block.shelf as usize * BLOCK_MAX;
        let past = from + block.length as usize;
        self.starts.copy_within(from + at..past, from + at + 1);
        self.ranges.copy_within(from + at..past, from + at + 1);
        self.starts[from + at] = range.start;
        self.ranges[from + at] = range;
        block.length += 1;
        self.bound(block);
    }

    fn remove(&mut self, block: &mut Block, at: usize) {
        let from = block.shelf as usize * BLOCK_MAX;
        let past = from + block.length as usize;
        self.starts.copy_within(from + at + 1..past, from + at);
        self.ranges.copy_within(from + at + 1..past, from + at);
        block.length -= 1;
        self.bound(block);
    }

    /// Moves the ranges from `keep` on to a block of their own.
    fn split(&mut self, block: &mut Block, keep: usize) -> Block {
        let mut upper = Block {
            shelf: self.take(),
            length: block.length - keep as u32,
            ..*block
        };
        let from = block.shelf as usize * BLOCK_MAX;
        let (moved, to) = (
            from + keep..from + block.length as usize,
            upper.shelf as usize * BLOCK_MAX,
        );
        self.starts.copy_within(moved.clone(), to);
        self.ranges.copy_within(moved, to);
        block.length = keep as u32;
        self.bound(block);
        self.bound(&mut upper);
        upper
    }

    /// Brings a block's bounds up to date.
    fn bound(&self, block: &mut Block) {
        let starts = self.starts(block);
        if let (Some(&first), Some(&last)) = (starts.first(), starts.last()) {
            (block.first, block.last) = (first, last);
        }
    }
}

impl Block {
    /// Where a range that contains `address` would be if all were of one size and adjacent, as many
    /// are.
    #[inline]
    fn guess(&self, address: u64) -> usize {
        let last = self.length as usize - 1;
        let breadth = (self.last - self.first).max(1);
        let share = address.saturating_sub(self.first) as f64 / breadth as f64;
        ((share * last as f64) as usize).min(last)
    }

    /// The last range that begins at `address` or before; one does. Where the guess is wrong, there
    /// is no pattern that the processor could foretell: only a search without branches is fast.
    #[inline]
    fn search(&self, starts: &[u64], address: u64) -> usize {
        let guess = self.guess(address);
        let next = starts.get(guess + 1).copied().unwrap_or(u64::MAX);
        if starts[guess] <= address && address < next {
            return guess;
        }
        let begun = starts.partition_point(|&start| start <= address);
        begun.saturating_sub(1)
    }
}

/// Where a search for an address has come to. Still right to begin from after changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    block: u32,
    at: u32,
}

/// Disjoint ranges sorted by address: a sorted list in two levels, so that a million live objects
/// are searched and changed with a handful of cache misses.
///
/// A search can go in steps, [`seek`](Self::seek), [`guess`](Self::guess),
/// [`narrow`](Self::narrow) and [`find_from`](Self::find_from); each asks for the memory of the
/// next, so that many searches wait for it together.
#[derive(Debug, Default)]
pub(crate) struct LiveRanges {
    /// First `start` of each block.
    firsts: Vec<u64>,
    blocks: Vec<Block>,
    shelves: Shelves,
}

impl LiveRanges {
    /// The block that holds `address`, if any does.
    #[inline]
    fn block_of(&self, address: u64) -> Option<usize> {
        self.firsts
            .partition_point(|&first| first <= address)
            .checked_sub(1)
    }

    /// The range that contains `address`.
    #[inline]
    pub fn find(&self, address: u64) -> Option<&Range> {
        let block = &self.blocks[self.block_of(address)?];
        let at = block.search(self.shelves.starts(block), address);
        let range = &self.shelves.ranges(block)[at];
        (address < range.end).then_some(range)
    }

    /// The first step: finds the block.
    #[inline]
    pub fn seek(&self, address: u64) -> Place {
        let block = self.block_of(address).unwrap_or(0);
        if let Some(block) = self.blocks.get(block) {
            prefetch(block);
        }
        Place {
            block: block as u32,
            at: 0,
        }
    }

    /// The second step: guesses where in the block it is.
    #[inline]
    pub fn guess(&self, address: u64, place: Place) {
        if let Some(block) = self.blocks.get(place.block as usize) {
            prefetch(&self.shelves.starts(block)[block.guess(address)]);
        }
    }

    /// The third step: finds where in the block it is.
    #[inline]
    pub fn narrow(&self, address: u64, place: &mut Place) {
        if let Some(block) = self.blocks.get(place.block as usize)
            && block.first <= address
        {
            let at = block.search(self.shelves.starts(block), address);
            prefetch(&self.shelves.ranges(block)[at]);
            place.at = at as u32;
        }
    }

    /// The last step: the same as [`find`](Self::find).
    #[inline]
    pub fn find_from(&self, address: u64, place: Place) -> Option<&Range> {
        let block = self.blocks.get(place.block as usize);
        let from = block.and_then(|block| self.shelves.ranges(block).get(place.at as usize..));
        match from.unwrap_or_default() {
            // Ranges are disjoint: it is this one.
            [near, ..] if near.start <= address && address < near.end => Some(near),
            // It is in the gap before the next.
            [near, next, ..] if near.end <= address && address < next.start => None,
            _ => self.find(address),
        }
    }

    /// Ranges that overlap `start..end`, by address.
    pub fn overlapping(&self, start: u64, end: u64) -> Vec<Range> {
        let mut found = Vec::new();
        // Ranges are disjoint: at most one begins before `start` and reaches into it.
        let mut at = match self.block_of(start) {
            Some(block) => (
                block,
                self.shelves
                    .starts(&self.blocks[block])
                    .partition_point(|&s| s <= start)
                    .saturating_sub(1),
            ),
            None => (0, 0),
        };
        while at.0 < self.blocks.len() {
            for range in &self.shelves.ranges(&self.blocks[at.0])[at.1..] {
                if range.start >= end {
                    return found;
                }
                if range.end > start {
                    found.push(*range);
                }
            }
            at = (at.0 + 1, 0);
        }
        found
    }

    /// Adds a range that overlaps none.
    pub fn insert(&mut self, range: Range) {
        let Some(index) = self.block_of(range.start).or(if self.blocks.is_empty() {
            None
        } else {
            Some(0)
        }) else {
            let mut block = Block {
                first: 0,
                last: 0,
                shelf: self.shelves.take(),
                length: 0,
            };
            self.shelves.insert(&mut block, 0, range);
            self.firsts.push(range.start);
            self.blocks.push(block);
            return;
        };
        let shelves = &mut self.shelves;
        let block = &mut self.blocks[index];
        let at = shelves
            .starts(block)
            .partition_point(|&start| start <= range.start);
        if (block.length as usize) < BLOCK_MAX {
            shelves.insert(block, at, range);
            self.firsts[index] = block.first;
            return;
        }
        // Appending in order of address, as at the start, leaves full blocks behind.
        let keep = if at == BLOCK_MAX {
            BLOCK_MAX
        } else {
            BLOCK_MAX / 2
        };
        let mut upper = shelves.split(block, keep);
        match at.checked_sub(keep) {
            Some(at) => shelves.insert(&mut upper, at, range),
            None => shelves.insert(block, at, range),
        }
        self.firsts[index] = block.first;
        self.firsts.insert(index + 1, upper.first);
        self.blocks.insert(index + 1, upper);
    }

    /// Removes the range that begins at `start`.
    pub fn remove(&mut self, start: u64) {
        let Some(index) = self.block_of(start) else {
            return;
        };
        let block = &mut self.blocks[index];
        let Ok(at) = self.shelves.starts(block).binary_search(&start) else {
            return;
        };
        self.shelves.remove(block, at);
        self.firsts[index] = block.first;
        if block.length == 0 {
            self.shelves.free.push(block.shelf);
            self.firsts.remove(index);
            self.blocks.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Behaves as an ordered map does, also where a search began before a change.
        #[test]
        fn agrees_with_an_ordered_map(steps in prop::collection::vec((0u64..2000, 1u64..4, any::<bool>()), 1..1500)) {
            let (mut live, mut model) = (LiveRanges::default(), BTreeMap::<u64, u64>::new());
            for (slot, length, insert) in steps {
                let start = slot * 4;
                let mut place = live.seek(start);
                live.guess(start, place);
                live.narrow(start, &mut place);
                if insert && !model.contains_key(&start) {
                    live.insert(Range { start, end: start + length, base: start, group: 0, object: slot as u32 });
                    model.insert(start, start + length);
                } else if !insert {
                    live.remove(start);
                    model.remove(&start);
                }
                prop_assert_eq!(live.find_from(start, place), live.find(start));
                for address in start.saturating_sub(5)..start + 5 {
                    let expected = model.range(..=address).next_back().filter(|(_, end)| address < **end);
                    prop_assert_eq!(live.find(address).map(|r| r.start), expected.map(|(start, _)| *start));
                }
                let expected: Vec<u64> = model.iter().filter(|(s, e)| **s < start + 9 && **e > start + 2).map(|(s, _)| *s).collect();
                let found: Vec<u64> = live.overlapping(start + 2, start + 9).iter().map(|r| r.start).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
