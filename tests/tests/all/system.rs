//! Traces of whole guests, as a black box: a bare guest whose misses are all known.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its beginning to its end"
)]

use std::process::Command;

use nearpage_tests::{Case, nearpage_path, repository};
use serde_json::Value;

/// Number of lines of 64 bytes that the guest stores to and then loads (`tests/guest/bare.S`).
const LINES: u64 = 16_384;

/// Builds the guest; without an emulator, `None` and a printed line.
fn bare(case: &Case) -> Option<String> {
    let found = Command::new("qemu-system-x86_64").arg("--version").output();
    if found.is_err() {
        eprintln!("skipped: no qemu-system-x86_64 on PATH (Debian package qemu-system-x86)");
        return None;
    }
    let source = repository().join("tests/guest/bare.S");
    let source = source.to_str().unwrap();
    for (program, arguments) in [
        ("gcc", &["-c", "-o", "bare.o", source][..]),
        (
            "ld",
            &[
                "-N",
                "-static",
                "-Ttext=0x100000",
                "-e",
                "start",
                "-o",
                "bare64",
                "bare.o",
            ],
        ),
        ("objcopy", &["-O", "elf32-i386", "bare64", "bare"]),
    ] {
        let mut command = case.command(program);
        command.args(arguments);
        case.run(command).success();
    }
    Some(case.path("bare").to_str().unwrap().to_owned())
}

fn record<'a>(options: &[&'a str], guest: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "record",
        "--source",
        "full",
        "--machine",
        "flash-8",
        "-o",
        "traced",
    ];
    let words = [&fixed, options, &["--", "qemu-system-x86_64"], guest];
    words.concat()
}

#[test]
fn a_guests_misses_are_the_kernels_by_region() {
    let case = Case::new("system");
    let Some(kernel) = bare(&case) else { return };
    let guest = [
        "-machine",
        "q35",
        "-cpu",
        "max",
        "-smp",
        "1",
        "-m",
        "64",
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-append",
        "nokaslr",
        "-kernel",
        &kernel,
    ];
    let traced = case.nearpage(record(&["--markers"], &guest)).success();
    assert!(traced.stderr.contains("on flash-8"), "{traced}");

    let metadata = std::fs::read_to_string(case.path("traced/recording.json")).unwrap();
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let totals = &metadata["tracing"]["totals"];
    for (name, expected) in [
        ("loads", LINES),
        ("stores", LINES),
        ("kernel_loads", LINES),
        ("kernel_stores", LINES),
        // The stores and the loads exceed the caches, and stored lines are written back.
        ("memory_served", 2 * LINES + 6),
        ("write_backs", LINES),
        ("device_references", 0),
    ] {
        let found = totals[name].as_u64().unwrap();
        assert!(
            found.abs_diff(expected) <= 6,
            "{name}: {found}, expected {expected}"
        );
    }
    // Four instructions in each iteration of both loops, and a few before and between the loops.
    let instructions = totals["kernel_instructions"].as_u64().unwrap();
    assert!(
        (8 * LINES..8 * LINES + 20).contains(&instructions),
        "{totals:#}"
    );
    assert_eq!(totals["kernel_instructions"], totals["instructions"]);

    let report = case.nearpage(["report", "traced", "--json"]).success();
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let system = &report["trace"]["system"];
    assert_eq!(system["kernel"]["reads"], LINES, "{system:#}");
    assert_eq!(system["kernel"]["writes"], LINES, "{system:#}");
    assert_eq!(
        system["kernel"]["data_pages"], 256,
        "the same pages, by their place: {system:#}"
    );
    assert_eq!(system["user"]["reads"], 0, "{system:#}");
    let segments = system["segments"].as_array().unwrap();
    let of = |name: &str, what: &str| {
        let found = segments.iter().find(|segment| segment["segment"] == name);
        found.unwrap()[what].as_u64().unwrap()
    };
    assert_eq!(of("direct map", "writes"), LINES, "{system:#}");
    assert_eq!(
        of("user", "reads"),
        LINES,
        "loaded at addresses of the lower half: {system:#}"
    );
    assert!(
        (1..10).contains(&of("kernel image", "fetches")),
        "{system:#}"
    );
    let said = case.nearpage(["report", "traced"]).success();
    assert!(said.stdout.contains("of the kernel's data: "), "{said}");

    let simulated = case.nearpage(["simulate", "traced", "--policy", "first-touch", "--json"]);
    let simulated: Value = serde_json::from_str(&simulated.success().stdout).unwrap();
    assert_eq!(
        simulated["results"][0]["local_share"], 1.0,
        "one CPU: {simulated:#}"
    );
    // All accesses of the bare guest are the kernel's.
    let misses = |only: &str| {
        let words = [
            "simulate",
            "traced",
            "--policy",
            "first-touch",
            "--json",
            "--only",
            only,
        ];
        let simulated: Value =
            serde_json::from_str(&case.nearpage(words).success().stdout).unwrap();
        let said = simulated["notes"].to_string();
        assert!(said.contains("alone (--only)"), "{said}");
        let result = &simulated["results"][0];
        (
            result["misses"].as_u64().unwrap(),
            result["compute_ns"].as_f64().unwrap(),
        )
    };
    let all = &simulated["results"][0];
    assert_eq!(
        misses("kernel"),
        (
            all["misses"].as_u64().unwrap(),
            all["compute_ns"].as_f64().unwrap()
        )
    );
    // --only leaves out TLB misses, too, whose time counts as computation.
    let (misses, compute_ns) = misses("user");
    let all_ns = all["compute_ns"].as_f64().unwrap();
    assert_eq!(misses, 0);
    assert!(
        (0.9 * all_ns..all_ns).contains(&compute_ns),
        "{compute_ns} of {all_ns}"
    );
}

#[test]
fn untraceable_guests_are_refused() {
    let case = Case::new("system-refused");
    if bare(&case).is_none() {
        return;
    }
    for (options, guest, code, words) in [
        (
            &[][..],
            &["-enable-kvm"][..],
            2,
            &["-enable-kvm", "tcg"][..],
        ),
        (&[], &["-icount", "shift=1"], 2, &["-icount"]),
        (
            &["--all-allocations"],
            &[],
            2,
            &["--all-allocations", "guest"],
        ),
    ] {
        let refused = case.nearpage(record(options, guest)).says(code, words);
        assert_eq!(refused.stdout, "", "{refused}");
        assert!(!case.path("traced").exists());
    }
    // The emulator ends without running a guest.
    let mut nothing = case.command(nearpage_path());
    nothing.args(record(&["-q", "--markers"], &["-version"]));
    let nothing = case.run(nothing).exits(1);
    assert!(
        nothing.stderr.contains("nothing of the guest was traced"),
        "{nothing}"
    );
}
