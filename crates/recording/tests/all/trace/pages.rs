//! Which places in processes are the same page.

use super::*;

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
                    // Pages of a writable private mapping are the process's own.
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
