//! Costs of moving, copying and reclaiming pages, and limited memory.

use super::*;
use crate::Schedule;

#[test]
fn a_fixed_cost_is_paid_for_each_move() {
    let machine = preset("flash-8").expect("preset");
    let both_sides = |count: usize| {
        let trace = touched_by_first(1, vec![(5, vec![load(0, 0); count])]);
        one(&trace, &machine, job("migrate-replicate", &[]))
    };
    let outcome = both_sides(127);
    assert_eq!((outcome.migrated, outcome.split.move_ns), (0, 0.0));
    let outcome = both_sides(130);
    assert_eq!((outcome.migrated, outcome.local), (1, 2));
    assert_eq!(outcome.move_split, None, "it has no steps");
    assert_eq!(outcome.split.move_ns, 350_000.0);
    assert_eq!(outcome.split.remote_stall_ns, 128.0 * 1200.0);
    // The option `move_ns` replaces the machine's cost.
    let trace = touched_by_first(1, vec![(5, vec![load(0, 0); 130])]);
    let outcome = one(&trace, &machine, job("migrate", &[("move_ns", "1000000")]));
    assert_eq!(outcome.split.move_ns, 1e6);
}

#[test]
fn a_page_moved_costs_its_steps() {
    let machine = preset("flash-8-contended").expect("preset");
    let steps = machine.moves.steps.expect("steps");
    // The last miss comes after the batch time of 500 µs.
    let mut misses = vec![load(0, 0); 129];
    misses.push(load(1_000_000, 0));
    let migration = one(
        &touched_by_first(1, vec![(5, misses.clone())]),
        &machine,
        job("migrate", &[]),
    );
    let expected = steps.interrupt_ns
        + steps.decision_ns
        + steps.allocation_ns
        + steps.mapping_migration_ns
        + steps.flush_ns
        + steps.copy_ns
        + steps.end_migration_ns;
    assert_eq!(migration.migrated, 1);
    near(migration.split.move_ns, expected, 1e-9);
    let split = migration.move_split.expect("it has steps");
    assert_eq!(
        split,
        MoveSplit {
            interrupt_ns: steps.interrupt_ns,
            decision_ns: steps.decision_ns,
            allocation_ns: steps.allocation_ns,
            mapping_ns: steps.mapping_migration_ns,
            flush_ns: steps.flush_ns,
            copy_ns: steps.copy_ns,
            end_ns: steps.end_migration_ns,
            ..MoveSplit::default()
        },
        "no other thread was there to flush or to wait for"
    );
    let cheaper = one(
        &touched_by_first(1, vec![(5, misses.clone())]),
        &machine,
        job("migrate", &[("copy", "hardware")]),
    );
    near(
        cheaper.split.move_ns,
        expected - steps.copy_ns + 35_000.0,
        1e-9,
    );
    let without = "copy has no effect: the machine does not say how long";
    let refused = refusal("carrefour-a", job("migrate", &[("copy", "hardware")]));
    assert!(refused.starts_with(without), "{refused}");
    // Five pages make a batch: there is one interrupt, one flush, and no wait for 500 µs.
    let pages: Vec<Miss> = (0..5)
        .flat_map(|page| vec![load(0, page); 128])
        .chain([load(0, 0)])
        .collect();
    let five = one(
        &touched_by_first(5, vec![(5, pages)]),
        &machine,
        job("migrate", &[("batch_ns", "1000000000")]),
    );
    assert_eq!(five.migrated, 5);
    let each = steps.decision_ns
        + steps.allocation_ns
        + steps.mapping_migration_ns
        + steps.copy_ns
        + steps.end_migration_ns;
    near(
        five.split.move_ns,
        5.0 * each + steps.interrupt_ns + steps.flush_ns,
        1e-9,
    );
}

#[test]
fn other_cpus_flush_all_or_only_those_that_map_the_page() {
    let machine = preset("flash-8-contended").expect("preset");
    let steps = machine.moves.steps.expect("steps");
    let mut hot = vec![load(0, 0); 129];
    hot.push(load(1_000_000, 0));
    // A bystander runs for long on a page of its own.
    let bystander = vec![load(500, 1); 3000];
    let trace = touched_by_first(2, vec![(5, hot), (6, bystander)]);
    let all = one(
        &trace,
        &machine,
        job("migrate", &[("trigger", "100"), ("hold", "32")]),
    );
    let mapping = one(
        &trace,
        &machine,
        job("migrate", &[("trigger", "100"), ("flush", "mapping")]),
    );
    let of = |outcome: &Outcome| outcome.threads[2].split.move_ns;
    // The bystander's own page moves as well, in both cases.
    near(of(&all) - of(&mapping), steps.flush_request_ns, 1e-9);
}

#[test]
fn the_lock_is_waited_for() {
    let machine = preset("flash-8-contended").expect("preset");
    let steps = machine.moves.steps.expect("steps");
    let hot = |page| [vec![load(0, page); 129], vec![load(3000, page); 1000]].concat();
    let cpus = [(4, hot(0)), (5, hot(1)), (6, hot(2)), (7, hot(3))];
    let trace = touched_by_first(4, cpus.to_vec());
    let outcome = one(&trace, &machine, job("migrate", &[]));
    assert_eq!(outcome.migrated, 4);
    let locked = steps.allocation_ns + steps.mapping_migration_ns;
    let alone = steps.interrupt_ns
        + steps.decision_ns
        + locked
        + steps.flush_ns
        + steps.copy_ns
        + steps.end_migration_ns;
    let flushes = 4.0 * 3.0 * steps.flush_request_ns;
    // The threads reach the lock nearly at once, within the few µs by which their misses differ. So the second waits
    // once, the third twice, and the last three times.
    near(
        outcome.split.move_ns,
        4.0 * alone + flushes + 6.0 * locked,
        0.03,
    );
    let split = outcome.move_split.expect("it has steps");
    near(split.lock_ns, 6.0 * locked, 0.03);
    near(split.flush_request_ns, flushes, 1e-9);
    near(split.end_ns, 4.0 * steps.end_migration_ns, 1e-9);
}

#[test]
fn a_move_waits_for_the_lock_while_first_touches_hold_it() {
    let machine = preset("flash-8-contended").expect("preset");
    let steps = machine.moves.steps.expect("steps");
    let mut hot = vec![load(0, 0); 129];
    hot.push(load(1_000_000, 0));
    // Another thread touches a new page every 1,000 instructions, until long after the move.
    let pages = 2000;
    let touching = |page: fn(u32) -> u32| (1..=pages).map(|at| load(1000, page(at))).collect();
    let wait_beside = |others: Vec<Miss>| {
        let mut trace = touched_by_first(1, vec![(5, hot.clone()), (6, others)]);
        trace.pages = pages as usize + 1;
        let outcome = one(&trace, &machine, job("migrate", &[]));
        assert_eq!(outcome.migrated, 1);
        outcome.move_split.expect("it has steps").lock_ns
    };
    assert_eq!(wait_beside(touching(|_| 1)), 0.0);
    let wait = wait_beside(touching(|at| at));
    assert!(
        (0.5 * steps.allocation_ns..=steps.allocation_ns).contains(&wait),
        "{wait}"
    );
}

#[test]
fn a_store_collapses_replicas() {
    let machine = preset("flash-8").expect("preset");
    // Node 0 loads 33 times and node 5 128 times, which makes a replica; then node 5 stores.
    let mut first = batch(
        vec![load(0, 0); 33],
        vec![(33, 0, TraceEvent::Signal { sequence: 1 })],
    );
    first[0].trace_events.push((
        33,
        0,
        TraceEvent::Resume {
            after: 2,
            waited_instructions: 0,
        },
    ));
    let mut second = vec![load(0, 0); 130];
    second.push(store(0, 0));
    second.push(load(0, 0));
    let last = (132, 0, TraceEvent::Signal { sequence: 2 });
    let trace = trace(
        1,
        vec![
            thread(0, 0, 0, first),
            thread(1, 5, 1, batch(second, vec![last])),
        ],
    );
    let outcome = one(&trace, &machine, job("migrate-replicate", &[]));
    assert_eq!(
        (outcome.replicated, outcome.collapsed, outcome.migrated),
        (1, 1, 0)
    );
    assert_eq!(outcome.split.move_ns, 2.0 * 350_000.0);
    assert_eq!(
        outcome.local,
        33 + 2,
        "two reads of the replica; store and last read are remote"
    );
    assert_eq!(outcome.pages_max, 2);
}

#[test]
fn memory_pressure_reclaims_what_is_not_used() {
    let machine = preset("flash-8").expect("preset");
    // Pages 0 to 7 are replicated on node 5 one after the other; there is room for two replicas.
    let first: Vec<Miss> = (0..8).flat_map(|page| vec![load(0, page); 33]).collect();
    let end = first.len();
    let first = batch(first, vec![(end, 0, TraceEvent::Signal { sequence: 1 })]);
    let second: Vec<Miss> = (0..8).flat_map(|page| vec![load(0, page); 200]).collect();
    let trace = trace(
        8,
        vec![
            thread(0, 0, 0, first),
            thread(1, 5, 1, batch(second, vec![])),
        ],
    );
    let free = one(&trace, &machine, job("replicate", &[]));
    assert_eq!(
        (free.replicated, free.reclaimed, free.pages_max),
        (8, 0, 16)
    );
    let tight = one(
        &trace,
        &machine,
        job("replicate", &[("memory_pages", "10")]),
    );
    assert_eq!((tight.replicated, tight.pages_max), (8, 10));
    assert_eq!(
        tight.reclaimed, 6,
        "each further replica takes an old one's place"
    );
    let none = one(&trace, &machine, job("replicate", &[("memory_pages", "8")]));
    assert_eq!((none.replicated, none.pages_max), (0, 8));
}

#[test]
fn replicas_make_way_for_new_pages() {
    let machine = preset("flash-8").expect("preset");
    // Two pages are replicated on node 5, and then four new pages are touched there.
    let first: Vec<Miss> = (0..2).flat_map(|page| vec![load(0, page); 33]).collect();
    let end = first.len();
    let first = batch(first, vec![(end, 0, TraceEvent::Signal { sequence: 1 })]);
    let second = (0..2).flat_map(|page| vec![load(0, page); 200]);
    let second = second.chain((2..6).map(|page| load(0, page))).collect();
    let trace = trace(
        6,
        vec![
            thread(0, 0, 0, first),
            thread(1, 5, 1, batch(second, vec![])),
        ],
    );
    for (pages, expected) in [("8", (2, 0, 8)), ("6", (2, 2, 6)), ("5", (2, 2, 6))] {
        let outcome = one(
            &trace,
            &machine,
            job("replicate", &[("memory_pages", pages)]),
        );
        assert_eq!(
            (outcome.replicated, outcome.reclaimed, outcome.pages_max),
            expected,
            "{pages} pages"
        );
    }
}

#[test]
fn nodes_fill_up() {
    let full = machine(2, CLOCK)
        .to_toml()
        .replace("id = 0\n", "id = 0\nmemory_bytes = 8192\n");
    let full = Machine::from_toml(&full, "full").expect("machine");
    let misses: Vec<Miss> = (0..3).map(|page| load(0, page)).collect();
    let outcome = one(&each(3, &[0], &misses), &full, job("first-touch", &[]));
    assert_eq!((outcome.local, outcome.remote()), (2, 1));
}

/// Node 1 gets a copy of node 0's page, and then a thread that still maps node 0's copy.
#[test]
fn a_thread_that_moves_keeps_its_copy_until_the_page_is_processed() {
    let threads = vec![
        thread(0, 0, 0, batch(vec![load(3000, 0); 1000], vec![])),
        thread(1, 1, 0, batch(vec![load(3000, 0); 200], vec![])),
    ];
    let trace = trace(1, threads);
    let moved = |machine: &str| {
        let moves = "[[move]]\nthread = 0\nat_ns = 5_000_000\ncpu = 1\n";
        let mut job = job("migrate-replicate", &[]);
        job.schedule = Schedule::from_toml(moves, "s.toml")
            .expect("schedule")
            .into();
        one(&trace, &preset(machine).expect("preset"), job)
    };
    let outcome = moved("flash-8-contended");
    assert_eq!((outcome.replicated, outcome.migrated), (1, 0));
    // Node 1's count is 200. At 256 the page is hot again, and it is processed 500 µs later.
    let remote = outcome.threads[0].remote;
    assert!((56..120).contains(&remote), "{remote}");
    let steps = preset("flash-8-contended").expect("preset").moves.steps;
    let mapping_ns = steps.expect("steps").mapping_replica_ns;
    let split = outcome.move_split.expect("it has steps");
    near(split.mapping_ns, 2.0 * mapping_ns, 1e-9);
    // Where moves have a fixed cost, a thread uses the nearest copy at once.
    let outcome = moved("flash-8");
    assert_eq!((outcome.replicated, outcome.threads[0].remote), (1, 0));
}

#[test]
fn a_page_that_another_cpu_is_moving_is_ignored() {
    let machine = preset("flash-8-contended").expect("preset");
    // Nodes 1 and 2 find the page hot at the same time, and again after the same number of misses.
    let replicas = |misses: usize| {
        let reader =
            |cpu: u32, misses| thread(cpu, cpu, 0, batch(vec![load(3000, 0); misses], vec![]));
        let threads = vec![reader(0, 1000), reader(1, misses), reader(2, misses)];
        one(&trace(1, threads), &machine, job("migrate-replicate", &[])).replicated
    };
    assert_eq!((replicas(240), replicas(400)), (1, 2));
}
