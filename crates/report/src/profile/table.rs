//! A Parquet table for query engines, with a row per access.

use std::path::Path;

use nearpage_recording::{LabelledAccess, LabelledTable, Recording};

use super::labels::{Labelled, access_name, known_level_name};
use super::{ProfileError, for_each_labelled};

/// Writes all accesses of `recording` with their labels as `accesses.parquet` into the existing `folder`, and returns
/// their number.
///
/// # Errors
/// The recording is damaged, or the folder cannot be written.
pub fn write_labelled_table(recording: &Recording, folder: &Path) -> Result<u64, ProfileError> {
    let mut table = LabelledTable::create(folder)?;
    let written = for_each_labelled(recording, 1, |labelled| Ok(table.row(&row(labelled))?))?;
    table.finish()?;
    Ok(written.accesses)
}

fn row<'a>(labelled: &'a Labelled<'a>) -> LabelledAccess<'a> {
    let thread = labelled.thread;
    let function = &labelled.code.functions[0];
    LabelledAccess {
        access: labelled.access,
        pid: thread.map_or(0, |thread| thread.pid),
        tid: thread.map_or(0, |thread| thread.tid),
        thread: thread.map_or("", |thread| &thread.name),
        cpu_node: labelled.cpu_node,
        node: labelled.node,
        kind: access_name(labelled.access.kind),
        level: known_level_name(labelled.access.level),
        object: labelled.object,
        object_kind: labelled.object_kind,
        object_address: labelled.object_address,
        function: &function.name,
        file: &function.file,
        line: function.line,
    }
}
