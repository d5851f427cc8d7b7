//! Options of `plan`, `run` and `optimize`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::deciding::Deciding;
use super::values::rate;
use super::{RESEARCH, Threads};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// The placements that take least time on the machine, contention included: by replay of a trace, by prediction
    /// from samples. On a machine with one memory node the same as `object`
    Auto,
    /// Block, block-cyclic or interleave per object, by the pattern found in it
    Object,
    /// Each page to the node that accesses it most (Marathe Eq. 1)
    Uniform,
    /// Each page to the node with the lowest summed latency (Marathe Eq. 2)
    HopSensitive,
    /// Everything large page by page over all nodes
    Interleave,
}

impl Policy {
    /// The planner's policy of the same name.
    pub fn policy(self) -> nearpage_planner::Policy {
        match self {
            Self::Auto => nearpage_planner::Policy::Auto,
            Self::Object => nearpage_planner::Policy::Object,
            Self::Uniform => nearpage_planner::Policy::Uniform,
            Self::HopSensitive => nearpage_planner::Policy::HopSensitive,
            Self::Interleave => nearpage_planner::Policy::Interleave,
        }
    }
}

#[derive(Debug, Args)]
pub struct Plan {
    /// A recording, or several of one program, or the folder of a job
    ///
    /// Several recordings with different arguments or numbers of threads get one plan for all of them, and the output
    /// says what depends on the input. Of several that differ only in where threads ran, the quickest is planned, and
    /// the plan says where threads run. In a job, each group of ranks that behave alike gets a part of the plan; `run
    /// --plan` under the job's launcher gives each rank the part of its group.
    #[arg(required = true, value_name = "DIR")]
    pub recordings: Vec<PathBuf>,
    /// File to write; `-` prints it [default: DIR/plan.toml, of the first recording]. With several policies each
    /// has its own: plan.uniform.toml
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Machine to plan for: `local`, a preset (opteron-4, altix-4, amd48, intel32, flash-8, …), a TOML
    /// file or hwloc's XML [default: the recording's]
    #[arg(long)]
    pub machine: Option<String>,
    /// How to decide; several, with commas, make a plan each
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    pub policy: Vec<Policy>,
    #[command(flatten)]
    pub deciding: Deciding,
    /// Print the prediction as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mechanism {
    /// Memory policies (mbind): preferred and interleave, never strict
    Bind,
    /// Touch each page first from its node
    Touch,
}

#[derive(Debug, Args)]
pub struct Run {
    /// Plan to enforce [default: the newest kept one that fits the command]
    #[arg(long, value_name = "FILE")]
    pub plan: Vec<PathBuf>,
    /// Place by hand: WHAT=WHERE, for example symbol:cvar=block-cyclic:20M or heap>=1M=interleave
    ///
    /// WHAT: `symbol:NAME`, `symbol:NAME@MODULE`, `function:NAME[:LINE]` (heap objects allocated
    /// there), `heap>=SIZE`, `heap<SIZE`, `mapping>=SIZE`, `unmatched` (memory that no other rule or decision places,
    /// small objects included, stacks excluded).
    ///
    /// WHERE: `block` (a contiguous share for each thread), `block:0-48M/64M` (the same of the first 48M of 64M, in
    /// proportion for other sizes), `block:0-64M/64M/2:3:1` (unequal shares), `block-cyclic:SIZE`, `tiles:2x4/384K` (two shares of rows of 384K, four of columns),
    /// `round-robin` (the objects of a `function:` to threads in turn, in the order of allocation), `object-blocks:2000`
    /// (a contiguous share of 2000 such objects for each thread), `interleave[:NODES]` (nodes as numactl writes them, or
    /// with weights: `0=3,1=1`), `node:N`, `near:DEVICE` (the node next to `gpu0`, `nic0` or `nvme0`; `nearpage machine`
    /// lists devices), `thread:K`, `first-touch`. `unmatched` takes `interleave[:NODES]`, `node:N`, `near:DEVICE` and
    /// `first-touch` only.
    ///
    /// The first rule that fits an object wins, and rules win over the plan.
    #[arg(long, value_name = "RULE")]
    pub place: Vec<String>,
    /// Pin threads [default: the plan's layout; without one, compact if the plan names threads, else none]
    #[arg(long, value_enum)]
    pub threads: Option<Threads>,
    /// How pages are put on their nodes
    #[arg(long, value_enum, default_value = "bind")]
    pub mechanism: Mechanism,
    /// With `touch`: visit the nodes once for this many heap objects
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = RESEARCH, value_parser = clap::value_parser!(u32).range(1..))]
    pub touch_group: u32,
    /// Give each node a copy: code, or file:GLOB (files that do not change meanwhile)
    ///
    /// `code`: text and constants of the command's program and its libraries. `file:GLOB`: files that processes map
    /// read-only or privately. A process uses the copies of the node on which it starts, and shares them with all
    /// processes there. No plan is needed.
    #[arg(long, value_name = "WHAT")]
    pub replicate: Vec<String>,
    /// Memory that all copies together may take, in MiB; files that do not fit are not copied
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub replicate_max: u64,
    /// Machine whose nodes the plan is enforced on (for tests of machine files)
    #[arg(long, default_value = "local", hide = true)]
    pub machine: String,
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

#[derive(Debug, Args)]
pub struct Optimize {
    /// Folder for the recordings and the plan [default: PROGRAM.nearpage, numbered where it exists]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Machine to predict for [default: this one, or opteron-4 where this one has a single node]
    #[arg(long, default_value = "local", hide_default_value = true)]
    pub machine: String,
    /// How to decide
    #[arg(long, value_enum, default_value = "auto")]
    pub policy: Policy,
    #[command(flatten)]
    pub deciding: Deciding,
    /// Runs of each kind, taken in turn; medians are compared
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// Samples per second of a thread's time, throughout [default: 4000 or more at first, falling to 97 to 997, so that
    /// sampling takes at most 0.5 % of the program's processor time, or 80 ms if that is more]
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// Print the comparison as JSON; the command's standard output goes to standard error
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
