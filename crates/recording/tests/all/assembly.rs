//! Assembly of objects, threads and teams from events and allocation logs.

mod kernel;

use std::path::Path;

use super::making::{self, Block, access, exit, fork, map, name, record, segment};
use nearpage_perf_abi::FileId;
use nearpage_recording::{
    Access, Attached, Event, LogWriter, Metadata, Object, ObjectKind, Recording,
};
use nearpage_wire::allocation_log::Kind;

const CODE: u32 = 5;
const DATA: u32 = 3;

/// Records, adds segments of the processes, and opens the log.
fn open(events: &[Event], accesses: &[Access], segments: &[(u32, u64, Vec<Block>)]) -> Recording {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let log = record(&folder, events, accesses);
    write_segments(&log.allocation_log_folder(), segments);
    drop(log);
    Recording::open(&folder).unwrap()
}

fn write_segments(folder: &Path, segments: &[(u32, u64, Vec<Block>)]) {
    for (pid, start_ns, blocks) in segments {
        segment(
            folder,
            *pid,
            *start_ns,
            &blocks.iter().map(Block::bytes).collect::<Vec<_>>(),
        );
    }
}

fn of_kind(recording: &Recording, kind: ObjectKind) -> Vec<&Object> {
    recording
        .tables
        .objects
        .iter()
        .filter(|object| object.kind == kind)
        .collect()
}

/// A program with one process, 100, which began at 1 and has a library of start routines at 0x100000.
fn program() -> Vec<Event> {
    vec![
        fork(1, 100, 100, 0, 1),
        name(2, 100, 0, "program", true),
        map(3, 100, 0x10_0000, 0x1000, CODE, "/nonexistent/program"),
        map(3, 100, 0x20_0000, 0x1000, CODE, "/nonexistent/libgomp.so.1"),
    ]
}

#[test]
fn heap_objects_live_from_allocation_to_free_and_addresses_are_used_again() {
    let blocks = vec![
        Block::of(100)
            .thread(10, 0, 0)
            .record(Kind::CallSite, 1, &[0x10_0100, 0x10_0200])
            .allocate(20, 0xa000, 4096, 1)
            .free(30, 0xa000)
            .allocate(40, 0xa000, 8192, 1),
        // The block of another thread, written out of order of time.
        Block::of(101).allocate(35, 0xa000, 100, 1).free(36, 0xa000),
    ];
    let mut events = program();
    events.push(fork(5, 100, 101, 1, 100));
    let recording = open(&events, &[], &[(100, 4, blocks)]);
    let heap = of_kind(&recording, ObjectKind::Heap);
    let lives: Vec<_> = heap
        .iter()
        .map(|object| (object.born_ns, object.died_ns, object.size_bytes))
        .collect();
    assert_eq!(lives, [(20, 30, 4096), (35, 36, 100), (40, u64::MAX, 8192)]);
    let orders: Vec<_> = heap
        .iter()
        .map(|object| (object.thread.unwrap().0, object.order))
        .collect();
    assert_eq!(orders, [(0, 0), (1, 0), (0, 1)]);
    let frames = &recording.tables.call_sites[heap[0].call_site.unwrap().0 as usize].frames;
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| (frame.module.unwrap().0, frame.offset))
        .collect();
    assert_eq!(frames, [(0, 0x100), (0, 0x200)]);
}

#[test]
fn an_allocation_over_a_living_one_ends_it() {
    let blocks = vec![
        Block::of(100)
            .allocate(20, 0xa000, 64, 0)
            .allocate(30, 0xa000, 64, 0),
    ];
    let recording = open(&program(), &[], &[(100, 4, blocks)]);
    let lives: Vec<_> = of_kind(&recording, ObjectKind::Heap)
        .iter()
        .map(|object| object.died_ns)
        .collect();
    assert_eq!(lives, [30, u64::MAX]);
}

#[test]
fn the_main_thread_joins_its_openmp_team_and_helpers_never_shift_it() {
    let mut events = program();
    for (thread, tid) in [(1, 101), (2, 102), (3, 103), (4, 104)] {
        events.push(fork(10 + u64::from(thread), 100, tid, thread, 100));
    }
    let (helper, gomp) = (0x10_0040, 0x20_0080);
    let blocks = vec![
        Block::of(100).thread(4, 0, 0),
        Block::of(101).thread(12, helper, 1),
        Block::of(102).thread(13, gomp, 2),
        Block::of(103).thread(14, helper, 3),
        Block::of(104).thread(15, gomp, 4),
    ];
    let recording = open(&events, &[], &[(100, 4, blocks)]);
    let teams: Vec<_> = recording
        .tables
        .threads
        .iter()
        .map(|thread| (thread.team.as_str(), thread.team_index))
        .collect();
    let helpers = "program+0x40";
    assert_eq!(
        teams,
        [
            ("openmp", 0),
            (helpers, 0),
            ("openmp", 1),
            (helpers, 1),
            ("openmp", 2)
        ]
    );
    assert_eq!(of_kind(&recording, ObjectKind::Stack).len(), 5);
    let tls = of_kind(&recording, ObjectKind::Tls);
    assert_eq!(
        (tls[4].name.as_str(), tls[4].thread.unwrap().0),
        ("thread-local storage of 104", 4)
    );
}

/// Each of two steps creates three threads and waits for them.
#[test]
fn threads_created_in_place_of_others_have_their_numbers() {
    const MS: u64 = 1_000_000;
    let numbers = |events: &[Event], blocks: Vec<Block>| {
        let recording = open(events, &[], &[(100, 4, blocks)]);
        let threads = recording.tables.threads.iter().skip(1);
        threads.map(|thread| thread.team_index).collect::<Vec<_>>()
    };
    let worker = 0x10_0040;
    let steps = |ends_ns: [u64; 3]| {
        let mut events = program();
        for (thread, tid) in [(1, 101), (2, 102), (3, 103)] {
            events.push(fork(10 * MS, 100, tid, thread, 100));
        }
        events.extend(
            (1..)
                .zip(ends_ns)
                .map(|(thread, end_ns)| exit(end_ns, thread)),
        );
        for (thread, tid) in [(4, 104), (5, 105), (6, 106)] {
            events.push(fork(20 * MS, 100, tid, thread, 100));
        }
        events
    };
    let begin = |order: u64, time_ns| Block::of(100 + order as u32).thread(time_ns, worker, order);
    // The library saw the threads end before their creator went on; the kernel reported the ends later.
    let logged = (1..=3)
        .map(|order| begin(order, 11 * MS).thread_ends(19 * MS + order))
        .chain((4..=6).map(|order| begin(order, 21 * MS)));
    assert_eq!(
        numbers(&steps([29 * MS; 3]), logged.collect()),
        [0, 1, 2, 0, 1, 2]
    );
    // The threads were killed, or the program is static: only the kernel reports ends, somewhat late.
    let begun = (1..=3).map(|order| begin(order, 11 * MS));
    let begun = begun.chain((4..=6).map(|order| begin(order, 21 * MS)));
    let late = 20 * MS + MS / 2;
    assert_eq!(
        numbers(&steps([late; 3]), begun.clone().collect()),
        [0, 1, 2, 0, 1, 2]
    );
    // In a process with OpenMP's library, unlogged threads count as OpenMP's, of which the main thread is number 0.
    assert_eq!(numbers(&steps([late; 3]), vec![]), [1, 2, 3, 1, 2, 3]);
    // One thread runs on: the numbers of the other two are given again, and then a new one.
    assert_eq!(
        numbers(&steps([late, 90 * MS, late]), begun.collect()),
        [0, 1, 2, 0, 2, 3]
    );
}

#[test]
fn without_openmp_the_main_thread_is_a_team_of_its_own() {
    let recording = open(&program()[..3], &[], &[]);
    assert_eq!(recording.tables.threads[0].team, "main");
}

#[test]
fn a_thread_without_a_name_of_its_own_has_its_creators() {
    let mut events = program();
    events.extend([
        fork(10, 100, 101, 1, 100),
        name(11, 100, 0, "renamed", false),
        fork(12, 100, 102, 2, 100),
        fork(13, 100, 103, 3, 100),
        name(14, 100, 3, "helper", false),
        fork(15, 200, 200, 4, 100),
        name(16, 100, 0, "again", false),
    ]);
    let recording = open(&events, &[], &[]);
    let names: Vec<_> = recording
        .tables
        .threads
        .iter()
        .map(|thread| &*thread.name)
        .collect();
    assert_eq!(names, ["again", "program", "renamed", "helper", "renamed"]);
}

#[test]
fn a_kernel_thread_id_that_is_used_again_is_another_thread() {
    let mut events = program();
    events.extend([
        fork(10, 100, 101, 1, 100),
        exit(20, 1),
        fork(30, 100, 101, 2, 100),
    ]);
    let blocks = vec![
        Block::of(101)
            .thread(11, 0x10_0010, 1)
            .allocate(12, 0xa000, 64, 0),
        Block::of(101)
            .thread(31, 0x10_0020, 2)
            .allocate(32, 0xb000, 64, 0),
    ];
    let recording = open(&events, &[], &[(100, 4, blocks)]);
    let owners: Vec<_> = of_kind(&recording, ObjectKind::Heap)
        .iter()
        .map(|object| object.thread.unwrap().0)
        .collect();
    assert_eq!(owners, [1, 2]);
    let starts: Vec<_> = recording
        .tables
        .threads
        .iter()
        .filter_map(|thread| thread.start)
        .map(|start| start.1)
        .collect();
    assert_eq!(starts, [0x10, 0x20]);
    assert_eq!(of_kind(&recording, ObjectKind::Stack)[0].died_ns, 20);
}

/// A thread that ends hands its block on to one that begins.
#[test]
fn a_block_that_is_handed_on_has_the_records_of_two_threads() {
    let mut events = program();
    events.extend([
        fork(10, 100, 101, 1, 100),
        exit(20, 1),
        fork(30, 100, 102, 2, 100),
    ]);
    let block = Block::of(101)
        .thread(11, 0x10_0010, 1)
        .allocate(12, 0xa000, 64, 0)
        .thread_ends(19)
        .record(Kind::Thread, 102, &[31, 0x10_0020, 2, 0, 0, 0, 0, 1])
        .allocate(32, 0xb000, 64, 0);
    let recording = open(&events, &[], &[(100, 4, vec![block])]);
    assert_eq!(recording.metadata.damaged_blocks, 0);
    let owners: Vec<_> = of_kind(&recording, ObjectKind::Heap)
        .iter()
        .map(|object| object.thread.unwrap().0)
        .collect();
    assert_eq!(owners, [1, 2]);
}

#[test]
fn damaged_allocation_blocks_are_counted_and_the_others_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("recording");
    let log = record(&folder, &program(), &[]);
    let mut damaged = Block::of(100).allocate(20, 0xa000, 64, 0).bytes();
    damaged[30] ^= 1;
    let sound = Block::of(100).allocate(21, 0xb000, 64, 0).record(
        Kind::Counters,
        100,
        &[22, 50, 40, 30, 0, 0, 7, 0, 0, 12345],
    );
    segment(
        &log.allocation_log_folder(),
        100,
        4,
        &[damaged, sound.bytes()],
    );
    std::fs::write(
        log.allocation_log_folder().join("alloc-9-9-0.log"),
        vec![7; 9000],
    )
    .unwrap();
    drop(log);
    let recording = Recording::open(&folder).unwrap();
    assert_eq!(of_kind(&recording, ObjectKind::Heap).len(), 1);
    let metadata = &recording.metadata;
    assert_eq!(
        (
            metadata.damaged_blocks,
            metadata.allocations,
            metadata.small_unlogged,
            metadata.stacks_omitted
        ),
        (1, 50, 30, 7)
    );
    assert!(
        metadata
            .notes
            .iter()
            .any(|note| note.contains("alloc-9-9-0.log"))
    );
    assert!(
        metadata
            .notes
            .iter()
            .any(|note| note.contains("12.3k allocations of 4096 bytes and more"))
    );
}

#[test]
fn objects_of_another_operator_new_are_said_to_be_unseen() {
    let said = |libraries: &[&str]| {
        let mut events = program();
        for (at, library) in (1..).zip(libraries) {
            events.push(map(4, 100, 0x6000_0000 + (at << 20), 0x1000, CODE, library));
        }
        let notes = open(&events, &[], &[]).metadata.notes;
        notes.iter().any(|note| note.contains("operator new"))
    };
    assert!(said(&[
        "/lib/libstdc++.so.6",
        "/lib/libtcmalloc_minimal.so.4"
    ]));
    assert!(!said(&["/lib/libstdc++.so.6"]));
    assert!(
        !said(&["/lib/libjemalloc.so.2"]),
        "a C program calls malloc"
    );
}

#[test]
fn processes_that_could_not_write_their_log_are_noted() {
    let library = "/usr/lib/libnearpage_preload.so";
    let mut events = program();
    events.push(map(3, 100, 0x30_0000, 0x1000, CODE, library));
    // One process executed a second program after one with a log; the other was never seen to run.
    for (at, pid, thread) in [(20, 101, 1), (30, 102, 2)] {
        events.push(fork(at, pid, pid, thread, 100));
        // Traces report the mappings that the process was forked with.
        events.push(map(at, pid, 0x30_0000, 0x1000, CODE, library));
        events.push(name(at + 1, pid, thread, "first", true));
        events.push(map(at + 2, pid, 0x30_0000, 0x1000, CODE, library));
        events.push(name(at + 5, pid, thread, "second", true));
        events.push(map(at + 6, pid, 0x30_0000, 0x1000, CODE, library));
    }
    let segments = [(100, 4, 0), (101, 23, 0), (102, 33, 0)];
    let segments =
        segments.map(|(pid, at, start)| (pid, at, vec![Block::of(pid).thread(at, start, 0)]));
    let accesses = [access(10, 0, 0x20_0000), access(40, 1, 0x20_0000)];
    let said = |segments: &[(u32, u64, Vec<Block>)]| {
        let notes = open(&events, &accesses, segments).metadata.notes;
        let said = notes
            .into_iter()
            .filter(|note| note.contains("allocation log"));
        said.collect::<Vec<_>>()
    };
    let missing = "no heap objects are known of 1 process (101): ";
    let notes = said(&segments);
    assert_eq!(notes.len(), 1, "{notes:?}");
    let another = notes[0].strip_prefix(missing).expect("what");
    assert!(another.contains("most likely as another user"), "{notes:?}");
    let inside = segments
        .into_iter()
        .chain([(7, 28, vec![Block::of(7).thread(28, 0, 0)])]);
    let notes = said(&inside.collect::<Vec<_>>());
    let namespace = notes[0].strip_prefix(missing).expect("what");
    assert!(namespace.contains("PID namespace"), "{notes:?}");
    // A child of `vfork` has no log until it runs a program.
    let mut events = program();
    events.push(map(3, 100, 0x30_0000, 0x1000, CODE, library));
    events.push(fork(20, 101, 101, 1, 100));
    events.push(map(21, 101, 0x30_0000, 0x1000, CODE, library));
    let own_log = (100, 4, vec![Block::of(100).thread(4, 0, 0)]);
    let notes = open(&events, &accesses, &[own_log]).metadata.notes;
    assert!(
        !notes.iter().any(|note| note.contains("allocation log")),
        "{notes:?}"
    );
}
