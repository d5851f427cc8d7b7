//! Result of a cell, and the file that keeps it. A checksum of the cell's inputs is the file's name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nearpage_machine::Machine;
use nearpage_recording::Recording;
use nearpage_simulator::Outcome;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::file::Cell;
use crate::cells;
use crate::simulate::PLAN;

/// Size limit of a plan file.
const PLAN_BYTES_MAX: u64 = 1 << 30;

/// All inputs of a result. Names and places of folders and files do not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inputs {
    /// Time at which the trace was made, with a checksum of the names and sizes of its files.
    trace: String,
    /// Checksum of the machine's description.
    machine: String,
    policy: String,
    /// Checksum of the plan, if the policy follows a plan file.
    plan: Option<String>,
    parameters: BTreeMap<String, String>,
    /// Version of nearpage.
    version: String,
}

/// Kept result of a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredCell {
    /// Name of the cell, for people.
    title: String,
    /// Inputs of the result.
    inputs: Inputs,
    pub failed: Option<String>,
    pub result: Option<CellResult>,
}

/// Figures of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CellResult {
    /// Simulated time.
    pub time_ns: f64,
    /// Part of `time_ns` in which several threads ran.
    pub parallel_ns: f64,
    /// References to memory or another cache.
    pub misses: u64,
    /// Share of misses to the CPU's own node, 0 to 1.
    pub local_share: f64,
    /// Stall time for the own node's memory, summed over threads.
    pub local_stall_ns: f64,
    /// Stall time for other nodes' memory, summed over threads.
    pub remote_stall_ns: f64,
    /// Time of moving pages and threads, summed over threads.
    pub move_ns: f64,
    /// Pages migrated.
    pub migrated: u64,
    /// Pages replicated.
    pub replicated: u64,
}

impl From<&Outcome> for CellResult {
    fn from(outcome: &Outcome) -> Self {
        Self {
            time_ns: outcome.time_ns,
            parallel_ns: outcome.parallel_ns,
            misses: outcome.misses,
            local_share: outcome.local_share(),
            local_stall_ns: outcome.split.local_stall_ns,
            remote_stall_ns: outcome.split.remote_stall_ns,
            move_ns: outcome.split.move_ns,
            migrated: outcome.migrated,
            replicated: outcome.replicated,
        }
    }
}

/// Identity of a trace: its start time, and the names and sizes of its files. The names contain processes and start
/// times.
///
/// # Errors
/// The folder can't be read.
pub fn trace_identity(recording: &Recording) -> anyhow::Result<String> {
    let folder = recording.folder.join("trace");
    let unreadable = || format!("{}: can't be read", folder.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(unreadable)? {
        let entry = entry.with_context(unreadable)?;
        let bytes = entry.metadata().with_context(unreadable)?.len();
        files.push(format!("{} {bytes}", entry.file_name().to_string_lossy()));
    }
    files.sort();
    let started = recording.metadata.started_unix_ns;
    Ok(format!(
        "{started} {}",
        checksum(files.join("\n").as_bytes())
    ))
}

impl Inputs {
    ///
    /// # Errors
    /// The plan can't be read.
    pub fn of(cell: &Cell, trace: &str, machine: &Machine) -> anyhow::Result<Self> {
        let file = cell.policy.strip_prefix(PLAN);
        let file = file.filter(|name| nearpage_planner::Policy::from_name(name).is_none());
        let plan = file.map(|file| {
            let bytes = nearpage_files::read(Path::new(file), PLAN_BYTES_MAX);
            let bytes = bytes.with_context(|| format!("{file}: can't be read"))?;
            anyhow::Ok(checksum(&bytes))
        });
        Ok(Self {
            trace: trace.to_owned(),
            machine: checksum(machine.to_toml().as_bytes()),
            policy: match plan {
                Some(_) => PLAN.to_owned(),
                None => cell.policy.clone(),
            },
            plan: plan.transpose()?,
            parameters: cell.parameters.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    /// File that keeps the result for these inputs.
    pub fn path(&self, folder: &Path) -> anyhow::Result<PathBuf> {
        let text = serde_json::to_string(self)?;
        Ok(folder.join(format!("{}.json", checksum(text.as_bytes()))))
    }

    /// Reads the kept result for these inputs; `None` without one.
    ///
    /// # Errors
    /// The file cannot be read, or nearpage did not write it.
    pub fn kept(&self, folder: &Path) -> anyhow::Result<Option<StoredCell>> {
        let kept: Option<StoredCell> = cells::kept(&self.path(folder)?, "a result of a sweep")?;
        // Different inputs can have one checksum.
        Ok(kept.filter(|kept| kept.inputs == *self))
    }

    pub fn keep(&self, cell: &Cell, result: Result<CellResult, String>) -> StoredCell {
        StoredCell {
            title: cell.title(),
            inputs: self.clone(),
            failed: result.as_ref().err().cloned(),
            result: result.ok(),
        }
    }
}

/// 64 bits of FNV-1a (Fowler, Noll, Vo), in hexadecimal: a name for contents, without protection against forgery.
fn checksum(bytes: &[u8]) -> String {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, step);
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_that_others_compute() {
        // From the authors' test vectors.
        assert_eq!(checksum(b""), "cbf29ce484222325");
        assert_eq!(checksum(b"foobar"), "85944171f73967e8");
    }

    #[test]
    fn a_result_is_found_by_what_it_was_computed_from() {
        let folder = tempfile::tempdir().unwrap();
        let machine = nearpage_machine::preset("flash-8").unwrap();
        let cell = |recording: &str, policy: &str| Cell {
            recording: recording.to_owned(),
            machine: None,
            policy: policy.to_owned(),
            parameters: BTreeMap::new(),
        };
        let inputs = |cell: &Cell| Inputs::of(cell, "1 ab", &machine).unwrap();
        let here = cell("here", "migrate");
        let kept = inputs(&here).keep(&here, Err("no".to_owned()));
        let path = inputs(&here).path(folder.path()).unwrap();
        std::fs::write(&path, serde_json::to_string(&kept).unwrap()).unwrap();
        let find = |cell: &Cell| inputs(cell).kept(folder.path()).unwrap();
        assert_eq!(find(&here).unwrap().failed.as_deref(), Some("no"));
        assert!(find(&cell("moved", "migrate")).is_some());
        assert!(find(&cell("here", "replicate")).is_none());
        // A plan is identified by its contents, not its path.
        let plan = folder.path().join("p.toml");
        let planned = cell("here", &format!("plan:{}", plan.display()));
        let mut paths = Vec::new();
        for text in ["a", "b", "a"] {
            std::fs::write(&plan, text).unwrap();
            paths.push(inputs(&planned).path(folder.path()).unwrap());
        }
        assert!(paths[0] == paths[2] && paths[0] != paths[1]);
        std::fs::write(&path, "{}").unwrap();
        assert!(inputs(&here).kept(folder.path()).is_err());
    }
}
