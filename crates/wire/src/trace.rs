//! The trace: what the tracer, a plugin inside the emulator, writes while the program runs.
//!
//! One file per program image, `trace-PID-START.trace` in the trace folder: PID in decimal, START the
//! CLOCK_MONOTONIC nanoseconds at which the image began. Each thread's records are a stream of their
//! own, cut into frames; a frame can be decoded without the ones before it.
//!
//! Time inside a thread is counted in its own instructions. *Virtual time* is common to the threads
//! of a process: they advance together, a quantum of instructions at a time, and a thread that was
//! blocked goes on at the virtual time at which it was woken.

/// What a reference does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReferenceKind {
    /// Reads.
    Load = 0,
    /// Writes, or reads and writes.
    Store = 1,
    /// An instruction fetch.
    Fetch = 2,
}

/// What served a reference, or what else the caches had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Served {
    /// First-level cache: a sample of all references, or a TLB miss alone.
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

/// One reference that the caches let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Virtual address.
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
    /// Made by the kernel.
    pub kernel: bool,
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
    /// From here on other threads may go on (`futex` wake, a new thread, the end of a thread).
    Signal {
        /// Number of the signal in the process, from 1.
        sequence: u64,
        /// The futex's address; 0 for threads that begin and end.
        address: u64,
    },
    /// The thread was blocked and goes on.
    Resume {
        /// The signal that let it; 0: something outside (a timer, a file, another process).
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
}
