//! Opens recordings for commands: shows progress and prints the recording's notes.

use std::path::Path;

use nearpage_attribution::Operations;
use nearpage_planner::Analysis;

use crate::progress::Progress;
use crate::terminal;

/// Opens and attributes a recording, and prints its notes.
pub fn read(folder: &Path, operations: Operations) -> anyhow::Result<Analysis> {
    let progress = Progress::new(format!("reading {}", folder.display()));
    let analysis = Analysis::watched(folder, operations, &|done, all| progress.done(done, all))?;
    analysis.notes.iter().for_each(|note| terminal::say(note));
    Ok(analysis)
}
