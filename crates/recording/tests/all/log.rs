//! The recorder's log: accesses and events are read as written, whatever happens to the file in between.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::making::{access, batch, exit, fork, machine, map, metadata, name, record};
use nearpage_machine::CpuId;
use nearpage_recording::log::LogReader;
use nearpage_recording::{
    AccessBatch, Error, Event, Finished, LogWriter, Recording, SampleCounts, Status, ThreadIndex,
};
use proptest::prelude::*;

fn events() -> Vec<Event> {
    vec![
        fork(1, 100, 100, 0, 1),
        name(2, 100, 0, "program", true),
        map(3, 100, 0x40_0000, 0x1000, 5, "/usr/bin/program"),
        fork(4, 100, 101, 1, 100),
        Event::FirstTouch {
            time_ns: 5,
            thread: ThreadIndex(1),
            cpu: CpuId(1),
            address: 0x7000,
        },
        Event::Counts {
            thread: ThreadIndex(0),
            counts: SampleCounts {
                samples: 9,
                accesses: 2,
                ..Default::default()
            },
        },
        Event::Unmap {
            time_ns: 9,
            pid: 100,
            address: 0x7f00_0000_0000,
            length: 4096,
        },
        Event::Lost {
            time_ns: 6,
            records: 3,
        },
        exit(7, 1),
    ]
}

fn all(log: &LogReader) -> AccessBatch {
    let (mut whole, mut chunk) = (AccessBatch::default(), AccessBatch::default());
    for number in 0..log.chunks() {
        log.read_chunk(number, &mut chunk).unwrap();
        whole.append(&chunk);
    }
    whole
}

#[test]
fn a_killed_recorder_leaves_a_folder_that_opens_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let accesses = [
        access(10, 0, 0x1000),
        access(11, 1, 0x2000),
        access(12, 1, 0x3000),
    ];
    drop(record(&folder, &events(), &accesses));

    assert_eq!(
        fs::metadata(&folder).unwrap().permissions().mode() & 0o777,
        0o700
    );
    let recording = Recording::open(&folder).unwrap();
    assert_eq!(recording.metadata.status, Status::Incomplete);
    assert!(!recording.is_complete());
    assert_eq!(recording.access_count(), 3);
    assert_eq!(
        recording.accesses().next().unwrap().unwrap(),
        batch(&accesses)
    );
    assert_eq!(recording.tables.threads.len(), 2);
    assert_eq!(recording.tables.threads[0].counts.samples, 9);
    assert_eq!(recording.tables.threads[1].died_ns, 7);
    assert_eq!(recording.tables.first_touches[0].address, 0x7000);
    assert_eq!(recording.metadata.counts.lost, 3);
    assert!(
        folder.join("log").exists(),
        "an incomplete recording stays a log"
    );
}

#[test]
fn finished_logs_become_tables_with_the_same_contents() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let accesses = [
        access(10, 0, 0x1000),
        access(11, 1, 0x2000),
        access(12, 1, 0x3000),
    ];
    let finished = record(&folder, &events(), &accesses)
        .finish(Some(3), 99)
        .unwrap();
    assert_eq!(finished, Finished::Converted);
    assert!(!folder.join("log").exists());
    let names: Vec<String> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.iter().all(|name| !name.starts_with('.')),
        "leftovers in {names:?}"
    );

    let recording = Recording::open(&folder).unwrap();
    assert!(recording.is_complete());
    assert_eq!(
        (recording.metadata.exit_status, recording.metadata.end_ns),
        (Some(3), 99)
    );
    assert_eq!(
        recording.accesses().next().unwrap().unwrap(),
        batch(&accesses)
    );
    assert_eq!(recording.machine, machine());
    assert_eq!(recording.tables.threads[0].cpus, [(CpuId(0), 1)]);
}

#[test]
fn a_torn_last_block_is_ignored_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let mut writer = record(&folder, &events(), &[access(10, 0, 0x1000)]);
    writer.accesses(&batch(&[access(11, 0, 0x2000)])).unwrap();
    drop(writer);
    let file = folder.join("log/recorder.log");
    let length = fs::metadata(&file).unwrap().len();
    for cut in 1..60 {
        fs::OpenOptions::new()
            .write(true)
            .open(&file)
            .unwrap()
            .set_len(length - cut)
            .unwrap();
        let recording = Recording::open(&folder).unwrap();
        assert_eq!(recording.access_count(), 1, "cut by {cut}");
        assert!(
            recording
                .metadata
                .notes
                .iter()
                .any(|note| note.contains("had no more room") && note.contains("torn"))
        );
    }
}

#[test]
fn damaged_blocks_are_skipped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let mut writer = record(&folder, &events(), &[access(10, 0, 0x1000)]);
    let file = folder.join("log/recorder.log");
    let middle = fs::metadata(&file).unwrap().len() as usize;
    writer.accesses(&batch(&[access(11, 0, 0x2000)])).unwrap();
    writer.accesses(&batch(&[access(12, 0, 0x3000)])).unwrap();
    drop(writer);
    let sound = fs::read(&file).unwrap();
    // A byte of the frame's header, of the length, and of the payload.
    for at in [middle, middle + 9, middle + 30] {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x55;
        fs::write(&file, damaged).unwrap();
        let recording = Recording::open(&folder).unwrap();
        let times: Vec<u64> = recording
            .accesses()
            .flat_map(|batch| batch.unwrap().time_ns)
            .collect();
        assert_eq!(times, [10, 12], "damage at {at}");
        assert_eq!(recording.metadata.damaged_blocks, 1);
    }
}

#[test]
fn counts_beyond_counting_stay_at_the_end_of_the_scale() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let lost = |time_ns| Event::Lost {
        time_ns,
        records: u64::MAX,
    };
    let counts = |thread| Event::Counts {
        thread: ThreadIndex(thread),
        counts: SampleCounts {
            samples: u64::MAX,
            ..SampleCounts::default()
        },
    };
    let events = [&events()[..], &[lost(1), lost(2), counts(0), counts(1)]].concat();
    drop(record(&folder, &events, &[access(10, 0, 0x1000)]));
    let metadata = Recording::open(&folder).unwrap().metadata;
    assert_eq!(
        (metadata.counts.samples, metadata.counts.lost),
        (u64::MAX, u64::MAX)
    );
}

#[test]
fn an_earlier_recording_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    drop(record(&folder, &[], &[]));
    let error = LogWriter::create(&folder, metadata(), &machine()).unwrap_err();
    assert!(
        matches!(&error, Error::FolderInUse(at) if *at == folder),
        "{error}"
    );
    assert!(Recording::open(&folder).is_ok());
}

#[test]
fn folders_that_are_no_recording_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Recording::open(&folder.path().join("nothing")).unwrap_err();
    assert!(error.to_string().contains("nothing"), "{error}");
    assert!(error.to_string().contains("recording.json"), "{error}");

    let recording = folder.path().join("recording");
    drop(record(&recording, &[], &[]));
    fs::write(recording.join("recording.json"), "{\"version\": 7}").unwrap();
    let error = Recording::open(&recording).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Version {
                found: 7,
                expected: 1,
                ..
            }
        ),
        "{error}"
    );
    fs::write(recording.join("recording.json"), "{").unwrap();
    assert!(matches!(
        Recording::open(&recording).unwrap_err(),
        Error::Damaged { .. }
    ));
}

#[test]
fn redaction_leaves_no_path_and_no_argument_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    for finish in [false, true] {
        let folder = folder.path().join(format!("recording-{finish}"));
        let redacted = nearpage_recording::Metadata {
            redacted: true,
            ..metadata()
        };
        let mut log = LogWriter::create(&folder, redacted, &machine()).unwrap();
        log.events(&events()).unwrap();
        log.events(&[map(
            8,
            100,
            0x50_0000,
            0x1000,
            5,
            "/home/somebody/secret-folder/lib.so",
        )])
        .unwrap();
        log.accesses(&batch(&[access(10, 0, 0x1000)])).unwrap();
        if finish {
            assert_eq!(log.finish(Some(0), 99).unwrap(), Finished::Converted);
        } else {
            drop(log);
        }
        let mut files: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        files.extend(
            fs::read_dir(folder.join("log"))
                .into_iter()
                .flatten()
                .map(|entry| entry.unwrap().path()),
        );
        for file in files.iter().filter(|file| file.is_file()) {
            let bytes = fs::read(file).unwrap();
            for secret in ["secret", "somebody", "/usr/bin"] {
                let found = bytes
                    .windows(secret.len())
                    .any(|window| window == secret.as_bytes());
                assert!(!found, "{secret} in {}", file.display());
            }
        }
        let recording = Recording::open(&folder).unwrap();
        assert!(
            recording
                .tables
                .modules
                .iter()
                .any(|module| module.path == "lib.so")
        );
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let text = "[ -~]{0,20}";
    prop_oneof![
        (any::<[u64; 4]>(), any::<[u32; 2]>(), text, "[0-9a-f]{0,40}").prop_map(
            |(wide, narrow, path, build_id)| {
                let ([time_ns, address, length, file_offset], [pid, protection]) = (wide, narrow);
                Event::Map {
                    time_ns,
                    pid,
                    address,
                    length,
                    file_offset,
                    protection,
                    shared: None,
                    path,
                    build_id,
                }
            }
        ),
        (any::<u64>(), any::<u32>(), 0..9_u32, text, any::<bool>()).prop_map(
            |(time_ns, pid, thread, name, exec)| {
                Event::Name {
                    time_ns,
                    pid,
                    thread: ThreadIndex(thread),
                    name,
                    exec,
                }
            }
        ),
        (any::<u64>(), any::<[u32; 3]>(), 0..9_u32).prop_map(
            |(time_ns, [pid, tid, parent_pid], thread)| fork(time_ns, pid, tid, thread, parent_pid)
        ),
        (any::<u64>(), any::<u32>()).prop_map(|(time_ns, thread)| exit(time_ns, thread)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn events_and_accesses_come_back(
        events in proptest::collection::vec(any_event(), 0..20),
        accesses in proptest::collection::vec((any::<u64>(), 0..9_u32, any::<u64>()), 0..50),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("recording");
        let accesses: Vec<_> = accesses.into_iter().map(|(time, thread, address)| access(time, thread, address)).collect();
        drop(record(&folder, &events, &accesses));
        let log = LogReader::open(&folder).unwrap();
        prop_assert_eq!(&log.events, &events);
        prop_assert_eq!(all(&log), batch(&accesses));
        prop_assert!(!log.torn);
        prop_assert!(Recording::open(&folder).is_ok(), "events that make no sense are no reason to fail");
    }

    #[test]
    fn no_damage_to_the_log_makes_reading_it_panic(cut in any::<prop::sample::Index>(), flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6)) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("recording");
        drop(record(&folder, &events(), &[access(10, 0, 0x1000), access(11, 1, 0x2000)]));
        let file = folder.join("log/recorder.log");
        let mut bytes = fs::read(&file).unwrap();
        for (at, mask) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= mask;
        }
        bytes.truncate(cut.index(bytes.len() + 1).max(1));
        fs::write(&file, bytes).unwrap();
        let _ = Recording::open(&folder);
    }
}
