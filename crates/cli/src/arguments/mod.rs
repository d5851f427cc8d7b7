//! What can be typed. Man pages and shell completions are generated from these definitions.

mod deciding;
mod lab;
mod live;
mod placing;
mod record;
mod recordings;
mod simulate;
mod system;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use nearpage_machine::ThreadPlacement;
use nearpage_plan::Layout;
use nearpage_recording::ThreadPinning;
use nearpage_sampler::Target;

pub use self::deciding::Deciding;
pub use self::lab::Lab;
pub use self::live::Live;
pub use self::placing::*;
pub use self::record::*;
pub use self::recordings::*;
pub use self::simulate::*;
pub use self::system::*;

/// Put the pages of a program near the threads that use them.
///
/// On a machine with several memory nodes, a program whose pages sit on the wrong node runs up to
/// three times slower. nearpage records which data objects and pages each thread of an unmodified
/// program uses, plans where every page should live, and runs the program again with its pages
/// there.
#[derive(Debug, Parser)]
#[command(
    name = "nearpage",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(
    after_help = "Exit status: 0 success, 1 failure, 2 wrong usage; `record`, `run` and `lab` pass \
    on the command's own.\n\nStart with `nearpage doctor`, then \
    `nearpage record -- COMMAND` and `nearpage report DIR`."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command and record its memory accesses and allocations
    Record(Record),
    /// Print which objects, threads and pages the time went to
    Report(Report),
    /// Look at recordings, plans and simulations in a browser
    View(View),
    /// Decide where each object's pages should live
    Plan(Plan),
    /// Run a command with its pages placed
    Run(Run),
    /// Record, plan, run placed, and compare, in one go
    Optimize(Optimize),
    /// Make a recording of another tool's file: perf.data, the text of `perf script`, samples in CSV
    Import(Import),
    /// Write a recording for other tools: Parquet tables, or a profile for a viewer
    Export(Export),
    /// Derive a lossy, sampled recording from a full one
    Thin(Thin),
    /// Measure recordings' page hints and plans against a reference's
    Compare(Compare),
    /// Replay a full recording's misses on a machine, under placement policies
    Simulate(Simulate),
    /// Look after running programs: sample, decide, move pages
    Live(Live),
    /// Run a command on a modelled machine, in modelled time
    Lab(Lab),
    /// Show a machine: nodes, CPUs, latencies, caches
    Machine(Machine),
    /// List what this machine allows, and for each thing missing, cause and remedy
    Doctor(Doctor),
    /// Write man pages, JSON Schemas or shell completions
    #[command(hide = true)]
    Generate(Generate),
}

/// How threads are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Threads {
    /// Fill one node after the other, in order of creation
    Compact,
    /// Go round the nodes, in order of creation
    Scatter,
    /// Leave threads to the scheduler
    None,
}

impl Threads {
    /// As it is typed.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Scatter => "scatter",
            Self::None => "none",
        }
    }

    /// As a recording says it.
    pub fn pinning(self) -> ThreadPinning {
        match self {
            Self::Compact => ThreadPinning::Compact,
            Self::Scatter => ThreadPinning::Scatter,
            Self::None => ThreadPinning::None,
        }
    }

    /// As the machine crate lays threads out.
    pub fn placement(self) -> ThreadPlacement {
        match self {
            Self::Compact => ThreadPlacement::Compact,
            Self::Scatter => ThreadPlacement::Scatter,
            Self::None => ThreadPlacement::None,
        }
    }
}

impl From<Layout> for Threads {
    fn from(layout: Layout) -> Self {
        match layout {
            Layout::Compact => Self::Compact,
            Layout::Scatter => Self::Scatter,
        }
    }
}

/// Whom to observe; at most one of these was given.
fn target(all: bool, cgroup: Option<&PathBuf>, pids: &[u32], command: &[OsString]) -> Target {
    match cgroup {
        _ if all => Target::All,
        Some(path) => Target::Cgroup(path.clone()),
        None if pids.is_empty() => Target::Command(command.to_vec()),
        None => Target::Processes(pids.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        super::Arguments::command().debug_assert();
    }
}
