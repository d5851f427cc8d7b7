//! Traces: records of the tracer come back as accesses, steps, pages and tables.

mod damage;
mod pages;
mod steps;

use std::path::Path;

use super::making::trace::{
    TraceFile, load, machine, map, record, record_on, reference, start, touch,
};
use super::making::{Block, segment};
use nearpage_machine::{CpuId, NodeId};
use nearpage_recording::trace::{
    DownsampleEvent, Downsampling, Miss, PageIndex, StepBatch, Steps, Trace, TraceEvent,
    TraceOptions, TracedMove,
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
/// `PROT_READ | PROT_EXEC`.
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
        let trace_events = batch.trace_events.iter();
        all.trace_events
            .extend(trace_events.map(|(at, since, what)| (before + at, *since, *what)));
    }
    all
}

/// Two threads: the main thread touches two pages and starts the other thread, which reads one page and writes the
/// other.
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
    // Page 0: a store, and a load by each CPU. Page 1: a store, and an upgrade. The fetch hit the second level, and the
    // write-back is no miss.
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

/// One thread reads a page over and over, the other thread writes to it at given times of the process.
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
    /// Chains end at the other thread's writes, in virtual time, however frames are cut.
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
    // The access is not before the thread's reading of the clock, and not after its next reading.
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
            // Allocated at 5000 and freed at 5010: a short time with many instructions around.
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
fn downsampling_keeps_every_nth_with_its_weight() {
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
    let downsample = |downsampling: Downsampling| -> Vec<(u64, f32)> {
        let mut kept = Vec::new();
        let count = recording
            .downsample(&downsampling, |batch: &AccessBatch| {
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
    let plain = Downsampling::default();
    assert_eq!(downsample(plain).len(), 100);
    let tenth = downsample(Downsampling { every: 10, ..plain });
    assert_eq!(tenth[..2], [(9, 10.0), (19, 10.0)]);
    let loads = downsample(Downsampling {
        every: 5,
        loads_only: true,
        ..plain
    });
    assert_eq!(loads.len(), 15);
    assert!(loads.iter().all(|(number, _)| number % 4 != 3));
    let tlb = downsample(Downsampling {
        event: DownsampleEvent::DtlbMiss,
        every: 2,
        ..plain
    });
    assert_eq!(tlb, [(10, 2.0), (30, 2.0), (50, 2.0), (70, 2.0), (90, 2.0)]);
    assert_eq!(
        downsample(Downsampling {
            latency_cycles_min: 90.0,
            ..plain
        })
        .len(),
        100
    );
    assert_eq!(
        downsample(Downsampling {
            latency_cycles_min: 90.1,
            ..plain
        })
        .len(),
        0
    );
}

/// The trace has a miss every 50 instructions, and each miss takes 90 cycles.
#[test]
fn one_reference_in_flight_hides_those_that_the_cpu_issues_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let mut trace = TraceFile::of(100, 1_000);
    let mut records = vec![(1, touch(HEAP))];
    for number in 0..100 {
        let missed = reference(HEAP + 64 * number, ReferenceKind::Load, Served::Memory);
        records.push((50, missed));
    }
    trace
        .events(0, 1_000, &[start(0, 100, 0, 0, 0)])
        .records(0, 0, 1_000, &records)
        .end();
    let kept = |name: &str, outstanding, window| {
        let mut machine = machine();
        machine.processor.outstanding_misses = Some(outstanding);
        machine.processor.window_instructions = Some(window);
        let folder = folder.path().join(name);
        finish(record_on(
            &machine,
            &folder,
            &TraceOptions::default(),
            std::slice::from_ref(&trace),
        ));
        let one = Downsampling {
            one_in_flight: true,
            ..Downsampling::default()
        };
        let recording = Recording::open(&folder).unwrap();
        recording.downsample(&one, |_| Ok(())).unwrap()
    };
    assert_eq!(kept("waits", 1, 72), 100, "no other is issued meanwhile");
    assert_eq!(kept("short", 8, 40), 100, "the next is beyond the window");
    assert_eq!(
        kept("window", 8, 72),
        50,
        "the next is within it, the one after beyond"
    );
    assert_eq!(
        kept("long", 8, 500),
        50,
        "the one after is issued when the data has come"
    );
}
