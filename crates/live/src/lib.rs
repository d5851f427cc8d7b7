//! The daemon observes running programs, decides with the simulator's online policies, and calls `move_pages(2)`.
//!
//! ```text
//! Sampler ─► Observer ─► Interval ─► Decider (a policy) ─► requested moves ─► Guard ─► Mover ─► kernel
//!                           └─────────────── log ───────────────┘
//! ```
//!
//! - [`Interval`] has all that a decision depends on, in whole numbers. It goes to the log, from which [`replay`] makes the
//!   same decision again, bit for bit.
//! - Memory is bounded: a table of hot pages and a buffer for the accesses between two decisions, both of fixed size.
//!   They take about 80 bytes a page and 8 MiB. The policy's counters come on top (`migrate`: 16 bytes a page on up to
//!   four nodes).
//! - Each process has a guard, which measures, moves a part, measures again, and then continues or moves back.
//! - A huge page is one page. `smaps` says how much of a mapping is in huge pages, but not which of its pages are. A mapping
//!   that is mostly in huge pages is assumed to have nothing else.
//! - The daemon respects a process's limits: the nodes of its cpuset, and the memory policies of its mappings, whose pages
//!   stay where the policy says.
//! - Threads are pinned only on request, and released at the end. A daemon that is killed leaves them pinned.
//! - A call moves as many pages as fit into the allowed stall, by what recent moves have cost.
//!
//! Stock kernels cannot replicate one address within one process. Where a policy wants a replica, the page is interleaved
//! instead, and that is counted. The daemon leaves nothing else behind in a process: it sets no memory policy, sends no
//! signal and runs no code there. Pages stay where they are when the daemon ends.
//!
//! One race remains. Between the check of a process's start time and the call that moves pages, the process may end and
//! its number be given to another, whose pages are then moved. That window is a few microseconds.

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

/// Maximum number of pages with counters.
pub const PAGES_MOST: usize = 1 << 24;
