//! Options of `simulate` and `sweep`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

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

/// With a guest that was traced with its kernel: the misses that count.
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
    #[arg(required_unless_present = "sweep", value_name = "DIR")]
    pub recordings: Vec<PathBuf>,
    /// Replay the combinations that a TOML file lists (see docs/guide/sweeps.md). Results are kept in FILE.cells, and
    /// those that are there are not computed again
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "recordings", "machine", "policy", "set", "schedule", "only", "initial", "json", "movements", "html",
    ])]
    pub sweep: Option<PathBuf>,
    /// Of the sweep, compute the K-th of N parts, from 1
    #[arg(long, value_name = "K/N", requires = "sweep")]
    pub shard: Option<Shard>,
    /// Of the sweep, compute so many results at once [default: as many as there are CPUs]
    #[arg(long, value_name = "N", requires = "sweep", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Machine: a preset or a TOML file, with the caches that the trace was made for [default: the trace's machine]
    #[arg(long)]
    pub machine: Option<String>,
    /// Policies, with commas: first-touch, round-robin, interleave, block-naive, post-facto, migrate,
    /// replicate, migrate-replicate, replicate-on-first-touch, out-u, out-w, in-w, out-u-local,
    /// out-w-local, carrefour, kernel-balancing, auto (nearpage's own, deciding as the program runs);
    /// plan:FILE (a plan of `nearpage plan`; no commas in the name), plan:auto, plan:object and so on (decided from
    /// this recording) [default: round-robin, first-touch, post-facto, migrate, replicate, migrate-replicate, those
    /// of them that make sense on the machine]
    #[arg(long, value_name = "P,…", value_delimiter = ',')]
    pub policy: Vec<String>,
    #[command(flatten)]
    pub deciding: Deciding,
    /// Set a parameter of the policies that have it (listed below), or source (cache, sampled-cache, tlb, sampled-tlb,
    /// loads, clock; for carrefour also policy, the samples that it requests). Parameters of all policies: flush (all,
    /// mapping), copy (cpu, hardware), pages (all, shared)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Which thread runs where and when: a TOML file (see docs/reference/schedule-file.md). Threads that move are
    /// charged a refill of their caches: the result is an estimate
    #[arg(long, value_name = "FILE", help_heading = RESEARCH)]
    pub schedule: Option<PathBuf>,
    /// For a guest that was traced with its kernel (qemu-system): count only misses of the kernel, or only those of
    /// programs. Instructions of the other take time, but never miss
    #[arg(long, value_enum, help_heading = RESEARCH)]
    pub only: Option<CountedMode>,
    /// Where pages start, for policies that move them [default: first-touch]
    #[arg(long, value_enum, help_heading = RESEARCH)]
    pub initial: Option<InitialPlacement>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// Page movements to keep for each policy, at most, in the JSON and on the page
    #[arg(long, value_name = "N", default_value_t = 10_000, help_heading = RESEARCH)]
    pub movements: usize,
    /// Write the results to this file too: the page of `view` in one file, with bars, a timeline and movements of pages
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// A part of a sweep: `2/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Number of the part, from 1.
    pub number: u32,
    /// Number of parts.
    pub of: u32,
}

impl Shard {
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Does the part have the cell at this position? Neighbouring cells take similar time, so they go to different
    /// parts.
    pub fn has(self, position: usize) -> bool {
        position % self.of as usize == self.number as usize - 1
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(number, of)| {
            let (number, of) = (number.parse().ok()?, of.parse().ok()?);
            (1..=of).contains(&number).then_some(Self { number, of })
        });
        parsed.ok_or_else(|| "expected K/N, a part from 1 to N, such as 2/4".to_owned())
    }
}

#[derive(Debug, Args)]
pub struct Sweep {
    /// What to do
    #[command(subcommand)]
    pub what: SweepCommand,
}

/// What `nearpage sweep` does.
#[derive(Debug, Subcommand)]
pub enum SweepCommand {
    Run(SweepRun),
    Status(SweepStatus),
    Report(SweepReport),
}

/// Who computes a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// This process
    Local,
    /// An array job of Slurm, a task for each shard
    Slurm,
}

/// Compute the missing results of a sweep, and wait for them
///
/// With --engine slurm an array job is submitted. The folder of FILE, the traces and nearpage itself have to be where the
/// cluster's nodes find them under the same paths. Ctrl-C ends the waiting, not the job.
#[derive(Debug, Args)]
pub struct SweepRun {
    /// TOML with recordings, machines, policies and parameters (see docs/guide/sweeps.md)
    pub file: PathBuf,
    /// Who computes it
    #[arg(long, value_enum, default_value = "local")]
    pub engine: Engine,
    /// With --engine slurm: tasks of the array job
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub shards: u32,
    /// Results computed at once in this process [default: as many as there are CPUs]; in a task of Slurm its
    /// `--cpus-per-task`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub jobs: Option<u16>,
    /// Options for `sbatch`, such as `--partition=short --cpus-per-task=4`
    #[arg(last = true, value_name = "OPTION")]
    pub options: Vec<std::ffi::OsString>,
}

/// Say how much of a sweep has been computed
#[derive(Debug, Args)]
pub struct SweepStatus {
    /// The sweep
    pub file: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// Print what has been computed of a sweep
#[derive(Debug, Args)]
pub struct SweepReport {
    /// The sweep
    pub file: PathBuf,
    /// Print it as JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print it as CSV, a row for each result
    #[arg(long)]
    pub csv: bool,
    /// Write it as a Parquet table, with the columns of --csv
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Write it as a page in one file: a table that sorts, and a chart
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write each result as a file of its own into a new folder, for Hatchet and Thicket: both read Caliper's JSON
    #[arg(long, value_name = "DIR")]
    pub caliper: Option<PathBuf>,
}
