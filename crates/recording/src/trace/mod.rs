//! Full traces: every miss of a program, thread by thread, as the simulator replays them.
//!
//! A trace keeps the tracer's files, one per process image, in the folder `trace`;
//! the layout of these is [`nearpage_wire::trace`]'s. One pass over it makes the tables that every
//! recording has, and two more that belong to the trace: which pages there are, and how virtual
//! time and CLOCK_MONOTONIC go together. [`Trace`] hands out threads and pages;
//! [`crate::Recording::read_chunk`] the misses as accesses, in order of time.

mod clock;
mod downsample;
mod file;
mod images;
mod moved;
mod ordered;
mod pages;
mod setup;
mod statistics;
mod steps;
mod survey;
mod traced;
mod unfinished;

use std::collections::BTreeMap;

use nearpage_amount::counted;
use nearpage_machine::CpuId;
use nearpage_wire::trace::{COUNTERS, Counter};
use nearpage_wire::tracer_setup::Setup;
use serde::{Deserialize, Serialize};

pub use self::downsample::{DownsampleEvent, Downsampling};
pub use self::pages::{PageLookup, PagePlace, PageRow, PageTable, Touch};
pub use self::setup::{TraceMismatch, TraceOptions, TracedMove, TracingError};
pub use self::statistics::{
    ChainShare, HotPages, ModeMisses, READ_MOSTLY_WRITES_MAX, ReadChains, ReadMostly,
    SegmentMisses, SystemStatistics, TraceStatistics,
};
pub use self::steps::{Mode, ThreadSteps, Trace};
pub(crate) use self::traced::{OpenFrames, OpenedTrace, SharedTrace};
pub(crate) use self::unfinished::process_of;
pub use self::unfinished::{end as end_traces, finish as finish_frames};
use crate::{AccessKind, ThreadIndex};
pub use nearpage_wire::trace::{BEGIN_MARK, END_MARK, Segment, Served};

/// How a trace was made, and what the tracer counted: `tracing` in `recording.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tracing {
    /// The machine it was traced for, as `--machine` named it; described in `machine.toml`.
    pub machine: String,
    /// What the tracer was told: caches, TLBs, which thread runs on which CPU
    /// ([`nearpage_wire::tracer_setup`]).
    pub setup: String,
    /// CPUs by the position that setup and trace know them by.
    pub cpus: Vec<CpuId>,
    /// Threads that went on on another CPU, each one's moves in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<CpuChange>,
    /// Totals of all processes, by name.
    #[serde(default)]
    pub totals: BTreeMap<String, u64>,
}

/// A thread that went on on another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuChange {
    /// The thread.
    pub thread: ThreadIndex,
    /// Virtual time.
    pub instructions: u64,
    /// Where to.
    pub cpu: CpuId,
}

impl CpuChange {
    /// Where a thread is at a virtual time; `None`: where it began.
    fn cpu_at(moves: &[Self], thread: ThreadIndex, instructions: u64) -> Option<CpuId> {
        let its = moves.iter().filter(|moved| moved.thread == thread);
        its.take_while(|moved| moved.instructions <= instructions)
            .last()
            .map(|moved| moved.cpu)
    }
}

/// Names of the totals, in the order of [`Counter`].
const TOTALS: [&str; COUNTERS] = [
    "instructions",
    "loads",
    "stores",
    "fetched_lines",
    "data_l1_misses",
    "fetch_l1_misses",
    "l2_hits",
    "l3_hits",
    "memory_served",
    "other_cache_served",
    "upgrades",
    "write_backs",
    "invalidations",
    "data_tlb_misses",
    "fetch_tlb_misses",
    "second_tlb_hits",
    "first_touches",
    "samples",
    "records",
    "records_dropped",
    "left_lockstep",
    "spun_quanta",
    "execs",
    "forks",
    "untraced_programs",
    "kernel_instructions",
    "kernel_loads",
    "kernel_stores",
    "device_references",
];

impl Tracing {
    /// The CPU at a position of the setup.
    fn cpu(&self, position: u32) -> CpuId {
        let known = self.cpus.get(position as usize);
        known.copied().unwrap_or(CpuId(position))
    }

    /// Were hits of the second and third level kept?
    pub fn keep_hits(&self) -> bool {
        Setup::parse(&self.setup).is_ok_and(|setup| setup.keep_hits)
    }

    /// Mean references between two of the periodic sample of all; 0: none were taken.
    pub fn sample_every(&self) -> u32 {
        Setup::parse(&self.setup).map_or(0, |setup| setup.sample_period)
    }

    fn count(&mut self, images: &images::Images) {
        self.totals.clear();
        for file in &images.files {
            for (name, value) in TOTALS.iter().zip(file.counters.unwrap_or_default()) {
                let total = self.totals.entry((*name).to_owned()).or_default();
                *total = total.saturating_add(value);
            }
        }
    }

    /// What users have to know of the trace.
    fn notes(&self, images: &images::Images) -> Vec<String> {
        let total = |counter: Counter| {
            self.totals
                .get(TOTALS[counter as usize])
                .copied()
                .unwrap_or(0)
        };
        let mut notes: Vec<String> = images
            .files
            .iter()
            .filter(|file| file.cut_short())
            .map(|file| {
                format!(
                    "{}: cut short (the program was killed, or the disk was full); what is there was read, but it \
                     can't be simulated",
                    file.path.file_name().unwrap_or_default().to_string_lossy()
                )
            })
            .collect();
        let killed = images.files.iter().filter(|file| file.killed() > 0);
        notes.extend(killed.map(|file| {
            format!(
                "process {} ({}) was killed: of {} up to {KILLED_REFERENCES_MAX} references each before that are missing",
                file.header.pid,
                file.program(),
                counted(file.killed() as u64, "thread")
            )
        }));
        if images.files.is_empty() {
            notes.push("the tracer wrote nothing: the program did not start".to_owned());
        }
        if total(Counter::RecordsDropped) > 0 {
            notes.push(format!(
                "{} of the trace dropped for want of disk space",
                counted(total(Counter::RecordsDropped), "record")
            ));
        }
        if total(Counter::SpunQuanta) > 0 {
            notes.push(format!(
                "threads waited in loops ({}): that time counts as computing; with OMP_WAIT_POLICY=passive \
                 OpenMP programs wait in the kernel",
                match total(Counter::SpunQuanta) {
                    1 => "1 quantum".to_owned(),
                    count => format!("{count} quanta"),
                }
            ));
        }
        if total(Counter::LeftLockstep) > 0 {
            notes.push(format!(
                "{} a thread slept where the tracer could not know: what depends on that differs from run to run",
                counted(total(Counter::LeftLockstep), "time")
            ));
        }
        if total(Counter::UntracedPrograms) > 0 {
            notes.push(format!(
                "{} ran without being traced: set-user-ID, or not for x86-64",
                counted(total(Counter::UntracedPrograms), "program")
            ));
        }
        let setup = Setup::parse(&self.setup);
        let wanted = setup.map_or(0, |setup| setup.thread_moves.iter().count());
        if self.moves.len() < wanted {
            notes.push(format!(
                "moves of the schedule that were made: {} of {wanted}; the other threads were not there, or had ended",
                self.moves.len()
            ));
        }
        notes
    }
}

/// References that a thread holds back at most until they go through the caches.
const KILLED_REFERENCES_MAX: usize = 64;

/// A page of the trace, numbered densely from 0. Pages that several processes map from one file are
/// one page; memory that was unmapped and mapped again is another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u32);

/// A page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePage {
    /// The file's device.
    pub device: u64,
    /// Its inode there.
    pub inode: u64,
    /// Which of its pages, from 0.
    pub page: u64,
}

/// One reference that the caches let through, or a note that a page was stored to, ready to be replayed: 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Instructions of the thread since its previous step.
    pub instructions: u32,
    /// Page.
    pub page: PageIndex,
    /// Byte in the page.
    pub offset: u32,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// What served it.
    pub served: Served,
    /// It missed the TLB.
    pub tlb_miss: bool,
    /// It is one of the periodic sample of all references (and may be a miss as well).
    pub sampled: bool,
    /// Its address comes from what the miss so many instructions before fetched; 0: from no such miss.
    pub depends_on: u16,
}

impl Miss {
    /// No miss, but the first store in a while to its page that hit: nothing takes time, and copies of the page are
    /// no longer what the page is.
    #[inline]
    pub fn is_store_note(&self) -> bool {
        let Self { kind, served, .. } = *self;
        (kind, served) == (AccessKind::Store, Served::L1) && !self.tlb_miss && !self.sampled
    }
}

/// What happens in a thread besides misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// The page is touched for the first time.
    FirstTouch(PageIndex),
    /// From here on, threads that wait for this signal may go on.
    Signal {
        /// Number in the whole trace, from 1.
        sequence: u64,
    },
    /// The thread waited.
    Resume {
        /// Signal that let it go on; 0: something outside.
        after: u64,
        /// Virtual time it was blocked while tracing, in instructions; what it waits if `after` is 0.
        waited_instructions: u64,
    },
    /// It goes on on another CPU.
    Move(CpuId),
    /// Begin (true) or end of the stable phase.
    Mark {
        /// Begin or end.
        begin: bool,
    },
}

/// Consecutive steps of one thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepBatch {
    /// Misses, in order.
    pub misses: Vec<Miss>,
    /// What else happened: before which miss (a position in `misses`, its length for the end),
    /// instructions since the thread's previous step, what.
    pub trace_events: Vec<(usize, u32, TraceEvent)>,
}

/// One thread of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedThread {
    /// In the recording's table.
    pub thread: ThreadIndex,
    /// CPU that it began on.
    pub cpu: CpuId,
    /// Signal that started it; 0 for the first thread of a process.
    pub started_by: u64,
    /// Virtual time at which it began, in instructions.
    pub start_instructions: u64,
}

/// Something that hands out one thread's steps in order.
pub trait Steps: Send {
    /// Replaces `batch` by the next steps (some thousands); `false`: there are none left.
    ///
    /// # Errors
    /// A trace that cannot be read.
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, crate::Error>;
}
