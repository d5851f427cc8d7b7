//! What can be typed. Man pages and shell completions are generated from these definitions.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nearpage_machine::ThreadPlacement;
use nearpage_sampler::Target;

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
    after_help = "Exit status: 0 success, 1 failure, 2 wrong usage; `record` and `run` pass on \
    the command's own.\n\nStart with `nearpage doctor`, then \
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
    /// Make a recording of another tool's file: perf.data, the text of `perf script`
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
    /// Show a machine: nodes, CPUs, latencies, caches
    Machine(Machine),
    /// List what this machine allows, and for each thing missing, cause and remedy
    Doctor(Doctor),
    /// Write man pages or shell completions
    #[command(hide = true)]
    Generate(Generate),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Pages of processes of one's own can be moved without privileges; those of others take \
    CAP_SYS_NICE and CAP_SYS_PTRACE, and --all and --cgroup CAP_PERFMON too.\n\nA target is measured first; then a \
    part of what the policy wants is moved; then all of it if the program did not lose more time to \
    memory than before. Otherwise its pages move back, and it is left alone for a growing while."
)]
pub struct Live {
    /// Look after these running processes, and what they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["command", "cgroup", "all"], help_heading = "Instead of a command")]
    pub pid: Vec<u32>,
    /// Look after the processes of this control group (its folder, or its path in the hierarchy)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["command", "all"], help_heading = "Instead of a command")]
    pub cgroup: Option<PathBuf>,
    /// Look after every process of the machine
    #[arg(
        long,
        conflicts_with = "command",
        help_heading = "Instead of a command"
    )]
    pub all: bool,
    /// What decides: traffic, migrate, migrate-replicate, out-u, out-w, in-w, out-u-local, out-w-local,
    /// watch
    #[arg(long, value_name = "POLICY", default_value = "traffic")]
    pub policy: String,
    /// Set a parameter of the policy
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Time between decisions
    #[arg(long, value_name = "S", default_value = "1s", value_parser = seconds)]
    pub interval: f64,
    /// Pin threads where the policy wants them (traffic: those that share pages, on one node)
    #[arg(long)]
    pub threads: bool,
    /// Decide and tell, but move nothing
    #[arg(long)]
    pub dry_run: bool,
    /// What sampling may cost, in percent of the targets' CPU time
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent, conflicts_with = "rate")]
    pub max_overhead: f64,
    /// Samples per second and CPU, instead of as many as --max-overhead pays for
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// The longest that a call that moves pages may take
    #[arg(long, value_name = "S", default_value = "20ms", value_parser = seconds)]
    pub max_stall: f64,
    /// Pages move no faster than this, in MiB a second
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub max_move_rate: u64,
    /// Hot pages that counters are kept of, in all
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=nearpage_live::PAGES_MOST as i64))]
    pub pages: u32,
    /// Serve metrics for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub serve: Option<String>,
    /// Write every decision with its inputs to this file, a line of JSON for each interval
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Make the decisions of a log again, and compare
    #[arg(long, value_name = "LOG", exclusive = true)]
    pub replay: Option<PathBuf>,
    /// Start of random draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Print a line of JSON for each interval: what goes to the log
    #[arg(long)]
    pub json: bool,
    /// Say nothing but what goes wrong
    #[arg(short, long)]
    pub quiet: bool,
    /// The command and its arguments
    #[arg(required_unless_present_any = ["replay", "pid", "cgroup", "all"], trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Live {
    /// Whom to look after.
    pub fn target(&self) -> Target {
        target(self.all, self.cgroup.as_ref(), &self.pid, &self.command)
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

    /// As the machine crate lays threads out.
    pub fn placement(self) -> ThreadPlacement {
        match self {
            Self::Compact => ThreadPlacement::Compact,
            Self::Scatter => ThreadPlacement::Scatter,
            Self::None => ThreadPlacement::None,
        }
    }
}

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
    /// Every reference, through the caches of a machine, in emulation (the first qemu-x86_64 on PATH
    /// that loads plugins): every miss
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
    undisturbed when recording ends: at Ctrl-C, after --duration, or when it has ended. Without the preload \
    library its heap objects are what /proc/PID/maps shows; static objects are known as always."
)]
pub struct Record {
    /// Folder to write [default: PROGRAM.nearpage, numbered where that exists]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace an earlier recording in that folder
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Where accesses come from
    #[arg(long, value_enum, default_value = "auto")]
    pub source: Source,
    /// Samples per second and CPU [default: 97 to 997, as many as cost 0.5 % of its time here]
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// Share of the program's time that sampling may take, in percent: the rate follows from what
    /// samples are found to cost [default: 1, without --rate and --period]
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
    pub object: Vec<String>,
    /// Pin threads while recording
    #[arg(long, value_enum, default_value = "none")]
    pub threads: Threads,
    /// Begin to sample this many seconds after the start
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub after: Option<f64>,
    /// Sample for this long, such as 10s (what is observed runs on)
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
    /// Log every allocation, not samples of the small ones
    #[arg(long)]
    pub all_allocations: bool,
    /// Leave out paths and arguments
    #[arg(long)]
    pub redact: bool,
    /// With `--source full`: machine whose caches the references go through [default: local]
    #[arg(long, help_heading = "With --source full")]
    pub machine: Option<String>,
    /// Threads that go on on other CPUs: a TOML file with [[move]], as for simulate (see docs/formats.md).
    /// Times are those of computation: misses take none here
    #[arg(long, value_name = "FILE", help_heading = "With --source full")]
    pub schedule: Option<PathBuf>,
    /// Keep what the second and third level of the caches serve, not only what they miss
    #[arg(long, help_heading = "With --source full")]
    pub keep_hits: bool,
    /// Mean number of references between two of the sample of all; 0: none
    #[arg(long, value_name = "N", help_heading = "With --source full", default_value_t = nearpage_recording::trace::TraceOptions::default().sample_every)]
    pub sample_every: u32,
    /// Instructions that threads advance together, up to 16 times as many while they share nothing
    #[arg(long, value_name = "N", help_heading = "With --source full", default_value_t = nearpage_recording::trace::TraceOptions::default().quantum_instructions, value_parser = clap::value_parser!(u32).range(100..=1 << 30))]
    pub quantum: u32,
    /// Trace only from `nearpage_begin` on (first touches are kept from the start)
    #[arg(long, help_heading = "With --source full")]
    pub markers: bool,
    /// One reference at a time, each written to a log (for tests)
    #[arg(long, hide = true)]
    pub serial: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// The command and its arguments
    #[arg(required_unless_present_any = ["pid", "cgroup", "all"], trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Record {
    /// Whom to observe.
    pub fn target(&self) -> Target {
        target(self.all, self.cgroup.as_ref(), &self.pid, &self.command)
    }

    /// Options of the tracer mean nothing to other sources.
    pub fn refuse_tracing(&self) -> Result<(), crate::Usage> {
        let given = [
            (self.machine.is_some(), "--machine"),
            (self.schedule.is_some(), "--schedule"),
            (self.keep_hits, "--keep-hits"),
            (self.markers, "--markers"),
            (self.serial, "--serial"),
        ];
        match given.iter().find(|(given, _)| *given) {
            Some((_, option)) => Err(crate::Usage(format!(
                "{option} goes with --source full only: nothing else traces through a machine's caches"
            ))),
            None => Ok(()),
        }
    }
}

/// What `thin` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// References that missed the caches, as far as the recording keeps them
    CacheMiss,
    /// Loads and stores that missed the TLB
    DtlbMiss,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Settings, after Marathe, Thakkar and Mueller (2010): full (loads of 4 cycles and more, every one), \
    loads-1, loads-10, loads-50, loads-100, loads-200 (128 cycles, one followed at a time), dtlb-1, dtlb-2, dtlb-4, \
    dtlb-8, dtlb-16, pebs-10. Options change what the setting says."
)]
pub struct Thin {
    /// A full recording
    pub recording: PathBuf,
    /// Folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Named setting
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(nearpage_recording::trace::Thinning::SETTINGS))]
    pub setting: Option<String>,
    /// Keep one of so many that qualify, thread by thread
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub every: Option<u32>,
    /// Only references of so many cycles and more, unloaded
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    pub min_latency: Option<f64>,
    /// Only loads
    #[arg(long)]
    pub loads_only: bool,
    /// Follow one reference of a thread at a time, as sampling hardware does
    #[arg(long)]
    pub one_in_flight: bool,
    /// What is counted
    #[arg(long, value_enum)]
    pub event: Option<Event>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "perf.data: of `perf mem record`, `perf c2c record` or `perf record -d -W` with an event that samples \
    memory accesses, from any little-endian machine; --sample-cpu and -a keep the CPUs. Text: of\n\
    perf script -F comm,pid,tid,cpu,time,period,event,addr,data_src,weight,ip,sym,dso --show-mmap-events \
    --show-task-events\n\nFunctions and static objects are looked up in the program's files, where those are here \
    and have the build-id that was recorded."
)]
pub struct Import {
    /// The file
    pub file: PathBuf,
    /// Folder to write [default: FILE.nearpage]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Machine it was recorded on: `local`, a preset, a TOML file or hwloc's XML [default: the nodes
    /// that perf.data lists, with distances 10 and 20]
    #[arg(long)]
    pub machine: Option<String>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// What `export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Parquet tables, in a folder
    Parquet,
    /// Text as `perf script` prints it: for flame graphs, speedscope, and `nearpage import`
    PerfScript,
    /// A table of accesses with a header
    Csv,
    /// JSON for profiler.firefox.com
    Firefox,
    /// For `go tool pprof`
    Pprof,
    /// JSON (Chrome's trace events) for ui.perfetto.dev
    Perfetto,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A profile has each access labelled with object, node and level. In Firefox Profiler the roots are \
    objects, weights are microseconds lost and categories are levels; pprof has labels, say `go tool pprof -tagroot \
    object,level FILE`; Perfetto shows each thread's accesses, and the time lost by node and level over time."
)]
pub struct Export {
    /// The recording
    pub recording: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value = "parquet", value_name = "FORMAT")]
    pub to: ExportFormat,
    /// Folder or file to write; `-` prints a file
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// Write at most so many accesses, chosen at random, which stand for the others [default:
    /// 1000000; all as Parquet, and for pprof, which adds them up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub at_most: Option<u64>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct Compare {
    /// Recording that the others are measured against, usually a full one
    pub reference: PathBuf,
    /// Recordings of the same program
    #[arg(required = true, value_name = "DIR")]
    pub recordings: Vec<PathBuf>,
    /// Machine to decide for: `local`, a preset or a TOML file [default: the reference's]
    #[arg(long)]
    pub machine: Option<String>,
    /// How pages are decided
    #[arg(long, value_enum, default_value = "uniform")]
    pub policy: Policy,
    /// Which threads share a node on that machine
    #[arg(long, value_enum, default_value = "compact")]
    pub threads: Threads,
    /// Full recording on which each plan is simulated [default: the first one among those compared]
    #[arg(long, value_name = "DIR")]
    pub replay: Option<PathBuf>,
    /// Loads that took so many cycles and more count as remote where the page's node is not known
    /// (Marathe's threshold)
    #[arg(long, value_name = "CYCLES", default_value_t = 512.0, value_parser = cycles)]
    pub remote_latency: f64,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// One row per data object
    Object,
    /// One row per thread
    Thread,
    /// One row per page, hottest first
    Page,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Time lost to the accesses
    Cost,
    /// Number of accesses
    Accesses,
    /// Accesses to another node's memory
    Remote,
}

#[derive(Debug, Args)]
pub struct Report {
    /// The recording
    pub recording: PathBuf,
    /// Print the whole report as JSON
    #[arg(long)]
    pub json: bool,
    /// What a row is
    #[arg(long, value_enum, default_value = "object")]
    pub by: By,
    /// Count loads only
    #[arg(long, conflicts_with = "stores")]
    pub loads: bool,
    /// Count stores only
    #[arg(long)]
    pub stores: bool,
    /// What comes first
    #[arg(long, value_enum, default_value = "cost")]
    pub sort: Sort,
    /// How many rows [default: 20; all with --json]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// Write the page that `view` shows to one file, to be read without nearpage
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "loads", "stores", "sort", "top"])]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The page is served to this machine only, to whoever knows the random token in the address that is \
    printed, until Ctrl-C. The first opening of a large recording writes its folder `view/`, from which later ones \
    are quick; it may be deleted."
)]
pub struct View {
    /// Recordings (two are compared), outputs of `simulate --json`, and logs of `live --log`, which are followed while
    /// they grow
    #[arg(required = true, value_name = "DIR|FILE")]
    pub paths: Vec<PathBuf>,
    /// Plan to show [default: what `plan` decides by its model, without replaying]
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Machine to plan for: `local`, a preset or a TOML file [default: the recording's]
    #[arg(long)]
    pub machine: Option<String>,
    /// Port to listen on [default: a free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Print the address, and open no browser
    #[arg(long)]
    pub no_open: bool,
}

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
    pub fn policy(self) -> nearpage_policy::Policy {
        match self {
            Self::Auto => nearpage_policy::Policy::Auto,
            Self::Object => nearpage_policy::Policy::Object,
            Self::Uniform => nearpage_policy::Policy::Uniform,
            Self::HopSensitive => nearpage_policy::Policy::HopSensitive,
            Self::Interleave => nearpage_policy::Policy::Interleave,
        }
    }
}

#[derive(Debug, Args)]
pub struct Plan {
    /// The recording
    pub recording: PathBuf,
    /// File to write; `-` prints it [default: DIR/plan.toml]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Machine to plan for: `local`, a preset (opteron-4, altix-4, amd48, intel32, flash-8, …), a TOML
    /// file or hwloc's XML
    #[arg(long, default_value = "local")]
    pub machine: String,
    /// How to decide
    #[arg(long, value_enum, default_value = "auto")]
    pub policy: Policy,
    /// `auto` may decide to copy objects and code to all nodes, for `simulate`: no stock kernel can, and
    /// `run` interleaves objects
    #[arg(long)]
    pub replicas: bool,
    /// `auto` may decide that an object is placed when a second thread runs, or while several do, not
    /// while one thread fills it, for `simulate`: `run` cannot wait, and places it from its allocation on
    #[arg(long)]
    pub phases: bool,
    /// Which threads share a node on that machine
    #[arg(long, value_enum, default_value = "compact")]
    pub threads: Threads,
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
    /// there), `heap>=SIZE`, `heap<SIZE`, `mapping>=SIZE`. WHERE: `block`, `block-cyclic:SIZE`,
    /// `interleave[:NODES]` (nodes as numactl writes them, or weighted as `0=3,1=1`), `node:N`,
    /// `thread:K`, `first-touch`. The first rule that fits wins; rules come before the plan.
    #[arg(long, value_name = "RULE")]
    pub place: Vec<String>,
    /// Pin threads [default: compact where the plan names threads, none otherwise]
    #[arg(long, value_enum)]
    pub threads: Option<Threads>,
    /// How pages get where they belong
    #[arg(long, value_enum, default_value = "bind")]
    pub mechanism: Mechanism,
    /// With `touch`: visit the nodes once for this many heap objects
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
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
    /// Runs of each kind, taken in turn; medians are compared
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub runs: u32,
    /// Samples per second and CPU [default: 97 to 997, as many as cost 0.5 % of its time here]
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

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

impl From<InitialPlacement> for nearpage_policy::online::Initial {
    fn from(rule: InitialPlacement) -> Self {
        match rule {
            InitialPlacement::FirstTouch => Self::FirstTouch,
            InitialPlacement::RoundRobin => Self::RoundRobin,
            InitialPlacement::Interleave => Self::Interleave,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_long_help = crate::simulate::parameters())]
pub struct Simulate {
    /// Recordings made with --source full; several are programs that run at once
    #[arg(required = true, value_name = "DIR")]
    pub recordings: Vec<PathBuf>,
    /// Machine: a preset or a TOML file, with the caches that it was recorded for [default: that one]
    #[arg(long)]
    pub machine: Option<String>,
    /// Policies, with commas: first-touch, round-robin, interleave, block-naive, post-facto, migrate,
    /// replicate, migrate-replicate, replicate-on-first-touch, out-u, out-w, in-w, out-u-local,
    /// out-w-local, traffic, kernel-balancing, auto (nearpage's own, deciding as the program runs);
    /// plan:FILE is what `nearpage plan` decided (a file name without commas), plan:auto, plan:object
    /// and so on what it decides of this very recording, copies allowed
    #[arg(
        long,
        value_name = "P,…",
        value_delimiter = ',',
        default_value = "round-robin,first-touch,post-facto,migrate,replicate,migrate-replicate"
    )]
    pub policy: Vec<String>,
    /// Set a parameter of the policies that have it (listed below); source (cache, sampled-cache, tlb,
    /// sampled-tlb, loads, clock; of traffic: asked, for the samples that it asks for); or of all:
    /// flush (all, mapping), copy (cpu, hardware)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Which thread runs where and when: a TOML file (see docs/formats.md). Threads that move are
    /// charged a refill of their caches: the result is an estimate
    #[arg(long, value_name = "FILE")]
    pub schedule: Option<PathBuf>,
    /// Where pages start, for policies that move them [default: first-touch]
    #[arg(long, value_enum)]
    pub initial: Option<InitialPlacement>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// In the JSON: movements of pages that are kept for each policy, at most
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub movements: usize,
    /// Write the results to this file too, as a page with the bars of Verghese's Figure 6.1
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Machine {
    /// `local`, a preset (opteron-4, altix-4, amd48, intel32, flash-8, …), a TOML file or hwloc's XML
    #[arg(long, default_value = "local")]
    pub machine: String,
    /// Measure latency and bandwidth between this machine's nodes
    ///
    /// From the CPUs of each node to the memory of each: latency by a pointer chase in random order
    /// over huge pages; bandwidth of loads, of stores, and of two loads to a store, by all CPUs of the
    /// node at once, in bytes that programs see (a line is read before an ordinary store to it, which
    /// isn't counted; no streaming stores, no AVX); and latency under load. Takes about 1.2 seconds for
    /// each pair of nodes, 2 more for each node, and at most half of each node's free memory. Nothing
    /// else should run meanwhile.
    #[arg(long, conflicts_with = "machine")]
    pub measure: bool,
    /// Find from which rate of memory accesses on placement matters here, and how often samples may
    /// be taken
    ///
    /// The first after Carrefour, §3.2.1: a loop that waits for memory and computes, more or less, on
    /// all CPUs with the memory of each on its own node and then with all memory on one node. The
    /// second after §3.3.1: the rate of samples that costs the share of time that recording is allowed
    /// without --rate. Takes about 5 seconds. Nothing else should run meanwhile.
    #[arg(long, conflicts_with_all = ["machine", "measure", "output", "toml"])]
    pub calibrate: bool,
    /// With --measure or --calibrate: a trial of well under a second, whose figures say little
    #[arg(long)]
    pub quick: bool,
    /// Write it to this file too, as the TOML that --machine reads
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print it as JSON
    #[arg(long, conflicts_with = "toml")]
    pub json: bool,
    /// Print it as the TOML that --machine reads
    #[arg(long)]
    pub toml: bool,
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Generate {
    /// What to write
    #[command(subcommand)]
    pub what: GenerateWhat,
}

#[derive(Debug, Subcommand)]
pub enum GenerateWhat {
    /// Man pages, one per subcommand
    Man {
        /// Folder to write to
        directory: PathBuf,
    },
    /// A completion script, on standard output
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}

/// `1`, `0.5%`.
fn percent(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a percentage above 0, such as 1% or 0.5".to_owned()),
    }
}

/// `2`, `0.5`, `500ms`, `10s`, `3m`, `1h`.
fn seconds(text: &str) -> Result<f64, String> {
    let units = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    let unit = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)));
    let (number, unit) = unit.unwrap_or((text, &1.0));
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number * unit),
        _ => Err("expected seconds, such as 2, 0.5, 10s or 3m".to_owned()),
    }
}

/// `7f0000000000-7f0000200000`, with or without `0x`.
fn address_range(text: &str) -> Result<Range<u64>, String> {
    let address = |text: &str| {
        let digits = text.strip_prefix("0x").unwrap_or(text);
        let only_digits = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        only_digits
            .then(|| u64::from_str_radix(digits, 16).ok())
            .flatten()
    };
    let range = text.split_once('-');
    let range = range.and_then(|(start, end)| Some(address(start)?..address(end)?));
    range.filter(|range| !range.is_empty()).ok_or_else(|| {
        "expected two hexadecimal addresses, the smaller first, such as 7f0000000000-7f0000200000"
            .to_owned()
    })
}

fn cycles(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(cycles) if cycles.is_finite() && cycles >= 0.0 => Ok(cycles),
        _ => Err("expected cycles, such as 128".to_owned()),
    }
}

fn overhead(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').trim_end().parse() {
        Ok(percent) if (0.01..=100.0).contains(&percent) => Ok(percent),
        _ => Err("expected a share in percent, 0.01 to 100".to_owned()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (1.0..=100_000.0).contains(&rate) => Ok(rate),
        _ => Err("expected samples per second between 1 and 100000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn seconds_have_units() {
        for (text, seconds) in [
            ("2", 2.0),
            ("0.5", 0.5),
            ("10s", 10.0),
            ("3m", 180.0),
            ("250ms", 0.25),
        ] {
            assert_eq!(super::seconds(text), Ok(seconds), "{text}");
        }
        for bad in ["", "s", "-1", "1d", "inf", "nan", "1e999s"] {
            assert!(super::seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_hexadecimal() {
        for text in ["1000-2000", "0x1000-0x2000", "0x1000-2000"] {
            assert_eq!(super::address_range(text), Ok(0x1000..0x2000), "{text}");
        }
        for bad in [
            "",
            "1000",
            "2000-1000",
            "1000-1000",
            "+1000-2000",
            "g-h",
            "-",
            "1000-2000-3000",
        ] {
            assert!(super::address_range(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn definitions_are_consistent() {
        super::Arguments::command().debug_assert();
    }
}
