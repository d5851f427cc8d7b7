//! What commands print reads on a terminal of 60 columns, and at 100 columns no name is cut.

use nearpage_tests::{Case, Finished, nearpage_path, workload};

/// Commands with tables, in a folder with two recordings and a trace of `cg`.
const TABLES: [&[&str]; 15] = [
    &["report", "one"],
    &["report", "one", "--by", "thread"],
    &["report", "one", "--by", "page", "--top", "5"],
    &["report", "one", "--by", "matrix", "--top", "5"],
    &["report", "trace"],
    &["compare", "one", "two"],
    &["plan", "one", "--machine", "opteron-4", "-o", "p.toml"],
    &["evaluate", "trace", "tenth", "--replay", "trace"],
    &[
        "simulate",
        "trace",
        "--policy",
        "first-touch,migrate-replicate,auto",
    ],
    &["machine"],
    &["machine", "show", "flash-8"],
    &["machine", "show", "carrefour-a"],
    &["machine", "list"],
    &["doctor"],
    &["--help"],
];

fn recordings(name: &str) -> Case {
    let case = Case::new(name);
    let run = |words: &[&str], size: &[&str]| {
        let mut command = case.command(nearpage_path());
        command
            .args(words)
            .arg("--")
            .arg(workload("cg"))
            .args(size)
            .env("OMP_NUM_THREADS", "4");
        case.run(command).success();
    };
    run(&["record", "-q", "-o", "one"], &["100000", "16", "20"]);
    run(&["record", "-q", "-o", "two"], &["100000", "16", "20"]);
    let trace = [
        "trace",
        "-q",
        "--machine",
        "flash-8",
        "--keep-hits",
        "-o",
        "trace",
    ];
    run(&trace, &["3000", "8", "2"]);
    let tenth = ["downsample", "trace", "-q", "--every", "10", "-o", "tenth"];
    case.nearpage(tenth).success();
    case
}

fn at(case: &Case, columns: &str, words: &[&str]) -> Finished {
    let mut command = case.command(nearpage_path());
    command.args(words).env("COLUMNS", columns);
    case.run(command).success()
}

#[test]
fn lines_fit_60_columns() {
    let case = recordings("60 columns");
    let mut wide = Vec::new();
    for words in TABLES {
        let finished = at(&case, "60", words);
        for line in finished.stdout.lines().chain(finished.stderr.lines()) {
            // A path that is alone in its column has nowhere to break.
            let column = line.trim().rsplit("  ").next().unwrap_or(line);
            if line.chars().count() > 60 && column.contains(' ') {
                wide.push(format!("{words:?}: {line}"));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn words_are_whole_at_100_columns() {
    let case = recordings("100 columns");
    let mut cut = Vec::new();
    for words in TABLES {
        let finished = at(&case, "100", words);
        for line in finished.stdout.lines() {
            let is_cut = line.chars().count() > 100
                || line
                    .split_whitespace()
                    .any(|word| word.len() > '…'.len_utf8() && word.contains('…'));
            if is_cut {
                cut.push(format!("{words:?}: {line}"));
            }
        }
    }
    assert!(cut.is_empty(), "{cut:#?}");
}
