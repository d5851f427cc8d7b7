//! Closed formulas, thresholds, determinism, conservation.

mod scheduling;

use nearpage_machine::{CpuId, Machine, preset};
use nearpage_recording::trace::{Happening, Miss, PageIndex, Served, StepBatch, TracedThread};
use nearpage_recording::{AccessKind, ThreadIndex};
use proptest::prelude::*;

use crate::{
    Home, Job, MemoryTrace, MoveSplit, Outcome, PlanHomes, Policy, ThreadSteps, Trace, simulate,
};

mod movements;
mod policies;

fn machine(nodes: usize, more: &str) -> Machine {
    let row = |from: usize| {
        let cell = |to: usize| {
            if from == to {
                "100".to_owned()
            } else {
                (200 + 10 * to).to_string()
            }
        };
        format!("[{}]", (0..nodes).map(cell).collect::<Vec<_>>().join(", "))
    };
    let latency = (0..nodes).map(row).collect::<Vec<_>>().join(", ");
    let node = |id: usize| {
        format!(
            "[[node]]\nid = {id}\ncpus = \"{}-{}\"\n",
            4 * id,
            4 * id + 3
        )
    };
    let nodes: String = (0..nodes).map(node).collect();
    let text =
        format!("name = \"test\"\npage_bytes = 4096\nlatency_ns = [{latency}]\n{nodes}{more}");
    Machine::from_toml(&text, "test").expect("machine")
}

/// One instruction a nanosecond.
const CLOCK: &str = "[processor]\nclock_ghz = 1\ncycles_per_instruction = 1\n";

fn load(instructions: u32, page: u32) -> Miss {
    Miss {
        instructions,
        page: PageIndex(page),
        offset: 0,
        kind: AccessKind::Load,
        served: Served::Memory,
        tlb_miss: false,
        sampled: false,
    }
}

fn store(instructions: u32, page: u32) -> Miss {
    Miss {
        kind: AccessKind::Store,
        ..load(instructions, page)
    }
}

fn thread(
    number: u32,
    cpu: u32,
    started_by: u64,
    batches: Vec<StepBatch>,
) -> (TracedThread, Vec<StepBatch>) {
    let thread = TracedThread {
        thread: ThreadIndex(number),
        cpu: CpuId(cpu),
        started_by,
        start_instructions: 0,
    };
    (thread, batches)
}

fn batch(misses: Vec<Miss>, happenings: Vec<(usize, u32, Happening)>) -> Vec<StepBatch> {
    vec![StepBatch { misses, happenings }]
}

fn trace(pages: usize, threads: Vec<(TracedThread, Vec<StepBatch>)>) -> MemoryTrace {
    MemoryTrace { pages, threads }
}

/// Threads on these CPUs, each with these misses.
fn each(pages: usize, cpus: &[u32], misses: &[Miss]) -> MemoryTrace {
    let threads = cpus.iter().enumerate();
    let all =
        threads.map(|(number, &cpu)| thread(number as u32, cpu, 0, batch(misses.to_vec(), vec![])));
    trace(pages, all.collect())
}

fn job(name: &str, settings: &[(&str, &str)]) -> Job {
    let mut job = Job::new(Policy::from_name(name).expect(name));
    for (key, value) in settings {
        assert_eq!(job.set(key, value), Ok(true), "{key}");
    }
    job
}

fn one(trace: &MemoryTrace, machine: &Machine, job: Job) -> Outcome {
    simulate(trace, machine, &[job], 1)
        .expect("simulates")
        .remove(0)
}

/// Everything starts on node 0: thread 0 touches all pages before the others are let go.
fn touched_by_first(pages: u32, others: Vec<(u32, Vec<Miss>)>) -> MemoryTrace {
    let mut touches: Vec<_> = (0..pages)
        .map(|page| (0, 0, Happening::FirstTouch(PageIndex(page))))
        .collect();
    touches.push((0, 0, Happening::Signal { sequence: 1 }));
    let mut threads = vec![thread(0, 0, 0, batch(vec![], touches))];
    for (number, (cpu, misses)) in others.into_iter().enumerate() {
        threads.push(thread(number as u32 + 1, cpu, 1, batch(misses, vec![])));
    }
    trace(pages as usize, threads)
}

fn near(found: f64, expected: f64, share: f64) {
    assert!(
        (found - expected).abs() <= share * expected,
        "{found} is not {expected}"
    );
}

#[test]
fn an_unloaded_read_costs_the_matrix_entry() {
    for (name, local, remote) in [
        ("flash-8", 300.0, 1200.0),
        ("now-8", 300.0, 3000.0),
        ("flash-8-contended", 270.0, 1330.0),
    ] {
        let machine = preset(name).expect(name);
        let trace = touched_by_first(1, vec![(5, vec![load(10, 0), load(0, 0)])]);
        let outcome = one(&trace, &machine, job("first-touch", &[]));
        assert_eq!(outcome.remote_latency_ns, Some(remote), "{name}");
        assert_eq!(outcome.split.remote_stall_ns, 2.0 * remote);
        near(outcome.split.compute_ns, 10.0 / 0.3, 1e-6);
        let outcome = one(
            &each(1, &[3], &[load(0, 0)]),
            &machine,
            job("first-touch", &[]),
        );
        assert_eq!(
            (outcome.local_latency_ns, outcome.remote()),
            (Some(local), 0),
            "{name}"
        );
    }
}

#[test]
fn every_pair_of_nodes_has_its_entry() {
    let machine = machine(4, CLOCK);
    for cpu in 0..4u32 {
        for page in 0..4u32 {
            let outcome = one(
                &each(4, &[4 * cpu], &[load(0, page)]),
                &machine,
                job("round-robin", &[]),
            );
            let expected =
                machine.latency_ns.as_ref().expect("latencies")[cpu as usize][page as usize];
            assert_eq!(Some(outcome.time_ns), expected);
        }
    }
}

#[test]
fn saturating_threads_get_the_controllers_bandwidth() {
    // A line of 64 bytes in 20 ns at 3.2 GB/s; sixteen CPUs wait 100 to 230 ns for each.
    let machine = machine(
        4,
        &format!("{CLOCK}[memory]\nbandwidth_bytes_per_s = 3.2e9\n"),
    );
    let cpus: Vec<u32> = (0..16).collect();
    let outcome = one(
        &each(1, &cpus, &[load(0, 0); 1000]),
        &machine,
        job("round-robin", &[]),
    );
    near(outcome.time_ns, 16_000.0 * 20.0, 0.001);
    assert_eq!(outcome.controller_load, [16_000, 0, 0, 0]);
    assert!((outcome.controller_imbalance() - 3f64.sqrt()).abs() < 1e-9);
}

#[test]
fn saturated_links_give_their_bandwidth() {
    let link = "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1.6e9\n";
    let machine = machine(2, &format!("{CLOCK}{link}"));
    let cpus = [4, 5, 6, 7, 4, 5, 6, 7];
    let outcome = one(
        &each(1, &cpus[..4], &[load(0, 0); 1000]),
        &machine,
        job("round-robin", &[]),
    );
    // Four CPUs with 200 ns and more each do not fill 40 ns a line…
    near(outcome.time_ns, 1000.0 * 200.0, 0.001);
    let many = format!("{CLOCK}outstanding_misses = 10\n{link}");
    let machine = self::machine(2, &many);
    let outcome = one(
        &each(1, &cpus[..4], &[load(0, 0); 1000]),
        &machine,
        job("round-robin", &[]),
    );
    // …with ten outstanding each they do.
    near(outcome.time_ns, 4000.0 * 40.0, 0.01);
    let (busy, idle) = (
        outcome.link_use[0].max(outcome.link_use[1]),
        outcome.link_use[0].min(outcome.link_use[1]),
    );
    near(busy, 1.0, 0.01);
    assert_eq!(idle, 0.0, "data goes one way");
}

#[test]
fn waiting_at_half_load_is_that_of_m_d_1() {
    // Poisson arrivals: one thread that never waits for its misses, with exponential gaps of twice
    // the service of 20 ns. M/D/1 waits ρ/(2(1−ρ)) = half a service.
    let more = format!(
        "{CLOCK}outstanding_misses = 100000\nwindow_instructions = 4000000000\n[memory]\nbandwidth_bytes_per_s = 3.2e7\n"
    );
    let machine = machine(1, &more);
    let service_ns = 2000.0;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut gap = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let uniform = (random >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - uniform).ln() * 2.0 * service_ns) as u32
    };
    let misses: Vec<Miss> = (0..200_000).map(|_| load(gap(), 0)).collect();
    let outcome = one(&each(1, &[0], &misses), &machine, job("first-touch", &[]));
    let wait = outcome.local_latency_ns.expect("misses") - 100.0;
    near(wait, service_ns / 2.0, 0.05);
}

#[test]
fn a_directory_that_is_occupied_delays_all() {
    let machine = machine(2, &format!("{CLOCK}[memory]\ndirectory_ns = 50\n"));
    // Four CPUs of node 0 at home: each directory request takes 50, so that 4 × 50 > 100.
    let outcome = one(
        &each(1, &[0, 1, 2, 3], &[load(0, 0); 1000]),
        &machine,
        job("first-touch", &[]),
    );
    near(outcome.time_ns, 4000.0 * 50.0, 0.001);
    // Upgrades take their place as well.
    let upgrade = Miss {
        served: Served::Upgrade,
        ..store(0, 0)
    };
    let outcome = one(
        &each(1, &[0, 1, 2, 3], &[upgrade; 1000]),
        &machine,
        job("first-touch", &[]),
    );
    near(outcome.time_ns, 4000.0 * 50.0, 0.001);
    assert_eq!(outcome.controller_load, [0, 0], "no data moves");
}

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
    // The cost can be set.
    let trace = touched_by_first(1, vec![(5, vec![load(0, 0); 130])]);
    let outcome = one(&trace, &machine, job("migrate", &[("move_ns", "1000000")]));
    assert_eq!(outcome.split.move_ns, 1e6);
}

#[test]
fn a_page_moved_costs_its_steps() {
    let machine = preset("flash-8-contended").expect("preset");
    let steps = machine.moves.steps.expect("steps");
    // The last miss comes after the batch's 500 µs.
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
    // Five pages are a batch: one interrupt and one flush, and no waiting for 500 µs.
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
    // A bystander that goes on for long on a page of its own.
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
    // Its own page moves too, in either case.
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
    // They come to the lock together, but for the few µs by which their misses differ: the second
    // waits once, the third twice, the last three times.
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
fn a_store_collapses_replicas() {
    let machine = preset("flash-8").expect("preset");
    // Node 0 reads 33 times, node 5 128 times: a replica; then node 5 writes.
    let mut first = batch(
        vec![load(0, 0); 33],
        vec![(33, 0, Happening::Signal { sequence: 1 })],
    );
    first[0].happenings.push((
        33,
        0,
        Happening::Resume {
            after: 2,
            waited_instructions: 0,
        },
    ));
    let mut second = vec![load(0, 0); 130];
    second.push(store(0, 0));
    second.push(load(0, 0));
    let last = (132, 0, Happening::Signal { sequence: 2 });
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
    // Pages 0..8 are replicated on node 5 one after the other, with room for two replicas.
    let first: Vec<Miss> = (0..8).flat_map(|page| vec![load(0, page); 33]).collect();
    let end = first.len();
    let first = batch(first, vec![(end, 0, Happening::Signal { sequence: 1 })]);
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
    // Two pages are replicated on node 5, then four new ones are touched there.
    let first: Vec<Miss> = (0..2).flat_map(|page| vec![load(0, page); 33]).collect();
    let end = first.len();
    let first = batch(first, vec![(end, 0, Happening::Signal { sequence: 1 })]);
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

#[test]
fn samples_and_tlb_misses_inform_as_well() {
    let machine = preset("flash-8").expect("preset");
    let count = |settings: &[(&str, &str)], misses: usize, tlb_miss: bool| {
        let miss = Miss {
            tlb_miss,
            ..load(0, 0)
        };
        let trace = touched_by_first(1, vec![(5, vec![miss; misses])]);
        one(&trace, &machine, job("migrate", settings)).migrated
    };
    // Thirteen samples of one in ten, which are 1 to 19 misses apart.
    assert_eq!(count(&[("source", "sampled-cache")], 12, false), 0);
    assert_eq!(count(&[("source", "sampled-cache")], 247, false), 1);
    assert_eq!(count(&[("source", "tlb")], 1000, false), 0);
    assert_eq!(count(&[("source", "tlb")], 128, true), 1);
    assert_eq!(
        count(&[("source", "sampled-tlb"), ("every", "64")], 1, true),
        0
    );
    assert_eq!(
        count(&[("source", "sampled-tlb"), ("every", "64")], 254, true),
        1
    );
}

/// A loop that takes turns at two pages, by one in ten misses: at even distances it would show one of them alone.
#[test]
fn samples_show_both_of_what_a_loop_takes_turns_at() {
    let machine = preset("flash-8").expect("preset");
    let turns: Vec<Miss> = (0..1000).map(|turn| load(0, turn % 2)).collect();
    let trace = touched_by_first(2, vec![(5, turns)]);
    let job = job("migrate", &[("source", "sampled-cache")]);
    assert_eq!(one(&trace, &machine, job).migrated, 2);
}

#[test]
fn loads_are_sampled_by_their_latency() {
    let machine = preset("flash-8").expect("preset");
    let moved = |settings: &[(&str, &str)], miss: Miss, count: usize| {
        let settings = [&[("source", "loads")], settings].concat();
        let trace = touched_by_first(1, vec![(5, vec![miss; count])]);
        one(&trace, &machine, job("migrate", &settings)).migrated
    };
    // A remote miss takes 1200 ns, 360 cycles of 300 MHz; thirteen samples of one in ten.
    assert_eq!(moved(&[], load(0, 0), 12), 0);
    assert_eq!(moved(&[], load(0, 0), 247), 1);
    assert_eq!(moved(&[], store(0, 0), 1000), 0, "loads only");
    assert_eq!(moved(&[("min_latency", "360")], load(0, 0), 247), 1);
    assert_eq!(moved(&[("min_latency", "361")], load(0, 0), 1000), 0);
    let hit = Miss {
        served: Served::L2,
        ..load(0, 0)
    };
    assert_eq!(
        moved(&[("every", "1")], hit, 1000),
        0,
        "50 ns are 15 cycles"
    );
    assert_eq!(moved(&[("every", "1"), ("min_latency", "15")], hit, 128), 1);
}

#[test]
fn a_clock_sees_the_time_that_is_lost() {
    let machine = preset("flash-8").expect("preset");
    let moved = |settings: &[(&str, &str)], count: usize| {
        let settings = [&[("source", "clock")], settings].concat();
        let trace = touched_by_first(1, vec![(5, vec![load(77, 0); count])]);
        one(&trace, &machine, job("migrate", &settings)).migrated
    };
    // A sample for the time of ten remote misses, thirteen of them.
    assert_eq!(moved(&[], 129), 0);
    assert_eq!(moved(&[], 130), 1);
    assert_eq!(moved(&[("every", "1")], 127), 0);
    assert_eq!(moved(&[("every", "1")], 128), 1);
    // Local misses take a quarter of the time: the page is shared only when the holder lost as much.
    let kinds = |local: usize| {
        let first = batch(
            vec![load(0, 0); local],
            vec![(local, 0, Happening::Signal { sequence: 1 })],
        );
        let second = batch(vec![load(0, 0); 128], vec![]);
        let trace = trace(1, vec![thread(0, 0, 0, first), thread(1, 5, 1, second)]);
        let settings = [("source", "clock"), ("every", "1")];
        let outcome = one(&trace, &machine, job("migrate-replicate", &settings));
        (outcome.migrated, outcome.replicated)
    };
    assert_eq!(kinds(4 * 32), (1, 0));
    assert_eq!(kinds(4 * 33), (0, 1));
}

#[test]
fn several_outstanding_misses_overlap_within_the_window() {
    let two = machine(
        1,
        &format!("{CLOCK}outstanding_misses = 2\nwindow_instructions = 50\n"),
    );
    let time = |misses: &[Miss]| one(&each(1, &[0], misses), &two, job("first-touch", &[])).time_ns;
    // Two at once; the third waits for the first.
    assert_eq!(time(&[load(0, 0), load(10, 0)]), 110.0);
    assert_eq!(time(&[load(0, 0), load(10, 0), load(10, 0)]), 200.0);
    // 50 instructions past the first miss the CPU waits for it.
    assert_eq!(time(&[load(0, 0), load(60, 0)]), 100.0 + 10.0 + 100.0);
    // Fetches are waited for at once.
    let fetch = Miss {
        kind: AccessKind::Fetch,
        ..load(0, 0)
    };
    assert_eq!(time(&[fetch, load(10, 0)]), 210.0);
}

#[test]
fn signals_are_waited_for_and_missing_ones_are_not_for_ever() {
    let machine = machine(1, CLOCK);
    let wait = |after, waited_instructions| Happening::Resume {
        after,
        waited_instructions,
    };
    let first = batch(vec![], vec![(0, 500, Happening::Signal { sequence: 1 })]);
    let second = batch(
        vec![load(0, 0)],
        vec![(0, 20, wait(1, 0)), (1, 0, wait(0, 30))],
    );
    let trace_ = trace(1, vec![thread(0, 0, 0, first), thread(1, 1, 0, second)]);
    let outcome = one(&trace_, &machine, job("first-touch", &[]));
    assert_eq!(outcome.threads[1].split.wait_ns, 480.0 + 30.0);
    assert_eq!(outcome.time_ns, 500.0 + 100.0 + 30.0);
    assert_eq!(outcome.signals_missing, 0);
    // A ring of waits, and a thread that nobody starts.
    let first = batch(
        vec![],
        vec![
            (0, 500, wait(7, 40)),
            (0, 0, Happening::Signal { sequence: 8 }),
        ],
    );
    let second = batch(
        vec![],
        vec![
            (0, 20, wait(8, 1000)),
            (0, 0, Happening::Signal { sequence: 7 }),
        ],
    );
    let third = batch(vec![load(5, 0)], vec![]);
    let trace_ = trace(
        1,
        vec![
            thread(0, 0, 0, first),
            thread(1, 1, 0, second),
            thread(2, 2, 99, third),
        ],
    );
    let outcome = one(&trace_, &machine, job("first-touch", &[]));
    assert_eq!(outcome.signals_missing, 2);
    assert_eq!(
        (outcome.threads[0].time_ns, outcome.threads[1].time_ns),
        (540.0, 540.0)
    );
    assert_eq!(outcome.misses, 1);
}

#[test]
fn threads_of_one_cpu_take_turns() {
    let machine = machine(1, CLOCK);
    let outcome = one(
        &each(1, &[0, 0], &[load(900, 0); 100]),
        &machine,
        job("first-touch", &[("slice_ns", "10000")]),
    );
    assert_eq!(outcome.time_ns, 2.0 * 100.0 * 1000.0);
    let waited: Vec<f64> = outcome
        .threads
        .iter()
        .map(|thread| thread.split.wait_ns)
        .collect();
    assert!(
        waited.iter().all(|&wait| wait >= 90_000.0),
        "both wait: {waited:?}"
    );
    // A thread that waits lets the other run.
    let nap = Happening::Resume {
        after: 0,
        waited_instructions: 1000,
    };
    let sleeper = batch(vec![load(0, 0)], vec![(0, 0, nap)]);
    let worker = batch(vec![load(900, 0)], vec![]);
    let trace = trace(1, vec![thread(0, 0, 0, sleeper), thread(1, 0, 0, worker)]);
    assert_eq!(
        one(&trace, &machine, job("first-touch", &[])).time_ns,
        1100.0
    );
}

#[test]
fn a_thread_that_moves_misses_from_its_new_node() {
    let machine = preset("flash-8").expect("preset");
    let misses = vec![load(0, 0); 4];
    let moves = vec![(2, 0, Happening::Move(CpuId(3)))];
    let trace = trace(1, vec![thread(0, 0, 0, batch(misses, moves))]);
    let outcome = one(&trace, &machine, job("first-touch", &[]));
    assert_eq!((outcome.local, outcome.remote()), (2, 2));
    let outcome = one(&trace, &machine, job("post-facto", &[]));
    assert_eq!((outcome.local, outcome.remote()), (2, 2));
}

#[test]
fn only_the_stable_phase_counts() {
    let machine = machine(2, CLOCK);
    let mark = |begin| Happening::Mark { begin };
    let misses = vec![load(10, 0); 6];
    let marks = vec![
        (2, 0, mark(true)),
        (3, 0, mark(false)),
        (4, 0, mark(true)),
        (6, 5, mark(false)),
    ];
    let outcome = one(
        &trace(1, vec![thread(0, 0, 0, batch(misses, marks))]),
        &machine,
        job("first-touch", &[]),
    );
    assert_eq!(outcome.misses, 3);
    assert_eq!(outcome.time_ns, 3.0 * 110.0 + 5.0);
    near(outcome.pages_mean, 1.0, 1e-9);
}

#[test]
fn ping_pong_and_multiple_migrations_are_counted() {
    let machine = preset("flash-8").expect("preset");
    // Node 5 misses 128 times, then node 0, then node 5 again; the interval is over in between.
    let turn = |first: u64| {
        vec![
            (
                0,
                0,
                Happening::Resume {
                    after: first,
                    waited_instructions: 0,
                },
            ),
            (
                128,
                40_000_000,
                Happening::Signal {
                    sequence: first + 1,
                },
            ),
        ]
    };
    let zero = batch(vec![load(0, 0); 128], turn(2));
    let mut five = batch(vec![load(0, 0); 128], turn(1));
    five.extend(batch(vec![load(0, 0); 128], turn(3)));
    let start = vec![
        (0, 0, Happening::FirstTouch(PageIndex(0))),
        (0, 0, Happening::Signal { sequence: 1 }),
    ];
    let trace = trace(
        1,
        vec![
            thread(0, 0, 0, [batch(vec![], start), zero].concat()),
            thread(1, 5, 0, five),
        ],
    );
    let outcome = one(&trace, &machine, job("migrate", &[]));
    assert_eq!(
        (outcome.migrated, outcome.multiple, outcome.ping_pong),
        (3, 2, 2)
    );
    assert_eq!(outcome.incorrect, 0);
}

#[test]
fn a_trace_for_another_machine_is_refused() {
    let trace = each(1, &[77], &[load(0, 0)]);
    let error = simulate(
        &trace,
        &preset("flash-8").expect("preset"),
        &[job("first-touch", &[])],
        1,
    );
    assert!(
        error
            .expect_err("CPU")
            .to_string()
            .starts_with("the trace has a thread on CPU 77")
    );
    let trace = each(1, &[0], &[load(0, 1)]);
    let error = simulate(
        &trace,
        &preset("flash-8").expect("preset"),
        &[job("post-facto", &[])],
        1,
    );
    assert_eq!(
        error.expect_err("page").to_string(),
        "the trace names page 1, but has 1 page: it is damaged"
    );
}

#[test]
fn what_takes_longer_than_can_be_counted_is_refused() {
    let refused = |more: &str, name: &str, settings: &[(&str, &str)]| {
        let trace = touched_by_first(
            1,
            vec![(5, vec![load(0, 0); 130]), (6, vec![load(0, 0); 130])],
        );
        let result = simulate(&trace, &machine(2, more), &[job(name, settings)], 1);
        let error = result.expect_err(more).to_string();
        assert!(
            error.contains("beyond the two and a half hours"),
            "{more}: {error}"
        );
    };
    let slow_memory = "[memory]\nbandwidth_bytes_per_s = 1e-300\n";
    refused(slow_memory, "first-touch", &[]);
    refused("[memory]\ndirectory_ns = 1e300\n", "first-touch", &[]);
    let slow_link = "[[link]]\nnodes = [0, 1]\nbandwidth_bytes_per_s = 1e-300\n";
    refused(slow_link, "first-touch", &[]);
    let moving = [("trigger", "16"), ("hold", "4")];
    refused("[moves]\nfixed_ns = 1e300\n", "migrate", &moving);
    let mut far = machine(2, "");
    if let Some(latency_ns) = &mut far.latency_ns {
        latency_ns[1][0] = Some(1e300);
    }
    let trace = touched_by_first(1, vec![(5, vec![load(0, 0)])]);
    let error = simulate(&trace, &far, &[job("first-touch", &[])], 1);
    assert!(error.is_err());
}

/// Any trace of a few threads: misses of all kinds, and whatever happens.
fn traces() -> impl Strategy<Value = MemoryTrace> {
    let miss = (
        0u32..2000,
        0u32..12,
        0u8..3,
        0u8..7,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(instructions, page, kind, served, tlb_miss, sampled)| Miss {
                instructions,
                page: PageIndex(page),
                offset: 0,
                kind: AccessKind::from_number(kind).expect("kind"),
                served: [
                    Served::L1,
                    Served::L2,
                    Served::L3,
                    Served::Memory,
                    Served::OtherCache,
                    Served::Upgrade,
                    Served::WriteBack,
                ][usize::from(served)],
                tlb_miss,
                sampled,
            },
        );
    let happening = prop_oneof![
        (0u32..12).prop_map(|page| Happening::FirstTouch(PageIndex(page))),
        (1u64..12).prop_map(|sequence| Happening::Signal { sequence }),
        (0u64..12, 0u64..100_000).prop_map(|(after, waited_instructions)| Happening::Resume {
            after,
            waited_instructions
        }),
        (0u32..8).prop_map(|cpu| Happening::Move(CpuId(cpu))),
    ];
    let batch = (
        prop::collection::vec(miss, 0..200),
        prop::collection::vec((0usize..200, 0u32..500, happening), 0..6),
    )
        .prop_map(|(misses, mut happenings)| {
            happenings
                .iter_mut()
                .for_each(|what| what.0 = what.0.min(misses.len()));
            happenings.sort_by_key(|what| what.0);
            StepBatch { misses, happenings }
        });
    let one = (0u32..8, 0u64..4, prop::collection::vec(batch, 0..4));
    prop::collection::vec(one, 1..6).prop_map(|threads| {
        let threads = threads.into_iter().enumerate();
        let thread = |(number, (cpu, started_by, batches))| {
            self::thread(
                number as u32,
                cpu,
                if number == 0 { 0 } else { started_by },
                batches,
            )
        };
        trace(12, threads.map(thread).collect())
    })
}

fn jobs() -> Vec<Job> {
    let low = [
        ("trigger", "8"),
        ("hold", "2"),
        ("write", "3"),
        ("migrate", "2"),
    ];
    let mut jobs: Vec<Job> = ["first-touch", "round-robin", "interleave", "post-facto"]
        .map(|name| job(name, &[]))
        .to_vec();
    for name in ["migrate", "replicate", "migrate-replicate"] {
        jobs.push(job(name, &low));
    }
    jobs.push(job(
        "migrate-replicate",
        &[&low[..], &[("memory_pages", "13"), ("flush", "mapping")]].concat(),
    ));
    jobs.push(job(
        "migrate-replicate",
        &[&low[..], &[("batch_pages", "2"), ("slice_ns", "3000")]].concat(),
    ));
    jobs.extend(policies::eager());
    jobs
}

/// A machine with everything that queues.
fn crowded() -> Machine {
    let mut machine = preset("flash-8-contended").expect("preset");
    machine.processor.outstanding_misses = Some(3);
    machine.memory.bandwidth_bytes_per_s = Some(5e8);
    for node in 1..8 {
        machine.links.push(nearpage_machine::Link {
            nodes: [
                nearpage_machine::NodeId(node - 1),
                nearpage_machine::NodeId(node),
            ],
            bandwidth_bytes_per_s: 4e8,
        });
    }
    machine
}

/// A trace of which it is not known whether a phase is marked.
struct InTurn<'a>(&'a MemoryTrace);

impl Trace for InTurn<'_> {
    fn pages(&self) -> usize {
        self.0.pages()
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        self.0.threads()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost_and_workers_do_not_matter(trace in traces(), contended in any::<bool>()) {
        let machine = if contended { crowded() } else { preset("flash-8").expect("preset") };
        let jobs = jobs();
        let outcomes = simulate(&trace, &machine, &jobs, 1).expect("simulates");
        for workers in [2, 5] {
            prop_assert_eq!(&simulate(&trace, &machine, &jobs, workers).expect("simulates"), &outcomes);
        }
        let all = trace.threads.iter().flat_map(|thread| &thread.1).flat_map(|batch| &batch.misses);
        let demand = |miss: &&Miss| matches!(miss.served, Served::Memory | Served::OtherCache | Served::Upgrade);
        let misses = all.filter(demand).count() as u64;
        for outcome in &outcomes {
            prop_assert_eq!(outcome.misses, misses, "{}", outcome.policy);
            prop_assert_eq!(outcome.local + outcome.remote(), misses);
            let mut sum = 0;
            for thread in &outcome.threads {
                sum += thread.local + thread.remote;
                let parts = thread.split.total_ns();
                prop_assert!((thread.time_ns - parts).abs() <= 1e-9 * parts.max(1.0), "{:?}", thread);
                prop_assert!(thread.time_ns <= outcome.time_ns * (1.0 + 1e-12));
            }
            prop_assert_eq!(sum, misses);
            prop_assert!(outcome.pages_mean <= outcome.pages_max as f64 * (1.0 + 1e-12));
        }
    }

    /// Hits that a thread takes before its turn change nothing, under any policy and however it is shown misses.
    #[test]
    fn turns_of_unseen_hits_do_not_matter(trace in traces(), contended in any::<bool>()) {
        let machine = if contended { crowded() } else { preset("flash-8").expect("preset") };
        let mut jobs = jobs();
        for source in ["tlb", "sampled-cache", "loads", "clock"] {
            let settings = [("trigger", "8"), ("hold", "2"), ("every", "2"), ("source", source)];
            jobs.push(job("migrate-replicate", &settings));
        }
        for job in &mut jobs {
            job.options.movements_max = 10;
        }
        let in_turn = simulate(&InTurn(&trace), &machine, &jobs, 1).expect("simulates");
        prop_assert!(!trace.may_be_marked());
        prop_assert_eq!(&simulate(&trace, &machine, &jobs, 1).expect("simulates"), &in_turn);
    }

    #[test]
    fn post_facto_is_the_best_static_placement(
        misses in prop::collection::vec((0usize..3, 0u32..4), 1..40)
    ) {
        let machine = machine(3, CLOCK);
        let of = |node: usize| misses.iter().filter(move |miss| miss.0 == node).map(|miss| load(0, miss.1));
        let threads = (0..3).map(|node| {
            thread(node as u32, 4 * node as u32, 0, batch(of(node).collect(), vec![]))
        });
        let trace = trace(4, threads.collect());
        let stall = |job: Job| {
            let split = one(&trace, &machine, job).split;
            split.local_stall_ns + split.remote_stall_ns
        };
        let best = (0..81u32)
            .map(|code| {
                let homes = (0..4).map(|page| Some(Home::Node((code / 3u32.pow(page) % 3) as u16))).collect();
                stall(Job::new(Policy::Homes { name: "brute force".to_owned(), plan: PlanHomes { homes, ..PlanHomes::default() } }))
            })
            .fold(f64::INFINITY, f64::min);
        prop_assert_eq!(stall(job("post-facto", &[])), best);
    }
}
