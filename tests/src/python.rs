//! Installs Python packages that read nearpage's output.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use crate::target;

/// Folder for `PYTHONPATH` with a package such as `duckdb==2.0.1` and its dependencies, installed at first use. If the
/// package can't be installed: none, and a printed line.
///
/// # Panics
/// The target folder can't be written to.
pub fn python_package(requirement: &str) -> Option<PathBuf> {
    let folder = target().join(requirement.replace("==", "-"));
    let lock = File::create(folder.with_extension("lock")).expect("the target folder is writable");
    lock.lock().expect("locking a file of ours");
    if !folder.exists() {
        let new = folder.with_extension("new");
        let installed = Command::new("python3")
            .args([
                "-m",
                "pip",
                "install",
                "-q",
                "--timeout",
                "20",
                "--retries",
                "1",
            ])
            .arg("--target")
            .arg(&new)
            .arg(requirement)
            .output();
        let is_installed = installed.is_ok_and(|output| output.status.success());
        if !is_installed || fs::rename(&new, &folder).is_err() {
            eprintln!("skipped: the Python package {requirement} can't be installed here");
            return None;
        }
    }
    Some(folder)
}
