//! The command as a black box: output, exit status, files.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nearpage_tests::{Case, Finished, nearpage_path, workload};
use serde_json::Value;

const TRIAD: [&str; 2] = ["16", "40"];

/// Records a short `triad` into `name`.
fn record_triad(case: &Case, name: &str, options: &[&str]) -> Finished {
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "--rate", "1999", "-o", name])
        .args(options)
        .arg("--")
        .arg(workload("triad"))
        .args(TRIAD);
    record.env("OMP_NUM_THREADS", "4");
    case.run(record)
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// Checks for one line on standard error that contains all of `words`, and an empty standard output.
#[track_caller]
fn says(finished: Finished, code: i32, words: &[&str]) {
    let finished = finished.exits(code);
    let lines: Vec<&str> = finished.stderr.lines().collect();
    assert!(lines.len() == 1 || code == 2, "one line:\n{finished}");
    for word in words {
        assert!(
            finished.stderr.contains(word),
            "expected {word:?}:\n{finished}"
        );
    }
    assert_eq!(finished.stdout, "", "{finished}");
}

#[test]
fn a_recording_outlives_the_reader_of_what_it_says() {
    let case = Case::new("closed_pipe");
    let unheard = |arguments: &[&str]| {
        let mut command = case.command(nearpage_path());
        command.args(arguments).args(["--", "sh", "-c"]);
        command.arg("sleep 0.1; sort -S 1M </etc/services >sorted; exit 3");
        let mut nearpage = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop((nearpage.stdout.take(), nearpage.stderr.take()));
        nearpage.wait().unwrap().code()
    };
    assert_eq!(unheard(&["record", "-o", "r"]), Some(3));
    case.nearpage(["report", "r"]).success();
    assert_eq!(unheard(&["run", "--place", "heap>=4K=interleave"]), Some(3));
    assert_eq!(unheard(&["live", "--interval", "0.1"]), Some(3));
}

#[test]
fn a_full_output_is_one_line_and_a_failure() {
    let case = Case::new("full_output");
    let into = |output: &str, words: &str| {
        let mut command = case.command("/bin/sh");
        command
            .args(["-c", &format!("exec \"$0\" {words} {output}")])
            .arg(nearpage_path());
        case.run(command)
    };
    for words in [
        "machine",
        "--help",
        "--version",
        "-h",
        "simulate --help",
        "help live",
        "generate completions bash",
    ] {
        let full = into(">/dev/full", words);
        says(full, 1, &["standard output: No space left on device"]);
    }
    assert_eq!(into("| true", "--help").success().stderr, "");
    // Usage errors go to standard error.
    let wrong = into(">/dev/full", "simulate").exits(2);
    assert!(wrong.stderr.contains("<DIR>"), "{wrong}");
    into("2>/dev/full", "simulate").exits(2);
}

#[test]
fn the_whole_loop_on_triad() {
    let case = Case::new("loop");
    let recorded = record_triad(&case, "triad.nearpage", &[]).success();
    assert!(
        recorded.stdout.contains("checksum"),
        "the program's own output passes through\n{recorded}"
    );
    assert!(
        recorded.stderr.contains("nearpage report triad.nearpage"),
        "{recorded}"
    );
    assert_eq!(
        fs::metadata(case.path("triad.nearpage"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o700
    );

    let text = case.nearpage(["report", "triad.nearpage"]).success();
    assert!(text.stdout.contains("own block"), "{text}");
    assert!(!text.stdout.contains('\x1b'), "no colour in a pipe\n{text}");

    let report = json(
        &case
            .nearpage(["report", "--json", "triad.nearpage"])
            .success(),
    );
    let attribution = report["attribution"].as_object().unwrap();
    let kinds = [
        "heap",
        "heap_unresolved",
        "static",
        "mapping",
        "stack",
        "tls",
        "code",
        "unknown",
    ];
    assert_eq!(
        attribution
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .len(),
        kinds.len()
    );
    let sum: u64 = kinds
        .iter()
        .map(|kind| attribution[*kind].as_u64().unwrap())
        .sum();
    assert_eq!(sum, report["accesses"].as_u64().unwrap(), "{report:#}");
    let block = report["objects"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|object| object["pattern"]["kind"] == "block");
    assert_eq!(
        block.count(),
        3,
        "a, b and c are used in blocks\n{report:#}"
    );

    let plan = case
        .nearpage([
            "plan",
            "triad.nearpage",
            // `object`, because `auto` places nothing in so short a run.
            "--policy",
            "object",
            "--machine",
            "opteron-4",
            "-o",
            "triad.toml",
        ])
        .success();
    assert!(plan.stdout.contains("opteron-4"), "{plan}");
    let file = case.read("triad.toml");
    assert_eq!(file.matches("placement = \"block\"").count(), 3, "{file}");

    // Samples can't be replayed, so online migration can't be judged.
    let words = [
        "--machine",
        "opteron-4",
        "--online-migration",
        "-o",
        "live.toml",
    ];
    let live = case.nearpage([&["plan", "triad.nearpage"], &words[..]].concat());
    let line = "--online-migration: triad.nearpage cannot be replayed on opteron-4";
    assert!(live.success().stdout.contains(line));
    assert!(!case.read("live.toml").contains("[online_migration]"));

    let mut run = case.command(nearpage_path());
    run.args(["run", "--plan", "triad.toml", "--"])
        .arg(workload("triad"))
        .args(TRIAD)
        .env("OMP_NUM_THREADS", "4");
    let run = case.run(run).success();
    assert!(run.stderr.matches("placed 1 object").count() >= 3, "{run}");
    assert!(run.stdout.contains("checksum"), "{run}");
}

/// `tests/guest.rs` checks where pages go.
#[test]
fn a_plan_may_have_online_migration() {
    let case = Case::new("online-migration");
    let plan = |live: &str| {
        format!(
            "version = 1\n[program]\nexecutable = \"triad\"\n[live]\n{live}\n\
             [[object]]\nname = \"large\"\nheap = \">=64K\"\nplacement = \"interleave\"\n"
        )
    };
    case.write("p.toml", plan("budget_permille = 100"));
    case.write("wrong.toml", plan("budget = 100"));
    let run = |file: &str, quiet: &[&str]| {
        let mut run = case.command(nearpage_path());
        run.args(["run", "--machine", "opteron-4", "--plan", file])
            .args(quiet)
            .arg("--")
            .arg(workload("triad"))
            .args(TRIAD)
            .env("OMP_NUM_THREADS", "2");
        case.run(run)
    };
    let placed = run("p.toml", &[]).success();
    assert!(placed.stdout.contains("checksum"), "{placed}");
    // One line about online migration, whether it ran or could not sample.
    assert_eq!(
        placed.stderr.matches("online migration").count(),
        1,
        "{placed}"
    );
    let quiet = run("p.toml", &["-q"]).success();
    assert_eq!(quiet.stderr, "");
    let line =
        "the plan's [online_migration] has `budget`, and `auto` has no parameter of that name";
    says(run("wrong.toml", &[]), 1, &[line]);
    // Exit status and signal are the command's.
    let placed = |command: &[&str]| {
        let words = [
            "run",
            "-q",
            "--machine",
            "opteron-4",
            "--plan",
            "p.toml",
            "--",
        ];
        case.nearpage([&words, command].concat())
    };
    placed(&["sh", "-c", "exit 7"]).exits(7);
    says(placed(&["no-such-command"]), 127, &["no-such-command"]);
}

#[test]
fn a_plan_of_one_rank_is_for_that_rank() {
    let case = Case::new("rank");
    let ranked = |rank: &str, arguments: &[&str]| {
        let mut command = case.command(nearpage_path());
        command
            .args(arguments)
            .arg("--")
            .arg(workload("triad"))
            .args(TRIAD);
        command
            .env("OMP_NUM_THREADS", "4")
            .env("OMPI_COMM_WORLD_RANK", rank);
        case.run(command).success()
    };
    ranked("1", &["record", "-q", "--rate", "1999", "-o", "r"]);
    let words = ["-o", "p.toml", "--machine", "altix-4", "--policy", "object"];
    let mut plan = case.command(nearpage_path());
    plan.args(["plan", "r"])
        .args(words)
        .env("OMP_NUM_THREADS", "1");
    let plan = case.run(plan).success();
    // The next command repeats the recorded number of threads, which this environment doesn't have.
    assert!(
        plan.stderr
            .contains("next: OMP_NUM_THREADS=4 nearpage run --plan p.toml -- "),
        "{plan}"
    );
    assert!(
        case.read("p.toml").contains("rank = 1"),
        "{}",
        case.read("p.toml")
    );
    let placed = |finished: &Finished| finished.stderr.matches("placed 1 object").count();
    let (same, other) = (
        ranked("1", &["run", "--plan", "p.toml"]),
        ranked("0", &["run", "--plan", "p.toml"]),
    );
    assert!(placed(&same) >= 3, "{same}");
    assert_eq!(placed(&other), 0, "{other}");
}

#[test]
fn the_marked_stable_phase_counts_alone() {
    let case = Case::new("markers");
    // With large caches, the loop of sums rarely waits for memory: a high rate gives enough accesses.
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "-q", "--rate", "19997", "-o", "r", "--"])
        .arg(workload("markers"));
    record.args(["64", "60"]).env("OMP_NUM_THREADS", "4");
    case.run(record).success();
    let finished = case.nearpage(["report", "--json", "r"]).success();
    assert!(finished.stderr.contains("stable phase"), "{finished}");
    let report = json(&finished);
    let large: Vec<&Value> = report["objects"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|object| object["size_bytes"] == 64 << 20)
        .collect();
    assert_eq!(
        large.len(),
        1,
        "before and after are not in the phase\n{report:#}"
    );
    assert_eq!(large[0]["pattern"]["kind"], "block", "{report:#}");
    assert_eq!(large[0]["pattern"]["block_bytes"], 16 << 20, "{report:#}");
}

#[test]
fn every_policy_makes_a_plan_that_runs() {
    let case = Case::new("policies");
    record_triad(&case, "r", &["-q"]).success();
    for policy in ["auto", "object", "uniform", "hop-sensitive", "interleave"] {
        let plan = case
            .nearpage([
                "plan",
                "r",
                "--policy",
                policy,
                "--machine",
                "altix-4",
                "-o",
                "p.toml",
            ])
            .success();
        assert!(plan.stdout.contains(policy), "{plan}");
        let mut run = case.command(nearpage_path());
        run.args(["run", "--plan", "p.toml", "--"])
            .arg(workload("triad"))
            .args(TRIAD)
            .env("OMP_NUM_THREADS", "4");
        case.run(run).success();
    }
}

#[test]
fn several_policies_make_a_plan_each() {
    let case = Case::new("policies-at-once");
    record_triad(&case, "r", &["-q"]).success();
    let words = ["plan", "r", "--machine", "altix-4", "--policy"];
    let made = case.nearpage(
        [
            &words[..],
            &["uniform,object,uniform", "-o", "p q.toml", "--json"],
        ]
        .concat(),
    );
    let made: serde_json::Value = serde_json::from_str(&made.success().stdout).unwrap();
    let plans = made["plans"].as_array().unwrap();
    let files: Vec<(&str, &str)> = plans
        .iter()
        .map(|plan| {
            (
                plan["policy"].as_str().unwrap(),
                plan["file"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        files,
        [
            ("uniform", "p q.uniform.toml"),
            ("object", "p q.object.toml")
        ]
    );
    for (policy, file) in files {
        case.nearpage([&words[..], &[policy, "-o", "alone.toml"]].concat())
            .success();
        assert_eq!(case.read(file), case.read("alone.toml"));
    }
    assert!(!case.path("p q.toml").exists());
    case.nearpage([&words[..], &["uniform,object", "-o", "-"]].concat())
        .says(2, &["-o - prints one plan", "or one policy"]);
}

#[test]
fn plan_uses_auto_by_default_and_lists_assumptions() {
    let case = Case::new("assumed");
    record_triad(&case, "r", &["-q"]).success();
    let plan = |machine: &str| {
        let words = ["plan", "r", "--json", "-o", "p.toml", "--machine"];
        let finished = case.nearpage([&words[..], &[machine]].concat());
        json(&finished.success())["plans"][0].clone()
    };
    let nodes = [0, 1].map(|node| format!("[[node]]\nid = {node}\ncpus = \"{node}\"\n"));
    let nodes = nodes.concat();
    case.write(
        "m.toml",
        format!("name = \"unmeasured\"\npage_bytes = 4096\n{nodes}"),
    );
    let unmeasured = plan("m.toml");
    assert_eq!(unmeasured["policy"], "auto");
    let assumed = unmeasured["assumed"].as_str().unwrap();
    assert!(
        assumed.starts_with("no bandwidths are known of unmeasured")
            && assumed.ends_with("`nearpage machine measure`"),
        "{assumed}"
    );
    assert_eq!(plan("carrefour-a")["assumed"], Value::Null);
}

#[test]
fn status_and_signals_pass_through() {
    let case = Case::new("status");
    case.nearpage(["record", "-q", "-o", "r1", "--", "sh", "-c", "exit 7"])
        .exits(7);
    let crashed = case
        .nearpage(["record", "-o", "r2", "--", "sh", "-c", "kill -SEGV $$"])
        .is_ended_by(11);
    assert!(crashed.stderr.contains("signal 11"), "{crashed}");
    case.nearpage(["report", "r2"]).success();
    case.nearpage([
        "run",
        "--threads",
        "none",
        "--place",
        "heap>=1M=interleave",
        "--",
        "sh",
        "-c",
        "exit 5",
    ])
    .exits(5);
}

/// Threads stay where nearpage pins them under LLVM's OpenMP runtime, too, unless the user asks for another binding.
#[test]
fn openmp_runtimes_are_kept_from_pinning_threads() {
    let case = Case::new("affinity");
    let told = |threads: &str, given: Option<(&str, &str)>| {
        let mut command = case.command(nearpage_path());
        command.args([
            "run",
            "--threads",
            threads,
            "--place",
            "heap>=1M=interleave",
        ]);
        command.args(["--", "sh", "-c", "echo \"<$KMP_AFFINITY>\""]);
        for name in [
            "KMP_AFFINITY",
            "OMP_PLACES",
            "OMP_PROC_BIND",
            "GOMP_CPU_AFFINITY",
        ] {
            command.env_remove(name);
        }
        command.envs(given);
        case.run(command).success().stdout
    };
    assert_eq!(told("compact", None), "<disabled>\n");
    assert_eq!(told("none", None), "<>\n");
    assert_eq!(
        told("compact", Some(("KMP_AFFINITY", "scatter"))),
        "<scatter>\n"
    );
    // LLVM's runtime would print a warning about a second setting.
    assert_eq!(told("compact", Some(("OMP_PROC_BIND", "true"))), "<>\n");
}

#[test]
fn a_crashing_program_leaves_a_recording_that_opens() {
    let case = Case::new("crash");
    let source = "#include <stdlib.h>\nint main(void){volatile char*p=malloc(1<<24);for(long j=0;j<20;j++)\
                  for(long i=0;i<1<<24;i+=64)p[i]+=1;abort();}";
    let program = case.compile("crash", source, &[]);
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "-q", "--rate", "1999", "-o", "r", "--"])
        .arg(program);
    case.run(record).is_ended_by(6);
    let report = json(&case.nearpage(["report", "--json", "r"]).success());
    assert!(
        report["attribution"]["heap"].as_u64().unwrap() > 0,
        "{report:#}"
    );
}

/// Shells ignore signals in background commands, systemd in services.
#[test]
fn ignored_signals_stay_ignored_in_the_command() {
    let case = Case::new("ignored");
    let bit = |signal: u32| 1u64 << (signal - 1);
    let (int, pipe, term) = (bit(2), bit(13), bit(15));
    let ignored = |trap: &str, words: &str| {
        let script = format!("{trap}; exec {words} sed -n 's/SigIgn:/found /p' /proc/self/status");
        let mut command = case.command("/bin/sh");
        command.args(["-c", &script]).arg(nearpage_path());
        let ran = case.run(command).success();
        let mut lines = ran.stdout.lines();
        let found = lines.find_map(|line| line.strip_prefix("found"));
        let found = found.unwrap_or_else(|| panic!("{ran}")).trim();
        u64::from_str_radix(found, 16).expect("a mask") & (int | pipe | term)
    };
    // Signals that the tests were started with as ignored: no shell can reset them.
    let before = ignored(":", "");
    for words in [
        "record -q -o r --force --",
        "run -q --threads none --",
        "live --",
    ] {
        for (trap, wanted) in [
            ("trap '' INT PIPE TERM", int | pipe | term),
            ("trap '' INT", int),
            (":", 0),
        ] {
            let found = ignored(trap, &format!("\"$0\" {words}"));
            assert_eq!(found, before | wanted, "{trap} {words}");
        }
    }
}

#[test]
fn background_processes_are_reported() {
    let case = Case::new("background");
    let record = |script: &str| {
        let words = ["record", "--force", "-o", "r", "--", "sh", "-c", script];
        case.nearpage(words).success()
    };
    let left = record("sleep 2 >/dev/null 2>&1 </dev/null & echo pid $!");
    let pid = left.stdout.trim().strip_prefix("pid ").expect("its number");
    let line = format!("a process that it started runs on, no longer recorded ({pid}): ");
    assert_eq!(left.stderr.matches(&line).count(), 1, "{left}");
    assert!(case.read("r/recording.json").contains(&line), "{left}");
    let waited = record("sleep 0.1 & wait");
    assert!(!waited.stderr.contains("runs on"), "{waited}");
}

#[test]
fn the_stack_limit_applies_to_the_command_only() {
    let case = Case::new("stack");
    for words in [
        "machine",
        "record -q -o r --force -- sh -c 'ulimit -s'",
        "run -q --threads none -- sh -c 'ulimit -s'",
        "report r",
    ] {
        let mut command = case.command("/bin/sh");
        command
            .args(["-c", &format!("ulimit -s 64; exec \"$0\" {words}")])
            .arg(nearpage_path());
        let ran = case.run(command).success();
        assert!(
            !words.contains("ulimit") || ran.stdout.contains("64\n"),
            "{ran}"
        );
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    let case = Case::new("usage");
    case.nearpage::<&str>([]).exits(2);
    case.nearpage(["nonsense"]).exits(2);
    case.nearpage(["record"]).exits(2);
    case.nearpage(["record", "--rate", "0", "--", "true"])
        .exits(2);
    for hardware in [["--period", "5"], ["--min-latency", "50"]] {
        let mut record = vec!["record", "--source", "clock", "-o", "r"];
        record.extend(hardware);
        record.extend(["--", "true"]);
        says(case.nearpage(record), 2, &["--source clock"]);
    }
    case.nearpage(["record", "--rate", "9", "--period", "9", "--", "true"])
        .exits(2);
    assert!(!case.path("r").exists());
    case.nearpage(["report", "r", "--loads", "--stores"])
        .exits(2);
    case.nearpage(["run", "--place", "nonsense", "--", "true"])
        .exits(2);
    let wrong = case
        .nearpage(["run", "--place", "symbol:x=sideways", "--", "true"])
        .exits(2);
    assert!(wrong.stderr.contains("for example"), "{wrong}");
}

#[test]
fn without_accesses_no_tables_are_printed() {
    let case = Case::new("no-accesses");
    case.nearpage(["record", "-q", "--after", "100", "-o", "r", "--", "true"])
        .success();
    let report = case.nearpage(["report", "r"]).success();
    assert!(report.stdout.contains("no samples"), "{report}");
    assert!(!report.stdout.contains("object"), "{report}");
    let plan = case.nearpage(["plan", "r"]).success();
    assert!(plan.stdout.contains("no accesses were recorded"), "{plan}");
    assert!(!plan.stdout.contains("interleave"), "{plan}");
}

#[test]
fn bad_recordings_are_named() {
    let case = Case::new("bad-recordings");
    says(case.nearpage(["report", "missing"]), 1, &["missing"]);
    case.write("file", "text");
    says(
        case.nearpage(["report", "file"]),
        1,
        &["file", "nearpage record -o DIR -- COMMAND"],
    );
    fs::create_dir(case.path("empty")).unwrap();
    says(case.nearpage(["report", "empty"]), 1, &["empty"]);

    record_triad(&case, "r", &["-q"]).success();
    case.nearpage(["report", "r"]).success();
    let table = case.path("r/accesses.parquet");
    let bytes = fs::read(&table).unwrap();
    fs::write(&table, &bytes[..bytes.len() / 2]).unwrap();
    says(case.nearpage(["report", "r"]), 1, &["accesses.parquet"]);
    fs::write(&table, &bytes).unwrap();
    case.write("r/recording.json", "{");
    says(case.nearpage(["report", "r"]), 1, &["recording.json"]);
}

#[test]
fn bad_plans_are_named_and_nothing_is_overwritten() {
    let case = Case::new("bad-plans");
    case.write("p.toml", "version = 1\ncolour = \"red\"\n");
    says(
        case.nearpage(["run", "--plan", "p.toml", "--", "true"]),
        1,
        &["p.toml:2", "colour"],
    );
    says(
        case.nearpage(["run", "--plan", "none.toml", "--", "true"]),
        1,
        &["none.toml"],
    );
    says(
        case.nearpage(["plan", "missing", "-o", "p.toml"]),
        1,
        &["missing"],
    );
    assert!(
        case.read("p.toml").contains("colour"),
        "an earlier file stays where a new one can't be made"
    );
    for command in ["machine", "plan r", "run --threads none true"] {
        let words = command.split(' ').chain(["--machine", "nowhere"]);
        let mut words: Vec<&str> = words.collect();
        if command.starts_with("run") {
            words.swap(3, 5);
            words.swap(3, 4);
        }
        says(case.nearpage(words), 2, &["nowhere", "opteron-4"]);
    }
    case.write("m.toml", "name = \"m\"\n");
    says(
        case.nearpage(["machine", "--machine", "m.toml"]),
        1,
        &["m.toml"],
    );
}

#[test]
fn rules_that_match_nothing_are_refused() {
    let case = Case::new("rules");
    let lu = workload("lu_blocks");
    let run = |rule: &str| {
        let mut run = case.command(nearpage_path());
        run.args(["run", "--place", rule, "--"])
            .arg(&lu)
            .args(["2", "1", "1", "1", "1"]);
        case.run(run)
    };
    says(run("symbol:cvat=interleave"), 1, &["cvat", "cvar"]);
    says(run("symbol:cvar=node:9"), 1, &["node 9"]);
    let placed = run("symbol:cvar=block-cyclic:1M").success();
    assert!(
        placed.stderr.contains("symbol:cvar") && placed.stderr.contains("placed 1 object"),
        "{placed}"
    );
}

#[test]
fn unmatched_memory_is_placed_in_every_process_of_the_command() {
    let case = Case::new("rest");
    let run = |rules: &[&str]| {
        let mut run = case.command(nearpage_path());
        run.arg("run");
        rules
            .iter()
            .for_each(|rule| _ = run.args(["--place", rule]));
        run.args([
            "--",
            "sh",
            "-c",
            "grep -m1 -o 'interleave[^ ]*' /proc/self/numa_maps; true",
        ]);
        case.run(run)
    };
    let placed = run(&["rest=interleave"]).success();
    assert!(placed.stdout.starts_with("interleave=static:0"), "{placed}");
    assert!(
        placed
            .stderr
            .contains("--place 'unmatched=interleave': policy set in 2 processes\n"),
        "{placed}"
    );
    let left = run(&["rest=first-touch"]).success();
    assert_eq!(left.stdout, "", "{left}");
    assert!(
        left.stderr
            .contains("left to first touch, as planned, in 2 processes"),
        "{left}"
    );
    says(run(&["rest=node:9"]), 1, &["rest=node:9", "no node 9"]);
    says(run(&["rest=block"]), 2, &["unmatched memory can be"]);
    says(
        run(&["rest=interleave", "rest=node:0"]),
        2,
        &["unmatched=node:0", "said twice", "unmatched=interleave"],
    );
}

/// All subcommands that start a command report a missing one alike, with a shell's exit status, and create nothing.
#[test]
fn commands_that_cannot_run_leave_nothing() {
    let case = Case::new("no-command");
    case.write("plain", "text");
    case.program("script", "#!/no/such/interpreter\n");
    let starters: [&[&str]; 7] = [
        &["record", "-o", "r"],
        &["trace", "-o", "r"],
        &["run", "--place", "heap>=1M=interleave"],
        &["run", "--plan", "none.toml", "--replicate", "code"],
        &["optimize", "-o", "r"],
        &["live", "--plain", "--log", "r"],
        &["lab"],
    ];
    for words in starters {
        for (command, status, why) in [
            ("no-such-command", 127, "command not found on PATH"),
            ("./none", 127, "command not found"),
            (
                "./plain",
                126,
                "cannot be run: it is not executable; `chmod +x` makes it so",
            ),
            (
                "./script",
                126,
                "cannot be run: its interpreter `/no/such/interpreter` is not found",
            ),
        ] {
            let finished = case.nearpage([words, &["--", command]].concat());
            let finished = finished.exits(status);
            assert_eq!(finished.stderr, format!("nearpage: {command}: {why}\n"));
            assert!(!case.path("r").exists(), "{words:?}");
        }
    }
}

/// Runs the command line that nearpage suggested as the next one.
fn pasted(case: &Case, finished: Finished) -> Finished {
    let finished = finished.success();
    let mut lines = finished.stderr.lines();
    let next = lines.find_map(|line| line.strip_prefix("nearpage: next: "));
    let next = next.unwrap_or_else(|| panic!("{finished}"));
    let folder = nearpage_path();
    let folder = folder.parent().expect("a folder").display();
    let mut shell = case.command("bash");
    shell.args(["-c", &format!("PATH='{folder}':$PATH\n{next}")]);
    case.run(shell).success()
}

/// Names of folders and files have characters that need quoting; the terminal has 40 columns.
#[test]
fn next_commands_can_be_pasted() {
    let case = Case::new("it's a folder");
    case.program_copy(workload("triad"), "a 'program'");
    let nearpage = |words: &[&str]| {
        let mut command = case.command(nearpage_path());
        command.args(words).env("COLUMNS", "40");
        case.run(command)
    };
    let words = ["record", "--output=-r $1\n\u{202e}", "--", "./a 'program'"];
    // Long enough for hundreds of samples: a table without any access cannot be imported.
    let recorded = nearpage(&[&words[..], &["2", "400"]].concat());
    let reported = pasted(&case, recorded);
    assert!(reported.stdout.contains("accesses"), "{reported}");
    let recording = "./-r $1\n\u{202e}";
    let words = ["plan", recording, "--machine", "opteron-4"];
    let placed = pasted(&case, nearpage(&words));
    assert!(placed.stdout.contains("checksum"), "{placed}");
    let exported = nearpage(&["export", recording, "--to", "csv", "-o", "a b.csv"]);
    let imported = pasted(&case, exported);
    assert!(case.path("a b.csv.nearpage").is_dir(), "{imported}");
}

/// A file size limit stands in for a full disk. An earlier version left an empty folder, or with --force moved the old
/// recording to another name.
#[test]
fn a_recording_that_cannot_be_written_leaves_what_was_there() {
    let case = Case::new("no-room");
    let record = |options: &str| {
        let nearpage = nearpage_path();
        let script = format!(
            // `cat` receives the messages, so that the limit does not apply to them.
            "set -o pipefail; (trap '' XFSZ; ulimit -f 0; exec '{}' record {options} -o r -- true) 2>&1 | cat >&2",
            nearpage.display()
        );
        let mut command = case.command("bash");
        command.args(["-c", &script]);
        case.run(command).says(1, &["r/", "File too large"])
    };
    record("");
    let names = || {
        let entries = fs::read_dir(case.folder()).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.retain(|name| name.to_string_lossy().starts_with('r'));
        names
    };
    assert!(names().is_empty(), "{:?}", names());
    let mut few_files = case.command("bash");
    let nearpage = nearpage_path();
    let script = format!(
        "ulimit -n 4; exec '{}' record -o r -- true",
        nearpage.display()
    );
    few_files.args(["-c", &script]);
    case.run(few_files).says(1, &["Too many open files"]);
    assert!(names().is_empty(), "{:?}", names());
    fs::create_dir(case.path("r")).unwrap();
    case.write("r/recording.json", "{}");
    record("--force");
    assert_eq!(names(), ["r"]);
    assert_eq!(case.read("r/recording.json"), "{}");
}

#[test]
fn an_earlier_recording_is_kept_unless_forced() {
    let case = Case::new("force");
    case.nearpage(["record", "-q", "-o", "r", "--", "true"])
        .success();
    let before = case.read("r/recording.json");
    says(
        case.nearpage(["record", "-o", "r", "--", "true"]),
        1,
        &["r: there is a recording already", "--force"],
    );
    assert_eq!(case.read("r/recording.json"), before);
    says(
        case.nearpage(["record", "--force", "-o", "r", "--", "no-such-command"]),
        127,
        &["no-such-command"],
    );
    assert_eq!(case.read("r/recording.json"), before);
    case.nearpage(["record", "-q", "--force", "-o", "r", "--", "sh", "-c", ":"])
        .success();
    assert_ne!(case.read("r/recording.json"), before);
    fs::create_dir(case.path("mine")).unwrap();
    case.write("mine/file", "text");
    says(
        case.nearpage(["record", "--force", "-o", "mine", "--", "true"]),
        1,
        &["mine"],
    );
    assert_eq!(case.read("mine/file"), "text");
    says(
        case.nearpage(["record", "--force", "-o", "mine/file", "--", "true"]),
        1,
        &["mine/file", "not a recording"],
    );
    assert_eq!(case.read("mine/file"), "text");
}

#[test]
fn static_programs_are_recorded_as_far_as_can_be() {
    let case = Case::new("static");
    let source = "#include <stdlib.h>\nstatic char big[1<<24];int main(void){volatile char*p=big;for(long j=0;j<60;j++)\
                  for(long i=0;i<1<<24;i+=64)p[i]+=1;return 0;}";
    let program = case.compile("still", source, &["-static"]);
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "--rate", "1999", "-o", "r", "--"])
        .arg(&program);
    let recorded = case.run(record).success();
    assert!(recorded.stderr.contains("statically linked"), "{recorded}");
    let report = json(&case.nearpage(["report", "--json", "r"]).success());
    assert_eq!(report["objects"][0]["name"], "big", "{report:#}");
    let mut run = case.command(nearpage_path());
    run.args(["run", "--place", "symbol:big=interleave", "--"])
        .arg(&program);
    says(case.run(run), 1, &["statically linked"]);
}

#[test]
fn names_with_spaces_and_umlauts_work() {
    let case = Case::new("Größe und Raum");
    record_triad(&case, "my récord", &["-q"]).success();
    let text = case.nearpage(["report", "my récord"]).success();
    assert!(text.stdout.contains("own block"), "{text}");
    case.nearpage(["plan", "my récord"]).success();
    assert!(case.path("my récord/plan.toml").exists());
}

#[test]
fn redacted_recordings_hold_no_paths_or_arguments() {
    let case = Case::new("redact");
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "-q", "--redact", "-o", "r", "--"])
        .arg(workload("triad"))
        .args(TRIAD);
    case.run(record).success();
    case.nearpage(["report", "r"]).success();
    let secret = workload("triad")
        .parent()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let mut folders = vec![case.path("r")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let found = bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes());
            assert!(!found, "{} holds {secret}", path.display());
        }
    }
}

/// Starts the recording of a long program and waits until there are samples.
fn long_recording(case: &Case, name: &str) -> std::process::Child {
    // Resets signals that are ignored where the tests run, such as SIGHUP under `nohup`.
    let mut record = case.command("env");
    record
        .arg("--default-signal=INT,HUP")
        .arg(nearpage_path())
        .args(["record", "--rate", "1999", "-o", name, "--"])
        .arg(workload("triad"))
        .args(["16", "100000"]);
    record
        .env("OMP_NUM_THREADS", "2")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = record.spawn().unwrap();
    let log = case.path(name).join("log");
    let size = || {
        fs::read_dir(&log)
            .into_iter()
            .flatten()
            .flatten()
            .map(|file| file.metadata().unwrap().len())
            .sum::<u64>()
    };
    let started = Instant::now();
    while size() < 100_000 && started.elapsed() < Duration::from_secs(60) {
        sleep(Duration::from_millis(50));
    }
    child
}

fn signal(pid: u32, name: &str) {
    assert!(
        Command::new("kill")
            .args([&format!("-{name}"), &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn interrupts_and_hangups_end_a_recording_cleanly() {
    let case = Case::new("sigint");
    for name in ["INT", "HUP"] {
        let mut child = long_recording(&case, name);
        sleep(Duration::from_millis(300));
        signal(child.id(), name);
        child.wait().unwrap();
        let recording = case.read(format!("{name}/recording.json"));
        assert!(recording.contains("\"complete\""), "{name}: {recording}");
        let report = json(&case.nearpage(["report", "--json", name]).success());
        assert!(report["accesses"].as_u64().unwrap() > 0, "{name}");
    }
}

#[test]
fn a_killed_recorder_leaves_a_recording_that_opens_and_says_so() {
    let case = Case::new("sigkill");
    let mut child = long_recording(&case, "r");
    sleep(Duration::from_millis(700));
    let pid = child.id();
    let programs = Command::new("pgrep")
        .args(["-P", &pid.to_string()])
        .output()
        .unwrap();
    signal(pid, "KILL");
    child.wait().unwrap();
    // The program survives its recorder, but must not outlive the test.
    let programs = String::from_utf8(programs.stdout).unwrap();
    for program in programs.split_whitespace() {
        signal(program.parse().unwrap(), "KILL");
    }
    let report = case.nearpage(["report", "--json", "r"]).success();
    assert!(report.stderr.contains("incomplete"), "{report}");
    assert!(json(&report)["accesses"].as_u64().unwrap() > 0, "{report}");
}

/// A program that copies a function into executable memory and writes a map of generated code.
const GENERATES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { BYTES = 4096, COUNT = 1 << BITS };
__attribute__((noinline, aligned(64))) static unsigned long gather(const unsigned *at, const unsigned long *from) {
    unsigned long sum = 0;
    for (unsigned k = 0; k < COUNT; k++) sum += from[at[k]];
    return sum;
}
int main(void) {
    char name[64];
    snprintf(name, sizeof name, "/tmp/perf-%d.map", (int)getpid());
    char *code = mmap(NULL, BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned *at = malloc(COUNT * sizeof *at);
    unsigned long *from = malloc(COUNT * sizeof *from), sum = 0;
    memcpy(code, (void *)gather, 512);
    __builtin___clear_cache(code, code + 512);
    for (unsigned k = 0; k < COUNT; k++) at[k] = k * 2654435761u % COUNT, from[k] = k;
    for (int k = 0; k < 40; k++) sum += ((unsigned long (*)(const unsigned *, const unsigned long *))code)(at, from);
    FILE *map = fopen(name, "w");
    fprintf(map, "%lx %x before\n%lx %x gather of v8@1\n", (unsigned long)code, 16, (unsigned long)code, 512);
    fclose(map);
    printf("%s %lu\n", name, sum);
    return 0;
}"#;

#[test]
fn generated_code_has_the_names_that_its_program_gives_it() {
    let case = Case::new("generated");
    let large = case.compile("large", GENERATES, &["-O2", "-DBITS=22"]);
    let small = case.compile("small", GENERATES, &["-O2", "-DBITS=16"]);
    let record = |name: &str, more: &[&str], program: &Path| {
        let mut command = case.command(nearpage_path());
        command
            .args(["record", "-q", "-o", name])
            .args(more)
            .arg("--")
            .arg(program);
        let recorded = case.run(command).success();
        let (map, _) = recorded.stdout.split_once(' ').unwrap();
        fs::remove_file(map).unwrap();
    };
    let functions = |name: &str| {
        let report = json(&case.nearpage(["report", "--json", name]).success());
        report["objects"].to_string()
    };
    record("r", &["--rate", "997"], &large);
    assert!(
        functions("r").contains("gather of v8@1"),
        "{}",
        functions("r")
    );
    case.nearpage(["export", "-q", "r", "-o", "copy"]).success();
    assert_eq!(functions("copy"), functions("r"));
    // Names of generated functions contain paths, so --redact removes them.
    record("redacted", &["--rate", "997", "--redact"], &large);
    assert!(!functions("redacted").contains("gather of"));
    let full = ["--source", "full", "--machine", "flash-8"];
    record("full", &full, &small);
    assert!(functions("full").contains("gather of v8@1"));
}

/// Builds a program that runs another one with perf_event_open refused, as container profiles do.
fn refusing_perf(case: &Case) -> std::path::PathBuf {
    let source = r#"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Refuses perf_event_open by a seccomp filter, as container profiles do. */
int main(int argc, char **argv) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 99;
    execv(argv[1], argv + 1);
    return 98;
}"#;
    case.compile("refuse", source, &[])
}

#[test]
fn perf_that_is_refused_is_explained() {
    let case = Case::new("refused");
    let refuse = refusing_perf(&case);
    let under = |arguments: &[&str]| {
        let mut command = case.command(&refuse);
        command.arg(nearpage_path()).args(arguments);
        case.run(command)
    };
    says(
        under(&["record", "--source", "clock", "-o", "r", "--", "true"]),
        1,
        &["perf_event_open", "seccomp"],
    );
    assert!(!case.path("r").exists());
    let doctor = under(&["doctor"]).success();
    assert!(
        doctor.stdout.contains("missing") && doctor.stdout.contains("remedy"),
        "{doctor}"
    );
    assert!(
        doctor.stdout.contains("source signal, not clock"),
        "{doctor}"
    );
    let source = "int main(void) { return 0; }";
    case.compile("still", source, &["-static"]);
    let still = under(&["record", "-o", "r", "--", "./still"]).exits(1);
    assert!(
        still
            .stderr
            .contains("signal: it needs the preload library"),
        "{still}"
    );
    assert!(still.stderr.contains("statically linked"), "{still}");
}

#[test]
fn where_perf_is_refused_programs_are_sampled_from_inside() {
    let case = Case::new("inside");
    let refuse = refusing_perf(&case);
    // Two arrays, one of them on the heap, a child process that computes, too, and a thread-local counter.
    let source = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static double table[1 << 20];
static __thread volatile long own[1 << 10];
static double sum;
static void *work(void *heap) {
    double *a = heap, s = 0;
    for (int round = 0; round < 300; round++)
        for (int i = 0; i < 1 << 20; i++)
            s += a[i] + table[(i * 1031L) & ((1 << 20) - 1)], own[i & 1023]++;
    sum += s;
    return NULL;
}
int main(void) {
    double *a = malloc(sizeof table);
    for (int i = 0; i < 1 << 20; i++) a[i] = table[i] = i;
    pthread_t thread;
    pthread_create(&thread, NULL, work, a);
    pthread_join(thread, NULL);
    if (fork() == 0) { work(a); _exit(0); }
    wait(NULL);
    puts("done");
    return 0;
}"#;
    let program = case.compile("inside", source, &["-pthread"]);
    let mut command = case.command(&refuse);
    command.arg(nearpage_path());
    command
        .args(["record", "--rate", "1000", "-o", "r", "--"])
        .arg(&program);
    let recorded = case.run(command).success();
    assert_eq!(recorded.stdout, "done\n");
    assert!(
        recorded
            .stderr
            .contains("source signal, not clock: perf_event_open is forbidden (EPERM)"),
        "{recorded}"
    );
    assert!(
        recorded.stderr.contains("; 0 lost") || recorded.stderr.contains(" 0 lost"),
        "{recorded}"
    );
    let metadata: Value =
        serde_json::from_str(&std::fs::read_to_string(case.path("r/recording.json")).unwrap())
            .unwrap();
    assert_eq!(metadata["source"], "signal");
    let report = case.nearpage(["report", "--json", "r"]).success();
    let report_json = json(&report);
    assert!(report_json["accesses"].as_u64().unwrap() > 20, "{report}");
    let names: Vec<&str> = report_json["objects"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|object| object["name"].as_str())
        .collect();
    for name in ["table", "main inside.c"] {
        assert!(
            names.iter().any(|found| found.contains(name)),
            "{name} in {names:?}"
        );
    }
}

#[test]
fn the_source_is_printed_once_and_recorded() {
    let case = Case::new("source");
    let auto = case
        .nearpage(["record", "-o", "auto", "--", "true"])
        .success();
    let told: Vec<_> = auto
        .stderr
        .lines()
        .filter(|line| line.starts_with("nearpage: source "))
        .collect();
    assert!(told.len() <= 1, "{auto}");
    let json = |name: &str| -> Value {
        let text = std::fs::read_to_string(case.path(name).join("recording.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    };
    let source = json("auto")["source"].as_str().unwrap().to_owned();
    let of_source = |line: &str| line.starts_with(&format!("source {source}"));
    let of_line = |line: &&str| of_source(line.trim_start_matches("nearpage: "));
    assert!(told.iter().all(of_line), "{auto}");
    // Without a PMU there is nothing to do: the reason is only in the recording's notes, and `doctor` explains it.
    let recorded = json("auto");
    let mut notes = recorded["notes"].as_array().unwrap().iter();
    let note = notes.find_map(|note| note.as_str().filter(|note| of_source(note)));
    let note = note.unwrap_or_else(|| panic!("{recorded:#}"));
    let clock = case
        .nearpage(["record", "--source", "clock", "-o", "clock", "--", "true"])
        .success();
    assert!(!clock.stderr.contains("nearpage: source"), "{clock}");
    assert_eq!(json("clock")["source"], "clock");
    // If requested, PMU sampling either works or fails with the reason that `auto` noted.
    let pmu = case.nearpage(["record", "--source", "pmu", "-o", "pmu", "--", "true"]);
    match note.split_once("not pmu: ") {
        None => drop(pmu.success()),
        Some((_, why)) => {
            says(pmu, 1, &[why]);
            assert!(!case.path("pmu").exists());
        }
    }
}

#[test]
fn machines_print_and_read_back() {
    let case = Case::new("machines");
    for name in ["local", "opteron-4", "altix-4", "amd48", "intel32"] {
        let toml = case
            .nearpage(["machine", "--machine", name, "--toml"])
            .success()
            .stdout;
        let file = case.write("m.toml", &toml);
        let again = case
            .nearpage(["machine", "--machine", file.to_str().unwrap(), "--toml"])
            .success()
            .stdout;
        assert_eq!(toml, again);
        json(
            &case
                .nearpage(["machine", "--machine", name, "--json"])
                .success(),
        );
        case.nearpage(["machine", "--machine", name]).success();
    }
}

#[test]
fn text_fits_narrow_terminals() {
    let case = Case::new("narrow");
    record_triad(&case, "r", &["-q"]).success();
    for (columns, arguments) in [
        ("60", vec!["report", "r"]),
        ("80", vec!["report", "r", "--by", "thread"]),
        ("80", vec!["report", "r", "--by", "page"]),
        ("80", vec!["plan", "r", "--machine", "opteron-4"]),
        ("50", vec!["plan", "r", "--machine", "opteron-4"]),
    ] {
        let mut command = case.command(nearpage_path());
        command.args(&arguments).env("COLUMNS", columns);
        let finished = case.run(command).success();
        let limit: usize = columns.parse().unwrap();
        for line in finished.stdout.lines() {
            assert!(
                line.chars().count() <= limit,
                "{arguments:?} at {columns}: {line:?}\n{finished}"
            );
        }
    }
}

#[test]
fn a_closed_pipe_is_quiet() {
    let case = Case::new("pipe");
    let mut shell = case.command("sh");
    shell.args([
        "-c",
        &format!(
            "{} machine --machine amd48 --toml | head -n 1",
            nearpage_path().display()
        ),
    ]);
    let finished = case.run(shell).success();
    assert_eq!(finished.stderr, "", "{finished}");
}

#[test]
fn optimize_on_one_node_predicts_and_says_so() {
    let case = Case::new("optimize");
    let mut optimize = case.command(nearpage_path());
    optimize
        .args(["optimize", "--rate", "1999", "-o", "o", "--"])
        .arg(workload("triad"))
        .args(TRIAD)
        .env("OMP_NUM_THREADS", "4");
    let finished = case.run(optimize).success();
    let nodes = json(&case.nearpage(["machine", "--json"]).success())["node"]
        .as_array()
        .unwrap()
        .len();
    if nodes == 1 {
        assert!(finished.stdout.contains("one memory node"), "{finished}");
        assert!(finished.stdout.contains("opteron-4"), "{finished}");
    }
    assert!(case.path("o/plan.toml").exists());
    let run = pasted(&case, finished);
    assert!(run.stderr.contains("using the kept plan"), "{run}");
}

#[test]
fn without_a_kept_plan_run_says_what_to_do() {
    let case = Case::new("unkept");
    says(
        case.nearpage(["run", "--", "true"]),
        1,
        &["no plan is kept", "--place"],
    );
}

#[test]
fn a_disabled_library_changes_nothing() {
    let case = Case::new("disabled");
    let mut run = case.command(nearpage_path());
    run.args(["run", "--place", "heap>=1M=interleave", "--"])
        .arg(workload("triad"))
        .args(["4", "1"]);
    run.env("NEARPAGE_DISABLE", "1");
    let run = case.run(run).success();
    assert!(run.stderr.contains("nothing was placed"), "{run}");
}

#[test]
fn help_and_man_pages_come_from_the_definitions() {
    let case = Case::new("help");
    for command in [
        "record", "report", "plan", "run", "optimize", "machine", "doctor",
    ] {
        let help = case.nearpage([command, "--help"]).success();
        assert!(help.stdout.contains("Usage: nearpage"), "{help}");
    }
    case.nearpage(["generate", "man", "man"]).success();
    let kept = nearpage_tests::repository().join("docs/man");
    for entry in fs::read_dir(case.path("man")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name();
        let kept = fs::read_to_string(kept.join(&name)).unwrap_or_default();
        let fresh = fs::read_to_string(entry.path()).unwrap();
        assert_eq!(
            kept, fresh,
            "docs/man is out of date: nearpage generate man docs/man"
        );
    }
    let page = nearpage_tests::repository().join("docs/reference/commands.md");
    assert_eq!(
        fs::read_to_string(page).unwrap(),
        case.nearpage(["generate", "commands"]).success().stdout,
        "out of date: nearpage generate commands >docs/reference/commands.md"
    );
    for shell in ["bash", "zsh", "fish"] {
        let script = case
            .nearpage(["generate", "completions", shell])
            .success()
            .stdout;
        assert!(script.contains("optimize"), "{shell}");
    }
}

#[test]
fn placement_is_reported_across_exec_but_not_after_a_signal() {
    let case = Case::new("ends");
    let source = r#"
        #include <signal.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            memset(malloc(3 << 20), 1, 3 << 20);
            if (argc > 1 && strcmp(argv[1], "kill"))
                execl("/no/such/program", "no", (char *)0);
            memset(malloc(3 << 20), 1, 3 << 20);
            if (argc > 1 && !strcmp(argv[1], "exec"))
                execl("/bin/true", "true", (char *)0);
            if (argc > 1 && !strcmp(argv[1], "kill"))
                raise(SIGKILL);
            return 0;
        }"#;
    let program = case.compile("ends", source, &["-fno-builtin"]);
    let run = |how: &str| {
        let mut run = case.command(nearpage_path());
        run.args(["run", "--place", "heap>=1M=interleave", "--"])
            .arg(&program)
            .arg(how);
        case.run(run)
    };
    for how in ["exec", "exit"] {
        let said = run(how).success().stderr;
        assert!(said.contains("placed 2 objects, 6 MiB"), "{how}: {said}");
        assert!(!said.contains("abruptly"), "{how}: {said}");
    }
    let said = run("kill").is_ended_by(9).stderr;
    assert!(said.contains("ended abruptly"), "{said}");
    assert!(!said.contains("matched nothing"), "{said}");
}

/// libstdc++ starts all threads of `std::thread` in one routine; teams are named after the functions they execute.
#[test]
fn teams_of_std_thread_are_named_after_functions_of_the_program() {
    let case = Case::new("standard_threads");
    let source = r#"
        #include <cstring>
        #include <thread>
        #include <vector>
        __attribute__((noinline)) void sweep(int number, double *sum) { *sum += number; }
        int main(int argc, char **argv) {
            double sums[2] = {};
            std::vector<std::thread> threads;
            for (int number = 0; number < 2; number++)
                if (number == 0 || strcmp(argv[1], "both"))
                    threads.emplace_back(sweep, number, sums + number);
                else
                    threads.emplace_back([&sums, number] { sums[number] += number; });
            for (auto &thread : threads) thread.join();
            return sums[1] == 1 ? 0 : 1;
        }"#;
    case.write("crew.cc", source);
    let mut compiler = case.command("c++");
    compiler.args(["-g", "-O1", "-pthread", "-o", "crew", "crew.cc"]);
    case.run(compiler).success();
    // Checks number 0 only: the second thread has number 1 only if the first one still runs.
    for (what, name) in [
        ("one", "crew, sweep(int, double*) 0"),
        ("both", "crew, std::thread 0"),
    ] {
        let recording = format!("{what}.nearpage");
        case.nearpage(["record", "-o", &recording, "--", "./crew", what])
            .success();
        let written = format!("{what}.json");
        case.nearpage(["export", "--to", "perfetto", &recording, "-o", &written])
            .success();
        let written = case.read(&written);
        assert!(
            written.contains(&format!("\"{name}\"")),
            "{name}: {written}"
        );
        assert!(!written.contains("crew, libstdc++"), "{written}");
        assert_eq!(written.contains("crew, sweep("), what == "one", "{written}");
    }
}

#[test]
fn a_plan_may_wait_for_the_second_thread() {
    let case = Case::new("later");
    let source = r#"
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #define BYTES (4 << 20)
        static char *object;
        static void *sum(void *part) {
            long sum = 0;
            for (long at = (long)part * (BYTES / 4); at < ((long)part + 1) * (BYTES / 4); at++) sum += object[at];
            return (void *)sum;
        }
        int main(int argc, char **argv) {
            pthread_t threads[4];
            long all = 0;
            void *own;
            memset(object = malloc(BYTES), 3, BYTES);
            for (long part = 0; part < 4; part++)
                if (argc > 1) pthread_create(&threads[part], NULL, sum, (void *)part);
            for (long part = 0; part < 4; part++) {
                if (argc > 1) pthread_join(threads[part], &own); else own = sum((void *)part);
                all += (long)own;
            }
            printf("%ld\n", all);
            return 0;
        }"#;
    let program = case.compile("later", source, &["-pthread"]);
    let run = |start: &str, placement: &str, options: &[&str], arguments: &[&str]| {
        case.write(
            "plan.toml",
            format!(
                "version = 1\npolicy = \"hand\"\nmachine = \"any\"\npage_bytes = 4096\n[program]\nexecutable = \"later\"\n\
                 [[object]]\nname = \"filled\"\nheap = \">=1M\"\nplacement = \"{placement}\"\nstart = \"{start}\"\n"
            ),
        );
        let mut command = case.command(nearpage_path());
        command.args(["run", "--plan", "plan.toml"]).args(options);
        command.arg("--").arg(&program).args(arguments);
        let run = case.run(command).success();
        assert_eq!(run.stdout, format!("{}\n", 3 * (4 << 20)), "{run}");
        run.stderr
    };
    for start in ["second-thread", "parallel"] {
        let said = run(start, "interleave", &[], &["threads"]);
        assert!(
            said.contains(
                "filled: placed 1 object, 4 MiB in 1024 pages, when the second thread was created: "
            ),
            "{said}"
        );
        assert_eq!(
            said.contains("is moved once"),
            start == "parallel",
            "{said}"
        );
        let said = run(start, "interleave", &[], &[]);
        assert!(
            said.contains(
                "filled: 1 object recognised, none placed (1 left to first touch: no second"
            ),
            "{said}"
        );
    }
    let said = run("second-thread", "first-touch", &[], &["threads"]);
    assert!(
        said.contains("filled: 1 object left to first touch, as planned"),
        "{said}"
    );
    assert!(said.contains("there is no system call"), "{said}");
    let touch = ["--mechanism", "touch"];
    let said = run("second-thread", "interleave", &touch, &["threads"]);
    assert!(said.contains("is placed from its allocation on"), "{said}");
    assert!(said.contains("filled: placed 1 object"), "{said}");
    assert!(!said.contains("when the second thread was"), "{said}");
}

#[test]
fn a_plan_may_change_when_a_function_is_first_executed() {
    let case = Case::new("phases");
    let stages = workload("stages");
    let run = |keys: &str, options: &[&str]| {
        case.write(
            "plan.toml",
            format!(
                "version = 1\npolicy = \"hand\"\nmachine = \"any\"\npage_bytes = 4096\n[program]\nexecutable = \"stages\"\n\
                 [[object]]\nname = \"grid\"\nheap = \">=1M\"\nplacement = \"node:0\"\n{keys}"
            ),
        );
        let mut command = case.command(nearpage_path());
        command.args(["run", "--plan", "plan.toml"]).args(options);
        command.arg("--").arg(&stages).args(["2048", "1", "1"]);
        command.env("OMP_NUM_THREADS", "2");
        let run = case.run(command).success();
        assert_eq!(run.stdout.lines().count(), 1, "{run}");
        run.stderr
    };
    let phase = |function: &str, placement: &str| {
        format!(
            "[[phase]]\nfunction = \"{function}\"\n[[phase.object]]\nname = \"grid\"\nheap = \">=1M\"\n\
             placement = \"{placement}\"\n"
        )
    };
    let before = "grid: placed 1 object, 2 MiB in 512 pages\n";
    let said = run(&phase("backward._omp_fn.0", "interleave"), &[]);
    assert!(said.contains(before), "{said}");
    assert!(
        said.contains(
            "grid from backward._omp_fn.0 on: placed 1 object, 2 MiB in 512 pages, when `backward._omp_fn.0` was first \
             executed: "
        ),
        "{said}"
    );
    let exchange = "[[team]]\nname = \"openmp\"\nthreads = 2\n[[phase]]\nfunction = \"backward._omp_fn.0\"\n\
                    threads = [1, 0]\n";
    let said = run(exchange, &[]);
    let changed = " changed place when `backward._omp_fn.0` was first executed\n";
    assert!(said.contains(changed), "{said}");
    let said = run(exchange, &["--threads", "none"]);
    let stay = "threads do not change places when `backward._omp_fn.0` is first executed, as the plan has them: they are \
                not pinned\n";
    assert!(said.contains(stay) && !said.contains(changed), "{said}");
    let said = run(&phase("backward._omp_fn.0", "first-touch"), &[]);
    assert!(said.contains("for which there is no system call"), "{said}");
    assert!(
        said.contains(
            "grid from backward._omp_fn.0 on: 1 object left where placed before, as planned"
        ),
        "{said}"
    );
    // `main` runs, but neither in a team nor as the start routine of a thread.
    let said = run(&phase("main", "interleave"), &[]);
    assert!(
        said.contains("1 object recognised, none placed (1 left where placed before: `main` was not seen to be"),
        "{said}"
    );
    let said = run(&phase("sideways._omp_fn.0", "interleave"), &[]);
    assert!(said.contains("there is no such function in"), "{said}");
    let said = run(
        &phase("backward._omp_fn.0", "interleave"),
        &["--mechanism", "touch"],
    );
    assert!(said.contains("cannot be moved by touching them"), "{said}");
    assert!(said.contains("grid: placed 1 object"), "{said}");
    assert!(!said.contains("grid from"), "{said}");
}

#[test]
fn every_policy_of_live_watches_where_there_is_nothing_to_move() {
    let case = Case::new("live_policies");
    let unknown = case.nearpage(["live", "--policy", "best", "--", "true"]);
    let unknown = unknown.exits(2);
    let (_, names) = unknown.stderr.split_once("there are ").expect("all names");
    let names: Vec<&str> = names.lines().next().unwrap_or("").split(", ").collect();
    assert!(names.contains(&"carrefour") && names.len() > 5, "{names:?}");
    let nodes = Path::new("/sys/devices/system/node");
    let one_node = !nodes.join("node1").exists();
    for (name, dry_run) in names.iter().zip([true, false].into_iter().cycle()) {
        let mut arguments = vec!["live", "--policy", name];
        arguments.extend(dry_run.then_some("--dry-run"));
        arguments.extend(["--", "true"]);
        let finished = case.nearpage(arguments).success();
        assert_eq!(
            finished.stderr.contains("nothing to move, only to watch"),
            // The policy `watch` never moves pages, so the message would say nothing new.
            one_node && *name != "watch",
            "{finished}"
        );
    }
}

/// Version 0.1 called the requested moves of a process `wished`.
#[test]
fn logs_of_live_by_version_0_1_are_replayed() {
    let case = Case::new("earlier_log");
    let live = [
        "live",
        "--dry-run",
        "--interval",
        "100ms",
        "--log",
        "now.jsonl",
    ];
    let watched = [
        "--",
        "sh",
        "-c",
        "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done",
    ];
    case.nearpage([&live[..], &watched].concat()).success();
    let now = case.read("now.jsonl");
    let earlier = now.replace("\"requested\":", "\"wished\":");
    assert_ne!(now, earlier, "no process was observed: {now}");
    case.write("earlier.jsonl", earlier);
    for log in ["now.jsonl", "earlier.jsonl"] {
        let replayed = case.nearpage(["live", "--replay", log, "--json"]).success();
        assert_eq!(json(&replayed)["same"], true, "{replayed}");
    }
    let unknown = now.replace("\"requested\":", "\"desired\":");
    case.write("unknown.jsonl", unknown);
    says(
        case.nearpage(["live", "--replay", "unknown.jsonl"]),
        1,
        &["unknown.jsonl, line ", "`desired`"],
    );
}

/// The kernel's default action for a write beyond the limit is to end the process.
#[test]
fn at_the_file_size_limit_recording_stops_and_the_command_goes_on() {
    let case = Case::new("file-size");
    let limited = |kib: u32, arguments: &str| {
        let mut command = case.command("bash");
        command.args(["-c", &format!("ulimit -f {kib}; exec \"$0\" {arguments}")]);
        command.arg(nearpage_path());
        case.run(command)
    };
    // Each process adds its mappings to the log.
    let many = "sh -c 'for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3 4 5 6 7 8 9; do /bin/true; done; done; echo done'";
    let finished = limited(16, &format!("record --source clock -o r -- {many}")).exits(1);
    assert_eq!(finished.stdout, "done\n", "{finished}");
    for words in [
        "recording stops here, what is observed goes on",
        "the recording is incomplete",
        "r/log/recorder.log: cannot write: File too large",
    ] {
        assert!(finished.stderr.contains(words), "{words}:\n{finished}");
    }
    let report = case.nearpage(["report", "r"]).success();
    assert!(report.stderr.contains("is incomplete"), "{report}");
    // A command that reaches a limit of its own is ended by SIGXFSZ, as without nearpage.
    let own = "ulimit -f 1; exec head -c 9999 /dev/zero >much";
    case.nearpage(["record", "-q", "-o", "own", "--", "sh", "-c", own])
        .is_ended_by(25);
    // In emulation the program itself writes the trace.
    let triad = workload("triad");
    let tracing = format!(
        "trace --machine flash-8 -o full -- '{}' 1 2",
        triad.display()
    );
    let finished = limited(64, &tracing).success();
    assert!(finished.stdout.contains("checksum"), "{finished}");
    let words = "no more of the trace is written: ";
    assert!(finished.stderr.contains(words), "{finished}");
}

#[test]
fn names_with_escape_sequences_move_no_cursor() {
    let case = Case::new("names");
    let machine = "name = \"a\\u001b[31mred\\nline\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0\"\n[[node]]\nid = 1\ncpus = \"1\"\n";
    case.write("\x1b[7mmachine.toml", machine);
    let program = case.program_copy(workload("triad"), "tri\x1b[32mad");
    let run = |arguments: &[&str], code: i32| {
        let finished = case.nearpage(arguments).exits(code);
        let printed = format!("{}{}", finished.stdout, finished.stderr);
        assert!(printed.contains('\u{fffd}'), "{arguments:?}: {printed:?}");
        assert!(!printed.contains('\x1b'), "{arguments:?}: {printed:?}");
    };
    let (program, machine) = (program.to_str().unwrap(), "\x1b[7mmachine.toml");
    run(&["record", "-o", "r\x1b[7m", "--", program, "4", "4"], 0);
    run(&["plan", "r\x1b[7m", "--machine", machine], 0);
    run(&["machine", "--machine", machine], 0);
    run(&["simulate", "r\x1b[7m"], 1);
    run(&["report", "none\x1b[7m"], 1);
}

#[test]
fn invalid_addresses_are_usage_errors() {
    let case = Case::new("serve");
    let live = |address| case.nearpage(["live", "--serve", address, "--", "true"]);
    says(live("foo"), 2, &["'foo'", "such as 127.0.0.1:9464"]);
    // A valid address (of documentation, RFC 5737), but not this machine's.
    says(
        live("192.0.2.1:9464"),
        1,
        &["cannot serve on 192.0.2.1:9464"],
    );
}

/// A line of the file that `history` reads.
fn compared(number: u64, predicted: f64, measured: f64) -> String {
    format!(
        r#"{{"version":1,"unix_s":{},"program":"cg","key":"ab-00","machine":"two","class":"one-hop","measured_by":"optimize","predicted_by":"model","predicted":{predicted},"predicted_range":[-0.3,-0.1],"measured":{measured},"first_touch_ns":1e9,"planned_ns":9e8,"runs":3,"plan":null}}"#,
        1_795_651_200 + number
    )
}

#[test]
fn history_lists_predictions_with_results_and_removes_them() {
    let case = Case::new("history");
    let history = |arguments: &[&str]| {
        let mut command = case.command(nearpage_path());
        command
            .arg("history")
            .args(arguments)
            .env("XDG_STATE_HOME", case.path("state"));
        case.run(command)
    };
    let none = history(&[]).success();
    assert!(
        none.stdout.starts_with("No prediction was compared"),
        "{none}"
    );
    fs::create_dir_all(case.path("state/nearpage")).unwrap();
    let mut lines = vec!["{\"version\":99}".to_owned()];
    lines.extend((0..25).map(|number| compared(number, -0.2, -0.1)));
    case.write("state/nearpage/history.jsonl", lines.join("\n") + "\n");
    let listed = history(&[]).success();
    for words in [
        "2026-11-26",
        "-20.0 %",
        "-30.0 % to -10.0 %",
        "-10.0 %",
        "-11.1 %",
        "25 modelled predictions",
        "1 line cannot be read",
    ] {
        assert!(listed.stdout.contains(words), "{words}: {listed}");
    }
    let mut narrow = case.command(nearpage_path());
    narrow.arg("history").env("COLUMNS", "60");
    narrow.env("XDG_STATE_HOME", case.path("state"));
    let narrow = case.run(narrow).success().stdout;
    let line = "  -20.0 %   -10.0 %  -11.1 %  cg on two";
    assert!(narrow.contains(line), "{narrow}");
    let fits = narrow.lines().all(|line| line.chars().count() <= 60);
    assert!(fits, "{narrow}");
    let found = json(&history(&["--json"]).success());
    assert_eq!(found["pairs"].as_array().map(Vec::len), Some(25));
    assert_eq!(found["errors"][0]["source"], "history");
    history(&["--clear"]).success();
    assert!(!case.path("state/nearpage/history.jsonl").exists());
    // A symbolic link to another file is not read.
    case.write("elsewhere", compared(0, -0.2, -0.1));
    std::os::unix::fs::symlink(
        case.path("elsewhere"),
        case.path("state/nearpage/history.jsonl"),
    )
    .unwrap();
    says(history(&[]), 1, &["history.jsonl", "not a regular file"]);
}

#[test]
fn a_bundle_lists_its_files_and_is_read_back() {
    let case = Case::new("bundle");
    let asked = case.nearpage(["doctor", "--bundle", "b.tar"]).exits(2);
    assert!(
        asked.stdout.contains("nearpage/perf.json") && asked.stderr.contains("--yes"),
        "{asked}"
    );
    assert!(!case.path("b.tar").exists());
    let written = case
        .nearpage(["doctor", "--bundle", "b.tar", "--yes"])
        .success();
    assert!(written.stdout.contains("sys/devices/system"), "{written}");
    let bytes = fs::read(case.path("b.tar")).unwrap();
    let folder = case.folder().to_string_lossy().into_owned();
    let text = String::from_utf8_lossy(&bytes);
    assert!(!text.contains(&folder) && !text.contains("b.tar"));
    let found = json(
        &case
            .nearpage(["doctor", "--from-bundle", "b.tar", "--json"])
            .success(),
    );
    assert_eq!(found["choices"][0]["request"], "auto");
    let doctor = json(&case.nearpage(["doctor", "--json"]).success());
    let findings = doctor["findings"].as_array().unwrap();
    let auto = findings
        .iter()
        .find(|one| one["name"] == "record --source auto")
        .unwrap();
    let line = found["choices"][0]["line"].as_str().unwrap();
    assert!(
        auto["found"].as_str().unwrap().contains(line)
            || auto["found"].as_str().unwrap().contains("unavailable")
    );
    let listed = pasted(&case, written);
    assert!(listed.stdout.contains("record --source auto: "), "{listed}");
    case.write("bad.tar", "no archive");
    says(
        case.nearpage(["doctor", "--from-bundle", "bad.tar"]),
        1,
        &["bad.tar"],
    );
}
