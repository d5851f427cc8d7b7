//! Public benchmark kernels, whose access patterns are not this project's: the gain of plans from samples at default
//! options, relative to the gain of the plan from a full trace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::run::output;

/// Machine and thread layout of traces and plans.
const MACHINE: [&str; 4] = ["--machine", "xeon-2", "--threads", "scatter"];
/// A gain below this share of the time counts as none.
const GAIN_MIN: f64 = 0.01;

/// A kernel of a package.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name in results.
    pub name: &'static str,
    /// Debian package.
    pub package: &'static str,
    /// The command; `{}` stands for the amount of work.
    pub command: &'static str,
    /// Amounts of work: for tracing, several times what fills the kernel's memory; for sampling, a second or two.
    pub amounts: [&'static str; 2],
}

macro_rules! likwid {
    ($($name:literal)*) => { [$(Kernel {
        name: concat!("likwid ", $name),
        package: "likwid",
        command: concat!("likwid-bench -t ", $name, " -w S0:64MB:2 -i {}"),
        amounts: ["5", "250"],
    }),*] };
}

const LIKWID: [Kernel; 10] =
    likwid!("copy" "daxpy" "ddot" "divide" "load" "store" "stream" "sum" "triad" "update");

const OTHERS: [Kernel; 2] = [
    Kernel {
        name: "sysbench global",
        package: "sysbench",
        command: "sysbench memory --threads=4 --memory-block-size=16M --memory-scope=global --time=0 \
                  --memory-total-size={}M run",
        amounts: ["512", "20000"],
    },
    Kernel {
        name: "sysbench local",
        package: "sysbench",
        command: "sysbench memory --threads=4 --memory-block-size=16M --memory-scope=local --memory-oper=read --time=0 \
                  --memory-total-size={}M run",
        amounts: ["512", "20000"],
    },
];

/// All kernels.
pub fn kernels() -> Vec<Kernel> {
    LIKWID.into_iter().chain(OTHERS).collect()
}

/// Gains of the plans for a kernel.
#[derive(Clone, Debug)]
pub struct PublicTrial {
    /// Name of the kernel.
    pub name: &'static str,
    /// Accesses in the recording of samples.
    pub accesses: u64,
    /// Replayed time of the trace under first touch, under the trace's plan, and under the samples' plan.
    pub time_ns: [f64; 3],
}

impl PublicTrial {
    /// Records, traces and plans a kernel in a folder, and replays the trace under both plans.
    ///
    /// # Errors
    /// A step failed, or the kernel is not installed.
    pub fn new(kernel: &Kernel, nearpage: &Path, folder: &Path) -> io::Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        let steps = Steps {
            nearpage: nearpage.canonicalize()?,
            folder: folder.canonicalize()?,
        };
        let [traced, sampled] = kernel
            .amounts
            .map(|amount| kernel.command.replace("{}", amount));
        let full = [&["trace"], &MACHINE[..]].concat();
        steps.record(&full, "full", &traced)?;
        steps.record(&["record"], "sampled", &sampled)?;
        steps.run(&["plan", "full", "-o", "full.toml", "--machine", MACHINE[1]])?;
        let plan = [&["plan", "sampled", "-o", "sampled.toml"], &MACHINE[..]].concat();
        steps.run(&plan)?;
        let report = steps.json(&["report", "sampled", "--json"])?;
        let simulated = steps.json(&[
            "simulate",
            "full",
            "--machine",
            MACHINE[1],
            "--policy",
            "first-touch,plan:full.toml,plan:sampled.toml",
            "--json",
        ])?;
        let time = |at: usize| {
            simulated["results"][at]["time_ns"]
                .as_f64()
                .unwrap_or(f64::NAN)
        };
        Ok(Self {
            name: kernel.name,
            accesses: report["accesses"].as_u64().unwrap_or(0),
            time_ns: [time(0), time(1), time(2)],
        })
    }

    /// Shares of the time under first touch that the trace's plan and the samples' plan save.
    pub fn gains(&self) -> [f64; 2] {
        [1, 2].map(|at| 1.0 - self.time_ns[at] / self.time_ns[0])
    }

    /// The gain of the samples' plan relative to the trace's; none if the trace's plan gains too little.
    pub fn part(&self) -> Option<f64> {
        let [full, sampled] = self.gains();
        (full >= GAIN_MIN).then(|| sampled / full)
    }

    /// Results as JSON.
    pub fn to_json(&self) -> Value {
        let [full, sampled] = self.gains();
        json!({
            "name": self.name,
            "accesses": self.accesses,
            "time_ns": self.time_ns,
            "gain_of_trace": full,
            "gain_of_samples": sampled,
            "part": self.part(),
        })
    }
}

/// Runs commands in a folder.
struct Steps {
    nearpage: PathBuf,
    folder: PathBuf,
}

impl Steps {
    fn record(&self, options: &[&str], name: &str, command: &str) -> io::Result<()> {
        let words: Vec<&str> = command.split_whitespace().collect();
        self.run(&[options, &["-q", "-o", name, "--"], &words].concat())?;
        Ok(())
    }

    fn json(&self, arguments: &[&str]) -> io::Result<Value> {
        Ok(serde_json::from_str(&self.run(arguments)?)?)
    }

    /// Runs `nearpage` and returns its standard output.
    fn run(&self, arguments: &[&str]) -> io::Result<String> {
        let mut command = Command::new(&self.nearpage);
        command.args(arguments).current_dir(&self.folder);
        output(command)
    }
}
