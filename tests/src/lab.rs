//! Commands in the lab, as the tests of `nearpage lab` run them.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Case, Finished, nearpage_path, target};

/// For a command in the lab and its boot: on a host whose cores others use, a boot takes minutes. Nothing is told by how
/// long a run takes.
pub const PATIENCE: Duration = Duration::from_secs(1500);
/// Processor time for a boot on such a host.
pub const BOOT_LIMIT: [&str; 2] = ["--boot-limit", "300"];
/// Four nodes; a hop takes 8 % longer, two take 30 %.
pub const MACHINE: &str = "carrefour-a";

/// One guest at a time: each takes a core.
pub fn turn() -> MutexGuard<'static, ()> {
    static LAB: Mutex<()> = Mutex::new(());
    LAB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is the lab's emulator there? If not, says so.
pub fn is_built() -> bool {
    let emulator = target().join("lab/qemu-system-x86_64");
    if !emulator.exists() {
        eprintln!(
            "skipped: {} is not there; crates/tracer/qemu/build builds it",
            emulator.display()
        );
    }
    emulator.exists()
}

/// `nearpage lab` with four CPUs of [`MACHINE`], to which options and a command are to be added.
pub fn lab(case: &Case) -> Command {
    let mut lab = case.command(nearpage_path());
    lab.args(["lab", "--machine", MACHINE, "--cpus", "4"]);
    // One boot for all tests.
    lab.env("XDG_CACHE_HOME", target().join("lab/cache"));
    lab
}

/// Runs a command in the lab, with the case's folder to write to.
pub fn in_lab(case: &Case, options: &[&str], command: &[&str]) -> Finished {
    let _turn = turn();
    let mut lab = lab(case);
    lab.arg("--share").arg(case.folder()).args(options);
    lab.arg("--").args(command);
    case.run(lab)
}
