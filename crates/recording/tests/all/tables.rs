//! The Parquet tables: round trips, and damage that is reported.

use std::fs;
use std::path::Path;

use super::making::{access, batch, machine, metadata};
use nearpage_machine::{CpuId, Machine, NodeId};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, CallSite, CallSiteId, ColumnSelection, Error, FirstTouch,
    Frame, Level, Module, ModuleId, ModuleMapping, Object, ObjectKind, Recording, Resolution,
    SampleCounts, Tables, Thread, ThreadIndex,
};
use proptest::prelude::*;

const TABLES: [&str; 8] = [
    "accesses.parquet",
    "objects.parquet",
    "threads.parquet",
    "thread_cpus.parquet",
    "modules.parquet",
    "mappings.parquet",
    "call_sites.parquet",
    "first_touches.parquet",
];

/// A main thread and a worker.
fn threads() -> Vec<Thread> {
    let thread = Thread {
        pid: 1,
        tid: 1,
        name: "main".into(),
        born_ns: 0,
        died_ns: u64::MAX,
        order: 0,
        start: None,
        start_function: String::new(),
        team_index: 0,
        team: "openmp".into(),
        cpus: vec![(CpuId(0), 7), (CpuId(3), 1)],
        counts: SampleCounts {
            samples: 10,
            accesses: 8,
            compute: 1,
            undecoded: 1,
            kernel: 2,
            lost: 0,
        },
    };
    let worker = Thread {
        order: 1,
        start: Some((ModuleId(0), 0x99)),
        died_ns: 800,
        cpus: vec![],
        ..thread.clone()
    };
    vec![thread, worker]
}

fn tables() -> Tables {
    let frame = |offset: u64, inlined: bool| Frame {
        module: (offset != 7).then_some(ModuleId(0)),
        offset,
        function: format!("function_{offset}"),
        file: "file.c".into(),
        line: offset as u32,
        inlined,
    };
    let object = Object {
        kind: ObjectKind::Heap,
        name: String::new(),
        pid: 1,
        address: 0xffff_ffff_ff60_0000,
        size_bytes: 4096,
        born_ns: 5,
        died_ns: u64::MAX,
        weight: 2.5,
        call_site: Some(CallSiteId(1)),
        thread: Some(ThreadIndex(0)),
        order: 3,
        module: None,
        module_offset: 0,
        same_memory_as: None,
    };
    let symbol = Object {
        kind: ObjectKind::Static,
        name: "table".into(),
        died_ns: 900,
        call_site: None,
        thread: None,
        module: Some(ModuleId(0)),
        module_offset: 0x4000,
        same_memory_as: None,
        ..object.clone()
    };
    let mapping = ModuleMapping {
        pid: 1,
        address: 0x40_0000,
        size_bytes: 1,
        born_ns: 0,
        died_ns: u64::MAX,
        module: ModuleId(0),
        bias: 0,
    };
    Tables {
        cached_samples: Vec::new(),
        objects: vec![object, symbol],
        threads: threads(),
        modules: vec![Module {
            path: "/usr/bin/program".into(),
            build_id: "abcd".into(),
        }],
        mappings: vec![
            mapping,
            ModuleMapping {
                address: 0x50_0000,
                died_ns: 9,
                bias: u64::MAX,
                ..mapping
            },
        ],
        call_sites: vec![
            CallSite {
                frames: vec![frame(1, true), frame(2, false)],
            },
            CallSite {
                frames: vec![frame(7, false)],
            },
        ],
        first_touches: vec![FirstTouch {
            time_ns: 1,
            thread: ThreadIndex(0),
            cpu: CpuId(1),
            address: 2,
        }],
    }
}

fn write(folder: &Path, accesses: &[Access]) {
    Recording::write(folder, &metadata(), &machine(), &tables(), |writer| {
        writer.accesses(&batch(accesses))
    })
    .unwrap();
}

#[test]
fn all_tables_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    write(&folder, &[access(1, 0, 2)]);
    let recording = Recording::open(&folder).unwrap();
    assert_eq!(recording.tables, tables());
    assert_eq!(recording.metadata, metadata());
}

#[test]
fn a_machine_with_unknown_latencies_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let text = "name = \"memory-only\"\npage_bytes = 4096\nlatency_ns = [[80, 300], [nan, nan]]\n\
        [[node]]\nid = 0\ncpus = [0]\n[[node]]\nid = 1\n";
    let machine = Machine::from_toml(text, "memory-only.toml").unwrap();
    Recording::write(&folder, &metadata(), &machine, &tables(), |writer| {
        writer.accesses(&batch(&[access(1, 0, 2)]))
    })
    .unwrap();
    assert_eq!(Recording::open(&folder).unwrap().machine, machine);
}

#[test]
fn a_machine_that_cannot_be_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    write(&folder, &[access(1, 0, 2)]);
    let file = folder.join("machine.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("latency_ns = [[80, 140], [140]]\n{text}")).unwrap();
    let error = Recording::open(&folder).err().unwrap().to_string();
    assert!(
        error.contains("machine.toml: damaged: `latency_ns` has 2 rows; expected 1"),
        "{error}"
    );
}

#[test]
fn only_selected_columns_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    write(&folder, &[access(1, 0, 2), access(2, 1, 3)]);
    let recording = Recording::open(&folder).unwrap();
    let columns = ColumnSelection {
        address: true,
        ..ColumnSelection::NONE
    };
    let mut read = AccessBatch::default();
    recording.read_chunk(0, columns, &mut read).unwrap();
    assert_eq!(
        (read.len(), &read.address[..], read.time_ns.len()),
        (2, &[2, 3][..], 0)
    );
}

#[test]
fn many_accesses_come_in_chunks_that_threads_read_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let accesses: Vec<Access> = (0..300_000)
        .map(|number| access(number, number as u32 % 2, number * 8))
        .collect();
    Recording::write(&folder, &metadata(), &machine(), &tables(), |writer| {
        accesses
            .chunks(999)
            .try_for_each(|part| writer.accesses(&batch(part)))
    })
    .unwrap();
    let recording = Recording::open(&folder).unwrap();
    assert!(recording.access_chunks() > 1);
    let read = |chunk: usize| {
        let mut batch = AccessBatch::default();
        recording
            .read_chunk(chunk, ColumnSelection::ALL, &mut batch)
            .map(|()| batch)
    };
    let chunks: Vec<AccessBatch> = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..recording.access_chunks())
            .map(|chunk| scope.spawn(move || read(chunk)))
            .collect();
        readers
            .into_iter()
            .map(|reader| reader.join().unwrap().unwrap())
            .collect()
    });
    let mut whole = AccessBatch::default();
    chunks.iter().for_each(|chunk| whole.append(chunk));
    assert_eq!(whole, batch(&accesses));
}

#[test]
fn a_truncated_or_missing_table_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for table in TABLES {
        let folder = folder.path().join(table);
        write(&folder, &[access(1, 0, 2)]);
        let file = folder.join(table);
        let bytes = fs::read(&file).unwrap();
        for length in [0, 3, bytes.len() / 2, bytes.len() - 1] {
            fs::write(&file, &bytes[..length]).unwrap();
            let error = Recording::open(&folder).unwrap_err();
            assert!(matches!(error, Error::Damaged { .. }), "{error}");
            assert!(error.to_string().contains(table), "{error}");
        }
        fs::remove_file(&file).unwrap();
        let error = Recording::open(&folder).unwrap_err().to_string();
        assert!(error.contains(table), "{error}");
    }
}

/// Another user's recording cannot be read. As the test may run as root, a name that is too long stands for it.
#[test]
fn a_recording_that_may_not_be_read_is_not_called_missing() {
    let folder = tempfile::tempdir().unwrap();
    let error = Recording::open(&folder.path().join("missing")).unwrap_err();
    assert!(matches!(error, Error::NotARecording { .. }), "{error}");
    let error = Recording::open(&folder.path().join("x".repeat(300))).unwrap_err();
    assert!(
        error.to_string().contains("recording.json: cannot read"),
        "{error}"
    );
}

#[test]
fn a_table_without_a_checksum_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    write(&folder, &[access(1, 0, 2)]);
    let text = fs::read_to_string(folder.join("recording.json")).unwrap();
    let renamed = text.replace("objects.parquet", "object.parquet");
    fs::write(folder.join("recording.json"), renamed).unwrap();
    let error = Recording::open(&folder).unwrap_err().to_string();
    assert!(
        error.contains("recording.json") && error.contains("objects.parquet"),
        "{error}"
    );
}

#[test]
fn a_later_format_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    write(&folder, &[]);
    let text = fs::read_to_string(folder.join("recording.json")).unwrap();
    fs::write(
        folder.join("recording.json"),
        text.replace("\"version\": 1", "\"version\": 2"),
    )
    .unwrap();
    let error = Recording::open(&folder).unwrap_err();
    assert!(matches!(error, Error::Version { found: 2, .. }), "{error}");
}

fn any_access() -> impl Strategy<Value = Access> {
    let wide = any::<[u64; 3]>();
    let codes = (0..3_u8, 0..8_u8, 0..2_u8, any::<i8>());
    (
        wide,
        any::<[u32; 2]>(),
        codes,
        any::<[u16; 2]>(),
        proptest::option::of(0..u16::MAX),
    )
        .prop_map(
            |(
                [time_ns, address, instruction],
                [thread, cpu],
                (kind, level, resolution, skid_bytes),
                figures,
                node,
            )| Access {
                time_ns,
                // One of the two threads of the table.
                thread: ThreadIndex(thread % 2),
                cpu: CpuId(cpu),
                address,
                instruction,
                kind: AccessKind::from_number(kind).unwrap(),
                level: Level::from_number(level).unwrap(),
                resolution: Resolution::from_number(resolution).unwrap(),
                skid_bytes,
                weight: f32::from(figures[0]),
                cost_ns: f32::from(figures[1]) / 7.0,
                page_node: node.map(NodeId),
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn accesses_come_back(accesses in proptest::collection::vec(any_access(), 0..200)) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("recording");
        write(&folder, &accesses);
        let mut columns = AccessBatch::default();
        columns.extend(&accesses);
        proptest::prop_assert_eq!(&columns, &batch(&accesses));
        let recording = Recording::open(&folder).unwrap();
        let mut whole = AccessBatch::default();
        for batch in recording.accesses() {
            whole.append(&batch.unwrap());
        }
        prop_assert_eq!(whole, batch(&accesses));
    }

    #[test]
    fn all_damage_to_a_table_is_found_before_it_is_decoded(
        table in 0..TABLES.len(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("recording");
        write(&folder, &[access(1, 0, 2), access(2, 1, 3), access(3, 1, 4)]);
        let file = folder.join(TABLES[table]);
        let sound = fs::read(&file).unwrap();
        let mut bytes = sound.clone();
        for (at, mask) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= mask;
        }
        prop_assume!(bytes != sound);
        fs::write(&file, bytes).unwrap();
        let read = Recording::open(&folder)
            .and_then(|recording| recording.accesses().try_for_each(|batch| batch.map(drop)));
        let Err(Error::Damaged { file: named, cause }) = read else {
            return Err(TestCaseError::fail(format!("{read:?}")));
        };
        prop_assert_eq!(named, file);
        prop_assert!(cause.contains("checksum"), "{}", cause);
    }
}
