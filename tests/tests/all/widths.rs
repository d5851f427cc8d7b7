//! Output is readable on a terminal of 60 columns; from 100 columns on, no name is cut.

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
    &["evaluate", "trace", "tenth", "--trace", "trace"],
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
            // A long path alone in its column can't be broken, and commands for pasting stay on one line.
            let column = line.trim().rsplit("  ").next().unwrap_or(line);
            let is_next = line.starts_with("nearpage: next: ");
            if line.chars().count() > 60 && column.contains(' ') && !is_next {
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

/// Samples as CSV, of C++ objects with names wider than a terminal, on four nodes, by eight threads; one thread filled
/// them.
fn with_long_names() -> String {
    let mut csv = "time_ns,cpu,tid,thread,kind,object,object_kind,object_offset,object_size_bytes,node,function,file,line,weight,cost_ns\n"
        .to_owned();
    let object = |number: u64| {
        format!(
            "std::vector<simulation::particle_grid<double, simulation::boundary_{number}>>::_M_allocate field_{number}"
        )
    };
    for sample in 0..4000 {
        let (thread, number) = (sample % 8, sample / 8 % 5);
        let offset = (thread * 16 + sample / 40 % 16) * 4096;
        let line = format!(
            "{},{},{},worker-{thread},{},\"{}\",heap,{offset},{},0,\"simulation::particle_grid<double>::advance(std::vector<double>&)\",src/simulation/particle_grid_implementation.cc,{},100,{}\n",
            1_000_000 * (sample + 1),
            thread / 2,
            100 + thread,
            ["load", "store"][usize::from(sample < 40)],
            object(number),
            128 * 4096,
            120 + number,
            20_000 * (5 - number)
        );
        csv += &line;
    }
    csv
}

/// A case with these samples imported under the given names.
fn imported(name: &str, recordings: &[&str]) -> Case {
    let case = Case::new(name);
    case.write("samples.csv", with_long_names());
    for recording in recordings {
        let machine = ["import", "samples.csv", "--machine", "opteron-4"];
        case.nearpage([&machine[..], &["-o", recording]].concat())
            .success();
    }
    case
}

#[test]
fn long_names_give_way_to_numbers_and_headings() {
    let case = imported("long names", &["one", "two"]);
    let tables: [(&[&str], &[&str]); 6] = [
        (&["report", "one"], &["cost", "remote", "object"]),
        (
            &["report", "one", "--by", "page", "--top", "5"],
            &["cost", "object"],
        ),
        (
            &["report", "one", "--by", "call-site"],
            &["cost", "remote", "call site"],
        ),
        (
            &["compare", "one", "two"],
            &["time", "change", "local", "recordings"],
        ),
        (
            &["plan", "one", "--machine", "opteron-4", "-o", "p.toml"],
            &["object", "cost", "placement", "planned"],
        ),
        (
            &["evaluate", "one", "two"],
            &["recording", "coverage", "accuracy", "useful"],
        ),
    ];
    let mut poor = Vec::new();
    for columns in [60, 100] {
        for (words, headings) in tables {
            let text = at(&case, &columns.to_string(), words).stdout;
            let is_heading = |line: &str| headings.iter().all(|heading| line.contains(heading));
            if !text.lines().any(is_heading) {
                poor.push(format!("{words:?} at {columns}: no {headings:?} in {text}"));
            }
            let cut = |line: &str| {
                let cells = line
                    .split("  ")
                    .map(str::trim)
                    .filter(|cell| !cell.is_empty());
                let shortened: Vec<&str> = cells.filter(|cell| cell.contains('…')).collect();
                // Only names may be shortened.
                let is_name = |cell: &&str| {
                    cell.contains("std::") || cell.contains("field_") || cell.contains("simulation")
                };
                line.chars().count() > columns
                    || !shortened
                        .iter()
                        .all(|cell| cell.starts_with("… and ") || is_name(cell))
            };
            for line in text.lines().filter(|line| cut(line)) {
                poor.push(format!("{words:?} at {columns}: {line}"));
            }
        }
    }
    assert!(poor.is_empty(), "{poor:#?}");
}

#[test]
fn colour_is_for_terminals_and_on_request() {
    let case = imported("colour", &["one"]);
    let has_colour = |variables: &[(&str, &str)]| {
        let mut command = case.command(nearpage_path());
        command
            .args(["report", "one"])
            .envs(variables.iter().copied());
        let text = case.run(command).success().stdout;
        assert!(text.contains("remote"), "{text}");
        text.contains('\x1b')
    };
    assert!(!has_colour(&[]), "a pipe");
    assert!(has_colour(&[("CLICOLOR_FORCE", "1")]));
    assert!(!has_colour(&[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
}

/// Standard error of a command in a pseudo-terminal of `columns` columns.
fn in_terminal(case: &Case, columns: usize, words: &str) -> String {
    let nearpage = nearpage_path();
    let line = format!(
        "stty cols {columns}; '{}' {words} >printed",
        nearpage.display()
    );
    let mut command = case.command("script");
    command.args(["-qec", &line, "/dev/null"]);
    case.run(command).stdout
}

#[test]
fn words_wrap_in_terminals_of_any_width() {
    let case = imported("terminals", &["one", "two"]);
    for words in [
        "plan one --machine opteron-4 -o p.toml",
        "export one --to csv -o a.csv",
        "import samples.csv --machine opteron-4 -o again",
        "report none-of-these --json",
        "simulate one",
        "run --plan none.toml -- ./nothing",
        "machine show none-of-these",
    ] {
        let mut command = case.command("sh");
        command.args([
            "-c",
            &format!("'{}' {words} >printed", nearpage_path().display()),
        ]);
        let piped = case.run(command).stderr;
        let of =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        // `import` requires that its folder does not exist.
        let make_way = || drop(std::fs::remove_dir_all(case.path("again")));
        assert!(!of(&piped).is_empty(), "{words} says nothing");
        for columns in [60, 80, 100] {
            make_way();
            let said = in_terminal(&case, columns, words);
            assert_eq!(of(&said), of(&piped), "{words} at {columns}");
            for line in said.lines() {
                let is_one_word = line.split_whitespace().count() < 2;
                let is_next = line.starts_with("nearpage: next: ");
                assert!(
                    line.chars().count() <= columns || is_one_word || is_next,
                    "{words} at {columns}: {line}"
                );
            }
        }
    }
}

#[test]
fn colour_is_in_terminals_and_in_no_pipe() {
    let case = imported("colours", &["one", "two"]);
    for words in [
        "report one",
        "compare one two",
        "plan one --machine opteron-4 -o p.toml",
    ] {
        let mut command = case.command("script");
        let line = format!("stty cols 100; '{}' {words}", nearpage_path().display());
        command
            .args(["-qec", &line, "/dev/null"])
            .env("TERM", "xterm");
        let shown = case.run(command).stdout;
        let piped = case.nearpage(words.split(' ')).success();
        assert!(!format!("{piped}").contains('\x1b'), "{words}: {piped}");
        // Every report colours remote shares. Plans and comparisons colour only losses, and here nothing loses.
        assert!(
            !words.starts_with("report") || shown.contains("\x1b["),
            "{words}: {shown}"
        );
    }
}
