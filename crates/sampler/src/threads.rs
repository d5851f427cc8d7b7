//! Threads of all processes, numbered together in order of creation.

use nearpage_machine::CpuId;
use nearpage_recording::{SampleCounts, ThreadIndex};
use rustc_hash::FxHashMap;

/// What the sampler knows of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampledThread {
    /// Process.
    pub pid: u32,
    /// Kernel thread id.
    pub tid: u32,
    /// What became of its samples.
    pub counts: SampleCounts,
    /// Samples by CPU, user mode and kernel.
    pub cpus: Vec<(CpuId, u64)>,
}

/// All threads; a kernel tid that is used again is another thread.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    all: Vec<SampledThread>,
    live: FxHashMap<u32, ThreadIndex>,
    live_by_process: FxHashMap<u32, u32>,
    /// Threads whose counts changed since they were asked for.
    changed: Vec<bool>,
}

impl Threads {
    /// A thread began.
    pub fn begin(&mut self, pid: u32, tid: u32) -> ThreadIndex {
        let index = ThreadIndex(self.all.len() as u32);
        self.all.push(SampledThread {
            pid,
            tid,
            counts: SampleCounts::default(),
            cpus: Vec::new(),
        });
        self.changed.push(false);
        self.end(tid);
        self.live.insert(tid, index);
        *self.live_by_process.entry(pid).or_default() += 1;
        index
    }

    /// A thread ended; `None` if it was not known.
    pub fn end(&mut self, tid: u32) -> Option<ThreadIndex> {
        let thread = self.live.remove(&tid)?;
        let pid = self.all[thread.0 as usize].pid;
        if let Some(live) = self.live_by_process.get_mut(&pid) {
            *live -= 1;
            if *live == 0 {
                self.live_by_process.remove(&pid);
            }
        }
        Some(thread)
    }

    /// The live thread `tid`.
    pub fn find(&self, tid: u32) -> Option<ThreadIndex> {
        self.live.get(&tid).copied()
    }

    /// Does process `pid` have live threads?
    pub fn is_live(&self, pid: u32) -> bool {
        self.live_by_process.contains_key(&pid)
    }

    /// Processes with live threads.
    pub fn live_processes(&self) -> impl Iterator<Item = u32> {
        self.live_by_process.keys().copied()
    }

    /// Live threads.
    pub fn live(&self) -> impl Iterator<Item = u32> {
        self.live.keys().copied()
    }

    /// Process of a thread.
    pub fn pid(&self, thread: ThreadIndex) -> u32 {
        self.all[thread.0 as usize].pid
    }

    /// Counts of a thread, to be changed.
    pub fn counts(&mut self, thread: ThreadIndex) -> &mut SampleCounts {
        self.changed[thread.0 as usize] = true;
        &mut self.all[thread.0 as usize].counts
    }

    /// A sample was taken while the thread was on `cpu`; its counts, to be changed.
    pub fn seen_on(&mut self, thread: ThreadIndex, cpu: CpuId) -> &mut SampleCounts {
        self.changed[thread.0 as usize] = true;
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
        threads.seen_on(second, CpuId(3));
        threads.seen_on(second, CpuId(3));
        let mut changed = Vec::new();
        threads.take_changed(|thread, counts| changed.push((thread, counts.compute)));
        threads.take_changed(|thread, _| panic!("{thread:?} again"));
        assert_eq!(changed, [(second, 1)]);
        assert_eq!(threads.all()[1].cpus, [(CpuId(3), 2)]);
        assert!(threads.is_live(1));
        threads.end(7);
        assert!(!threads.is_live(1));
    }
}
