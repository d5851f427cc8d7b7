//! `nearpage compare`: how runs of a program differ, and whether conditions on them hold.

use std::path::Path;
use std::process::ExitCode;

use nearpage_attribution::Operations;
use nearpage_report::{Run, RunComparison, runs_text};

use crate::arguments::Compare;
use crate::{Usage, analysis, json, terminal};

/// Exit status if a condition of --fail-if holds.
const FAILED: u8 = 3;

pub fn main(arguments: Compare) -> anyhow::Result<ExitCode> {
    let mut settings = Vec::new();
    for named in std::iter::once(&arguments.before).chain(&arguments.after) {
        let runs: Result<Vec<Run>, _> = repetitions(named)?.into_iter().map(read).collect();
        settings.push(runs?);
    }
    let comparison = RunComparison::new(&settings, &arguments.fail_if)?;
    match arguments.json {
        true => json::print(&comparison)?,
        false => terminal::print(&runs_text(
            &comparison,
            terminal::width(),
            terminal::colour(),
        ))?,
    }
    Ok(if comparison.has_failed() {
        ExitCode::from(FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Splits a list of recordings at commas, unless a folder has the whole text as its name.
fn repetitions(named: &str) -> Result<Vec<&str>, Usage> {
    if Path::new(named).exists() {
        return Ok(vec![named]);
    }
    let names: Vec<&str> = named.split(',').collect();
    match names.contains(&"") {
        true => Err(Usage(format!(
            "'{named}': expected recordings separated by commas"
        ))),
        false => Ok(names),
    }
}

fn read(name: &str) -> anyhow::Result<Run> {
    let analysis = analysis::read(Path::new(name), Operations::Both)?;
    Ok(Run::new(
        name.to_owned(),
        &analysis.recording,
        &analysis.attribution,
    ))
}
