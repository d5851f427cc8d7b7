#![no_main]
//! A recording with false content: the input changes decoded tables, logs and traces, and checksums are computed anew.
//! All readers of recordings must accept or refuse it.

use std::fs;
use std::path::{Path, PathBuf};

use libfuzzer_sys::fuzz_target;
use nearpage_attribution::Operations;
use nearpage_fuzz::Scratch;
use nearpage_planner::replay::trace::Replayed;
use nearpage_planner::{Analysis, Parameters, Planner, Policy};
use nearpage_recording::Recording;
use nearpage_recording::fuzz::{Choices, Drawn, mutate};
use nearpage_report::{Content, GroupBy, ProfileFormat, TextOptions, json, text, write_profile};
use nearpage_simulator::{Job, SimulatedPolicy, simulate};
use nearpage_view::{Question, Session};

const FIXTURES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/recording/tests/fixtures"
);
const SOUND: [&str; 3] = ["version-1-full", "version-1-log", "version-1-tables"];
const FORMATS: [ProfileFormat; 5] = [
    ProfileFormat::PerfScript,
    ProfileFormat::Csv,
    ProfileFormat::Firefox,
    ProfileFormat::Pprof,
    ProfileFormat::Perfetto,
];

thread_local!(static SCRATCH: Scratch = Scratch::default());

/// Copies a folder of files and folders.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("folder");
    for entry in fs::read_dir(from).expect("folder") {
        let entry = entry.expect("entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => drop(fs::copy(from, to).expect("file")),
        }
    }
}

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        let (mutated, exported) = (
            scratch.folder().join("mutated"),
            scratch.folder().join("exported"),
        );
        for folder in [&mutated, &exported] {
            let _ = fs::remove_dir_all(folder);
        }
        let mut choices = Drawn(data);
        let sound = SOUND[choices.position(SOUND.len())];
        let format = FORMATS[choices.position(FORMATS.len())];
        copy(&Path::new(FIXTURES).join(sound), &mutated);
        mutate(&mutated, &mut choices).expect("a sound recording can be read");
        look(&mutated, &exported, format);
    });
});

/// Does the work of the commands that read recordings.
fn look(folder: &Path, exported: &PathBuf, format: ProfileFormat) {
    let Ok(analysis) = Analysis::of(folder, Operations::Both) else {
        return;
    };
    let statistics = analysis.recording.trace_statistics().ok();
    let content = Content {
        trace: statistics.as_ref(),
        ..Content::new(&analysis.attribution, &analysis.recording)
    };
    let mut symbols = analysis.recording.symbols();
    json(&content, usize::MAX, GroupBy::Object, &mut symbols);
    text(&content, &TextOptions::default(), &mut symbols);
    let machine = nearpage_machine::preset("flash-8").expect("preset");
    let planner = Planner::of(&analysis, &machine, None);
    // `auto` is left to `page` below.
    let _ = planner.decide(&[Policy::Uniform], &Parameters::default());
    simulated(&analysis.recording, &machine);
    let recording = &analysis.recording;
    let accesses = |writer: &mut nearpage_recording::TablesWriter| {
        recording
            .accesses()
            .try_for_each(|batch| writer.accesses(&batch?))
    };
    let _ = Recording::write(
        exported,
        &recording.metadata,
        &recording.machine,
        &recording.tables,
        accesses,
    );
    let _ = write_profile(recording, format, 10_000, &mut std::io::sink());
    page(folder);
}

fn simulated(recording: &Recording, machine: &nearpage_machine::Machine) {
    let Ok(trace) = recording.trace() else {
        return;
    };
    let trace = Replayed::new(recording, trace);
    let jobs = [
        Job::new(SimulatedPolicy::BlockNaive),
        Job::new(SimulatedPolicy::PostFacto),
    ];
    let _ = simulate(&trace, machine, &jobs, 1);
}

/// Asks the page's questions.
fn page(folder: &Path) {
    let Ok(session) = Session::new(&[folder]) else {
        return;
    };
    session.read_all();
    for path in ["progress", "report", "threads", "plan"] {
        session.answer(&Question::parse(&format!("{path}?recording=0")));
    }
    session.answer(&Question::parse("open"));
    let whole = "place_from=0&place_to=100000000&from_ns=0&to_ns=1000000000&columns=100&rows=60";
    for by in ["thread", "function", "kind", "locality", "latency"] {
        for path in ["picture", "histogram"] {
            session.answer(&Question::parse(&format!(
                "{path}?recording=0&by={by}&{whole}"
            )));
        }
    }
    session.answer(&Question::parse(
        "matrix?recording=0&object=0&from=0&to=4000000000&bins=64",
    ));
}
