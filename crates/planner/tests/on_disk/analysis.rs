//! Notes of analyses for readers of recordings.

use std::path::Path;
use std::sync::Mutex;

use nearpage_attribution::Operations;
use nearpage_planner::Analysis;
use nearpage_recording::Mark;
use tempfile::TempDir;

use crate::making::trace::{self, TraceFile, load, start};
use crate::making::{HEAP, PID, Samples};

fn notes(folder: &Path) -> Vec<String> {
    let analysis = Analysis::of(folder, Operations::Both).unwrap();
    let beginning = format!("{}: ", folder.display());
    let notes = analysis.notes.into_iter();
    let without_folder = |note: String| note.strip_prefix(&beginning).map(str::to_owned);
    notes.map(|note| without_folder(note).unwrap()).collect()
}

#[test]
fn whole_recording_has_no_notes_and_is_attributed() {
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("r");
    Samples::of("opteron-4", &[0, 1]).write(&folder);
    assert_eq!(notes(&folder), [""; 0]);
    let analysis = Analysis::of(&folder, Operations::Both).unwrap();
    assert_eq!(analysis.attribution.page_bytes, 4096);
    let [grid] = analysis.attribution.objects.as_slice() else {
        panic!("{:?}", analysis.attribution.objects)
    };
    assert_eq!(grid.loads.count, 2_000.0);
    let stores = Analysis::of(&folder, Operations::Stores).unwrap();
    let counted = stores.attribution.objects.iter();
    assert_eq!(counted.map(|group| group.loads.count).sum::<f64>(), 0.0);
}

#[test]
fn incomplete_recording_says_so() {
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("r");
    Samples::of("opteron-4", &[0, 1]).write_unfinished(&folder);
    let notes = notes(&folder);
    let [note] = notes.as_slice() else {
        panic!("{notes:?}")
    };
    assert!(note.starts_with("the recording is incomplete ("), "{note}");
}

#[test]
fn damaged_blocks_are_counted() {
    let scratch = TempDir::new().unwrap();
    let write = |name: &str, damaged_blocks| {
        let folder = scratch.path().join(name);
        let mut samples = Samples::of("opteron-4", &[0, 1]);
        samples.metadata.damaged_blocks = damaged_blocks;
        samples.write(&folder);
        notes(&folder)
    };
    assert_eq!(write("one", 1), ["1 damaged block of its log left out"]);
    assert_eq!(write("two", 2), ["2 damaged blocks of its log left out"]);
    // A trace, too, whose damaged frame is found only when it is read.
    let mut file = TraceFile::of(PID, 1_000);
    file.events(0, 1_000, &[start(0, PID, 0, 0, 0)])
        .records(0, 0, 1_000, &[(1, load(HEAP))]);
    let last = file.bytes.len() - 1;
    file.bytes[last] ^= 1;
    file.end();
    let folder = scratch.path().join("trace");
    let log = trace::record(
        &folder,
        &nearpage_recording::trace::TraceOptions::default(),
        &[file],
    );
    log.finish(Some(0), 9_000).unwrap();
    assert_eq!(notes(&folder), ["1 damaged block of its log left out"]);
}

#[test]
fn marked_phase_is_said_to_count_alone() {
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("r");
    let mut samples = Samples::of("opteron-4", &[0, 1]);
    let mark = |time_ns, begin| Mark {
        time_ns,
        pid: PID,
        begin,
    };
    samples.metadata.marks = vec![mark(1_050_000_000, true), mark(1_060_000_000, false)];
    samples.metadata.damaged_blocks = 1;
    samples.write(&folder);
    assert_eq!(
        notes(&folder),
        [
            "1 damaged block of its log left out",
            "only the stable phase that the program marked counts"
        ]
    );
    let analysis = Analysis::of(&folder, Operations::Both).unwrap();
    let loads = analysis.attribution.objects[0].loads.count;
    assert_eq!(loads, 100.0, "10 ms of one access each 0.1 ms");
}

#[test]
fn folder_without_a_recording_is_refused() {
    let scratch = TempDir::new().unwrap();
    let error = Analysis::of(scratch.path(), Operations::Both)
        .err()
        .unwrap();
    assert!(error.to_string().contains("recording"), "{error}");
}

#[test]
fn reading_tells_how_far_it_is() {
    let scratch = TempDir::new().unwrap();
    let folder = scratch.path().join("r");
    Samples::of("opteron-4", &[0, 1]).write(&folder);
    let parts = Mutex::new(Vec::new());
    let watch = |done, all| parts.lock().unwrap().push((done, all));
    Analysis::watched(&folder, Operations::Both, &watch).unwrap();
    let parts = parts.into_inner().unwrap();
    let all = parts.len() as u64;
    assert!(all > 0);
    assert!(
        (1..=all).all(|done| parts.contains(&(done, all))),
        "{parts:?}"
    );
}
