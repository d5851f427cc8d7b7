//! `nearpage simulate` as a black box, on a full recording of a small real program.

use std::fs;
use std::os::unix::fs::symlink;

use nearpage_tests::{Case, nearpage_path, workload};
use serde_json::Value;

/// A case with the recording `full`: two threads of `triad` on three arrays of 1 MiB, which the main
/// thread initialises, for the caches of `flash-8`.
fn recorded(name: &str) -> Case {
    let case = Case::new(name);
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "--source", "full", "--machine", "flash-8"])
        .args(["-q", "-o", "full", "--"])
        .arg(workload("triad"))
        .args(["1", "2"])
        .env("OMP_NUM_THREADS", "2");
    case.run(record).success();
    case
}

/// Results of `simulate full` with these words, by policy.
#[track_caller]
fn results(case: &Case, words: &[&str]) -> Vec<Value> {
    let finished = case
        .nearpage([&["simulate", "full", "--json"], words].concat())
        .success();
    assert_eq!(finished.stderr, "");
    let whole: Value = serde_json::from_str(&finished.stdout).unwrap();
    whole["results"].as_array().unwrap().clone()
}

fn figure(result: &Value, name: &str) -> f64 {
    let value = result[name].as_f64();
    value.unwrap_or_else(|| panic!("{name} of {result:#}"))
}

#[test]
fn policies_are_tried_on_a_recording() {
    let case = recorded("simulate");
    let all = results(&case, &[]);
    let names: Vec<&str> = all
        .iter()
        .map(|result| result["policy"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "round-robin",
            "first-touch",
            "post-facto",
            "migrate",
            "replicate",
            "migrate-replicate"
        ]
    );
    let [round_robin, first_touch, post_facto, ..] = all.as_slice() else {
        panic!("{all:?}");
    };
    for result in &all {
        assert_eq!(
            result["misses"], round_robin["misses"],
            "whatever the policy"
        );
        assert_eq!(result["estimated"], false);
        let parts = [
            "compute_ns",
            "local_stall_ns",
            "remote_stall_ns",
            "move_ns",
            "wait_ns",
        ];
        let sum: f64 = parts.iter().map(|part| figure(result, part)).sum();
        // Two threads, of which one begins later.
        let time = figure(result, "time_ns");
        assert!(time < sum && sum <= 2.0 * time, "{result:#}");
    }
    // No queues on flash-8: every miss takes what the matrix says.
    assert_eq!(figure(post_facto, "local_latency_ns"), 300.0);
    assert_eq!(figure(round_robin, "remote_latency_ns"), 1200.0);
    // Pages over eight nodes, two of which have threads.
    let local = figure(round_robin, "local_share");
    assert!((0.03..0.3).contains(&local), "{local}");
    // The main thread touched all, and uses half of the arrays; afterwards one knows better.
    let [first_touch, post_facto] =
        [first_touch, post_facto].map(|result| figure(result, "local_share"));
    assert!(local < first_touch && first_touch < post_facto, "{all:#?}");
    assert!(post_facto > 0.8, "{post_facto}");

    let text = case.nearpage(["simulate", "full"]).success().stdout;
    for words in [
        "full on flash-8, 2 threads",
        "migrate-replicate",
        "█ computing",
        "without --keep-hits",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
    // What `plan` decides of the very recording, and `auto` as it decides meanwhile: neither may be
    // slower than first touch, but for what its budget allows.
    let auto = results(
        &case,
        &["--policy", "first-touch,plan:auto,plan:uniform,auto"],
    );
    let [first_touch_ns, planned_ns, uniform_ns, online_ns] =
        [0, 1, 2, 3].map(|at| figure(&auto[at], "time_ns"));
    assert_eq!(auto[1]["policy"], "plan:auto");
    assert!(
        planned_ns <= first_touch_ns && planned_ns <= uniform_ns,
        "{auto:#?}"
    );
    assert!(online_ns <= 1.01 * first_touch_ns, "{auto:#?}");
    // A plan of the other policies' alternatives, and what it promises is what a replay finds.
    let words = [
        "plan",
        "full",
        "--machine",
        "flash-8",
        "--threads",
        "none",
        "--policy",
        "auto",
        "--replicas",
    ];
    let json_of = |more: &[&str]| -> Value {
        let finished = case.nearpage([&words[..], more].concat()).success();
        serde_json::from_str(&finished.stdout).unwrap()
    };
    let promised = json_of(&["-o", "auto.toml", "--json"]);
    let time = &promised["plans"][0]["time"];
    assert_eq!(time["replayed"], true, "{promised:#}");
    let found = &results(&case, &["--policy", "plan:auto.toml"])[0];
    assert_eq!(
        time["plan_ns"].as_f64(),
        found["time_ns"].as_f64(),
        "{promised:#}"
    );
    assert_eq!(time["first_touch_ns"].as_f64(), Some(first_touch_ns));
    // The network of workstations has the same caches.
    let now = results(&case, &["--machine", "now-8", "--policy", "round-robin"]);
    assert_eq!(figure(&now[0], "remote_latency_ns"), 3000.0);
    assert_eq!(now[0]["misses"], round_robin["misses"]);
}

#[test]
fn parameters_sources_and_schedules_change_what_happens() {
    let case = recorded("simulate_set");
    let low = [
        "--set",
        "trigger=100",
        "--set",
        "hold=70",
        "--policy",
        "migrate",
    ];
    let full = &results(&case, &low)[0];
    assert!(
        figure(full, "migrated") > 50.0,
        "of the pages that the second thread uses: {full:#}"
    );
    assert_eq!(full["parameters"]["trigger"], 100);
    assert_eq!(full["parameters"]["source"], "cache");
    assert_eq!(
        full["move_ns"].as_f64(),
        full["migrated"].as_f64().map(|pages| pages * 350_000.0)
    );
    assert_eq!(&results(&case, &low)[0], full, "the same each time");
    for (source, every) in [
        ("sampled-cache", 10),
        ("tlb", 1),
        ("sampled-tlb", 10),
        ("loads", 10),
        ("clock", 10),
    ] {
        let set = format!("source={source}");
        let seen = &results(&case, &[&low[..], &["--set", &set]].concat())[0];
        assert_eq!(seen["parameters"]["source"], source);
        assert_eq!(seen["parameters"]["every"], every);
        assert!(figure(seen, "misses") == figure(full, "misses"), "{source}");
        if !source.contains("tlb") {
            assert!(figure(seen, "migrated") > 50.0, "{source}: {seen:#}");
        }
    }

    case.write(
        "move.toml",
        "[[move]]\nthread = 0\nat_ns = 1000000\ncpu = 5\n",
    );
    let moved = &results(
        &case,
        &["--schedule", "move.toml", "--policy", "first-touch"],
    )[0];
    assert_eq!(moved["parameters"]["schedule"], "move.toml");
    assert_eq!(
        (&moved["estimated"], &moved["threads_moved"]),
        (&Value::Bool(true), &1.into())
    );
    let text = case
        .nearpage([
            "simulate",
            "full",
            "--schedule",
            "move.toml",
            "--policy",
            "first-touch",
        ])
        .success()
        .stdout;
    assert!(
        text.contains("first-touch (estimated)") && text.contains("Estimated: "),
        "{text}"
    );

    // Twice the same program: its data is two programs' own, its code and that of libraries is not.
    let once = &results(&case, &["--policy", "first-touch"])[0];
    let twice = &results(&case, &["full", "--policy", "first-touch"])[0];
    assert_eq!(figure(twice, "misses"), 2.0 * figure(once, "misses"));
    let [once, twice] = [once, twice].map(|result| figure(result, "pages_max"));
    assert!(
        once + 3.0 * 256.0 < twice && twice < 2.0 * once,
        "{once} and {twice}"
    );
}

#[test]
fn a_page_is_written_that_shows_it() {
    let case = recorded("simulate_html");
    let hostile = "<script>&\"run";
    symlink(case.path("full"), case.path(hostile)).unwrap();
    case.nearpage(["simulate", hostile, "--html", "bars.html"])
        .success();
    let page = case.read("bars.html");
    assert_eq!(
        page.matches("<rect").count(),
        6 * 5,
        "six policies, five parts"
    );
    assert!(page.contains("&lt;script&gt;&amp;&quot;run on flash-8") && !page.contains("<script"));

    let simulate = |file: &str| {
        case.nearpage([
            "simulate",
            "full",
            "--policy",
            "first-touch",
            "--html",
            file,
        ])
    };
    let full = simulate("/dev/full").says(1, &["/dev/full: can't be written", "No space left"]);
    assert!(
        full.stdout.contains("first-touch"),
        "the text is there all the same"
    );
    simulate("nowhere/bars.html").says(1, &["nowhere/bars.html: can't be written", "No such file"]);
}

#[test]
fn what_cannot_be_simulated_is_said_in_a_line() {
    let case = recorded("simulate_bad");
    let says = |words: &[&str], code: i32, expected: &[&str]| {
        let finished = case
            .nearpage([&["simulate"], words].concat())
            .says(code, expected);
        assert_eq!(finished.stdout, "", "{finished}");
    };
    // Arguments that are wrong by themselves.
    says(
        &["full", "--policy", "best"],
        2,
        &["no policy `best`", "first-touch"],
    );
    says(
        &["full", "--set", "trigger=0"],
        2,
        &["trigger=0", "from 1 to"],
    );
    says(
        &["full", "--set", "hold=128"],
        2,
        &["hold=128 is not below trigger=128"],
    );
    says(&["full", "--set", "triger=1"], 2, &["triger"]);
    says(
        &["full", "--set", "source=dreams"],
        2,
        &["source=dreams", "loads, clock"],
    );

    // Machines.
    let again = "record it again: nearpage record --source full --machine xeon-2 -- ";
    says(
        &["full", "--machine", "xeon-2"],
        1,
        &["full: recorded for", again, "triad 1 2"],
    );
    says(
        &["full", "--machine", "opteron-4"],
        1,
        &["opteron-4", "no caches"],
    );
    says(&["full", "--machine", "nowhere.toml"], 1, &["nowhere.toml"]);

    // Schedules.
    case.write("unknown.toml", "[[move]]\nthread = 7\nat_ns = 0\ncpu = 1\n");
    let threads = ["unknown.toml: move 1 is of thread 7", "threads 0 to 1"];
    says(&["full", "--schedule", "unknown.toml"], 1, &threads);
    case.write("wrong.toml", "[[move]]\nthread = 0\nwhen = 3\n");
    says(
        &["full", "--schedule", "wrong.toml"],
        1,
        &["wrong.toml: line 3", "when"],
    );
    says(
        &["full", "--schedule", "none.toml"],
        1,
        &["none.toml: cannot be read"],
    );

    // Recordings.
    says(&["nowhere"], 1, &["no recording here"]);
    let thin = ["thin", "full", "--every", "10", "-q", "-o", "tenth"];
    case.nearpage(thin).success();
    let samples = [
        "tenth: it has samples only",
        "`report`, `plan` and `compare`",
        "--source full",
    ];
    says(&["tenth"], 1, &samples);
    says(&["full", "tenth"], 1, &samples);

    let mut copy = case.command("cp");
    copy.args(["-r", "full", "short"]);
    case.run(copy).success();
    for file in fs::read_dir(case.path("short/trace")).unwrap() {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(file.unwrap().path())
            .unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length - length / 4).unwrap();
    }
    says(&["short"], 1, &["cut short", "recorded again"]);
}
