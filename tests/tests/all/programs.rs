//! Multi-threaded programs from Debian's packages, which were not written for these tests.

use std::ffi::OsStr;

use nearpage_tests::{Case, nearpage_path};
use serde_json::Value;

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Runs a command natively and recorded, compares output and status, and checks the recording's attribution.
fn behaves_and_is_attributed(case: &Case, command: &[&OsStr]) {
    let mut plain = case.command(command[0]);
    plain.args(&command[1..]);
    let plain = case.run(plain).success();

    let mut record = case.command(nearpage_path());
    record
        .args(["record", "-q", "--rate", "1999", "-o", "r", "--"])
        .args(command);
    let recorded = case.run(record).success();
    assert_eq!(plain.stdout, recorded.stdout);

    let json = case.nearpage(["report", "--json", "r"]).success().stdout;
    let report: Value = serde_json::from_str(&json).unwrap();
    let [accesses, compute, undecoded] =
        ["accesses", "compute", "undecoded"].map(|key| number(&report[key]));
    let samples = accesses + compute + undecoded;
    assert!(samples >= 200.0, "only {samples} samples");
    assert!(
        undecoded <= 0.03 * samples,
        "{undecoded} of {samples} samples undecoded"
    );
    let unknown = number(&report["attribution"]["unknown"]);
    assert!(
        unknown <= 0.01 * accesses,
        "{unknown} of {accesses} accesses unknown: {}",
        report["attribution"]
    );
    assert!(
        report["threads"].as_array().unwrap().len() > 1,
        "more than one thread"
    );

    // The costs of heap objects belong to call sites with a frame outside the C library.
    let is_outside = |frame: &Value| {
        let module = frame["module"].as_str().unwrap_or_default();
        !module.is_empty()
            && !module
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .starts_with("libc.so")
    };
    let heap = || {
        report["objects"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|object| object["kind"] == "heap")
    };
    let cost: f64 = heap().map(|object| number(&object["cost_ns"])).sum();
    let placed: f64 = heap()
        .filter(|object| {
            object["call_site"]
                .as_array()
                .is_some_and(|frames| frames.iter().any(is_outside))
        })
        .map(|object| number(&object["cost_ns"]))
        .sum();
    assert!(
        placed >= 0.95 * cost,
        "{placed} of {cost} ns of heap cost have a call site"
    );
}

fn os<'a>(words: &[&'a str]) -> Vec<&'a OsStr> {
    words.iter().map(|word| OsStr::new(*word)).collect()
}

#[test]
fn pigz_compresses() {
    let case = Case::new("pigz");
    // Compressible text that does not depend on files of the machine.
    let text: String = (0..2_000_000u32)
        .map(|line| format!("{} line {line}\n", line.wrapping_mul(2_654_435_761)))
        .collect();
    case.write("input", text);
    behaves_and_is_attributed(&case, &os(&["pigz", "-9", "-k", "-f", "-p", "4", "input"]));
}

#[test]
fn graphicsmagick_blurs() {
    let case = Case::new("gm");
    behaves_and_is_attributed(
        &case,
        &os(&[
            "gm",
            "convert",
            "-limit",
            "threads",
            "4",
            "-size",
            "1500x1500",
            "plasma:fractal",
            "-blur",
            "0x6",
            "out.ppm",
        ]),
    );
}

#[test]
fn povray_renders() {
    let case = Case::new("povray");
    let scene = case.write(
        "scene.pov",
        "camera { location <0,2,-8> look_at 0 }\nlight_source { <10,20,-10> rgb 1 }\nplane { y, -1 pigment { checker rgb 1 rgb 0 } finish { reflection 0.3 } }\n\
         #declare I = 0;\n#while (I < 400)\nsphere { <mod(I,20)-10, div(I,20)/4, mod(I*7,13)>, 0.3 pigment { rgb <0.3,0.6,1> } finish { reflection 0.4 phong 1 } }\n\
         #declare I = I + 1;\n#end\n",
    );
    let input = format!("+I{}", scene.display());
    behaves_and_is_attributed(
        &case,
        &os(&[
            "povray",
            &input,
            "+Oout.png",
            "+W500",
            "+H400",
            "+A0.1",
            "-D",
            "-GA",
            "+WT4",
        ]),
    );
}
