//! Runs commands in the lab, for tests of `nearpage lab`.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Case, Finished, nearpage_path, target};

/// Limit for a command in the lab including the boot, which takes minutes on a host with busy cores. No test depends on
/// how long a run takes.
pub const TIME_LIMIT: Duration = Duration::from_secs(1500);
/// Processor time of a boot on a host with busy cores.
pub const BOOT_LIMIT: [&str; 2] = ["--boot-limit", "300"];
/// Machine with four nodes: latency rises by 8 % over one hop, and by 30 % over two hops.
pub const MACHINE: &str = "carrefour-a";

/// Waits until no other test runs a guest, each of which takes a core.
pub fn turn() -> MutexGuard<'static, ()> {
    static LAB: Mutex<()> = Mutex::new(());
    LAB.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is the lab's emulator built? Prints a line if not.
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

/// `nearpage lab` with four CPUs of [`MACHINE`]; the caller adds options and a command.
pub fn lab(case: &Case) -> Command {
    let mut lab = case.command(nearpage_path());
    lab.args(["lab", "--machine", MACHINE, "--cpus", "4"]);
    // All tests share one boot.
    lab.env("XDG_CACHE_HOME", target().join("lab/cache"));
    lab
}

/// Runs a command in the lab, which can write to the case's folder.
pub fn in_lab(case: &Case, options: &[&str], command: &[&str]) -> Finished {
    let _turn = turn();
    let mut lab = lab(case);
    lab.arg("--share").arg(case.folder()).args(options);
    lab.arg("--").args(command);
    case.run(lab)
}
