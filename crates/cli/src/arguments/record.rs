//! Options of `record`.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nearpage_runner::RankSelection;
use nearpage_sampler::Target;

use super::values::{address_range, overhead, rate, seconds};
use super::{Threads, Tracing, target};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Source {
    /// The best that this machine and these permissions allow
    Auto,
    /// The processor's own samples: Intel load latency and stores, AMD IBS, Arm SPE (not yet tried
    /// on such hardware)
    Pmu,
    /// The kernel's software clock, with backward decoding: needs no PMU
    Clock,
    /// Timer signals inside the program, where the kernel allows nothing else (containers): needs
    /// the preload library, and at most as many samples as the kernel has ticks
    Signal,
    /// `nearpage trace`, by its name of version 0.1
    #[value(hide = true)]
    Full,
}

/// What `record` samples with a PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SampledEvent {
    /// Loads that take a while, and stores
    Access,
    /// Accesses for which no TLB had the page (needs a PMU)
    DtlbMiss,
}

#[derive(Debug, Args)]
#[command(
    after_help = "With -p, --cgroup or --all, what is running already is observed, and goes on \
    undisturbed when recording ends: at Ctrl-C, after --for, or when it has ended. Without the preload \
    library its heap objects are what /proc/PID/maps shows; static objects are known as always."
)]
pub struct Record {
    /// Folder to write [default: PROGRAM.nearpage, numbered where that exists; under a launcher such as srun or mpirun
    /// PROGRAM.JOB.nearpage with a folder for each rank]. %h: host, %p: process, %j: job, %r: rank, %l: local rank, %s: size, %n: node
    /// index, %q{VAR}: an environment variable, %%: a percent sign
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace an earlier recording in that folder
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Where accesses come from
    #[arg(long, value_enum, default_value = "auto")]
    pub source: Source,
    /// Samples per second of a thread's time, throughout [default: 4000 or more at first, falling to 97 to 997, so that
    /// sampling takes at most 0.5 % of the program's processor time, or 80 ms if that is more]
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// Share of the program's time that sampling may take, in percent, however short the run is. The rate follows
    /// from the measured cost of a sample [default: 1 with the PMU, and for running targets with too many threads for
    /// events of their own; otherwise see --rate]
    #[arg(long, value_name = "PERCENT", value_parser = overhead)]
    pub max_overhead: Option<f64>,
    /// With the PMU: leave out loads quicker than this, in cycles [default: 30]
    #[arg(long, value_name = "CYCLES", value_parser = clap::value_parser!(u32).range(..=0xffff))]
    pub min_latency: Option<u32>,
    /// With the PMU: events between two samples, instead of a rate
    #[arg(long, value_name = "N", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(1..=0xffff_ffff))]
    pub period: Option<u64>,
    /// Which accesses to sample
    #[arg(long, value_enum, default_value = "access")]
    pub event: SampledEvent,
    /// Keep only accesses to these addresses (hexadecimal, the last one excluded)
    #[arg(long, value_name = "START-END", value_parser = address_range)]
    pub range: Vec<Range<u64>>,
    /// Keep only accesses to this static object or mapping: a symbol, `[heap]`, a file's path or name,
    /// the name of named memory
    #[arg(long, value_name = "NAME")]
    pub object: Vec<OsString>,
    /// Pin threads while recording
    #[arg(long, value_enum, default_value = "none")]
    pub threads: Threads,
    /// Begin to sample this long after the start, such as 2s
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub after: Option<f64>,
    /// Sample for this long, such as 10s; the program runs on
    #[arg(long = "for", visible_alias = "duration", value_name = "S", value_parser = seconds)]
    pub duration: Option<f64>,
    /// Observe these running processes, and what they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["command", "cgroup", "all", "threads", "all_allocations"], help_heading = "Instead of a command")]
    pub pid: Vec<u32>,
    /// Observe the processes of this control group (its folder, or its path in the hierarchy)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["command", "all", "threads", "all_allocations"], help_heading = "Instead of a command")]
    pub cgroup: Option<PathBuf>,
    /// Observe every process of the machine
    #[arg(long, conflicts_with_all = ["command", "threads", "all_allocations"], help_heading = "Instead of a command")]
    pub all: bool,
    /// Under a launcher: record these ranks, such as 0,8-15,every:16; the others run as if without nearpage
    #[arg(long, value_name = "LIST", conflicts_with_all = ["pid", "cgroup", "all"])]
    pub ranks: Option<RankSelection>,
    /// Log every allocation, not samples of the small ones
    #[arg(long)]
    pub all_allocations: bool,
    /// Leave out paths and arguments
    #[arg(long)]
    pub redact: bool,
    /// Options of `--source full`, which is `nearpage trace`.
    #[command(flatten)]
    pub tracing: Tracing,
    /// Print what was done as JSON; the command's standard output goes to standard error
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// The command and its arguments
    #[arg(required_unless_present_any = ["pid", "cgroup", "all"], trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Record {
    pub fn target(&self) -> Target {
        target(self.all, self.cgroup.as_ref(), &self.pid, &self.command)
    }
}
