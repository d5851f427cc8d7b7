//! Live objects at one moment, found by address.

use crate::{array::Array, near::prefetch};

/// An address range that belongs to an object. The alignment keeps a range within one cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub(crate) struct Range {
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// First address of the object. It is below `start` for the remainder of a partly replaced mapping.
    pub base: u64,
    pub group: u32,
    /// Position of the object in the object table.
    pub object: u32,
}

/// Largest number of consecutive ranges in a block.
const BLOCK_MAX: usize = 128;

/// Position of a block's ranges, and the bounds with which a search in the block begins.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Block {
    /// The first and the last `start` in the block.
    first: u64,
    last: u64,
    /// Number of the block's place in [`Shelves`].
    shelf: u32,
    length: u32,
}

/// Memory for the ranges of all blocks, on huge pages.
#[derive(Debug, Default)]
struct Shelves {
    /// The `start` of each range, in an array of their own: a search then touches few cache lines.
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

    /// Inserts a range into a block that is not full.
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

    /// Moves the ranges from position `keep` on to a new block.
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

    /// Updates a block's `first` and `last`.
    fn bound(&self, block: &mut Block) {
        let starts = self.starts(block);
        if let (Some(&first), Some(&last)) = (starts.first(), starts.last()) {
            (block.first, block.last) = (first, last);
        }
    }
}

impl Block {
    /// Position of the range with `address` if all ranges had one size and were adjacent, as is common.
    #[inline]
    fn guess(&self, address: u64) -> usize {
        let last = self.length as usize - 1;
        let breadth = (self.last - self.first).max(1);
        let share = address.saturating_sub(self.first) as f64 / breadth as f64;
        ((share * last as f64) as usize).min(last)
    }

    /// Position of the last range that begins at `address` or before; there must be one. If the guess is wrong, the
    /// processor can't predict branches of the search either, so `partition_point` searches without branches.
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

/// Intermediate result of a search for an address. It stays usable when ranges change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SearchPosition {
    block: u32,
    at: u32,
}

/// Disjoint ranges sorted by address. The sorted list has two levels, so a million live objects are searched and
/// changed with few cache misses.
///
/// A search can run in steps: [`seek`](Self::seek), [`guess`](Self::guess), [`narrow`](Self::narrow) and
/// [`find_from`](Self::find_from). Each step prefetches the memory of the next one, so several searches can overlap
/// their cache misses.
#[derive(Debug, Default)]
pub(crate) struct LiveRanges {
    /// First `start` of each block.
    firsts: Vec<u64>,
    blocks: Vec<Block>,
    shelves: Shelves,
}

impl LiveRanges {
    /// The block whose ranges may contain `address`; none if all ranges lie above.
    #[inline]
    fn block_of(&self, address: u64) -> Option<usize> {
        self.firsts
            .partition_point(|&first| first <= address)
            .checked_sub(1)
    }

    #[inline]
    pub fn find(&self, address: u64) -> Option<&Range> {
        let block = &self.blocks[self.block_of(address)?];
        let at = block.search(self.shelves.starts(block), address);
        let range = &self.shelves.ranges(block)[at];
        (address < range.end).then_some(range)
    }

    /// First step of a search: finds the block.
    #[inline]
    pub fn seek(&self, address: u64) -> SearchPosition {
        let block = self.block_of(address).unwrap_or(0);
        if let Some(block) = self.blocks.get(block) {
            prefetch(block);
        }
        SearchPosition {
            block: block as u32,
            at: 0,
        }
    }

    /// Second step: prefetches the guessed position within the block.
    #[inline]
    pub fn guess(&self, address: u64, place: SearchPosition) {
        if let Some(block) = self.blocks.get(place.block as usize) {
            prefetch(&self.shelves.starts(block)[block.guess(address)]);
        }
    }

    /// Third step: finds the position within the block.
    #[inline]
    pub fn narrow(&self, address: u64, place: &mut SearchPosition) {
        if let Some(block) = self.blocks.get(place.block as usize)
            && block.first <= address
        {
            let at = block.search(self.shelves.starts(block), address);
            prefetch(&self.shelves.ranges(block)[at]);
            place.at = at as u32;
        }
    }

    /// Last step: the result of [`find`](Self::find).
    #[inline]
    pub fn find_from(&self, address: u64, place: SearchPosition) -> Option<&Range> {
        let block = self.blocks.get(place.block as usize);
        let from = block.and_then(|block| self.shelves.ranges(block).get(place.at as usize..));
        match from.unwrap_or_default() {
            // Ranges are disjoint, so no other range has the address.
            [near, ..] if near.start <= address && address < near.end => Some(near),
            // The address lies in the gap before the next range.
            [near, next, ..] if near.end <= address && address < next.start => None,
            _ => self.find(address),
        }
    }

    /// Ranges that overlap `start..end`, in order of address.
    pub fn overlapping(&self, start: u64, end: u64) -> Vec<Range> {
        let mut found = Vec::new();
        // Ranges are disjoint, so at most one begins before `start` and overlaps.
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

    /// Adds a range, which must not overlap any other.
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
        // Ranges that come in order of address, as at the start, then fill their blocks.
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

    /// Removes the range that begins at `start`, if there is one.
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
        /// Behaves like an ordered map, even if a search began before a change.
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
