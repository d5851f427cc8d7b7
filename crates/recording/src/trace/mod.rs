//! Traces: every miss of a program, thread by thread, for replay by the simulator.
//!
//! A trace keeps the tracer's files, one per process image, in the folder `trace`; [`nearpage_wire::trace`] specifies
//! their layout. One pass over the files makes the tables that every recording has, and two more: the pages of the
//! trace, and the relation of virtual time to CLOCK_MONOTONIC. [`Trace`] hands out threads and pages,
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
    /// The machine for which the program was traced, as `--machine` named it; `machine.toml` describes the machine.
    pub machine: String,
    /// Setup of the tracer: caches, TLBs, and the CPU of each thread ([`nearpage_wire::tracer_setup`]).
    pub setup: String,
    /// CPUs, by the position at which setup and trace refer to them.
    pub cpus: Vec<CpuId>,
    /// Moves of threads to other CPUs; those of one thread are in order of time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moves: Vec<CpuChange>,
    /// Totals of all processes, by name.
    #[serde(default)]
    pub totals: BTreeMap<String, u64>,
}

/// A thread's move to another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuChange {
    /// The thread that moved.
    pub thread: ThreadIndex,
    /// Virtual time of the move, in instructions.
    pub instructions: u64,
    /// The new CPU.
    pub cpu: CpuId,
}

impl CpuChange {
    /// CPU of a thread at a virtual time; `None` if the thread had not moved yet.
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

    /// Whether hits of the second- and third-level cache were kept.
    pub fn keep_hits(&self) -> bool {
        Setup::parse(&self.setup).is_ok_and(|setup| setup.keep_hits)
    }

    /// Mean number of references between two periodic samples; 0 if no samples were taken.
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

    /// Notes for the user about the trace.
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

/// Most references that a thread holds back before they go through the caches.
const KILLED_REFERENCES_MAX: usize = 64;

/// A page of the trace, numbered densely from 0. Pages that several processes map from one file are
/// one page; memory that was unmapped and mapped again is another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u32);

/// A page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePage {
    /// Device of the file.
    pub device: u64,
    /// Inode of the file on the device.
    pub inode: u64,
    /// Number of the page in the file, from 0.
    pub page: u64,
}

/// One reference that the caches let through, or a note of a store to a page, in the form for replay: 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Instructions of the thread since its previous step.
    pub instructions: u32,
    /// Page of the address.
    pub page: PageIndex,
    /// Byte in the page.
    pub offset: u32,
    /// Load, store or fetch.
    pub kind: AccessKind,
    /// Cache or memory that served the reference.
    pub served: Served,
    /// Whether the reference missed the TLB.
    pub tlb_miss: bool,
    /// Whether the reference is in the periodic sample of all references; it may be a miss as well.
    pub sampled: bool,
    /// Instructions since the miss that fetched this reference's address; 0 if no such miss is known.
    pub depends_on: u16,
}

impl Miss {
    /// Whether this is no miss, but a note of the first store in a while that hit the page. The note takes no time, but
    /// copies of the page are outdated from then on.
    #[inline]
    pub fn is_store_note(&self) -> bool {
        let Self { kind, served, .. } = *self;
        (kind, served) == (AccessKind::Store, Served::L1) && !self.tlb_miss && !self.sampled
    }
}

/// Events of a thread other than misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// First touch of the page.
    FirstTouch(PageIndex),
    /// From here on, threads that wait for this signal may go on.
    Signal {
        /// Number of the signal in the whole trace, from 1.
        sequence: u64,
    },
    /// The thread waited.
    Resume {
        /// Signal that ended the wait; 0 if something outside of the trace did.
        after: u64,
        /// Virtual time that the thread was blocked while it was traced, in instructions; the length of the wait if
        /// `after` is 0.
        waited_instructions: u64,
    },
    /// The thread goes on on another CPU.
    Move(CpuId),
    /// Begin or end of the stable phase.
    Mark {
        /// `true` for begin, `false` for end.
        begin: bool,
    },
}

/// Consecutive steps of one thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepBatch {
    /// Misses, in order.
    pub misses: Vec<Miss>,
    /// Other events: position in `misses` of the next miss (the length of `misses` at the end), instructions since the
    /// thread's previous step, and the event.
    pub trace_events: Vec<(usize, u32, TraceEvent)>,
}

/// One thread of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TracedThread {
    /// The thread in the recording's table.
    pub thread: ThreadIndex,
    /// CPU on which the thread began.
    pub cpu: CpuId,
    /// Signal that started the thread; 0 for the first thread of a process.
    pub started_by: u64,
    /// Virtual time at which the thread began, in instructions.
    pub start_instructions: u64,
}

/// Hands out one thread's steps in order.
pub trait Steps: Send {
    /// Replaces `batch` by the next steps (some thousands). Returns `false` if no steps are left.
    ///
    /// # Errors
    /// If the trace cannot be read.
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, crate::Error>;
}
