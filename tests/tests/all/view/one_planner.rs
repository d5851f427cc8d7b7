//! All commands give the same plan and the same prediction for a recording.

use std::fs;
use std::io::Read;

use flate2::read::DeflateDecoder;
use nearpage_machine::preset;
use nearpage_recording::{Source, ThreadPinning};
use nearpage_tests::{Case, nearpage_path, workload};
use serde_json::Value;

use super::made_up;
use super::viewed::Viewed;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Runs `plan` on a recording; returns the plan file's text and the JSON.
fn plan(case: &Case, recording: &str, words: &[&str]) -> (String, Value) {
    let file = format!("{recording}.plan.toml");
    let plan = ["plan", recording, "-o", &file, "--json"];
    let finished = case.nearpage([&plan[..], words].concat()).success();
    (case.read(&file), json(&finished.stdout)["plans"][0].clone())
}

/// The page server's answer about a recording's plan.
fn viewed(case: &Case, recording: &str, words: &[&str]) -> Value {
    let viewed = Viewed::new(case, &[&[recording], words].concat());
    let host = format!("Host: {}\r\n", viewed.host());
    let question = format!("GET /{}/plan?recording=0", viewed.token());
    let (head, body) = viewed.ask(&question, &host);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    json(&body)
}

/// The plan in the file that `report --html` writes.
fn reported(case: &Case, recording: &str) -> Value {
    let file = format!("{recording}.html");
    case.nearpage(["report", recording, "--html", &file])
        .success();
    let html = case.read(&file);
    let key = "\"plan?recording=0\":\"";
    let (_, packed) = html.split_once(key).expect("an answer about the plan");
    let packed = packed.split('"').next().expect("its end");
    let mut text = String::new();
    let packed = packed_bytes(packed);
    let mut unpacked = DeflateDecoder::new(packed.as_slice());
    unpacked.read_to_string(&mut text).expect("packed JSON");
    json(&text)
}

/// Decodes Base64.
fn packed_bytes(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => u32::from(letter - b'A'),
        b'a'..=b'z' => u32::from(letter - b'a') + 26,
        b'0'..=b'9' => u32::from(letter - b'0') + 52,
        b'+' => 62,
        _ => 63,
    };
    let text = text.trim_end_matches('=').as_bytes();
    let four = text.chunks(4).flat_map(|four| {
        let bits = four
            .iter()
            .fold(0, |bits, &letter| bits << 6 | value(letter));
        let bits = bits << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    });
    four.collect()
}

/// Compares plans and predictions, except for the origin of the plan and keys that only the page has.
#[track_caller]
fn assert_same(recording: &str, (file, planned): &(String, Value), other: &Value) {
    assert_eq!(other["toml"], file.as_str(), "{recording}");
    for (key, value) in planned.as_object().expect("an object") {
        if key != "file" {
            assert_eq!(other[key], *value, "{recording}: {key}");
        }
    }
}

/// Checks that all commands give the same plan and prediction for a recording.
fn is_same_everywhere(case: &Case, recording: &str) -> (String, Value) {
    let planned = plan(case, recording, &[]);
    assert_same(recording, &planned, &viewed(case, recording, &[]));
    assert_same(recording, &planned, &reported(case, recording));
    planned
}

/// Checks that `plan` and the page agree for another machine than the recording's.
fn is_same_elsewhere(case: &Case, recording: &str, machine: &str) {
    let words = ["--machine", machine];
    let planned = plan(case, recording, &words);
    assert_same(recording, &planned, &viewed(case, recording, &words));
}

fn record(case: &Case, words: &[&str], threads: &str, program: &str, arguments: &[&str]) {
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "-q"])
        .args(words)
        .arg("--")
        .arg(workload(program))
        .args(arguments)
        .env("OMP_NUM_THREADS", threads)
        .env("OMP_WAIT_POLICY", "passive");
    case.run(record).success();
}

#[test]
fn made_up_samples_have_one_plan() {
    let case = Case::new("one-plan-made-up");
    let recordings = [
        ("clock", "opteron-4", Source::Clock),
        ("signal", "opteron-4", Source::Signal),
        ("pmu", "opteron-4", Source::Pmu),
        ("altix", "altix-4", Source::Pmu),
    ];
    for (folder, machine, source) in recordings {
        let machine = preset(machine).expect("a preset");
        made_up::recording_on(None, &case.path(folder), &machine, |metadata, _| {
            metadata.source = source;
            metadata.thread_placement = ThreadPinning::None;
        });
        let (_, planned) = is_same_everywhere(&case, folder);
        assert_eq!(planned["threads"]["layout"], "as-recorded", "{planned:#}");
        is_same_elsewhere(&case, folder, "amd48");
    }
    // Only hardware samples have latencies; other samples, with unknown nodes of pages, can't tell which were remote.
    let compared = case.nearpage([
        "evaluate",
        "pmu",
        "clock",
        "signal",
        "--remote-latency",
        "1",
        "--json",
    ]);
    let compared = json(&compared.success().stdout);
    let by_latency = |row: &Value| row["recorded"]["by_latency"].as_f64();
    assert!(
        by_latency(&compared["reference"]) > Some(0.0),
        "{compared:#}"
    );
    for row in compared["recordings"].as_array().expect("rows") {
        assert_eq!(by_latency(row), Some(0.0), "{compared:#}");
    }
}

#[test]
fn samples_taken_here_and_imported_ones_have_one_plan() {
    let case = Case::new("one-plan-samples");
    record(
        &case,
        &["--source", "clock", "-o", "clock"],
        "4",
        "triad",
        &["16", "60"],
    );
    record(
        &case,
        &["--source", "signal", "-o", "signal"],
        "4",
        "triad",
        &["16", "60"],
    );
    case.nearpage(["export", "clock", "--to", "perf-script", "-o", "clock.txt"])
        .success();
    case.nearpage([
        "import",
        "-q",
        "clock.txt",
        "-o",
        "imported",
        "--machine",
        "opteron-4",
    ])
    .success();
    for folder in ["clock", "signal", "imported"] {
        is_same_everywhere(&case, folder);
        is_same_elsewhere(&case, folder, "altix-4");
    }
    // `optimize` makes the same plan as a later `plan` of its recording.
    let mut optimize = case.command(nearpage_path());
    optimize
        .args([
            "optimize",
            "--json",
            "--machine",
            "opteron-4",
            "-o",
            "optimized",
            "--",
        ])
        .arg(workload("triad"))
        .args(["16", "60"])
        .env("OMP_NUM_THREADS", "4");
    let optimized = json(&case.run(optimize).success().stdout);
    let (file, planned) = plan(&case, "optimized/before", &["--machine", "opteron-4"]);
    assert_eq!(case.read("optimized/plan.toml"), file);
    let mut own = optimized["plans"][0].clone();
    own["file"] = planned["file"].clone();
    assert_eq!(own, planned);
}

#[test]
fn traces_have_one_plan_which_simulations_find_as_quick_as_promised() {
    let case = Case::new("one-plan-traces");
    let full = ["--source", "full", "--keep-hits", "--machine"];
    let traces = [
        ("scattered", "flash-8", "scatter", "triad", &["1", "2"][..]),
        ("packed", "xeon-2", "compact", "triad", &["1", "2"][..]),
        (
            "gathered",
            "smile-4",
            "scatter",
            "cg",
            &["2000", "8", "2"][..],
        ),
    ];
    for (folder, machine, layout, program, arguments) in traces {
        let words = [&full[..], &[machine, "--threads", layout, "-o", folder]].concat();
        record(&case, &words, "4", program, arguments);
        let (file, planned) = is_same_everywhere(&case, folder);
        assert_eq!(planned["time"]["by"], "replay", "{planned:#}");
        case.write("plan.toml", file);
        let policies = "first-touch,plan:auto,plan:plan.toml";
        let simulated = case.nearpage(["simulate", folder, "--policy", policies, "--json"]);
        let simulated = json(&simulated.success().stdout);
        let results = simulated["results"].as_array().expect("results");
        let time = |row: usize| results[row]["time_ns"].as_f64();
        assert_eq!(
            time(0),
            planned["time"]["first_touch_ns"].as_f64(),
            "{folder}"
        );
        assert_eq!(time(1), planned["time"]["planned_ns"].as_f64(), "{folder}");
        let figures = |row: usize| {
            let mut figures = results[row].clone();
            figures["policy"] = Value::Null;
            figures
        };
        assert_eq!(
            figures(1),
            figures(2),
            "{folder}: plan:auto is the plan of `plan`"
        );
    }
    // All threads were traced on one of two nodes: a single note says so and suggests another layout.
    let text = case
        .nearpage(["plan", "packed", "-o", "p.toml"])
        .success()
        .stdout;
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let note = "all 4 threads were traced on one node, where every access can be local; `nearpage trace \
                --threads scatter`";
    assert_eq!(text.matches(note).count(), 1, "{text}");
    assert!(
        text.contains("threads as recorded, on 1 of 2 nodes"),
        "{text}"
    );
}

#[test]
fn the_plan_beside_a_recording_is_shown_and_another_may_be_decided() {
    let case = Case::new("one-plan-file");
    let machine = preset("opteron-4").expect("a preset");
    made_up::recording(&case.path("r"), &machine);
    let (decided, _) = plan(&case, "r", &[]);
    case.nearpage(["plan", "r", "--policy", "interleave"])
        .success();
    let interleaved = case.read("r/plan.toml");
    assert_ne!(interleaved, decided);
    let server = Viewed::new(&case, &["r"]);
    let host = format!("Host: {}\r\n", server.host());
    let (_, body) = server.ask(&format!("GET /{}/plan?recording=0", server.token()), &host);
    let shown = json(&body);
    assert_eq!(shown["toml"], interleaved.as_str());
    assert_eq!(shown["file"], "r/plan.toml");
    assert_eq!(shown["may_be_decided_afresh"], true);
    let request = "{\"afresh\":true}";
    let origin = format!("{host}Origin: http://{}\r\n", server.host());
    let headers = format!("{origin}Content-Length: {}\r\n", request.len());
    let (head, body) = server.ask_with(
        &format!("POST /{}/plan?recording=0", server.token()),
        &headers,
        request,
    );
    assert!(head.starts_with("HTTP/1.1 200"), "{head}\n{body}");
    assert_eq!(json(&body)["toml"], decided.as_str());
    // If the edited plan can't be read, the page says so and shows the decided plan.
    case.write("r/plan.edited.toml", "version = 'no'");
    let unreadable = viewed(&case, "r", &[]);
    assert_eq!(unreadable["toml"], decided.as_str());
    let misfit = unreadable["misfits"][0].as_str().expect("a reason");
    assert!(misfit.contains("plan.edited.toml"), "{misfit}");
    // An edited plan takes precedence over the decided one.
    fs::copy(case.path("r.plan.toml"), case.path("r/plan.edited.toml")).expect("copied");
    assert_eq!(viewed(&case, "r", &[])["file"], "r/plan.edited.toml");
}

#[test]
fn plans_that_do_worse_than_first_touch_are_warned_about() {
    let case = Case::new("one-plan-worse");
    let full = [
        "--source",
        "full",
        "--machine",
        "flash-8",
        "--threads",
        "scatter",
        "-o",
        "full",
    ];
    record(&case, &full, "4", "triad", &["1", "2"]);
    // A plan with all pages on a node without threads.
    let (file, _) = plan(&case, "full", &["--policy", "object"]);
    let worse = file
        .replace("\"block\"", "\"node:7\"")
        .replace("\"interleave\"", "\"node:7\"");
    assert_ne!(worse, file);
    case.write("worse.toml", worse);
    let shown = viewed(&case, "full", &["--plan", "worse.toml"]);
    let warning = shown["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.starts_with("this plan is predicted to be slower than first touch: "),
        "{warning}"
    );
    assert!(
        warning.ends_with("`nearpage plan --policy auto`"),
        "{warning}"
    );
    // `plan` stores the prediction in the file for `run`, and `simulate` gives the same warning.
    case.write("given.toml", shown["toml"].as_str().expect("a plan"));
    assert!(case.read("given.toml").contains("\n[predicted]\n"));
    let simulated = case.nearpage([
        "simulate",
        "full",
        "--policy",
        "first-touch,plan:given.toml",
    ]);
    let said = simulated.success().stdout;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("plan:given.toml: slower than first touch: "),
        "{said}"
    );
    case.write(
        "given.toml",
        case.read("given.toml").replace("node:7", "node:0"),
    );
    let run = case.nearpage(["run", "--plan", "given.toml", "--", "true"]);
    let said = run.success().stderr;
    assert!(
        said.contains("warning: this plan is predicted to be slower than first touch"),
        "{said}"
    );
    let (_, interleaved) = plan(&case, "full", &["--policy", "interleave"]);
    let warnings = interleaved["warnings"].as_array().expect("warnings");
    assert_eq!(warnings.len(), 1, "{interleaved:#}");
}
