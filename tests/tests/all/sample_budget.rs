//! Recordings at the default rate stay within a budget of processor time for samples.

use std::fs;

use nearpage_tests::{Case, nearpage_path, workload};
use serde_json::Value;

/// Records `serial_parallel` with two threads. Returns `record`'s JSON, the program's processor time in seconds, and
/// its accesses: thread, time in ns, and the time in ns that each access stands for.
fn recorded(name: &str, arguments: &[&str]) -> (Value, f64, Vec<(u64, u64, f64)>) {
    let case = Case::new(name);
    let mut record = case.command(nearpage_path());
    record
        .args(["record", "--source", "clock", "--json", "-o", "r", "--"])
        .arg(workload("serial_parallel"))
        .args(arguments)
        .env("OMP_NUM_THREADS", "2");
    let finished = case.run(record).success();
    let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    let processor = finished
        .stderr
        .split("processor ")
        .nth(1)
        .expect("the program's line");
    let processor_ms: f64 = processor.split(' ').next().unwrap().parse().unwrap();
    case.nearpage(["export", "--to", "csv", "-o", "accesses.csv", "r"])
        .success();
    let csv = case.read("accesses.csv");
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    let at = |name: &str| {
        header
            .iter()
            .position(|column| *column == name)
            .expect("a column")
    };
    let (tid, time) = (at("tid"), at("time_ns"));
    // The last column is parsed from the end: names of objects, in columns before it, may contain commas.
    assert_eq!(header.last(), Some(&"cost_ns"));
    let accesses = lines.map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        (
            fields[tid].parse().unwrap(),
            fields[time].parse().unwrap(),
            fields.last().unwrap().parse().unwrap(),
        )
    });
    (said, processor_ms / 1e3, accesses.collect())
}

#[test]
fn a_second_has_many_samples_whose_weights_are_its_time() {
    let (said, processor_s, accesses) = recorded("budget-second", &["1", "1000"]);
    let samples = &said["samples"];
    let count = |kind: &str| samples[kind].as_f64().unwrap();
    // The budget, and a round's excess before the recorder notices.
    let sampling_ms = said["sampling_ns"].as_f64().unwrap() / 1e6;
    assert!(sampling_ms <= 100.0, "{said:#}");
    // At 10 to 20 µs a sample, a second has 4,000 samples or more. On a busy machine a sample takes up to 110 µs, and the
    // budget is used up earlier.
    assert!(count("samples") >= 800.0 || sampling_ms >= 60.0, "{said:#}");
    assert_eq!(count("lost"), 0.0, "{said:#}");
    // Time that accesses stand for, scaled up by the samples of computation and of the kernel.
    let cost_s = accesses.iter().map(|access| access.2).sum::<f64>() / 1e9;
    let stood_for = cost_s * (count("samples") + count("kernel")) / count("accesses");
    assert!(
        // If weights were of another phase's rate, the sum would be wrong by several times.
        (0.67..1.5).contains(&(stood_for / processor_s)),
        "{stood_for} of {processor_s} s"
    );
    let rates: Vec<f64> = said["rates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|rate| rate["rate_hz"].as_f64().unwrap())
        .collect();
    assert!(
        rates.len() > 1 && rates[0] > *rates.last().unwrap(),
        "{rates:?}"
    );
}

#[test]
fn initialisation_by_one_thread_leaves_samples_for_the_others() {
    for mark in [false, true] {
        // 300 ms, not 500 ms: a phase begins with 500 ms at a high rate, and a phase that follows at the low rate is
        // noticed later.
        let arguments: &[&str] = match mark {
            true => &["300", "700", "mark"],
            false => &["300", "700"],
        };
        let (said, _, accesses) = recorded("budget-parts", arguments);
        // The first sample is the master's; the other thread runs only in the parallel part.
        let (first_tid, ..) = *accesses
            .iter()
            .min_by_key(|access| access.1)
            .expect("samples");
        let others = accesses.iter().filter(|access| access.0 != first_tid);
        let begin_ns = others
            .map(|access| access.1)
            .min()
            .expect("samples of the other thread");
        let parallel = accesses
            .iter()
            .filter(|access| access.1 >= begin_ns)
            .count();
        assert!(
            parallel * 4 >= accesses.len(),
            "{parallel} of {}: {said:#}",
            accesses.len()
        );
    }
}

#[test]
fn a_given_rate_stays() {
    let case = Case::new("budget-rate");
    let program = workload("serial_parallel");
    let record = [
        "record", "--source", "clock", "--json", "--rate", "211", "-o", "r", "--",
    ];
    let arguments = record.map(Into::into).into_iter();
    let arguments = arguments.chain([program.into_os_string(), "1".into(), "200".into()]);
    let finished = case.nearpage(arguments).success();
    let said: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(said["rate_hz"], 211.0, "{said:#}");
    assert_eq!(said["rates"], serde_json::json!([]), "{said:#}");
    assert_eq!(said["sampling_ns"], Value::Null, "{said:#}");
}

/// `live` took a tenth of a second to start, every time.
#[test]
fn live_and_record_share_three_measurements_of_what_a_sample_costs() {
    let case = Case::new("measured-costs");
    let measurements = || -> u64 {
        if !case.path("cache/nearpage/samples.json").exists() {
            return 0;
        }
        let known: Value =
            serde_json::from_str(&case.read("cache/nearpage/samples.json")).expect("JSON");
        known["machines"][0]["measurements"]
            .as_u64()
            .expect("a number")
    };
    let run = |arguments: &[&str]| {
        let mut command = case.command(nearpage_path());
        command
            .args(arguments)
            .env("XDG_CACHE_HOME", case.path("cache"));
        case.run(command).success();
    };
    // On a busy machine a measurement may find no time without others, and is not kept.
    let measures = |arguments: &[&str]| {
        let before = measurements();
        (0..20).any(|_| {
            let _ = fs::remove_dir_all(case.path("r"));
            run(arguments);
            measurements() == before + 1
        })
    };
    let live = ["live", "--dry-run", "--", "true"];
    assert!(measures(&live));
    assert!(measures(&["record", "-o", "r", "--", "true"]));
    assert!(measures(&live));
    run(&live);
    assert_eq!(measurements(), 3);
}
