//! Runs a command, or attaches to running processes, for one of five purposes: to record samples of it ([`observe()`]),
//! to trace every miss of it under QEMU ([`trace()`]), to put its pages where a plan wants them ([`run()`]), to migrate
//! its pages while it runs ([`OnlineMigration`]), or to run it on a modelled machine, in modelled time ([`lab()`]).
//!
//! The crate finds the libraries to load into the command, composes the command's environment, waits for the command,
//! and reports the result. It parses no arguments and prints nothing: each purpose has a struct of options, and
//! messages go to a function of the caller. The planner decides where pages live, and the plan crate recognises
//! objects.
//!
//! ```no_run
//! use nearpage_runner::{ObserveOptions, default_output, observe};
//! use nearpage_sampler::Target;
//!
//! let target = Target::Command(vec!["cg".into(), "1000".into()]);
//! let options = ObserveOptions::new(default_output(&target), target);
//! let observed = observe(&options, &|line| eprintln!("{line}"))?;
//! println!("{} samples, status {}", observed.counts.samples, observed.exit_status());
//! # Ok::<(), nearpage_runner::Error>(())
//! ```

mod command;
mod environment;
mod error;
#[doc(hidden)]
pub mod fuzz {
    //! For `fuzz/`.

    pub use crate::measured_costs::fuzz as measured_costs;
}
mod lab;
mod launcher;
mod libraries;
mod measured_costs;
mod messages;
mod observe;
mod online_migration;
mod output;
mod placing;
mod replicas;
mod run;
pub mod signals;
mod trace;

pub use command::{end_as, replace_by};
pub use environment::{Environment, SmallAllocations};
pub use error::Error;
pub use lab::{
    LabCounts, LabError, LabFunction, LabKernel, LabKernelGroup, LabNode, LabOptions, LabPages,
    LabPair, LabParts, LabPrinter, LabRun, LabServer, LabStream, ModelledFrom, lab,
};
pub use launcher::{OutputError, RankSelection, RankSelectionError, expand_output, launched};
pub use libraries::{PRELOAD_MISSING, PreloadLibrary, TracerPlugin};
pub use observe::{ComparedRun, ObserveOptions, Observed, observe};
pub use online_migration::{OnlineMigration, OnlineMigrationOptions, OnlineMigrationResult};
pub use output::default_output;
pub use placing::{Placed, PlacedRule, Placing, PlacingOptions, openmp_threads_to_set};
pub use replicas::{ReplicaSource, UsedReplicas};
pub use run::{RunOptions, RunOutcome, run};
pub use trace::{Emulator, PLUGINS_FROM, TraceRequest, Traced, trace};

/// Called at once with each message for the user.
pub type Reporter<'a> = &'a dyn Fn(&str);
