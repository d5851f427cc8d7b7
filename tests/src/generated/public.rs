//! Public benchmark kernels, whose access patterns are not this project's: the gain of plans from samples at default
//! options, relative to the gain of the plan from a full trace.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::run::output;

/// Machine and thread layout of traces and plans: four nodes of one CPU, as many as the kernels have threads.
const MACHINE: [&str; 4] = ["--machine", "opteron-4", "--threads", "scatter"];
/// Settings by which libraries take their number of threads.
const THREADS: [&str; 4] = [
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
];
/// A gain below this share of the parallel part's time counts as none: then every plan is nearly as good as another.
const GAIN_MIN: f64 = 0.05;

/// A kernel of a package.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name in results.
    pub name: &'static str,
    /// Debian package.
    pub package: &'static str,
    /// A shell script that makes the kernel's input in its folder, where the files of `tests/public` are. It runs
    /// natively.
    pub input: &'static str,
    /// The command; `{}` stands for the amount of work.
    pub command: &'static str,
    /// Amounts of work: for tracing, several times what fills the kernel's memory; for sampling, a second or two.
    pub amounts: [&'static str; 2],
}

macro_rules! likwid {
    ($($name:literal)*) => { [$(Kernel {
        name: concat!("likwid ", $name),
        package: "likwid",
        input: "",
        command: concat!("likwid-bench -t ", $name, " -w S0:64MB:4 -i {}"),
        amounts: ["5", "250"],
    }),*] };
}

/// A kernel of `tests/public/kernels.py`, for Debian's Python, which finds Debian's packages. Made once before, code that
/// is compiled when it first runs is in a cache.
macro_rules! python {
    ($name:literal, $package:literal, $traced:literal, $sampled:literal) => {
        Kernel {
            name: concat!("python ", $name),
            package: $package,
            input: concat!("/usr/bin/python3 kernels.py ", $name, " 1"),
            command: concat!("/usr/bin/python3 kernels.py ", $name, " {}"),
            amounts: [$traced, $sampled],
        }
    };
}

const LIKWID: [Kernel; 10] =
    likwid!("copy" "daxpy" "ddot" "divide" "load" "store" "stream" "sum" "triad" "update");

const OTHERS: [Kernel; 14] = [
    Kernel {
        name: "sysbench global",
        package: "sysbench",
        input: "",
        command: "sysbench memory --threads=4 --memory-block-size=16M --memory-scope=global --time=0 \
                  --memory-total-size={}M run",
        amounts: ["512", "20000"],
    },
    Kernel {
        name: "sysbench local",
        package: "sysbench",
        input: "",
        command: "sysbench memory --threads=4 --memory-block-size=16M --memory-scope=local --memory-oper=read --time=0 \
                  --memory-total-size={}M run",
        amounts: ["512", "20000"],
    },
    python!("stencil", "python3-numba", "3", "200"),
    python!("sparse", "python3-numba", "3", "300"),
    python!("kmeans", "python3-sklearn", "3", "60"),
    python!("boosting", "python3-sklearn", "2", "15"),
    python!("expression", "python3-numexpr", "5", "500"),
    python!("product", "python3-numpy", "1", "8"),
    Kernel {
        name: "fasttree",
        package: "fasttree",
        input: "for n in 60 120; do python3 sequences.py $n 400 2 >$n; done",
        command: "fasttreeMP -quiet -nt {}",
        amounts: ["60", "120"],
    },
    Kernel {
        name: "vsearch",
        package: "vsearch",
        input: "for n in 40 400; do python3 sequences.py $n 1000 2 >$n; done; python3 sequences.py 2000 1000 3 >db",
        command: "vsearch --quiet --usearch_global {} --db db --id 0.8 --threads 4 --blast6out found",
        amounts: ["40", "400"],
    },
    Kernel {
        name: "cd-hit",
        package: "cd-hit",
        input: "for n in 500 2000; do python3 sequences.py $n 1000 3 >$n; done",
        command: "cd-hit-est -T 4 -i {} -o clusters",
        amounts: ["500", "2000"],
    },
    Kernel {
        name: "clustalo",
        package: "clustalo",
        input: "for n in 30 60; do python3 sequences.py $n 400 2 >$n; done",
        command: "clustalo --threads=4 -i {} -o aligned --force",
        amounts: ["30", "60"],
    },
    Kernel {
        name: "gm blur",
        package: "graphicsmagick",
        input: "",
        command: "gm convert -size 1500x{} plasma: -blur 0x2 null:",
        amounts: ["500", "1500"],
    },
    Kernel {
        name: "sort",
        package: "coreutils",
        input: "for n in 300000 3000000; do seq $n | awk '{ print $1 * 7919 % 1000003 }' >$n; done",
        command: "sort --parallel=4 -S 400M {} -o sorted",
        amounts: ["300000", "3000000"],
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
    /// Replayed time of the parallel part of the trace under first touch, under the trace's plan, and under the samples'
    /// plan.
    pub parallel_ns: [f64; 3],
}

impl PublicTrial {
    /// Records, traces and plans a kernel in a folder, and replays the trace under both plans. `reuses`: with the
    /// recordings that are in the folder, to compare two builds of nearpage.
    ///
    /// # Errors
    /// A step failed, or the kernel is not installed.
    pub fn new(kernel: &Kernel, nearpage: &Path, folder: &Path, reuses: bool) -> io::Result<Self> {
        if !reuses && folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        fs::create_dir_all(folder)?;
        let steps = Steps {
            nearpage: nearpage.canonicalize()?,
            folder: folder.canonicalize()?,
        };
        if !reuses {
            steps.make_input(kernel.input)?;
            let [traced, sampled] = kernel
                .amounts
                .map(|amount| kernel.command.replace("{}", amount));
            let full = [&["trace"], &MACHINE[..]].concat();
            steps.record(&full, "full", &traced)?;
            steps.record(&["record"], "sampled", &sampled)?;
        }
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
        let parallel_ns = |at: usize| {
            let time = &simulated["results"][at]["parallel_ns"];
            time.as_f64()
                .ok_or_else(|| io::Error::other("no parallel part"))
        };
        Ok(Self {
            name: kernel.name,
            accesses: report["accesses"].as_u64().unwrap_or(0),
            parallel_ns: [parallel_ns(0)?, parallel_ns(1)?, parallel_ns(2)?],
        })
    }

    /// Shares of the parallel part's time under first touch that the trace's plan and the samples' plan save.
    pub fn gains(&self) -> [f64; 2] {
        [1, 2].map(|at| 1.0 - self.parallel_ns[at] / self.parallel_ns[0])
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
            "parallel_ns": self.parallel_ns,
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
    /// Runs a kernel's script in the folder, with the files of `tests/public`.
    fn make_input(&self, script: &str) -> io::Result<()> {
        for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("public"))? {
            let file = file?;
            if file.file_type()?.is_file() {
                fs::copy(file.path(), self.folder.join(file.file_name()))?;
            }
        }
        let mut shell = self.command(Path::new("sh"));
        shell.args(["-e", "-c", script]);
        output(shell).map(drop)
    }

    /// A command in the folder, with four threads.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder);
        command.envs(THREADS.map(|name| (name, "4")));
        command
    }

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
        let mut command = self.command(&self.nearpage);
        command.args(arguments);
        output(command)
    }
}
