//! Results of a sweep for Hatchet and Thicket, which analyse many profiles at once. Each result is a file in Caliper's
//! `json-split` format, which both tools read with `from_caliper`.
//!
//! The tree divides the time of the simulation. The cell's recording, machine, policy and parameters are global values,
//! by which Thicket groups profiles.

use std::path::Path;

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::table::{Row, SweepOutput};
use crate::whole_file::WholeFile;

/// Column with a row's place in the tree, under the name that Hatchet's reader expects.
const TREE: &str = "path";
/// First column, by which Hatchet's reader orders nodes.
const ORDER: &str = "Node order";

/// Writes a file for each result into a folder without other files, because Thicket reads all files of a folder.
///
/// # Errors
/// The folder contains other files, or can't be written to.
pub fn write_caliper(output: &SweepOutput<'_>, folder: &Path) -> anyhow::Result<()> {
    let is_ours = |name: &std::ffi::OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("cell-") && name.ends_with(".json")
    };
    let refused = || format!("{}: can't be written to", folder.display());
    std::fs::create_dir_all(folder).with_context(refused)?;
    for entry in std::fs::read_dir(folder).with_context(refused)? {
        let entry = entry.with_context(refused)?;
        if !is_ours(&entry.file_name()) {
            anyhow::bail!(
                "{}: has other files in it, and Thicket reads all of a folder: name a new one",
                folder.display()
            );
        }
        // An earlier report may have had other cells.
        std::fs::remove_file(entry.path()).with_context(refused)?;
    }
    for (number, row) in output.rows.iter().enumerate() {
        let path = folder.join(format!("cell-{:06}.json", number + 1));
        WholeFile::write(&path, form(row).to_string().as_bytes())?;
    }
    Ok(())
}

fn form(row: &Row<'_>) -> Value {
    let result = &row.result;
    let local = result.misses as f64 * result.local_share;
    let parts = [
        ("local memory", Some(local), result.local_stall_ns),
        (
            "remote memory",
            Some(result.misses as f64 - local),
            result.remote_stall_ns,
        ),
        ("moving pages", None, result.move_ns),
    ];
    let stalled_ns: f64 = parts.iter().map(|(.., ns)| ns).sum();
    let mut data = vec![json!([
        0,
        result.time_ns,
        stalled_ns,
        result.misses,
        result.local_share,
        result.migrated,
        result.replicated,
        row.times_first,
        0
    ])];
    let mut nodes = vec![json!({ "label": "simulation", "column": TREE })];
    for (number, (label, misses, ns)) in parts.into_iter().enumerate() {
        nodes.push(json!({ "label": label, "column": TREE, "parent": 0 }));
        let at = number + 1;
        data.push(json!([at, null, ns, misses, null, null, null, null, at]));
    }
    let names = [
        ORDER,
        "time_ns",
        "threads_ns",
        "misses",
        "local_share",
        "migrated",
        "replicated",
        "times_first",
    ];
    let metadata = |is_value: bool| json!({ "is_value": is_value });
    let mut form = Map::new();
    form.insert("data".to_owned(), data.into());
    form.insert(
        "columns".to_owned(),
        names.into_iter().chain([TREE]).collect(),
    );
    form.insert(
        "column_metadata".to_owned(),
        names
            .iter()
            .map(|_| metadata(true))
            .chain([metadata(false)])
            .collect(),
    );
    form.insert("nodes".to_owned(), nodes.into());
    let what = [
        ("recording", Some(row.recording)),
        ("machine", Some(row.machine.unwrap_or("its own"))),
        ("policy", Some(row.policy)),
    ];
    for (name, value) in what {
        form.insert(name.to_owned(), value.into());
    }
    for (name, value) in row.parameters {
        let number = value.parse::<u64>().ok();
        form.insert(
            name.clone(),
            number.map_or_else(|| Value::from(value.as_str()), Value::from),
        );
    }
    form.insert("nearpage".to_owned(), env!("CARGO_PKG_VERSION").into());
    Value::Object(form)
}
