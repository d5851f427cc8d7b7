//! What a thread's records say.

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

/// What served a reference, or what else the caches had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Served {
    /// First-level cache: a sample of all references, a TLB miss alone, or the first store to a page
    /// in a while, whichever cache served that.
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
    /// A modified line was evicted: nobody waits for it. Its address is the line's.
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
    /// Virtual address; of a whole system, place in the guest's memory.
    pub address: u64,
    /// Address of the instruction; of a write-back, the one whose reference evicted the line.
    pub instruction: u64,
    /// Load, store or fetch.
    pub kind: ReferenceKind,
    /// What served it.
    pub served: Served,
    /// It missed the TLB.
    pub tlb_miss: bool,
    /// It is one of the periodic sample of all references (and may be a miss as well).
    pub sampled: bool,
    /// Made by the kernel (of a whole system; a program's own are the user's).
    pub kernel: bool,
    /// Region of the address space (of a whole system).
    pub segment: Segment,
}

/// One record of a thread's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A reference.
    Reference(Reference),
    /// The process touches this page for the first time since it was mapped. Comes before the
    /// reference, and before the begin marker too.
    FirstTouch {
        /// Some address in the page.
        address: u64,
        /// The instruction.
        instruction: u64,
    },
    /// From here on other threads may go on (`futex` wake, a new thread, the end of a thread; a write
    /// to a pipe or its closing, in any process).
    Signal {
        /// Number of the signal in the process, from 1; of a pipe, above [`PIPE_SIGNAL`].
        sequence: u64,
        /// The futex's address; 0 where it is none.
        address: u64,
    },
    /// The thread was blocked and goes on.
    Resume {
        /// The signal that let it; from [`CHILD_ENDED`] on, the end of a child process; 0: something
        /// outside (a timer, a file, a socket).
        after: u64,
        /// The futex's address; 0 where it was none.
        address: u64,
        /// Virtual time spent blocked, in instructions.
        waited_instructions: u64,
    },
    /// The clock was read: ties virtual time to CLOCK_MONOTONIC.
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
        /// Begin or end.
        begin: bool,
    },
    /// The address of the reference that comes next comes from data that a miss of the thread fetched: a
    /// processor can't ask for the one before it has the other.
    Depends {
        /// Instructions since that miss.
        on: u64,
    },
    /// Another thread had the CPU meanwhile.
    Preempted {
        /// Virtual time without the CPU, in instructions.
        waited_instructions: u64,
    },
}

/// Signals that threads of other processes may wait for are numbered from here on, for all processes
/// of the recording together; a process's own have lower numbers.
pub const PIPE_SIGNAL: u64 = 1 << 47;

/// Beside the traces, while the program runs: what its processes tell each other of pipes.
pub const SIGNALS_FILE: &str = "signals.shared";

/// Beside the traces, once the recording is over: processes that go on begin no files there any more, and those that
/// start from then on are not traced.
pub const ENDED_FILE: &str = "ended";

/// What a thread goes on after, where that is the end of a child process: this + its pid. Signals have
/// lower numbers.
pub const CHILD_ENDED: u64 = 1 << 48;

/// `prctl` option, of no meaning to any kernel, by which the preload library tells the tracer of
/// `nearpage_begin` (second argument 1) and `nearpage_end` (2).
pub const MARK_OPTION: u64 = 0x4e50_4d4b;
