//! Known accesses by construction: every memory instruction of a `truth` shape accesses one known object.

use nearpage_tests::{Case, nearpage_path, workload};
use serde_json::Value;

/// Records a shape at a high rate, after its preparation, and returns the report.
fn report(shape: &str) -> Value {
    let case = Case::new(&format!("truth-{shape}"));
    let mut record = case.command(nearpage_path());
    // 64 MiB: several times the second-level cache, and quickly prepared.
    record
        .args(["record", "-q", "--rate", "4999", "-o", "r", "--"])
        .arg(workload("truth"))
        .args([shape, "64"]);
    case.run(record).success();
    let json = case.nearpage(["report", "--json", "r"]).success().stdout;
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {json}"))
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Does the name or a call-site frame of an object belong to the shape's object?
fn is_object_of(object: &Value, shape: &str) -> bool {
    let wanted = format!("truth_{shape}_object");
    let frames = object["call_site"].as_array().into_iter().flatten();
    object["name"]
        .as_str()
        .is_some_and(|name| name.contains(&wanted))
        || frames
            .into_iter()
            .any(|frame| frame["function"].as_str() == Some(&wanted))
}

/// Checks that at least 95 % of the cost is attributed to the shape's object.
fn is_true(shape: &str) {
    let report = report(shape);
    let objects = report["objects"].as_array().unwrap();
    let all: f64 = objects
        .iter()
        .map(|object| number(&object["accesses"]))
        .sum();
    let right: f64 = objects
        .iter()
        .filter(|object| is_object_of(object, shape))
        .map(|object| number(&object["accesses"]))
        .sum();
    assert!(all > 100.0, "{shape}: only {all} accesses\n{report:#}");
    assert!(
        right >= 0.95 * all,
        "{shape}: {right} of {all} accesses on the right object\n{report:#}"
    );
    let samples =
        number(&report["accesses"]) + number(&report["compute"]) + number(&report["undecoded"]);
    assert!(
        number(&report["undecoded"]) <= 0.03 * samples,
        "{shape}: undecoded\n{report:#}"
    );
}

#[test]
fn loads_are_attributed_to_their_objects() {
    ["gather", "static", "stream", "chase"]
        .into_iter()
        .for_each(is_true);
}

#[test]
fn stores_are_attributed_to_their_objects() {
    ["store", "update"].into_iter().for_each(is_true);
}

#[test]
fn accesses_before_jumps_are_attributed_to_their_objects() {
    ["jump", "compare"].into_iter().for_each(is_true);
}

#[test]
fn vector_accesses_are_attributed_to_their_objects() {
    is_true("vector");
}

#[test]
fn computation_is_no_access() {
    let report = report("compute");
    let [accesses, compute, undecoded] =
        ["accesses", "compute", "undecoded"].map(|key| number(&report[key]));
    let samples = accesses + compute + undecoded;
    assert!(
        compute >= 0.9 * samples,
        "{accesses} accesses, {compute} compute, {undecoded} undecoded"
    );
}
