//! `nearpage lab`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{RESEARCH, values};

/// Run a command on a modelled machine, in modelled time
///
/// Boots Linux under an emulator whose clock goes by nearpage's model of caches, TLBs, memory latency and queues, so
/// that the guest's own clock shows what remote memory, migration and automatic balancing cost on a machine that you
/// don't have. The command sees this machine's files, read-only; its output and status are its own. Build the emulator
/// first: `crates/tracer/qemu/build`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Lab {
    /// Run a matrix instead of one command
    #[command(subcommand)]
    pub what: Option<LabCommand>,
    /// The modelled machine: `local`, a preset (opteron-4, carrefour-a, epyc-8, …), a TOML file or hwloc's XML
    #[arg(long, default_value = "local")]
    pub machine: String,
    /// CPUs in all, spread evenly over the nodes that have any [default: the machine's, 16 at most]
    #[arg(long, value_name = "N")]
    pub cpus: Option<u32>,
    /// Memory of each node, such as 512M or 2G
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = values::mib)]
    pub memory: u32,
    /// Kernel to boot [default: the newest in /boot; its modules are taken from lib/modules beside
    /// that folder, or from the kernel's own folder]
    #[arg(long, value_name = "VMLINUZ")]
    pub kernel: Option<PathBuf>,
    /// Folder that the command may write to, under the same path
    ///
    /// All else that the command writes to is in the guest's memory ($TMPDIR, /dev/shm, /run) and gone afterwards.
    #[arg(long, value_name = "DIR")]
    pub share: Option<PathBuf>,
    /// Model the boot, too; otherwise the model begins with the command, with cold caches
    #[arg(long, conflicts_with = "fast")]
    pub whole: bool,
    /// Model nothing before the program's `nearpage_begin`; what runs before takes a fraction of the host's time
    ///
    /// The program has to be compiled with nearpage.h of this version.
    #[arg(long, conflicts_with = "shell")]
    pub fast: bool,
    /// Warm the caches for so many instructions of all CPUs, from where the model begins, before anything is counted
    #[arg(long, value_name = "INSTRUCTIONS", default_value_t = 0)]
    pub warm_up: u64,
    /// Seed of the emulator's random numbers
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = RESEARCH)]
    pub seed: u32,
    /// Limit for the guest's boot, in processor time, so that a busy host does not matter; ten times that by the clock
    /// [default: 60 and 20 for each CPU]
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    pub boot_limit: Option<f64>,
    /// Limit for the command's run, by this host's clock [default: none]
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    pub time_limit: Option<f64>,
    /// Print the result as JSON; what the command prints goes to standard error
    #[arg(long, conflicts_with = "shell")]
    pub json: bool,
    /// Print nothing but what the command prints
    #[arg(short, long)]
    pub quiet: bool,
    /// A shell on the console instead of a command
    #[arg(long, conflicts_with = "command")]
    pub shell: bool,
    /// Command and its arguments
    #[arg(last = true, required_unless_present = "shell", value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// What `nearpage lab` does besides running a command.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    Matrix(Matrix),
}

/// Run commands × machines × settings in the lab, and print a table
///
/// Each finished run is kept in a file: the same command continues an interrupted matrix, and a second process on the same
/// FILE shares the work. Missing and failed runs are listed.
#[derive(Debug, Args)]
pub struct Matrix {
    /// TOML with the commands, machines and settings (docs/lab.md says which keys)
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Print the table of what has been run, and run nothing
    #[arg(long)]
    pub no_run: bool,
    /// Kernel to boot, as `lab --kernel` takes it [default: FILE's `kernel`, else that of `lab`]
    #[arg(long, value_name = "VMLINUZ")]
    pub kernel: Option<PathBuf>,
    /// Begin no further run after this time, by this host's clock
    #[arg(long, value_name = "SECONDS", value_parser = values::seconds)]
    pub stop_after: Option<f64>,
    /// Print the table as JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print all runs as CSV
    #[arg(long)]
    pub csv: bool,
}
