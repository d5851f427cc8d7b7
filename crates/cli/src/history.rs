//! `nearpage history`: predictions beside measurements.

mod file;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use nearpage_amount::{counted, percent, signed_change};
use nearpage_machine::Machine;
use nearpage_plan::Program;
use nearpage_planner::{DecidedPlan, ErrorSource, MachineClass, ModelError, ModelErrors};
use nearpage_report::{Column, printable, wrapped, write_lines};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{arguments, json, terminal};
use file::{History, MeasuredBy, Pair, VERSION};

/// What `history --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct HistoryOutput {
    /// Version of this form.
    version: u32,
    /// Path of the history; null without a home folder.
    file: Option<PathBuf>,
    /// Predictions and measurements, oldest first.
    pairs: Vec<Pair>,
    /// Number of lines that cannot be read.
    unreadable: usize,
    /// Error of the model on each class of machines that has enough pairs.
    errors: Vec<ModelError>,
}

pub fn main(arguments: arguments::History) -> anyhow::Result<ExitCode> {
    let history = History::of_user();
    let file = history.as_ref().map(History::path);
    let named = || {
        file.as_ref()
            .map_or(String::new(), |path| path.display().to_string())
    };
    if arguments.clear {
        if let Some(history) = &history {
            history.clear().with_context(named)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let kept = match &history {
        Some(history) => history.read().with_context(named)?,
        None => file::HistoryContent::default(),
    };
    let errors = file::errors(&kept.pairs);
    let classes = [
        MachineClass::OneHop,
        MachineClass::SeveralHops,
        MachineClass::MemoryOnlyNodes,
    ];
    let output = HistoryOutput {
        version: nearpage_recording::JSON_VERSION,
        file,
        pairs: kept.pairs,
        unreadable: kept.unreadable,
        errors: classes.iter().map(|&class| errors.of(class)).collect(),
    };
    match arguments.json {
        true => json::print(&output)?,
        false => terminal::print(&output.to_text(terminal::width()))?,
    }
    Ok(ExitCode::SUCCESS)
}

impl HistoryOutput {
    fn to_text(&self, columns_max: usize) -> String {
        let sentence = |words: &str| wrapped(words, columns_max) + "\n";
        if self.pairs.is_empty() {
            return sentence(
                "No prediction was compared with a run yet: `nearpage optimize -- COMMAND` does, on a machine with several \
                 memory nodes",
            );
        }
        let mut text = String::new();
        self.write_pairs(columns_max, &mut text);
        let learned = |error: &&ModelError| error.source == ErrorSource::History;
        for error in self.errors.iter().filter(learned) {
            text += &sentence(&format!(
                "machines {}: {} modelled predictions, half within {} of what was measured, nine in ten within {}",
                error.class.as_str(),
                error.pairs,
                percent(error.median),
                percent(error.nine_in_ten)
            ));
        }
        if self.unreadable > 0 {
            let lines = counted(self.unreadable as u64, "line");
            text += &sentence(&format!(
                "{lines} cannot be read: another version wrote that"
            ));
        }
        text
    }

    fn write_pairs(&self, columns_max: usize, text: &mut String) {
        let column = |title, rank, cell: &dyn Fn(&Pair) -> String| Column {
            title,
            rank,
            cells: self.pairs.iter().map(cell).collect(),
        };
        let range = |pair: &Pair| {
            pair.predicted_range
                .map_or("–".to_owned(), |[least, most]| {
                    format!("{} to {}", signed_change(least), signed_change(most))
                })
        };
        let measured_by = |pair: &Pair| match pair.measured_by {
            MeasuredBy::Optimize => "optimize".to_owned(),
            MeasuredBy::Run => "run".to_owned(),
        };
        let columns = vec![
            column("date", 3, &|pair| date(pair.unix_s)),
            column("predicted", 6, &|pair| signed_change(pair.predicted)),
            column("nine in ten", 1, &range),
            column("measured", 5, &|pair| signed_change(pair.measured)),
            column("error", 4, &|pair| signed_change(pair.error())),
            column("by", 2, &measured_by),
        ];
        let named = |pair: &Pair| printable(&format!("{} on {}", pair.program, pair.machine));
        let names: Vec<String> = self.pairs.iter().map(named).collect();
        write_lines(columns, "program", &names, columns_max, text);
    }
}

/// Errors of the model, learned from this user's history.
pub fn errors() -> ModelErrors {
    let kept = History::of_user().and_then(|history| history.read().ok());
    kept.map_or_else(ModelErrors::default, |kept| file::errors(&kept.pairs))
}

/// Measurements of `optimize` for one plan: medians of `runs` runs of each kind.
pub struct Measured<'a> {
    pub program: &'a Program,
    pub machine: &'a Machine,
    pub decided: &'a DecidedPlan,
    pub first_touch_ns: f64,
    pub planned_ns: f64,
    pub runs: u32,
    pub kept: Option<&'a PathBuf>,
}

/// Keeps a measurement beside its prediction, and returns a line that compares the two; `None` without a prediction.
pub fn keep(measured: &Measured<'_>) -> Option<String> {
    let time = measured.decided.time?;
    let pair = Pair {
        version: VERSION,
        unix_s: now(),
        program: measured.program.executable.clone(),
        key: file::key(measured.program),
        machine: measured.machine.name.clone(),
        class: MachineClass::of(measured.machine),
        measured_by: MeasuredBy::Optimize,
        predicted_by: time.by,
        predicted: time.planned_ns / time.first_touch_ns - 1.0,
        predicted_range: time.uncertainty.change,
        measured: measured.planned_ns / measured.first_touch_ns - 1.0,
        first_touch_ns: measured.first_touch_ns,
        planned_ns: measured.planned_ns,
        runs: measured.runs,
        plan: measured.kept.and_then(|path| file::last_part(path)),
    };
    Some(kept(&pair))
}

/// Keeps the time of a run under a kept plan, and compares it with the measurement and prediction of `optimize`. `None`
/// if `optimize` did not measure this plan with these arguments.
pub fn keep_run(program: &Program, plan: &std::path::Path, elapsed: Duration) -> Option<String> {
    let history = History::of_user()?;
    let (key, plan) = (file::key(program), file::last_part(plan));
    let kept_pairs = history.read().ok()?.pairs;
    let is_it = |pair: &&Pair| {
        pair.measured_by == MeasuredBy::Optimize && pair.key == key && pair.plan == plan
    };
    let before = kept_pairs.iter().rev().find(is_it)?;
    let planned_ns = 1e9 * elapsed.as_secs_f64();
    let pair = Pair {
        unix_s: now(),
        measured_by: MeasuredBy::Run,
        measured: planned_ns / before.first_touch_ns - 1.0,
        planned_ns,
        runs: 1,
        ..before.clone()
    };
    Some(kept(&pair))
}

/// Keeps a pair, and returns the pair in words.
fn kept(pair: &Pair) -> String {
    let range = pair.predicted_range.filter(|[least, most]| most > least);
    let range = range.map_or(String::new(), |[least, most]| {
        format!(
            ", {} to {} by the number of samples",
            signed_change(least),
            signed_change(most)
        )
    });
    let words = format!(
        "elapsed time against the run without the plan: {}; predicted: {}{range}",
        signed_change(pair.measured),
        signed_change(pair.predicted)
    );
    let history = History::of_user();
    match history.map(|history| history.add(pair).map_err(|error| (history.path(), error))) {
        Some(Err((path, error))) => {
            format!(
                "{words}\n{}: not kept for `nearpage history`: {error}",
                path.display()
            )
        }
        _ => words,
    }
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs()
}

/// Date in UTC, such as 2026-11-26 (algorithm: Hinnant's `civil_from_days`).
fn date(unix_s: u64) -> String {
    let days = (unix_s / 86_400).min(3_000_000) as i64 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = 400 * era + year_of_era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_named() {
        for (unix_s, expected) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_799, "2000-02-29"),
            (1_795_651_200, "2026-11-26"),
        ] {
            assert_eq!(date(unix_s), expected);
        }
    }
}
