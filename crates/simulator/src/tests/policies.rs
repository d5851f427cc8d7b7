//! The online policies of ARS and Carrefour and Linux's own, at work.

use std::slice::from_ref;

use nearpage_online::AutoParameters;

use super::*;
use crate::{PhaseHomes, PlanHomes};

/// A plan.
fn planned(homes: Vec<Option<Home>>, phases: Vec<PhaseHomes>) -> Job {
    Job::new(Policy::Homes {
        name: "plan".to_owned(),
        plan: PlanHomes {
            homes,
            phases,
            live: None,
        },
    })
}

/// A plan whose program `auto` looks after.
fn looked_after(homes: Vec<Option<Home>>, parameters: AutoParameters) -> Job {
    Job::new(Policy::Homes {
        name: "plan".to_owned(),
        plan: PlanHomes {
            homes,
            phases: Vec::new(),
            live: Some(parameters),
        },
    })
}

/// What makes every policy act on a trace of a few microseconds.
pub(super) fn eager() -> Vec<Job> {
    let mut jobs: Vec<Job> = ["out-u", "out-w", "in-w", "out-u-local", "out-w-local"]
        .map(|name| job(name, &[("factor", "0.2"), ("check_ns", "3000")]))
        .to_vec();
    let traffic = [
        ("maptu", "0"),
        ("reads_percent", "0"),
        ("imbalance_percent", "0"),
        ("local_percent", "100"),
        ("samples", "1"),
        ("candidates", "1"),
        ("collapses", "1"),
        ("fast_cycles", "50"),
        ("slow_cycles", "100"),
        ("sample_cost_cycles", "7"),
        ("decision_ns", "5000"),
    ];
    let full = [("source", "cache"), ("memory_pages", "14")];
    jobs.push(job("traffic", &traffic));
    jobs.push(job("traffic", &[&traffic[..], &full].concat()));
    let linux = [
        ("scan_delay_ms", "0"),
        ("scan_period_min_ms", "1"),
        ("tick_ns", "2000"),
    ];
    jobs.push(job("kernel-balancing", &linux));
    let spending = [
        ("check_ns", "2000"),
        ("budget_permille", "1000"),
        ("cost_ns", "1"),
        ("errors", "0"),
        ("every", "2"),
    ];
    jobs.push(job("auto", &spending));
    let homes = (0..12).map(|page| match page % 6 {
        0 | 2 => Some(Home::Copies),
        1 => Some(Home::Later(Some(1))),
        3 => Some(Home::Later(None)),
        4 => Some(Home::Parallel(Some(1))),
        _ => None,
    });
    let homes: Vec<Option<Home>> = homes.collect();
    jobs.push(planned(homes.clone(), Vec::new()));
    // The same, looked after.
    let live = AutoParameters {
        check_ns: 2000,
        budget_permille: 1000,
        cost_ns: 1,
        errors: 0,
        ..AutoParameters::default()
    };
    jobs.push(looked_after(homes, live));
    jobs.push(job("replicate-on-first-touch", &[]));
    jobs.push(job("block-naive", &[]));
    let adaptive = [
        ("trigger", "2"),
        ("hold", "1"),
        ("adaptive", "1"),
        ("reset", "500"),
    ];
    jobs.push(job("migrate-replicate", &adaptive));
    jobs
}

/// Reads of all pages in turn, so many times.
fn reads(pages: u32, rounds: usize) -> Vec<Miss> {
    (0..pages)
        .map(|page| load(0, page))
        .collect::<Vec<_>>()
        .repeat(rounds)
}

/// Node 2 reads four pages of node 0's.
fn remote_reader() -> MemoryTrace {
    touched_by_first(4, vec![(8, reads(4, 5000))])
}

#[test]
fn ars_brings_pages_to_the_node_that_uses_them() {
    let machine = machine(4, CLOCK);
    let trace = remote_reader();
    let still = one(&trace, &machine, job("first-touch", &[]));
    for name in ["out-u", "out-w", "out-u-local", "out-w-local"] {
        let settings = [("check_ns", "1000"), ("move_ns", "5000")];
        let outcome = one(&trace, &machine, job(name, &settings));
        let counts = [
            outcome.migrated,
            outcome.multiple,
            outcome.ping_pong,
            outcome.incorrect,
        ];
        assert_eq!(counts, [4, 0, 0, 0], "{name}");
        assert_eq!(outcome.split.move_ns, 4.0 * 5000.0);
        // Five reads of 200 ns up to the first check.
        assert_eq!(outcome.remote(), 5, "{name}");
        assert!(outcome.time_ns < 0.55 * still.time_ns);
        // Above factor 3 on four nodes no page moves.
        let outcome = one(&trace, &machine, job(name, &[("factor", "3.1")]));
        assert_eq!((outcome.migrated, outcome.time_ns), (0, still.time_ns));
    }
    // Among its remote pages, node 2 reads one most of the time.
    let hot = [reads(4, 1), vec![load(0, 3); 40]].concat().repeat(100);
    let trace = touched_by_first(4, vec![(8, hot)]);
    let settings = [("check_ns", "10000"), ("move_ns", "5000"), ("factor", "1")];
    let outcome = one(&trace, &machine, job("in-w", &settings));
    assert!(outcome.migrated >= 1 && outcome.local_share() > 0.8);
}

#[test]
fn pages_that_come_back_are_ping_pongs() {
    let machine = machine(4, CLOCK);
    let to = |at, cpu| (at, 0, Happening::Move(CpuId(cpu)));
    let mut trace = touched_by_first(1, vec![(4, reads(1, 300))]);
    trace.threads[1].1[0].happenings = vec![to(100, 8), to(200, 4)];
    let outcome = one(
        &trace,
        &machine,
        job("out-u", &[("check_ns", "1000"), ("move_ns", "0")]),
    );
    assert_eq!(
        (outcome.migrated, outcome.multiple, outcome.ping_pong),
        (3, 2, 1)
    );
}

/// Decisions of `traffic` every 10 µs, whatever the traffic.
const OFTEN: [(&str, &str); 4] = [
    ("maptu", "0"),
    ("decision_ns", "10000"),
    ("move_ns", "3000"),
    ("clustering", "0"),
];

fn traffic(more: &[(&str, &str)]) -> Job {
    job("traffic", &[&OFTEN, more].concat())
}

#[test]
fn traffic_colocates_by_samples_and_by_full_information() {
    let machine = machine(4, CLOCK);
    let trace = remote_reader();
    let outcome = one(&trace, &machine, traffic(&[("source", "cache")]));
    // A CPU is idle, and the kernel moves pages there.
    assert_eq!((outcome.migrated, outcome.split.move_ns), (4, 0.0));
    let sampled = [
        ("fast_cycles", "500"),
        ("slow_cycles", "500"),
        ("sample_cost_cycles", "40"),
    ];
    let outcome = one(&trace, &machine, traffic(&sampled));
    assert_eq!(outcome.migrated, 4);
    // Samples cost 40 ns each, and come every 500 ns of the thread's time.
    let samples = outcome.split.move_ns / 40.0;
    assert_eq!(samples.fract(), 0.0);
    near(samples, outcome.time_ns / 500.0, 0.01);
    // Fewer than 50 accesses in a microsecond are not worth it.
    let still = one(&trace, &machine, job("first-touch", &[]));
    let few = [("source", "cache"), ("decision_ns", "10000")];
    let outcome = one(&trace, &machine, job("traffic", &few));
    assert_eq!((outcome.migrated, outcome.time_ns), (0, still.time_ns));
}

/// What a thread writes back at a miss, of a page.
fn write_back(page: u32) -> Miss {
    Miss {
        served: Served::WriteBack,
        ..store(0, page)
    }
}

#[test]
fn hits_that_are_sampled_are_of_the_page_that_was_missed_on_last() {
    let machine = machine(4, CLOCK);
    let settings = [
        ("fast_cycles", "500"),
        ("slow_cycles", "500"),
        ("sample_cost_cycles", "40"),
    ];
    let moved = |others: &[Miss]| {
        let round: Vec<Miss> = others
            .iter()
            .flat_map(|&other| [load(50, 0), other])
            .collect();
        let trace = touched_by_first(3, vec![(8, round.repeat(2000))]);
        one(&trace, &machine, traffic(&settings)).migrated
    };
    let fetch = Miss {
        kind: AccessKind::Fetch,
        ..load(50, 1)
    };
    assert_eq!(moved(&[load(50, 1)]), 2);
    assert_eq!(moved(&[fetch]), 1, "no data is where the code is");
    assert_eq!(moved(&[write_back(2)]), 1, "what goes is not what comes");
    // All time passes in misses, with a line written back after each.
    let trace = touched_by_first(1, vec![(8, [load(0, 0), write_back(0)].repeat(2000))]);
    assert_eq!(one(&trace, &machine, traffic(&settings)).migrated, 1);
}

#[test]
fn the_kernel_moves_pages_on_an_idle_cpu_and_takes_a_threads_time_where_there_is_none() {
    let machine = machine(4, CLOCK);
    let nodes = machine.nodes.iter();
    let cpus: usize = nodes.map(|node| node.cpus.as_slice().len()).sum();
    let moving = |threads: u32| {
        // Each has a page of its own.
        let others = (0..threads).map(|cpu| (cpu, [load(0, cpu)].repeat(20_000)));
        let trace = touched_by_first(threads, others.collect());
        let outcome = one(&trace, &machine, traffic(&[("source", "cache")]));
        let still = one(&trace, &machine, job("first-touch", &[]));
        assert!(outcome.migrated > 0);
        assert!(outcome.time_ns < still.time_ns);
        (outcome.migrated as f64, outcome.split.move_ns)
    };
    assert_eq!(moving(cpus as u32 - 1).1, 0.0);
    let (migrated, move_ns) = moving(cpus as u32);
    assert_eq!(move_ns, migrated * 3000.0);
}

#[test]
fn copies_of_pages_are_traffic_whoever_makes_them() {
    // Node 2 reads a page of node 0's, which moves there: a page of lines is written there besides.
    let steps = "[moves.steps]\ninterrupt_ns = 0\ndecision_ns = 0\nallocation_ns = 1000\nmapping_replica_ns = 1000\n\
                 mapping_migration_ns = 1000\nflush_ns = 0\nflush_request_ns = 0\ncopy_ns = 1000\n\
                 end_replica_ns = 0\nend_migration_ns = 0\nfault_ns = 0\n";
    let machine = machine(4, &format!("{CLOCK}{steps}"));
    let trace = touched_by_first(1, vec![(8, reads(1, 1000))]);
    for policy in [
        job(
            "traffic",
            &[&OFTEN[..2], &[("clustering", "0"), ("source", "cache")]].concat(),
        ),
        job("out-u", &[("check_ns", "10000")]),
    ] {
        let outcome = one(&trace, &machine, policy);
        assert_eq!(outcome.migrated, 1);
        let [from, _, to, _] = outcome.controller_load[..] else {
            panic!("four nodes")
        };
        let local = outcome.misses - outcome.remote();
        assert_eq!((from, to), (outcome.remote() + 64, local + 64));
    }
}

#[test]
fn what_reaches_no_memory_is_no_access_to_it() {
    // Three in four of the lines that node 2 stores to are in its cache already, shared: the memory sees none of that.
    let machine = machine(4, CLOCK);
    let upgrade = Miss {
        served: Served::Upgrade,
        ..store(0, 1)
    };
    let round = [upgrade, upgrade, upgrade, load(0, 0)];
    let trace = touched_by_first(2, vec![(8, round.repeat(5000)), (4, reads(1, 20_000))]);
    let replicated = |settings: &[(&str, &str)]| {
        let settings = [&[("source", "cache"), ("candidates", "1")], settings].concat();
        one(&trace, &machine, traffic(&settings)).replicated
    };
    assert!(replicated(&[]) > 0, "all that memory serves are loads");
    // Five accesses a microsecond of a thread that loads, one and a quarter of the other.
    assert!(replicated(&[("maptu", "6")]) > 0);
    assert_eq!(replicated(&[("maptu", "7")]), 0);
}

#[test]
fn traffic_replicates_from_five_hundred_pages_and_interleaves_below() {
    let machine = machine(4, CLOCK);
    for (pages, expected) in [(499, 0), (500, 3 * 500)] {
        let trace = touched_by_first(pages, [4, 8, 12].map(|cpu| (cpu, reads(pages, 6))).to_vec());
        let decision = format!("{}", pages * 250);
        let settings = [
            ("source", "cache"),
            ("decision_ns", &decision),
            ("move_ns", "1"),
        ];
        let outcome = one(&trace, &machine, traffic(&settings));
        assert_eq!(outcome.replicated, expected);
        assert_eq!(
            outcome.interleaved > 300,
            expected == 0,
            "{}",
            outcome.interleaved
        );
        assert!(outcome.controller_imbalance() < 0.9, "sqrt(3) at first");
    }
}

/// Nodes 1 and 2 read a page until both have a copy; then node 2 stores and node 1 reads, in turn.
fn stores_and_reads(turns: u64) -> MemoryTrace {
    let after = |at, sequence| {
        let waited_instructions = 0;
        (
            at,
            0,
            Happening::Resume {
                after: sequence,
                waited_instructions,
            },
        )
    };
    let signal = |at, sequence| (at, 0, Happening::Signal { sequence });
    let mut reader = (reads(1, 100), vec![signal(100, 2)]);
    let mut writer = (reads(1, 100), vec![after(100, 2)]);
    for turn in 0..turns {
        let (stored, read) = (10 + 2 * turn, 11 + 2 * turn);
        writer.0.push(store(0, 0));
        writer
            .1
            .extend([signal(writer.0.len(), stored), after(writer.0.len(), read)]);
        reader.1.push(after(reader.0.len(), stored));
        reader.0.push(load(0, 0));
        reader.1.push(signal(reader.0.len(), read));
    }
    let mut trace = touched_by_first(1, vec![(4, vec![]), (8, vec![])]);
    for (thread, (misses, happenings)) in [(1, reader), (2, writer)] {
        trace.threads[thread].1 = batch(misses, happenings);
    }
    trace
}

#[test]
fn the_writer_keeps_its_copy_and_readers_get_fresh_ones() {
    let machine = machine(4, CLOCK);
    let replication_only = [
        ("source", "cache"),
        ("candidates", "1"),
        ("reads_percent", "0"),
        ("interleaving", "0"),
        ("colocation", "0"),
    ];
    let outcome = one(&stores_and_reads(1), &machine, traffic(&replication_only));
    assert_eq!(
        (outcome.replicated, outcome.collapsed, outcome.refreshed),
        (2, 1, 1)
    );
    // The kernel makes the copies; the store and the fresh copy take their threads' time.
    assert_eq!(outcome.split.move_ns, 2.0 * 3000.0);
    assert_eq!(outcome.pages_max, 3);
    // The store and the read after it are local, as all since the copies were made.
    let apart = one(&stores_and_reads(0), &machine, traffic(&replication_only));
    assert_eq!(outcome.local, apart.local + 2);
    // Under migrate-replicate the master alone is left, and nobody gets a fresh copy.
    let thresholds = [("trigger", "30"), ("hold", "10"), ("write", "9")];
    let outcome = one(
        &stores_and_reads(1),
        &machine,
        job("migrate-replicate", &thresholds),
    );
    assert_eq!((outcome.collapsed, outcome.refreshed), (1, 0));
    // After more than five collapses the page has one copy for good, however moves are made.
    let steps = [
        "interrupt",
        "decision",
        "allocation",
        "mapping_replica",
        "mapping_migration",
        "flush",
        "flush_request",
        "copy",
        "end_replica",
        "end_migration",
        "fault",
    ];
    let steps: String = steps.map(|step| format!("{step}_ns = 10\n")).concat();
    let by_step = self::machine(4, &format!("{CLOCK}[moves.steps]\n{steps}"));
    let settings = |moves: (&'static str, &'static str)| {
        let often = OFTEN.into_iter().filter(|setting| setting.0 != "move_ns");
        let all = often.chain(replication_only).chain([moves]);
        job("traffic", &all.collect::<Vec<_>>())
    };
    for (machine, moves) in [
        (&machine, ("move_ns", "3000")),
        (&by_step, ("batch_pages", "1")),
    ] {
        let outcome = one(&stores_and_reads(9), machine, settings(moves));
        assert_eq!(
            (outcome.replicated, outcome.collapsed, outcome.refreshed),
            (2, 6, 5),
            "{moves:?}"
        );
    }
}

#[test]
fn a_writer_and_a_reader_of_a_copied_page_both_get_on() {
    let settings = [
        ("source", "cache"),
        ("candidates", "1"),
        ("reads_percent", "0"),
        ("interleaving", "0"),
        ("colocation", "0"),
        ("collapses", "1000000"),
    ];
    let mut trace = stores_and_reads(1);
    // Then neither waits for the other.
    for (thread, miss) in [(1, load(0, 0)), (2, store(0, 0))] {
        trace.threads[thread].1[0].misses.extend([miss; 20]);
    }
    let outcome = one(&trace, &machine(4, CLOCK), traffic(&settings));
    // Each store takes the reader's copy at most once, each read gets one at most once for it.
    assert!(
        (1..=21).contains(&outcome.collapsed),
        "{}",
        outcome.collapsed
    );
    assert!(
        outcome.refreshed <= outcome.collapsed,
        "{}",
        outcome.refreshed
    );
}

#[test]
fn threads_that_share_are_brought_together() {
    let machine = machine(2, CLOCK);
    // CPUs 0 and 1 are on node 0, 4 and 5 on node 1; pages 0 to 3 are used by 0 and 4.
    let of = |first: u32| {
        reads(4, 2000)
            .into_iter()
            .map(move |miss| load(0, miss.page.0 + first))
    };
    let threads = [(0, 0), (1, 4), (4, 0), (5, 4)].iter().enumerate();
    let threads = threads.map(|(number, &(cpu, first))| {
        thread(number as u32, cpu, 0, batch(of(first).collect(), vec![]))
    });
    let trace = trace(8, threads.collect());
    let settings = [("source", "cache"), ("clustering", "1")];
    let outcome = one(&trace, &machine, traffic(&settings));
    assert_eq!(outcome.threads_moved, 2);
    let apart = one(&trace, &machine, traffic(&settings[..1]));
    assert_eq!(apart.threads_moved, 0);
    assert!(outcome.local_share() > 0.95 && apart.local_share() < 0.8);
    assert_eq!(outcome.misses, apart.misses);
}

#[test]
fn linux_moves_pages_by_hinting_faults() {
    let machine = machine(4, CLOCK);
    let settings = [
        ("scan_delay_ms", "0"),
        ("scan_period_min_ms", "1"),
        ("scan_period_max_ms", "1"),
        ("tick_ns", "100000"),
        ("fault_ns", "1000"),
        ("unmap_ns", "10"),
        ("move_ns", "3000"),
    ];
    let outcome = one(
        &remote_reader(),
        &machine,
        job("kernel-balancing", &settings),
    );
    assert_eq!((outcome.migrated, outcome.threads_moved), (4, 0));
    assert!(outcome.local_share() > 0.9);
    // Each pass over the four pages costs as many faults.
    let passes = (outcome.split.move_ns - 4.0 * 3000.0) / (4.0 * 1010.0);
    assert!(passes >= 1.0 && passes.fract() == 0.0, "{passes}");
    // By default the first scan comes after a second.
    let still = one(&remote_reader(), &machine, job("first-touch", &[]));
    let outcome = one(&remote_reader(), &machine, job("kernel-balancing", &[]));
    assert_eq!((outcome.migrated, outcome.time_ns), (0, still.time_ns));
}

#[test]
fn readers_get_copies_at_first_touch() {
    let machine = machine(4, CLOCK);
    let trace = touched_by_first(3, vec![(4, reads(3, 4)), (8, reads(3, 4))]);
    let outcome = one(
        &trace,
        &machine,
        job("replicate-on-first-touch", &[("move_ns", "500")]),
    );
    assert_eq!((outcome.replicated, outcome.remote()), (6, 6));
    assert_eq!(outcome.split.move_ns, 6.0 * 500.0);
}

#[test]
fn blocks_are_dealt_out_in_order() {
    let machine = machine(4, CLOCK);
    for page in 0..8u32 {
        let trace = each(8, &[0], &[load(0, page)]);
        let outcome = one(&trace, &machine, job("block-naive", &[]));
        let latency = machine.latency_ns.as_ref().expect("latencies")[0][page as usize / 2];
        assert_eq!(Some(outcome.time_ns), latency);
    }
    // Fewer pages than nodes: they stay where they start.
    let trace = touched_by_first(3, vec![(4, vec![load(0, 2)])]);
    let outcome = one(&trace, &machine, job("block-naive", &[]));
    assert_eq!(outcome.remote_latency_ns, Some(200.0));
}

#[test]
fn online_policies_need_memory_on_two_nodes() {
    let trace = each(1, &[0], &[load(0, 0)]);
    let machine = machine(1, CLOCK);
    for name in Policy::NAMES {
        let job = job(name, &[]);
        let online = job.policy.is_online();
        match simulate(&trace, &machine, &[job], 1) {
            Ok(_) => assert!(!online, "{name}"),
            Err(error) => {
                let start = format!("{name} makes no sense on this machine: ");
                assert!(online && error.to_string().starts_with(&start), "{error}");
            }
        }
    }
}

#[test]
fn auto_moves_what_pays_and_nothing_beyond_its_budget() {
    let machine = machine(4, &format!("{CLOCK}[moves]\nfixed_ns = 20000\n"));
    let trace = remote_reader();
    let first_touch = one(&trace, &machine, job("first-touch", &[]));
    // 5000 references to each page, 100 ns farther than they need be: 500 µs for 20 µs.
    let outcome = one(
        &trace,
        &machine,
        job(
            "auto",
            &[
                ("budget_permille", "1000"),
                ("check_ns", "100000"),
                ("every", "3"),
            ],
        ),
    );
    assert_eq!((outcome.migrated, outcome.replicated), (4, 0));
    assert!(outcome.time_ns < 0.7 * first_touch.time_ns, "{outcome:?}");
    assert!(
        outcome
            .parameters
            .contains(&("source", "sampled-cache".to_owned()))
    );
    // Nothing to spend: nothing is moved, and nothing is lost.
    let outcome = one(&trace, &machine, job("auto", &[("budget_permille", "0")]));
    assert_eq!((outcome.migrated, outcome.replicated), (0, 0));
    assert_eq!(outcome.time_ns, first_touch.time_ns);
    // A move that costs more than all of it could save.
    let dear = job(
        "auto",
        &[("budget_permille", "1000"), ("move_ns", "1000000")],
    );
    assert_eq!(one(&trace, &machine, dear).migrated, 0);
}

/// Node 1 has CPUs that nobody uses, and node 0 the pages that a thread of node 1 uses: moving those one by one
/// costs far more than the thread does.
#[test]
fn auto_moves_a_thread_to_its_pages() {
    let machine = machine(2, &format!("{CLOCK}[moves]\nfixed_ns = 1000000\n"));
    let trace = touched_by_first(40, vec![(1, reads(1, 100)), (4, reads(40, 2000))]);
    let settings = [("budget_permille", "1000"), ("refill_ns", "10000")];
    let still = [settings[0], settings[1], ("move_threads", "0")];
    let outcome = one(&trace, &machine, job("auto", &settings));
    let still = one(&trace, &machine, job("auto", &still));
    assert_eq!((outcome.threads_moved, outcome.migrated), (1, 0));
    assert_eq!((still.threads_moved, still.migrated), (0, 0));
    assert!(outcome.time_ns < 0.7 * still.time_ns, "{outcome:?}");
    assert_eq!(outcome.misses, still.misses);
}

#[test]
fn a_plan_can_ask_for_copies() {
    let machine = machine(4, CLOCK);
    let trace = touched_by_first(2, vec![(4, reads(2, 50)), (8, reads(2, 50))]);
    let plan = planned(vec![Some(Home::Copies), Some(Home::Node(3))], Vec::new());
    let outcome = one(&trace, &machine, plan);
    // The first page on both readers' nodes, the second on neither's.
    assert_eq!((outcome.replicated, outcome.migrated), (2, 0));
    assert_eq!(outcome.local, 2 * 49);
    // Stores take copies away, and after some of them there are no more.
    let mut written = [load(0, 0), store(0, 0)].repeat(50);
    written.push(load(0, 1));
    let trace = touched_by_first(2, vec![(4, written)]);
    let plan = planned(vec![Some(Home::Copies)], Vec::new());
    assert_eq!(one(&trace, &machine, plan).replicated, 6);
}

#[test]
fn what_a_plan_does_not_hold_is_looked_after() {
    let machine = machine(4, CLOCK);
    // Of three pages that node 0 touched first and node 1 reads, the plan says nothing, has the second on a third
    // node, and wants copies of the last.
    let homes = || vec![None, Some(Home::Node(3)), Some(Home::Copies)];
    let trace = touched_by_first(3, vec![(4, reads(3, 20_000))]);
    let still = one(&trace, &machine, planned(homes(), Vec::new()));
    assert_eq!((still.migrated, still.replicated), (0, 1));
    let live = AutoParameters {
        move_threads: 0,
        ..AutoParameters::default()
    };
    let looked = one(&trace, &machine, looked_after(homes(), live));
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
    // Alone, a thread on node 0 finds the page that waits where it touched it.
    let signal = vec![(2, 0, Happening::Signal { sequence: 1 })];
    let first = || thread(0, 0, 0, batch(reads(2, 1), signal.clone()));
    let alone = one(&trace(2, vec![first()]), &machine, plan());
    assert_eq!((alone.migrated, alone.local, alone.misses), (0, 1, 2));
    // Of the second thread, on node 2, the first reference moves it, and all the others are local.
    let second = thread(1, 8, 1, batch(reads(2, 50), vec![]));
    let both = one(&trace(2, vec![first(), second]), &machine, plan());
    assert_eq!(both.migrated, 1);
    assert_eq!(both.local, 1 + 49 + 50);
}

#[test]
fn a_plan_can_leave_pages_to_the_thread_that_uses_them_next() {
    let machine = machine(4, CLOCK);
    let homes = |home| planned(vec![Some(home), Some(home)], Vec::new());
    // Threads on nodes 1 and 2 each use a page that node 0 touched first, and never refers to: node 1's is the
    // first to be seen, for one reference.
    let users = vec![(4, [load(0, 0)].repeat(50)), (8, [load(0, 1)].repeat(50))];
    let trace = touched_by_first(2, users);
    let outcome = one(&trace, &machine, homes(Home::Later(None)));
    assert_eq!((outcome.migrated, outcome.local), (2, 48 + 49));
}

/// A thread on node 1 reads two pages of node 0's over and over, and executes a function in between, on the third page.
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
    // Of each page the reference that moves it is the only remote one of the last ten.
    assert_eq!(moved(from_ref(&function), [near, None]), (1, 0, 9));
    assert_eq!(moved(from_ref(&function), [near, next]), (2, 0, 18));
    assert_eq!(
        moved(from_ref(&function), [Some(Home::Copies), None]),
        (0, 1, 9)
    );
    // Another function, another page, or a phase that never begins.
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
    // From node 1, for milliseconds.
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

/// A thread on node 2 uses a page of node 0's while the first one waits, which then goes over it alone for
/// milliseconds.
#[test]
fn a_plan_can_give_pages_back_to_the_thread_that_runs_on_alone() {
    let machine = machine(4, CLOCK);
    let outcome = |home| {
        let resume = Happening::Resume {
            after: 2,
            waited_instructions: 0,
        };
        let happenings = vec![(1, 0, Happening::Signal { sequence: 1 }), (1, 0, resume)];
        let first = thread(0, 0, 0, batch(reads(1, 30_000), happenings));
        let end = vec![(50, 0, Happening::Signal { sequence: 2 })];
        let second = thread(1, 8, 1, batch(reads(1, 50), end));
        let job = planned(vec![Some(home)], Vec::new());
        one(&trace(1, vec![first, second]), &machine, job)
    };
    let stays = outcome(Home::Later(Some(2)));
    assert_eq!((stays.migrated, stays.local), (1, 1 + 49));
    let returns = outcome(Home::Parallel(Some(2)));
    assert_eq!(returns.migrated, 2);
    // Alone for a whole millisecond, and 5000 remote misses of 200 ns each make one.
    assert!(returns.local > 15_000, "{}", returns.local);
    assert!(returns.time_ns < 0.8 * stays.time_ns);
}

#[test]
fn every_policy_runs_where_a_node_has_no_cpus_and_nothing_says_what_links_there_are() {
    let text = "name = \"tiers\"\npage_bytes = 4096\n\
        latency_ns = [[100, 200, 300], [200, 100, 300], [nan, nan, 300]]\n\
        [[node]]\nid = 0\ncpus = \"0-3\"\n[[node]]\nid = 1\ncpus = \"4-7\"\n[[node]]\nid = 2\ncpus = \"\"\n";
    let machine = Machine::from_toml(text, "tiers").expect("machine");
    let trace = touched_by_first(6, vec![(4, reads(6, 500))]);
    for name in Policy::NAMES {
        let outcome = one(&trace, &machine, job(name, &[]));
        assert_eq!(outcome.misses, 3000, "{name}");
        assert!(outcome.link_use.is_empty(), "{name}");
    }
    let spread = one(&trace, &machine, job("round-robin", &[]));
    assert_eq!(spread.controller_load, [1000; 3]);
}

#[test]
fn thresholds_that_contradict_each_other_are_told_in_a_line() {
    let trace = each(1, &[0], &[load(0, 0)]);
    let machine = machine(2, CLOCK);
    for (name, settings, message) in [
        (
            "migrate-replicate",
            [("hold", "128"), ("trigger", "128")],
            "hold=128 is not below trigger=128",
        ),
        (
            "traffic",
            [("fast_cycles", "100"), ("slow_cycles", "99")],
            "slow_cycles=99 is below fast_cycles=100",
        ),
        (
            "kernel-balancing",
            [("scan_period_min_ms", "10"), ("scan_period_max_ms", "9")],
            "scan_period_max_ms=9 is below scan_period_min_ms=10",
        ),
    ] {
        let error = simulate(&trace, &machine, &[job(name, &settings)], 1)
            .expect_err(name)
            .to_string();
        assert!(error.starts_with(message), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}
