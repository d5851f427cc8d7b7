//! The daemon.

mod batches;
mod care;
mod claim;
mod daemon;
mod decide;
mod error;
mod free_memory;
mod kernel;
mod log;
mod metrics;
mod mover;
mod observer;
mod pages;
mod policies;
mod text;

pub use error::Error;

/// Pages that counters can be kept of, at most.
pub const PAGES_MOST: usize = 1 << 24;
