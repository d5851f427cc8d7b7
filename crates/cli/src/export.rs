//! `nearpage export`: writes a recording in any of its forms as Parquet tables, or as a profile for a viewer.

use std::io::BufWriter;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use nearpage_amount::counted;
use nearpage_recording::{Job, Recording};
use nearpage_report::{ProfileCounts, ProfileFormat, write_profile};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Export, ExportFormat};
use crate::progress::Progress;
use crate::whole_file::WholeFile;
use crate::{Usage, job, json, shell, terminal};

/// Default limit of accesses. Viewers can still handle files of this size.
const AT_MOST: u64 = 1_000_000;

/// What `export --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ExportOutput<'a> {
    /// Version of this form.
    version: u32,
    /// Folder of the recording.
    input: &'a Path,
    /// The file that was written; for tables, their folder.
    output: &'a Path,
    /// Format of the output.
    format: ExportFormat,
    /// Number of accesses that were written.
    accesses: u64,
    /// Number of accesses that were left out by `--at-most`; the written accesses stand for them.
    left_out_accesses: u64,
}

pub fn main(arguments: Export) -> anyhow::Result<ExitCode> {
    if let Some(job) = Job::open(&arguments.recording)? {
        return of_job(&arguments, job);
    }
    let format = match arguments.to {
        ExportFormat::Parquet => return tables(&arguments),
        ExportFormat::PerfScript => ProfileFormat::PerfScript,
        ExportFormat::Csv => ProfileFormat::Csv,
        ExportFormat::Firefox => ProfileFormat::Firefox,
        ExportFormat::Pprof => ProfileFormat::Pprof,
        ExportFormat::Otlp => ProfileFormat::Otlp,
        ExportFormat::Perfetto => ProfileFormat::Perfetto,
    };
    let adds_up = matches!(format, ProfileFormat::Pprof | ProfileFormat::Otlp);
    if adds_up && arguments.at_most.is_some() {
        return Err(Usage(
            "--at-most says nothing about pprof and OTLP, which add all accesses up".to_owned(),
        )
        .into());
    }
    if arguments.json && arguments.output == Path::new("-") {
        return Err(Usage(
            "--json and -o - both print on standard output: name a file with -o".to_owned(),
        )
        .into());
    }
    let recording = Recording::open(&arguments.recording)?;
    let at_most = arguments.at_most.unwrap_or(AT_MOST);
    let written = {
        let _progress = Progress::new(format!("exporting {}", arguments.recording.display()));
        if arguments.output == Path::new("-") {
            let mut out = BufWriter::new(std::io::stdout().lock());
            write_profile(&recording, format, at_most, &mut out)?
        } else {
            let mut file = WholeFile::create(&arguments.output)?;
            let written = write_profile(&recording, format, at_most, &mut file)
                .with_context(|| arguments.output.display().to_string())?;
            file.finish()?;
            written
        }
    };
    print_outcome(&arguments, written)?;
    Ok(ExitCode::SUCCESS)
}

/// Exports the tables of a job's ranks. Profiles are refused, because their viewers show one program at a time.
fn of_job(arguments: &Export, job: Job) -> anyhow::Result<ExitCode> {
    if arguments.to != ExportFormat::Parquet || arguments.at_most.is_some() {
        let rank = &job.ranks[0].folder;
        return Err(Usage(format!(
            "{} is a job, whose ranks are exported together as Parquet only, whole; name the folder of a rank, such as {}",
            job.folder.display(),
            rank.display()
        ))
        .into());
    }
    let merged = job::merge(&[job], &arguments.output)?;
    if arguments.json {
        let (accesses, dropped) = (merged.accesses, 0);
        json::print(&output(arguments, &ProfileCounts { accesses, dropped }))?;
    } else {
        merged.say(arguments.quiet);
    }
    Ok(ExitCode::SUCCESS)
}

fn output<'a>(arguments: &'a Export, written: &ProfileCounts) -> ExportOutput<'a> {
    ExportOutput {
        version: nearpage_recording::JSON_VERSION,
        input: &arguments.recording,
        output: &arguments.output,
        format: arguments.to,
        accesses: written.accesses,
        left_out_accesses: written.dropped,
    }
}

/// Reports the export as JSON on standard output, or in a line on standard error.
fn print_outcome(arguments: &Export, written: ProfileCounts) -> anyhow::Result<()> {
    if arguments.json {
        return json::print(&output(arguments, &written));
    }
    let ProfileCounts { accesses, dropped } = written;
    if arguments.quiet {
        return Ok(());
    }
    let sampled = if dropped == 0 {
        String::new()
    } else {
        format!("; left out: {dropped}, for which the others stand (--at-most)")
    };
    terminal::say(&format!(
        "{} exported to {}{sampled}",
        counted(accesses, "access"),
        arguments.output.display()
    ));
    let file = shell::path(&arguments.output);
    match arguments.to {
        ExportFormat::Parquet => terminal::next(&format!("nearpage report {file}")),
        ExportFormat::PerfScript | ExportFormat::Csv => {
            terminal::next(&format!("nearpage import {file}"));
        }
        ExportFormat::Pprof => {
            terminal::next(&format!("go tool pprof -tagroot object,level {file}"));
        }
        ExportFormat::Firefox => terminal::say("next: open it at profiler.firefox.com"),
        ExportFormat::Perfetto => terminal::say("next: open it at ui.perfetto.dev"),
        ExportFormat::Otlp => terminal::next(&format!(
            "curl --data-binary @{file} -H 'Content-Type: application/x-protobuf' http://COLLECTOR:4318/v1development/profiles"
        )),
    }
    Ok(())
}

fn tables(arguments: &Export) -> anyhow::Result<ExitCode> {
    if arguments.at_most.is_some() {
        return Err(Usage(
            "--at-most is for profiles: Parquet tables have all accesses".to_owned(),
        )
        .into());
    }
    if arguments.output == Path::new("-") {
        return Err(Usage(
            "-o - prints a file: Parquet tables are a folder, name it with -o".to_owned(),
        )
        .into());
    }
    let recording = Recording::open(&arguments.recording)?;
    let mut metadata = recording.metadata.clone();
    metadata.notes.push(format!(
        "exported from {}",
        arguments.recording.to_string_lossy()
    ));
    {
        let progress = Progress::new(format!("exporting {}", arguments.recording.display()));
        let (mut exported, all) = (0, recording.access_count());
        Recording::write(
            &arguments.output,
            &metadata,
            &recording.machine,
            &recording.tables,
            |writer| {
                recording.accesses().try_for_each(|batch| {
                    let batch = batch?;
                    exported += batch.thread.len() as u64;
                    progress.done(exported, all);
                    writer.accesses(&batch)
                })
            },
        )
        .and_then(|()| recording.copy_names(&arguments.output))
        .with_context(|| format!("{}: not exported", arguments.recording.display()))?;
    }
    let written = ProfileCounts {
        accesses: recording.access_count(),
        dropped: 0,
    };
    print_outcome(arguments, written)?;
    Ok(ExitCode::SUCCESS)
}
