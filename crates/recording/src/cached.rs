//! Which sampled accesses a cache served. A sample by time says that a thread was at an access, not that it waited for
//! memory: spin locks, stacks and small tables have many samples and no misses.
//!
//! A line that makes up the share f of a thread's accesses returns after 1/f accesses on average, so at most as many
//! other lines lie between. With fewer than the first-level cache holds, the thread still has the line, unless another
//! thread stored to it. Samples estimate f. A line counts as cached from [`SAMPLES_MIN`] samples on, as one or two say
//! little about a share.

use nearpage_machine::{CacheKind, Machine};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{AccessBatch, AccessKind, ThreadIndex};

/// Most accesses that are looked at, in chunks all over the recording. Each may take 40 bytes for its line.
pub(crate) const ACCESSES_MAX: u64 = 1 << 20;
/// Least number of samples of a line by one thread.
const SAMPLES_MIN: u64 = 3;
/// Size and line of a first-level cache where the machine does not tell.
const CACHE_BYTES: u64 = 32 << 10;
const LINE_BYTES: u64 = 64;

/// The lines that threads have in their caches.
#[derive(Debug, Default)]
pub(crate) struct CachedLines {
    lines: FxHashSet<(ThreadIndex, u64)>,
    line_bytes: u64,
}

/// Samples of lines.
#[derive(Debug)]
pub(crate) struct LineSamples {
    line_bytes: u64,
    cache_lines: u64,
    /// Number of samples by thread.
    threads: FxHashMap<ThreadIndex, u64>,
    lines: FxHashMap<(ThreadIndex, u64), u64>,
    /// A thread that stores to a line; `None` if there are several.
    stored_by: FxHashMap<u64, Option<ThreadIndex>>,
}

impl LineSamples {
    /// No samples yet, on this machine.
    pub fn new(machine: &Machine) -> Self {
        let first_level = |cache: &&nearpage_machine::Cache| {
            cache.level == 1 && cache.kind != CacheKind::Instruction && cache.line_bytes > 0
        };
        let smallest = machine.caches.iter().filter(first_level);
        let smallest = smallest.min_by_key(|cache| cache.size_bytes);
        let (bytes, line_bytes) = smallest.map_or((CACHE_BYTES, LINE_BYTES), |cache| {
            (cache.size_bytes, cache.line_bytes.into())
        });
        Self {
            line_bytes,
            cache_lines: (bytes / line_bytes).max(1),
            threads: FxHashMap::default(),
            lines: FxHashMap::default(),
            stored_by: FxHashMap::default(),
        }
    }

    /// Adds the accesses of a batch, of which thread, address and kind are needed.
    pub fn add(&mut self, batch: &AccessBatch) {
        let threads = batch.thread.iter().copied();
        for ((thread, address), kind) in threads.zip(&batch.address).zip(&batch.kind) {
            let line = address / self.line_bytes;
            *self.threads.entry(thread).or_default() += 1;
            *self.lines.entry((thread, line)).or_default() += 1;
            if *kind == AccessKind::Store {
                let by = self.stored_by.entry(line).or_insert(Some(thread));
                *by = by.filter(|by| *by == thread);
            }
        }
    }

    /// The cached lines, and the number of their samples by thread.
    pub fn cached(self) -> (CachedLines, FxHashMap<ThreadIndex, u64>) {
        let mut samples = FxHashMap::default();
        let lines = self.lines.into_iter().filter(|&((thread, line), count)| {
            let own = match self.stored_by.get(&line) {
                None => true,
                Some(by) => *by == Some(thread),
            };
            let is_cached =
                own && count >= SAMPLES_MIN.max(self.threads[&thread] / self.cache_lines);
            if is_cached {
                *samples.entry(thread).or_default() += count;
            }
            is_cached
        });
        let cached = CachedLines {
            lines: lines.map(|(key, _)| key).collect(),
            line_bytes: self.line_bytes,
        };
        (cached, samples)
    }
}

impl CachedLines {
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Takes the cost from accesses to cached lines.
    pub fn take_costs(&self, batch: &mut AccessBatch) {
        if self.is_empty() {
            return;
        }
        let threads = batch.thread.iter().copied();
        for ((thread, address), cost_ns) in threads.zip(&batch.address).zip(&mut batch.cost_ns) {
            if self.lines.contains(&(thread, address / self.line_bytes)) {
                *cost_ns = 0.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD_NS: f32 = 250e3;

    fn machine() -> Machine {
        nearpage_machine::preset("opteron-4").expect("a preset")
    }

    /// Samples of a thread at addresses.
    fn samples(batch: &mut AccessBatch, thread: u32, kind: AccessKind, addresses: &[u64]) {
        for &address in addresses {
            batch.thread.push(ThreadIndex(thread));
            batch.address.push(address);
            batch.kind.push(kind);
            batch.cost_ns.push(PERIOD_NS);
        }
    }

    /// Number of accesses that keep their cost, by thread.
    fn costly(mut batch: AccessBatch) -> [usize; 2] {
        let mut lines = LineSamples::new(&machine());
        lines.add(&batch);
        let (cached, by_thread) = lines.cached();
        cached.take_costs(&mut batch);
        let of = |thread| {
            let own = batch.thread.iter().zip(&batch.cost_ns);
            let own = own.filter(|(by, _)| **by == ThreadIndex(thread));
            let costly = own.clone().filter(|(_, cost_ns)| **cost_ns > 0.0).count();
            let cached = by_thread.get(&ThreadIndex(thread)).copied().unwrap_or(0);
            assert_eq!(own.count() - costly, cached as usize);
            costly
        };
        [of(0), of(1)]
    }

    #[test]
    fn a_line_that_returns_soon_is_cached_and_the_rest_of_the_memory_is_not() {
        let mut batch = AccessBatch::default();
        let spread: Vec<u64> = (0..600).map(|at| 0x10_0000 + 4096 * at).collect();
        samples(&mut batch, 0, AccessKind::Load, &spread);
        // Words of one line.
        samples(&mut batch, 0, AccessKind::Load, &[0x8000, 0x8008, 0x803f]);
        assert_eq!(costly(batch.clone()), [600, 0]);
        // Two samples say too little, and so do samples of two threads.
        samples(&mut batch, 1, AccessKind::Load, &[0x9000, 0x9000, 0x8000]);
        assert_eq!(costly(batch), [600, 3]);
    }

    #[test]
    fn a_line_that_returns_only_after_the_cache_was_filled_is_not_cached() {
        // Each line of 4 MiB, five times: far more lines than a first-level cache has.
        let mut batch = AccessBatch::default();
        let lines: Vec<u64> = (0..65_536).map(|at| 64 * at).collect();
        for _ in 0..5 {
            samples(&mut batch, 0, AccessKind::Load, &lines);
        }
        assert_eq!(costly(batch), [5 * 65_536, 0]);
    }

    #[test]
    fn a_line_to_which_another_thread_stores_is_fetched_again() {
        let mut batch = AccessBatch::default();
        samples(&mut batch, 0, AccessKind::Load, &[0x8000; 10]);
        samples(&mut batch, 0, AccessKind::Store, &[0x9000; 10]);
        assert_eq!(costly(batch.clone()), [0, 0]);
        samples(&mut batch, 1, AccessKind::Store, &[0x8010]);
        assert_eq!(costly(batch.clone()), [10, 1]);
        samples(&mut batch, 1, AccessKind::Store, &[0x9010]);
        assert_eq!(costly(batch), [20, 2]);
    }
}
