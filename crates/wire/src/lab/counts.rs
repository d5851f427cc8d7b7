//! Counts of the tracer in the lab: a text file.
//!
//! ```text
//! nearpage lab counts 1
//! guest_ns 1000000             and one line for each other LabCount
//! misses 0 1 200 60000000 10   CPU's node, memory's node, misses, stall and, of that, queueing in femtoseconds
//! controller 0 210 1050000000  node, requests, femtoseconds busy
//! link 0 200 3200000000        number, requests, femtoseconds busy
//! kernel 18446744071579664384 9000000   address of a block of the kernel, time that all CPUs spent in it
//! ```

use core::fmt;

/// First line of a file of counts.
pub const COUNTS_FIRST_LINE: &str = "nearpage lab counts 1";

macro_rules! counts {
    ($($(#[$about:meta])* $count:ident = $name:literal,)*) => {
        /// A count of the whole machine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LabCount {
            $($(#[$about])* $count,)*
        }

        impl LabCount {
            /// All counts, in the order of the file.
            pub const ALL: &[Self] = &[$(Self::$count,)*];

            /// Name of the count in files.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$count => $name,)*
                }
            }
        }
    };
}

counts! {
    /// Guest time from the begin mark to the end mark.
    GuestNs = "guest_ns",
    /// Guest time at the begin mark.
    BeganNs = "began_ns",
    /// The host's time between the same marks.
    HostNs = "host_ns",
    /// Instructions executed by all CPUs; blocks that a fault cut short count as a whole.
    Instructions = "instructions",
    /// Instructions of the kernel, which [`Self::Instructions`] includes.
    KernelInstructions = "kernel_instructions",
    /// Loads.
    Loads = "loads",
    /// Stores.
    Stores = "stores",
    /// References that a second-level cache served.
    L2Hits = "l2_hits",
    /// References that a last-level cache served.
    L3Hits = "l3_hits",
    /// Misses that another CPU's cache served.
    OtherCacheServed = "other_cache_served",
    /// Stores to a line that other caches had, too.
    Upgrades = "upgrades",
    /// Misses of the kernel, which the count of all misses includes.
    KernelMisses = "kernel_misses",
    /// Misses of page walks, which the count of all misses includes.
    WalkMisses = "walk_misses",
    /// Lines written back to memory.
    WriteBacks = "write_backs",
    /// Misses of all TLBs.
    TlbMisses = "tlb_misses",
    /// Time that hits of the second and the third level took.
    CacheHitTimeFs = "hit_fs",
    /// Time that misses of all TLBs took, without the waits of page walks.
    TlbMissTimeFs = "tlb_fs",
    /// Time that page walks waited.
    PageWalkWaitFs = "walk_fs",
    /// References to devices, which take no time of their own.
    DeviceReferences = "device_references",
}

impl LabCount {
    /// Number of counts.
    pub const COUNT: usize = Self::ALL.len();
}

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabLine {
    /// A count of the whole machine.
    Count(LabCount, u64),
    /// Misses from the CPUs of one node to the memory of a node.
    Misses {
        /// Node of the CPUs.
        cpu: usize,
        /// Node of the memory.
        memory: usize,
        /// Number of misses.
        misses: u64,
        /// Time that CPUs waited for the misses.
        stall_fs: u64,
        /// Part of the stall that CPUs waited behind other requests.
        queue_fs: u64,
    },
    /// A memory controller.
    Controller {
        /// Node of the controller.
        node: usize,
        /// Number of requests.
        requests: u64,
        /// Time that the controller was busy.
        busy_fs: u64,
    },
    /// A link in one direction.
    Link {
        /// Number of the link in the setup.
        link: usize,
        /// Number of requests.
        requests: u64,
        /// Time that the link was busy.
        busy_fs: u64,
    },
    /// A block of the kernel. An address may have several lines.
    Kernel {
        /// Address of the block's first instruction.
        address: u64,
        /// Time of the block's instructions and their stalls, on all CPUs.
        time_fs: u64,
    },
}

impl LabLine {
    /// Parses a line after the first; `None` if the line is invalid.
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        let parsed = match name {
            "misses" => Self::Misses {
                cpu: number()? as usize,
                memory: number()? as usize,
                misses: number()?,
                stall_fs: number()?,
                queue_fs: number()?,
            },
            "controller" => Self::Controller {
                node: number()? as usize,
                requests: number()?,
                busy_fs: number()?,
            },
            "link" => Self::Link {
                link: number()? as usize,
                requests: number()?,
                busy_fs: number()?,
            },
            "kernel" => Self::Kernel {
                address: number()?,
                time_fs: number()?,
            },
            _ => {
                let mut all = LabCount::ALL.iter();
                let count = all.find(|count| count.name() == name)?;
                Self::Count(*count, number()?)
            }
        };
        words.next().is_none().then_some(parsed)
    }
}

impl fmt::Display for LabLine {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count, value) => write!(out, "{} {value}", count.name()),
            Self::Misses {
                cpu,
                memory,
                misses,
                stall_fs,
                queue_fs,
            } => write!(out, "misses {cpu} {memory} {misses} {stall_fs} {queue_fs}"),
            Self::Controller {
                node,
                requests,
                busy_fs,
            } => write!(out, "controller {node} {requests} {busy_fs}"),
            Self::Link {
                link,
                requests,
                busy_fs,
            } => write!(out, "link {link} {requests} {busy_fs}"),
            Self::Kernel { address, time_fs } => write!(out, "kernel {address} {time_fs}"),
        }
    }
}
