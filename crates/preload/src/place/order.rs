//! Numbers allocations, per call site and thread, and threads by their order of creation.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

use super::memory::Zeroed;
use crate::sys;

/// Most pairs of call site and thread that are counted; allocations of further pairs have no number.
const COUNTED_MAX: usize = 1 << 14;
/// Most threads whose creation order is remembered at a time.
const THREADS_MAX: usize = 1 << 14;
const PROBES: usize = 16;

/// Counters per (call site with size range, thread). Zeroed memory has none.
pub struct Orders {
    keys: [AtomicU64; COUNTED_MAX],
    counts: [AtomicU32; COUNTED_MAX],
    /// An allocation was counted.
    is_used: AtomicBool,
    /// Allocations that found no counter.
    pub full: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Orders {}

/// Spreads a key over a table (Fibonacci hashing).
pub fn spread(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize
}

impl Orders {
    /// Counts an allocation; returns its number, from 0. `None` if there is no counter left.
    pub fn next(&self, group: u32, thread: u32) -> Option<u32> {
        self.is_used.store(true, Relaxed);
        let wanted = key(group, thread);
        for slot in slots(wanted) {
            let key = &self.keys[slot];
            let found = key.load(Relaxed);
            if found == wanted || (found == 0 && claim(key, wanted)) {
                return Some(self.counts[slot].fetch_add(1, Relaxed));
            }
        }
        self.full.fetch_add(1, Relaxed);
        None
    }

    /// The number of allocations that were counted.
    pub fn counted(&self, group: u32, thread: u32) -> u32 {
        let wanted = key(group, thread);
        let slot = slots(wanted).find(|slot| self.keys[*slot].load(Relaxed) == wanted);
        slot.map_or(0, |slot| self.counts[slot].load(Relaxed))
    }

    /// Sets all counters to 0: a forked process counts for itself.
    pub fn clear(&self) {
        if !self.is_used.swap(false, Relaxed) {
            return;
        }
        for (key, count) in self
            .keys
            .iter()
            .zip(&self.counts)
            .filter(|(key, _)| key.load(Relaxed) != 0)
        {
            key.store(0, Relaxed);
            count.store(0, Relaxed);
        }
    }
}

fn key(group: u32, thread: u32) -> u64 {
    (u64::from(group) + 1) << 32 | u64::from(thread)
}

/// The slots in which a key may be.
fn slots(key: u64) -> impl Iterator<Item = usize> {
    let start = spread(key);
    (0..PROBES).map(move |probe| (start + probe) % COUNTED_MAX)
}

fn claim(key: &AtomicU64, wanted: u64) -> bool {
    match key.compare_exchange(0, wanted, Relaxed, Relaxed) {
        Ok(_) => true,
        Err(other) => other == wanted,
    }
}

/// Creation orders by thread id. Zeroed memory knows none.
pub struct Threads {
    /// Thread id in the high half, creation order in the low.
    slots: [AtomicU64; THREADS_MAX],
}

// SAFETY: atomics only.
unsafe impl Zeroed for Threads {}

impl Threads {
    /// Remembers a thread. The kernel reuses ids, so the newest thread with an id counts.
    pub fn started(&self, tid: u32, order: u32) {
        let entry = u64::from(tid) << 32 | u64::from(order);
        let start = spread(tid.into());
        let slots = || (0..PROBES).map(|probe| &self.slots[(start + probe) % THREADS_MAX]);
        if let Some(own) = slots().find(|slot| slot.load(Relaxed) >> 32 == u64::from(tid)) {
            own.store(entry, Relaxed);
        } else if slots().all(|slot| slot.compare_exchange(0, entry, Relaxed, Relaxed).is_err()) {
            // No slot is free: the first one is most likely that of a thread that ended long ago.
            self.slots[start % THREADS_MAX].store(entry, Relaxed);
        }
    }

    /// The creation order of the calling thread; the main thread is 0.
    pub fn current(&self) -> Option<u32> {
        let tid = sys::gettid();
        if tid == sys::getpid() {
            return Some(0);
        }
        let start = spread(tid.into());
        (0..PROBES)
            .map(|probe| self.slots[(start + probe) % THREADS_MAX].load(Relaxed))
            .find(|entry| entry >> 32 == u64::from(tid))
            .map(|entry| entry as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::memory::zeroed;

    #[test]
    fn every_site_and_thread_counts_for_itself() {
        let orders = zeroed::<Orders>().unwrap();
        assert_eq!(
            [(1, 0), (1, 0), (1, 7), (2, 0), (1, 0)]
                .map(|(group, thread)| orders.next(group, thread)),
            [Some(0), Some(1), Some(0), Some(0), Some(2)]
        );
        assert_eq!(
            [(1, 0), (1, 7), (1, 8)].map(|(group, thread)| orders.counted(group, thread)),
            [3, 1, 0]
        );
        orders.clear();
        assert_eq!(orders.next(1, 0), Some(0));
    }

    #[test]
    fn a_full_table_says_so() {
        let orders = zeroed::<Orders>().unwrap();
        let numbered = (0..2 * COUNTED_MAX as u32)
            .filter(|thread| orders.next(0, *thread).is_some())
            .count();
        assert!(numbered <= COUNTED_MAX && numbered > COUNTED_MAX / 2);
        assert_eq!(
            orders.full.load(Relaxed) as usize,
            2 * COUNTED_MAX - numbered
        );
    }

    #[test]
    fn threads_are_found_again() {
        let threads = zeroed::<Threads>().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(threads.current(), None);
                threads.started(sys::gettid(), 3);
                assert_eq!(threads.current(), Some(3));
                threads.started(sys::gettid(), 9);
                assert_eq!(threads.current(), Some(9));
            });
        });
    }
}
