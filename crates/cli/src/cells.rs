//! Results that are kept in a file each: what was interrupted goes on where it was, and several processes share the work.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most that a kept file may have.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What became of an attempt to compute a cell.
pub enum Attempt<T> {
    /// It is there; the file is kept.
    Done(T),
    /// Another process is computing it.
    Elsewhere,
}

/// The result that is kept in a file, if there is one. `what` names it in messages: `a run of a matrix`.
///
/// # Errors
/// A file that cannot be read, or that nearpage did not write.
pub fn kept<T: DeserializeOwned>(path: &Path, what: &str) -> anyhow::Result<Option<T>> {
    let text = match nearpage_files::read_text(path, FILE_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(|| format!("{}: can't be read", path.display()))?,
    };
    let cell = serde_json::from_str(&text)
        .with_context(|| format!("{}: not {what}; remove it to run again", path.display()))?;
    Ok(Some(cell))
}

/// Computes a cell and keeps its result, unless another process computes it now or has done so meanwhile ([`kept`]).
///
/// # Errors
/// Those of `kept` and `compute`; a folder that can't be written.
pub fn compute<T: Serialize>(
    path: &Path,
    kept: impl FnOnce() -> anyhow::Result<Option<T>>,
    compute: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<Attempt<T>> {
    let running = path.with_extension("running");
    let lock = File::create(&running)
        .with_context(|| format!("{}: can't be written", running.display()))?;
    if lock.try_lock().is_err() {
        return Ok(Attempt::Elsewhere);
    }
    // Whoever had the lock may have finished meanwhile.
    let cell = match kept()? {
        Some(cell) => cell,
        None => {
            let cell = compute()?;
            // Who has the lock writes alone, so that the name can be the same each time: a kill leaves one file behind.
            let new = path.with_extension("new");
            fs::write(&new, serde_json::to_string_pretty(&cell)? + "\n")
                .and_then(|()| fs::rename(&new, path))
                .with_context(|| format!("{}: can't be written", path.display()))?;
            cell
        }
    };
    let _ = fs::remove_file(&running);
    Ok(Attempt::Done(cell))
}
