//! Results of a sweep or matrix, one file per cell. An interrupted command resumes, and several processes share the
//! work.

use std::fs::{self, File};
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Size limit of a kept file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Outcome of an attempt to compute a cell.
pub enum Attempt<T> {
    /// The result exists, and its file is kept.
    Done(T),
    /// Another process is computing it.
    Elsewhere,
}

/// Reads the result that a file keeps; `None` without a file. `what` names the result in messages: `a run of a matrix`.
///
/// # Errors
/// The file cannot be read, or nearpage did not write it.
pub fn kept<T: DeserializeOwned>(path: &Path, what: &str) -> anyhow::Result<Option<T>> {
    let text = nearpage_files::if_there(nearpage_files::read_text(path, FILE_BYTES_MAX));
    let Some(text) = text.with_context(|| format!("{}: can't be read", path.display()))? else {
        return Ok(None);
    };
    let cell = serde_json::from_str(&text)
        .with_context(|| format!("{}: not {what}; remove it to run again", path.display()))?;
    Ok(Some(cell))
}

/// Computes a cell and keeps its result, unless another process computes the cell now or has kept its result meanwhile
/// ([`kept`]).
///
/// # Errors
/// Those of `kept` and `compute`, and a folder that can't be written.
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
    // The process that held the lock before may have finished the cell.
    let cell = match kept()? {
        Some(cell) => cell,
        None => {
            let cell = compute()?;
            // Only the holder of the lock writes, so the temporary name can be fixed. A killed process leaves one file
            // behind.
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
