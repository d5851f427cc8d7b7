//! Records of a thread.

use super::Segment;

/// What a reference does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReferenceKind {
    /// The reference reads.
    Load = 0,
    /// The reference writes, or reads and writes.
    Store = 1,
    /// An instruction fetch.
    Fetch = 2,
}

/// What served a reference, or what else the caches did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Served {
    /// First-level cache: a sample of all references, a TLB miss alone, or the first store to a page in a while,
    /// whichever cache served the store.
    L1 = 0,
    /// Second-level cache.
    L2 = 1,
    /// Last-level cache that the CPUs of a node share.
    L3 = 2,
    /// Memory, wherever the page is.
    Memory = 3,
    /// Another CPU's cache held the line modified.
    OtherCache = 4,
    /// A store to a line held shared: no data moves, the other copies are invalidated.
    Upgrade = 5,
    /// A modified line was evicted; no thread waits for this. The address is the line's.
    WriteBack = 6,
}

impl ReferenceKind {
    #[inline]
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Load,
            1 => Self::Store,
            2 => Self::Fetch,
            _ => return None,
        })
    }
}

impl Served {
    #[inline]
    pub(super) fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::L1,
            1 => Self::L2,
            2 => Self::L3,
            3 => Self::Memory,
            4 => Self::OtherCache,
            5 => Self::Upgrade,
            6 => Self::WriteBack,
            _ => return None,
        })
    }
}

/// One reference that the caches let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Virtual address; in a whole system, position in the guest's memory.
    pub address: u64,
    /// Address of the instruction; for a write-back, of the instruction whose reference evicted the line.
    pub instruction: u64,
    /// Load, store or fetch.
    pub kind: ReferenceKind,
    /// Cache or memory that served the reference.
    pub served: Served,
    /// Whether the reference missed the TLB.
    pub tlb_miss: bool,
    /// Whether the reference is in the periodic sample of all references; it may be a miss as well.
    pub sampled: bool,
    /// Whether the kernel made the reference (in a whole system; always false for a program).
    pub kernel: bool,
    /// Region of the address space (of a whole system).
    pub segment: Segment,
}

/// One record of a thread's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A reference.
    Reference(Reference),
    /// The process touches this page for the first time since it was mapped. The record comes before the reference, and
    /// before the begin marker, too.
    FirstTouch {
        /// An address in the page.
        address: u64,
        /// The instruction that touches the page.
        instruction: u64,
    },
    /// Other threads may go on from here: after a `futex` wake, a wait that may be at a barrier, for the thread that comes
    /// last to it, a new thread, the end of a thread, or, in any process, a write to a pipe or its closing.
    Signal {
        /// Number of the signal in the process, from 1; signals of pipes have numbers above [`PIPE_SIGNAL`].
        sequence: u64,
        /// Address of the futex; 0 for other signals.
        address: u64,
    },
    /// The thread was blocked and goes on; or it came last to a barrier, and goes on when another has arrived there.
    Resume {
        /// Signal that let the thread go on; from [`CHILD_ENDED`] on, the end of a child process; 0 for an outside
        /// event (a timer, a file, a socket).
        after: u64,
        /// Address of the futex; 0 for other waits.
        address: u64,
        /// Virtual time spent blocked, in instructions.
        waited_instructions: u64,
    },
    /// The thread read the clock, which ties virtual time to CLOCK_MONOTONIC.
    Clock {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
    },
    /// The thread goes on on another CPU of the machine (position among the setup's CPUs).
    Move {
        /// Position of the CPU.
        cpu: u32,
    },
    /// `nearpage_begin` (true) or `nearpage_end`.
    Mark {
        /// `true` for begin, `false` for end.
        begin: bool,
    },
    /// The address of the next reference comes from data that an earlier miss of the thread fetched, so a processor
    /// can't issue the reference before the miss completes.
    Depends {
        /// Instructions since the earlier miss.
        on: u64,
    },
    /// Another thread had the CPU meanwhile.
    Preempted {
        /// Virtual time without the CPU, in instructions.
        waited_instructions: u64,
    },
}

/// Signals for which threads of other processes may wait are numbered from here on, for all processes of the recording
/// together. Signals within a process have lower numbers.
pub const PIPE_SIGNAL: u64 = 1 << 47;

/// File beside the traces in which running processes tell each other about pipes.
pub const SIGNALS_FILE: &str = "signals.shared";

/// File beside the traces of a recording that is over: running processes begin no more files, and processes that start
/// later are not traced.
pub const ENDED_FILE: &str = "ended";

/// Value of `after` for the end of a child process: this number + the child's pid. Signals have lower numbers.
pub const CHILD_ENDED: u64 = 1 << 48;

/// `prctl` option, without a meaning to any kernel, by which the preload library tells the tracer of `nearpage_begin`
/// (second argument 1) and `nearpage_end` (2).
pub const MARK_OPTION: u64 = 0x4e50_4d4b;
