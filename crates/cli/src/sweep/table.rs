//! Tables of a sweep's results.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use nearpage_amount::{count, counted, percent, time};
use nearpage_report::{printable, shorten};
use schemars::JsonSchema;
use serde::Serialize;

use super::SweepWork;
use super::file::Cell;
use super::result::CellResult;

/// Limit of the number of failed cells that are named.
const NAMED_MAX: usize = 5;

/// What `sweep report --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SweepOutput<'a> {
    /// Version of this form.
    version: u32,
    /// A row for each result, in the order of the file.
    pub(super) rows: Vec<Row<'a>>,
    /// Number of cells with and without a result.
    status: SweepStatusOutput,
}

/// What `sweep status --json` prints.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct SweepStatusOutput {
    /// Version of this form.
    version: u32,
    /// Cells of the sweep.
    cells: u64,
    /// Cells with a result.
    done: u64,
    /// Cells without a result; they are tried again.
    failed: Vec<FailedCell>,
}

/// A cell without a result.
#[derive(Clone, Debug, Serialize, JsonSchema)]
struct FailedCell {
    /// Name of the cell.
    cell: String,
    /// Cause of the failure.
    cause: String,
}

/// A result, with the cell that it belongs to.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Row<'a> {
    /// Folder of the trace, as the file names it.
    pub(super) recording: &'a str,
    /// The machine, as the file names it; null: the trace's own.
    pub(super) machine: Option<&'a str>,
    /// The policy.
    pub(super) policy: &'a str,
    /// Parameters that the file sets.
    pub(super) parameters: &'a BTreeMap<String, String>,
    /// Time divided by that of the first policy on the same trace and machine; null: the first policy has no result.
    pub(super) times_first: Option<f64>,
    /// The figures.
    #[serde(flatten)]
    pub(super) result: CellResult,
}

/// Cells with their results.
pub struct Table {
    cells: Vec<(Cell, Option<Result<CellResult, String>>)>,
}

impl Table {
    /// Reads the kept results.
    pub fn of(work: &SweepWork) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        work.for_each_group(|opened, _, cells| {
            let machine = opened.machine(&cells[0])?;
            for (cell, inputs) in cells.iter().zip(opened.inputs(cells, &machine)?) {
                let kept = inputs.kept(&work.folder)?;
                let result = kept.map(|kept| match (kept.failed, kept.result) {
                    (None, Some(result)) => Ok(result),
                    (cause, _) => Err(cause.unwrap_or_else(|| "no result".to_owned())),
                });
                found.push((cell.clone(), result));
            }
            Ok(())
        })?;
        Ok(Self { cells: found })
    }

    pub fn status(&self) -> SweepStatusOutput {
        let done = self
            .cells
            .iter()
            .filter(|(_, result)| matches!(result, Some(Ok(_))));
        let failed = self.cells.iter().filter_map(|(cell, result)| match result {
            Some(Err(cause)) => Some(FailedCell {
                cell: cell.title(),
                cause: cause.clone(),
            }),
            _ => None,
        });
        SweepStatusOutput {
            version: nearpage_recording::JSON_VERSION,
            cells: self.cells.len() as u64,
            done: done.count() as u64,
            failed: failed.collect(),
        }
    }

    pub fn output(&self) -> SweepOutput<'_> {
        let mut first: Option<(&Cell, Option<f64>)> = None;
        let mut rows = Vec::new();
        for (cell, result) in &self.cells {
            let result = result.as_ref().and_then(|result| result.as_ref().ok());
            let place = |cell: &Cell| (cell.recording.clone(), cell.machine.clone());
            if first.is_none_or(|(known, _)| place(known) != place(cell)) {
                first = Some((cell, result.map(|result| result.time_ns)));
            }
            let of_first = first
                .and_then(|(_, time_ns)| time_ns)
                .filter(|&ns| ns > 0.0);
            rows.extend(result.map(|result| Row {
                recording: &cell.recording,
                machine: cell.machine.as_deref(),
                policy: &cell.policy,
                parameters: &cell.parameters,
                times_first: of_first.map(|time_ns| result.time_ns / time_ns),
                result: *result,
            }));
        }
        SweepOutput {
            version: nearpage_recording::JSON_VERSION,
            rows,
            status: self.status(),
        }
    }
}

impl SweepStatusOutput {
    pub fn is_complete(&self) -> bool {
        self.done == self.cells
    }

    pub fn to_text(&self) -> String {
        let failed = self.failed.len() as u64;
        let missing = self.cells - self.done - failed;
        let mut text = format!("{} of {} computed", self.done, counted(self.cells, "cell"));
        for (count, what) in [(failed, "failed"), (missing, "missing")] {
            if count > 0 {
                let _ = write!(text, ", {count} {what}");
            }
        }
        text.push('\n');
        for FailedCell { cell, cause } in self.failed.iter().take(NAMED_MAX) {
            let _ = writeln!(text, "failed: {}: {}", printable(cell), printable(cause));
        }
        if self.failed.len() > NAMED_MAX {
            let _ = writeln!(text, "… and {} more failed", self.failed.len() - NAMED_MAX);
        }
        text
    }
}

impl SweepOutput<'_> {
    /// A line for each result, below a heading for each trace and machine.
    pub fn to_text(&self, width: usize) -> String {
        let mut text = String::new();
        let mut before = None;
        for row in &self.rows {
            let place = (row.recording, row.machine);
            if before != Some(place) {
                if before.is_some() {
                    text.push('\n');
                }
                let machine = row.machine.unwrap_or("its own machine");
                let _ = writeln!(
                    text,
                    "{} on {}",
                    printable(row.recording),
                    printable(machine)
                );
                text.push_str("     time  × first  local  moved pages  policy\n");
                before = Some(place);
            }
            let ratio = row.times_first.map(|ratio| format!("{ratio:.3}"));
            let moved = row.result.migrated + row.result.replicated;
            let mut policy = row.policy.to_owned();
            for (name, value) in row.parameters {
                let _ = write!(policy, ", {name}={value}");
            }
            let left = format!(
                "{:>9}  {:>7}  {:>5}  {:>11}  ",
                time(row.result.time_ns),
                ratio.unwrap_or_default(),
                percent(row.result.local_share),
                count(moved as f64),
            );
            let room = width.saturating_sub(left.chars().count()).max(16);
            let _ = writeln!(text, "{left}{}", shorten(&printable(&policy), room));
        }
        if !self.status.is_complete() {
            if before.is_some() {
                text.push('\n');
            }
            text += &self.status.to_text();
        }
        text
    }

    /// Names of the parameters in the rows.
    pub fn parameters(&self) -> BTreeSet<&str> {
        let names = self.rows.iter().flat_map(|row| row.parameters.keys());
        names.map(String::as_str).collect()
    }
}
