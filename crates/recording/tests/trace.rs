//! Full recordings: what the tracer wrote comes back as accesses, steps, pages and tables.

mod making;

use std::path::Path;

use making::trace::{TraceFile, load, map, record, reference, start, touch};
use making::{Block, segment};
use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::trace::{
    Happening, Miss, PageIndex, StepBatch, Steps, ThinEvent, Thinning, Trace, TraceOptions,
    TracedMove,
};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, ColumnSelection, Error, Level, ObjectKind, Recording,
    ThreadIndex,
};
use nearpage_wire::allocation_log::Kind;
use nearpage_wire::trace::{
    CHILD_ENDED, COUNTERS, Counter, Event, PIPE_SIGNAL, Record, ReferenceKind, Served,
};
use proptest::prelude::*;

const HEAP: u64 = 0x50_0000;
const PROGRAM: &str = "/nonexistent/program";
/// The kernel's `MAP_PRIVATE` file, code.
const CODE: u32 = 5;

fn finish(log: nearpage_recording::LogWriter) {
    log.finish(Some(0), 9_000).unwrap();
}

fn accesses(recording: &Recording) -> Vec<Access> {
    let mut all = Vec::new();
    for batch in recording.accesses() {
        let batch = batch.unwrap();
        all.extend((0..batch.len()).map(|row| batch.get(row)));
    }
    all
}

fn steps(trace: &Trace, position: usize) -> StepBatch {
    let mut steps = trace.steps(position);
    let (mut batch, mut all) = (StepBatch::default(), StepBatch::default());
    while steps.next(&mut batch).unwrap() {
        let before = all.misses.len();
        all.misses.extend(&batch.misses);
        let happenings = batch.happenings.iter();
        all.happenings
            .extend(happenings.map(|(at, since, what)| (before + at, *since, *what)));
    }
    all
}

/// Two threads: the main thread touches two pages and starts the other, which reads one and writes
/// the other.
fn two_threads() -> TraceFile {
    let mut trace = TraceFile::of(100, 1_000);
    trace
        .events(
            0,
            1_000,
            &[
                start(0, 100, 0, 0, 0),
                map(0, 0x40_0000, 0x2000, CODE, 7, PROGRAM),
            ],
        )
        .records(
            0,
            0,
            1_000,
            &[
                (10, touch(HEAP)),
                (0, reference(HEAP, ReferenceKind::Store, Served::Memory)),
                (5, touch(HEAP + 4096)),
                (
                    0,
                    reference(HEAP + 4100, ReferenceKind::Store, Served::Memory),
                ),
                (
                    5,
                    Record::Signal {
                        sequence: 1,
                        address: 0,
                    },
                ),
                (
                    1,
                    Record::Resume {
                        after: 2,
                        address: 0x99,
                        waited_instructions: 1_000,
                    },
                ),
                (9, reference(HEAP, ReferenceKind::Load, Served::OtherCache)),
                (1, reference(HEAP, ReferenceKind::Store, Served::WriteBack)),
            ],
        )
        .events(20, 1_400, &[start(1, 101, 3, 1, 20)])
        .records(
            1,
            20,
            1_500,
            &[
                (0, load(HEAP + 8)),
                (4, Record::Clock { time_ns: 2_000 }),
                (
                    2,
                    reference(HEAP + 4096, ReferenceKind::Store, Served::Upgrade),
                ),
                (
                    1,
                    Record::Preempted {
                        waited_instructions: 50,
                    },
                ),
                (
                    1,
                    Record::Signal {
                        sequence: 2,
                        address: 0x99,
                    },
                ),
                (1, Record::Move { cpu: 5 }),
                (1, reference(0x40_1040, ReferenceKind::Fetch, Served::L2)),
            ],
        )
        .end();
    trace
}

#[test]
fn statistics_of_two_threads() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    finish(record(&folder, &TraceOptions::default(), &[two_threads()]));
    let found = Recording::open(&folder)
        .unwrap()
        .trace_statistics()
        .unwrap();
    // Page 0: a store, a load by each CPU; page 1: a store, an upgrade. The fetch hit the second
    // level, the write-back is nobody's miss.
    assert_eq!((found.data_misses, found.fetch_misses), (5, 0));
    assert_eq!((found.code_pages, found.data_pages), (0, 2));
    let chains = &found.chains;
    assert_eq!((chains.longest, chains.shares.len()), (1, 1));
    assert_eq!(chains.shares[0].share, 0.4);
    assert_eq!(found.hot_pages.pages, 2);
    assert_eq!(found.hot_pages.by_cache_misses[50], 0.6);
    let mostly = found.read_mostly;
    assert_eq!((mostly.page, mostly.line), (0.0, 0.0));
    assert_eq!((mostly.word, mostly.writes), (0.2, 0.6));
}

/// One thread reads a page over and over, the other writes to it at given times of the process.
fn reader_and_writer(reads: &[u64], writes: &[u64], frame: usize) -> TraceFile {
    let mut trace = TraceFile::of(100, 1_000);
    trace.events(
        0,
        1_000,
        &[
            start(0, 100, 0, 0, 0),
            map(0, 0x40_0000, 0x2000, CODE, 7, PROGRAM),
            start(1, 101, 3, 0, 0),
        ],
    );
    let kinds = [
        (0, reads, ReferenceKind::Load),
        (1, writes, ReferenceKind::Store),
    ];
    for (thread, times, kind) in kinds {
        for times in times.chunks(frame) {
            let mut before = times[0];
            let records: Vec<(u64, Record)> = times
                .iter()
                .map(|at| {
                    let since = at - std::mem::replace(&mut before, *at);
                    (since, reference(HEAP, kind, Served::Memory))
                })
                .collect();
            trace.records(thread, times[0], 1_000 + times[0] * 3, &records);
        }
    }
    trace.end();
    trace
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Chains end where the other thread's writes are, in virtual time, however frames are cut.
    #[test]
    fn chains_follow_virtual_time(
        times in prop::collection::btree_map(0u64..200_000, any::<bool>(), 2..60),
        frame in 1usize..20,
    ) {
        let of = |write: bool| -> Vec<u64> {
            times.iter().filter(|(_, own)| **own == write).map(|(at, _)| *at).collect()
        };
        let (reads, writes) = (of(false), of(true));
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("r");
        finish(record(
            &folder,
            &TraceOptions::default(),
            &[reader_and_writer(&reads, &writes, frame)],
        ));
        let found = Recording::open(&folder).unwrap().trace_statistics().unwrap();
        prop_assert_eq!(found.data_misses, times.len() as u64);
        let order: Vec<bool> = times.into_values().collect();
        let chains = order.split(|write| *write).map(|reads| reads.len() as u64);
        prop_assert_eq!(found.chains.longest, chains.max().unwrap_or(0));
    }
}

#[test]
fn steps_are_what_the_tracer_saw() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    finish(record(&folder, &TraceOptions::default(), &[two_threads()]));
    let recording = Recording::open(&folder).unwrap();
    let trace = recording.trace().unwrap();
    let [main, other] = trace.threads() else {
        panic!("two threads: {:?}", trace.threads())
    };
    assert_eq!(
        (main.thread, main.cpu, main.started_by),
        (ThreadIndex(0), CpuId(0), 0)
    );
    assert_eq!(
        (other.thread, other.cpu, other.started_by),
        (ThreadIndex(1), CpuId(3), 1)
    );
    assert_eq!(other.start_instructions, 20);

    // Code first, then the two heap pages: pages are numbered by address.
    assert_eq!(trace.pages().len(), 3);
    let miss = |instructions, page, offset, kind, served| Miss {
        instructions,
        page: PageIndex(page),
        offset,
        kind,
        served,
        tlb_miss: false,
        sampled: false,
    };
    let of_main = steps(&trace, 0);
    assert_eq!(
        of_main.misses,
        [
            miss(0, 1, 0, AccessKind::Store, Served::Memory),
            miss(0, 2, 4, AccessKind::Store, Served::Memory),
            miss(9, 1, 0, AccessKind::Load, Served::OtherCache),
            miss(1, 1, 0, AccessKind::Store, Served::WriteBack),
        ]
    );
    assert_eq!(
        of_main.happenings,
        [
            (0, 10, Happening::FirstTouch(PageIndex(1))),
            (1, 5, Happening::FirstTouch(PageIndex(2))),
            (2, 5, Happening::Signal { sequence: 1 }),
            (
                2,
                1,
                Happening::Resume {
                    after: 2,
                    waited_instructions: 1_000
                }
            ),
        ]
    );
    let of_other = steps(&trace, 1);
    assert_eq!(
        of_other.misses,
        [
            miss(0, 1, 8, AccessKind::Load, Served::Memory),
            // The clock was read in between.
            miss(6, 2, 0, AccessKind::Store, Served::Upgrade),
            miss(1, 0, 0x40, AccessKind::Fetch, Served::L2),
        ]
    );
    assert_eq!(
        of_other.happenings,
        [
            // The instruction before it lost the CPU counts too.
            (2, 2, Happening::Signal { sequence: 2 }),
            (2, 1, Happening::Move(CpuId(5))),
        ]
    );
}

/// A shell forks a child, which runs another program and ends; the shell waits for it.
#[test]
fn who_reads_a_pipe_goes_on_after_whoever_wrote_in_another_process() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let began = |mut trace: TraceFile, pid: u32, start_ns: u64| {
        trace.events(0, start_ns, &[start(0, pid, 0, 0, 0)]);
        trace
    };
    let signal = |sequence| Record::Signal {
        sequence,
        address: 0,
    };
    let after = |after| Record::Resume {
        after,
        address: 0,
        waited_instructions: 0,
    };
    let mut writer = began(TraceFile::of(10, 1_000), 10, 1_000);
    let wrote = [(10, signal(1)), (5, signal(PIPE_SIGNAL + 1))];
    writer.records(0, 0, 1_000, &wrote).end();
    let mut reader = began(TraceFile::of(20, 2_000), 20, 2_000);
    let read = [(3, after(PIPE_SIGNAL + 1)), (3, after(1))];
    reader.records(0, 0, 2_000, &read).end();
    finish(record(&folder, &TraceOptions::default(), &[writer, reader]));
    let recording = Recording::open(&folder).unwrap();
    let trace = recording.trace().unwrap();
    let happenings = [0, 1].map(|thread| steps(&trace, thread).happenings);
    let [
        [
            (_, 10, Happening::Signal { sequence: own }),
            (_, 5, Happening::Signal { sequence: wrote }),
        ],
        [
            (_, 3, Happening::Resume { after: read, .. }),
            (_, 3, Happening::Resume { after: other, .. }),
        ],
    ] = happenings.each_ref().map(Vec::as_slice)
    else {
        panic!("{happenings:?}")
    };
    assert_eq!(wrote, read);
    assert!(own != other, "of different processes");
    assert!(![own, other].contains(&wrote));
}

#[test]
fn a_process_is_one_thread_that_begins_and_ends_where_its_parent_says() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let began = |mut trace: TraceFile, pid: u32, start_ns: u64| {
        trace.events(0, start_ns, &[start(0, pid, 0, 0, 0)]);
        trace
    };
    let forked = Event::Fork {
        child: 20,
        virtual_time: 30,
    };
    let waited = Record::Resume {
        after: CHILD_ENDED + 20,
        address: 0,
        waited_instructions: 7,
    };
    let mut shell = began(TraceFile::of(10, 1_000), 10, 1_000);
    shell
        .records(0, 0, 1_000, &[(10, load(HEAP))])
        .events(30, 1_400, &[forked])
        .records(
            0,
            10,
            1_100,
            &[
                (5, load(HEAP)),
                (20, load(HEAP)),
                (1, waited),
                (2, load(HEAP)),
            ],
        )
        .end();
    let mut child = began(TraceFile::forked(20, 2_000, 10), 20, 2_000);
    child.records(0, 0, 2_000, &[(3, load(HEAP))]).end();
    let mut program = began(TraceFile::of(20, 3_000), 20, 3_000);
    program.records(0, 0, 3_000, &[(4, load(HEAP))]).end();
    finish(record(
        &folder,
        &TraceOptions::default(),
        &[shell, child, program],
    ));
    let recording = Recording::open(&folder).unwrap();
    let trace = recording.trace().unwrap();
    let [parent, child] = trace.threads() else {
        panic!("of two processes: {:?}", trace.threads())
    };
    assert_eq!((parent.started_by, child.thread), (0, ThreadIndex(1)));
    let of_child = steps(&trace, 1);
    assert_eq!(of_child.misses.len(), 2, "in both its programs");
    let [(2, 0, Happening::Signal { sequence: ended })] = of_child.happenings[..] else {
        panic!("its end: {:?}", of_child.happenings)
    };
    assert!(child.started_by != 0 && child.started_by != ended);
    let of_parent = steps(&trace, 0);
    let since: Vec<u32> = of_parent
        .misses
        .iter()
        .map(|miss| miss.instructions)
        .collect();
    assert_eq!(since, [10, 5, 5, 2]);
    let forks = Happening::Signal {
        sequence: child.started_by,
    };
    let waits = Happening::Resume {
        after: ended,
        waited_instructions: 7,
    };
    assert_eq!(of_parent.happenings, [(2, 15, forks), (3, 1, waits)]);
}

#[test]
fn accesses_are_misses_with_where_first_touch_put_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    finish(record(&folder, &TraceOptions::default(), &[two_threads()]));
    let recording = Recording::open(&folder).unwrap();
    let all = accesses(&recording);
    assert_eq!(recording.access_count(), all.len() as u64);
    let seen: Vec<_> = all
        .iter()
        .map(|access| {
            (
                access.thread.0,
                access.cpu.0,
                access.address,
                access.level,
                access.cost_ns,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (0, 0, HEAP, Level::LocalMemory, 300.0),
            (0, 0, HEAP + 4100, Level::LocalMemory, 300.0),
            (0, 0, HEAP, Level::RemoteCache, 300.0),
            (1, 3, HEAP + 8, Level::RemoteMemory, 1200.0),
            (1, 3, HEAP + 4096, Level::RemoteMemory, 1200.0),
        ]
    );
    assert_eq!(all[4].kind, AccessKind::Store);
    assert!(
        all.iter()
            .all(|access| access.page_node == Some(NodeId(0)) && access.weight == 1.0)
    );
    // Not before the clock that the thread itself read, and not after what it read later.
    assert!(all[3].time_ns >= 1_500 && all[3].time_ns < 2_000);
    assert!(all[4].time_ns >= 2_000);
    let touches = &recording.tables.first_touches;
    let touched: Vec<_> = touches
        .iter()
        .map(|touch| (touch.address, touch.thread.0, touch.cpu.0))
        .collect();
    assert_eq!(touched, [(HEAP, 0, 0), (HEAP + 4096, 0, 0)]);
    let threads: Vec<_> = recording
        .tables
        .threads
        .iter()
        .map(|thread| (thread.pid, thread.tid, thread.order))
        .collect();
    assert_eq!(threads, [(100, 100, 0), (100, 101, 1)]);
    assert_eq!(recording.tables.threads[1].cpus, [(CpuId(3), 2)]);
    assert_eq!(recording.metadata.counts.accesses, 5);
}

#[test]
fn hits_are_accesses_where_they_were_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let options = TraceOptions {
        keep_hits: true,
        ..TraceOptions::default()
    };
    finish(record(&folder, &options, &[two_threads()]));
    let recording = Recording::open(&folder).unwrap();
    let all = accesses(&recording);
    let last = all.last().unwrap();
    assert_eq!(
        (all.len(), last.level, last.cpu, last.cost_ns),
        (6, Level::L2, CpuId(5), 50.0)
    );
}

#[test]
fn objects_of_the_allocation_log_are_alive_when_they_are_used() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let mut trace = TraceFile::of(100, 1_000);
    let clock = |time_ns| Record::Clock { time_ns };
    trace
        .events(
            0,
            1_000,
            &[
                start(0, 100, 0, 0, 0),
                map(0, 0x40_0000, 0x2000, CODE, 7, PROGRAM),
            ],
        )
        .records(
            0,
            0,
            1_000,
            // Allocated at 5000, freed at 5010: hardly any time, and many instructions around.
            &[
                (9, load(HEAP)),
                (1, clock(5_000)),
                (0, load(HEAP)),
                (100_000, load(HEAP + 8)),
                (1, clock(5_010)),
                (1, load(HEAP + 16)),
            ],
        )
        .end();
    let log = record(&folder, &TraceOptions::default(), &[trace]);
    let block = Block::of(100)
        .thread(1_000, 0, 0)
        .record(Kind::CallSite, 1, &[0x40_0100])
        .allocate(5_000, HEAP, 4096, 1)
        .free(5_010, HEAP);
    segment(&log.allocation_log_folder(), 100, 1_000, &[block.bytes()]);
    finish(log);
    let recording = Recording::open(&folder).unwrap();
    let object = recording
        .tables
        .objects
        .iter()
        .find(|object| object.kind == ObjectKind::Heap)
        .unwrap();
    assert_eq!((object.born_ns, object.died_ns), (5_000, 5_010));
    let alive: Vec<bool> = accesses(&recording)
        .iter()
        .map(|access| (object.born_ns..object.died_ns).contains(&access.time_ns))
        .collect();
    assert_eq!(alive, [false, true, true, false]);
}

#[test]
fn pages_of_one_file_are_one_page_in_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let process = |pid: u32, start_ns: u64, at: u64| {
        let mut trace = TraceFile::of(pid, start_ns);
        trace
            .events(
                0,
                start_ns,
                &[
                    start(0, pid, 0, 0, 0),
                    map(0, at, 0x2000, CODE, 7, PROGRAM),
                    // Writable and private: its pages are the process's own.
                    map(0, at + 0x2000, 0x1000, 3, 7, PROGRAM),
                ],
            )
            .records(
                0,
                0,
                start_ns,
                &[
                    (1, touch(at + 0x1000)),
                    (0, load(at + 0x1040)),
                    (1, touch(at + 0x2000)),
                    (0, load(at + 0x2000)),
                ],
            )
            .end();
        trace
    };
    finish(record(
        &folder,
        &TraceOptions::default(),
        &[
            process(100, 1_000, 0x40_0000),
            process(101, 2_000, 0x70_0000),
        ],
    ));
    let recording = Recording::open(&folder).unwrap();
    let trace = recording.trace().unwrap();
    let pages = |position| -> Vec<u32> {
        steps(&trace, position)
            .misses
            .iter()
            .map(|miss| miss.page.0)
            .collect()
    };
    assert_eq!((pages(0), pages(1)), (vec![0, 1], vec![0, 2]));
    assert_eq!(
        (trace.pid(PageIndex(0)), trace.pid(PageIndex(2))),
        (100, 101)
    );
}

#[test]
fn memory_that_is_mapped_again_is_another_page() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let mut trace = TraceFile::of(100, 1_000);
    trace
        .events(0, 1_000, &[start(0, 100, 0, 0, 0)])
        .records(
            0,
            0,
            1_000,
            &[
                (10, touch(HEAP)),
                (0, load(HEAP)),
                (10, load(HEAP)),
                (10, touch(HEAP)),
                (0, load(HEAP)),
                (10, load(HEAP + 4096)),
            ],
        )
        .end();
    finish(record(&folder, &TraceOptions::default(), &[trace]));
    let recording = Recording::open(&folder).unwrap();
    let trace = recording.trace().unwrap();
    let pages: Vec<u32> = steps(&trace, 0)
        .misses
        .iter()
        .map(|miss| miss.page.0)
        .collect();
    assert_eq!(pages, [0, 0, 1, 2]);
    let place = trace.pages().place(PageIndex(1));
    assert_eq!(
        (place.address, place.first_touch.map(|touch| touch.thread)),
        (HEAP, Some(ThreadIndex(0)))
    );
    assert_eq!(trace.pages().place(PageIndex(2)).first_touch, None);
}

#[test]
fn thinning_keeps_every_nth_with_its_weight() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("r");
    let mut trace = TraceFile::of(100, 1_000);
    let mut records = vec![(1, touch(HEAP))];
    for number in 0..100 {
        let kind = if number % 4 == 3 {
            ReferenceKind::Store
        } else {
            ReferenceKind::Load
        };
        let Record::Reference(mut found) = reference(HEAP + 64 * number, kind, Served::Memory)
        else {
            unreachable!()
        };
        found.tlb_miss = number % 10 == 0;
        records.push((50, Record::Reference(found)));
    }
    trace
        .events(0, 1_000, &[start(0, 100, 0, 0, 0)])
        .records(0, 0, 1_000, &records)
        .end();
    finish(record(&folder, &TraceOptions::default(), &[trace]));
    let recording = Recording::open(&folder).unwrap();
    let thin = |thinning: Thinning| -> Vec<(u64, f32)> {
        let mut kept = Vec::new();
        let count = recording
            .thin(&thinning, |batch: &AccessBatch| {
                kept.extend(
                    (0..batch.len())
                        .map(|row| ((batch.address[row] - HEAP) / 64, batch.weight[row])),
                );
                Ok(())
            })
            .unwrap();
        assert_eq!(count, kept.len() as u64);
        kept
    };
    let plain = Thinning::default();
    assert_eq!(thin(plain).len(), 100);
    let tenth = thin(Thinning { every: 10, ..plain });
    assert_eq!(tenth[..2], [(9, 10.0), (19, 10.0)]);
    let loads = thin(Thinning {
        every: 5,
        loads_only: true,
        ..plain
    });
    assert_eq!(loads.len(), 15);
    assert!(loads.iter().all(|(number, _)| number % 4 != 3));
    let tlb = thin(Thinning {
        event: ThinEvent::DtlbMiss,
        every: 2,
        ..plain
    });
    assert_eq!(tlb, [(10, 2.0), (30, 2.0), (50, 2.0), (70, 2.0), (90, 2.0)]);
    // 300 ns at 300 MHz are 90 cycles, and the next miss is 50 instructions on: every other is seen.
    let one = thin(Thinning {
        one_in_flight: true,
        ..plain
    });
    assert_eq!(one.len(), 50);
    assert!(one.iter().all(|(number, _)| number % 2 == 0));
    assert_eq!(
        thin(Thinning {
            latency_cycles_min: 90.0,
            ..plain
        })
        .len(),
        100
    );
    assert_eq!(
        thin(Thinning {
            latency_cycles_min: 90.1,
            ..plain
        })
        .len(),
        0
    );
}

#[test]
fn damage_is_counted_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    let opened = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let folder = scratch.path().join(name);
        let mut trace = two_threads();
        change(&mut trace.bytes);
        finish(record(&folder, &TraceOptions::default(), &[trace]));
        Recording::open(&folder).unwrap()
    };
    let whole = opened("whole", &|_| {});
    assert_eq!(whole.metadata.damaged_blocks, 0);
    assert!(whole.trace().is_ok());

    let cut = opened("cut", &|bytes| bytes.truncate(bytes.len() - 10));
    let error = cut.trace().unwrap_err();
    assert!(matches!(error, Error::CutShort(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("trace-100-1000.trace: cut short"),
        "{error}"
    );
    assert!(
        cut.metadata
            .notes
            .iter()
            .any(|note| note.contains("cut short"))
    );
    assert_eq!(cut.access_count(), 5);

    // A byte of the second thread's frame: it alone is left out.
    let flipped = opened("flipped", &|bytes| {
        let last = bytes.len() - 300;
        bytes[last] ^= 0x10;
    });
    assert!(flipped.metadata.damaged_blocks >= 1);
    assert!(flipped.access_count() < 5);
    assert_eq!(accesses(&flipped).len() as u64, flipped.access_count());

    let empty = opened("empty", &|bytes| bytes.truncate(20));
    assert!(
        empty
            .metadata
            .notes
            .iter()
            .any(|note| note.contains("cut short before its first frame"))
    );
    assert_eq!(empty.access_count(), 0);
}

#[test]
fn what_a_reader_has_to_know_is_noted() {
    let scratch = tempfile::tempdir().unwrap();
    let notes = |name: &str, moved: &[u32], left_lockstep: u64, untraced: u64| {
        let folder = scratch.path().join(name);
        let moves = moved.iter().map(|&thread| TracedMove {
            thread,
            instructions: 20,
            cpu: CpuId(5),
        });
        let options = TraceOptions {
            moves: moves.collect(),
            ..TraceOptions::default()
        };
        let mut counters = [0; COUNTERS];
        counters[Counter::LeftLockstep as usize] = left_lockstep;
        counters[Counter::UntracedPrograms as usize] = untraced;
        let mut trace = two_threads();
        trace.events(0, 1_000, &[Event::Counters(counters)]);
        finish(record(&folder, &options, &[trace]));
        let mut notes = Recording::open(&folder).unwrap().metadata.notes;
        // The program is not there, and its threads never ended.
        notes.retain(|note| !note.contains("(program)") && !note.contains(PROGRAM));
        notes
    };
    // Thread 1 moved.
    assert_eq!(notes("nothing", &[1], 0, 0), [""; 0]);
    let once = [
        "1 time a thread slept where the tracer could not know: what depends on that differs from run to run",
        "1 program ran without being traced: set-user-ID, or not for x86-64",
        "moves of the schedule that were made: 1 of 2; the other threads were not there, or had ended",
    ];
    assert_eq!(notes("once", &[1, 9], 1, 1), once);
    let often = notes("often", &[1], 3, 2);
    assert!(often[0].starts_with("3 times a thread slept") && often[1].starts_with("2 programs"));
}

#[test]
fn samples_alone_are_no_trace() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1-tables");
    let recording = Recording::open(&fixture).unwrap();
    let error = recording.trace().unwrap_err();
    assert!(error.to_string().contains("samples only"), "{error}");
}

#[test]
fn a_recording_that_was_killed_opens_from_its_trace() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("r");
    drop(record(&folder, &TraceOptions::default(), &[two_threads()]));
    let recording = Recording::open(&folder).unwrap();
    assert!(!recording.is_complete());
    assert_eq!(accesses(&recording).len(), 5);
    // The same whether it became tables or not.
    let finished = scratch.path().join("s");
    finish(record(
        &finished,
        &TraceOptions::default(),
        &[two_threads()],
    ));
    assert!(!finished.join("accesses.parquet").exists());
    assert_eq!(
        accesses(&Recording::open(&finished).unwrap()),
        accesses(&recording)
    );
}

/// A record of one of a few pages.
fn any_record() -> impl Strategy<Value = Record> {
    let address = (0u64..8, 0u64..4096).prop_map(|(page, byte)| HEAP + page * 4096 + byte);
    prop_oneof![
        6 => (address.clone(), 0u8..3, 0u8..7, any::<bool>(), any::<bool>()).prop_map(
            |(address, kind, served, tlb_miss, sampled)| {
                let Record::Reference(found) = reference(
                    address,
                    [ReferenceKind::Load, ReferenceKind::Store, ReferenceKind::Fetch][usize::from(kind)],
                    [
                        Served::L1, Served::L2, Served::L3, Served::Memory, Served::OtherCache, Served::Upgrade,
                        Served::WriteBack,
                    ][usize::from(served)],
                ) else {
                    unreachable!()
                };
                Record::Reference(nearpage_wire::trace::Reference { tlb_miss, sampled, ..found })
            }
        ),
        1 => address.prop_map(touch),
        1 => (1u64..9).prop_map(|sequence| Record::Signal { sequence, address: 0 }),
        1 => (0u64..9, 0u64..5000).prop_map(|(after, waited_instructions)| Record::Resume {
            after, address: 0, waited_instructions,
        }),
        1 => (0u64..9000).prop_map(|time_ns| Record::Clock { time_ns }),
        1 => (0u32..8).prop_map(|cpu| Record::Move { cpu }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every reference becomes a step, every miss an access, whatever the frames; opened again, the
    /// recording says the same.
    #[test]
    fn nothing_is_lost(
        threads in prop::collection::vec(
            prop::collection::vec(prop::collection::vec((0u64..1000, any_record()), 0..20), 0..6), 1..4),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("r");
        let mut trace = TraceFile::of(100, 1_000);
        for (number, frames) in threads.iter().enumerate() {
            trace.events(0, 1_000, &[start(number as u32, 100 + number as u32, number as u32, 0, 0)]);
            let mut virtual_time = 0;
            for (position, frame) in frames.iter().enumerate() {
                trace.records(number as u32, virtual_time, 1_000 + 100 * position as u64, frame);
                virtual_time += frame.iter().map(|(since, record)| since + match record {
                    Record::Resume { waited_instructions, .. } => *waited_instructions,
                    _ => 0,
                }).sum::<u64>();
            }
        }
        trace.end();
        finish(record(&folder, &TraceOptions::default(), &[trace]));
        let recording = Recording::open(&folder).unwrap();
        let trace = recording.trace().unwrap();
        prop_assert_eq!(trace.threads().len(), threads.len());
        let mut misses = 0;
        for (position, thread) in trace.threads().iter().enumerate() {
            let frames = &threads[thread.thread.0 as usize];
            let written: Vec<_> = frames.iter().flatten().collect();
            let found = steps(&trace, position);
            let references = written.iter().filter_map(|(_, record)| match record {
                Record::Reference(reference) => Some(reference),
                _ => None,
            });
            let references: Vec<_> = references.collect();
            prop_assert_eq!(found.misses.len(), references.len());
            for (miss, reference) in found.misses.iter().zip(&references) {
                let place = trace.pages().place(miss.page);
                prop_assert_eq!(place.address + u64::from(miss.offset), reference.address);
                prop_assert_eq!((miss.served, miss.tlb_miss, miss.sampled), (reference.served, reference.tlb_miss, reference.sampled));
                misses += u64::from(matches!(reference.served, Served::Memory | Served::OtherCache | Served::Upgrade));
            }
            // Time is kept: all instructions are there.
            let instructions: u64 = written.iter().map(|(since, _)| since).sum();
            let of_misses: u64 = found.misses.iter().map(|miss| u64::from(miss.instructions)).sum();
            let of_happenings: u64 = found.happenings.iter().map(|(_, since, _)| u64::from(*since)).sum();
            prop_assert_eq!(of_misses + of_happenings, instructions);
        }
        prop_assert_eq!(recording.access_count(), misses);
        prop_assert_eq!(accesses(&recording).len() as u64, misses);
        for (chunk, batch) in recording.accesses().enumerate() {
            let batch = batch.unwrap();
            prop_assert!(batch.time_ns.is_sorted());
            // What was kept of the chunk before is what is read without it.
            let mut alone = AccessBatch::default();
            recording.read_chunk(chunk, ColumnSelection::ALL, &mut alone).unwrap();
            prop_assert_eq!(batch, alone);
        }
    }

    /// Bytes anywhere that are changed, or missing, are never a panic, and nothing is invented.
    #[test]
    fn damage_never_panics(at in 0usize..900, bit in 0u32..8, keep in 0usize..900) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("r");
        let mut trace = two_threads();
        let at = at % trace.bytes.len();
        trace.bytes[at] ^= 1 << bit;
        trace.bytes.truncate(keep.max(1));
        drop(record(&folder, &TraceOptions::default(), &[trace]));
        match Recording::open(&folder) {
            Ok(recording) => prop_assert!(accesses(&recording).len() <= 5),
            Err(error) => prop_assert!(matches!(error, Error::Version { .. }), "{}", error),
        }
    }
}
