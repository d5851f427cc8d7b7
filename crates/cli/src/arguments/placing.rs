//! What decides where pages live, and puts them there.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::deciding::Deciding;
use super::values::rate;
use super::{RESEARCH, Threads};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// What takes least time on the machine, contention included, by more than is uncertain: replayed
    /// where the recording is of every miss, predicted otherwise; on one memory node, as `object`
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
    /// As the policy crate decides.
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
    /// The recording, or the folder of a job: ranks that behave alike get a part of its plan each, and `run --plan` under the
    /// job's launcher gives each rank its group's. Several recordings of one program: with different arguments or numbers of threads they get one plan
    /// that holds for all of them, and the output says what depends on the input. With the same arguments and threads in
    /// different places, the quickest is planned, and the plan says where threads run
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
    /// there), `heap>=SIZE`, `heap<SIZE`, `mapping>=SIZE`, `unmatched` (what nothing else places, small objects
    /// too, but no stacks; WHERE is `interleave[:NODES]`, `node:N`, `near:DEVICE` or `first-touch` then). WHERE: `block`,
    /// `block:0-48M/64M` (shares of a part of an object of 64M, or of several, and in proportion of an object of another size),
    /// `block-cyclic:SIZE`, `tiles:2x4/384K` (rows of 384K: two shares of the rows, four columns; another team has another grid),
    /// `round-robin` (the objects of a `function:` to threads in turn, in the order of allocation),
    /// `object-blocks:2000` (of those objects, planned to be so many, a share for each thread),
    /// `interleave[:NODES]` (nodes as numactl writes them, or weighted as `0=3,1=1`), `node:N`,
    /// `near:DEVICE` (the node next to `gpu0`, `nic0` or `nvme0`, as `nearpage machine` lists them),
    /// `thread:K`, `first-touch`. The first rule that fits wins; rules come before the plan.
    #[arg(long, value_name = "RULE")]
    pub place: Vec<String>,
    /// Pin threads [default: as the plan says; where it says nothing, compact if it names threads, else none]
    #[arg(long, value_enum)]
    pub threads: Option<Threads>,
    /// How pages get where they belong
    #[arg(long, value_enum, default_value = "bind")]
    pub mechanism: Mechanism,
    /// With `touch`: visit the nodes once for this many heap objects
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = RESEARCH, value_parser = clap::value_parser!(u32).range(1..))]
    pub touch_group: u32,
    /// Give each node a copy: code, or file:GLOB (files that do not change meanwhile)
    ///
    /// `code`: text and constants of the command's program and its libraries. `file:GLOB`: what
    /// processes map of these files to read it, or privately. A process uses the copies of the node on
    /// which it starts; all processes there share them. No plan is needed.
    #[arg(long, value_name = "WHAT")]
    pub replicate: Vec<String>,
    /// Memory that copies may take in all, in MiB; what would take more is not copied
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub replicate_max: u64,
    /// Machine whose nodes the plan is enforced on (for tests of machine files)
    #[arg(long, default_value = "local", hide = true)]
    pub machine: String,
    /// Print what was done as JSON; what the command prints on standard output goes to standard error
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
    /// Machine to predict for where this one has a single node
    #[arg(long, default_value = "local")]
    pub machine: String,
    /// How to decide
    #[arg(long, value_enum, default_value = "auto")]
    pub policy: Policy,
    #[command(flatten)]
    pub deciding: Deciding,
    /// Runs of each kind, taken in turn; medians are compared
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// Samples per second of a thread's time, throughout [default: 4000 and more at first, falling to 97 to
    /// 997: sampling takes at most 0.5 % of the program's processor time, or 80 ms where that is more]
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// Print the comparison as JSON; what the command prints on standard output goes to standard error
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
