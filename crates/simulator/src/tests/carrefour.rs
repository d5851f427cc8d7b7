//! The policy `carrefour` in the simulator.

use super::*;

/// `carrefour` decides every 10 µs, at any traffic.
const OFTEN: [(&str, &str); 4] = [
    ("maptu", "0"),
    ("decision_ns", "10000"),
    ("move_ns", "3000"),
    ("clustering", "0"),
];

fn carrefour(more: &[(&str, &str)]) -> Job {
    job("carrefour", &[&OFTEN, more].concat())
}

#[test]
fn traffic_colocates_by_samples_and_by_full_information() {
    let machine = machine(4, CLOCK);
    let trace = remote_reader();
    let outcome = one(&trace, &machine, carrefour(&[("source", "cache")]));
    // An idle CPU runs the kernel thread that moves pages.
    assert_eq!((outcome.migrated, outcome.split.move_ns), (4, 0.0));
    let sampled = [
        ("fast_cycles", "500"),
        ("slow_cycles", "500"),
        ("sample_cost_cycles", "40"),
    ];
    let outcome = one(&trace, &machine, carrefour(&sampled));
    assert_eq!(outcome.migrated, 4);
    // Samples cost 40 ns each, and are taken every 500 ns of the thread's time.
    let samples = outcome.split.move_ns / 40.0;
    assert_eq!(samples.fract(), 0.0);
    near(samples, outcome.time_ns / 500.0, 0.01);
    // `carrefour` does not manage programs with fewer than 50 accesses per microsecond.
    let still = one(&trace, &machine, job("first-touch", &[]));
    let few = [("source", "cache"), ("decision_ns", "10000")];
    let outcome = one(&trace, &machine, job("carrefour", &few));
    assert_eq!((outcome.migrated, outcome.time_ns), (0, still.time_ns));
}

/// Write-back of a line of a page.
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
        one(&trace, &machine, carrefour(&settings)).migrated
    };
    let fetch = Miss {
        kind: AccessKind::Fetch,
        ..load(50, 1)
    };
    assert_eq!(moved(&[load(50, 1)]), 2);
    assert_eq!(moved(&[fetch]), 1, "no data is where the code is");
    assert_eq!(moved(&[write_back(2)]), 1, "what goes is not what comes");
    // All time passes in misses, each followed by a write-back.
    let trace = touched_by_first(1, vec![(8, [load(0, 0), write_back(0)].repeat(2000))]);
    assert_eq!(one(&trace, &machine, carrefour(&settings)).migrated, 1);
}

#[test]
fn a_page_that_a_thread_stores_to_in_its_cache_is_no_read_only_page_to_samples() {
    // Three nodes load a page, and one of them also stores to it in its cache.
    let machine = machine(4, CLOCK);
    let note = Miss {
        served: Served::L1,
        ..store(0, 0)
    };
    let settings = [
        ("maptu", "0"),
        ("decision_ns", "100000"),
        ("move_ns", "3000"),
        ("clustering", "0"),
        ("fast_cycles", "500"),
        ("slow_cycles", "500"),
        ("sample_cost_cycles", "40"),
        ("candidates", "1"),
    ];
    let outcome = |writes: &[Miss]| {
        let reader = [load(50, 0)].repeat(4000);
        // The writer runs longer than the readers.
        let writer = [&[load(50, 0)], writes].concat().repeat(12_000);
        let trace = touched_by_first(1, vec![(4, reader.clone()), (8, reader), (12, writer)]);
        let outcome = one(&trace, &machine, job("carrefour", &settings));
        (outcome.replicated, outcome.collapsed)
    };
    assert_eq!(outcome(&[]), (3, 0));
    assert_eq!(outcome(&[note]), (0, 0));
}

#[test]
fn the_kernel_moves_pages_on_an_idle_cpu_and_takes_a_threads_time_where_there_is_none() {
    let machine = machine(4, CLOCK);
    let nodes = machine.nodes.iter();
    let cpus: usize = nodes.map(|node| node.cpus.as_slice().len()).sum();
    let moving = |threads: u32| {
        // Each thread uses a page of its own.
        let others = (0..threads).map(|cpu| (cpu, [load(0, cpu)].repeat(20_000)));
        let trace = touched_by_first(threads, others.collect());
        let outcome = one(&trace, &machine, carrefour(&[("source", "cache")]));
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
    // Node 2 loads a page of node 0. The page moves to node 2, whose controller serves the lines that are written.
    let steps = "[moves.steps]\ninterrupt_ns = 0\ndecision_ns = 0\nallocation_ns = 1000\nmapping_replica_ns = 1000\n\
                 mapping_migration_ns = 1000\nflush_ns = 0\nflush_request_ns = 0\ncopy_ns = 1000\n\
                 end_replica_ns = 0\nend_migration_ns = 0\nfault_ns = 0\n";
    let machine = machine(4, &format!("{CLOCK}{steps}"));
    let trace = touched_by_first(1, vec![(8, reads(1, 1000))]);
    for policy in [
        job(
            "carrefour",
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
fn upgrades_do_not_count_as_memory_accesses() {
    // Three in four stores of node 2 are upgrades, which no memory controller sees.
    let machine = machine(4, CLOCK);
    let upgrade = Miss {
        served: Served::Upgrade,
        ..store(0, 1)
    };
    let round = [upgrade, upgrade, upgrade, load(0, 0)];
    let trace = touched_by_first(2, vec![(8, round.repeat(5000)), (4, reads(1, 20_000))]);
    let replicated = |settings: &[(&str, &str)]| {
        let settings = [&[("source", "cache"), ("candidates", "1")], settings].concat();
        one(&trace, &machine, carrefour(&settings)).replicated
    };
    assert!(replicated(&[]) > 0, "all that memory serves are loads");
    // The loading thread makes five accesses per microsecond, the other one 1.25.
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
        let outcome = one(&trace, &machine, carrefour(&settings));
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

/// A page that a CPU is moving is ignored by others; the CPU itself took its own page for one that another was moving.
#[test]
fn a_thread_copies_a_page_to_all_nodes_in_one_batch() {
    let machine = preset("flash-8-contended").expect("preset");
    // No CPU is idle, so that threads are interrupted.
    let cpus: Vec<u32> = (0..8).collect();
    let trace = each(500, &cpus, &reads(500, 100));
    let settings = [("source", "cache"), ("decision_ns", "5000000")];
    let settings = [&OFTEN[..1], &OFTEN[3..], &settings].concat();
    let outcome = one(&trace, &machine, job("carrefour", &settings));
    assert_eq!(outcome.replicated, 7 * 500);
}

/// Carrefour's MRR is the "fraction of DRAM accesses that are reads" (Table 2). A program that loads lines and then stores
/// to them in its cache reads them from memory, and writes them back.
#[test]
fn lines_that_are_written_back_are_no_reads() {
    let machine = machine(4, CLOCK);
    let settings = [
        ("source", "cache"),
        ("decision_ns", "125000"),
        ("move_ns", "1"),
    ];
    let replicated = |loads_per_write_back: usize| {
        let misses: Vec<Miss> = reads(500, 6)
            .chunks(loads_per_write_back)
            .flat_map(|loads| [loads, &[write_back(0)]].concat())
            .collect();
        let trace = touched_by_first(500, [4, 8, 12].map(|cpu| (cpu, misses.clone())).to_vec());
        one(&trace, &machine, carrefour(&settings)).replicated
    };
    assert_eq!(replicated(25), 3 * 500, "4 % are written");
    assert_eq!(replicated(10), 0, "10 % are written");
}

/// Nodes 1 and 2 load a page until both have a copy; then node 2 stores and node 1 loads, in turn.
fn stores_and_reads(turns: u64) -> MemoryTrace {
    let after = |at, sequence| {
        let waited_instructions = 0;
        (
            at,
            0,
            TraceEvent::Resume {
                after: sequence,
                waited_instructions,
            },
        )
    };
    let signal = |at, sequence| (at, 0, TraceEvent::Signal { sequence });
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
    for (thread, (misses, trace_events)) in [(1, reader), (2, writer)] {
        trace.threads[thread].1 = batch(misses, trace_events);
    }
    trace
}

/// `carrefour` replicates any page, and does nothing else.
const REPLICATION_ONLY: [(&str, &str); 5] = [
    ("source", "cache"),
    ("candidates", "1"),
    ("reads_percent", "0"),
    ("interleaving", "0"),
    ("colocation", "0"),
];

#[test]
fn the_writer_keeps_its_copy_and_readers_get_fresh_ones() {
    let machine = machine(4, CLOCK);
    let outcome = one(&stores_and_reads(1), &machine, carrefour(&REPLICATION_ONLY));
    assert_eq!(
        (outcome.replicated, outcome.collapsed, outcome.refreshed),
        (2, 1, 1)
    );
    // The kernel thread makes the copies; the store and the fresh copy cost their threads' time.
    assert_eq!(outcome.split.move_ns, 2.0 * 3000.0);
    assert_eq!(outcome.pages_max, 3);
    // The store and the following load are local, as are all accesses since the copies were made.
    let apart = one(&stores_and_reads(0), &machine, carrefour(&REPLICATION_ONLY));
    assert_eq!(outcome.local, apart.local + 2);
    // Under migrate-replicate only the master copy is left, and no node gets a fresh copy.
    let thresholds = [("trigger", "30"), ("hold", "10"), ("write", "9")];
    let outcome = one(
        &stores_and_reads(1),
        &machine,
        job("migrate-replicate", &thresholds),
    );
    assert_eq!((outcome.collapsed, outcome.refreshed), (1, 0));
    // After more than five collapses the page keeps one copy, also where moves are costed by step.
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
        let all = often.chain(REPLICATION_ONLY).chain([moves]);
        job("carrefour", &all.collect::<Vec<_>>())
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
fn stores_that_hit_in_a_cache_take_copies_away() {
    let machine = machine(4, CLOCK);
    for served in [Served::L1, Served::L2, Served::L3] {
        let mut trace = stores_and_reads(3);
        let hits = trace.threads[2].1[0].misses.iter_mut();
        hits.filter(|miss| miss.kind == AccessKind::Store)
            .for_each(|miss| miss.served = served);
        let outcome = one(&trace, &machine, carrefour(&REPLICATION_ONLY));
        assert_eq!((outcome.collapsed, outcome.refreshed), (3, 3), "{served:?}");
    }
}

/// Nodes 1 to 3 load a page until each has a copy; then node 3 stores and the others load, in turn.
fn stores_and_reads_of_three(turns: u64) -> MemoryTrace {
    let after = |at, sequence| {
        let waited_instructions = 0;
        let what = TraceEvent::Resume {
            after: sequence,
            waited_instructions,
        };
        (at, 0, what)
    };
    let signal = |at, sequence| (at, 0, TraceEvent::Signal { sequence });
    let mut steps: Vec<_> = (0..3).map(|_| (reads(1, 200), vec![])).collect();
    for turn in 0..turns {
        let stored = 10 + 3 * turn;
        let (readers, writer) = steps.split_at_mut(2);
        let writer = &mut writer[0];
        writer.0.push(store(0, 0));
        writer.1.push(signal(writer.0.len(), stored));
        for (reader, read) in readers.iter_mut().zip(stored + 1..) {
            reader.1.push(after(reader.0.len(), stored));
            reader.0.push(load(0, 0));
            reader.1.push(signal(reader.0.len(), read));
            writer.1.push(after(writer.0.len(), read));
        }
    }
    let mut trace = touched_by_first(1, vec![(4, vec![]), (8, vec![]), (12, vec![])]);
    for (thread, (misses, trace_events)) in (1..).zip(steps) {
        trace.threads[thread].1 = batch(misses, trace_events);
    }
    trace
}

#[test]
fn a_page_collapses_six_times_at_most_however_slowly_pages_are_moved() {
    let slow = "[moves.steps]\ninterrupt_ns = 500\ndecision_ns = 500\nallocation_ns = 5000\n\
                mapping_replica_ns = 5000\nmapping_migration_ns = 5000\nflush_ns = 500\n\
                flush_request_ns = 500\ncopy_ns = 5000\nend_replica_ns = 500\n\
                end_migration_ns = 500\nfault_ns = 500\n";
    let machine = machine(4, &format!("{CLOCK}{slow}"));
    for batch_pages in ["1", "5"] {
        let settings = [
            ("maptu", "0"),
            ("decision_ns", "10000"),
            ("clustering", "0"),
            ("source", "cache"),
            ("candidates", "1"),
            ("reads_percent", "0"),
            ("interleaving", "0"),
            ("colocation", "0"),
            ("batch_pages", batch_pages),
        ];
        let outcome = one(
            &stores_and_reads_of_three(40),
            &machine,
            job("carrefour", &settings),
        );
        assert_eq!(outcome.collapsed, 6, "{batch_pages} pages to a batch");
        assert!(outcome.refreshed <= 10, "two readers after each of five");
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
    // From here on, neither thread waits for the other.
    for (thread, miss) in [(1, load(0, 0)), (2, store(0, 0))] {
        trace.threads[thread].1[0].misses.extend([miss; 20]);
    }
    let outcome = one(&trace, &machine(4, CLOCK), carrefour(&settings));
    // A store collapses the reader's copy at most once, and a load fetches at most one copy for each collapse.
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
    // CPUs 0 and 1 are on node 0, CPUs 4 and 5 on node 1. Threads on CPUs 0 and 4 share pages 0 to 3.
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
    let outcome = one(&trace, &machine, carrefour(&settings));
    assert_eq!(outcome.threads_moved, 2);
    let apart = one(&trace, &machine, carrefour(&settings[..1]));
    assert_eq!(apart.threads_moved, 0);
    assert!(outcome.local_share() > 0.95 && apart.local_share() < 0.8);
    assert_eq!(outcome.misses, apart.misses);
}
