//! Thread layouts, as a black box: a program recorded with packed and with spread threads, the plan from both
//! recordings, and its execution.

use std::process::Command;

use nearpage_tests::{Case, Finished, nearpage_path, workload};
use serde_json::Value;

/// Eight nodes of six CPUs: four threads fit on one node, or spread over four.
const MACHINE: &str = "amd48";

/// A command that traces a program with four threads in a layout.
fn traced(case: &Case, layout: &str, name: &str, program: &[&str]) -> Command {
    let mut record = case.command(nearpage_path());
    record
        .args(["trace", "-q", "--machine", MACHINE])
        .args(["--threads", layout, "-o", name, "--"])
        .args(program)
        .env("OMP_NUM_THREADS", "4");
    record
}

fn trace(case: &Case, layout: &str, name: &str, program: &[&str]) {
    case.run(traced(case, layout, name, program)).success();
}

fn triad() -> String {
    workload("triad").display().to_string()
}

fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}\n{finished}"))
}

/// The plan from two recordings, named in this order, with these layouts; checks which of them was chosen.
fn planned(case: &Case, recordings: [&str; 2], layouts: [&str; 2]) -> String {
    let words = ["plan", recordings[0], recordings[1], "--machine", MACHINE];
    let words = [&words[..], &["-o", "plan of two.toml"]].concat();
    let found = json(&case.nearpage([&words[..], &["--json"]].concat()).success());
    let weighed = found["choice"]["recordings"].as_array().unwrap();
    for (one, (recording, layout)) in weighed.iter().zip(recordings.iter().zip(layouts)) {
        assert_eq!(one["recording"], *recording, "{found:#}");
        assert_eq!(one["threads"], layout, "{found:#}");
        assert_eq!(one["by"], "replay", "{found:#}");
    }
    // The second recording is chosen only if it is more than 3 % faster. A recording that is far behind has no plan.
    let time = |at: usize| weighed[at]["planned_ns"].as_f64();
    let taken = match [time(0), time(1)] {
        [Some(first), Some(second)] => usize::from(second < 0.97 * first),
        times => {
            let taken = usize::from(times[0].is_none());
            let touch = weighed[1 - taken]["first_touch_ns"].as_f64();
            assert!(touch > times[taken].map(|time| 1.25 * time), "{found:#}");
            taken
        }
    };
    let marks: Vec<bool> = weighed.iter().map(|one| one["chosen"] == true).collect();
    assert_eq!(marks, [taken == 0, taken == 1], "{found:#}");
    let planned = &found["plans"][0]["time"];
    for key in ["first_touch_ns", "planned_ns"] {
        let scaled = &planned[format!("scaled_{key}")];
        assert_eq!(*scaled, weighed[taken][key], "{found:#}");
    }
    // The predicted time equals that of a plan from the chosen recording alone, with threads where they ran.
    let alone = [
        "plan",
        recordings[taken],
        "--threads",
        "none",
        "--machine",
        MACHINE,
    ];
    let alone = json(
        &case
            .nearpage([&alone[..], &["-o", "alone.toml", "--json"]].concat())
            .success(),
    );
    assert_eq!(alone["plans"][0]["time"], *planned);
    assert!(alone.get("choice").is_none());
    // The plan, too, is the same, except for the layout.
    let key = format!("threads = \"{}\"\n", layouts[taken]);
    let plan = case.read("plan of two.toml");
    assert!(
        plan.contains(&format!("page_bytes = 4096\n{key}\n[program]")),
        "{plan}"
    );
    assert_eq!(plan.replacen(&key, "", 1), case.read("alone.toml"));
    // The text form has the same facts.
    let text = case.nearpage(&words).success().stdout;
    for word in [
        "threads   first touch      planned  recording",
        &format!("taken: {}; ", recordings[taken]),
        &format!("threads: {}, as the plan says", layouts[taken]),
        "The plan is in plan of two.toml",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let words = [
        "plan",
        recordings[0],
        recordings[1],
        "--machine",
        MACHINE,
        "-o",
        "-",
    ];
    assert_eq!(case.nearpage(words).success().stdout, plan);
    plan
}

#[test]
fn a_plan_of_two_recordings_says_where_threads_run() {
    let case = Case::new("layouts");
    trace(&case, "compact", "packed here", &[&triad(), "1", "2"]);
    trace(&case, "scatter", "spread", &[&triad(), "1", "2"]);
    planned(&case, ["spread", "packed here"], ["scatter", "compact"]);
    let plan = planned(&case, ["packed here", "spread"], ["compact", "scatter"]);
    let both = ["plan", "packed here", "spread", "--machine", MACHINE];
    let where_they_ran = ["--threads", "none", "-o", "none.toml"];
    case.nearpage([&both[..], &where_they_ran].concat())
        .success();
    assert_eq!(case.read("none.toml"), plan);

    // `run` pins threads as planned, unless an option or variable says otherwise.
    let run = |options: &[&str], variable: (&str, &str)| {
        let mut run = case.command(nearpage_path());
        run.args(["run", "--plan", "none.toml"]).args(options);
        run.arg("--").arg(triad()).args(["1", "1"]);
        run.env("OMP_NUM_THREADS", "2").env(variable.0, variable.1);
        case.run(run).success().stderr
    };
    let pinned = "nearpage: 2 threads pinned\n";
    let unset = ("UNSET", "");
    assert!(run(&[], unset).contains(pinned));
    let unpinned = run(&["--threads", "none"], unset);
    assert!(unpinned.contains(": --threads none wins"), "{unpinned}");
    assert!(!unpinned.contains("pinned"), "{unpinned}");
    let bound = run(&[], ("OMP_PROC_BIND", "close"));
    assert!(
        bound.contains("OMP_PROC_BIND is set, but threads are pinned over it"),
        "{bound}"
    );
    assert!(bound.contains(pinned), "{bound}");
    let placed = run(&[], ("OMP_PLACES", "cores"));
    assert!(
        placed.contains("threads are not pinned, though the plan is for"),
        "{placed}"
    );
    assert!(!placed.contains(pinned), "{placed}");

    // A replay can't move threads, and says so if the plan's layout differs from the recording's.
    for (layout, own, other) in [
        ("compact", "packed here", ("scatter", "spread")),
        ("scatter", "spread", ("compact", "packed here")),
    ] {
        let wanted = format!("threads = \"{layout}\"");
        let said = format!("threads = \"{}\"", other.0);
        case.write("wanted.toml", plan.replace(&said, &wanted));
        let words = |recording| {
            [
                "simulate",
                recording,
                "--json",
                "--policy",
                "plan:wanted.toml",
            ]
        };
        let there = case.nearpage(words(own)).success();
        assert_eq!(there.stderr, "", "{there}");
        assert_eq!(json(&there)["threads_elsewhere"], Value::Array(Vec::new()));
        let line = format!(
            "run {layout}; those of {} ran {}, and a replay",
            other.1, other.0
        );
        let elsewhere = case.nearpage(words(other.1)).success();
        assert_eq!(elsewhere.stderr, "", "said once, in its notes: {elsewhere}");
        assert_eq!(elsewhere.stdout.matches(&line).count(), 1, "{elsewhere}");
        let found = &json(&elsewhere)["threads_elsewhere"][0];
        assert_eq!(found["policy"], "plan:wanted.toml");
        assert_eq!(found["recording"], other.1);
        assert_eq!(
            (&found["planned"], &found["recorded"]),
            (&layout.into(), &other.0.into())
        );
    }
}

#[test]
fn recordings_with_incomparable_times_are_refused() {
    let case = Case::new("layouts refused");
    trace(&case, "scatter", "a b", &[&triad(), "1", "1"]);
    let refuses = |other: &str, machine: &str, more: &[&str], code: i32, said: &[&str]| {
        let words = [
            "plan",
            "a b",
            other,
            "--machine",
            machine,
            "-o",
            "refused.toml",
        ];
        let finished = case.nearpage([&words[..], more].concat()).says(code, said);
        assert_eq!(finished.stdout, "", "{finished}");
        assert!(!case.path("refused.toml").exists());
    };
    let given = ["--threads", "scatter"];
    let said = "--threads scatter contradicts several recordings";
    refuses("a b", MACHINE, &given, 2, &[said, "leave it out"]);
    let said = ["--policy object predicts no time", "--policy auto"];
    refuses("a b", MACHINE, &["--policy", "object"], 2, &said);
    case.write(
        "one.toml",
        "name = \"one\"\npage_bytes = 4096\ndistance = [[10]]\n[[node]]\nid = 0\ncpus = \"0-47\"\nmemory_bytes = 1073741824\n",
    );
    refuses(
        "a b",
        "one.toml",
        &[],
        1,
        &["one has one memory node", "--machine"],
    );
    refuses(
        "a b",
        "intel32",
        &[],
        1,
        &["a b: recorded on amd48", "intel32"],
    );
    refuses("nowhere", MACHINE, &[], 1, &["nowhere"]);

    trace(&case, "scatter", "program", &["/bin/true"]);
    let said = "a b is of triad, program of true: several recordings";
    refuses("program", MACHINE, &[], 1, &[said]);
    let downsample = ["thin", "a b", "--every", "10", "-q", "-o", "tenth"];
    case.nearpage(downsample).success();
    let said = [
        "a b and tenth differ in whether every miss was kept",
        "can't be compared",
    ];
    refuses("tenth", MACHINE, &[], 1, &said);
}

#[test]
fn one_plan_of_several_inputs_predicts_each_of_them() {
    let case = Case::new("several inputs");
    trace(&case, "scatter", "small", &[&triad(), "1", "1"]);
    trace(&case, "scatter", "large", &[&triad(), "2", "1"]);
    let mut fewer = traced(&case, "scatter", "fewer", &[&triad(), "1", "1"]);
    fewer.env("OMP_NUM_THREADS", "2");
    case.run(fewer).success();
    let words = ["plan", "small", "large", "fewer", "-o", "all.toml"];
    let printed = case.nearpage(words).success().stdout;
    for said in [
        "one plan for 3 inputs, in the sizes and threads of small",
        "large (2 1)",
    ] {
        assert!(printed.contains(said), "{said}: {printed}");
    }
    assert!(case.path("all.toml").exists());

    let found = json(&case.nearpage([&words[..], &["--json"]].concat()).success());
    let inputs = &found["inputs"];
    assert_eq!(found.get("choice"), None);
    assert_eq!(inputs["recordings"].as_array().map(Vec::len), Some(3));
    assert_eq!(inputs["recordings"][2]["threads"], 2);
    for one in inputs["recordings"].as_array().into_iter().flatten() {
        let [planned, first_touch] =
            ["planned_ns", "first_touch_ns"].map(|name| one[name].as_f64());
        assert!(planned <= first_touch, "{one}");
    }

    // With two recordings, --threads sets the layout as with one.
    let words = ["plan", "small", "large", "--threads", "compact", "-o", "-"];
    case.nearpage(words).success();
}
