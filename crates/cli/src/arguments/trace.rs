//! Options of `trace`, and of `record --source full`, its name in version 0.1.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use nearpage_recording::trace::TraceOptions;
use nearpage_runner::RankSelection;

use super::{RESEARCH, Threads};

#[derive(Debug, Args)]
#[command(
    after_help = "The command runs in emulation, by the first qemu-x86_64 on PATH that loads plugins, some 20 to 100 \
    times slower than natively. If COMMAND is qemu-system-x86_64, its guest is traced, kernel and all. A trace has \
    every cache miss, so `simulate` can replay it."
)]
pub struct Trace {
    /// Folder to write [default: PROGRAM.nearpage, numbered where that exists]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace an earlier recording in that folder
    #[arg(long, requires = "output")]
    pub force: bool,
    #[command(flatten)]
    pub tracing: Tracing,
    /// Where threads run on the machine
    #[arg(long, value_enum, default_value = "none")]
    pub threads: Threads,
    /// Log every allocation, not samples of the small ones
    #[arg(long)]
    pub all_allocations: bool,
    /// Under a launcher: trace these ranks, such as 0,8-15,every:16; the others run as if without nearpage
    #[arg(long, value_name = "LIST")]
    pub ranks: Option<RankSelection>,
    /// Print what was done as JSON; the command's standard output goes to standard error
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How references go through the caches, and which are kept.
#[derive(Debug, Args)]
pub struct Tracing {
    /// Machine whose caches the references go through: `local`, a preset or a TOML file [default: local]
    #[arg(long)]
    pub machine: Option<String>,
    /// Trace only from `nearpage_begin` on (first touches are kept from the start); of a guest, only
    /// between the marks that docs/reference/recording-format.md describes
    #[arg(long)]
    pub markers: bool,
    /// Keep hits of the second and third cache level, not only misses
    #[arg(long)]
    pub keep_hits: bool,
    /// Threads that move to other CPUs: a TOML file with `[[move]]`, as for `simulate` (docs/reference/schedule-file.md).
    /// Times are those of computation, since misses take no time in a trace
    #[arg(long, value_name = "FILE", help_heading = RESEARCH)]
    pub schedule: Option<PathBuf>,
    /// Keep one of N references at random, whether or not it missed; 0 keeps no such references
    #[arg(long, value_name = "N", help_heading = RESEARCH, default_value_t = TraceOptions::default().sample_every)]
    pub sample_every: u32,
    /// Instructions that each thread runs before the others catch up, up to 16 times as many while they share nothing
    #[arg(long, value_name = "N", help_heading = RESEARCH, default_value_t = TraceOptions::default().quantum_instructions, value_parser = clap::value_parser!(u32).range(100..=1 << 30))]
    pub quantum: u32,
    /// One reference at a time, each written to a log (for tests)
    #[arg(long, hide = true)]
    pub serial: bool,
}

impl Tracing {
    /// The first option without a default value that was given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [
            (self.machine.is_some(), "--machine"),
            (self.schedule.is_some(), "--schedule"),
            (self.keep_hits, "--keep-hits"),
            (self.markers, "--markers"),
            (self.serial, "--serial"),
        ];
        given
            .iter()
            .find(|(given, _)| *given)
            .map(|(_, name)| *name)
    }
}
