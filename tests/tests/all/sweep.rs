//! `nearpage sweep`, as a black box: cells are kept, survive kills and are shared between processes.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use nearpage_tests::{
    Browser, Case, Finished, nearpage_path, python_package, schema_errors, workload,
};
use serde_json::Value;

const SWEEP: &str = r#"
recordings = ["full"]
machines = ["flash-8"]
policies = ["first-touch", "interleave", "migrate", "plan:object"]
[parameters]
trigger = [32, 64, 128]
hold = [4, 16]
"#;
/// Six cells of `migrate`, one of each other policy.
const CELLS: usize = 9;

/// A case with a trace and a sweep over it.
fn swept(name: &str) -> Case {
    let case = Case::new(name);
    let mut trace = case.command(nearpage_path());
    trace
        .args(["trace", "--machine", "flash-8"])
        .args(["-q", "-o", "full", "--"])
        .arg(workload("triad"))
        .args(["1", "2"])
        .env("OMP_NUM_THREADS", "2");
    case.run(trace).success();
    case.write("sweep.toml", SWEEP);
    case
}

fn parsed(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// JSON output of a command, validated against its schema.
fn checked(case: &Case, command: &str) -> Value {
    let value = parsed(
        &case
            .nearpage(["sweep", command, "--json", "sweep.toml"])
            .success(),
    );
    let errors = schema_errors(&format!("sweep-{command}"), &value);
    assert!(errors.is_empty(), "{errors:#?}\n{value:#}");
    value
}

/// Finished cells by path: inode and text.
fn kept(case: &Case) -> BTreeMap<PathBuf, (u64, String)> {
    let entries = fs::read_dir(case.path("sweep.cells")).into_iter().flatten();
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let cells = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    let read = |path: PathBuf| {
        let inode = fs::metadata(&path).expect("it is there").ino();
        let text = fs::read_to_string(&path).expect("text");
        (path, (inode, text))
    };
    cells.map(read).collect()
}

#[test]
fn cells_are_computed_once_by_whatever_shard() {
    let case = swept("sweep");
    let status = checked(&case, "status");
    assert_eq!(
        (&status["cells"], &status["done"]),
        (&CELLS.into(), &0.into())
    );
    let shard = |shard: &str| {
        let words = [
            "simulate",
            "--sweep",
            "sweep.toml",
            "--jobs",
            "2",
            "--shard",
            shard,
        ];
        case.nearpage(words).success()
    };
    shard("1/2");
    let first = kept(&case);
    assert_eq!(first.len(), CELLS.div_ceil(2));
    shard("2/2");
    let all = kept(&case);
    assert_eq!(all.len(), CELLS);
    assert!(first.iter().all(|(path, cell)| all[path] == *cell));
    let run = case.nearpage(["sweep", "run", "sweep.toml"]).success();
    assert!(run.stderr.contains("9 of 9 cells computed"), "{run}");
    assert_eq!(kept(&case), all, "none is computed again");

    // The rows agree with `simulate`.
    let report = checked(&case, "report");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), CELLS);
    let simulate = [
        "simulate",
        "full",
        "--json",
        "--machine",
        "flash-8",
        "--policy",
        "migrate",
    ];
    let alone =
        case.nearpage([&simulate[..], &["--set", "trigger=32", "--set", "hold=4"]].concat());
    let alone = parsed(&alone.success());
    let has = |row: &&Value| {
        (
            row["policy"].as_str(),
            row["parameters"]["trigger"].as_str(),
            row["parameters"]["hold"].as_str(),
        ) == (Some("migrate"), Some("32"), Some("4"))
    };
    let row = rows.iter().find(has).expect("the cell");
    for figure in ["time_ns", "misses", "migrated", "local_share"] {
        assert_eq!(row[figure], alone["results"][0][figure], "{figure}");
    }
    let csv = case
        .nearpage(["sweep", "report", "--csv", "sweep.toml"])
        .success();
    assert_eq!(csv.stdout.lines().count(), CELLS + 1);
    let text = case
        .nearpage(["sweep", "report", "sweep.toml"])
        .success()
        .stdout;
    assert!(text.contains("migrate, hold=4, trigger=32"), "{text}");
}

/// Other forms of the results that `cells_are_computed_once_by_whatever_shard` checks as JSON.
#[test]
fn results_are_a_table_a_page_and_profiles() {
    let case = swept("sweep_report");
    case.nearpage(["sweep", "run", "sweep.toml"]).success();
    let words = ["sweep", "report", "sweep.toml", "--csv"];
    let files = [
        "--parquet",
        "t.parquet",
        "--caliper",
        "profiles",
        "--html",
        "sweep.html",
    ];
    let csv = case
        .nearpage([&words[..], &files].concat())
        .success()
        .stdout;
    let mut lines = csv.lines();
    assert_eq!(
        lines.next(),
        Some(
            "recording,machine,policy,hold,trigger,times_first,time_ns,parallel_ns,misses,local_share,local_stall_ns,\
             remote_stall_ns,move_ns,migrated,replicated"
        )
    );
    let first: Vec<&str> = lines.next().expect("a row").split(',').collect();
    assert_eq!(
        first[..6],
        ["\"full\"", "\"flash-8\"", "\"first-touch\"", "", "", "1"]
    );

    profiles_have_the_rows(&case, &csv);
    the_page_sorts(&case);
    let Some(duckdb) = python_package("duckdb==2.0.1") else {
        return;
    };
    let query = "import duckdb\nprint(duckdb.sql(\"SELECT count(*), count(DISTINCT policy), sum(CASE WHEN hold = '4' AND trigger = '32' \
                 THEN 1 ELSE 0 END), min(times_first) > 0 FROM 't.parquet'\").fetchall())";
    let mut python = case.command("python3");
    python.args(["-c", query]).env("PYTHONPATH", duckdb);
    assert_eq!(case.run(python).success().stdout, "[(9, 4, 1, True)]\n");
}

/// Checks profiles for Hatchet's and Thicket's reader: a tree of rows, and the cell's parameters as metadata.
fn profiles_have_the_rows(case: &Case, csv: &str) {
    let mut names: Vec<String> = fs::read_dir(case.path("profiles"))
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("letters")
        })
        .collect();
    names.sort();
    assert_eq!(names.len(), CELLS, "{names:?}");
    for (name, row) in names.iter().zip(csv.lines().skip(1)) {
        let text = fs::read_to_string(case.path("profiles").join(name)).expect("text");
        let profile: Value = serde_json::from_str(&text).expect("JSON");
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(profile["policy"], cells[2].trim_matches('"'));
        let columns = profile["columns"].as_array().expect("columns");
        assert_eq!(
            (&columns[0], columns.last()),
            (&"Node order".into(), Some(&"path".into()))
        );
        let data = profile["data"].as_array().expect("rows");
        let nodes = profile["nodes"].as_array().expect("nodes");
        assert_eq!((data.len(), nodes.len()), (4, 4));
        assert!(
            data.iter()
                .all(|row| row.as_array().map(Vec::len) == Some(columns.len()))
        );
        assert_eq!(data[0][1].as_f64(), cells[6].parse().ok(), "{row}");
        let stalled = |row: usize| data[row][2].as_f64().expect("nanoseconds");
        assert!((stalled(0) - stalled(1) - stalled(2) - stalled(3)).abs() < 1.0);
    }
    // A folder of profiles is overwritten, but a folder with other files is refused.
    case.nearpage(["sweep", "report", "sweep.toml", "--caliper", "profiles"])
        .success();
    case.nearpage(["sweep", "report", "sweep.toml", "--caliper", "full"])
        .says(1, &["has other files in it"]);
}

fn the_page_sorts(case: &Case) {
    let mut browser = Browser::start(case.folder());
    browser.open(&format!("file://{}", case.path("sweep.html").display()));
    browser.wait("document.querySelectorAll('tbody tr').length > 0");
    browser.drawn();
    let said = browser.value("document.querySelector('main').innerText");
    let said = said.as_str().expect("text");
    assert!(said.contains("9 of 9 cells computed"), "{said}");
    browser.value("[...document.querySelectorAll('th button')].find(button => button.textContent === 'time').click()");
    browser.wait("location.hash.includes('sort=time')");
    let order = browser.value(
        "[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))",
    );
    assert_eq!(order.as_array().map(Vec::len), Some(CELLS));
    // Numbers sort from the largest: here, interleaving is slowest.
    assert_eq!(order[0][2], "interleave", "{order}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_killed_sweep_resumes() {
    let case = swept("sweep_killed");
    let mut before = kept(&case);
    // Kills at different moments, beginning before the first cell.
    for wait_ms in (0..200).step_by(10) {
        let mut command = case.command(nearpage_path());
        command
            .args(["sweep", "run", "--jobs", "2", "sweep.toml"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut running = command.spawn().expect("nearpage runs");
        sleep(Duration::from_millis(wait_ms));
        running.kill().expect("it was started");
        running.wait().expect("it ended");
        let after = kept(&case);
        for (path, cell) in &before {
            assert_eq!(after.get(path), Some(cell), "{}", path.display());
        }
        before = after;
    }
    case.nearpage(["sweep", "run", "sweep.toml"]).success();
    let after = kept(&case);
    assert_eq!(after.len(), CELLS);
    assert!(before.iter().all(|(path, cell)| after[path] == *cell));
    for (path, (_, text)) in &after {
        let cell: Value = serde_json::from_str(text).expect("a whole file");
        assert!(
            cell["result"]["time_ns"].is_number(),
            "{}: {text}",
            path.display()
        );
    }
}

#[test]
fn sweep_errors_are_one_line() {
    let case = Case::new("sweep_wrong");
    let one_line = |words: &[&str], code: i32, expected: &str| {
        let finished = case.nearpage(words).exits(code);
        assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
        assert!(finished.stderr.contains(expected), "{finished}");
    };
    case.write("sweep.toml", SWEEP.replace("migrate", "migrat"));
    one_line(&["sweep", "run", "sweep.toml"], 2, "no policy `migrat`");
    case.write("sweep.toml", SWEEP);
    one_line(&["sweep", "run", "sweep.toml"], 1, "full");
    one_line(
        &["sweep", "run", "none.toml"],
        1,
        "none.toml: can't be read",
    );
    one_line(
        &["sweep", "run", "sweep.toml", "--", "--partition=a"],
        2,
        "--engine slurm",
    );
    // PATH without the programs of Slurm.
    let mut slurm = case.command(nearpage_path());
    slurm
        .args(["sweep", "run", "--engine", "slurm", "sweep.toml"])
        .env("PATH", case.folder());
    let finished = case.run(slurm).exits(1);
    assert!(
        finished.stderr.contains("there is no Slurm here"),
        "{finished}"
    );
    assert_eq!(finished.stderr.lines().count(), 1, "{finished}");
    // A cell with an error.
    let case = swept("sweep_failed");
    case.write(
        "sweep.toml",
        SWEEP.replace("plan:object", "plan:sweep.toml"),
    );
    let failed = case.nearpage(["sweep", "run", "sweep.toml"]).exits(1);
    assert!(
        failed.stderr.contains("8 of 9 cells computed, 1 failed\n"),
        "{failed}"
    );
    assert!(
        failed.stderr.contains("nearpage: failed: full, "),
        "{failed}"
    );
    let status = checked(&case, "status");
    assert_eq!(
        status["failed"].as_array().map(Vec::len),
        Some(1),
        "{status:#}"
    );
    case.nearpage(["simulate", "--sweep", "sweep.toml", "--shard", "3/2"])
        .exits(2);
    case.nearpage(["simulate", "--sweep", "sweep.toml", "full"])
        .exits(2);
}
