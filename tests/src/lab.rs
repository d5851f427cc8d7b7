//! Runs commands in the lab, for tests of `nearpage lab`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Case, Finished, nearpage_path, repository, target};

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

/// Folder of an emulator that is up to date: in the target folder, or where continuous integration may keep it between
/// checkouts.
fn emulator_folder() -> Option<&'static Path> {
    static FOLDER: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let home = env::var_os("HOME").map(PathBuf::from);
        let kept = home.map(|home| home.join(".cache/nearpage/lab"));
        let mut folders = [Some(target().join("lab")), kept].into_iter().flatten();
        folders.find(|folder| {
            let mut check = Command::new(repository().join("crates/tracer/qemu/build"));
            let checked = check.arg("--check").arg(folder).output();
            checked.is_ok_and(|checked| checked.status.success())
        })
    });
    FOLDER.as_deref()
}

/// Is the lab's emulator built? Prints a line if not.
pub fn is_built() -> bool {
    let is_built = emulator_folder().is_some();
    if !is_built {
        eprintln!(
            "skipped: the lab's emulator is not built, or older than its sources; `crates/tracer/qemu/build ~/.cache/nearpage/lab` builds it"
        );
    }
    is_built
}

/// `nearpage lab` with four CPUs of [`MACHINE`]; the caller adds options and a command.
pub fn lab(case: &Case) -> Command {
    let mut lab = case.command(nearpage_path());
    lab.args(["lab", "--machine", MACHINE, "--cpus", "4"]);
    // All tests share one boot.
    lab.env("XDG_CACHE_HOME", target().join("lab/cache"));
    if let Some(folder) = emulator_folder() {
        lab.env("NEARPAGE_LAB", folder);
    }
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
