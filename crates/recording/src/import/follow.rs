//! Turns records in order of time into accesses and events, as a recorder would have logged them.

use nearpage_machine::{CpuId, Machine};
use nearpage_perf_abi::{Map, Sideband};
use rustc_hash::FxHashMap;

use super::undecoded::Undecoded;
use super::{EventKind, Record, RecordBody, Sample, page_node};
use crate::{Access, AccessBatch, AccessKind, Event, Resolution, SampleCounts, ThreadIndex};

/// Process id that perf uses for the kernel's own mappings.
const KERNEL: u32 = u32::MAX;

/// State of the recorded programs as of the last record.
pub(super) struct Follower<'a> {
    machine: &'a Machine,
    ghz: f32,
    /// Live threads by kernel thread id, with their process.
    live: FxHashMap<u32, (u32, ThreadIndex)>,
    /// Counts of samples, by thread.
    all: Vec<SampleCounts>,
    lost: u64,
    without_cpu: bool,
    undecoded: Undecoded,
    /// Number of samples of page faults.
    pub faults: u64,
    pub batch: AccessBatch,
    pub events: Vec<Event>,
    /// Times of the first and last sample.
    pub begin_ns: u64,
    pub end_ns: u64,
}

impl<'a> Follower<'a> {
    pub fn new(machine: &'a Machine, ghz: f32) -> Self {
        Self {
            machine,
            ghz,
            live: FxHashMap::default(),
            all: Vec::new(),
            lost: 0,
            without_cpu: false,
            undecoded: Undecoded::default(),
            faults: 0,
            batch: AccessBatch::default(),
            events: Vec::new(),
            begin_ns: 0,
            end_ns: 0,
        }
    }

    pub fn follow(&mut self, record: Record<'_>) {
        match record.what {
            RecordBody::Sample(sample) => self.sample(record.time_ns, sample),
            RecordBody::Sideband(sideband) => self.sideband(record.time_ns, sideband),
        }
    }

    fn sideband(&mut self, time_ns: u64, sideband: Sideband<'_>) {
        match sideband {
            Sideband::Map(map) => self.map(time_ns, map),
            Sideband::Name {
                pid,
                tid,
                name,
                exec,
            } => {
                let thread = self.thread(time_ns, pid, tid);
                self.events.push(Event::Name {
                    time_ns,
                    pid,
                    thread,
                    name: String::from_utf8_lossy(name).into_owned(),
                    exec,
                });
            }
            Sideband::Fork {
                pid,
                tid,
                parent_pid,
            } => {
                // perf reports tasks from before the recording with time 0, before or after their name, and then all of
                // their mappings.
                if time_ns == 0 {
                    self.thread(time_ns, pid, tid);
                } else {
                    self.begin(time_ns, pid, tid, parent_pid);
                }
            }
            Sideband::Exit { pid, tid } => match self.live.get(&tid) {
                Some((other, thread)) if *other == pid => {
                    let thread = *thread;
                    self.events.push(Event::Exit { time_ns, thread });
                    self.live.remove(&tid);
                }
                _ => {}
            },
            Sideband::Lost { records } => {
                self.lost = self.lost.saturating_add(records);
                self.events.push(Event::Lost { time_ns, records });
            }
            Sideband::Throttle | Sideband::Aux(_) => {}
        }
    }

    fn begin(&mut self, time_ns: u64, pid: u32, tid: u32, parent_pid: u32) -> ThreadIndex {
        let thread = ThreadIndex(self.all.len() as u32);
        self.all.push(SampleCounts::default());
        self.live.insert(tid, (pid, thread));
        self.events.push(Event::Fork {
            time_ns,
            pid,
            tid,
            thread,
            parent_pid,
        });
        thread
    }

    /// The thread `tid`, which is begun here if no record reported its start.
    fn thread(&mut self, time_ns: u64, pid: u32, tid: u32) -> ThreadIndex {
        match self.live.get(&tid) {
            Some((other, thread)) if *other == pid => *thread,
            _ => self.begin(time_ns, pid, tid, pid),
        }
    }

    fn map(&mut self, time_ns: u64, map: Map<'_>) {
        if map.pid == KERNEL {
            return;
        }
        self.events.push(Event::Map {
            time_ns,
            pid: map.pid,
            address: map.address,
            length: map.length,
            file_offset: map.file_offset,
            protection: map.protection,
            shared: map.shared_file(),
            path: nearpage_files::path_to_text(map.path),
            build_id: map.build_id.to_string(),
        });
    }

    fn sample(&mut self, time_ns: u64, sample: Sample) {
        let thread = self.thread(time_ns, sample.pid, sample.tid);
        if self.begin_ns == 0 {
            self.begin_ns = time_ns;
        }
        self.end_ns = self.end_ns.max(time_ns);
        let cpu = sample.cpu.unwrap_or(CpuId(0));
        if sample.event == EventKind::Faults {
            self.faults += 1;
            self.events.push(Event::FirstTouch {
                time_ns,
                thread,
                cpu,
                address: sample.address,
            });
            return;
        }
        let counts = &mut self.all[thread.0 as usize];
        if !sample.user {
            counts.kernel += 1;
            return;
        }
        counts.samples += 1;
        if sample.address == 0 {
            counts.undecoded += 1;
            return;
        }
        counts.accesses += 1;
        self.without_cpu |= sample.cpu.is_none();
        let kind = match sample.event {
            EventKind::Stores => AccessKind::Store,
            EventKind::Loads | EventKind::Faults => AccessKind::Load,
        };
        self.undecoded.take(sample.data_src);
        let level = sample.data_src.level().into();
        let weight = sample.period as f32;
        self.batch.push(Access {
            time_ns,
            thread,
            cpu,
            address: sample.address,
            instruction: sample.ip,
            kind: sample.data_src.operation().map_or(kind, AccessKind::from),
            level,
            resolution: Resolution::Exact,
            skid_bytes: 0,
            weight,
            cost_ns: sample.latency_cycles as f32 / self.ghz * weight,
            page_node: sample
                .cpu
                .and_then(|cpu| page_node(self.machine, self.machine.node_of(cpu), level)),
        });
    }

    /// Events with the counts of each thread's samples.
    pub fn counts(&self) -> impl Iterator<Item = Event> {
        (0..).zip(&self.all).map(|(index, counts)| Event::Counts {
            thread: ThreadIndex(index),
            counts: *counts,
        })
    }

    /// Counts of all samples.
    pub fn totals(&self) -> SampleCounts {
        let mut totals = SampleCounts {
            lost: self.lost,
            ..SampleCounts::default()
        };
        for counts in &self.all {
            totals.samples += counts.samples;
            totals.accesses += counts.accesses;
            totals.undecoded += counts.undecoded;
            totals.kernel += counts.kernel;
        }
        totals
    }

    /// Notes for the user.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.without_cpu {
            notes.push(
                "samples without a CPU are shown on CPU 0; record with --sample-cpu to have it"
                    .to_owned(),
            );
        }
        notes.extend(self.undecoded.note());
        notes
    }
}
