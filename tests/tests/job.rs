//! Jobs of many ranks: under a real `mpirun`, and under launchers whose variables are set by hand.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_tests::{Case, Finished, nearpage_path, repository};
use serde_json::Value;

/// Variables of `srun`, for one task of a step.
fn slurm(command: &mut Command, rank: u32, size: u32) {
    command
        .env("SLURM_JOB_ID", "77")
        .env("SLURM_STEP_ID", "0")
        .env("SLURM_PROCID", rank.to_string())
        .env("SLURM_STEP_NUM_TASKS", size.to_string())
        .env("SLURM_LOCALID", rank.to_string())
        .env("SLURM_NODEID", "0")
        .env("SLURMD_NODENAME", "n1");
}

fn record(case: &Case, rank: u32, size: u32, words: &[&str]) -> Command {
    let mut command = case.command(nearpage_path());
    command.arg("record").args(words);
    slurm(&mut command, rank, size);
    command
}

fn names(case: &Case, folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(case.path(folder)).expect("a folder");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// The report of a job, as its schema says.
fn report(case: &Case, job: &str) -> Value {
    let report = json(&case.nearpage(["report", "--json", job]).success());
    let schema = repository().join("docs/reference/schema/report-job.json");
    let schema = fs::read_to_string(schema).expect("a kept schema");
    let schema: Value = serde_json::from_str(&schema).expect("JSON");
    let validator = jsonschema::validator_for(&schema).expect("a valid schema");
    let errors: Vec<String> = validator
        .iter_errors(&report)
        .map(|error| format!("{error} at {}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?}\n{report:#}");
    report
}

fn ranks(report: &Value) -> Vec<u64> {
    let ranks = report["ranks"].as_array().expect("ranks");
    ranks
        .iter()
        .map(|rank| rank["rank"].as_u64().expect("a number"))
        .collect()
}

const MPI_PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 1 && rank == 1) MPI_Abort(MPI_COMM_WORLD, 9);
    size_t count = 1 << 20;
    double *values = malloc(count * sizeof *values);
    double sum = 0, all = 0;
    for (size_t i = 0; i < count; i++) values[i] = rank + 1;
    for (int round = 0; round < 20; round++)
        for (size_t i = 0; i < count; i++) sum += values[(i * 4099) & (count - 1)];
    MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, sum %.0f\n", size, all / count / 20);
    MPI_Finalize();
    return 0;
}
"#;

/// `mpirun` of Open MPI with these words, four ranks.
fn mpirun(case: &Case, words: &[&str]) -> Finished {
    let mut command = case.command("mpirun.openmpi");
    // More ranks than cores, by root, with nothing but shared memory between them.
    command
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
        .args(["--mca", "btl", "self,vader"])
        .args(words);
    case.run(command)
}

#[test]
fn an_mpi_program_is_recorded_rank_by_rank_and_runs_as_without() {
    let case = Case::new("mpirun");
    let source = case.write("app.c", MPI_PROGRAM);
    let mut compiler = case.command("mpicc.openmpi");
    compiler
        .args(["-g", "-O1", "-o"])
        .arg(case.path("app"))
        .arg(source);
    case.run(compiler).success();
    let nearpage = nearpage_path();
    let nearpage = nearpage.to_str().expect("a path of letters");
    let recorded = mpirun(&case, &[nearpage, "record", "--rate", "997", "--", "./app"]).success();
    assert_eq!(recorded.stdout, "4 ranks, sum 10\n", "{recorded}");
    let jobs: Vec<String> = names(&case, ".")
        .into_iter()
        .filter(|name| name.ends_with(".nearpage"))
        .collect();
    let [job] = &jobs[..] else {
        panic!("one folder of a job: {jobs:?}\n{recorded}")
    };
    let folders = names(&case, job);
    assert_eq!(folders.len(), 4, "{folders:?}");
    for (rank, folder) in folders.iter().enumerate() {
        assert!(folder.starts_with(&format!("rank-{rank:05}@")), "{folder}");
    }
    // One rank speaks.
    let spoken = recorded.stderr.matches("next: nearpage report").count();
    assert_eq!(spoken, 1, "{recorded}");

    let report = report(&case, job);
    assert_eq!(ranks(&report), [0, 1, 2, 3]);
    assert_eq!(report["size"], 4);
    assert_eq!(
        report["notes"].as_array().expect("notes").len(),
        0,
        "{report}"
    );
    for rank in report["ranks"].as_array().expect("ranks") {
        assert_eq!(rank["exit_status"], 0, "{rank}");
        assert!(rank["cpus"].is_string(), "{rank}");
    }
    for by in ["group", "rank", "host"] {
        let text = case.nearpage(["report", "--by", by, job]).success().stdout;
        assert!(text.contains("4 ranks on 1 host, Open MPI"), "{text}");
    }
    case.nearpage(["report", "--by", "thread", job]).exits(2);
    // A rank that gives up ends the job, recorded or not.
    let alone = mpirun(&case, &["./app", "abort"]);
    let recorded = mpirun(
        &case,
        &[
            nearpage,
            "record",
            "-o",
            "aborted/%r",
            "--",
            "./app",
            "abort",
        ],
    );
    assert_eq!(
        (recorded.code, recorded.signal),
        (alone.code, alone.signal),
        "{recorded}"
    );
    assert_eq!(recorded.stdout, alone.stdout);
    case.nearpage(["report", "aborted"]).success();
}

#[test]
fn ranks_that_start_at_once_get_folders_of_their_own() {
    let case = Case::new("ranks_at_once");
    // All say that they are the same rank, the hardest case.
    let running: Vec<_> = (0..8)
        .map(|_| {
            let mut command = record(&case, 3, 8, &["-q", "--", "sh", "-c", "exit 0"]);
            command
                .stdout(Stdio::null())
                .spawn()
                .expect("nearpage runs")
        })
        .collect();
    for mut recorder in running {
        assert!(recorder.wait().expect("it ends").success());
    }
    let folders = names(&case, "sh.77.nearpage");
    let expected: BTreeSet<String> = (1..=8)
        .map(|number| match number {
            1 => "rank-00003@n1".to_owned(),
            _ => format!("rank-00003@n1.{number}"),
        })
        .collect();
    assert_eq!(folders, expected);
    for folder in &folders {
        let recording = format!("sh.77.nearpage/{folder}");
        case.nearpage(["report", &recording]).success();
    }
    let report = case.nearpage(["report", "sh.77.nearpage"]).success();
    for words in [
        "rank 3: recorded more than once",
        "ranks 0-2 and 4-7 of 8 ranks missing",
    ] {
        assert!(report.stderr.contains(words), "{report}");
    }
}

#[test]
fn placeholders_say_where_a_rank_is_recorded() {
    let case = Case::new("placeholders");
    let shell = ["--", "sh", "-c", "exit 0"];
    let pattern = "run-%q{WHAT}/%j-%r-%l-%s-%n@%h%%";
    let mut command = record(&case, 2, 4, &["-q", "-o", pattern]);
    case.run({
        command.args(shell).env("WHAT", "a");
        command
    })
    .success();
    assert!(case.path("run-a/77-2-2-4-0@n1%/recording.json").exists());
    let wrong = |pattern: &str, words: &str| {
        let mut command = record(&case, 2, 4, &["-o", pattern]);
        command.args(shell).env("WHAT", "../a");
        let finished = case.run(command).exits(2);
        assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
        assert!(finished.stderr.contains(words), "{finished}");
    };
    wrong("%x", "unknown placeholder %x");
    wrong("%q{WHAT}", "value of WHAT");
    wrong("%q{NOT_SET}", "NOT_SET is not set");
    let alone = case.nearpage(["record", "-o", "%r", "--", "true"]).exits(2);
    assert!(alone.stderr.contains("no launcher"), "{alone}");
    // Nothing stays of what never began.
    let mut missing = record(&case, 0, 1, &["--", "./no-such-command"]);
    missing.stdout(Stdio::null());
    assert_ne!(case.run(missing).code, Some(0));
    assert!(!case.path("no-such-command.77.nearpage").exists());
}

#[test]
fn ranks_that_are_not_selected_run_untouched() {
    let case = Case::new("selected");
    let script = "echo \"$LD_PRELOAD|$$\"";
    let words = ["-q", "--ranks", "0,2-3,every:8", "--", "sh", "-c", script];
    let mut untouched = record(&case, 1, 16, &words);
    let child = untouched
        .stdout(Stdio::piped())
        .spawn()
        .expect("nearpage runs");
    // The command took the place of nearpage: it has its number.
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("|{pid}\n"));
    assert!(!case.path("sh.77.nearpage").exists());
    for rank in [0, 2, 8] {
        case.run(record(&case, rank, 16, &words)).success();
    }
    assert_eq!(names(&case, "sh.77.nearpage").len(), 3);
    let alone = case
        .nearpage(["record", "--ranks", "0", "--", "true"])
        .exits(2);
    assert!(alone.stderr.contains("--ranks: no launcher"), "{alone}");
    let wrong = record(&case, 0, 16, &["--ranks", "3-1", "--", "true"]);
    assert!(case.run(wrong).exits(2).stderr.contains("every:16"));
}

#[test]
fn what_a_killed_rank_recorded_opens_in_its_job() {
    let case = Case::new("killed_rank");
    let program = "i=0; while [ $i -lt 20 ]; do sleep 0.1; i=$((i+1)); done";
    case.run(record(&case, 0, 2, &["-q", "--", "sh", "-c", "exit 0"]))
        .success();
    let mut command = record(&case, 1, 2, &["-q", "--", "sh", "-c", program]);
    let mut recorder = command.spawn().expect("nearpage runs");
    let log = case.path("sh.77.nearpage/rank-00001@n1/log/recorder.log");
    let begun = Instant::now();
    while !log.exists() && begun.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(20));
    }
    recorder.kill().expect("it runs");
    recorder.wait().expect("it ended");
    let report = case.nearpage(["report", "sh.77.nearpage"]).success();
    assert!(report.stderr.contains("rank 1: incomplete"), "{report}");
    assert!(
        report.stdout.contains("2 ranks on 1 host, Slurm"),
        "{report}"
    );
}
