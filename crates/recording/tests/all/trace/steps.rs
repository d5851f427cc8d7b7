//! Steps of threads, in one process and in several.

use super::*;

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
        depends_on: 0,
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
        of_main.trace_events,
        [
            (0, 10, TraceEvent::FirstTouch(PageIndex(1))),
            (1, 5, TraceEvent::FirstTouch(PageIndex(2))),
            (2, 5, TraceEvent::Signal { sequence: 1 }),
            (
                2,
                1,
                TraceEvent::Resume {
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
        of_other.trace_events,
        [
            // The instruction before the thread lost the CPU counts, too.
            (2, 2, TraceEvent::Signal { sequence: 2 }),
            (2, 1, TraceEvent::Move(CpuId(5))),
        ]
    );
}

/// A shell forks a child, which runs another program and ends; the shell waits for it.
#[test]
fn a_pipe_reader_continues_after_the_writer_in_another_process() {
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
    let trace_events = [0, 1].map(|thread| steps(&trace, thread).trace_events);
    let [
        [
            (_, 10, TraceEvent::Signal { sequence: own }),
            (_, 5, TraceEvent::Signal { sequence: wrote }),
        ],
        [
            (_, 3, TraceEvent::Resume { after: read, .. }),
            (_, 3, TraceEvent::Resume { after: other, .. }),
        ],
    ] = trace_events.each_ref().map(Vec::as_slice)
    else {
        panic!("{trace_events:?}")
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
    let [(2, 0, TraceEvent::Signal { sequence: ended })] = of_child.trace_events[..] else {
        panic!("its end: {:?}", of_child.trace_events)
    };
    assert!(child.started_by != 0 && child.started_by != ended);
    let of_parent = steps(&trace, 0);
    let since: Vec<u32> = of_parent
        .misses
        .iter()
        .map(|miss| miss.instructions)
        .collect();
    assert_eq!(since, [10, 5, 5, 2]);
    let forks = TraceEvent::Signal {
        sequence: child.started_by,
    };
    let waits = TraceEvent::Resume {
        after: ended,
        waited_instructions: 7,
    };
    assert_eq!(of_parent.trace_events, [(2, 15, forks), (3, 1, waits)]);
}
