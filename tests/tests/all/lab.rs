//! `nearpage lab`: times that a guest measures match the modelled machine. Skipped where the lab's emulator isn't
//! built.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use nearpage_tests::lab::{BOOT_LIMIT, MACHINE, TIME_LIMIT, in_lab, is_built, lab, turn};
use nearpage_tests::{Case, nearpage_path, repository, schema_errors, workload};
use serde_json::Value;

/// Largest relative error of latencies measured in the guest.
const TOLERANCE: f64 = 0.03;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn numbers(matrix: &Value) -> Vec<f64> {
    let rows = matrix.as_array().expect("a matrix").iter();
    let cells = rows.flat_map(|row| row.as_array().expect("a row"));
    cells.map(|cell| cell.as_f64().expect("a number")).collect()
}

#[test]
fn a_guest_measures_the_machine_that_is_modelled() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab").limit(TIME_LIMIT);
    let script = format!(
        "{} machine measure --quick --json >matrix || exit 4; python3 {} >probe || exit 5; echo out; echo err >&2; \
         exit 3",
        nearpage_path().display(),
        repository().join("tests/guest/lab_probe.py").display()
    );
    let finished = in_lab(&case, &BOOT_LIMIT, &["sh", "-c", &script]);
    assert_eq!(finished.code, Some(3), "{finished}");
    assert_eq!(finished.stdout, "out\n");
    assert!(finished.stderr.contains("err\n"), "{finished}");
    assert!(
        !finished.stderr.contains("the guest's kernel"),
        "{finished}"
    );

    let machine = case
        .nearpage(["machine", "show", MACHINE, "--json"])
        .success();
    let modelled = numbers(&json(&machine.stdout)["latency_ns"]);
    let measured = numbers(&json(&case.read("matrix"))["latency_ns"]);
    assert_eq!(measured.len(), modelled.len());
    for (measured, modelled) in measured.iter().zip(&modelled) {
        let off = measured / modelled - 1.0;
        assert!(
            off.abs() <= TOLERANCE,
            "{measured} ns measured, {modelled} ns modelled"
        );
    }

    let probe = json(&case.read("probe"));
    assert_eq!(probe["clock_went_back"], 0, "{probe}");
    let within = |value: &Value, range: std::ops::Range<f64>| {
        let value = value.as_f64().expect("a number");
        assert!(range.contains(&value), "{value}: {probe}");
    };
    within(&probe["speedup"]["4"], 3.9..4.1);
    within(&probe["slept_s"]["1"], 1.0..1.001);
    within(&probe["round_trip_us"], 1.0..100.0);
    // CPUs may differ by up to a microsecond in each direction.
    within(&probe["spinning_round_trip_us"], 0.1..4.0);
}

#[test]
#[ignore = "takes a minute: tests/long"]
fn runs_repeat_bit_for_bit() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-repeated").limit(TIME_LIMIT);
    let triad = workload("triad");
    let counts = || {
        let _turn = turn();
        let mut lab = lab(&case);
        lab.arg("--json").args(BOOT_LIMIT).arg("--").args([
            "env",
            "OMP_NUM_THREADS=4",
            &triad.to_string_lossy(),
            "1",
            "2",
        ]);
        let finished = case.run(lab).success();
        let mut result = json(&finished.stdout);
        assert_schema("lab", &result);
        assert!(
            result["pages"]["page_faults"].as_u64() > Some(0),
            "{result}"
        );
        let kernel = &result["counts"]["kernel"];
        let groups = kernel["groups"].as_array().expect("groups");
        let faults = groups.iter().find(|group| group["name"] == "page faults");
        assert!(
            faults.is_some_and(|faults| faults["time_s"].as_f64() > Some(0.0)),
            "{kernel}"
        );
        let counts = result["counts"].as_object_mut().expect("counts");
        for of_host in ["host_s", "host_s_per_guest_s"] {
            counts.remove(of_host);
        }
        result
    };
    let (one, other) = (counts(), counts());
    assert!(
        one["counts"]["instructions"].as_u64() > Some(1_000_000),
        "{one}"
    );
    assert_eq!(one, other);
}

#[test]
#[ignore = "takes a minute: tests/long"]
fn a_booted_guest_is_kept_for_the_next_run() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-kept").limit(TIME_LIMIT);
    let cache = case.path("cache");
    let guests = cache.join("nearpage/lab/guests");
    let kept = || -> Vec<_> {
        let entries = fs::read_dir(&guests).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let run = |options: &[&str]| {
        let _turn = turn();
        let mut lab = lab(&case);
        lab.args(["--memory", "128M"])
            .args(options)
            .args(BOOT_LIMIT);
        lab.args([
            "--json",
            "--",
            "sh",
            "-c",
            "date; cat /proc/uptime >&2; exit 7",
        ]);
        lab.env("XDG_CACHE_HOME", &cache);
        let finished = case.run(lab).exits(7);
        let result = json(&finished.stdout);
        (
            result["counts"]["instructions"].clone(),
            result["counts"]["guest_s"].clone(),
            finished.stderr,
        )
    };
    let one = run(&[]);
    let [file] = &kept()[..] else {
        panic!("{:?}", kept());
    };
    assert_eq!(run(&[]), one);
    // Each seed has a boot of its own.
    run(&["--seed", "2"]);
    assert_eq!(kept().len(), 2);
    // A damaged boot is deleted and not used.
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() / 2]).unwrap();
    run(&[]);
    assert!(!file.exists());
}

/// Validates a result against its schema.
fn assert_schema(name: &str, result: &Value) {
    let errors = schema_errors(name, result);
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
#[ignore = "takes a minute: tests/long"]
fn what_precedes_the_programs_marker_need_not_be_modelled() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-fast").limit(TIME_LIMIT);
    let markers = workload("markers").to_string_lossy().into_owned();
    let counts = |options: &[&str]| {
        let options = [&["--json"], options, &BOOT_LIMIT].concat();
        // Threads sleep while they wait: how long they would spin depends on the initial state of caches.
        let openmp = ["env", "OMP_NUM_THREADS=2", "OMP_WAIT_POLICY=passive"];
        let command = [&openmp[..], &[&markers, "1", "4"]].concat();
        json(&in_lab(&case, &options, &command).success().stdout)["counts"].clone()
    };
    let number = |counts: &Value, name: &str| counts[name].as_f64().expect("a number");
    let (whole, fast) = (counts(&[]), counts(&["--fast"]));
    let of_program =
        |counts: &Value| number(counts, "instructions") - number(counts, "kernel_instructions");
    let (of_whole, of_fast) = (of_program(&whole), of_program(&fast));
    // Only the program's instructions: the kernel's depend on whether it clears small or huge pages.
    let off = of_fast / of_whole - 1.0;
    assert!(off.abs() < 0.002, "{of_whole} whole, {of_fast} fast");
    // Before the marker, --fast counts only the time of instructions, so the program begins earlier.
    assert!(number(&fast, "began_s") < number(&whole, "began_s"));
    let warm = counts(&["--fast", "--warm-up", "500000"]);
    let fewer = number(&fast, "instructions") - number(&warm, "instructions");
    assert!((450_000.0..=550_000.0).contains(&fewer), "{fewer}");

    let finished = in_lab(&case, &["--fast"], &["true"]);
    assert_eq!(finished.code, Some(1), "{finished}");
    let told = "the command did not reach nearpage_begin, where --fast begins to model";
    assert!(finished.stderr.contains(told), "{finished}");
}

/// Loads and stores of an object in the middle of a block of instructions and right before a jump. `benches/lab
/// samples` covers all shapes of code.
#[test]
#[ignore = "takes a minute: tests/long"]
fn samples_inside_name_the_access_that_stalled() {
    if !is_built() {
        return;
    }
    let case = Case::new("lab-samples").limit(TIME_LIMIT);
    let recording = case.path("recording");
    for shape in ["jump", "vector"] {
        let program = workload("truth");
        let nearpage = nearpage_path();
        let words = [
            nearpage.as_os_str(),
            "record".as_ref(),
            "-q".as_ref(),
            "--force".as_ref(),
            "--rate=4999".as_ref(),
            "-o".as_ref(),
            recording.as_os_str(),
            "--".as_ref(),
            program.as_os_str(),
            shape.as_ref(),
            "8".as_ref(),
            "1".as_ref(),
        ];
        let words: Vec<String> = words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        in_lab(&case, &BOOT_LIMIT, &words).success();
        let report = case.nearpage(["report", "recording", "--json"]).success();
        let report = json(&report.stdout);
        let objects = report["objects"].as_array().expect("objects").iter();
        let share: f64 = objects
            .filter(|object| {
                object["name"]
                    .as_str()
                    .is_some_and(|name| name.contains(shape))
            })
            .map(|object| object["cost_share"].as_f64().expect("a share"))
            .sum();
        assert!(share >= 0.93, "{shape}: {share}: {report:#}");
    }
}

const MATRIX: &str = r#"
seeds = [1, 2]
memory_mib = 128
[[command]]
name = "say"
command = ["sh", "-c", "echo took 1.0 s"]
seconds_after = "took"
[[machine]]
name = "four nodes"
machine = "carrefour-a"
cpus = 4
[[setting]]
name = "first touch"
before = "echo 0 >/proc/sys/kernel/numa_balancing"
[[setting]]
name = "moved"
prefix = ["false", "{command}"]
"#;

#[test]
#[ignore = "takes a minute: tests/long"]
fn a_matrix_goes_on_where_it_was_left() {
    let case = Case::new("lab-matrix").limit(TIME_LIMIT);
    let file = case.path("matrix.toml");
    fs::write(&file, MATRIX).unwrap();
    let matrix = |options: &[&str]| {
        let _turn = turn();
        let mut lab = case.command(nearpage_path());
        lab.args(["lab", "matrix"]).arg(&file).args(options);
        case.run(lab)
    };
    let finished = matrix(&["--no-run"]).success();
    assert!(
        finished
            .stdout
            .contains("- say, four nodes, moved, seed 2\n"),
        "{finished}"
    );
    fs::write(&file, MATRIX.replace("cpus = 4", "cpu = 4")).unwrap();
    let finished = matrix(&[]);
    assert_eq!(finished.code, Some(2), "{finished}");
    assert!(
        finished.stderr.contains("unknown field `cpu`"),
        "{finished}"
    );
    fs::write(&file, MATRIX).unwrap();
    if !is_built() {
        return;
    }
    // The limit leaves time for the first run only.
    let finished = matrix(&["--json", "--stop-after", "0.000001"]).success();
    let result = json(&finished.stdout);
    assert_schema("lab-matrix", &result);
    assert_eq!(result["rows"][0]["seconds"], 1.0, "{finished}");
    assert!(
        result["rows"][0]["runs"][0]["guest_s"].as_f64() > Some(0.0),
        "{finished}"
    );
    assert_eq!(
        result["not_run"].as_array().map(Vec::len),
        Some(3),
        "{finished}"
    );
    // The first run's result is kept, so the next run is executed, which fails.
    let finished = matrix(&["--stop-after", "0.000001"]).success();
    assert!(
        finished
            .stdout
            .contains("- say, four nodes, moved, seed 1: exit status 1\n"),
        "{finished}"
    );
    assert!(!finished.stderr.contains("first touch"), "{finished}");
    let csv = matrix(&["--no-run", "--csv"]).success();
    assert_eq!(csv.stdout.lines().count(), 2, "{csv}");
}

#[test]
#[ignore = "takes a minute: tests/long"]
fn a_shell_runs_what_is_typed() {
    if !is_built() {
        return;
    }
    let _turn = turn();
    let mut child = Command::new(nearpage_path())
        .args([
            "lab",
            "--machine",
            MACHINE,
            "--cpus",
            "4",
            "--memory",
            "128M",
            "--shell",
        ])
        .args(BOOT_LIMIT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut typed = child.stdin.take().expect("piped");
    let mut shown = Vec::new();
    let mut bytes = [0; 256];
    let mut output = child.stdout.take().expect("piped");
    // The prompt of root's shell ends in `# `, which nothing before it does.
    while !shown.ends_with(b"# ") {
        let count = output.read(&mut bytes).unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&bytes[..count]);
    }
    typed
        .write_all(b"echo $((6 * 7)) CPUs $(nproc); exit 3\n")
        .unwrap();
    output.read_to_end(&mut shown).unwrap();
    let shown = String::from_utf8_lossy(&shown);
    assert!(shown.contains("42 CPUs 4"), "{shown}");
    assert_eq!(child.wait().unwrap().code(), Some(3), "{shown}");
}
