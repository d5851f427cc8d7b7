//! Results for programs.

use serde::Serialize;

use crate::terminal;

/// Prints a result as indented JSON.
pub fn print(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(terminal::print(
        &(serde_json::to_string_pretty(value)? + "\n"),
    )?)
}
