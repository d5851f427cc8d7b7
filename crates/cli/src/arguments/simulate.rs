//! What `simulate` can be told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::RESEARCH;
use super::deciding::Deciding;

/// Where pages start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InitialPlacement {
    /// On the node of the CPU that touches them first
    FirstTouch,
    /// By page number, node after node
    RoundRobin,
    /// In the order in which they are touched, node after node
    Interleave,
}

impl From<InitialPlacement> for nearpage_online::Initial {
    fn from(rule: InitialPlacement) -> Self {
        match rule {
            InitialPlacement::FirstTouch => Self::FirstTouch,
            InitialPlacement::RoundRobin => Self::RoundRobin,
            InitialPlacement::Interleave => Self::Interleave,
        }
    }
}

/// Whose misses count, of a guest that was recorded with its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CountedMode {
    /// The kernel's
    Kernel,
    /// The programs'
    User,
}

impl From<CountedMode> for nearpage_recording::trace::Mode {
    fn from(only: CountedMode) -> Self {
        match only {
            CountedMode::Kernel => Self::Kernel,
            CountedMode::User => Self::User,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_long_help = crate::simulate::parameters())]
pub struct Simulate {
    /// Traces, as `nearpage trace` makes them; several are programs that run at once
    #[arg(required = true, value_name = "DIR")]
    pub recordings: Vec<PathBuf>,
    /// Machine: a preset or a TOML file, with the caches that it was recorded for [default: that one]
    #[arg(long)]
    pub machine: Option<String>,
    /// Policies, with commas: first-touch, round-robin, interleave, block-naive, post-facto, migrate,
    /// replicate, migrate-replicate, replicate-on-first-touch, out-u, out-w, in-w, out-u-local,
    /// out-w-local, carrefour, kernel-balancing, auto (nearpage's own, deciding as the program runs);
    /// plan:FILE is what `nearpage plan` decided (a file name without commas), plan:auto, plan:object
    /// and so on what it decides of this very recording [default: round-robin,
    /// first-touch, post-facto, migrate, replicate, migrate-replicate, as far as they make sense on
    /// the machine]
    #[arg(long, value_name = "P,…", value_delimiter = ',')]
    pub policy: Vec<String>,
    #[command(flatten)]
    pub deciding: Deciding,
    /// Set a parameter of the policies that have it (listed below); source (cache, sampled-cache, tlb,
    /// sampled-tlb, loads, clock; of carrefour: asked, for the samples that it asks for); or of all:
    /// flush (all, mapping), copy (cpu, hardware), pages (all, shared)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Which thread runs where and when: a TOML file (see docs/reference/schedule-file.md). Threads that move are
    /// charged a refill of their caches: the result is an estimate
    #[arg(long, value_name = "FILE", help_heading = RESEARCH)]
    pub schedule: Option<PathBuf>,
    /// Of a guest that was recorded with its kernel (qemu-system): misses of the kernel or of programs
    /// alone; the other's instructions take their time, and miss nothing
    #[arg(long, value_enum, help_heading = RESEARCH)]
    pub only: Option<CountedMode>,
    /// Where pages start, for policies that move them [default: first-touch]
    #[arg(long, value_enum, help_heading = RESEARCH)]
    pub initial: Option<InitialPlacement>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// In the JSON and the page: movements of pages that are kept for each policy, at most
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = RESEARCH)]
    pub movements: usize,
    /// Write the results to this file too: the page of `view` in one file, with bars, a timeline and movements of pages
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}
