//! What placing costs: 1 GiB in 64 KiB block-cyclic pieces by `bind`, against plainly touching the
//! same pages once. To hold: at most 1.3 times.
//!
//! On a machine with one node every other piece is planned for a node that does not exist: all
//! mappings split as they would, with half of the policy calls. So the same pieces with a call each
//! (MPOL_PREFERRED and MPOL_INTERLEAVE in turn), made by the program itself, are measured beside it.

#[path = "../tests/place_programs/plan_file.rs"]
mod plan_file;

use std::path::{Path, PathBuf};
use std::process::Command;

use nearpage_wire::compact_plan::{NONE, Rule, Section, placement, subject};
use plan_file::{RULE, Tables, bytes};

const ROUNDS: usize = 9;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compile(program: &Path) {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/place_programs/block_cyclic.c"
    );
    assert!(
        Command::new("gcc")
            .arg("-O2")
            .arg(source)
            .arg("-o")
            .arg(program)
            .status()
            .expect("gcc")
            .success()
    );
}

/// The preload library, built as it is released.
fn built_library() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "nearpage-preload",
        "--message-format",
        "short",
    ]);
    assert!(
        build
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo")
            .success()
    );
    let executable = std::env::current_exe().unwrap();
    let library = executable
        .ancestors()
        .nth(2)
        .unwrap()
        .join("libnearpage_preload.so");
    assert!(library.exists(), "{}", library.display());
    library
}

/// A plan for one heap object, in blocks of 64 KiB.
fn tables() -> Tables {
    let rule = Rule {
        subject: subject::HEAP,
        placement: placement::BLOCK_CYCLIC,
        block_bytes: 64 << 10,
        nodes: [0, 2],
        size_bounds_bytes: [1 << 29, u64::MAX],
        ..RULE
    };
    let section = Section {
        executable: NONE,
        rank: NONE,
        rules: [0, 1],
        pins: [0, 0],
        phases: [0, 0],
    };
    Tables {
        sections: vec![section],
        rules: vec![rule],
        nodes: vec![0, 900],
        ..Tables::default()
    }
}

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (program, plan, summary) = (
        folder.path().join("program"),
        folder.path().join("plan"),
        folder.path().join("summary"),
    );
    compile(&program);
    let library = built_library();
    std::fs::write(&plan, bytes(&tables().encode())).unwrap();

    let run = |arguments: &[&str], placed: bool| {
        let mut command = Command::new(&program);
        command.args(arguments);
        if placed {
            command
                .env("LD_PRELOAD", &library)
                .env("NEARPAGE_PLAN", &plan)
                .env("NEARPAGE_SUMMARY", &summary);
        }
        let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let [allocated, touched] = output
            .split_whitespace()
            .map(|number| number.parse::<f64>().unwrap())
            .collect::<Vec<_>>()[..]
        else {
            panic!("{output}");
        };
        (allocated, touched)
    };
    run(&[], false);
    let variants: [(&str, &[&str], bool); 3] = [
        ("plain", &[], false),
        ("placed", &[], true),
        ("a call per piece", &["16382"], false),
    ];
    let mut times = [const { Vec::new() }; 3];
    // Rounds of all variants, so that a slow moment of the machine meets each of them.
    for _ in 0..ROUNDS {
        for (times, (_, arguments, placed)) in times.iter_mut().zip(variants) {
            times.push(run(arguments, placed));
        }
    }
    for (times_of, (name, _, _)) in times.iter().zip(variants) {
        let ratio = median(
            times_of
                .iter()
                .zip(&times[0])
                .map(|(own, plain)| (own.0 + own.1) / (plain.0 + plain.1))
                .collect(),
        );
        println!(
            "{name:18} allocate and place {:7.1} ms, touch {:7.1} ms, ratio to plain {ratio:.3}",
            median(times_of.iter().map(|time| time.0).collect()),
            median(times_of.iter().map(|time| time.1).collect()),
        );
    }
    let line = std::fs::read_to_string(&summary).unwrap_or_default();
    println!("{}", line.lines().next().unwrap_or("no summary"));
}
