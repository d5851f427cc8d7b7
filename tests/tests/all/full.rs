//! Traces of real programs, as a black box: traced in emulation, reported, planned, downsampled and compared.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

use nearpage_tests::{Case, Finished, nearpage_path, workload};
use serde_json::Value;

/// Bytes of a cache line of `flash-8`.
const LINE: f64 = 64.0;

/// Traces `program` with two threads into `name`, for the caches of `flash-8`.
fn trace(case: &Case, name: &str, options: &[&str], program: &[&str]) -> Finished {
    let mut record = case.command(nearpage_path());
    record
        .args(["trace", "--machine", "flash-8", "-o", name])
        .args(options)
        .arg("--")
        .arg(workload(program[0]))
        .args(&program[1..]);
    record.env("OMP_NUM_THREADS", "2");
    case.run(record)
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// Checks for one line on standard error that contains all of `words`, and an empty standard output.
#[track_caller]
fn says(finished: Finished, code: i32, words: &[&str]) {
    let finished = finished.says(code, words);
    assert_eq!(finished.stdout, "", "{finished}");
}

#[test]
fn a_traced_triad_is_reported_planned_downsampled_and_compared() {
    let case = Case::new("full");
    // Three arrays of 2 MiB: the main thread writes each once, then two passes compute a = b + s × c.
    let recorded = trace(&case, "full", &["--keep-hits"], &["triad", "2", "2"]).success();
    assert!(
        recorded.stdout.contains("checksum"),
        "the program's own output passes through\n{recorded}"
    );
    assert!(recorded.stderr.contains("on flash-8"), "{recorded}");
    assert!(!case.path("full/accesses.parquet").exists());

    let report = json(&case.nearpage(["report", "full", "--json"]).success());
    assert_eq!(report["source"], "tracer");
    let lines = f64::from(2 << 20) / LINE;
    let objects = report["objects"].as_array().unwrap();
    let arrays: Vec<&Value> = objects
        .iter()
        .filter(|object| object["size_bytes"] == 2 << 20)
        .collect();
    assert_eq!(arrays.len(), 3, "{report:#}");
    for array in &arrays {
        assert_eq!(array["kind"], "heap");
        assert_eq!(array["call_site"][1]["function"], "main", "{array:#}");
        assert_eq!(array["pattern"]["kind"], "block", "{array:#}");
        // Each pass over an array misses each of its lines once, so the misses are a whole multiple of the lines.
        for operation in ["loads", "stores"] {
            let passes = array[operation]["count"].as_f64().unwrap() / lines;
            assert!(
                (passes - passes.round()).abs() < 0.02,
                "{passes} passes of {operation}: {array:#}"
            );
        }
        let passes = array["accesses"].as_f64().unwrap() / lines;
        assert!(
            passes > 2.9,
            "initialised and used in two passes: {array:#}"
        );
    }

    let trace = &report["trace"];
    let arrays_missed: f64 = arrays
        .iter()
        .map(|array| array["accesses"].as_f64().unwrap())
        .sum();
    assert!(trace["data_misses"].as_f64().unwrap() > 0.98 * arrays_missed);
    assert_eq!(trace["hot_pages"]["by_cache_misses"][100], 1.0);
    // Each pass reads two of three arrays, line after line. Before, each array was written once.
    let chains = |at: usize| {
        trace["read_chains"]["shares"][at]["share"]
            .as_f64()
            .unwrap()
    };
    assert!(chains(6) > 0.3 && chains(0) < 0.8, "{trace:#}");
    assert_eq!(trace["read_chains"]["shares"][6]["length"], 64);
    let writes = trace["read_mostly"]["writes"].as_f64().unwrap();
    assert!((0.3..0.7).contains(&writes), "{trace:#}");

    let plan = json(
        &case
            .nearpage([
                "plan",
                "full",
                "--machine",
                "opteron-4",
                "--policy",
                "object",
                "--json",
            ])
            .success(),
    );
    let plan = &plan["plans"][0];
    assert_eq!(plan["program"], "triad", "{plan:#}");
    assert!(
        plan["planned"]["local_share"].as_f64().unwrap() > 0.85,
        "{plan:#}"
    );
    assert!(
        plan["first_touch"]["local_share"].as_f64().unwrap() < 0.8,
        "{plan:#}"
    );

    // The plan with all arrays on the sixth node instead of in blocks.
    let planned = std::fs::read_to_string(case.path("full/plan.toml")).unwrap();
    let blocks = planned.matches("placement = \"block\"").count();
    assert_eq!(blocks, 3, "{planned}");
    case.write("sixth.toml", planned.replace("\"block\"", "\"node:5\""));
    let simulated = json(
        &case
            .nearpage([
                "simulate",
                "full",
                "--policy",
                "first-touch,plan:sixth.toml",
                "--json",
            ])
            .success(),
    );
    let note = "objects of 3 of 3 decisions are in the recording; ";
    let notes = simulated["notes"].as_array().unwrap();
    let told = |note: &str| notes.iter().any(|own| own.as_str().unwrap().contains(note));
    assert!(told(note), "{simulated:#}");
    let load = |row: usize| {
        simulated["results"][row]["controller_load"][5]
            .as_f64()
            .unwrap()
    };
    assert_eq!(simulated["results"][1]["policy"], "plan:sixth.toml");
    let least: f64 = arrays
        .iter()
        .map(|array| array["accesses"].as_f64().unwrap())
        .sum();
    assert!(
        load(0) == 0.0 && load(1) > 0.98 * least,
        "every miss of the arrays goes there: {simulated:#}"
    );
    // Unmatched memory on the sixth node; `all.toml` has no decision for the arrays, `kept.toml` leaves them to first
    // touch.
    let rest = "[[object]]\nname = \"the rest\"\nrest = true\nplacement = \"node:5\"\n";
    let header = planned.split("\n[[object]]").next().unwrap();
    let kept = planned.replace("\"block\"", "\"first-touch\"");
    case.write("all.toml", format!("{header}\n{rest}"));
    case.write("kept.toml", format!("{kept}\n{rest}"));
    let simulated = json(
        &case
            .nearpage([
                "simulate",
                "full",
                "--policy",
                "plan:all.toml,plan:kept.toml",
                "--json",
            ])
            .success(),
    );
    let load = |row: usize| {
        simulated["results"][row]["controller_load"][5]
            .as_f64()
            .unwrap()
    };
    assert!(
        load(0) > 0.98 * least && load(1) < 0.5 * least,
        "{simulated:#}"
    );
    let notes = simulated["notes"].as_array().unwrap();
    let of_unmatched = notes
        .iter()
        .filter(|note| note.as_str().unwrap().contains(" are of unmatched memory."));
    assert_eq!(of_unmatched.count(), 2, "{simulated:#}");
    case.write(
        "other.toml",
        planned
            .replace("\"triad\"", "\"cg\"")
            .replace("build_id = \"", "build_id = \"00"),
    );
    says(
        case.nearpage(["simulate", "full", "--policy", "plan:other.toml"]),
        1,
        &["other.toml", "nothing of this plan for cg", "full"],
    );
    case.write("bad.toml", "version = 1\n[[object]]\n");
    says(
        case.nearpage(["simulate", "full", "--policy", "plan:bad.toml"]),
        1,
        &["bad.toml"],
    );
    says(
        case.nearpage(["simulate", "full", "--policy", "plans"]),
        2,
        &["no policy `plans`", "plan:FILE"],
    );

    case.nearpage(["export", "full", "-o", "exported"])
        .success();
    let exported = json(&case.nearpage(["report", "exported", "--json"]).success());
    assert_eq!(exported["accesses"], report["accesses"]);
    assert_eq!(
        exported["objects"], report["objects"],
        "the tables say what the trace says"
    );

    let downsampled = case
        .nearpage(["thin", "full", "--every", "10", "-o", "tenth"])
        .success();
    assert!(
        downsampled.stderr.contains("1 of 10 misses"),
        "{downsampled}"
    );
    let tenth = json(&case.nearpage(["report", "tenth", "--json"]).success());
    let data =
        report["accesses"].as_f64().unwrap() - report["attribution"]["code"].as_f64().unwrap();
    let kept = tenth["accesses"].as_f64().unwrap();
    assert!(
        (kept / data - 1.0).abs() < 0.03,
        "weights stand for what was left out: {kept} of {data}"
    );

    case.nearpage(["thin", "full", "--setting", "pebs-10", "-o", "pebs"])
        .success();
    let compared = json(
        &case
            .nearpage(["evaluate", "full", "exported", "tenth", "pebs", "--json"])
            .success(),
    );
    let recordings = compared["recordings"].as_array().unwrap();
    let figure = |row: usize, name: &str| recordings[row][name].as_f64().unwrap();
    for name in ["coverage", "accuracy", "useful_fraction"] {
        assert_eq!(figure(0, name), 1.0, "against itself: {compared:#}");
    }
    assert!(
        figure(1, "planned_useful_fraction") > figure(1, "first_touch_useful_fraction"),
        "{compared:#}"
    );
    assert!(figure(1, "planned_coverage") > 0.5, "{compared:#}");
    // Each page of the arrays has 64 lines, each missed several times.
    assert!(
        figure(1, "coverage") > 0.8 && figure(1, "accuracy") > 0.8,
        "{compared:#}"
    );
    assert!(
        figure(1, "remote_planned") < figure(1, "remote_first_touch"),
        "{compared:#}"
    );
    assert!(figure(2, "samples") < figure(1, "samples"), "{compared:#}");
    assert_eq!(compared["replayed"], "full");
    let (before, own) = (&compared["first_touch"], &compared["reference"]);
    for row in [own, &recordings[0], &recordings[1]] {
        assert_eq!(row["simulated"]["misses"], before["misses"]);
        assert!(
            row["simulated"]["time_ns"].as_f64().unwrap() > 0.0,
            "{compared:#}"
        );
        assert_eq!(row["recorded"]["by_latency"], 0.0, "nodes are known");
    }
    assert_eq!(
        own["simulated"], recordings[0]["simulated"],
        "the same plan"
    );
    let share = |part: &Value, whole: &Value| part.as_f64().unwrap() / whole.as_f64().unwrap();
    let change = share(&recordings[1]["simulated"]["time_ns"], &before["time_ns"]) - 1.0;
    let text = case.nearpage(["evaluate", "full", "tenth"]).success();
    assert!(
        text.stdout.contains(&format!("{:+.1} %", 100.0 * change)),
        "a plan may cost time: {change} in {text}"
    );
    let recorded = &own["recorded"];
    let (seen, simulated) = (
        share(&recorded["remote"], &recorded["accesses"]),
        share(&before["remote"], &before["misses"]),
    );
    assert!(
        (seen - simulated).abs() < 0.02,
        "under first touch, as recorded: {compared:#}"
    );

    // Without a trace among the recordings, nothing is replayed unless --trace names one.
    let words = ["evaluate", "exported", "tenth", "--json"];
    let alone = json(&case.nearpage(words).success());
    assert_eq!(alone["replayed"], Value::Null);
    assert!(alone["notes"][0].as_str().unwrap().contains("--trace"));
    let named = case.nearpage([&words[..], &["--trace", "full"]].concat());
    let named = json(&named.success());
    assert_eq!(
        named["recordings"][0]["simulated"],
        recordings[1]["simulated"]
    );
    says(
        case.nearpage(["evaluate", "exported", "tenth", "--replay", "tenth"]),
        1,
        &["tenth", "samples"],
    );
    runs_are_compared(&case);
}

/// Compares a trace with recordings that are downsampled from it: the run is the same, so nothing changed.
fn runs_are_compared(case: &Case) {
    let same = ["compare", "full", "exported,tenth", "--fail-if"];
    let passed = case.nearpage([&same[..], &["time>+1%", "--json"]].concat());
    let compared = json(&passed.success());
    let after = &compared["after"][0];
    assert_eq!(
        after["recordings"],
        serde_json::json!(["exported", "tenth"])
    );
    assert_eq!(after["elapsed_change"], 0.0, "{compared:#}");
    assert_eq!(after["objects"], serde_json::json!([]), "{compared:#}");
    let local = compared["before"]["local_share"]["median"].as_f64();
    assert!(local > Some(0.0) && local < Some(1.0), "{compared:#}");
    let failed = case.nearpage([&same[..], &["local<101%", "--fail-if", "time>1000s"]].concat());
    let failed = failed.exits(3);
    assert!(failed.stdout.contains("failed: local<101%"), "{failed}");
    assert!(!failed.stdout.contains("time>1000s"), "{failed}");
    says(case.nearpage(["compare", "full", "tenth,"]), 2, &["tenth,"]);
    says(
        case.nearpage(["compare", "full", "nowhere"]),
        1,
        &["nowhere"],
    );
}

#[test]
fn record_still_traces_by_the_option_of_version_0_1() {
    let case = Case::new("full_alias");
    let record = "record --source full --machine flash-8 -q -o r -- true";
    case.nearpage(record.split(' ')).success();
    json(
        &case
            .nearpage(["simulate", "r", "--policy", "first-touch", "--json"])
            .success(),
    );
    for option in ["--redact", "--range=1000-2000", "--after=1"] {
        let words = ["record", "--source", "full", option, "--", "true"];
        let option = option.split('=').next().unwrap_or(option);
        says(case.nearpage(words), 2, &[option, "trace"]);
    }
    let help = case.nearpage(["record", "--help"]).success().stdout;
    for hidden in ["--keep-hits", "--quantum", "full"] {
        assert!(!help.contains(hidden), "{hidden} is of `trace`: {help}");
    }
}

#[test]
fn nearpages_own_accesses_are_not_traced() {
    let case = Case::new("full_own");
    trace(&case, "full", &["--keep-hits"], &["mallocs", "2", "2000"]).success();
    let export = ["export", "full", "-o", "accesses.csv", "--to", "csv"];
    case.nearpage(export).success();
    let accesses = case.read("accesses.csv");
    // Before `_dl_init`, the loader clears this library's memory and reads its tables, as for any library. Afterwards
    // no other code uses them or runs the library's code.
    let begun = || {
        accesses
            .lines()
            .skip_while(|line| !line.contains("_dl_init,"))
    };
    assert!(begun().count() > 1000, "{accesses}");
    let own: Vec<&str> = begun()
        .filter(|line| {
            let words = [
                "libnearpage_preload.so,code",
                "nearpage_preload::",
                "Unwind",
            ];
            !line.contains("./elf/") && words.iter().any(|word| line.contains(word))
        })
        .collect();
    assert!(
        own.is_empty(),
        "{} of them: {:?}",
        own.len(),
        &own[..5.min(own.len())]
    );
}

#[test]
fn scripts_are_traced_and_statuses_passed_on() {
    let case = Case::new("full_status");
    case.program("exit7", "#!/bin/sh -e\nexit 7\n");
    let finished = case.nearpage([
        "record",
        "--source",
        "full",
        "--machine",
        "flash-8",
        "-q",
        "-o",
        "r",
        "--",
        "./exit7",
    ]);
    assert_eq!(finished.exits(7).stderr, "");
    let report = json(&case.nearpage(["report", "r", "--json"]).success());
    assert!(report["accesses"].as_u64().unwrap() > 1000, "{report:#}");
}

#[test]
fn programs_that_a_shell_runs_are_traced() {
    let case = Case::new("full_exec");
    let triad = workload("triad").display().to_string();
    let run = |words: &str| {
        let _ = std::fs::remove_dir_all(case.path("r"));
        let record = "trace --machine flash-8 -q -o r -- /bin/sh -c".split(' ');
        let finished = case.nearpage(record.chain([words]));
        assert_eq!(finished.stderr, "");
        let left = std::fs::read_dir(case.path("r/trace")).unwrap();
        let names = left.map(|file| file.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = names.collect();
        let all_traces = names.iter().all(|name| name.ends_with(".trace"));
        assert!(all_traces, "frames are finished: {names:?}");
        (
            json(&case.nearpage(["report", "r", "--json"]).success()),
            names.len(),
            finished,
        )
    };
    let objects = |report: &Value| report["objects"].to_string();
    // Once in a child of the shell, once in the shell's own process.
    for words in [format!("{triad} 1 1; exit 3"), format!("exec {triad} 1 1")] {
        let (report, traces, finished) = run(&words);
        finished.exits(if words.ends_with('3') { 3 } else { 0 });
        assert!(traces > 1, "{words}: {traces}");
        assert!(objects(&report).contains("triad"), "{words}: {report:#}");
    }
    // The trace of a killed process has its accesses up to the end.
    let (report, _, finished) = run("kill -KILL $$");
    finished.is_ended_by(9);
    assert!(report["accesses"].as_u64().unwrap() > 100, "{report:#}");
}

/// A thread executes `/bin/echo` after the main thread has ended.
const ALONE: &str = r#"
#include <pthread.h>
#include <unistd.h>
static void *run(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, 0);
    execl("/bin/echo", "echo", "done", (char *)0);
    _exit(3);
}
int main(void) {
    static pthread_t own;
    pthread_t other;
    own = pthread_self();
    pthread_create(&other, 0, run, &own);
    pthread_exit(0);
}
"#;

#[test]
fn background_processes_run_untraced_after_the_trace() {
    let case = Case::new("full-background");
    let script = "(while [ ! -e go ]; do sleep 0.1; done; /bin/echo one; (ls -d /); touch gone) >said 2>&1 & exit 3";
    let command = [
        "trace",
        "--machine",
        "flash-8",
        "-o",
        "r",
        "--",
        "sh",
        "-c",
        script,
    ];
    let traced = case.nearpage(command);
    assert_eq!(traced.code, Some(3), "{traced}");
    let before = case.nearpage(["report", "r"]).success().stdout;

    case.write("go", "");
    let begun = std::time::Instant::now();
    while !case.path("gone").exists() && begun.elapsed().as_secs() < 300 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let said = std::fs::read_to_string(case.path("said")).unwrap();
    assert_eq!(said, "one\n/\n");
    assert_eq!(case.nearpage(["report", "r"]).success().stdout, before);
}

#[test]
fn exec_after_the_main_thread_has_ended_is_traced() {
    let case = Case::new("full_alone");
    case.compile("alone", ALONE, &["-O0", "-pthread"]);
    let record = "trace --machine flash-8 -q -o r -- ./alone".split(' ');
    let finished = case.nearpage(record).success();
    assert_eq!(
        (finished.stdout.as_str(), finished.stderr.as_str()),
        ("done\n", "")
    );
    let report = json(&case.nearpage(["report", "r", "--json"]).success());
    let threads = report["threads"].as_array().unwrap();
    let mut names = threads.iter().map(|thread| &thread["name"]);
    assert!(names.any(|name| name == "echo"), "{report:#}");
}

/// Three steps of two new threads each.
const ANEW: &str = r#"
#include <pthread.h>
#include <stdlib.h>
static volatile char *object;
static void *use(void *part) {
    for (long at = 0; at < 1 << 20; at += 64) object[((long)part << 20) + at]++;
    return 0;
}
int main(void) {
    object = calloc(2, 1 << 20);
    for (int step = 0; step < 3; step++) {
        pthread_t threads[2];
        for (long part = 0; part < 2; part++) pthread_create(&threads[part], 0, use, (void *)part);
        for (int part = 0; part < 2; part++) pthread_join(threads[part], 0);
    }
    return 0;
}
"#;

#[test]
fn threads_created_anew_for_each_step_have_the_same_cpus_in_each() {
    let case = Case::new("full_anew");
    case.compile("anew", ANEW, &["-O0", "-pthread"]);
    let trace = "trace --machine flash-8 -q -o r -- ./anew".split(' ');
    case.nearpage(trace).success();
    let report = json(&case.nearpage(["report", "r", "--json"]).success());
    let threads = report["threads"].as_array().unwrap();
    let cpus: std::collections::BTreeSet<String> = threads
        .iter()
        .map(|thread| thread["cpus"].to_string())
        .collect();
    assert_eq!(cpus.len(), 3, "{cpus:?}");
    assert!(
        cpus.iter().all(|cpus| !cpus.contains([',', '-'])),
        "{cpus:?}"
    );
}

#[test]
fn a_schedule_moves_threads_while_they_are_traced() {
    let case = Case::new("full schedule");
    case.write(
        "two moves.toml",
        "[[move]]\nthread = 1\nat_ns = 0\ncpu = 5\n[[move]]\nthread = 9\nat_ns = 1000\ncpu = 2\n",
    );
    let scheduled = ["--schedule", "two moves.toml"];
    let recorded = trace(&case, "moved", &scheduled, &["triad", "1", "2"]).success();
    let said = "moves of the schedule that were made: 1 of 2; the other threads were not there, or had ended";
    assert!(recorded.stderr.contains(said), "{recorded}");
    let metadata: Value = serde_json::from_str(&case.read("moved/recording.json")).unwrap();
    let moves = metadata["tracing"]["moves"].as_array().unwrap();
    assert_eq!(moves.len(), 1, "{moves:?}");
    assert_eq!(
        (&moves[0]["thread"], &moves[0]["cpu"]),
        (&1.into(), &5.into())
    );
    // The moved thread used only its new CPU, from the first touch on.
    let csv = ["export", "moved", "--to", "csv", "-o", "moved.csv"];
    case.nearpage(csv).success();
    let table = case.read("moved.csv");
    let (names, rows) = table.split_once('\n').unwrap();
    let at = |name: &str| names.split(',').position(|one| one == name).unwrap();
    let used = rows.lines().map(|row| {
        let fields: Vec<&str> = row.split(',').collect();
        (fields[at("tid")] == fields[at("pid")], fields[at("cpu")])
    });
    let used: std::collections::BTreeSet<(bool, &str)> = used.collect();
    assert_eq!(Vec::from_iter(used), [(false, "5"), (true, "0")]);
    let replayed = case.nearpage(["simulate", "moved", "--policy", "first-touch", "--json"]);
    let replayed = json(&replayed.success());
    assert_eq!(replayed["results"][0]["estimated"], false);
    let told = |notes: &Value| notes.as_array().unwrap().iter().any(|note| note == said);
    assert!(told(&replayed["notes"]), "{replayed:#}");

    // With -q nothing is printed, but the recording has the note.
    let quiet = [&scheduled[..], &["-q"]].concat();
    let recorded = trace(&case, "quiet", &quiet, &["triad", "1", "2"]).success();
    assert_eq!(recorded.stderr, "");
    let report = case.nearpage(["report", "quiet"]).success().stdout;
    assert!(report.contains("that were made: 1 of 2;"), "{report}");

    let refused = |text: &str, words: &[&str]| {
        case.write("schedule.toml", text);
        let tried = trace(
            &case,
            "none",
            &["--schedule", "schedule.toml"],
            &["triad", "1"],
        );
        says(tried, 1, words);
        assert!(!case.path("none").exists());
    };
    refused(
        "scheduler = \"affinity\"\n",
        &["schedule.toml: ", "are simulated"],
    );
    let moves = "[[move]]\nthread = 1\nat_ns = 0\n";
    refused(&format!("{moves}cpu = 99\n"), &["CPU 99", "flash-8"]);
    refused(
        &format!("{moves}cpu = 1\nprogram = 2\n"),
        &["schedule.toml: one program"],
    );
    refused(moves, &["schedule.toml: line 1: missing field"]);
}

#[test]
fn untraceable_programs_are_refused_in_one_line() {
    let case = Case::new("full_bad");
    let full = ["trace", "--machine"];
    let with = |machine: &str, rest: &[&str]| {
        let mut words: Vec<String> = full.iter().map(|word| (*word).to_owned()).collect();
        words.push(machine.to_owned());
        words.extend(rest.iter().map(|word| (*word).to_owned()));
        words
    };
    case.write(
        "bare.toml",
        "name = \"bare\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0\"\n",
    );
    says(
        case.nearpage(with("bare.toml", &["--", "true"])),
        1,
        &["bare", "no caches"],
    );
    says(
        case.nearpage(["record", "--keep-hits", "--", "true"]),
        2,
        &["nearpage trace"],
    );

    let mut header = b"\x7fELF\x02\x01\x01".to_vec();
    header.resize(64, 0);
    (header[16], header[18]) = (2, 183);
    case.program("arm", header);
    says(
        case.nearpage(with("flash-8", &["--", "./arm"])),
        126,
        &["another architecture", "AArch64"],
    );

    let mut without = case.command(nearpage_path());
    without
        .args(with("flash-8", &["--", "/bin/true"]))
        .env("PATH", "/nonexistent");
    says(case.run(without), 1, &["qemu-x86_64", "package qemu-user"]);
    assert!(
        !case.path("true.nearpage").exists(),
        "nothing is left behind"
    );
    // A stand-in for an emulator from static packages, without plugins.
    let script = "#!/bin/sh\necho 'qemu-x86_64 version 10.0.2 (Debian)'\n";
    std::fs::create_dir_all(case.path("static")).unwrap();
    case.program("static/qemu-x86_64", script);
    let mut without = case.command(nearpage_path());
    without
        .args(with("flash-8", &["--", "/bin/true"]))
        .env("PATH", case.path("static"));
    says(
        case.run(without),
        1,
        &[
            "qemu-x86_64",
            "10.0.2",
            "without plugins",
            "qemu-user 7.2",
            "--enable-plugins",
        ],
    );
    // A suitable emulator later on PATH is used instead.
    let paths = [case.path("static"), "/usr/bin".into(), "/bin".into()];
    let mut with_another = case.command(nearpage_path());
    with_another
        .args(with("flash-8", &["-q", "--", "/bin/true"]))
        .env("PATH", std::env::join_paths(&paths).unwrap());
    case.run(with_another).success();
    let mut doctor = case.command(nearpage_path());
    doctor.args(["doctor", "--json"]).env("PATH", &paths[0]);
    let findings = json(&case.run(doctor)).to_string();
    assert!(
        findings.contains("qemu-x86_64 10.0.2 (Debian): built without plugins, can't load it"),
        "{findings}"
    );

    says(
        case.nearpage(["thin", "nowhere", "-o", "x"]),
        2,
        &["--every", "--setting"],
    );
    says(
        case.nearpage(["evaluate", "nowhere", "nowhere"]),
        1,
        &["no recording here"],
    );
}
