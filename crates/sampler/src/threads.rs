//! Threads of all processes, numbered together in order of creation.

use nearpage_machine::CpuId;
use nearpage_recording::{SampleCounts, ThreadIndex};
use rustc_hash::FxHashMap;

/// A thread that was sampled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// Process id.
    pub pid: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// Numbers of samples by result.
    pub counts: SampleCounts,
    /// Samples by CPU, in user mode and in the kernel.
    pub cpus: Vec<(CpuId, u64)>,
}

/// All threads. A thread id that is reused gets a new index.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    all: Vec<SampledThread>,
    live: FxHashMap<u32, ThreadIndex>,
    live_by_process: FxHashMap<u32, u32>,
    /// Whether the thread's counts changed since [`take_changed`](Self::take_changed).
    changed: Vec<bool>,
    /// Samples of each thread since the last call of [`busy`](Self::busy) that counted them.
    uncounted: Vec<u64>,
    /// Threads with such samples that have ended since.
    ended: Vec<ThreadIndex>,
    /// Number of live threads with such samples, and the most that there were at a time since.
    active: usize,
    active_most: usize,
}

/// Smallest number of samples from which busy threads are counted.
const BUSY_SAMPLES_MIN: u64 = 12;

impl Threads {
    /// Enters a new thread.
    pub fn begin(&mut self, pid: u32, tid: u32) -> ThreadIndex {
        let index = ThreadIndex(self.all.len() as u32);
        self.all.push(SampledThread {
            pid,
            tid,
            counts: SampleCounts::default(),
            cpus: Vec::new(),
        });
        self.changed.push(false);
        self.uncounted.push(0);
        self.end(tid);
        self.live.insert(tid, index);
        *self.live_by_process.entry(pid).or_default() += 1;
        index
    }

    /// Enters the end of a thread; `None` if it was unknown.
    pub fn end(&mut self, tid: u32) -> Option<ThreadIndex> {
        let thread = self.live.remove(&tid)?;
        let pid = self.all[thread.0 as usize].pid;
        if let Some(live) = self.live_by_process.get_mut(&pid) {
            *live -= 1;
            if *live == 0 {
                self.live_by_process.remove(&pid);
            }
        }
        if self.uncounted[thread.0 as usize] > 0 {
            self.ended.push(thread);
            self.active = self.active.saturating_sub(1);
        }
        Some(thread)
    }

    /// Index of the live thread `tid`.
    pub fn find(&self, tid: u32) -> Option<ThreadIndex> {
        self.live.get(&tid).copied()
    }

    /// Whether process `pid` has live threads.
    pub fn is_live(&self, pid: u32) -> bool {
        self.live_by_process.contains_key(&pid)
    }

    pub fn live_processes(&self) -> impl Iterator<Item = u32> {
        self.live_by_process.keys().copied()
    }

    /// Ids of the live threads.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        self.live.keys().copied()
    }

    pub fn pid(&self, thread: ThreadIndex) -> u32 {
        self.all[thread.0 as usize].pid
    }

    /// Counts of a thread, to be changed.
    pub fn counts(&mut self, thread: ThreadIndex) -> &mut SampleCounts {
        self.changed[thread.0 as usize] = true;
        &mut self.all[thread.0 as usize].counts
    }

    /// Counts of a thread, to be changed, after entering a sample on `cpu`.
    pub fn count_on(&mut self, thread: ThreadIndex, cpu: CpuId) -> &mut SampleCounts {
        self.changed[thread.0 as usize] = true;
        let uncounted = &mut self.uncounted[thread.0 as usize];
        *uncounted += 1;
        if *uncounted == 1 {
            self.active += 1;
            self.active_most = self.active_most.max(self.active);
        }
        let SampledThread { cpus, counts, .. } = &mut self.all[thread.0 as usize];
        match cpus.iter_mut().find(|(other, _)| *other == cpu) {
            Some((_, samples)) => *samples += 1,
            None => cpus.push((cpu, 1)),
        }
        counts
    }

    /// Threads whose counts changed since the last call.
    pub fn take_changed(&mut self, mut each: impl FnMut(ThreadIndex, SampleCounts)) {
        for (index, changed) in self
            .changed
            .iter_mut()
            .enumerate()
            .filter(|(_, changed)| **changed)
        {
            *changed = false;
            each(ThreadIndex(index as u32), self.all[index].counts);
        }
    }

    /// Effective number of threads that were busy since the last call that counted: (Σ samples)² / Σ samples², so that a
    /// thread with few samples counts for little, but no more than had samples and lived at a time: threads may be
    /// created anew for each part of the work, and processes may follow one another. `None` with too few samples.
    pub fn busy(&mut self) -> Option<f64> {
        let (mut sum, mut squares) = (0u64, 0u128);
        for &thread in self.live.values().chain(&self.ended) {
            let new = self.uncounted[thread.0 as usize];
            sum += new;
            squares += u128::from(new) * u128::from(new);
        }
        if sum < BUSY_SAMPLES_MIN {
            return None;
        }
        for thread in self.live.values() {
            self.uncounted[thread.0 as usize] = 0;
        }
        self.ended.clear();
        self.active = 0;
        let active_most = std::mem::take(&mut self.active_most);
        Some(((sum as f64).powi(2) / squares as f64).min(active_most as f64))
    }

    pub fn all(&self) -> &[SampledThread] {
        &self.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tid_used_again_is_another_thread() {
        let mut threads = Threads::default();
        let first = threads.begin(1, 7);
        assert_eq!(threads.end(7), Some(first));
        assert_eq!(threads.find(7), None);
        let second = threads.begin(1, 7);
        assert_ne!(first, second);
        threads.counts(second).compute += 1;
        threads.count_on(second, CpuId(3));
        threads.count_on(second, CpuId(3));
        let mut changed = Vec::new();
        threads.take_changed(|thread, counts| changed.push((thread, counts.compute)));
        threads.take_changed(|thread, _| panic!("{thread:?} again"));
        assert_eq!(changed, [(second, 1)]);
        assert_eq!(threads.all()[1].cpus, [(CpuId(3), 2)]);
        assert!(threads.is_live(1));
        threads.end(7);
        assert!(!threads.is_live(1));
    }

    #[test]
    fn busy_threads_are_those_with_samples() {
        let mut threads = Threads::default();
        let all: Vec<ThreadIndex> = (0..3).map(|tid| threads.begin(1, tid)).collect();
        let mut busy = |samples: [u32; 3]| {
            for (thread, samples) in all.iter().zip(samples) {
                (0..samples).for_each(|_| _ = threads.count_on(*thread, CpuId(0)));
            }
            threads.busy()
        };
        assert_eq!(busy([40, 0, 0]), Some(1.0));
        assert_eq!(busy([40, 40, 0]), Some(2.0));
        assert_eq!(busy([4, 0, 4]), None);
        assert_eq!(busy([4, 0, 4]), Some(2.0));
        // A helper that hardly runs does not count as a second thread.
        assert!(busy([100, 3, 2]).is_some_and(|busy| busy < 1.2));
    }

    /// Teams that were created anew for each of their short parts seemed to be no busy threads: none lived any more when
    /// they were counted.
    #[test]
    fn busy_threads_that_have_ended_count_as_many_as_there_were_at_a_time() {
        let mut threads = Threads::default();
        threads.begin(1, 1);
        let mut round = |teams: u32, team: u32| {
            for tid in (0..teams).flat_map(|_| 2..2 + team) {
                let thread = threads.begin(1, tid);
                (0..9).for_each(|_| _ = threads.count_on(thread, CpuId(0)));
                if tid == 1 + team {
                    (2..2 + team).for_each(|tid| _ = threads.end(tid));
                }
            }
            threads.busy()
        };
        assert_eq!(round(1, 4), Some(4.0));
        assert_eq!(round(8, 4), Some(4.0));
        assert_eq!(round(6, 1), Some(1.0), "one after the other");
        assert_eq!(round(1, 1), None);
        assert_eq!(round(0, 1), None);
        assert_eq!(round(1, 1), Some(1.0));
        assert_eq!(round(1, 4), Some(4.0));
    }
}
