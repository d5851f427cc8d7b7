//! From `perf_event_open` to accesses: starts a command or attaches to what is running (a
//! [`Target`]), samples all its threads, and says which memory each sample was waiting for.
//!
//! Samples come from the processor's PMU, which tells address, level and latency itself, or from the kernel's software
//! clock; [`choose_source`] takes the best that works. Every thread and child process inherits the events, and each CPU has
//! one ring. Where the kernel allows neither source, the preload library samples inside the command by timer signals,
//! and its rings are read as if they were the clock's. In programs that are running already, each thread gets events of
//! its own, or whole CPUs and control groups are observed ([`Sampler::coverage`]). `/proc` has what existed before.
//!
//! A clock sample carries the general registers. The memory access is that of the interrupted instruction or of the one
//! just before it; [`calibrate()`] measures which. Each instruction is decoded once, and its address computed from the
//! registers of each sample. The default rate follows from the measured cost of a sample. A sample at an instruction without
//! memory access is *computation*. A sample whose address cannot be computed is counted as undecoded, and never
//! attributed to another access.
//!
//! The crate writes no files, knows no objects and decides nothing: accesses and events go to a [`Sink`].
//!
//! ```no_run
//! use nearpage_recording::{Access, Event};
//! use nearpage_sampler::{Options, Sampler, Sink};
//!
//! struct Count(usize);
//! impl Sink for Count {
//!     fn accesses(&mut self, accesses: &[Access]) -> std::io::Result<()> {
//!         self.0 += accesses.len();
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
//!
//! # While it runs
//!
//! To act on accesses while the program runs, call [`Sampler::drain`] instead of [`Sampler::run`]. It waits for records up to
//! a given time, hands accesses over, and returns the state of the target. An access names its thread by index;
//! [`Sampler::threads`] has process and thread id of each, and so has
//! [`Event::Fork`](nearpage_recording::Event::Fork), which comes before the thread's first access. With
//! [`Options::page_nodes`], accesses carry the node of their page. Accesses come in order of time, up to two calls late,
//! as the records of all CPUs are merged first.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use nearpage_recording::{Access, Event};
//! use nearpage_sampler::{Options, Sampler, Sink, State, Target};
//!
//! #[derive(Default)]
//! struct Kept(Vec<Access>);
//! impl Sink for Kept {
//!     fn accesses(&mut self, accesses: &[Access]) -> std::io::Result<()> {
//!         self.0.extend(accesses);
//!         Ok(())
//!     }
//!     fn events(&mut self, _: &[Event]) -> std::io::Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let mut options = Options::new(Target::Processes(vec![1234]));
//! options.page_nodes = true;
//! let mut sampler = Sampler::start(&options)?;
//! let mut kept = Kept::default();
//! let state = loop {
//!     let state = sampler.drain(Duration::from_millis(100), &mut kept)?;
//!     for access in &kept.0 {
//!         let thread = &sampler.threads()[access.thread.0 as usize];
//!         println!("{} {} {:#x} {:?}", thread.pid, thread.tid, access.address, access.page_node);
//!     }
//!     kept.0.clear();
//!     if state != State::Running {
//!         break state;
//!     }
//! };
//! sampler.finish(state, &mut kept)?;
//! # Ok::<(), nearpage_sampler::Error>(())
//! ```

#[cfg(target_arch = "aarch64")]
use aarch64 as architecture;
#[cfg(target_arch = "x86_64")]
use x86_64 as architecture;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
#[path = "undecoded.rs"]
mod architecture;

mod aarch64;
mod address_space;
mod attached;
#[doc(hidden)]
pub mod bench;
mod budget;
mod budgeted_rate;
mod bundle;
mod calibrate;
mod cgroup;
mod coverage;
mod cpu_ring;
mod discovery;
mod error;
mod filter;
mod flow;
mod follower;
mod found;
#[doc(hidden)]
pub mod fuzz;
mod governor;
mod image;
mod instruction;
mod interrupts;
mod judge;
mod launch;
mod levels;
mod lookaside;
mod mappings;
mod marks;
mod merge;
mod opening;
mod overhead;
mod page_nodes;
mod perf_event;
mod pmu;
mod probe;
mod processes;
mod random;
mod record;
mod ring;
mod sample_cost;
mod sampler;
mod signal;
mod source;
mod target;
mod thread_pointer;
mod threads;
mod verdict;
mod x86_64;

pub use bundle::{DecodedSource, PerfBundle, ReplayedBundle, capture, replay};
pub use calibrate::{
    Calibration, DEFAULT_COST_SHARE, SkidSide, UNMEASURED_RATE_HZ, calibrate, calibrate_for,
    clock_opens,
};
pub use error::{Error, NoPreload, Refusal, UnknownSkidSide, paranoid_level};
pub use filter::AccessSelection;
pub use follower::{RecordCounts, Sink, UndecodedCounts, UndecodedPlace};
pub use governor::DEFAULT_MAX_OVERHEAD;
pub use launch::shell_status;
pub use overhead::RateChange;
pub use page_nodes::{move_pages, page_nodes};
pub use pmu::{DEFAULT_MIN_LATENCY_CYCLES, Frequencies, PmuEvent, PmuOptions};
pub use probe::{Finding, probe};
pub use processes::process_started;
pub use sampler::{
    DEFAULT_FAULT_PERIOD, MAX_RATE_HZ, Options, Sampler, State, Summary, choose_source,
};
pub use signal::SignalLosses;
pub use source::{RequestedSource, SourceChoice};
pub use target::Target;
pub use threads::SampledThread;
