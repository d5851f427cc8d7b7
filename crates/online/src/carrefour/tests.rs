//! Tests of the whole policy: samples go in, decisions come out.

use nearpage_recording::AccessKind::{Load, Store};
use nearpage_recording::trace::Served;
use nearpage_recording::{AccessKind, ThreadIndex};
use proptest::prelude::*;

use super::*;
use crate::ThreadCounts;

const PAGES: usize = 1000;

/// A driver for four nodes with a thread each, of one application by default. Node 0's memory serves all accesses.
struct Driver {
    policy: Carrefour,
    threads: Vec<ThreadCounts>,
    controller_requests: [u64; 4],
    free_share: f64,
}

impl Driver {
    fn new(set: &[(&str, &str)]) -> Self {
        Self::with_near_memory(0b1111, set)
    }

    fn with_near_memory(near_memory_nodes: u64, set: &[(&str, &str)]) -> Self {
        let mut parameters = CarrefourParameters::default();
        for (name, value) in set {
            assert_eq!(parameters.set(name, value), Ok(true), "{name}");
        }
        let setting = Setting {
            nodes: 4,
            pages: PAGES,
            memory_nodes: 0b1111,
            near_memory_nodes,
            cpus_per_node: 0,
            clock_ghz: 2.0,
            every: 1,
            seed: 1,
        };
        let threads = (0..4u16).map(|node| ThreadCounts {
            thread: ThreadIndex(node.into()),
            application: 0,
            node,
            busy_ns: 1_000_000_000,
            reads: 25_000_000,
            writes: 0,
        });
        Self {
            policy: Carrefour::new(&parameters, &setting).expect("parameters"),
            threads: threads.collect(),
            controller_requests: [100_000_000, 0, 0, 0],
            free_share: 0.9,
        }
    }

    fn sample(&mut self, page: u32, thread: u32, kind: AccessKind, times: usize) {
        for _ in 0..times {
            let observation = Observation {
                page,
                node: self.threads[thread as usize].node,
                thread: ThreadIndex(thread),
                kind,
                served: Served::L1,
                copies: Copies::at(0),
                pressure: false,
            };
            let mut actions = Vec::new();
            self.policy.observe(&observation, &mut actions);
            assert_eq!(actions, [], "one decision a second");
        }
    }

    fn decide(&mut self) -> Vec<(u32, ActionKind, u16)> {
        let reads: u64 = self.threads.iter().map(|thread| thread.reads).sum();
        let mut actions = Vec::new();
        self.policy.end_epoch(
            &Epoch {
                duration_ns: 1_000_000_000,
                controller_requests: &self.controller_requests,
                local: &[reads / 4, 0, 0, 0],
                remote: &[0, reads / 4, reads / 4, reads / 4],
                reads,
                free_share: self.free_share,
                threads: &self.threads,
                ..Epoch::default()
            },
            &mut actions,
        );
        actions
            .iter()
            .map(|action| (action.page, action.kind, action.node))
            .collect()
    }
}

use ActionKind::{Collapse, Interleave, Migrate, Replicate};

#[test]
fn a_page_of_one_node_is_colocated_from_two_samples() {
    let mut driver = Driver::new(&[]);
    driver.sample(5, 2, Load, 1);
    driver.sample(6, 2, Store, 2);
    driver.sample(7, 0, Load, 9);
    assert_eq!(driver.decide(), [(6, Migrate, 2)], "7 is there already");
    driver.sample(5, 2, Load, 1);
    assert_eq!(driver.decide(), [], "statistics start afresh");
    assert_eq!(driver.policy.epoch_ns(), Some(1_000_000_000));
}

#[test]
fn replication_needs_five_hundred_pages() {
    let mut driver = Driver::new(&[]);
    for (pages, replicated) in [(499, 0), (500, 500)] {
        for page in 0..pages {
            driver.sample(page, 1, Load, 1);
            driver.sample(page, 2, Load, 1);
        }
        let actions = driver.decide();
        let count = |kind| actions.iter().filter(|action| action.1 == kind).count();
        // Three nodes get copies; below the threshold, all pages leave node 0, which has all the traffic.
        assert_eq!(count(Replicate), 3 * replicated);
        assert_eq!(count(Interleave), pages as usize - replicated);
    }
    // Pages that are replicated already count.
    driver.sample(900, 1, Load, 1);
    driver.sample(900, 2, Load, 1);
    driver.sample(0, 1, Load, 1);
    driver.sample(0, 2, Load, 1);
    let expected: Vec<_> = (1..4).map(|node| (900, Replicate, node)).collect();
    assert_eq!(driver.decide(), expected, "0 is replicated already");
}

#[test]
fn written_pages_and_full_memories_are_interleaved() {
    let mut driver = Driver::new(&[("candidates", "1")]);
    driver.sample(3, 1, Load, 5);
    driver.sample(3, 2, Store, 1);
    let actions = driver.decide();
    assert!(
        matches!(actions[..], [(3, Interleave, 1..=3)]),
        "{actions:?}"
    );
    for (free_share, kind) in [(0.74, Interleave), (0.75, Replicate)] {
        driver.free_share = free_share;
        driver.sample(4, 1, Load, 1);
        driver.sample(4, 2, Load, 1);
        assert_eq!(driver.decide()[0].1, kind);
    }
}

/// Node 3 is an expander: it has no CPUs, and is far from all.
#[test]
fn no_page_is_interleaved_to_far_memory_without_cpus() {
    let mut driver = Driver::with_near_memory(0b0111, &[("candidates", "1")]);
    driver.threads.pop();
    let mut went = |controller_requests| {
        driver.controller_requests = controller_requests;
        for page in 0..300 {
            driver.sample(page, 1, Load, 5);
            driver.sample(page, 2, Store, 1);
        }
        let actions = driver.decide();
        let to = |node| {
            let is_to =
                |action: &&(u32, ActionKind, u16)| action.1 == Interleave && action.2 == node;
            actions.iter().filter(is_to).count()
        };
        [0, 1, 2, 3].map(to)
    };
    let [home, one, two, far] = went([100_000_000, 0, 0, 0]);
    assert_eq!([home, far], [0, 0]);
    assert!(one > 100 && two > 100, "{one} {two}");
    // Three controllers with equal loads are balanced, however idle the expander is.
    assert_eq!(went([50_000_000, 50_000_000, 50_000_000, 0]), [0; 4]);
}

#[test]
fn a_page_leaves_after_more_than_five_collapses() {
    let mut driver = Driver::new(&[("candidates", "1")]);
    driver.sample(3, 1, Load, 1);
    driver.sample(3, 2, Load, 1);
    assert_eq!(driver.decide().len(), 3);
    let copy = Action {
        page: 3,
        kind: Replicate,
        node: 1,
        reason: Reason::rule("asked for before"),
    };
    for _ in 0..5 {
        assert_eq!(driver.policy.collapse(3), Survivor::Writer);
        driver.policy.settled(3, Copies::at(2), 0b1011);
    }
    assert!(driver.policy.is_still_requested(&copy));
    assert_eq!(driver.policy.collapse(3), Survivor::WriterAlone);
    assert!(
        !driver.policy.is_still_requested(&copy),
        "what is under way, too"
    );
    driver.sample(3, 1, Load, 1);
    driver.sample(3, 2, Load, 1);
    assert_eq!(driver.decide()[0].1, Interleave, "never again");
}

#[test]
fn a_page_whose_copies_are_refused_or_given_up_is_decided_afresh() {
    let mut driver = Driver::new(&[("candidates", "1")]);
    let shared = |driver: &mut Driver| {
        driver.sample(3, 1, Load, 1);
        driver.sample(3, 2, Load, 1);
        driver.decide().len()
    };
    assert_eq!(shared(&mut driver), 3);
    assert_eq!(shared(&mut driver), 0, "under way");
    driver.policy.settled(3, Copies::at(0), 0);
    assert_eq!(shared(&mut driver), 3);
    let both = Copies {
        home: 0,
        nodes: 0b11,
    };
    // The first copy was refused, the second was made.
    driver.policy.settled(3, Copies::at(0), 0);
    driver.policy.settled(3, both, 0);
    assert_eq!(shared(&mut driver), 0);
    driver.policy.settled(3, Copies::at(0), 0b10);
    assert_eq!(shared(&mut driver), 0, "a store took the copy for now");
}

#[test]
fn copies_go_when_the_application_stores_and_come_to_nodes_that_threads_reach() {
    let mut driver = Driver::new(&[("candidates", "1"), ("clustering", "0")]);
    driver.threads.truncate(3);
    driver.sample(3, 1, Load, 1);
    driver.sample(3, 2, Load, 1);
    assert_eq!(driver.decide(), [(3, Replicate, 1), (3, Replicate, 2)]);
    assert_eq!(driver.decide(), []);
    driver.threads[1].node = 3;
    assert_eq!(driver.decide(), [(3, Replicate, 3)]);
    assert_eq!(driver.decide(), [], "once");
    // Low free memory does not remove copies, which take the memory themselves.
    driver.free_share = 0.1;
    assert_eq!(driver.decide(), []);
    driver.threads[0].writes = 10_000_000;
    assert!(matches!(driver.decide()[..], [(3, Collapse, _)]));
    driver.policy.settled(3, Copies::at(0), 0);
    assert_eq!(driver.decide(), []);
}

#[test]
fn samples_are_taken_from_the_start_where_that_is_asked_for() {
    assert_eq!(Driver::new(&[]).policy.view(), View::Nothing);
    let early = Driver::new(&[("early_samples", "1")]);
    assert!(matches!(
        early.policy.view(),
        View::Samples { cycles: 65_000, .. }
    ));
}

#[test]
fn each_application_is_judged_by_itself() {
    let mut driver = Driver::new(&[("candidates", "1"), ("clustering", "0")]);
    for thread in &mut driver.threads[2..] {
        thread.application = 1;
    }
    // More than a twentieth of application 1's accesses are stores, so none of its pages is replicated.
    driver.threads[0].reads = 30_000_000;
    driver.threads[2].reads = 94_000_000;
    driver.threads[2].writes = 6_000_000;
    driver.threads[3].reads = 0;
    for page in [10, 20] {
        let thread = page / 10 * 2 - 2;
        driver.sample(page, thread, Load, 1);
        driver.sample(page, thread + 1, Load, 1);
    }
    let actions = driver.decide();
    // Application 0 runs on nodes 0 and 1 only.
    assert_eq!(actions[0], (10, Replicate, 1));
    assert!(matches!(actions[1..], [(20, Interleave, _)]), "{actions:?}");
    // With too little traffic the application is not managed, and its samples are ignored.
    driver.threads[2].reads = 40_000_000;
    driver.sample(20, 3, Load, 3);
    assert_eq!(driver.decide(), []);
}

#[test]
fn sampling_follows_what_there_is_to_do() {
    let mut driver = Driver::new(&[]);
    let cycles = |driver: &Driver| match driver.policy.view() {
        View::Samples { cycles, .. } => cycles,
        _ => 0,
    };
    // Step 1 has not been taken yet.
    assert_eq!(driver.policy.view(), View::Nothing);
    driver.decide();
    assert_eq!(cycles(&driver), 65_000);
    for (pages, expected) in [(10, 65_000), (9, 260_000), (10, 65_000)] {
        for page in 0..pages {
            driver.sample(page, 3, Load, 2);
        }
        driver.decide();
        assert_eq!(cycles(&driver), expected, "{pages} actions");
    }
    for thread in &mut driver.threads {
        thread.reads = 12_500_000;
    }
    driver.sample(1, 3, Load, 2);
    assert_eq!(driver.decide(), [], "50 accesses per microsecond");
    assert_eq!(driver.policy.view(), View::Nothing);
}

#[test]
fn clustered_threads_take_their_pages_along() {
    let mut driver = Driver::new(&[]);
    // Each node has two threads; 1 shares pages with 2, and 0 with 3.
    driver.threads.truncate(4);
    for (thread, node) in driver.threads.iter_mut().zip([0, 0, 1, 1]) {
        thread.node = node;
    }
    for page in 0..4 {
        driver.sample(page, 1, Load, 3);
        driver.sample(page, 2, Load, 3);
        driver.sample(page + 4, 0, Load, 3);
        driver.sample(page + 4, 3, Load, 3);
    }
    let actions = driver.decide();
    let moves: Vec<(u32, u16)> = driver
        .policy
        .thread_moves()
        .iter()
        .map(|moved| (moved.thread.0, moved.node))
        .collect();
    assert_eq!(moves, [(0, 1), (2, 0)]);
    let expected: Vec<_> = (4..8).map(|page| (page, Migrate, 1)).collect();
    assert_eq!(actions, expected, "0 to 3 are on node 0 already");
    assert_eq!(driver.policy.thread_moves(), [], "told once");
}

#[test]
fn copies_are_for_the_nodes_that_threads_are_on_after_clustering() {
    let mut driver = Driver::new(&[("candidates", "1")]);
    let fifth = ThreadCounts {
        thread: ThreadIndex(4),
        ..driver.threads[0]
    };
    driver.threads.push(fifth);
    let where_they_run = [(0, 0), (0, 1), (0, 2), (1, 2), (1, 1)];
    for (thread, (application, node)) in driver.threads.iter_mut().zip(where_they_run) {
        (thread.application, thread.node) = (application, node);
    }
    // Threads 1 and 2 share pages, and so do 3 and 4; thread 0 shares a page with 1.
    for page in 1..4 {
        for (number, thread) in [(page, 1), (page, 2), (page + 10, 3), (page + 10, 4)] {
            driver.sample(number, thread, Load, 3);
        }
    }
    driver.sample(9, 0, Load, 1);
    driver.sample(9, 1, Load, 1);
    let actions = driver.decide();
    let moves = driver.policy.thread_moves();
    let moves: Vec<_> = moves
        .iter()
        .map(|moved| (moved.thread.0, moved.node))
        .collect();
    assert_eq!(moves, [(1, 2), (3, 1)]);
    let copies: Vec<_> = actions
        .iter()
        .filter(|action| action.1 == Replicate)
        .collect();
    assert_eq!(copies, [&(9, Replicate, 2)], "of its threads none is on 1");
}

#[test]
fn contradictions_are_one_line() {
    let new = |set: &[(&str, &str)], memory_nodes| {
        let mut parameters = CarrefourParameters::default();
        for (name, value) in set {
            assert_eq!(parameters.set(name, value), Ok(true), "{name}");
        }
        let setting = Setting {
            nodes: 4,
            pages: 1,
            memory_nodes,
            near_memory_nodes: memory_nodes,
            cpus_per_node: 0,
            clock_ghz: 2.0,
            every: 1,
            seed: 1,
        };
        Carrefour::new(&parameters, &setting).map_err(|error| error.0)
    };
    assert!(new(&[], 0b11).is_ok());
    for (set, memory_nodes, message) in [
        (
            &[][..],
            0b10,
            "carrefour: a machine with memory on one node",
        ),
        (
            &[("slow_cycles", "64999")],
            0b11,
            "slow_cycles=64999 is below fast_cycles=65000",
        ),
        (
            &[("fast_cycles", "5200")],
            0b11,
            "sample_cost_cycles=5200 is not below fast_cycles=5200",
        ),
        (
            &[
                ("replication", "0"),
                ("interleaving", "0"),
                ("colocation", "0"),
            ],
            0b11,
            "replication, interleaving and colocation are all 0",
        ),
    ] {
        let error = new(set, memory_nodes).expect_err(message);
        assert!(
            error.starts_with(message) && !error.contains('\n'),
            "{error}"
        );
    }
    assert_eq!(
        CarrefourParameters::default()
            .set("maptu", "-1")
            .expect_err("range")
            .0,
        "maptu=-1: expected a whole number from 0 to 1000000000000"
    );
}

proptest! {
    #[test]
    fn only_sampled_pages_are_placed_and_draws_repeat(
        samples in prop::collection::vec((0u32..50, 0u32..4, any::<bool>(), 1usize..4), 0..80),
        requests in prop::array::uniform4(0u64..1000),
    ) {
        let decided = || {
            let mut driver = Driver::new(&[("candidates", "3")]);
            driver.controller_requests = requests;
            for &(page, thread, store, times) in &samples {
                driver.sample(page, thread, if store { Store } else { Load }, times);
            }
            driver.decide()
        };
        let actions = decided();
        prop_assert_eq!(&actions, &decided());
        for &(page, _, node) in &actions {
            prop_assert!(samples.iter().any(|sample| sample.0 == page));
            prop_assert!(node < 4);
        }
    }
}
