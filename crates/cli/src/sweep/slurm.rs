//! Runs a sweep as an array job of Slurm, with one task for each shard.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use super::SweepWork;
use crate::arguments::SweepRun;
use crate::{shell, terminal};

/// Submits the sweep and waits until the job has ended.
pub fn run(arguments: &SweepRun, work: &SweepWork) -> anyhow::Result<()> {
    let shards = arguments
        .shards
        .min(u32::try_from(work.cells.len()).unwrap_or(u32::MAX));
    std::fs::create_dir_all(&work.folder)
        .with_context(|| format!("{}: can't be made", work.folder.display()))?;
    let nearpage = std::env::current_exe().context("nearpage's own file is not known")?;
    let mut sbatch = Command::new("sbatch");
    sbatch
        .args(["--parsable", "--wait", "--job-name=nearpage-sweep"])
        .arg(format!("--array=1-{shards}"))
        .arg(output_option(&work.folder))
        .args(&arguments.options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut waiting = sbatch.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!(
            "sbatch: not found, so there is no Slurm here; `nearpage sweep run {}` computes the sweep on this machine",
            shell::path(Path::new(&work.name))
        ),
        _ => anyhow::Error::from(error).context("sbatch: can't be run"),
    })?;
    let script = script(&nearpage, &work.path, shards, arguments.jobs);
    if let Some(mut input) = waiting.stdin.take() {
        // If sbatch has ended, the write fails, and the exit status gives the reason.
        let _ = input.write_all(script.as_bytes());
    }
    terminal::say(&format!(
        "submitted as an array of {shards}; waiting (Ctrl-C ends the waiting, not the job)"
    ));
    let ended = waiting
        .wait_with_output()
        .context("sbatch: can't be waited for")?;
    let job = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
    if !ended.status.success() {
        match job.as_str() {
            "" => bail!("sbatch refused the job ({})", ended.status),
            job => terminal::say(&format!(
                "a task of job {job} failed; its output is in {}",
                work.folder.display()
            )),
        }
    }
    Ok(())
}

/// Option for the output files of the tasks.
fn output_option(folder: &Path) -> std::ffi::OsString {
    let mut option = OsStr::new("--output=").to_owned();
    option.push(folder.join("slurm-%A_%a.out"));
    option
}

/// Shell script of a task.
fn script(nearpage: &Path, sweep: &Path, shards: u32, jobs: Option<u16>) -> String {
    let path = |path: &Path| shell::in_quotes(&path.to_string_lossy());
    let jobs = jobs.map_or_else(
        || "\"${SLURM_CPUS_PER_TASK:-1}\"".to_owned(),
        |jobs| jobs.to_string(),
    );
    format!(
        "#!/bin/sh\nexec {} simulate --sweep {} --shard \"$SLURM_ARRAY_TASK_ID/{shards}\" --jobs {jobs}\n",
        path(nearpage),
        path(sweep)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_computes_its_shard() {
        let script = script(
            Path::new("/opt/nearpage"),
            Path::new("/my sweep.toml"),
            4,
            None,
        );
        assert_eq!(
            script,
            "#!/bin/sh\nexec '/opt/nearpage' simulate --sweep '/my sweep.toml' --shard \"$SLURM_ARRAY_TASK_ID/4\" --jobs \
             \"${SLURM_CPUS_PER_TASK:-1}\"\n"
        );
    }
}
