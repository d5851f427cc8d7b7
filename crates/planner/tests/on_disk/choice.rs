//! The choice between recordings of one program with threads in different places.

use std::path::Path;

use nearpage_attribution::Operations;
use nearpage_machine::{Machine, preset};
use nearpage_plan::ThreadLayout;
use nearpage_planner::recordings::{Choice, MARGIN, PLANNED_RATIO_MAX, choose};
use nearpage_planner::{Analysis, Error, Judged, Parameters};
use nearpage_recording::trace::TraceOptions;
use nearpage_recording::{
    Attached, Mark, Module, ModuleId, ModuleMapping, Object, Recording, Source, ThreadPinning,
};
use tempfile::TempDir;

use crate::making::{Analysed, PID, Samples, attributed, process, shares, shares_on, trace};

fn opteron() -> Machine {
    preset("opteron-4").unwrap()
}

/// Samples of threads that run on one node each.
fn samples() -> Samples {
    Samples::of("opteron-4", &[0, 1, 2, 3])
}

fn written(folder: &Path, samples: &Samples) -> Analysis {
    samples.write(folder);
    Analysis::of(folder, Operations::Both).unwrap()
}

/// The choice between two recordings.
fn chosen_on(machine: &Machine, first: &Samples, second: &Samples) -> Result<Choice, Error> {
    let scratch = TempDir::new().unwrap();
    let analyses = [
        written(&scratch.path().join("first"), first),
        written(&scratch.path().join("second"), second),
    ];
    choose(&analyses, machine, &Parameters::default())
}

/// Asserts that a changed recording is not compared with an unchanged one, in either order, and why.
#[track_caller]
fn assert_refused(change: impl FnOnce(&mut Samples), why: &str) {
    let mut changed = samples();
    change(&mut changed);
    for (first, second) in [(&samples(), &changed), (&changed, &samples())] {
        match chosen_on(&opteron(), first, second) {
            Err(Error::Incomparable(message)) => assert!(message.contains(why), "{message}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it has to be refused: {why}"),
        }
    }
}

#[test]
fn alike_recordings_are_modelled_and_the_first_is_taken() {
    let choice = chosen_on(&opteron(), &samples(), &samples()).unwrap();
    let [first, second] = choice.recordings.as_slice() else {
        panic!("two: {:?}", choice.recordings)
    };
    assert!(first.chosen && !second.chosen);
    assert_eq!(choice.chosen(), first);
    assert_eq!((first.by, second.by), (Judged::Model, Judged::Model));
    assert_eq!(first.planned_ns, second.planned_ns);
    assert!(first.planned_ns < Some(first.first_touch_ns));
    assert_eq!(choice.runtime_scale, Parameters::default().runtime_scale);
}

#[test]
fn one_memory_node_is_refused() {
    let text = "name = \"laptop\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0-3\"\n";
    let laptop = Machine::from_toml(text, "laptop").unwrap();
    let error = chosen_on(&laptop, &samples(), &samples()).err().unwrap();
    assert!(
        error.to_string().starts_with("laptop has one memory node"),
        "{error}"
    );
}

#[test]
fn other_programs_are_refused() {
    assert_refused(
        |samples| {
            samples.tables.modules[0].path = "/nonexistent/other".to_owned();
            for thread in &mut samples.tables.threads {
                thread.name = "other".to_owned();
            }
        },
        "several recordings have to be of one program",
    );
    assert_refused(
        |samples| samples.tables.modules[0].build_id = "cd".repeat(20),
        "of program, built differently: several",
    );
    // A recording of two programs stands for neither.
    assert_refused(
        |samples| {
            let tables = &mut samples.tables;
            for thread in &mut tables.threads[2..] {
                (thread.pid, thread.name) = (PID + 7, "helper".to_owned());
                thread.order -= 2;
            }
            tables.modules.push(Module {
                path: "/nonexistent/helper".to_owned(),
                build_id: "ef".repeat(20),
            });
            tables.mappings.push(ModuleMapping {
                pid: PID + 7,
                module: ModuleId(1),
                ..tables.mappings[0]
            });
            tables.objects.push(Object {
                pid: PID + 7,
                ..tables.objects[0].clone()
            });
        },
        "of 2 programs (",
    );
}

#[test]
fn redacted_arguments_are_taken_to_be_the_same() {
    let command = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let mut elsewhere = samples();
    elsewhere.metadata.command = command(&["/opt/program"]);
    assert!(chosen_on(&opteron(), &samples(), &elsewhere).is_ok());
    let mut redacted = samples();
    redacted.metadata.command = Vec::new();
    assert!(chosen_on(&opteron(), &samples(), &redacted).is_ok());
    assert!(chosen_on(&opteron(), &redacted, &samples()).is_ok());
}

#[test]
fn parts_of_a_run_are_refused() {
    assert_refused(
        |samples| {
            samples.metadata.attached = Some(Attached {
                target: "process 1234".to_owned(),
                coverage: String::new(),
            });
        },
        "not of a whole run of the program",
    );
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("killed");
    samples().write_unfinished(&folder);
    let analyses = [
        written(&scratch.path().join("whole"), &samples()),
        Analysis::of(&folder, Operations::Both).unwrap(),
    ];
    let error = choose(&analyses, &opteron(), &Parameters::default());
    let message = error.err().unwrap().to_string();
    assert!(message.contains("killed: not of a whole run"), "{message}");
}

#[test]
fn recordings_on_other_nodes_are_refused() {
    let machine = preset("amd48").unwrap();
    let error = chosen_on(&machine, &samples(), &samples()).err().unwrap();
    let message = error.to_string();
    assert!(
        message.contains(
            "first: recorded on opteron-4, and where its threads ran there says nothing of amd48"
        ),
        "{message}"
    );
}

#[test]
fn recordings_that_differ_in_what_they_count_are_refused() {
    assert_refused(
        |samples| samples.metadata.source = Source::Clock,
        "differ in the source of their accesses",
    );
    assert_refused(
        |samples| {
            samples.metadata.marks = vec![Mark {
                time_ns: 1_000_000_000,
                pid: PID,
                begin: true,
            }];
        },
        "differ in whether a marked phase alone counts",
    );
    let whole = || shares_on([0, 1, 2, 3], 10).analysed();
    let mut changed = whole();
    changed.analysis.recording.metadata.tracing = None;
    let message = refused([whole(), changed]);
    assert!(
        message.contains("differ in whether every miss was kept"),
        "{message}"
    );
    let mut changed = whole();
    let options = TraceOptions {
        keep_hits: true,
        ..TraceOptions::default()
    };
    let machine = &changed.analysis.recording.machine;
    let tracing = nearpage_recording::trace::Tracing::new(machine, "flash-8", &options);
    changed.analysis.recording.metadata.tracing = Some(tracing.unwrap().0);
    let message = refused([whole(), changed]);
    assert!(message.contains("differ in --keep-hits"), "{message}");
}

/// The choice between two traces.
fn chosen(traces: [Analysed; 2]) -> Result<Choice, Error> {
    let machine = preset("flash-8").unwrap();
    let parts = traces.into_iter().map(Analysed::into_parts);
    let (analyses, _folders): (Vec<Analysis>, Vec<TempDir>) = parts.unzip();
    choose(&analyses, &machine, &Parameters::default())
}

fn refused(traces: [Analysed; 2]) -> String {
    match chosen(traces) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it has to be refused"),
    }
}

#[test]
fn replayed_and_modelled_times_are_not_compared() {
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("cut");
    let (alone, together) = shares(10);
    let mut file = process(PID, 1_000, &alone, &together);
    file.bytes.truncate(file.bytes.len() - 10);
    let log = trace::record(&folder, &TraceOptions::default(), &[file]);
    log.finish(Some(0), 9_000_000).unwrap();
    let mut recording = Recording::open(&folder).unwrap();
    assert!(recording.trace().is_err(), "its end is missing");
    for thread in &mut recording.tables.threads {
        (thread.team, thread.team_index) = ("openmp".to_owned(), thread.order);
    }
    let cut = Analysis {
        attribution: attributed(&recording),
        recording,
        notes: Vec::new(),
    };
    let whole = shares_on([0, 1, 2, 3], 10).analysed();
    let message = refused([whole, Analysed::from_parts(cut, scratch)]);
    assert!(message.contains(" is replayed, that of "), "{message}");
    assert!(
        message.contains("cut modelled: they can't be compared"),
        "{message}"
    );
}

#[test]
fn another_layout_is_taken_where_it_is_quicker_by_the_margin() {
    let of = |each| shares_on([0, 1, 2, 3], each).analysed();
    let planned = |choice: &Choice| -> [f64; 2] {
        let times = choice.recordings.iter().map(|one| one.planned_ns.unwrap());
        times.collect::<Vec<_>>().try_into().unwrap()
    };
    let hardly = chosen([of(209), of(200)]).unwrap();
    let [first, second] = planned(&hardly);
    assert!(second < first && second > first * (1.0 - MARGIN));
    assert!(hardly.recordings[0].chosen && !hardly.recordings[1].chosen);
    let traces = [of(209), of(190)];
    let folder = traces[1].analysis.recording.folder.clone();
    let quicker = chosen(traces).unwrap();
    let [first, second] = planned(&quicker);
    assert!(second < first * (1.0 - MARGIN));
    let taken = quicker.chosen();
    assert_eq!(*taken, quicker.recordings[1]);
    assert_eq!(taken.recording, folder);
    assert_eq!((taken.by, taken.threads), (Judged::Replay, Some("compact")));
    let plan = &taken.planned.as_ref().unwrap().plan;
    assert_eq!(
        plan.threads,
        Some(ThreadLayout::Compact),
        "for `run` to pin them"
    );
    assert_eq!(plan.decisions.len(), 1);
}

#[test]
fn layouts_have_the_name_that_fits_where_threads_ran() {
    let mut scattered = shares_on([0, 1, 2, 3], 20).analysed();
    // With one CPU per node both layouts are the same: the recording says which one was requested.
    scattered.analysis.recording.metadata.thread_placement = ThreadPinning::Scatter;
    let wandered = shares_on([0, 3, 5, 6], 20).analysed();
    let choice = chosen([scattered, wandered]).unwrap();
    let threads: Vec<_> = choice.recordings.iter().map(|one| one.threads).collect();
    assert_eq!(threads, [Some("scatter"), None]);
    let plans = choice
        .recordings
        .iter()
        .map(|one| one.planned.as_ref().unwrap());
    let layouts: Vec<_> = plans.map(|one| one.plan.threads).collect();
    assert_eq!(layouts, [Some(ThreadLayout::Scatter), None]);
}

#[test]
fn much_slower_recordings_are_looked_into_no_further() {
    let of = |each| shares_on([0, 1, 2, 3], each).analysed();
    let choice = chosen([of(200), of(50)]).unwrap();
    let [slow, quick] = choice.recordings.as_slice() else {
        panic!("two")
    };
    assert!(quick.chosen, "in the order in which they were named");
    assert!(slow.planned_ns.is_none() && slow.planned.is_none());
    assert!(slow.first_touch_ns > PLANNED_RATIO_MAX * quick.planned_ns.unwrap());
}
