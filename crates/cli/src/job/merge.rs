//! `nearpage merge JOB…`: merges the accesses of all ranks into one Parquet data set for query engines.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use nearpage_amount::counted;
use nearpage_recording::{Job, RankRecording, Recording, fit_for_a_file};
use nearpage_report::write_labelled_table;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Merge;
use crate::progress::Progress;
use crate::{Usage, json, terminal};

/// Name in a partition where the recordings don't give the job or host.
const UNKNOWN: &str = "unknown";

/// What `merge --json` prints.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct MergeOutput {
    /// Version of this form.
    version: u32,
    /// Folder of the data set.
    output: PathBuf,
    /// Number of ranks whose accesses are in the data set.
    ranks: u64,
    /// Number of accesses.
    pub accesses: u64,
    /// Missing ranks, and ranks that were left out.
    notes: Vec<String>,
}

pub fn merge_jobs(arguments: &Merge) -> anyhow::Result<ExitCode> {
    let open = |folder: &PathBuf| {
        Job::open(folder)?.ok_or_else(|| {
            anyhow::Error::from(Usage(match folder.exists() {
                true => format!(
                    "{}: not the folder of a job; of one recording, `nearpage export` makes tables",
                    folder.display()
                ),
                false => format!("{}: no such folder", folder.display()),
            }))
        })
    };
    let jobs = arguments.jobs.iter().map(open);
    let jobs = jobs.collect::<anyhow::Result<Vec<Job>>>()?;
    let merged = merge(&jobs, &arguments.output)?;
    match arguments.json {
        true => json::print(&merged)?,
        false => merged.say(arguments.quiet),
    }
    Ok(ExitCode::SUCCESS)
}

impl MergeOutput {
    /// Prints the notes, and unless `is_quiet` also the result.
    pub fn say(&self, is_quiet: bool) {
        self.notes.iter().for_each(|note| terminal::say(note));
        if !is_quiet {
            terminal::say(&format!(
                "{} of {} merged into {}",
                counted(self.accesses, "access"),
                counted(self.ranks, "rank"),
                self.output.display()
            ));
            let files = format!("{}/**/*.parquet", self.output.display()).replace('\'', "''");
            let query = format!(
                "SELECT object, sum(cost_ns) AS lost_ns FROM '{files}' GROUP BY object ORDER BY lost_ns DESC"
            );
            terminal::next(&format!("duckdb -c {}", quoted_by_double(&query)));
        }
    }
}

/// Quotes a text with double quotes for a shell; the text has single quotes of its own.
fn quoted_by_double(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        if matches!(character, '"' | '\\' | '$' | '`') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted + "\""
}

/// Writes the data set under a temporary name and renames it at the end, so that the output is complete or absent.
pub fn merge(jobs: &[Job], output: &Path) -> anyhow::Result<MergeOutput> {
    let is_used = match fs::read_dir(output) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    if is_used {
        return Err(nearpage_recording::Error::FolderInUse(output.to_owned()).into());
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(output.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let unfinished = Unfinished(output.with_file_name(name));
    let mut merged = MergeOutput {
        version: nearpage_recording::JSON_VERSION,
        output: output.to_owned(),
        ..MergeOutput::default()
    };
    let all: usize = jobs.iter().map(|job| job.ranks.len()).sum();
    let progress = Progress::new("merging ranks".to_owned());
    let mut begun = 0;
    for job in jobs {
        merged.notes.extend(job.notes.iter().cloned());
        for rank in &job.ranks {
            progress.say(format!("merging rank {}", rank.rank));
            progress.done(begun, all as u64);
            begun += 1;
            let recording = match Recording::open(&rank.folder) {
                Ok(recording) => recording,
                Err(error) => {
                    let note = format!("rank {} left out: {error}", rank.rank);
                    merged.notes.push(note);
                    continue;
                }
            };
            let partition = partition(&unfinished.0, job, rank);
            if partition.exists() {
                anyhow::bail!(
                    "{}: rank {} of this job is in another of the jobs that were named",
                    job.folder.display(),
                    rank.rank
                );
            }
            make(&partition)?;
            merged.accesses += write_labelled_table(&recording, &partition)
                .with_context(|| format!("{}: not merged", rank.folder.display()))?;
            merged.ranks += 1;
        }
    }
    if merged.ranks == 0 {
        let note = merged
            .notes
            .last()
            .map_or("no rank can be read", |note| note);
        anyhow::bail!("nothing to merge: {note}");
    }
    fs::rename(&unfinished.0, output)
        .with_context(|| format!("{}: can't be written", output.display()))?;
    Ok(merged)
}

/// A folder that is removed on drop, unless it was renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Folder of a rank in the data set. Query engines read the `key=value` names as columns.
fn partition(output: &Path, job: &Job, rank: &RankRecording) -> PathBuf {
    let value = |text: Option<&str>| {
        let fit = text.and_then(fit_for_a_file);
        fit.unwrap_or_else(|| UNKNOWN.to_owned())
    };
    output
        .join(format!("job={}", value(job.name.as_deref())))
        .join(format!("host={}", value(Some(&rank.host))))
        .join(format!("rank={}", rank.rank))
}

/// Makes a folder that other users cannot read, as folders of recordings are.
fn make(folder: &Path) -> anyhow::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("{}: can't be made", folder.display()))
}
