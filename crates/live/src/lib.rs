//! The daemon: looks at running programs, decides with the simulator's online policies, and moves
//! pages with `move_pages(2)`.
//!
//! ```text
//! Sampler ─► Observer ─► Interval ─► Decider (a policy) ─► requested moves ─► Guard ─► Mover ─► kernel
//!                           └─────────────── log ───────────────┘
//! ```
//!
//! - [`Interval`] has all that a decision depends on, in whole numbers. It goes to the log, and [`replay`]
//!   decides it again, bit for bit.
//! - A table of a fixed size keeps the hot pages; accesses between two decisions have a buffer of a
//!   fixed size. About 80 bytes a page and 8 MiB; what a policy counts comes on top of it
//!   (`migrate`: 16 bytes a page on up to four nodes).
//! - Each process has a guard: measure, move a part, measure again, go on or move back.
//! - A huge page is one page. `smaps` says how much of a mapping is in huge pages, not which of its pages
//!   are: a mapping that mostly has them is taken to have nothing else.
//! - What a process allows is known before: its cpuset's nodes, and mappings with a memory policy, whose
//!   pages stay where that says. Threads are pinned only when asked, and let go in the end (not by a
//!   daemon that is killed: that is the one thing it leaves behind).
//! - Calls that move pages are as large as fits into the stall that is allowed, by what pages have
//!   cost lately.
//!
//! What stock kernels cannot do: replicas of one address in one process. A policy that wants one gets
//! its page interleaved instead, and that is counted. Nothing else is left behind in a target: no policy
//! is set on its memory, no signal sent, no code run in it. A daemon that is killed leaves pages where
//! they are.
//!
//! What a page's process number cannot tell is caught late: a process that ends between the check of
//! its start time and the call, and whose number is given to another process within these
//! microseconds, would have pages of that one moved.

mod address_space;
pub mod balancing;
mod batches;
mod claim;
mod daemon;
mod decide;
mod error;
mod free_memory;
mod guard;
mod homes;
mod interleaved;
mod kernel;
mod log;
mod memory;
mod metrics;
mod mover;
mod observer;
mod origin;
mod pages;
mod pins;
mod policies;
mod process;
mod requested_moves;
mod serve;
mod tally;
mod text;
mod watch;

pub use address_space::{AddressSpace, Mapping, RespectedPolicies};
pub use batches::Limits;
pub use claim::Claim;
pub use daemon::{Daemon, Estimate, ProcessTime, Report, Settings};
pub use decide::{Interval, ObservedAccess, PageRenumbering};
pub use error::Error;
pub use free_memory::FreeMemory;
pub use guard::{GuardThresholds, Stage};
pub use kernel::{Kernel, Linux};
pub use log::{
    Entry, Head, LoggedAction, LoggedProcess, LoggedThreadMove, ReplaySummary, append, replay,
};
pub use memory::{MemoryWatch, memory_by_node};
pub use metrics::Metrics;
pub use mover::{Identity, Outcomes};
pub use observer::Observer;
pub use policies::LivePolicy;
pub use serve::MetricsServer;
pub use text::{not_moved, stage, text, treated};
pub use watch::{RATE_MIN_HZ, watch};

/// Pages that counters can be kept of, at most.
pub const PAGES_MOST: usize = 1 << 24;
