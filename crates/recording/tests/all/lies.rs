//! Recordings with false contents under valid checksums. Impossible rows of tables are reported when a recording is
//! opened; impossible records of logs are left out.

use std::path::Path;

use super::making::{access, batch, fork, machine, map, metadata, name, record};
use nearpage_machine::CpuId;
use nearpage_recording::{
    Access, CallSiteId, Error, FirstTouch, ModuleId, ObjectId, Recording, Tables, ThreadIndex,
};

fn fixture(name: &str) -> Recording {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Recording::open(&fixtures.join(name)).unwrap()
}

/// Writes these tables and accesses, opens them, and reads the accesses.
fn read(tables: &Tables, accesses: &[Access]) -> Result<u64, Error> {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let written = Recording::write(&folder, &metadata(), &machine(), tables, |writer| {
        writer.accesses(&batch(accesses))
    });
    written.unwrap();
    let recording = Recording::open(&folder)?;
    let batches = recording.accesses();
    batches.map(|batch| Ok(batch?.len() as u64)).sum()
}

#[track_caller]
fn refused(read: Result<u64, Error>, words: &str) {
    let error = read.expect_err("it lies").to_string();
    assert!(error.contains(words), "{error}");
}

#[test]
fn numbers_out_of_range_name_their_table_and_row() {
    let sound = fixture("version-1-tables").tables;
    assert_eq!(read(&sound, &[access(30, 1, 0)]).unwrap(), 1);
    let lie = |change: &dyn Fn(&mut Tables)| {
        let mut tables = sound.clone();
        change(&mut tables);
        read(&tables, &[])
    };
    let (threads, modules, sites) = (
        sound.threads.len(),
        sound.modules.len(),
        sound.call_sites.len(),
    );
    refused(
        lie(&|tables| tables.objects[1].thread = Some(ThreadIndex(99))),
        &format!("objects.parquet: damaged: row 1: thread 99 where there are {threads};"),
    );
    for (number, words) in [
        (99_999, "object 99999 where there are"),
        // An object of the same process, and not a mapping.
        (0, "object 0 is not the same memory"),
    ] {
        let same = Some(ObjectId(number));
        refused(
            lie(&|tables| tables.objects[1].same_memory_as = same),
            words,
        );
    }
    refused(
        lie(&|tables| tables.objects[0].call_site = Some(CallSiteId(u32::MAX))),
        &format!("objects.parquet: damaged: row 0: call site 4294967295 where there are {sites};"),
    );
    refused(
        lie(&|tables| tables.objects[0].module = Some(ModuleId(70_000))),
        &format!("objects.parquet: damaged: row 0: module 70000 where there are {modules};"),
    );
    refused(
        lie(&|tables| tables.mappings[0].module.0 = 9),
        &format!("mappings.parquet: damaged: row 0: module 9 where there are {modules};"),
    );
    refused(
        lie(&|tables| tables.threads[1].start = Some((ModuleId(9), 0))),
        &format!("threads.parquet: damaged: row 1: module 9 where there are {modules};"),
    );
    refused(
        lie(&|tables| tables.call_sites[0].frames[1].module = Some(ModuleId(9))),
        &format!("call_sites.parquet: damaged: row 1: module 9 where there are {modules};"),
    );
    let touch = FirstTouch {
        time_ns: 1,
        thread: ThreadIndex(2),
        cpu: CpuId(0),
        address: 0,
    };
    refused(
        lie(&|tables| tables.first_touches.push(touch)),
        &format!("thread 2 where there are {threads};"),
    );
}

#[test]
fn accesses_of_no_thread_and_amounts_that_are_none_name_their_row() {
    let sound = fixture("version-1-tables").tables;
    let sums = |change: &dyn Fn(&mut Access)| {
        let mut accesses = [access(30, 0, 0), access(31, 1, 0), access(32, 1, 0)];
        // Equal amounts are read from statistics, which know no NaN.
        (accesses[0].weight, accesses[0].cost_ns) = (2.0, 2000.0);
        change(&mut accesses[2]);
        read(&sound, &accesses)
    };
    refused(
        sums(&|access| access.thread.0 = 2),
        "accesses.parquet: damaged: row 2: thread 2 where there are 2;",
    );
    refused(
        sums(&|access| access.weight = f32::NAN),
        "accesses.parquet: damaged: row 2: weight NaN;",
    );
    refused(
        sums(&|access| access.cost_ns = f32::NEG_INFINITY),
        "accesses.parquet: damaged: row 2: cost_ns -inf;",
    );
    refused(
        sums(&|access| access.weight = -1.0),
        "accesses.parquet: damaged: row 2: weight -1;",
    );
}

#[test]
fn ranges_beyond_the_address_space_are_refused() {
    let sound = fixture("version-1-tables").tables;
    let lie = |address: u64, size_bytes: u64| {
        let mut tables = sound.clone();
        tables.objects[0].address = address;
        tables.objects[0].size_bytes = size_bytes;
        read(&tables, &[])
    };
    refused(lie(4096, u64::MAX), "objects.parquet: damaged: row 0:");
    refused(lie(u64::MAX, 1), "1 bytes at 0xffffffffffffffff end beyond");
    // The page of the kernel's vsyscall, the highest mapping of all.
    assert_eq!(lie(0xffff_ffff_ff60_0000, 4096).unwrap(), 0);
    assert_eq!(lie(0, 1 << 40).unwrap(), 0);
    let mut tables = sound.clone();
    tables.objects[0].weight = f32::NAN;
    tables.objects[1].weight = 2.0;
    refused(read(&tables, &[]), "row 0: weight NaN;");
    let mut tables = sound;
    tables.mappings[0].size_bytes = u64::MAX;
    refused(read(&tables, &[]), "mappings.parquet: damaged: row 0:");
}

#[test]
fn traces_need_all_their_threads() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let (full, other) = (
        fixtures.join("version-1-full"),
        tempfile::tempdir().unwrap(),
    );
    // Tables without the second thread and its rows, beside the trace of both threads.
    let recording = Recording::open(&full).unwrap();
    let mut tables = recording.tables.clone();
    tables.threads.truncate(1);
    tables
        .objects
        .retain(|object| object.thread.is_none_or(|thread| thread.0 == 0));
    tables.first_touches.clear();
    let folder = other.path().join("recording");
    let (metadata, machine) = (&recording.metadata, &recording.machine);
    Recording::write(&folder, metadata, machine, &tables, |_| Ok(())).unwrap();
    let mut written: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("recording.json")).unwrap())
            .unwrap();
    let of_full: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(full.join("recording.json")).unwrap())
            .unwrap();
    for table in ["pages.parquet", "moments.parquet"] {
        std::fs::copy(full.join(table), folder.join(table)).unwrap();
        written["tables"][table] = of_full["tables"][table].clone();
    }
    std::fs::create_dir(folder.join("trace")).unwrap();
    for file in std::fs::read_dir(full.join("trace")).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), folder.join("trace").join(file.file_name())).unwrap();
    }
    std::fs::write(folder.join("recording.json"), written.to_string()).unwrap();
    std::fs::remove_file(folder.join("accesses.parquet")).unwrap();
    let error = Recording::open(&folder).unwrap_err().to_string();
    assert!(
        error.contains("pages.parquet: damaged: row")
            || error.contains("threads.parquet: damaged: it has 1 of the 2 threads"),
        "{error}"
    );
}

#[test]
fn numbers_of_threads_in_a_log_take_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    // Each number is as far beyond the last one as is accepted.
    let forks: Vec<_> = (0..200)
        .map(|n| fork(n, 100, 100 + n as u32, 65_000 * n as u32, 1))
        .collect();
    drop(record(&folder, &forks, &[]));
    let recording = Recording::open(&folder).unwrap();
    let threads = recording.tables.threads.len();
    assert!(threads < 70_000, "{threads}");
}

#[test]
fn rows_of_a_log_that_cannot_be_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let events = [
        fork(1, 100, 100, 0, 1),
        name(2, 100, 0, &"n".repeat(1 << 20), true),
        map(3, 100, 0x10_0000, 0x1000, 5, "/nonexistent/program"),
        nearpage_recording::Event::FirstTouch {
            time_ns: 5,
            thread: ThreadIndex(9),
            cpu: CpuId(0),
            address: 0,
        },
    ];
    let accesses = [access(30, 0, 4), access(31, 7, 4), access(32, u32::MAX, 4)];
    let mut log = record(&folder, &events, &accesses);
    // A damaged frame of its own.
    let nan = Access {
        weight: f32::NAN,
        ..access(33, 0, 4)
    };
    log.accesses(&batch(&[nan])).unwrap();
    drop(log);
    let recording = Recording::open(&folder).unwrap();
    assert_eq!(recording.tables.first_touches, []);
    assert_eq!(recording.tables.threads[0].name.len(), 256);
    assert_eq!(recording.access_count(), 1);
    let batches: Vec<_> = recording.accesses().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|batch| batch.len()).sum::<usize>(), 1);
    assert_eq!(recording.metadata.damaged_blocks, 1);
    let notes = recording.metadata.notes.join("\n");
    assert!(
        notes.contains("left out 2 accesses of threads that they do not name, and 1 row"),
        "{notes}"
    );
}

#[test]
fn forks_of_what_has_many_mappings_take_bounded_memory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let mut events = vec![fork(1, 100, 100, 0, 1)];
    let address = |n: u64| 0x10_0000 + n * 0x2000;
    events.extend((0..10_000).map(|n| map(2, 100, address(n), 0x1000, 5, "/nonexistent/program")));
    events.extend((1..1000).map(|n| fork(3, 100 + n, 100 + n, n, 100)));
    drop(record(&folder, &events, &[]));
    let recording = Recording::open(&folder).unwrap();
    let mappings = recording.tables.mappings.len();
    assert!((1 << 20..3 << 20).contains(&mappings), "{mappings}");
    let notes = recording.metadata.notes.join("\n");
    assert!(
        notes.contains("more processes began than there is memory for"),
        "{notes}"
    );
}
