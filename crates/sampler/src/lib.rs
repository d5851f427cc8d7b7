//! From `perf_event_open` to accesses: starts a command, samples all its threads, and says which
//! memory each sample was waiting for.
//!
//! Samples come from the processor's PMU, which tells address, level and latency itself, or from
//! the kernel's software clock; [`choose_source`] takes the best that works. Events are inherited by
//! every thread and child process, with one ring per CPU. Where the kernel allows neither, the
//! preload library samples inside the command, by timer signals, and the samples are read from its
//! rings as if they were the clock's.
//!
//! A clock sample carries the general registers; the instruction that the clock interrupted, or the
//! one just before it (which side is [measured](calibrate())), is decoded once per place and its
//! address computed from them. What a sample costs is measured too, and the default rate follows
//! from it. A place without a memory instruction is computation, and one whose address cannot be
//! told is counted as undecoded: nothing is forced onto some other access.
//!
//! The crate writes no files, knows no objects and decides nothing: accesses and events go to a
//! [`Sink`].
//!
//! ```no_run
//! use nearpage_recording::{AccessBatch, Event};
//! use nearpage_sampler::{Options, Sampler, Sink};
//!
//! struct Count(usize);
//! impl Sink for Count {
//!     fn accesses(&mut self, batch: &AccessBatch) -> std::io::Result<()> {
//!         self.0 += batch.len();
//!         Ok(())
//!     }
//!     fn events(&mut self, _: &[Event]) -> std::io::Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let mut count = Count(0);
//! let sampler = Sampler::start(&Options::new(vec!["ls".into()]))?;
//! let summary = sampler.run(&mut count)?;
//! println!("{} accesses in {} threads", count.0, summary.threads.len());
//! # Ok::<(), nearpage_sampler::Error>(())
//! ```

#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod architecture;
#[cfg(not(target_arch = "x86_64"))]
#[path = "undecoded.rs"]
mod architecture;

mod address_space;
mod calibrate;
mod cpus;
mod error;
mod follower;
#[doc(hidden)]
pub mod fuzz;
mod governor;
mod image;
mod interrupts;
mod launch;
mod merge;
mod overhead;
mod page_nodes;
mod perf_event;
mod pmu;
mod probe;
mod record;
mod ring;
mod sampler;
mod signal;
mod source;
mod threads;
mod verdict;

pub use calibrate::{
    Calibration, DEFAULT_COST_SHARE, Side, UNMEASURED_RATE_HZ, calibrate, calibrate_signal,
};
pub use error::{Error, Refusal, paranoid_level};
pub use follower::{RecordCounts, Sink, UndecodedCounts, UndecodedPlace};
pub use governor::DEFAULT_MAX_OVERHEAD;
pub use overhead::RateChange;
pub use pmu::{DEFAULT_MIN_LATENCY_CYCLES, PmuOptions};
pub use probe::{Finding, probe};
pub use sampler::{
    DEFAULT_FAULT_PERIOD, MAX_RATE_HZ, Options, Sampler, State, Summary, choose_source,
};
pub use signal::SignalLosses;
pub use source::{Choice, SourceWish};
pub use threads::SampledThread;
