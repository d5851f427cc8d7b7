//! Plans with copies, later moves, phases, and online migration.

use std::slice::from_ref;

use nearpage_online::AutoParameters;

use super::*;
use crate::PhaseHomes;

/// A job with a plan.
pub(super) fn planned(homes: Vec<Option<Home>>, phases: Vec<PhaseHomes>) -> Job {
    Job::new(SimulatedPolicy::Homes {
        name: "plan".to_owned(),
        plan: PlanHomes {
            homes,
            phases,
            online_migration: None,
        },
    })
}

/// A job with a plan and online migration.
pub(super) fn plan_with_online_migration(
    homes: Vec<Option<Home>>,
    parameters: AutoParameters,
) -> Job {
    Job::new(SimulatedPolicy::Homes {
        name: "plan".to_owned(),
        plan: PlanHomes {
            homes,
            phases: Vec::new(),
            online_migration: Some(parameters),
        },
    })
}

#[test]
fn a_plan_can_ask_for_copies() {
    let machine = machine(4, CLOCK);
    let trace = touched_by_first(2, vec![(4, reads(2, 50)), (8, reads(2, 50))]);
    let plan = planned(vec![Some(Home::Copies), Some(Home::Node(3))], Vec::new());
    let outcome = one(&trace, &machine, plan);
    // The first page is copied to both readers' nodes; the second is on neither.
    assert_eq!((outcome.replicated, outcome.migrated), (2, 0));
    assert_eq!(outcome.local, 2 * 49);
    // Stores collapse the copies, and after some collapses no more copies are made.
    let mut written = [load(0, 0), store(0, 0)].repeat(50);
    written.push(load(0, 1));
    let trace = touched_by_first(2, vec![(4, written)]);
    let plan = planned(vec![Some(Home::Copies)], Vec::new());
    assert_eq!(one(&trace, &machine, plan).replicated, 6);
}

#[test]
fn online_migration_moves_what_a_plan_does_not_hold() {
    let machine = machine(4, CLOCK);
    // Node 0 has touched three pages first and node 1 loads them. The plan does not name the first, puts the second on
    // a third node, and asks for copies of the last.
    let homes = || vec![None, Some(Home::Node(3)), Some(Home::Copies)];
    let trace = touched_by_first(3, vec![(4, reads(3, 20_000))]);
    let still = one(&trace, &machine, planned(homes(), Vec::new()));
    assert_eq!((still.migrated, still.replicated), (0, 1));
    let online_migration = AutoParameters {
        move_threads: 0,
        ..AutoParameters::default()
    };
    let looked = one(
        &trace,
        &machine,
        plan_with_online_migration(homes(), online_migration),
    );
    assert_eq!((looked.migrated, looked.replicated), (2, 1));
    assert!(looked.local > 2 * still.local, "{}", looked.local);
    assert!(looked.time_ns < still.time_ns);
    let parameters = looked.parameters;
    let has = |name, value: &str| parameters.contains(&(name, value.to_owned()));
    assert!(
        has("every", "10") && has("budget_permille", "10"),
        "{parameters:?}"
    );
}

#[test]
fn a_plan_can_wait_for_the_second_thread() {
    let machine = machine(4, CLOCK);
    let homes = vec![Some(Home::Later(Some(2))), Some(Home::Node(2))];
    let plan = || planned(homes.clone(), Vec::new());
    // A single thread on node 0 finds the waiting page on the node of its first touch.
    let signal = vec![(2, 0, TraceEvent::Signal { sequence: 1 })];
    let first = || thread(0, 0, 0, batch(reads(2, 1), signal.clone()));
    let alone = one(&trace(2, vec![first()]), &machine, plan());
    assert_eq!((alone.migrated, alone.local, alone.misses), (0, 1, 2));
    // The first reference of the second thread, on node 2, moves the page; all later ones are local.
    let second = thread(1, 8, 1, batch(reads(2, 50), vec![]));
    let both = one(&trace(2, vec![first(), second]), &machine, plan());
    assert_eq!(both.migrated, 1);
    assert_eq!(both.local, 1 + 49 + 50);
}

#[test]
fn a_plan_can_leave_pages_to_the_thread_that_uses_them_next() {
    let machine = machine(4, CLOCK);
    let homes = |home| planned(vec![Some(home), Some(home)], Vec::new());
    // Node 0 has touched two pages first and never uses them. Threads on nodes 1 and 2 use one page each. Node 1's
    // thread runs first, so the second thread of the program is noticed one reference later.
    let users = vec![(4, [load(0, 0)].repeat(50)), (8, [load(0, 1)].repeat(50))];
    let trace = touched_by_first(2, users);
    let outcome = one(&trace, &machine, homes(Home::Later(None)));
    assert_eq!((outcome.migrated, outcome.local), (2, 48 + 49));
}

/// A thread on node 1 loads two pages of node 0 repeatedly, and in between executes a function on a third page.
#[test]
fn a_plan_can_change_when_a_function_is_first_executed() {
    let machine = machine(4, CLOCK);
    let fetch = |offset| Miss {
        offset,
        kind: AccessKind::Fetch,
        ..load(0, 2)
    };
    let mut steps = reads(2, 10);
    steps.extend([fetch(0), load(0, 0), load(0, 1)]);
    steps.push(fetch(100));
    steps.extend(reads(2, 10));
    let trace = touched_by_first(3, vec![(4, steps)]);
    let moved = |entry: &[(u32, std::ops::Range<u32>)], homes: [Option<Home>; 2]| {
        let phase = PhaseHomes {
            entry: entry.to_vec(),
            homes: homes.to_vec(),
            threads: Vec::new(),
        };
        let job = planned(vec![None, Some(Home::Node(2))], vec![phase]);
        let outcome = one(&trace, &machine, job);
        (outcome.migrated, outcome.replicated, outcome.local)
    };
    let (near, next) = (Some(Home::Node(1)), Some(Home::Later(None)));
    let function = (2, 64..128);
    // Of the last ten loads of each page, only the one that moves the page is remote.
    assert_eq!(moved(from_ref(&function), [near, None]), (1, 0, 9));
    assert_eq!(moved(from_ref(&function), [near, next]), (2, 0, 18));
    assert_eq!(
        moved(from_ref(&function), [Some(Home::Copies), None]),
        (0, 1, 9)
    );
    // These entries are another function, another page, or no code at all.
    assert_eq!(moved(&[(2, 0..64)], [near, next]), (2, 0, 20));
    assert_eq!(moved(&[(2, 128..256)], [near, next]), (0, 0, 0));
    assert_eq!(moved(&[(1, 64..128)], [near, next]), (0, 0, 0));
    assert_eq!(moved(&[], [near, next]), (0, 0, 0));
}

#[test]
fn a_plan_can_move_threads_when_a_function_is_first_executed() {
    let machine = machine(4, CLOCK);
    let fetch = Miss {
        kind: AccessKind::Fetch,
        ..load(0, 1)
    };
    // The thread loads the page from node 1 for milliseconds.
    let mut steps = vec![fetch];
    steps.extend(reads(1, 50_000));
    let trace = touched_by_first(2, vec![(4, steps)]);
    let outcome = |threads: Vec<(ThreadIndex, u16)>| {
        let job = planned(
            Vec::new(),
            vec![PhaseHomes {
                entry: vec![(1, 0..64)],
                homes: Vec::new(),
                threads,
            }],
        );
        one(&trace, &machine, job)
    };
    let stays = outcome(Vec::new());
    let moves = outcome(vec![(ThreadIndex(1), 0)]);
    assert_eq!((stays.threads_moved, stays.local), (0, 0));
    assert_eq!(moves.threads_moved, 1);
    assert!(moves.local > 40_000, "{moves:?}");
    assert!(moves.time_ns < 0.7 * stays.time_ns);
}

/// A thread on node 2 uses a page of node 0 while the first thread waits. Then the first thread uses the page alone for
/// milliseconds.
#[test]
fn a_plan_can_give_pages_back_to_the_thread_that_runs_on_alone() {
    let machine = machine(4, CLOCK);
    let outcome = |home| {
        let resume = TraceEvent::Resume {
            after: 2,
            waited_instructions: 0,
        };
        let trace_events = vec![(1, 0, TraceEvent::Signal { sequence: 1 }), (1, 0, resume)];
        let first = thread(0, 0, 0, batch(reads(1, 30_000), trace_events));
        let end = vec![(50, 0, TraceEvent::Signal { sequence: 2 })];
        let second = thread(1, 8, 1, batch(reads(1, 50), end));
        let job = planned(vec![Some(home)], Vec::new());
        one(&trace(1, vec![first, second]), &machine, job)
    };
    let stays = outcome(Home::Later(Some(2)));
    assert_eq!((stays.migrated, stays.local), (1, 1 + 49));
    let returns = outcome(Home::Parallel(Some(2)));
    assert_eq!(returns.migrated, 2);
    // A thread counts as alone after a millisecond, the time of 5000 remote misses of 200 ns.
    assert!(returns.local > 15_000, "{}", returns.local);
    assert!(returns.time_ns < 0.8 * stays.time_ns);
}
