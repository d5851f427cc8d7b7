//! Read chains: strings of reads to a page from one processor that end with a write to the page from any processor
//! (Verghese Figure 6.2). A page with long chains is worth replicating.

use rustc_hash::FxHashMap;

/// Number of classes of length: chains are counted by the binary logarithm of their length.
const LENGTHS: usize = 40;

/// Data misses by the length of the read chains that contain them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadChains {
    /// Shares for lengths in powers of two, from 1 up to the longest chain's length.
    pub shares: Vec<ChainShare>,
    /// Length of the longest chain.
    pub longest: u64,
}

/// A point of Figure 6.2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainShare {
    /// Number of reads.
    pub length: u64,
    /// Share of all data misses (writes included) in chains with at least this number of reads; 0 to 1.
    pub share: f64,
}

/// Counts chains while a trace is read.
#[derive(Clone, Debug)]
pub(super) struct ChainCounter {
    /// Writes so far, by page.
    writes: Vec<u32>,
    /// By page and CPU: number of the page's writes when the chain began, and the chain's length.
    open: FxHashMap<(u32, u32), (u32, u32)>,
    /// Misses in chains that ended, by the logarithm of their length.
    ended: [u64; LENGTHS],
    longest: u64,
    misses: u64,
}

impl ChainCounter {
    pub fn new(pages: usize) -> Self {
        Self {
            writes: vec![0; pages],
            open: FxHashMap::default(),
            ended: [0; LENGTHS],
            longest: 0,
            misses: 0,
        }
    }

    #[inline]
    pub fn write(&mut self, page: u32) {
        self.misses += 1;
        self.writes[page as usize] = self.writes[page as usize].wrapping_add(1);
    }

    #[inline]
    pub fn read(&mut self, page: u32, cpu: u32) {
        self.misses += 1;
        let writes = self.writes[page as usize];
        let (since, length) = self.open.entry((page, cpu)).or_insert((writes, 0));
        if *since == writes && *length < u32::MAX {
            *length += 1;
        } else {
            let ended = u64::from(std::mem::replace(length, 1));
            *since = writes;
            self.end(ended);
        }
    }

    fn end(&mut self, length: u64) {
        if length > 0 {
            self.ended[length.ilog2() as usize] += length;
            self.longest = self.longest.max(length);
        }
    }

    /// Ends all chains at the end of the trace.
    pub fn finish(mut self) -> ReadChains {
        for (_, length) in std::mem::take(&mut self.open).into_values() {
            self.end(length.into());
        }
        let mut remaining: u64 = self.ended.iter().sum();
        let mut shares = Vec::new();
        for (power, misses) in self.ended.into_iter().enumerate() {
            if remaining == 0 {
                break;
            }
            shares.push(ChainShare {
                length: 1 << power,
                share: remaining as f64 / self.misses as f64,
            });
            remaining -= misses;
        }
        ReadChains {
            shares,
            longest: self.longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_write_by_anyone_ends_all_chains_of_its_page() {
        let mut chains = ChainCounter::new(2);
        // Page 0: CPU 0 reads 5 times, CPU 1 once; a write; CPU 0 twice more. Page 1: 4 reads.
        (0..5).for_each(|_| chains.read(0, 0));
        chains.read(0, 1);
        (0..4).for_each(|_| chains.read(1, 0));
        chains.write(0);
        (0..2).for_each(|_| chains.read(0, 0));
        let found = chains.finish();
        let shares: Vec<(u64, f64)> = found.shares.iter().map(|s| (s.length, s.share)).collect();
        let of = |misses: u32| f64::from(misses) / 13.0;
        assert_eq!(shares, [(1, of(12)), (2, of(11)), (4, of(9))]);
        assert_eq!(found.longest, 5);
    }

    #[test]
    fn nothing_but_writes_has_no_chain() {
        let mut chains = ChainCounter::new(1);
        chains.write(0);
        assert_eq!(chains.finish(), ReadChains::default());
    }

    proptest! {
        /// Compares with a direct count of each chain.
        #[test]
        fn chains_are_counted_as_defined(references in prop::collection::vec((0u32..3, 0u32..3, 0u32..5), 1..400)) {
            let mut chains = ChainCounter::new(3);
            let mut lengths: Vec<u64> = Vec::new();
            let mut open = std::collections::BTreeMap::new();
            for &(page, cpu, what) in &references {
                if what == 0 {
                    chains.write(page);
                    for cpu in 0..3 {
                        lengths.extend(open.remove(&(page, cpu)));
                    }
                } else {
                    chains.read(page, cpu);
                    *open.entry((page, cpu)).or_insert(0u64) += 1;
                }
            }
            lengths.extend(open.into_values());
            let found = chains.finish();
            prop_assert_eq!(found.longest, lengths.iter().copied().max().unwrap_or(0));
            for ChainShare { length, share } in &found.shares {
                let misses: u64 = lengths.iter().filter(|own| *own >= length).sum();
                prop_assert!((share - misses as f64 / references.len() as f64).abs() < 1e-12);
            }
            prop_assert!(found.shares.last().is_none_or(|last| 2 * last.length > found.longest));
        }
    }
}
