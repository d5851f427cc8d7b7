//! Arguments and options of all commands. Man pages and shell completions are generated from these definitions.

mod deciding;
mod lab;
mod live;
mod placing;
mod record;
mod recordings;
mod simulate;
mod system;
mod trace;
mod values;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use nearpage_machine::ThreadPlacement;
use nearpage_plan::ThreadLayout;
use nearpage_recording::ThreadPinning;
use nearpage_sampler::Target;

pub use self::deciding::Deciding;
pub use self::lab::{Lab, LabCommand, Matrix};
pub use self::live::{Live, Top};
pub use self::placing::*;
pub use self::record::*;
pub use self::recordings::*;
pub use self::simulate::*;
pub use self::system::*;
pub use self::trace::*;

/// Heading of options that only experiments need.
const RESEARCH: &str = "Research";

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
    after_help = "Exit status: 0 success, 1 failure, 2 wrong usage. `record`, `trace`, `run`, `live` and \
    `lab` pass on the command's own. Whatever starts a command ends with 127 if there is no such command, and with 126 if it can't be \
    executed. A signal that ends the command ends nearpage, too, except `lab`: 128 and its number.\n\nStart with `nearpage doctor`, then \
    `nearpage record -- COMMAND` and `nearpage report DIR`.\n\nResults have colour on a terminal: NO_COLOR=1 takes it away, CLICOLOR_FORCE=1 gives it \
    to a pipe."
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Definitions of all commands. The options of version 0.1 are hidden.
pub fn definitions() -> clap::Command {
    let tracing = Tracing::augment_args(clap::Command::new("trace"));
    let hidden: Vec<clap::Id> = tracing
        .get_arguments()
        .map(|a| a.get_id().clone())
        .collect();
    // `mut_subcommands` keeps the order of the subcommands; `mut_subcommand` would move the changed command to the end.
    Arguments::command().mut_subcommands(|command| match command.get_name() {
        "record" => hidden.iter().fold(command, |record, id| {
            record.mut_arg(id, |argument| argument.hide(true))
        }),
        _ => command,
    })
}

pub fn parse() -> Result<Arguments, clap::Error> {
    let mut definitions = definitions();
    let matches = definitions.try_get_matches_from_mut(std::env::args_os())?;
    Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut definitions))
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command and record its memory accesses and allocations
    Record(Record),
    /// Run a command in emulation and record every miss of its caches
    Trace(Trace),
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
    /// List predictions beside what was measured of them
    History(History),
    /// Make a recording of another tool's file: perf.data, the text of `perf script`, samples in CSV
    Import(Import),
    /// Write a recording for other tools: Parquet tables, or a profile for a viewer
    Export(Export),
    /// Make one Parquet data set of the recordings of a job's ranks, for query engines
    Merge(Merge),
    /// Derive from a trace what sampling hardware would have recorded
    #[command(alias = "thin")]
    Downsample(Downsample),
    /// Compare runs of a program: time, local share, objects that changed
    Compare(Compare),
    /// Measure recordings' page hints and plans against a reference's
    Evaluate(Evaluate),
    /// Replay a trace's misses on a machine, under placement policies
    Simulate(Simulate),
    /// Replay traces × machines × policies × parameters, here or on a cluster
    Sweep(Sweep),
    /// Move pages while programs run: sample, decide, move, and stop where it does not help
    Live(Live),
    /// Show which running programs lose time to remote memory, and where their memory is
    Top(Top),
    Lab(Lab),
    /// Show a machine: nodes, CPUs, latencies, caches
    Machine(Machine),
    /// List what this machine allows, and for each thing missing, cause and remedy
    Doctor(Doctor),
    /// Write man pages, JSON Schemas or shell completions
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
    /// Name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compact => "compact",
            Self::Scatter => "scatter",
            Self::None => "none",
        }
    }

    /// Value that a recording stores.
    pub fn pinning(self) -> ThreadPinning {
        match self {
            Self::Compact => ThreadPinning::Compact,
            Self::Scatter => ThreadPinning::Scatter,
            Self::None => ThreadPinning::None,
        }
    }

    /// Layout of the machine crate.
    pub fn placement(self) -> ThreadPlacement {
        match self {
            Self::Compact => ThreadPlacement::Compact,
            Self::Scatter => ThreadPlacement::Scatter,
            Self::None => ThreadPlacement::None,
        }
    }
}

impl From<ThreadLayout> for Threads {
    fn from(layout: ThreadLayout) -> Self {
        match layout {
            ThreadLayout::Compact => Self::Compact,
            ThreadLayout::Scatter => Self::Scatter,
        }
    }
}

/// Target of the observation. clap allows at most one of these arguments.
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
    use std::fs;
    use std::path::Path;

    /// Splits a line into words as a shell does. Only what the documents need is handled: quotes and comments.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for character in line.chars() {
            match (quote, character) {
                (None, '\'' | '"') => quote = Some(character),
                (Some(open), close) if open == close => quote = None,
                (None, '#') if words.last().is_some_and(String::is_empty) => break,
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().expect("one").push(character),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn command_lines_that_no_test_runs_parse() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let guide = fs::read_dir(root.join("docs/guide")).expect("a folder");
        let pages = guide.map(|entry| entry.expect("an entry").path());
        let pages = pages.filter(|page| page.extension().is_some_and(|one| one == "md"));
        let mut lines = 0;
        for page in pages.chain([root.join("README.md"), root.join("docs/lab.md")]) {
            let text = fs::read_to_string(&page).expect("text");
            // Every second part is a block of code.
            // Another test runs the `console` blocks.
            let blocks = text.split("```").skip(1).step_by(2);
            for block in blocks.filter(|block| !block.starts_with("console")) {
                let commands = block.lines().map(|line| line.trim_start_matches("$ "));
                for line in commands.filter(|line| line.starts_with("nearpage ")) {
                    // Columns of a list of commands begin after two spaces.
                    let line = line.trim_end().split("  ").next().expect("a part");
                    let parsed = super::definitions().try_get_matches_from(words(line));
                    if let Err(error) = parsed {
                        panic!("{}: {line}\n{error}", page.display());
                    }
                    lines += 1;
                }
            }
        }
        assert!(lines > 5, "only {lines} command lines found");
    }

    #[test]
    fn definitions_are_consistent() {
        super::definitions().debug_assert();
    }
}
