//! Options of `live` and `top`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use nearpage_http::Endpoint;
use nearpage_sampler::Target;

use super::values::{collector, percent, rate, seconds, socket_address};
use super::{RESEARCH, target};

#[derive(Debug, Args)]
#[command(
    after_help = "Pages of processes of one's own can be moved without privileges; those of others take \
    CAP_SYS_NICE and CAP_SYS_PTRACE, and --all and --cgroup CAP_PERFMON too.\n\nA target is measured first; then a \
    part of what the policy wants is moved; then all of it if the program did not lose more time to \
    memory than before. Otherwise its pages move back, and it is left alone for a growing while.\n\nIn a terminal of 60 \
    columns and more a screen is shown: processes, their objects, pages and decisions; `?` has the keys. What a \
    command prints appears below, and on the terminal when the command has ended; its standard input is empty. \
    --plain leaves the terminal to the command."
)]
pub struct Live {
    /// Move pages of these running processes, and what they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), conflicts_with_all = ["command", "cgroup", "all"], help_heading = "Instead of a command")]
    pub pid: Vec<u32>,
    /// Move pages of the processes of this control group (its folder, or its path in the hierarchy)
    #[arg(long, value_name = "PATH", conflicts_with_all = ["command", "all"], help_heading = "Instead of a command")]
    pub cgroup: Option<PathBuf>,
    /// Move pages of every process of the machine
    #[arg(
        long,
        conflicts_with = "command",
        help_heading = "Instead of a command"
    )]
    pub all: bool,
    /// What decides: carrefour, auto, migrate, migrate-replicate, out-u, out-w, in-w, out-u-local,
    /// out-w-local, watch
    #[arg(long, value_name = "POLICY", default_value = "carrefour")]
    pub policy: String,
    /// Set a parameter of the policy, such as trigger=4; an unknown KEY lists all parameters of the policy
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Time between decisions
    #[arg(long, value_name = "S", default_value = "1s", value_parser = seconds)]
    pub interval: f64,
    /// Pin threads where the policy wants them (carrefour: those that share pages, on one node;
    /// auto: near the memory that they use)
    #[arg(long, alias = "threads")]
    pub move_threads: bool,
    /// Print decisions, but move nothing
    #[arg(long)]
    pub dry_run: bool,
    /// What sampling may cost, in percent of the targets' CPU time
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent, conflicts_with = "rate")]
    pub max_overhead: f64,
    /// Samples per second and CPU, instead of as many as --max-overhead pays for
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// With a PMU: leave out loads that take fewer cycles [default: 30; carrefour: 0, as it counts hits of the first
    /// level]
    #[arg(long, value_name = "CYCLES", value_parser = clap::value_parser!(u32).range(..=0xffff))]
    pub min_latency: Option<u32>,
    /// Longest time that one call for moving pages may take
    #[arg(long, value_name = "S", default_value = "20ms", value_parser = seconds)]
    pub max_stall: f64,
    /// Highest rate of moving pages, in MiB a second
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    pub max_move_rate: u64,
    /// Number of hot pages with counters, all processes together
    #[arg(long, value_name = "N", default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(1..=nearpage_live::PAGES_MOST as i64))]
    pub pages: u32,
    /// Serve metrics for Prometheus at http://ADDR/metrics
    #[arg(long, value_name = "ADDR", value_parser = socket_address)]
    pub serve: Option<String>,
    /// Post profiles to an OpenTelemetry collector at this address, http://HOST:4318 or http://HOST: accesses and time lost by
    /// object and node. There is no TLS: name a collector on this host, which forwards them
    #[arg(long, value_name = "URL", value_parser = collector)]
    pub otlp: Option<Endpoint>,
    /// Time between two posts to --otlp
    #[arg(long, value_name = "S", default_value = "10s", value_parser = seconds, requires = "otlp")]
    pub otlp_interval: f64,
    /// Write every decision with its inputs to this file, a line of JSON for each interval
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Repeat the decisions of a log, and compare them with the log; takes no option but --json
    #[arg(long, value_name = "LOG", conflicts_with_all = ["pid", "cgroup", "all", "policy", "set", "interval", "move_threads", "dry_run", "max_overhead", "rate", "min_latency", "max_stall", "max_move_rate", "pages", "serve", "otlp", "log", "seed", "plain", "output", "quiet", "command"])]
    pub replay: Option<PathBuf>,
    /// Seed of random numbers
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = RESEARCH)]
    pub seed: u64,
    /// Print a line of JSON for each interval, the same as in the log. The command's standard output goes to standard
    /// error
    #[arg(long)]
    pub json: bool,
    /// Print lines instead of showing a screen, and leave the terminal to the command
    #[arg(long)]
    pub plain: bool,
    /// Write what the command prints to this file, instead of the terminal
    #[arg(long, value_name = "FILE", requires = "command")]
    pub output: Option<PathBuf>,
    /// Print nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// The command and its arguments
    #[arg(required_unless_present_any = ["replay", "pid", "cgroup", "all"], trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

impl Live {
    pub fn target(&self) -> Target {
        target(self.all, self.cgroup.as_ref(), &self.pid, &self.command)
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Every process takes CAP_PERFMON; without, the processes of one's own that run already are watched. \
    Time lost to memory, and the CPU time that is its share, come from samples; so do local and remote accesses. Memory by node is the kernel's own count, read of \
    the 30 processes with the most samples, at most 1 % of the time.\n\nWithout a terminal, or with --plain, a table is \
    printed after each interval."
)]
pub struct Top {
    /// Watch these running processes, and what they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "cgroup")]
    pub pid: Vec<u32>,
    /// Watch the processes of this control group (its folder, or its path in the hierarchy)
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,
    /// Time between two updates
    #[arg(long, value_name = "S", default_value = "2s", value_parser = seconds)]
    pub interval: f64,
    /// End after N updates
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub iterations: Option<u64>,
    /// What sampling may cost, in percent of the processes' CPU time
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent, conflicts_with = "rate")]
    pub max_overhead: f64,
    /// Samples per second and CPU, instead of as many as --max-overhead pays for
    #[arg(long, value_name = "HZ", value_parser = rate)]
    pub rate: Option<f64>,
    /// Print a line of JSON for each update
    #[arg(long)]
    pub json: bool,
    /// Print tables instead of showing a screen
    #[arg(long)]
    pub plain: bool,
}

impl Top {
    /// The processes to watch; `None`: all processes.
    pub fn target(&self) -> Option<Target> {
        let is_named = self.cgroup.is_some() || !self.pid.is_empty();
        is_named.then(|| target(false, self.cgroup.as_ref(), &self.pid, &[]))
    }
}
