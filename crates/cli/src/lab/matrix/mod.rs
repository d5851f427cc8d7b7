//! `nearpage lab matrix`: runs commands × machines × settings in the lab, and prints a table of the results.

mod cell;
mod file;
mod table;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use nearpage_amount::time;

use crate::arguments::Matrix;
use crate::cells::Attempt;
use crate::progress::Progress;
use crate::{Usage, json, terminal};

use cell::Spec;
use file::MatrixFile;
use table::Table;

pub use cell::Cell;
pub use table::MatrixOutput;

/// Size limit of the file.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub fn main(arguments: &Matrix) -> anyhow::Result<ExitCode> {
    let name = arguments.file.display().to_string();
    let text = nearpage_files::read_text(&arguments.file, FILE_BYTES_MAX)
        .with_context(|| format!("{name}: can't be read"))?;
    let mut file = MatrixFile::parse(&text).map_err(|error| Usage(format!("{name}: {error}")))?;
    if let Some(kernel) = &arguments.kernel {
        let kernel = std::path::absolute(kernel);
        file.kernel = Some(kernel.context("the current folder can't be found")?);
    }
    // Paths in the file are relative to its folder, whatever the current folder is.
    let path = arguments
        .file
        .canonicalize()
        .with_context(|| format!("{name}: can't be found"))?;
    let folder = path.with_extension("runs");
    if let Some(parent) = path.parent() {
        std::env::set_current_dir(parent)
            .with_context(|| format!("{name}: its folder can't be entered"))?;
    }
    let runs = file.runs();
    if !arguments.no_run {
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("{}: can't be made", folder.display()))?;
        let stop_after = arguments.stop_after.map(Duration::from_secs_f64);
        run_missing(&runs, &folder, &file, stop_after)?;
    }
    let kept: anyhow::Result<Vec<Option<Cell>>> =
        runs.iter().map(|run| run.kept(&folder)).collect();
    let table = Table::new(&runs, &kept?);
    match (arguments.json, arguments.csv) {
        (true, _) => json::print(&table.to_json())?,
        (_, true) => terminal::print(&table.to_csv())?,
        _ => terminal::print(&table.to_text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes the runs that have no result yet, or that failed.
fn run_missing(
    runs: &[Spec],
    folder: &Path,
    file: &MatrixFile,
    stop_after: Option<Duration>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let missing = |run: &&Spec| match run.kept(folder) {
        Ok(Some(cell)) => cell.failed.is_some(),
        // The run itself reports a file that can't be read.
        _ => true,
    };
    let missing: Vec<&Spec> = runs.iter().filter(missing).collect();
    for (number, run) in missing.iter().enumerate() {
        if number > 0 && stop_after.is_some_and(|limit| begun.elapsed() > limit) {
            break;
        }
        let title = format!("{} of {}: {}", number + 1, missing.len(), run.title());
        let attempt = {
            let _progress = Progress::new(title.clone());
            run.run(folder, file)?
        };
        match attempt {
            Attempt::Elsewhere => {}
            Attempt::Done(cell) => {
                let words = match (&cell.failed, cell.seconds) {
                    (Some(cause), _) => format!("failed: {cause}"),
                    (None, Some(seconds)) => time(1e9 * seconds),
                    (None, None) => String::new(),
                };
                terminal::say(&format!("{title}: {words}"));
            }
        }
    }
    Ok(())
}
