//! The online policies of ARS, Linux and nearpage in the simulator.

use nearpage_online::AutoParameters;

use super::plans::{plan_with_online_migration, planned};
use super::*;

/// Jobs with parameters that make every policy act on a trace of a few microseconds.
pub(super) fn eager() -> Vec<Job> {
    let mut jobs: Vec<Job> = ["out-u", "out-w", "in-w", "out-u-local", "out-w-local"]
        .map(|name| job(name, &[("factor", "0.2"), ("check_ns", "3000")]))
        .to_vec();
    let carrefour = [
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
    jobs.push(job("carrefour", &carrefour));
    jobs.push(job("carrefour", &[&carrefour[..], &full].concat()));
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
    // The same plan is also run with online migration.
    let online_migration = AutoParameters {
        check_ns: 2000,
        budget_permille: 1000,
        cost_ns: 1,
        errors: 0,
        ..AutoParameters::default()
    };
    jobs.push(plan_with_online_migration(homes, online_migration));
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
        // The first check comes after five loads of 200 ns.
        assert_eq!(outcome.remote(), 5, "{name}");
        assert!(outcome.time_ns < 0.55 * still.time_ns);
    }
    // With these factors, no node's accesses exceed the threshold.
    for (name, factor) in [("out-u", "3"), ("out-u-local", "4")] {
        let outcome = one(&trace, &machine, job(name, &[("factor", factor)]));
        assert_eq!((outcome.migrated, outcome.time_ns), (0, still.time_ns));
    }
    // Among its remote pages, node 2 loads one most of the time.
    let hot = [reads(4, 1), vec![load(0, 3); 40]].concat().repeat(100);
    let trace = touched_by_first(4, vec![(8, hot)]);
    let settings = [("check_ns", "10000"), ("move_ns", "5000"), ("factor", "1")];
    let outcome = one(&trace, &machine, job("in-w", &settings));
    assert!(outcome.migrated >= 1 && outcome.local_share() > 0.8);
}

#[test]
fn pages_that_come_back_are_ping_pongs() {
    let machine = machine(4, CLOCK);
    let to = |at, cpu| (at, 0, TraceEvent::Move(CpuId(cpu)));
    let mut trace = touched_by_first(1, vec![(4, reads(1, 300))]);
    trace.threads[1].1[0].trace_events = vec![to(100, 8), to(200, 4)];
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
    // Each pass over the four pages costs four faults.
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
fn blocks_are_distributed_in_order() {
    let machine = machine(4, CLOCK);
    for page in 0..8u32 {
        let trace = each(8, &[0], &[load(0, page)]);
        let outcome = one(&trace, &machine, job("block-naive", &[]));
        let latency = machine.latency_ns.as_ref().expect("latencies")[0][page as usize / 2];
        assert_eq!(Some(outcome.time_ns), latency);
    }
    // With fewer pages than nodes, pages stay where they start.
    let trace = touched_by_first(3, vec![(4, vec![load(0, 2)])]);
    let outcome = one(&trace, &machine, job("block-naive", &[]));
    assert_eq!(outcome.remote_latency_ns, Some(200.0));
}

#[test]
fn traffic_is_the_former_name_of_carrefour() {
    let policy = SimulatedPolicy::from_name("traffic").expect("its former name");
    assert_eq!(policy.name(), "carrefour");
    assert!(!SimulatedPolicy::NAMES.contains(&"traffic"));
}

#[test]
fn asked_is_the_former_name_of_the_source_policy() {
    for word in ["asked", "policy"] {
        let parameters = job("carrefour", &[("source", word)]).parameters();
        assert!(
            parameters.contains(&("source", "policy".to_owned())),
            "{word}"
        );
    }
}

#[test]
fn online_policies_need_memory_on_two_nodes() {
    let trace = each(1, &[0], &[load(0, 0)]);
    let machine = machine(1, CLOCK);
    for name in SimulatedPolicy::NAMES {
        let job = job(name, &[]);
        let online = job.policy.is_online();
        match simulate(&trace, &machine, &[job], 1) {
            Ok(_) => assert!(!online, "{name}"),
            Err(error) => {
                let start = format!("{name} cannot run on this machine: ");
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
    // The 5000 references to each page waste 100 ns each, 500 µs in all; a move costs 20 µs.
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
    // Without a budget nothing moves, and no time is lost.
    let outcome = one(&trace, &machine, job("auto", &[("budget_permille", "0")]));
    assert_eq!((outcome.migrated, outcome.replicated), (0, 0));
    assert_eq!(outcome.time_ns, first_touch.time_ns);
    // These moves cost more than they could save.
    let dear = job(
        "auto",
        &[("budget_permille", "1000"), ("move_ns", "1000000")],
    );
    assert_eq!(one(&trace, &machine, dear).migrated, 0);
}

/// A thread of node 1 uses pages of node 0. Moving the pages one by one would cost far more than moving the thread to
/// an unused CPU of node 0.
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
fn every_policy_runs_where_a_node_has_no_cpus_and_nothing_says_what_links_there_are() {
    let text = "name = \"tiers\"\npage_bytes = 4096\n\
        latency_ns = [[100, 200, 300], [200, 100, 300], [nan, nan, 300]]\n\
        [[node]]\nid = 0\ncpus = \"0-3\"\n[[node]]\nid = 1\ncpus = \"4-7\"\n[[node]]\nid = 2\ncpus = \"\"\n";
    let machine = Machine::from_toml(text, "tiers").expect("machine");
    let trace = touched_by_first(6, vec![(4, reads(6, 500))]);
    for name in SimulatedPolicy::NAMES {
        let outcome = one(&trace, &machine, job(name, &[]));
        assert_eq!(outcome.misses, 3000, "{name}");
        assert!(outcome.link_use.is_empty(), "{name}");
    }
    let spread = one(&trace, &machine, job("round-robin", &[]));
    assert_eq!(spread.controller_load, [1000; 3]);
}

#[test]
fn contradicting_thresholds_are_reported_in_a_line() {
    let trace = each(1, &[0], &[load(0, 0)]);
    let machine = machine(2, CLOCK);
    for (name, settings, message) in [
        (
            "migrate-replicate",
            [("hold", "128"), ("trigger", "128")],
            "hold=128 is not below trigger=128",
        ),
        (
            "carrefour",
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
