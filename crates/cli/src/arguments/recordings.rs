//! Options of the commands that read recordings.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use nearpage_attribution::Operations;
use nearpage_report::Condition;
use schemars::JsonSchema;
use serde::Serialize;

use super::deciding::Deciding;
use super::values::cycles;
use super::{Policy, RESEARCH};

/// What `downsample` counts.
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
pub struct Downsample {
    /// A trace
    pub recording: PathBuf,
    /// Folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Named setting
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(nearpage_recording::trace::Downsampling::SETTINGS))]
    pub setting: Option<String>,
    /// Keep one of every N references that qualify, thread by thread. A prime number avoids lockstep with loops: of
    /// three arrays that miss in turn, one of 96 misses would show one
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub every: Option<u32>,
    /// Keep only references that take so many cycles or more on an idle machine
    #[arg(long, value_name = "CYCLES", value_parser = cycles)]
    pub min_latency: Option<f64>,
    /// Keep only loads
    #[arg(long)]
    pub loads_only: bool,
    /// Follow one reference of a thread at a time, as sampling hardware does. References that the CPU issues before
    /// that one has completed are skipped (there are none on machines whose CPUs wait for each miss)
    #[arg(long)]
    pub one_in_flight: bool,
    /// What is counted
    #[arg(long, value_enum)]
    pub event: Option<Event>,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
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
    and have the build-id that was recorded.\n\nCSV: a table with a header, of samples by any other tool. It needs the \
    columns time_ns, cpu, and address or object; docs/reference/samples-csv.md has all columns."
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
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// What `export` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
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
    /// OpenTelemetry's profiles, as collectors take them by HTTP
    Otlp,
    /// JSON (Chrome's trace events) for ui.perfetto.dev
    Perfetto,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A profile has each access labelled with object, node and level. In Firefox Profiler the roots are \
    objects, weights are microseconds lost and categories are levels; pprof has labels, say `go tool pprof -tagroot \
    object,level FILE`; OTLP has attributes, nearpage.object and so on; Perfetto shows each thread's accesses, and the time lost by node and level over time."
)]
pub struct Export {
    /// The recording, or the folder of a job, whose tables are those of `merge`
    pub recording: PathBuf,
    /// What to write
    #[arg(long, value_enum, default_value = "parquet", value_name = "FORMAT")]
    pub to: ExportFormat,
    /// Folder or file to write; `-` prints a file
    #[arg(short, long, value_name = "PATH")]
    pub output: PathBuf,
    /// Write at most N accesses, chosen at random, each of which stands for several [default: 1000000; all for Parquet,
    /// and for pprof and OTLP, which add them up]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub at_most: Option<u64>,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The data set is partitioned by folders, DIR/job=J/host=H/rank=R/accesses.parquet, which DuckDB, Polars, \
    Spark and DataFusion read as columns. docs/guide/queries has queries."
)]
pub struct Merge {
    /// Folders of jobs
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<PathBuf>,
    /// Folder to write
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
    /// Print what was done as JSON
    #[arg(long)]
    pub json: bool,
    /// Print nothing but errors and warnings about the recordings
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 3 if a condition of --fail-if holds for one of the settings AFTER.\n\nRecord each setting \
    several times to see how much its runs differ: `nearpage compare a1,a2,a3 b1,b2,b3`. Conditions are about medians."
)]
pub struct Compare {
    /// Recordings of the first setting, separated by commas; the others are compared with it
    pub before: String,
    /// Recordings of another setting of the same program, separated by commas; one argument for each further setting
    #[arg(required = true)]
    pub after: Vec<String>,
    /// Fail if this holds: `local<80%`, `remote>20%`, `time>12.5s`; or against BEFORE: `time>+5%`, `local<-5%`
    /// (points of the share)
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Evaluate {
    /// Recording that the others are measured against, usually a trace
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
    #[command(flatten)]
    pub deciding: Deciding,
    /// Trace on which each plan is simulated [default: the first one among those compared]
    #[arg(long, alias = "replay", value_name = "DIR")]
    pub trace: Option<PathBuf>,
    /// Count loads of N cycles or more as remote where the page's node is not known (Marathe's threshold)
    #[arg(long, value_name = "N", default_value_t = 512.0, value_parser = cycles, help_heading = RESEARCH)]
    pub remote_latency: f64,
    /// Print the comparison as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GroupBy {
    /// One row per data object
    Object,
    /// One row per thread
    Thread,
    /// One row per page, hottest first
    Page,
    /// Pages against threads, for each of the first five objects in at most --top rows
    Matrix,
    /// Functions that allocated, as a tree with objects as leaves
    CallSite,
    /// Of a job: one row per rank
    Rank,
    /// Of a job: one row per host
    Host,
    /// Of a job: one row per memory node of each host
    Node,
    /// Of a job: ranks that behave alike together
    Group,
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
    /// The recording, or the folder of a job with recordings of its ranks
    pub recording: PathBuf,
    /// Print the whole report as JSON; with --by page, also the accesses to each page of each object, by thread
    #[arg(long)]
    pub json: bool,
    /// What a row is [default: object; of a job, group]
    #[arg(long, value_enum)]
    pub by: Option<GroupBy>,
    /// Count loads only
    #[arg(long, conflicts_with = "stores")]
    pub loads: bool,
    /// Count stores only
    #[arg(long)]
    pub stores: bool,
    /// What comes first
    #[arg(long, value_enum, default_value = "cost")]
    pub sort: Sort,
    /// Number of rows [default: 20; of objects only those with 0.5 % of the cost or more; with --json all]
    #[arg(long, value_name = "N")]
    pub top: Option<usize>,
    /// All rows
    #[arg(long, conflicts_with = "top")]
    pub all: bool,
    /// Draw which threads access which pages of an object [default: the costliest]; a part of its name is enough
    #[arg(long, value_name = "OBJECT", num_args = 0..=1, default_missing_value = "", conflicts_with_all = ["json", "by"])]
    pub heatmap: Option<String>,
    /// Write the page of `view` to one file, which needs no nearpage to read
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "loads", "stores", "sort", "top", "all", "heatmap"])]
    pub html: Option<PathBuf>,
}

impl Report {
    pub fn operations(&self) -> Operations {
        match (self.loads, self.stores) {
            (true, _) => Operations::Loads,
            (_, true) => Operations::Stores,
            _ => Operations::Both,
        }
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "The page is served to this machine only, to whoever knows the random token in the address that is \
    printed, until Ctrl-C. The first opening of a large recording writes its folder `view/`, from which later ones \
    are quick; it may be deleted."
)]
pub struct View {
    /// Recordings (two are compared), outputs of `simulate --json` and `lab --json`, runs that `lab matrix` kept, logs of
    /// `live --log` (followed while they grow), or the folder of a job (groups of ranks, bindings, hosts and nodes; each
    /// rank's recording is opened from there)
    #[arg(required = true, value_name = "DIR|FILE")]
    pub paths: Vec<PathBuf>,
    /// Plan to show [default: plan.edited.toml or plan.toml in the recording's folder, else what `plan` decides]
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Machine to plan for: `local`, a preset or a TOML file [default: the recording's]
    #[arg(long)]
    pub machine: Option<String>,
    #[command(flatten)]
    pub deciding: Deciding,
    /// Folder with the program's source, for lines with their cost; may be given several times [default: where the
    /// program was built]
    #[arg(long = "source-dir", value_name = "DIR")]
    pub source_folders: Vec<PathBuf>,
    /// Port to listen on [default: the port of the last time, so that links to the page stay valid, or a free one]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub port: u16,
    /// Print the address, and open no browser
    #[arg(long)]
    pub no_open: bool,
}
