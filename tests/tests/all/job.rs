//! Jobs of many ranks: under real launchers (`mpirun`), and with launchers' variables set by hand.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_tests::{
    Case, Finished, Mpi, compile_mpi_program, nearpage_path, python_package, repository,
    schema_errors,
};
use serde_json::{Value, json};

/// Sets the variables that `srun` sets for a task of a step.
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
    let names = entries.map(|entry| name(entry).to_string_lossy().into_owned());
    // `.shared` holds files that ranks share.
    names.filter(|name| name != ".shared").collect()
}

fn parsed(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// The report of a job, checked against its schema.
fn report(case: &Case, job: &str) -> Value {
    let report = parsed(&case.nearpage(["report", "--json", job]).success());
    let errors = schema_errors("report-job", &report);
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

/// Runs `mpirun` with four ranks.
fn mpirun(case: &Case, mpi: Mpi, words: &[&str]) -> Finished {
    let command = match mpi {
        Mpi::OpenMpi => {
            let mut command = case.command("mpirun.openmpi");
            // More ranks than cores, as root, with shared memory as the only transport.
            command
                .args(["--allow-run-as-root", "--oversubscribe", "-n", "4"])
                .args(["--mca", "btl", "self,vader"])
                .args(words);
            command
        }
        Mpi::Mpich => {
            let mut command = case.command("mpirun.mpich");
            command.args(["-n", "4"]).args(words);
            command
        }
    };
    case.run(command)
}

#[test]
fn a_program_of_open_mpi_is_recorded_rank_by_rank_and_runs_as_without() {
    is_recorded_rank_by_rank(&Case::new("open_mpi"), Mpi::OpenMpi, "Open MPI");
}

#[test]
fn a_program_of_mpich_is_recorded_rank_by_rank_and_runs_as_without() {
    is_recorded_rank_by_rank(&Case::new("mpich"), Mpi::Mpich, "MPICH");
}

fn is_recorded_rank_by_rank(case: &Case, mpi: Mpi, launcher: &str) {
    compile_mpi_program(case, mpi);
    let nearpage = nearpage_path();
    let nearpage = nearpage.to_str().expect("a path of letters");
    let recorded = mpirun(
        case,
        mpi,
        &[nearpage, "record", "--rate", "997", "--", "./app"],
    )
    .success();
    assert_eq!(recorded.stdout, "4 ranks, sum 10\n", "{recorded}");
    let jobs: Vec<String> = names(case, ".")
        .into_iter()
        .filter(|name| name.ends_with(".nearpage"))
        .collect();
    let [job] = &jobs[..] else {
        panic!("one folder of a job: {jobs:?}\n{recorded}")
    };
    let folders = names(case, job);
    assert_eq!(folders.len(), 4, "{folders:?}");
    for (rank, folder) in folders.iter().enumerate() {
        assert!(folder.starts_with(&format!("rank-{rank:05}@")), "{folder}");
    }
    // Only one rank prints the next step.
    let spoken = recorded.stderr.matches("next: nearpage report").count();
    assert_eq!(spoken, 1, "{recorded}");

    let report = report(case, job);
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
        assert!(
            text.contains(&format!("4 ranks on 1 host, {launcher}")),
            "{text}"
        );
    }
    case.nearpage(["report", "--by", "thread", job]).exits(2);
    // A rank that aborts or is ended by a signal ends the job, with nearpage as without.
    for ending in ["abort", "signal"] {
        let alone = mpirun(case, mpi, &["./app", ending]);
        let output = format!("{ending}/%r");
        let words = [nearpage, "record", "-o", &output, "--", "./app", ending];
        let recorded = mpirun(case, mpi, &words);
        match (mpi, ending) {
            // Hydra also ends the other ranks, and combines their statuses differently from run to run.
            (Mpi::Mpich, "signal") => {
                assert!(
                    ![alone.code, recorded.code].contains(&Some(0)),
                    "{alone}\n{recorded}"
                );
            }
            _ => {
                let ends =
                    [&recorded, &alone].map(|one| (one.code, one.signal, one.stdout.as_str()));
                assert_eq!(ends[0], ends[1], "{recorded}");
            }
        }
        case.nearpage(["report", ending]).success();
    }
}

#[test]
fn ranks_that_start_at_once_get_folders_of_their_own() {
    let case = Case::new("ranks_at_once");
    // All claim to be the same rank, which is the hardest case.
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
    // A command that can't start leaves no recording.
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
    // nearpage executes the command in its own place, so the process id stays.
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
fn a_killed_ranks_recording_opens_in_its_job() {
    let case = Case::new("killed_rank");
    // The program lives until its recorder was killed, and a recording exists once its metadata is written.
    let program = "i=0; while [ ! -e over ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done";
    case.run(record(&case, 0, 2, &["-q", "--", "sh", "-c", "exit 0"]))
        .success();
    let mut command = record(&case, 1, 2, &["-q", "--", "sh", "-c", program]);
    let mut recorder = command.spawn().expect("nearpage runs");
    let metadata = case.path("sh.77.nearpage/rank-00001@n1/recording.json");
    let begun = Instant::now();
    while !metadata.exists() && begun.elapsed() < Duration::from_secs(30) {
        sleep(Duration::from_millis(20));
    }
    recorder.kill().expect("it runs");
    recorder.wait().expect("it ended");
    fs::write(case.path("over"), "").expect("written");
    let report = case.nearpage(["report", "sh.77.nearpage"]).success();
    assert!(report.stderr.contains("rank 1: incomplete"), "{report}");
    assert!(
        report.stdout.contains("2 ranks on 1 host, Slurm"),
        "{report}"
    );
}

/// Program in which rank 3 of every four uses an array of its own.
const TWO_GROUPS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
enum { COUNT = 1 << 20 };
__attribute__((noinline)) static double *make_grid(void) { return calloc(COUNT, sizeof(double)); }
__attribute__((noinline)) static double *make_table(void) { return calloc(COUNT, sizeof(double)); }
int main(void) {
    int rank = atoi(getenv("SLURM_PROCID"));
    double *values = rank % 4 == 3 ? make_table() : make_grid();
    double sum = 0;
    for (long round = 0; round < 200; round++)
        for (long i = 0; i < COUNT; i++) sum += values[(i * 4099) & (COUNT - 1)] += 1;
    printf("%.0f\n", sum);
    return 0;
}
"#;

/// Records four ranks of this program into `job`, on two hosts.
fn record_two_groups(case: &Case) {
    case.compile("app", TWO_GROUPS, &[]);
    for rank in 0..4 {
        let words = ["-q", "--rate", "997", "-o", "job/%r", "--", "./app"];
        let mut command = record(case, rank, 4, &words);
        command.env("SLURMD_NODENAME", format!("n{}", 1 + rank / 2));
        case.run(command).success();
    }
}

#[test]
fn each_rank_runs_with_the_part_of_its_group() {
    let case = Case::new("plan_of_job");
    record_two_groups(&case);
    let words = [
        "plan",
        "--json",
        "--machine",
        "opteron-4",
        "--policy",
        "interleave",
        "job",
    ];
    let plan = parsed(&case.nearpage(words).success());
    let errors = schema_errors("plan", &plan);
    assert!(errors.is_empty(), "{errors:#?}\n{plan:#}");
    let groups = plan["job"]["groups"].as_array().expect("groups");
    let of = |key: &str| {
        groups
            .iter()
            .map(|group| group[key].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("ranks"), [json!([0, 1, 2]), json!([3])], "{plan:#}");
    assert_eq!(of("local_ranks"), of("ranks"));
    assert_eq!(of("plans"), [json!([0]), json!([1])]);

    // Recorded ranks use their own group's plan, other ranks the plan of the group with their local rank.
    for (rank, local_rank, function, is_noted) in [
        (0, 0, "make_grid", true),
        (3, 3, "make_table", false),
        (7, 3, "make_table", true),
        (6, 9, "make_grid", true),
    ] {
        let mut command = case.command(nearpage_path());
        command.args(["run", "--json", "--plan", "job/plan.toml", "--", "./app"]);
        slurm(&mut command, rank, 8);
        command.env("SLURM_LOCALID", local_rank.to_string());
        let ran = parsed(&case.run(command).success());
        let rules = ran["placed"]["rules"].as_array().expect("rules");
        let names: Vec<&str> = rules
            .iter()
            .filter_map(|rule| rule["name"].as_str())
            .collect();
        assert!(names.iter().any(|name| name.contains(function)), "{ran:#}");
        let note = ran["notes"].as_array().expect("notes").iter();
        let notes = note.filter(|note| {
            note.as_str()
                .is_some_and(|text| text.contains("in no group"))
        });
        assert_eq!(notes.count(), usize::from(is_noted), "{ran:#}");
    }
    let text = case
        .nearpage(["plan", "--policy", "object", "-o", "-", "job"])
        .success()
        .stdout;
    assert!(text.contains("[[group]]\nranks = \"0-2\""), "{text}");
    // Options that a job's folder and plan do not support.
    let report = case.nearpage(["report", "job", "--heatmap"]).exits(2);
    assert!(
        report.stderr.contains("name the folder of a rank"),
        "{report}"
    );
    case.nearpage(["plan", "--policy", "object,interleave", "job"])
        .exits(2);
    case.nearpage(["plan", "job", "job/0"]).exits(2);
    let view = case
        .nearpage(["view", "--no-open", "--plan", "job/plan.toml", "job/0"])
        .exits(1);
    assert!(view.stderr.contains("plan of a job"), "{view}");
}

#[test]
fn merged_ranks_are_queried_by_duckdb() {
    const QUERY: &str = "import sys, json, duckdb\n\
        print(json.dumps([list(row) for row in duckdb.sql(sys.stdin.read()).fetchall()], default=str))\n";
    let case = Case::new("merge");
    record_two_groups(&case);
    let merged = parsed(
        &case
            .nearpage(["merge", "--json", "job", "-o", "one"])
            .success(),
    );
    assert_eq!(merged["ranks"], 4, "{merged}");
    assert!(
        case.path("one/job=77/host=n2/rank=3/accesses.parquet")
            .exists()
    );
    case.nearpage(["merge", "job", "-o", "one"]).exits(1);
    case.nearpage(["merge", "job/0", "-o", "two"]).exits(2);
    case.nearpage(["export", "job", "-o", "three"]).success();
    let csv = case
        .nearpage(["export", "job", "--to", "csv", "-o", "-"])
        .exits(2);
    assert!(csv.stderr.contains("such as job/0"), "{csv}");
    // Merges leave no temporary files.
    assert!(
        names(&case, ".")
            .iter()
            .all(|name| !name.starts_with(".one"))
    );
    let Some(duckdb) = python_package("duckdb==2.0.1") else {
        return;
    };
    let ask = |query: &str| -> Vec<Vec<Value>> {
        let file = case.write("query.sql", query);
        let mut python = case.command("python3");
        python
            .args(["-c", QUERY])
            .env("PYTHONPATH", &duckdb)
            .stdin(fs::File::open(file).expect("the query"));
        let finished = case.run(python).success();
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
    };
    let of_guide = |name: &str| {
        let path = repository().join("docs/guide/queries").join(name);
        ask(&fs::read_to_string(path).expect("a query of the guide"))
    };
    let all = ask("SELECT count(*), count(DISTINCT rank) FROM read_parquet('one/**/*.parquet')");
    assert_eq!(all, [[merged["accesses"].clone(), 4.into()]]);
    let hot = of_guide("hot-objects.sql");
    let named = |row: &Vec<Value>, function: &str| {
        row[0].as_str().is_some_and(|name| name.contains(function))
    };
    assert!(named(&hot[0], "make_grid"), "{hot:?}");
    assert_eq!(hot[0][1], 3, "{hot:?}");
    assert!(
        hot.iter()
            .any(|row| named(row, "make_table") && row[1] == 1),
        "{hot:?}"
    );
    let hosts: Vec<Value> = of_guide("remote-by-host.sql")
        .into_iter()
        .map(|row| row[1].clone())
        .collect();
    assert_eq!(hosts, ["n1", "n2"]);
    let ranks = of_guide("slowest-ranks.sql");
    let third = ranks.iter().find(|row| row[2] == 3).expect("rank 3");
    assert!(
        third[4]
            .as_str()
            .is_some_and(|name| name.contains("make_table")),
        "{ranks:?}"
    );
}

/// Each error of a job is reported in one line, by every command that reads jobs.
#[test]
fn job_errors_are_one_line_each() {
    let case = Case::new("wrong_job");
    for rank in [0, 1, 3] {
        let output = format!("job/{rank}");
        let recorded = record(&case, rank, 4, &["-q", "-o", &output, "--", "true"]);
        case.run(recorded).success();
    }
    let metadata = case.path("job/1/recording.json");
    let text = fs::read_to_string(&metadata).expect("metadata");
    let mut older: Value = serde_json::from_str(&text).expect("JSON");
    older["recorder"] = "0.0.9".into();
    fs::write(&metadata, older.to_string()).expect("a folder of the test's");
    let said = |words: &[&str]| -> Vec<String> {
        let finished = case.nearpage(words).success();
        finished.stderr.lines().map(str::to_owned).collect()
    };
    let about = [
        "rank 2 of 4 ranks missing",
        "recorded by different versions of nearpage: 0.0.9 (rank 1)",
    ];
    let says = |lines: &[String], expected: &[&str]| {
        for words in expected {
            let found = lines.iter().filter(|line| line.contains(words)).count();
            assert_eq!(found, 1, "{words}: {lines:#?}");
        }
    };
    says(&said(&["report", "job"]), &about);
    says(&said(&["merge", "job", "-o", "one"]), &about);
    let mut other = record(&case, 0, 1, &["-q", "-o", "job/other", "--", "true"]);
    other.env("SLURM_JOB_ID", "78");
    case.run(other).success();
    let lines = said(&["report", "job"]);
    says(
        &lines,
        &["2 jobs in this folder (77, 78): this is 78, which started last"],
    );
    assert!(
        lines.iter().all(|line| !line.contains("missing")),
        "{lines:#?}"
    );
}

/// A trace is for a modelled machine: the rank's binding is recorded but not audited.
#[test]
fn a_traced_rank_records_its_binding() {
    let case = Case::new("traced_rank");
    for rank in 0..2 {
        let mut trace = case.command(nearpage_path());
        trace
            .args(["trace", "-q", "--machine", "flash-8", "-o", "job/%r", "--"])
            .arg("true");
        slurm(&mut trace, rank, 2);
        case.run(trace).success();
    }
    let report = report(&case, "job");
    for rank in report["ranks"].as_array().expect("ranks") {
        assert!(rank["cpus"].is_string(), "{rank}");
    }
    assert_eq!(report["binding"], json!([]));
}
