//! `nearpage simulate`, as a black box, on traces of small real programs.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

use std::fs;
use std::os::unix::fs::symlink;

use nearpage_tests::{Browser, Case, nearpage_path, repository, workload};
use serde_json::Value;

/// A case with the trace `full`: two threads of `triad` on three arrays of 1 MiB that the main thread initialises, for
/// the caches of `flash-8`.
fn recorded(name: &str) -> Case {
    let case = Case::new(name);
    let mut record = case.command(nearpage_path());
    record
        .args(["trace", "--machine", "flash-8"])
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
        // Two threads, one of which begins later.
        let time = figure(result, "time_ns");
        assert!(time < sum && sum <= 2.0 * time, "{result:#}");
    }
    // flash-8 has no queues, so every miss takes its matrix's latency.
    assert_eq!(figure(post_facto, "local_latency_ns"), 300.0);
    assert_eq!(figure(round_robin, "remote_latency_ns"), 1200.0);
    // Pages are spread over eight nodes; two of them have threads.
    let local = figure(round_robin, "local_share");
    assert!((0.03..0.3).contains(&local), "{local}");
    // The main thread touched all pages but uses only half of the arrays, so `post-facto` is more local.
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
    // The plan from this very trace must not be slower than first touch; the online policy `auto` only by its budget.
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
    // `auto` chooses among the other policies' decisions, and its predicted time equals the replayed time.
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
    assert_eq!(time["by"], "replay", "{promised:#}");
    let found = &results(&case, &["--policy", "plan:auto.toml"])[0];
    assert_eq!(
        time["planned_ns"].as_f64(),
        found["time_ns"].as_f64(),
        "{promised:#}"
    );
    assert_eq!(time["first_touch_ns"].as_f64(), Some(first_touch_ns));
    // The machine `now-8`, a network of workstations, has the same caches.
    let now = results(&case, &["--machine", "now-8", "--policy", "round-robin"]);
    assert_eq!(figure(&now[0], "remote_latency_ns"), 3000.0);
    assert_eq!(now[0]["misses"], round_robin["misses"]);
}

/// While tracing, the main thread comes to the barrier last, and ends the phase that counts. Where memory is slow, the
/// other thread comes later.
#[test]
fn a_thread_that_came_to_a_barrier_last_while_tracing_waits_there_for_later_ones() {
    const SOURCE: &str = r"
        #include <pthread.h>
        #include <nearpage.h>
        static pthread_barrier_t barrier;
        static char memory[4 << 20];
        static void *write_all(void *unused) {
            for (unsigned at = 0; at < sizeof memory; at += 64)
                memory[at]++;
            pthread_barrier_wait(&barrier);
            return unused;
        }
        int main(void) {
            pthread_t writer;
            pthread_barrier_init(&barrier, 0, 2);
            nearpage_begin();
            pthread_create(&writer, 0, write_all, 0);
            for (volatile int at = 0; at < 3000000; at++)
                ;
            pthread_barrier_wait(&barrier);
            nearpage_end();
            return pthread_join(writer, 0);
        }";
    let case = Case::new("barrier");
    let header = format!("-I{}", repository().join("include").display());
    case.compile("late", SOURCE, &["-pthread", &header]);
    case.nearpage("trace --machine now-8 -q -o full -- ./late".split(' '))
        .success();
    let words = ["--machine", "now-8", "--policy", "first-touch,round-robin"];
    let [local, remote] = &results(&case, &words)[..] else {
        panic!("two policies");
    };
    let misses = |result| figure(result, "misses");
    assert!(misses(local) > 65_536.0, "{local}");
    assert!(misses(remote) > 0.99 * misses(local), "{remote}");
    assert!(figure(remote, "time_ns") > 2.0 * figure(local, "time_ns"));
}

/// Rows of 32 to 256 bytes, many per page, that the main thread initialises. Decisions about objects can't place them;
/// decisions about the `brk` heap or about unmatched memory can.
#[test]
fn small_objects_are_placed_by_pages_of_the_heap_or_as_unmatched_memory() {
    let case = Case::new("rest");
    let mut record = case.command(nearpage_path());
    record
        .args(["trace", "--machine", "smile-4"])
        .args(["-q", "-o", "full", "--"])
        .arg(workload("mg"))
        .args(["4", "1"])
        .env("OMP_NUM_THREADS", "4")
        .env("OMP_WAIT_POLICY", "passive");
    case.run(record).success();
    // Without --machine, the plan is for the trace's own machine.
    case.nearpage([
        "plan",
        "full",
        "--phases",
        "--threads",
        "none",
        "-o",
        "auto.toml",
    ])
    .success();
    let plan = fs::read_to_string(case.path("auto.toml")).unwrap();
    assert!(plan.contains("\nmachine = \"smile-4\"\n"), "{plan}");
    let (header, _) = plan.split_once("\n[[object]]").expect("decisions");
    assert_eq!(plan.matches("brk_heap = true").count(), 1, "{plan}");
    assert!(plan.contains("; predicted to save "), "{plan}");
    let rest = "[[object]]\nname = \"the rest\"\nrest = true\nplacement = \"interleave\"\n";
    case.write("spread.toml", format!("{header}\n{rest}"));
    let policies = "first-touch,plan:auto.toml,plan:spread.toml";
    let found = results(&case, &["--policy", policies]);
    let [first_touch, auto, spread] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert!(figure(auto, "time_ns") < figure(first_touch, "time_ns"));
    let on_first = |result: &Value| {
        let load = result["controller_load"].as_array().unwrap().iter();
        let load: Vec<f64> = load.map(|node| node.as_f64().unwrap()).collect();
        load[0] / load.iter().sum::<f64>()
    };
    // Code and stacks stay on the first node.
    assert!(on_first(first_touch) > 0.9, "{first_touch:#}");
    assert!(on_first(spread) < 0.7, "{spread:#}");
}

/// Four nodes with a CPU each and small caches; moving a page takes 20 µs.
const FOUR: &str = r#"
name = "four"
page_bytes = 4096
latency_ns = [[100, 400, 400, 400], [400, 100, 400, 400], [400, 400, 100, 400], [400, 400, 400, 100]]
node = [{ id = 0, cpus = "0" }, { id = 1, cpus = "1" }, { id = 2, cpus = "2" }, { id = 3, cpus = "3" }]
moves = { fixed_ns = 20000 }
cache = [
    { level = 1, kind = "data", size_bytes = 16384, line_bytes = 64, associativity = 2, shared_by_cpus = 1 },
    { level = 1, kind = "instruction", size_bytes = 16384, line_bytes = 64, associativity = 2, shared_by_cpus = 1 },
    { level = 2, kind = "unified", size_bytes = 32768, line_bytes = 64, associativity = 4, shared_by_cpus = 1 },
]
"#;

#[test]
fn where_phases_are_looked_for_a_stripped_program_is_named() {
    let case = Case::new("stripped");
    case.write("four.toml", FOUR);
    let mut strip = case.command("strip");
    strip
        .arg("-o")
        .arg(case.path("bare"))
        .arg(workload("stages"));
    case.run(strip).success();
    case.program_copy(workload("stages"), "whole");
    let said = |name: &str| {
        let mut record = case.command(nearpage_path());
        record
            .args(["trace", "--machine", "four.toml"])
            .args(["-q", "-o", &format!("{name}.full"), "--"])
            .arg(case.path(name))
            .args(["16", "1", "1"])
            .env("OMP_NUM_THREADS", "4");
        case.run(record).success();
        let plan = ["plan", &format!("{name}.full"), "--phases"];
        case.nearpage(plan).success().stdout
    };
    let words = "bare is stripped: no phase is seen";
    assert!(said("bare").contains(words));
    assert!(!said("whole").contains("stripped"));
}

/// Threads sweep over their shares of an array, and later over the shares of the opposite threads.
#[test]
fn a_plan_changes_with_a_long_phase() {
    let case = Case::new("phases");
    case.write("four.toml", FOUR);
    // A machine on which moving pages is expensive.
    let dear = FOUR.replace("fixed_ns = 20000", "fixed_ns = 500000");
    case.write("dear.toml", dear);
    let record = |folder: &str, words: [&str; 3]| {
        let mut record = case.command(nearpage_path());
        record
            .args(["trace", "--machine", "four.toml"])
            .args(["-q", "-o", folder, "--"])
            .arg(workload("stages"))
            .args(words)
            .env("OMP_NUM_THREADS", "4")
            .env("OMP_WAIT_POLICY", "passive");
        case.run(record).success();
    };
    // Decided on one input, judged on a larger one.
    record("first", ["256", "10", "10"]);
    record("full", ["384", "10", "10"]);
    record("short", ["256", "20", "1"]);
    let planned_on = |machine: &str, folder: &str, words: &[&str]| {
        let plan = [
            "plan",
            folder,
            "--machine",
            machine,
            "--threads",
            "none",
            "-o",
            "plan.toml",
        ];
        let finished = case.nearpage([&plan, words].concat()).success();
        let plan = case.read("plan.toml");
        (plan, finished.stdout)
    };
    let planned = |folder: &str, words: &[&str]| planned_on("four.toml", folder, words);
    let (whole, _) = planned("first", &[]);
    assert!(!whole.contains("[[phase]]"), "{whole}");
    let (short, _) = planned("short", &["--phases"]);
    assert!(!short.contains("[[phase]]"), "{short}");
    // Times of the recorded run, and scaled times of a run with a longer parallel part.
    let touched = |longer: &str| {
        let (_, json) = planned("first", &["--longer", longer, "--json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let time = &json["plans"][0]["time"];
        assert_eq!(
            figure(time, "runtime_scale"),
            longer.parse::<f64>().unwrap()
        );
        assert!(figure(time, "scaled_planned_ns") < figure(time, "scaled_first_touch_ns"));
        ["first_touch_ns", "scaled_first_touch_ns"].map(|key| figure(time, key))
    };
    let [recorded, same] = touched("1");
    assert_eq!(recorded, same);
    let [again, double] = touched("2");
    assert_eq!(again, recorded);
    assert!(
        recorded < double && double < 2.0 * recorded,
        "{double} {recorded}"
    );
    let [_, triple] = touched("3");
    assert!(
        (triple - double - (double - recorded)).abs() < 1.0,
        "{triple} {double} {recorded}"
    );
    let (_, json) = planned("first", &["--phases", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    let phases = json["plans"][0]["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 1, "{json:#}");
    let function = phases[0]["function"].as_str().unwrap();
    assert!(function.starts_with("backward."), "{function}");
    // Moving the pages and exchanging the threads are about equally good.
    let objects = phases[0]["objects"].as_array().unwrap().len();
    let threads = phases[0]["threads"].as_array().unwrap().len();
    assert!(objects == 1 || threads == 4, "{json:#}");
    let (decided, text) = planned("first", &["--phases"]);
    assert!(
        text.contains(&format!("from when {function} is first executed:\n")),
        "{text}"
    );
    let (before, decided) = decided.split_once("[[phase]]").expect("a phase");
    // A phase that moves pages near the threads that use them next.
    let size = decided.find("\nsize = ").expect("its place") + 1;
    let end = size + decided[size..].find('\n').expect("a line");
    let phase = format!(
        "{}\n[[phase.object]]\nname = \"all\"\nheap = \">=64K\"\nplacement = \"first-touch\"\n",
        &decided[..end]
    );
    case.write("phased.toml", format!("{before}[[phase]]{phase}"));
    case.write("before.toml", before);
    // The same phase for another build, whose function is found by name, and a phase of an unknown function.
    let (_, after_size) = phase.split_once("\nsize = ").expect("its place");
    let of = |function: &str| {
        let place = "build_id = \"00ff\"\noffset = 0x10\nsize = ";
        format!(
            "{before}[[phase]]\nfunction = \"{function}\"\nmodule = \"stages\"\n{place}{after_size}"
        )
    };
    case.write("rebuilt.toml", of(function));
    let policies = "first-touch,plan:before.toml,plan:phased.toml,plan:rebuilt.toml";
    let found = results(&case, &["--policy", policies]);
    let [first_touch, before, phased, rebuilt] = found.as_slice() else {
        panic!("{found:?}");
    };
    let [best, rest] = [phased, before].map(|result| figure(result, "time_ns"));
    assert!(best < 0.7 * figure(first_touch, "time_ns"), "{phased:#}");
    assert!(best < 0.8 * rest, "{before:#}\n{phased:#}");
    assert_eq!(figure(rebuilt, "time_ns"), best);
    case.write("nowhere.toml", of("sideways._omp_fn.0"));
    let nowhere = case
        .nearpage([
            "simulate",
            "full",
            "--policy",
            "plan:before.toml,plan:nowhere.toml",
        ])
        .success();
    let said = nowhere.stdout.replace('\n', " ").replace("  ", " ");
    assert!(
        said.contains(
            "`sideways._omp_fn.0`, with which a phase of the plan begins, was not executed in"
        ),
        "{said}"
    );
    let (exchanged, text) = planned_on("dear.toml", "first", &["--phases"]);
    let line = "\nthreads = [3, 2, 1, 0]\n";
    assert_eq!(exchanged.matches(line).count(), 1, "{exchanged}");
    assert!(!exchanged.contains("[[phase.object]]"), "{exchanged}");
    let line = "  threads 0, 1 … of openmp take the places of 3, 2, 1, 0\n";
    assert!(text.contains(line), "{text}");
    case.write("exchanged.toml", exchanged);
    let words = [
        "--machine",
        "dear.toml",
        "--policy",
        "first-touch,plan:exchanged.toml",
    ];
    let found = results(&case, &words);
    assert_eq!(figure(&found[1], "threads_moved"), 4.0);
    assert_eq!(figure(&found[1], "migrated"), 0.0);
    let [first_touch, best] = [0, 1].map(|at| figure(&found[at], "time_ns"));
    assert!(best < 0.8 * first_touch, "{found:#?}");
    // Online migration on top of a plan may cost a third of the plan's saving.
    case.write("whole.toml", whole);
    // The spelling of version 0.1.
    let (migrating, text) = planned("first", &["--live"]);
    let (_, live) = migrating
        .split_once("\n[online_migration]\n")
        .expect("a table");
    assert!(live.contains("replication = 0\n"), "{migrating}");
    let line = "auto moves pages while the program runs, with ";
    assert!(text.contains(line), "{text}");
    case.write("live.toml", &migrating);
    let found = results(&case, &["--policy", "plan:whole.toml,plan:live.toml"]);
    let [whole, live] = found.as_slice() else {
        panic!("{found:?}");
    };
    let [still, time_ns] = [whole, live].map(|result| figure(result, "time_ns"));
    assert!(time_ns < 1.05 * still, "{whole:#}\n{live:#}");
    assert_eq!(figure(whole, "migrated"), 0.0);
    assert_eq!(figure(live, "replicated"), 0.0);
    assert_eq!(live["parameters"]["every"], 10);
    let (_, json) = planned("first", &["--online-migration", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["plans"][0]["online_migration"]["replication"], 0);
    case.write("wrong.toml", migrating.replace("replication", "replicas"));
    let refused = case.nearpage(["simulate", "full", "--policy", "plan:wrong.toml"]);
    let line =
        "the plan's [online_migration] has `replicas`, and `auto` has no parameter of that name";
    assert!(refused.exits(1).stderr.contains(line));
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

    // Two copies of a program: each has its own data, but they share code and libraries.
    let once = &results(&case, &["--policy", "first-touch"])[0];
    let twice = &results(&case, &["full", "--policy", "first-touch"])[0];
    assert_eq!(figure(twice, "misses"), 2.0 * figure(once, "misses"));
    let each: Vec<f64> =
        serde_json::from_value(twice["program_ns"].clone()).expect("a time for each");
    assert!(
        each.len() == 2
            && each
                .iter()
                .all(|&time| 0.0 < time && time <= figure(twice, "time_ns"))
    );
    let [once, twice] = [once, twice].map(|result| figure(result, "pages_max"));
    assert!(
        once + 3.0 * 256.0 < twice && twice < 2.0 * once,
        "{once} and {twice}"
    );
}

/// Two threads make three passes over 2 MiB; then the program kills itself.
const KILLED: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINES = 32768, LINE = 64 };
static char lines[LINES * LINE];
static pthread_barrier_t passed;

static void *passes(void *half) {
    char *begin = lines + (half ? sizeof lines / 2 : 0);
    for (int pass = 0; pass < 3; pass++)
        for (int line = 0; line < LINES / 2; line++)
            begin[line * LINE]++;
    pthread_barrier_wait(&passed);
    if (!half)
        kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

int main(void) {
    pthread_t thread;
    pthread_barrier_init(&passed, NULL, 2);
    pthread_create(&thread, NULL, passes, lines);
    passes(NULL);
}
"#;

#[test]
fn the_trace_of_a_killed_program_is_simulated() {
    let case = Case::new("simulate_killed");
    case.compile("killed", KILLED, &["-pthread"]);
    let record = "trace --machine flash-8 -o full -- ./killed".split(' ');
    let recorded = case.nearpage(record).is_ended_by(9);
    let said = "(killed) was killed: of 2 threads up to 64 references each before that";
    assert!(recorded.stderr.contains(said), "{recorded}");
    let finished = case
        .nearpage(["simulate", "full", "--policy", "first-touch", "--json"])
        .success();
    let simulated: Value = serde_json::from_str(&finished.stdout).unwrap();
    // Every pass misses every line: half of the array exceeds the second-level cache.
    let passes = 3.0 * 32_768.0;
    let misses = figure(&simulated["results"][0], "misses");
    assert!(misses > passes - 2.0 * 64.0, "{misses} of {passes}");
    let notes = simulated["notes"].as_array().unwrap();
    let told = |note: &Value| note.as_str().unwrap().contains(said);
    assert!(notes.iter().any(told), "{simulated:#}");
    let report = case.nearpage(["report", "full", "--json"]).success();
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let objects = report["objects"].as_array().unwrap();
    let lines = objects.iter().find(|object| object["name"] == "lines");
    let accesses = figure(lines.unwrap_or_else(|| panic!("{report:#}")), "accesses");
    assert!(accesses > passes - 2.0 * 64.0, "{accesses} of {passes}");
}

#[test]
fn processes_begin_when_they_are_forked_and_are_waited_for() {
    let case = Case::new("simulate_processes");
    let triad = workload("triad").display().to_string();
    let simulated = |folder: &str, words: &str| {
        let mut record = case.command(nearpage_path());
        record
            .args("trace --machine flash-8 -q -o".split(' '))
            .args([folder, "--", "/bin/sh", "-c", words])
            // Passive waiting: threads that spin would compute for longer when other threads are slower.
            .env("OMP_NUM_THREADS", "2")
            .env("OMP_WAIT_POLICY", "passive");
        case.run(record).success();
        let simulate = ["simulate", folder, "--policy", "first-touch"];
        let text = case.nearpage(simulate).success().stdout;
        let json = case.nearpage(simulate.into_iter().chain(["--json"]));
        let json: Value = serde_json::from_str(&json.success().stdout).unwrap();
        (text, figure(&json["results"][0], "time_ns"))
    };
    // The shell forks, and the child runs a program with two threads.
    let (text, once) = simulated("once", &format!("{triad} 1 1; exit 0"));
    assert!(text.contains("once on flash-8, 3 threads"), "{text}");
    let (text, twice) = simulated("twice", &format!("{triad} 1 1; {triad} 1 1; exit 0"));
    assert!(text.contains("twice on flash-8, 5 threads"), "{text}");
    assert!(text.contains("3 processes: each has"), "{text}");
    assert!(
        // The ratio would be 1 if the programs ran at the same time. Waiting times of threads differ from trace to
        // trace.
        (1.4..2.4).contains(&(twice / once)),
        "one after the other, in one shell: {once} and {twice} ns"
    );
}

#[test]
fn readers_of_a_pipe_wait_for_its_writer() {
    let case = Case::new("simulate_pipes");
    // Each process gets a CPU of its own.
    case.write("affinity.toml", "scheduler = \"affinity\"\n");
    let count = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
    let time = |folder: &str, words: &str| {
        let record = "trace --machine flash-8 -q -o".split(' ');
        let words = [folder, "--", "/bin/sh", "-c", words];
        case.nearpage(record.chain(words)).success();
        let simulate = ["simulate", folder, "--policy", "first-touch", "--json"];
        let simulate = simulate.into_iter().chain(["--schedule", "affinity.toml"]);
        let json: Value = serde_json::from_str(&case.nearpage(simulate).success().stdout).unwrap();
        figure(&json["results"][0], "time_ns")
    };
    let at_once = time("at_once", &format!("({count}) & ({count}); wait"));
    // The reader waits for a line or for the end of the pipe, both of which come after the writer has counted.
    for (folder, write, read) in [("line", "echo", "read x"), ("end", "", "read x")] {
        let piped = time(folder, &format!("({count}; {write}) | ({read}; {count})"));
        assert!(
            (1.5..2.3).contains(&(piped / at_once)),
            "{folder}: one after the other in {piped} ns, at once in {at_once} ns"
        );
    }
}

/// Shared memory of a given size in MiB that the program writes, and then its child.
const SHARED: &str = r#"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    size_t size = (size_t)atoi(words[1]) << 20;
    int segment = count > 2 ? shmget(IPC_PRIVATE, size, 0600) : -1;
    char *memory = segment >= 0
        ? shmat(segment, NULL, 0)
        : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (segment >= 0)
        shmctl(segment, IPC_RMID, NULL);
    for (size_t at = 0; at < size; at += 64)
        memory[at] = 1;
    if (!fork()) {
        for (size_t at = 0; at < size; at += 64)
            memory[at]++;
        _exit(0);
    }
    wait(NULL);
    return memory[size - 64] != 2;
}
"#;

#[test]
fn memory_shared_by_processes_counts_once() {
    let case = Case::new("simulate_shared");
    case.compile("shared", SHARED, &[]);
    let pages = |words: &str| {
        let record = "trace --machine flash-8 --force -q -o full -- ./shared";
        case.nearpage(record.split(' ').chain(words.split(' ')))
            .success();
        let results = results(&case, &["--policy", "first-touch"]);
        figure(&results[0], "pages_max")
    };
    for segment in ["", " segment"] {
        let [small, large] = ["1", "2"].map(|size| pages(&format!("{size}{segment}")));
        let more = large - small;
        assert!(
            (248.0..264.0).contains(&more),
            "{more} of 256 more{segment}"
        );
    }
}

#[test]
fn a_machine_with_one_node_allows_static_policies_only() {
    let case = recorded("simulate_one_memory");
    let machine = case.nearpage(["machine", "--machine", "flash-8", "--toml"]);
    let machine = machine.success().stdout;
    let (head, nodes) = machine.split_once("[[node]]").unwrap();
    let nodes = nodes.replace("[[node]]", "[[node]]\nmemory_bytes = 0");
    case.write("one.toml", format!("{head}[[node]]{nodes}"));
    let simulate = ["simulate", "full", "--machine", "one.toml"];
    let simulated = case.nearpage([&simulate[..], &["--json"]].concat());
    let whole: Value = serde_json::from_str(&simulated.success().stdout).unwrap();
    let results = whole["results"].as_array().unwrap();
    let names: Vec<&Value> = results.iter().map(|result| &result["policy"]).collect();
    assert_eq!(names, ["round-robin", "first-touch", "post-facto"]);
    let text = case.nearpage(simulate).success().stdout;
    assert!(text.contains("Left out, as they cannot run"), "{text}");
    let left_out = "Left out, as they cannot run on this machine: migrate, replicate, migrate-replicate: its memory is \
                    on one node, so no page can move.";
    let notes = whole["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note == left_out), "{whole:#}");
    case.nearpage([&simulate[..], &["--policy", "first-touch,migrate"]].concat())
        .says(
            1,
            &["migrate cannot run on this machine: its memory is on one node"],
        );
}

#[test]
fn simulate_writes_its_page() {
    let case = recorded("simulate_html");
    let hostile = "<script>&\"run";
    symlink(case.path("full"), case.path(hostile)).unwrap();
    case.nearpage(["simulate", hostile, "--html", "bars.html"])
        .success();
    let page = case.read("bars.html");
    assert!(!page.contains(hostile));
    for outside in ["http:", "https:", "@import"] {
        assert!(!page.contains(outside), "{outside}");
    }
    let mut browser = Browser::start(case.folder());
    browser.open(&format!("file://{}", case.path("bars.html").display()));
    browser.wait("document.querySelectorAll('table[aria-label=policies] tbody tr').length === 6");
    browser.drawn();
    let said = browser.value("document.querySelector('main').innerText");
    let said = said.as_str().expect("text");
    assert!(said.contains(&format!("{hostile} on flash-8: ")), "{said}");
    assert!(
        said.contains("Parameters") && said.contains("Over time"),
        "{said}"
    );
    assert_eq!(browser.complaints, Vec::<String>::new());

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
fn impossible_simulations_are_refused_in_one_line() {
    let case = recorded("simulate_bad");
    let says = |words: &[&str], code: i32, expected: &[&str]| {
        let finished = case
            .nearpage([&["simulate"], words].concat())
            .says(code, expected);
        assert_eq!(finished.stdout, "", "{finished}");
    };
    says(
        &["full", "--policy", "plan:carrefour"],
        1,
        &["plan:carrefour: there is no file `carrefour`, and no policy of that name that plans"],
    );
    // Invalid arguments.
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

    says(
        &["full", "--only", "kernel"],
        1,
        &["full: its kernel was not recorded", "qemu-system"],
    );

    // Wrong machines.
    let again = "record it again: nearpage trace --machine xeon-2 -- ";
    says(
        &["full", "--machine", "xeon-2"],
        1,
        &["full: recorded for", again, "triad 1 2"],
    );
    case.write(
        "bare.toml",
        "name = \"bare\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0\"\n",
    );
    says(
        &["full", "--machine", "bare.toml"],
        1,
        &["bare", "no caches"],
    );
    says(&["full", "--machine", "nowhere.toml"], 1, &["nowhere.toml"]);

    // Wrong schedules.
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

    // Wrong recordings.
    says(&["nowhere"], 1, &["no recording here"]);
    let downsample = ["thin", "full", "--every", "10", "-q", "-o", "tenth"];
    case.nearpage(downsample).success();
    let samples = [
        "tenth: it has samples only",
        "`report`, `plan` and `evaluate`",
        "`nearpage trace`",
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

#[test]
fn the_page_of_policies_has_every_policy_and_parameter_with_its_default() {
    let page = fs::read_to_string(repository().join("docs/reference/policies.md")).unwrap();
    let help = Case::new("policies")
        .nearpage(["simulate", "--help"])
        .success()
        .stdout;
    let (_, parameters) = help
        .split_once("Parameters for --set")
        .expect("a list of parameters");
    let mut section = "";
    let mut found = 0;
    for line in parameters.lines() {
        match line.strip_prefix("  ") {
            // A heading names its policies, such as `carrefour:`.
            None if line.ends_with(':') && !line.starts_with(',') => {
                let policies = line.trim_end_matches(':');
                let heading = page.split("\n## ").find(|section| {
                    section.starts_with(policies)
                        || section.starts_with(&format!("Parameters of {policies} "))
                });
                section = heading.unwrap_or_else(|| panic!("no section {policies}"));
            }
            Some(line) => {
                let Some((name, _)) = line.split_once(" (") else {
                    continue;
                };
                if name.contains('=') && !name.contains(' ') {
                    assert!(section.contains(&format!("`{name}`")), "{name}");
                    found += 1;
                }
            }
            None => {}
        }
    }
    assert!(found > 40, "{found} parameters");
}
