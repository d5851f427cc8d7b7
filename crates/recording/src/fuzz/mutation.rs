//! Mutates a recording: changes rows of tables, values in `recording.json`, or records of logs and traces, and writes
//! them with right checksums.

use std::fs;
use std::path::{Path, PathBuf};

use parquet::data_type::ByteArray;
use serde_json::Value;

use super::words::{long_text, mutate_words};
use super::{Choices, frames};
use crate::Error;
use crate::error::IoContext;
use crate::folder::{LOG_FOLDER, MACHINE_FILE, METADATA_FILE, TRACE_FOLDER};
use crate::storage::columns::{Columns, Values};

/// Choices for the number of changes. It is small, as a reader stops at the first fault that it finds.
const CHANGES: [u64; 6] = [1, 1, 1, 2, 2, 4];
/// Limit on the bytes of texts written into a table; it bounds the memory of the process that mutates.
const TEXTS_BYTES_MAX: usize = 160 << 20;
/// Size limit of `recording.json` and `machine.toml`.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Changes the valid recording in `folder`. Returns a line per change.
///
/// # Errors
/// If the recording cannot be read or written.
pub fn mutate(folder: &Path, choices: &mut dyn Choices) -> Result<Vec<String>, Error> {
    let mut changes: Vec<u64> = (0..CHANGES[choices.position(CHANGES.len())])
        .map(|_| choices.below(8))
        .collect();
    // Changes after which a file may no longer parse come last.
    changes.sort_unstable_by_key(|change| std::cmp::Reverse(*change));
    let mut said = Vec::new();
    for change in changes {
        let tables = Columns::tables(folder);
        let logs = logs(folder);
        said.push(match change {
            0 => text(folder, METADATA_FILE, choices, metadata)?,
            1 => text(folder, MACHINE_FILE, choices, mutate_words)?,
            2..6 if !tables.is_empty() => {
                table(folder, tables[choices.position(tables.len())], choices)?
            }
            _ if !logs.is_empty() => {
                let path = &logs[choices.position(logs.len())];
                let name = path.file_name().unwrap_or_default().display();
                format!("{name}: {}", frames::mutate(path, choices)?)
            }
            _ => table(folder, tables[choices.position(tables.len())], choices)?,
        });
    }
    Ok(said)
}

/// Paths of all logs and traces, sorted.
fn logs(folder: &Path) -> Vec<PathBuf> {
    let folders = [LOG_FOLDER, TRACE_FOLDER].map(|name| folder.join(name));
    let entries = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten();
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let ending = path.extension().unwrap_or_default();
            ending == "log" || ending == "trace"
        })
        .collect();
    found.sort();
    found
}

fn text(
    folder: &Path,
    name: &str,
    choices: &mut dyn Choices,
    change: impl FnOnce(&mut String, &mut dyn Choices) -> String,
) -> Result<String, Error> {
    let path = folder.join(name);
    let mut text = nearpage_files::read_text(&path, TEXT_BYTES_MAX).at(&path, "read")?;
    let said = change(&mut text, choices);
    fs::write(&path, text).at(&path, "write")?;
    Ok(format!("{name}: {said}"))
}

/// Changes one value of `recording.json` other than the tables' checksums.
fn metadata(text: &mut String, choices: &mut dyn Choices) -> String {
    let Ok(Value::Object(mut whole)) = serde_json::from_str::<Value>(text) else {
        return mutate_words(text, choices);
    };
    let checksums = whole.remove("tables");
    let mut whole = Value::Object(whole);
    let count = leaves(&mut whole, "", &mut |_, _| ());
    let chosen = choices.position(count);
    let (mut number, mut said) = (0, String::new());
    leaves(&mut whole, "", &mut |name, value| {
        if number == chosen {
            let before = value.to_string();
            change_value(value, choices);
            let short = |text: &str| text.chars().take(60).collect::<String>();
            said = format!(
                "{name}: {} becomes {}",
                short(&before),
                short(&value.to_string())
            );
        }
        number += 1;
    });
    if let Some(checksums) = checksums {
        whole["tables"] = checksums;
    }
    *text = whole.to_string();
    said
}

/// Visits all values, arrays and objects included. Returns their number.
fn leaves(value: &mut Value, name: &str, visit: &mut dyn FnMut(&str, &mut Value)) -> usize {
    let mut count = 1;
    match value {
        Value::Array(list) => {
            for value in list {
                count += leaves(value, name, visit);
            }
        }
        Value::Object(map) => {
            for (name, value) in map {
                count += leaves(value, name, visit);
            }
        }
        _ => {}
    }
    visit(name, value);
    count
}

fn change_value(value: &mut Value, choices: &mut dyn Choices) {
    match value {
        Value::Number(number) => {
            let own = number.as_u64().unwrap_or(0);
            *value = match choices.below(8) {
                0 => (-1).into(),
                1 => 1e308.into(),
                2 => 1e-308.into(),
                _ => choices.extreme(own).into(),
            };
        }
        Value::String(text) if choices.below(2) == 0 => {
            mutate_words(text, choices);
        }
        Value::String(text) => *text = long_text(choices),
        Value::Bool(set) => *set = !*set,
        Value::Array(list) => match (choices.below(3), list.first().cloned()) {
            (0, _) | (_, None) => list.clear(),
            (1, _) => list.reverse(),
            (_, Some(first)) => list.extend(std::iter::repeat_n(first, 1000)),
        },
        Value::Object(map) => {
            let names: Vec<String> = map.keys().cloned().collect();
            if !names.is_empty() {
                map.remove(&names[choices.position(names.len())]);
            }
        }
        Value::Null => *value = choices.extreme(0).into(),
    }
}

/// Changes rows or columns of a table. Returns a description of the change.
fn table(folder: &Path, name: &str, choices: &mut dyn Choices) -> Result<String, Error> {
    let mut table = Columns::read(folder, name)?;
    let rows = table.values.first().map_or(0, Values::len);
    if rows == 0 {
        return Ok(format!("{name}: it has no rows"));
    }
    let (row, other) = (choices.position(rows), choices.position(rows));
    let position = choices.position(table.values.len());
    let column = table.name(position);
    let values = &mut table.values;
    let said = match choices.below(16) {
        0 => {
            let longest = values.iter().map(|column| column.text_bytes(row)).max();
            let most = TEXTS_BYTES_MAX / longest.unwrap_or(0).max(1);
            let count = [1, 1, 100, 10_000][choices.position(4)].min(most);
            values
                .iter_mut()
                .for_each(|column| column.repeat(row, count));
            format!("row {row} comes {count} more times")
        }
        1 => {
            let end = if choices.below(4) == 0 { rows } else { row + 1 };
            values.iter_mut().for_each(|column| column.remove(row..end));
            format!("rows {row} to {end} are gone")
        }
        2 => {
            values.iter_mut().for_each(|column| column.swap(row, other));
            format!("rows {row} and {other} change places")
        }
        3 => {
            values.iter_mut().for_each(Values::reverse);
            "the last row is the first".to_owned()
        }
        4 => {
            let of_its_type = |at: &usize| values[*at].is_like(&values[position]);
            let alike: Vec<usize> = (0..values.len()).filter(of_its_type).collect();
            let partner = alike[choices.position(alike.len())];
            values.swap(position, partner);
            format!(
                "column {column} changes places with {}",
                table.name(partner)
            )
        }
        5 => {
            values[position].copy(other, row);
            format!("{column} of row {row} is that of row {other}")
        }
        6 | 7 => {
            let value = change_rows(&mut values[position], 0..rows, choices);
            format!("{column} of all {rows} rows is {value}")
        }
        8 => {
            let end = row + 1 + choices.position(rows - row);
            let value = change_rows(&mut values[position], row..end, choices);
            format!("{column} of rows {row} to {end} is {value}")
        }
        _ => {
            let value = change_rows(&mut values[position], row..row + 1, choices);
            format!("{column} of row {row} is {value}")
        }
    };
    table.write(folder)?;
    Ok(format!("{name}: {said}"))
}

/// Sets rows of a column to an edge value. Returns the value as text.
fn change_rows(
    column: &mut Values,
    rows: std::ops::Range<usize>,
    choices: &mut dyn Choices,
) -> String {
    let first = rows.start;
    match column {
        Values::I64(list) => {
            let value = choices.extreme(list[first].cast_unsigned());
            list[rows].fill(value.cast_signed());
            format!("{value:#x}")
        }
        Values::I32(list) => {
            // Columns of this type also hold codes and small numbers.
            let value = match choices.below(3) {
                0 => choices.below(9) as u32,
                _ => choices.extreme(list[first].cast_unsigned().into()) as u32,
            };
            list[rows].fill(value.cast_signed());
            format!("{value:#x}")
        }
        Values::OptionalI64(list) => {
            let own = list[first].unwrap_or(0).cast_unsigned();
            let value = (choices.below(4) > 0).then(|| choices.extreme(own));
            list[rows].fill(value.map(u64::cast_signed));
            format!("{value:x?}")
        }
        Values::OptionalI32(list) => {
            let own = u64::from(list[first].unwrap_or(0).cast_unsigned());
            let value = (choices.below(4) > 0).then(|| choices.extreme(own) as u32);
            list[rows].fill(value.map(u32::cast_signed));
            format!("{value:x?}")
        }
        Values::F32(list) => {
            const EDGES: [f32; 10] = [
                f32::NAN,
                f32::INFINITY,
                f32::NEG_INFINITY,
                f32::MAX,
                f32::MIN,
                f32::MIN_POSITIVE,
                -1.0,
                -0.0,
                0.0,
                1e20,
            ];
            let value = EDGES[choices.position(EDGES.len())];
            list[rows].fill(value);
            value.to_string()
        }
        Values::Bool(list) => {
            let value = !list[first];
            list[rows].fill(value);
            value.to_string()
        }
        Values::Text(list) => {
            let mut value = long_text(choices);
            value.truncate(value.floor_char_boundary(TEXTS_BYTES_MAX / rows.len()));
            list[rows].fill(ByteArray::from(value.as_str()));
            format!(
                "{} bytes: {:?}…",
                value.len(),
                value.chars().take(12).collect::<String>()
            )
        }
    }
}
