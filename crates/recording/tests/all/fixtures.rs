//! Recordings of earlier format versions stay readable.
//!
//! After a change of format, keep the old folders, raise the number here, and make new ones with
//! `cargo test -p nearpage-recording --test all regenerate -- --ignored`.

use std::fs;
use std::path::{Path, PathBuf};

use super::making::{Block, access, exit, fork, map, metadata, name, record, segment};
use nearpage_recording::{LogWriter, ObjectKind, Recording};
use nearpage_wire::allocation_log::Kind;

const VERSION: u32 = 1;

fn fixture(kind: &str, version: u32) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/version-{version}-{kind}"))
}

/// A program of two threads that allocates, marks its stable phase, and reads what it allocated.
fn write(folder: &Path) -> LogWriter {
    let events = [
        fork(1, 100, 100, 0, 1),
        name(2, 100, 0, "program", true),
        map(3, 100, 0x10_0000, 0x1000, 5, "/nonexistent/program"),
        map(3, 100, 0x20_0000, 0x1000, 5, "/nonexistent/libgomp.so.1"),
        map(3, 100, 0xa0_0000, 0x10_0000, 3, "[heap]"),
        fork(9, 100, 101, 1, 100),
        exit(90, 1),
    ];
    let accesses: Vec<_> = (0..100)
        .map(|n| access(30 + n / 2, (n % 2) as u32, 0xa0_1000 + 64 * n))
        .collect();
    let log = record(folder, &events, &accesses);
    let main = Block::of(100)
        .thread(4, 0, 0)
        .record(Kind::CallSite, 1, &[0x10_0100, 0x10_0200])
        .allocate(20, 0xa0_1000, 0x2000, 1)
        .record(Kind::Mark, 1, &[25])
        .record(Kind::Mark, 2, &[80])
        .free(95, 0xa0_1000);
    segment(
        &log.allocation_log_folder(),
        100,
        4,
        &[
            main.bytes(),
            Block::of(101).thread(10, 0x20_0080, 1).bytes(),
        ],
    );
    log
}

#[test]
#[ignore = "rewrites the fixtures of this version"]
fn regenerate() {
    for kind in ["tables", "log"] {
        let folder = fixture(kind, VERSION);
        let _ = fs::remove_dir_all(&folder);
        let log = write(&folder);
        if kind == "tables" {
            log.finish(Some(0), 100).unwrap();
        }
    }
}

#[test]
fn every_version_is_read() {
    for version in 1..=VERSION {
        for kind in ["tables", "log"] {
            let folder = fixture(kind, version);
            let recording = Recording::open(&folder).unwrap();
            assert_eq!(
                recording.is_complete(),
                kind == "tables",
                "{}",
                folder.display()
            );
            assert_eq!(recording.metadata.command, metadata().command);
            assert_eq!(recording.access_count(), 100);
            let batch = recording.accesses().next().unwrap().unwrap();
            assert_eq!(batch.get(7), access(33, 1, 0xa0_1000 + 64 * 7));
            let teams: Vec<_> = recording
                .tables
                .threads
                .iter()
                .map(|thread| (&*thread.team, thread.team_index))
                .collect();
            assert_eq!(teams, [("openmp", 0), ("openmp", 1)]);
            let heap = recording
                .tables
                .objects
                .iter()
                .find(|object| object.kind == ObjectKind::Heap)
                .unwrap();
            assert_eq!(
                (heap.address, heap.size_bytes, heap.born_ns, heap.died_ns),
                (0xa0_1000, 0x2000, 20, 95)
            );
            assert_eq!(recording.tables.call_sites[0].frames[1].offset, 0x200);
            let marks: Vec<_> = recording
                .metadata
                .marks
                .iter()
                .map(|mark| (mark.time_ns, mark.begin))
                .collect();
            assert_eq!(marks, [(25, true), (80, false)]);
        }
    }
}

/// Recordings of version 0.1 have `skid_bytes` under another name.
#[test]
fn columns_under_their_earlier_names_are_read() {
    let has_column = |folder: &Path, name: &str| {
        let table = fs::read(folder.join("accesses.parquet")).unwrap();
        table
            .windows(name.len())
            .any(|bytes| bytes == name.as_bytes())
    };
    let earlier = fixture("tables", 1);
    assert!(has_column(&earlier, "distance_bytes"));
    let folder = tempfile::tempdir().unwrap();
    let now = folder.path().join("now");
    write(&now).finish(Some(0), 100).unwrap();
    assert!(has_column(&now, "skid_bytes") && !has_column(&now, "distance_bytes"));
    let skids = |folder: &Path| -> Vec<i8> {
        let recording = Recording::open(folder).unwrap();
        let batches = recording.accesses().map(Result::unwrap);
        batches.flat_map(|batch| batch.skid_bytes.clone()).collect()
    };
    assert_eq!(skids(&earlier).len(), 100);
    assert_eq!(skids(&earlier), skids(&now));
}

#[test]
fn full_recordings_are_read() {
    let recording = Recording::open(&fixture("full", VERSION)).unwrap();
    assert_eq!(recording.tables.threads.len(), 2);
    assert_eq!(recording.access_count(), 4443);
    let accesses: usize = recording.accesses().map(|batch| batch.unwrap().len()).sum();
    assert_eq!(accesses, 4443);
    assert!(recording.trace().is_ok());
}
