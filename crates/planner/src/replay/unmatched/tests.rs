//! Pages that the memory policy of the whole process places.

use nearpage_wire::trace::Event;

use super::*;
use crate::making::trace::{TraceFile, load, map, start, touch};
use crate::making::{HEAP, PAGE, PID, Traced, flash, loads, object, touched};
use crate::replay::process::Processes;

/// Homes by page number.
fn homes_of(traced: &Traced, start: Start, nodes: &[u16], decided: &[usize]) -> Vec<(usize, Home)> {
    let machine = flash();
    let trace = traced.recording.trace().expect("a trace");
    let processes = Processes::of(&traced.recording, &trace, &machine);
    let nodes: Vec<NodeId> = nodes.iter().map(|&node| NodeId(node)).collect();
    let mut are_decided = vec![false; processes.pages];
    decided.iter().for_each(|&page| are_decided[page] = true);
    homes(start, &nodes, &processes.all[0], &are_decided).collect()
}

fn pages(homes: Vec<(usize, Home)>) -> Vec<usize> {
    homes.into_iter().map(|(page, _)| page).collect()
}

#[test]
fn unmatched_pages_are_interleaved_by_page_number() {
    let traced = Traced::of(&touched(HEAP, 4), &[loads(HEAP, 4, 1)]);
    // A page's address alone decides its node, as in the kernel.
    let turn = (HEAP / PAGE % 2) as usize;
    let node = |page: usize| Home::Node([5, 2][(turn + page) % 2]);
    let expected: Vec<(usize, Home)> = (0..4).map(|page| (page, node(page))).collect();
    let found = homes_of(&traced, Start::Allocation, &[5, 2], &[]);
    assert_eq!(found, expected);
    let others = pages(homes_of(&traced, Start::Allocation, &[5, 2], &[1, 2]));
    assert_eq!(others, [0, 3], "objects' decisions come first");
    let left = homes_of(&traced, Start::Allocation, &[], &[]);
    assert_eq!(left, [], "first touch from the start is no placement");
}

#[test]
fn stacks_thread_local_storage_and_code_stay() {
    let traced = Traced::of(&touched(HEAP, 8), &[loads(HEAP, 8, 1)]);
    let at = |page: u64| HEAP + page * PAGE;
    let traced = traced.with(vec![
        object(ObjectKind::Stack, at(1), PAGE),
        // The page in which the thread-local storage begins belongs to it, too.
        object(ObjectKind::Tls, at(2) + 100, 50),
        object(ObjectKind::Code, at(3), 2 * PAGE),
        object(ObjectKind::Heap, at(5), PAGE),
        object(ObjectKind::HeapArea, at(6), PAGE),
        nearpage_recording::Object {
            pid: PID + 1,
            ..object(ObjectKind::Stack, at(7), PAGE)
        },
    ]);
    let found = pages(homes_of(&traced, Start::Allocation, &[0], &[]));
    assert_eq!(found, [0, 5, 6, 7]);
}

#[test]
fn pages_of_files_and_untouched_ones_stay() {
    let mut file = TraceFile::of(PID, 1_000);
    let mapped = HEAP + 2 * PAGE;
    let events: [Event; 2] = [
        start(0, PID, 0, 0, 0),
        // A read-only mapping of a file.
        map(0, mapped, PAGE, 1, 9, "/nonexistent/data"),
    ];
    file.events(0, 1_000, &events)
        .records(
            0,
            0,
            1_000,
            &[
                (1, touch(HEAP)),
                // The page existed when the program began.
                (1, load(HEAP + PAGE)),
                (1, touch(mapped)),
                (1, touch(mapped + PAGE)),
            ],
        )
        .end();
    let traced = Traced::of_files(&[file]);
    let found = pages(homes_of(&traced, Start::Allocation, &[0], &[]));
    assert_eq!(found, [0, 3]);
}

#[test]
fn later_starts_leave_to_first_touch_what_was_touched_alone() {
    let mut workers = [loads(HEAP, 2, 1), loads(HEAP, 2, 1)];
    workers[1].extend(touched(HEAP + 2 * PAGE, 2));
    let traced = Traced::of(&touched(HEAP, 2), &workers);
    let found = |start, nodes: &[u16]| homes_of(&traced, start, nodes, &[]);
    let [later, now] = [Home::Later(Some(3)), Home::Node(3)];
    assert_eq!(
        found(Start::SecondThread, &[3]),
        [(0, later), (1, later), (2, now), (3, now)],
        "what is touched afterwards is in its place at once"
    );
    let user = Home::Later(None);
    assert_eq!(found(Start::SecondThread, &[]), [(0, user), (1, user)]);
    let parallel = Home::Parallel(Some(3));
    let all = [0, 1, 2, 3].map(|page| (page, parallel));
    assert_eq!(found(Start::Parallel, &[3]), all);
    let all = [0, 1, 2, 3].map(|page| (page, Home::Parallel(None)));
    assert_eq!(found(Start::Parallel, &[]), all);
}
