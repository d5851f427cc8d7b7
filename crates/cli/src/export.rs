//! `nearpage export`: a recording as Parquet tables, whatever form it is in.

use std::process::ExitCode;

use anyhow::Context;
use nearpage_recording::Recording;

use crate::arguments::Export;
use crate::progress::Progress;

pub fn main(arguments: Export) -> anyhow::Result<ExitCode> {
    let recording = Recording::open(&arguments.recording)?;
    let mut metadata = recording.metadata.clone();
    metadata.notes.push(format!(
        "exported from {}",
        arguments.recording.to_string_lossy()
    ));
    {
        let _progress = Progress::new(format!("exporting {}", arguments.recording.display()));
        Recording::write(
            &arguments.output,
            &metadata,
            &recording.machine,
            &recording.tables,
            |writer| {
                recording
                    .accesses()
                    .try_for_each(|batch| writer.accesses(&batch?))
            },
        )
        .with_context(|| format!("{}: not exported", arguments.recording.display()))?;
    }
    if !arguments.quiet {
        eprintln!(
            "nearpage: {} accesses exported to {}",
            recording.access_count(),
            arguments.output.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
