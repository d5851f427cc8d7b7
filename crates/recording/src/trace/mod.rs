//! Full traces: every miss of a program, thread by thread, as the simulator replays them.

use nearpage_machine::CpuId;

use crate::{AccessKind, ThreadIndex};
pub use nearpage_wire::trace::Served;

/// A page of the trace, numbered densely from 0. Pages that several processes map from one file are
/// one page; memory that was unmapped and mapped again is another page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u32);

/// One reference that the caches let through, ready to be replayed: 16 bytes.
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
}

/// What happens in a thread besides misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
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
    pub happenings: Vec<(usize, u32, Happening)>,
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
