use std::fs;
use std::time::UNIX_EPOCH;

use nearpage_machine::preset;
use nearpage_recording::{
    Access, Metadata, Object, ObjectKind, Source, Status, Tables, ThreadIndex,
};

use super::*;
use crate::picture::{Frame, Picture};
use crate::point::ColourBy;
use crate::point::tests::{access, thread};

const ROWS: u64 = 1 << 18;
const CHUNKS: u64 = 6;
const ADDRESS: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 1 << 24;

/// Address of an access. Two threads use one half of the object each.
fn address(number: u64) -> u64 {
    let half = number % 2 * (BYTES / 2);
    ADDRESS + half + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (BYTES / 2)
}

fn write(folder: &Path) {
    let thread = |order| thread(order, "main", order);
    let tables = Tables {
        objects: vec![Object {
            kind: ObjectKind::Heap,
            name: String::new(),
            pid: 1,
            address: ADDRESS,
            size_bytes: BYTES,
            born_ns: 0,
            died_ns: u64::MAX,
            weight: 1.0,
            call_site: None,
            thread: None,
            order: 0,
            module: None,
            module_offset: 0,
            same_memory_as: None,
        }],
        threads: vec![thread(0), thread(1)],
        ..Tables::default()
    };
    let metadata = Metadata {
        status: Status::Complete,
        begin_ns: 1,
        end_ns: CHUNKS * ROWS * 1000,
        rate_hz: 1.0,
        ..Metadata::begun(Source::Clock, UNIX_EPOCH, Vec::new())
    };
    let machine = preset("opteron-4").expect("a preset");
    Recording::write(folder, &metadata, &machine, &tables, |writer| {
        (0..CHUNKS).try_for_each(|chunk| {
            let mut batch = AccessBatch::default();
            for number in chunk * ROWS..(chunk + 1) * ROWS {
                batch.push(Access {
                    time_ns: 1 + number * 1000,
                    thread: ThreadIndex((number % 2) as u32),
                    address: address(number),
                    ..access()
                });
            }
            writer.accesses(&batch)
        })
    })
    .expect("a temporary folder");
}

fn open(folder: &Path) -> Opened {
    Opened::sampled(folder, 0, ROWS).expect("a recording")
}

/// Accesses, by thread, to the second half of the object in the second half of the time.
fn quarter(opened: &Opened) -> Vec<f64> {
    let stage = opened.stage();
    let asked = Frame {
        place_from: BYTES / 2,
        place_to: BYTES,
        from_ns: CHUNKS * ROWS * 500,
        to_ns: CHUNKS * ROWS * 1000,
        columns: 10,
        rows: 10,
    };
    let picture =
        Picture::new(opened.sources(&stage), ColourBy::Thread, None, &asked).expect("read");
    picture.totals
}

#[test]
fn a_sample_first_then_all_then_at_once() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("r");
    write(&folder);
    let first = open(&folder);
    let share = first.stage().share;
    assert!((share - 1.0 / CHUNKS as f64).abs() < 1e-4, "{share}");
    let sampled = quarter(&first)[1];
    let all = (CHUNKS * ROWS / 4) as f64;
    assert!(
        (sampled - share * all).abs() <= 0.02 * share * all,
        "{sampled} of {all}: all of the time, both threads"
    );

    first.read_all().expect("room");
    assert_eq!((first.stage().share, first.stage().store_share), (1.0, 1.0));
    assert_eq!(quarter(&first), [0.0, all]);
    assert!(folder.join("view/index.bin").exists());
    assert_eq!(first.stage().missing, Vec::<String>::new());

    let second = open(&folder);
    assert!(second.stage().share < 1.0);
    assert_eq!(
        second.stage().store_share,
        1.0,
        "its pictures are whole at once"
    );
    assert_eq!(quarter(&second), [0.0, all]);

    // Files that are truncated or belong to another recording are replaced.
    let index = fs::read(folder.join("view/index.bin")).expect("an index");
    fs::write(folder.join("view/index.bin"), &index[..index.len() - 1]).expect("written");
    assert!(open(&folder).stage().store_share < 1.0);
    fs::write(folder.join("view/index.bin"), &index).expect("written");
    fs::write(folder.join("view/points.bin"), b"short").expect("written");
    assert!(open(&folder).stage().store_share < 1.0);
}

#[test]
fn points_that_came_with_a_recording_are_not_believed() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("r");
    write(&folder);
    open(&folder).read_all().expect("room");
    assert_eq!(open(&folder).stage().store_share, 1.0);
    let points = folder.join("view/points.bin");
    let bytes = fs::read(&points).expect("points");

    // The file is unpacked from an archive: by this user, byte for byte.
    fs::remove_file(&points).expect("removed");
    fs::write(&points, &bytes).expect("written");
    assert!(open(&folder).stage().store_share < 1.0);

    // A file that was changed in place is not believed. A folder that is a link is not written to.
    open(&folder).read_all().expect("room");
    fs::write(&points, vec![0; bytes.len()]).expect("written");
    assert!(open(&folder).stage().store_share < 1.0);
    let elsewhere = scratch.path().join("elsewhere");
    fs::rename(folder.join("view"), &elsewhere).expect("renamed");
    std::os::unix::fs::symlink(&elsewhere, folder.join("view")).expect("a link");
    let before = fs::read(elsewhere.join("index.bin")).expect("an index");
    open(&folder).read_all().expect("room");
    let after = fs::read(elsewhere.join("index.bin")).expect("the index that was there");
    assert_eq!(before, after);
}

#[test]
fn in_a_folder_that_others_write_to_nothing_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("r");
    write(&folder);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("permissions");
    open(&folder).read_all().expect("room");
    assert!(!folder.join("view").exists());
}

#[test]
fn without_room_beside_the_recording_pictures_go_with_the_process() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("r");
    write(&folder);
    fs::write(folder.join("view"), "in the way").expect("written");
    let opened = open(&folder);
    opened.read_all().expect("room elsewhere");
    assert_eq!(quarter(&opened)[1], (CHUNKS * ROWS / 4) as f64);
    let missing = opened.stage().missing.join(" ");
    assert!(missing.contains("can't be written to"), "{missing}");
}

/// Accesses of a selection by thread, from attribution.
fn selected(opened: &Opened, selection: (u64, u64)) -> Vec<f64> {
    // The first result may be from a sample, and then says so.
    let sampled = opened.stage_of(Some(selection)).expect("found");
    let is_known = sampled.share >= 1.0;
    assert!(opened.read_exactly(selection).expect("read"));
    let stage = opened.stage_of(Some(selection)).expect("read");
    assert_eq!(stage.share, 1.0);
    assert_eq!(Arc::ptr_eq(&sampled, &stage), is_known);
    let threads = stage.attribution.threads.iter();
    threads
        .map(|thread| thread.loads.count + thread.stores.count)
        .collect()
}

#[test]
fn a_selection_of_time_has_what_is_in_its_window() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("r");
    write(&folder);
    let opened = open(&folder);
    opened.read_all().expect("room");
    let whole = Frame {
        place_from: 0,
        place_to: BYTES,
        from_ns: 0,
        to_ns: opened.scale.duration_ns(),
        columns: 1,
        rows: 1,
    };
    // Selections within a chunk, across two chunks, and of a single tick.
    for (from_ns, to_ns) in [(1_000_000, 2_500_500), (200_000_000, 900_000_000), (0, 1)] {
        let frame = Frame {
            from_ns,
            to_ns,
            ..whole
        };
        let stage = opened.stage();
        let value = crate::picture::Value::new(opened.sources(&stage), &frame).expect("read");
        let found = selected(&opened, (from_ns, to_ns));
        assert_eq!(
            found.iter().sum::<f64>(),
            value.accesses,
            "{from_ns} to {to_ns}"
        );
        let expected = (0..CHUNKS * ROWS)
            .filter(|number| (from_ns..to_ns).contains(&(number * 1000)))
            .count();
        assert_eq!(value.samples, expected as u64);
    }
    // A repeated request does not read again, and all of the time is the result of the first reading.
    let [first, again] = [(); 2].map(|()| opened.stage_of(Some((5, 50_000))).expect("read"));
    assert!(Arc::ptr_eq(&first, &again));
    assert!(Arc::ptr_eq(
        &opened.stage_of(None).expect("read"),
        &opened.stage()
    ));
    assert_eq!(first.position(0), Some(0), "the one object is the same");
}
