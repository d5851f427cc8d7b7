//! Buffers the sampler's data between two decisions, in memory that is allocated at the start.

use std::io;

use nearpage_machine::CpuId;
use nearpage_recording::{Access, AccessKind, Event, Level, SampleCounts, ThreadIndex};
use nearpage_sampler::Sink;
use rustc_hash::FxHashMap;

use crate::guard::IntervalLoss;
use crate::pages::ProcessIndex;

/// Maximum number of accesses between two decisions, at 24 bytes each. Further ones are counted and dropped.
pub const ACCESSES_MAX: usize = 1 << 18;

/// A sampled access of a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledAccess {
    /// Time of CLOCK_MONOTONIC in nanoseconds.
    pub time_ns: u64,
    /// Virtual address accessed.
    pub address: u64,
    /// Thread, as an index into [`Observer::threads`].
    pub thread: ThreadIndex,
    /// Number of the CPU, capped at the maximum of the type.
    pub cpu: u16,
    /// Kind of access.
    pub kind: AccessKind,
    /// Cache level or memory that served the access.
    pub level: Level,
}

/// A process, as known from samples and the kernel's records.
#[derive(Clone, Debug)]
pub struct Process {
    /// Number of the process.
    pub pid: u32,
    /// Name of its program.
    pub name: String,
    /// Number of threads that have not ended.
    pub threads: u32,
    /// Losses since the last decision.
    pub loss: IntervalLoss,
    /// An access of the process was sampled since the last decision.
    pub sampled: bool,
    /// The process has executed another program since the last decision, so its pages are gone.
    pub replaced: bool,
    /// The process has mapped or unmapped memory since the last decision.
    pub remapped: bool,
}

/// A thread of a process.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    /// Process of the thread.
    pub process: ProcessIndex,
    /// Kernel thread id.
    pub tid: u32,
    /// CPU on which the thread was last seen.
    pub cpu: Option<CpuId>,
    /// The thread has not ended.
    pub live: bool,
    /// CPU time since the last decision.
    pub busy_ns: u64,
    counts: SampleCounts,
}

/// Observations since the last decision, and all processes and threads.
#[derive(Debug)]
pub struct Observer {
    period_ns: u64,
    accesses: Vec<SampledAccess>,
    /// Time lost to the accesses, and sum of their weights.
    lost_ns: f64,
    weight: f64,
    /// Number of accesses that were dropped because the buffer was full.
    pub dropped: u64,
    /// Number of samples without an access: they hit computation or the kernel, or the access is unknown.
    pub without_access: u64,
    threads: Vec<Thread>,
    processes: Vec<Process>,
    by_pid: FxHashMap<u32, ProcessIndex>,
}

impl Observer {
    /// An observer of samples that each stand for `period_ns` of a thread's time.
    pub fn new(period_ns: u64) -> Self {
        Self {
            period_ns,
            accesses: Vec::with_capacity(ACCESSES_MAX),
            lost_ns: 0.0,
            weight: 0.0,
            dropped: 0,
            without_access: 0,
            threads: Vec::new(),
            processes: Vec::new(),
            by_pid: FxHashMap::default(),
        }
    }

    /// Accesses since the last decision, in order of time as far as the kernel's records are.
    pub fn seen(&self) -> &[SampledAccess] {
        &self.accesses
    }

    /// All processes so far, including ended ones.
    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// All threads so far, including ended ones.
    pub fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Time lost to all accesses since the last decision.
    pub fn lost_ns(&self) -> f64 {
        self.lost_ns
    }

    /// Sum of the weights of all accesses since the last decision.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Sets the time that a sample stands for from now on.
    pub fn set_period_ns(&mut self, period_ns: u64) {
        self.period_ns = period_ns;
    }

    /// Begins an interval after a decision.
    pub fn begin_interval(&mut self) {
        self.accesses.clear();
        (self.lost_ns, self.weight) = (0.0, 0.0);
        for process in &mut self.processes {
            process.loss = IntervalLoss {
                period_ns: self.period_ns as f64,
                ..IntervalLoss::default()
            };
            process.sampled = false;
            process.replaced = false;
            process.remapped = false;
        }
        for thread in &mut self.threads {
            thread.busy_ns = 0;
        }
    }

    fn process(&mut self, pid: u32) -> ProcessIndex {
        if let Some(&process) = self.by_pid.get(&pid)
            && self.processes[process.0 as usize].threads > 0
        {
            return process;
        }
        // The number is new, or was reused after its process ended.
        let process = ProcessIndex(self.processes.len() as u32);
        self.processes.push(Process {
            pid,
            name: String::new(),
            threads: 0,
            loss: IntervalLoss {
                period_ns: self.period_ns as f64,
                ..IntervalLoss::default()
            },
            sampled: false,
            replaced: false,
            remapped: false,
        });
        self.by_pid.insert(pid, process);
        process
    }

    fn thread(&mut self, thread: ThreadIndex) -> Option<&mut Thread> {
        self.threads.get_mut(thread.0 as usize)
    }

    fn begin(&mut self, thread: ThreadIndex, pid: u32, tid: u32) {
        let process = self.process(pid);
        self.processes[process.0 as usize].threads += 1;
        // Thread numbers are given in order; a skipped number is a thread without records.
        let unknown = Thread {
            process,
            tid,
            cpu: None,
            live: false,
            busy_ns: 0,
            counts: SampleCounts::default(),
        };
        let at = thread.0 as usize;
        if self.threads.len() <= at {
            self.threads.resize(at + 1, unknown);
        }
        self.threads[at] = Thread {
            live: true,
            ..unknown
        };
    }

    fn count(&mut self, thread: ThreadIndex, counts: &SampleCounts) {
        let period_ns = self.period_ns;
        let Some(thread) = self.thread(thread) else {
            return;
        };
        let before = std::mem::replace(&mut thread.counts, *counts);
        let samples = |counts: &SampleCounts| counts.samples + counts.kernel;
        let new = samples(counts).saturating_sub(samples(&before));
        let busy_ns = new * period_ns;
        thread.busy_ns += busy_ns;
        let process = thread.process;
        self.without_access += new.saturating_sub(counts.accesses.saturating_sub(before.accesses));
        self.processes[process.0 as usize].loss.cpu_ns += busy_ns as f64;
    }
}

impl Sink for Observer {
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()> {
        for access in accesses {
            let thread = access.thread;
            let Some(known) = self.threads.get_mut(thread.0 as usize) else {
                continue;
            };
            known.cpu = Some(access.cpu);
            let process = known.process;
            let of_process = &mut self.processes[process.0 as usize];
            of_process.loss.lost_ns += f64::from(access.cost_ns);
            of_process.sampled = true;
            if self.accesses.len() == ACCESSES_MAX {
                self.dropped += 1;
                continue;
            }
            self.lost_ns += f64::from(access.cost_ns);
            self.weight += f64::from(access.weight);
            self.accesses.push(SampledAccess {
                time_ns: access.time_ns,
                address: access.address,
                thread,
                cpu: u16::try_from(access.cpu.0).unwrap_or(u16::MAX),
                kind: access.kind,
                level: access.level,
            });
        }
        Ok(())
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        for event in events {
            match event {
                &Event::Fork {
                    pid, tid, thread, ..
                } => self.begin(thread, pid, tid),
                &Event::Exit { thread, .. } => {
                    let Some(thread) = self.thread(thread).filter(|thread| thread.live) else {
                        continue;
                    };
                    thread.live = false;
                    let process = thread.process;
                    let threads = &mut self.processes[process.0 as usize].threads;
                    *threads = threads.saturating_sub(1);
                }
                Event::Name {
                    thread,
                    pid,
                    name,
                    exec,
                    ..
                } => {
                    let Some(thread) = self.thread(*thread) else {
                        continue;
                    };
                    let main = thread.tid == *pid;
                    let process = thread.process;
                    let process = &mut self.processes[process.0 as usize];
                    process.replaced |= exec;
                    if main {
                        process.name.clone_from(name);
                    }
                }
                Event::Counts { thread, counts } => self.count(*thread, counts),
                Event::Map { pid, .. } | Event::Unmap { pid, .. } => {
                    if let Some(process) = self.by_pid.get(pid) {
                        self.processes[process.0 as usize].remapped = true;
                    }
                }
                Event::FirstTouch { .. } | Event::Lost { .. } => (),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpage_recording::Resolution;

    fn fork(thread: u32, pid: u32, tid: u32) -> Event {
        Event::Fork {
            time_ns: 0,
            pid,
            tid,
            thread: ThreadIndex(thread),
            parent_pid: 1,
        }
    }

    fn exit(thread: u32) -> Event {
        Event::Exit {
            time_ns: 0,
            thread: ThreadIndex(thread),
        }
    }

    fn counts(thread: u32, samples: u64, kernel: u64) -> Event {
        Event::Counts {
            thread: ThreadIndex(thread),
            counts: SampleCounts {
                samples,
                kernel,
                accesses: samples / 2,
                ..SampleCounts::default()
            },
        }
    }

    fn access(thread: u32) -> Access {
        Access {
            time_ns: 5,
            thread: ThreadIndex(thread),
            cpu: CpuId(3),
            address: 0x1000,
            instruction: 0,
            kind: AccessKind::Load,
            level: Level::Unknown,
            resolution: Resolution::Exact,
            skid_bytes: 0,
            weight: 1.0,
            cost_ns: 1000.0,
            page_node: None,
        }
    }

    #[test]
    fn time_and_losses_are_of_the_interval() {
        let mut observer = Observer::new(1000);
        observer
            .events(&[
                fork(0, 7, 7),
                fork(1, 7, 8),
                counts(0, 5, 1),
                counts(1, 10, 0),
            ])
            .expect("taken");
        observer.accesses(&[access(0), access(1)]).expect("taken");
        let process = &observer.processes()[0];
        assert_eq!(
            (process.loss.cpu_ns, process.loss.lost_ns),
            (16_000.0, 2000.0)
        );
        assert_eq!(observer.threads()[1].busy_ns, 10_000);
        // Of 5 + 1 and 10 samples, 2 and 5 are accesses.
        assert_eq!((observer.seen().len(), observer.without_access), (2, 9));
        observer.begin_interval();
        observer.events(&[counts(0, 8, 2)]).expect("taken");
        assert_eq!(observer.processes()[0].loss.cpu_ns, 4000.0);
        assert_eq!(observer.without_access, 11);
        assert!(observer.seen().is_empty());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let mut observer = Observer::new(1000);
        observer
            .events(&[
                fork(0, 7, 7),
                fork(1, 7, 8),
                exit(0),
                exit(1),
                fork(2, 7, 7),
            ])
            .expect("taken");
        let threads: Vec<u32> = observer.processes().iter().map(|one| one.threads).collect();
        assert_eq!(threads, [0, 1]);
        assert_eq!(observer.threads()[2].process, ProcessIndex(1));
    }

    #[test]
    fn memory_is_bounded() {
        let mut observer = Observer::new(1000);
        observer.events(&[fork(0, 7, 7)]).expect("taken");
        let batch = [access(0); 1024];
        for _ in 0..ACCESSES_MAX / 1024 + 2 {
            observer.accesses(&batch).expect("taken");
        }
        assert_eq!(observer.seen().len(), ACCESSES_MAX);
        assert_eq!(observer.dropped, 2048);
    }
}
