//! The pages that have been touched since they were mapped, and the ranges that were unmapped lately.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock, PoisonError};

const LEAF_WORDS: usize = 512;
const LEAF_PAGES: u64 = LEAF_WORDS as u64 * 64;
/// Leaves of a branch, branches of the tree: 2^35 pages, all that 47 bits address at 4 KiB.
const FANOUT: usize = 1024;
/// Most unmapped ranges that are remembered until all TLBs have flushed them.
const UNMAPPED_RANGES_MAX: u64 = 64;

type Leaf = [AtomicU64; LEAF_WORDS];
type Branch = Box<[OnceLock<Box<Leaf>>]>;

/// A bit for each page of the address space; 4 KiB for each 128 MiB that were ever touched.
pub struct Touched(Box<[OnceLock<Branch>]>);

fn cells<T>() -> Box<[OnceLock<T>]> {
    (0..FANOUT).map(|_| OnceLock::new()).collect()
}

impl Default for Touched {
    fn default() -> Self {
        Self(cells())
    }
}

impl Touched {
    /// Marks the page. Is this the first time since it was mapped? Pages beyond the tree never are.
    pub fn touch(&self, page: u64) -> bool {
        let leaf = page / LEAF_PAGES;
        let Some(branch) = self.0.get(leaf as usize / FANOUT) else {
            return false;
        };
        let leaves = branch.get_or_init(cells);
        let Some(cell) = leaves.get(leaf as usize % FANOUT) else {
            return false;
        };
        let words = cell.get_or_init(|| Box::new([const { AtomicU64::new(0) }; LEAF_WORDS]));
        let word = &words[(page / 64) as usize % LEAF_WORDS];
        let bit = 1 << (page % 64);
        word.load(Relaxed) & bit == 0 && word.fetch_or(bit, Relaxed) & bit == 0
    }

    /// Forgets the pages of the range.
    pub fn forget(&self, pages: Range<u64>) {
        let mut page = pages.start;
        while page < pages.end {
            let leaf = page / LEAF_PAGES;
            let Some(branch) = self.0.get(leaf as usize / FANOUT) else {
                return;
            };
            let Some(leaves) = branch.get() else {
                page = (leaf / FANOUT as u64 + 1) * FANOUT as u64 * LEAF_PAGES;
                continue;
            };
            let Some(words) = leaves.get(leaf as usize % FANOUT).and_then(OnceLock::get) else {
                page = (leaf + 1) * LEAF_PAGES;
                continue;
            };
            let end = ((page / 64 + 1) * 64).min(pages.end);
            let bits = (end - page) as u32;
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            words[(page / 64) as usize % LEAF_WORDS].fetch_and(!mask, Relaxed);
            page = end;
        }
    }
}

/// Ranges that were unmapped, until each CPU's thread flushes them from its TLBs.
#[derive(Default)]
pub struct Unmappings {
    count: AtomicU64,
    latest: Mutex<Vec<Range<u64>>>,
}

impl Unmappings {
    /// Number of unmapped ranges so far.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Adds a range of pages that were unmapped.
    pub fn add(&self, pages: Range<u64>) {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Relaxed);
        let place = (count % UNMAPPED_RANGES_MAX) as usize;
        match latest.get_mut(place) {
            Some(range) => *range = pages,
            None => latest.push(pages),
        }
        self.count.store(count + 1, Relaxed);
    }

    /// Calls `flush` for each range after the first `seen`, or for all pages if these ranges are
    /// forgotten already; returns the number of ranges so far.
    pub fn since(&self, seen: u64, mut flush: impl FnMut(Range<u64>)) -> u64 {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Relaxed);
        if count - seen > UNMAPPED_RANGES_MAX {
            flush(0..u64::MAX);
        } else {
            let ranges =
                (seen..count).filter_map(|at| latest.get((at % UNMAPPED_RANGES_MAX) as usize));
            ranges.for_each(|range| flush(range.clone()));
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_first_touched_once_until_it_is_forgotten() {
        let touched = Touched::default();
        let pages = [
            0,
            63,
            64,
            LEAF_PAGES - 1,
            LEAF_PAGES,
            (1 << 35) - 1,
            1 << 30,
        ];
        for page in pages {
            assert!(touched.touch(page) && !touched.touch(page));
        }
        touched.forget(63..LEAF_PAGES + 1);
        for page in pages {
            assert_eq!(
                touched.touch(page),
                (63..=LEAF_PAGES).contains(&page),
                "{page}"
            );
        }
        touched.forget(0..1 << 40);
        assert!(touched.touch(1 << 30));
        assert!(!touched.touch(1 << 35));
    }

    #[test]
    fn a_tlb_too_far_behind_is_flushed_whole() {
        let unmappings = Unmappings::default();
        (0..70).for_each(|page| unmappings.add(page..page + 1));
        let mut flushed = vec![];
        assert_eq!(unmappings.since(68, |pages| flushed.push(pages)), 70);
        assert_eq!(flushed, [68..69, 69..70]);
        flushed.clear();
        unmappings.since(5, |pages| flushed.push(pages));
        assert!(flushed.len() == 1 && flushed[0] == (0..u64::MAX));
    }
}
