//! Options of commands about this machine and about nearpage itself.

use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Machine {
    /// What to do with it [default: show this machine]
    #[command(subcommand)]
    pub command: Option<MachineCommand>,
    #[command(flatten)]
    pub before: MachineOptions,
}

/// Options of `machine` from before it had subcommands; they still work.
#[derive(Debug, Args)]
pub struct MachineOptions {
    #[arg(long, default_value = "local", hide = true)]
    pub machine: String,
    #[arg(long, value_name = "ROOT", hide = true, conflicts_with_all = ["machine", "measure", "calibrate"])]
    pub sysfs: Option<PathBuf>,
    #[arg(long, conflicts_with = "machine", hide = true)]
    pub measure: bool,
    #[arg(long, conflicts_with_all = ["machine", "measure", "output", "toml"], hide = true)]
    pub calibrate: bool,
    #[arg(long, hide = true)]
    pub quick: bool,
    #[command(flatten)]
    pub output: MachineForm,
}

impl MachineOptions {
    /// The subcommand that these options mean; `None` for `--quick` alone, which means no subcommand.
    pub fn subcommand(self) -> Option<MachineCommand> {
        let (quick, output) = (self.quick, self.output);
        match (self.measure, self.calibrate, quick) {
            (true, ..) => Some(MachineCommand::Measure { quick, output }),
            (false, true, _) => Some(MachineCommand::Calibrate(Calibration {
                quick,
                json: output.json,
            })),
            (false, false, true) => None,
            (false, false, false) => Some(MachineCommand::Show {
                machine: self.machine,
                sysfs: self.sysfs,
                cpus: None,
                output,
            }),
        }
    }
}

/// How a machine is printed, and where it is written.
#[derive(Debug, Args)]
pub struct MachineForm {
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

/// How thoroughly to calibrate, and how the result is printed.
#[derive(Debug, Args)]
pub struct Calibration {
    /// Take well under a second, for a trial: the figures mean little
    #[arg(long)]
    pub quick: bool,
    /// Print it as JSON
    #[arg(long)]
    pub json: bool,
}

/// What is done with a machine.
#[derive(Debug, Subcommand)]
pub enum MachineCommand {
    /// Show a machine: nodes, CPUs, latencies, caches
    Show {
        /// `local`, a preset (see `nearpage machine list`), a TOML file, hwloc's XML, or another machine's `/sys`
        #[arg(default_value = "local")]
        machine: String,
        /// Read another machine's `/sys`, and its `/proc` beside it if gathered: a folder, or its .tar, .tar.bz2, .tar.gz or
        /// .tar.zst
        ///
        /// hwloc-gather-topology writes such archives. Nothing is unpacked to disk, and links never lead out of
        /// the tree. Notes say what the tree lacks.
        #[arg(long, value_name = "ROOT", conflicts_with = "machine")]
        sysfs: Option<PathBuf>,
        /// With so many CPUs, spread evenly over the nodes that have any, and numbered anew: as `lab --cpus` models it
        ///
        /// For `trace` and `plan`, whose plan is then for the machine that the lab models.
        #[arg(long, value_name = "N")]
        cpus: Option<u32>,
        #[command(flatten)]
        output: MachineForm,
    },
    /// List the presets: nodes, CPUs, how much slower the farthest memory is, year, what is assumed
    List {
        /// Print the list as JSON
        #[arg(long)]
        json: bool,
    },
    /// Measure latency and bandwidth between this machine's nodes, and what moving a page takes
    ///
    /// Measured for each pair of nodes: latency, by a pointer chase in random order over huge pages; bandwidth of loads,
    /// of stores, and of two loads to a store, by all CPUs of a node at once; latency under load; and the time to move
    /// 512 pages to the other node and back. Bandwidth counts bytes that programs see: a line that an ordinary store
    /// reads first is not counted, and there are no streaming stores and no AVX. Takes about 1.2 seconds for each pair of
    /// nodes, 2 more for each node, and at most half of each node's free memory. Run nothing else meanwhile.
    Measure {
        /// Take well under a second, for a trial: the figures mean little
        #[arg(long)]
        quick: bool,
        #[command(flatten)]
        output: MachineForm,
    },
    /// Find the rate of memory accesses from which placement matters here, and how often samples may be taken
    ///
    /// The first is measured as in Carrefour's paper, §3.2.1: loops with more and less computation between memory accesses
    /// run on all CPUs, once with each CPU's memory on its own node, and once with all memory on one node. The second
    /// (§3.3.1) is the rate of samples that takes the share of time that `record` allows by default. Takes about 5
    /// seconds. Run nothing else meanwhile.
    Calibrate(Calibration),
    /// Make a machine file from the output of `mlc`, `lat_mem_rd`, `numactl -H`, `acpidump` or `iasl -d`
    ///
    /// Read are latency and bandwidth matrices, latency under load, and cache-to-cache latencies of Memory Latency Checker
    /// (`mlc`) 3.5 to 3.11; latencies of lmbench's `lat_mem_rd`, with the command before each, as `set -x` prints it
    /// (`numactl --cpunodebind=0 --membind=1 lat_mem_rd -t 512 128`); CPUs, memory and distances of `numactl -H`; the
    /// firmware's ratings (ACPI HMAT) as `acpidump` or `iasl -d` print them, or the file /sys/firmware/acpi/tables/HMAT.
    /// One file may have several. Measured figures come before the firmware's.
    Import {
        /// Files with their output
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        output: MachineForm,
    },
}

#[derive(Debug, Args)]
pub struct Doctor {
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
    /// Pack this machine's description into a .tar file, for a bug report
    ///
    /// The file has the parts of /sys that nearpage reads (nodes, CPUs, caches, devices on the PCI bus), the kernel's PMU
    /// events and permissions, kernel and processor, and 200 raw samples of each source, taken in a loop of nearpage
    /// itself. It has no names, paths or arguments of other programs. The content is listed before it is written. Takes
    /// about 3 seconds.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "from_bundle"])]
    pub bundle: Option<PathBuf>,
    /// With --bundle: write without asking
    #[arg(long, requires = "bundle")]
    pub yes: bool,
    /// Read a bundle of another machine: print the machine, the chosen source, and how its samples decode
    #[arg(long, value_name = "FILE")]
    pub from_bundle: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct History {
    /// Print it as JSON
    #[arg(long, conflicts_with = "clear")]
    pub json: bool,
    /// Delete the history
    #[arg(long)]
    pub clear: bool,
}

#[derive(Debug, Args)]
pub struct Generate {
    /// What to write
    #[command(subcommand)]
    pub what: GenerateWhat,
}

#[derive(Debug, Subcommand)]
pub enum GenerateWhat {
    /// The help of every command as one Markdown page, on standard output
    Commands,
    /// Man pages, one per subcommand
    Man {
        /// Folder to write to
        directory: PathBuf,
    },
    /// JSON Schemas of what commands print with `--json`, a file each
    Schema {
        /// Folder to write to
        #[arg(default_value = "docs/reference/schema", value_name = "DIR")]
        directory: PathBuf,
    },
    /// A completion script, on standard output
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
}
