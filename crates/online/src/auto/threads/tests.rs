use proptest::prelude::*;

use super::*;

const REFILL_NS: f64 = 20_000.0;

/// Two or more nodes with 100 ns local and 300 ns remote latency. A hundred remote references pay for a thread's move.
struct World {
    threads: Threads,
    budget: MigrationBudget,
    latency_ns: Vec<f64>,
    wait_ns: Vec<f64>,
    on: Vec<u16>,
}

impl World {
    /// `on`: the threads' nodes.
    fn new(nodes: usize, cpus_per_node: u32, on: &[u16]) -> Self {
        let latency = |pair: usize| {
            if pair / nodes == pair % nodes {
                100.0
            } else {
                300.0
            }
        };
        let mut budget = MigrationBudget::new(0.0);
        budget.balance_ns = 1e9;
        Self {
            threads: Threads::new(nodes, cpus_per_node, Refill::Ns(REFILL_NS)),
            budget,
            latency_ns: (0..nodes * nodes).map(latency).collect(),
            wait_ns: vec![0.0; nodes],
            on: on.to_vec(),
        }
    }

    /// A thread refers `times` times to memory on a node.
    fn refer(&mut self, thread: usize, memory: usize, times: u32) {
        for _ in 0..times {
            let index = ThreadIndex(thread as u32);
            self.threads
                .observe(index, usize::from(self.on[thread]), memory);
        }
    }

    /// Decides for the threads that are alive; returns the moves, and carries them out.
    fn decide(&mut self, alive: &[usize]) -> Vec<(usize, u16)> {
        let threads: Vec<ThreadCounts> = (alive.iter())
            .map(|&thread| ThreadCounts {
                thread: ThreadIndex(thread as u32),
                application: 0,
                node: self.on[thread],
                busy_ns: 1,
                reads: 0,
                writes: 0,
            })
            .collect();
        let epoch = Epoch {
            threads: &threads,
            ..Epoch::default()
        };
        let weighing = Weighing {
            latency_ns: &self.latency_ns,
            wait_ns: &self.wait_ns,
            every: 1.0,
            errors: 0.0,
        };
        let left = self.threads.decide(&epoch, &weighing, &mut self.budget);
        let thread_moves = self.threads.take_moves();
        let mut moves: Vec<(usize, u16)> = Vec::new();
        let mut nodes = 0;
        for thread_move in thread_moves {
            let thread = thread_move.thread.0 as usize;
            nodes |= 1 << self.on[thread];
            self.on[thread] = thread_move.node;
            moves.push((thread, thread_move.node));
        }
        assert_eq!(left, nodes);
        moves
    }
}

#[test]
fn a_cpu_that_a_thread_is_on_its_way_to_is_taken() {
    // One CPU of node 0 is free.
    let mut world = World::new(2, 2, &[0, 1, 1]);
    world.refer(1, 0, 200);
    assert_eq!(world.decide(&[0, 1, 2]), [(1, 0)]);
    world.on[1] = 1;
    world.refer(2, 0, 200);
    assert_eq!(world.decide(&[0, 1, 2]), []);
    // After the thread's move, its own CPU is kept for it.
    world.on[1] = 0;
    assert_eq!(world.decide(&[0, 1, 2]), []);
}

#[test]
fn a_thread_goes_to_its_memory_when_that_has_paid() {
    let mut world = World::new(2, 2, &[0, 1]);
    world.refer(0, 1, 100);
    world.refer(1, 1, 10);
    assert_eq!(
        world.decide(&[0, 1]),
        [],
        "it has cost as much as it would save"
    );
    world.refer(0, 1, 1);
    assert_eq!(world.decide(&[0, 1]), [(0, 1)]);
    let left_ns = 1e9 - REFILL_NS - BACK_MOVES * REFILL_NS;
    assert_eq!(world.budget.free_ns(), left_ns);
    // The CPU was kept for the way back, which costs no more than the way there and releases its reserve.
    world.refer(0, 0, 201);
    assert_eq!(world.decide(&[0, 1]), []);
    world.refer(0, 0, 1);
    assert_eq!(world.decide(&[0, 1]), [(0, 0)]);
    assert_eq!(world.budget.free_ns(), 1e9 - 2.0 * REFILL_NS);
    // The next move costs four times as much, beyond the references to the other node.
    world.refer(0, 1, 501);
    assert_eq!(world.decide(&[0, 1]), []);
    world.refer(0, 1, 1);
    assert_eq!(world.decide(&[0, 1]), [(0, 1)]);
}

/// On machines with distant memory, caches are refilled from there, too.
#[test]
fn caches_are_filled_from_where_its_memory_is() {
    let mut world = World::new(2, 2, &[0, 1]);
    world.threads.refill = Refill::References(100.0);
    // A quarter of its references would go to the node that it leaves: 150 ns on average for each of 100.
    world.refer(0, 0, 37);
    world.refer(0, 1, 111);
    assert_eq!(world.decide(&[0, 1]), []);
    world.refer(0, 0, 1);
    world.refer(0, 1, 3);
    assert_eq!(world.decide(&[0, 1]), [(0, 1)]);
    let left_ns = 1e9 - (1.0 + BACK_MOVES) * 100.0 * 150.0;
    assert_eq!(world.budget.free_ns(), left_ns);
}

#[test]
fn threads_change_places_where_both_gain() {
    let mut world = World::new(2, 1, &[0, 1]);
    world.refer(0, 1, 1000);
    assert_eq!(world.decide(&[0, 1]), [], "it has the CPU");
    world.refer(1, 1, 200);
    assert_eq!(world.decide(&[0, 1]), [], "it is where it wants to be");
    world.refer(1, 0, 301);
    assert_eq!(world.decide(&[0, 1]), [(0, 1), (1, 0)]);
    assert_eq!(world.decide(&[0, 1]), []);
}

#[test]
fn a_cpu_is_kept_for_threads_that_follow() {
    let mut world = World::new(2, 2, &[0, 0, 1, 1]);
    world.refer(0, 1, 1000);
    assert_eq!(world.decide(&[0, 1, 2, 3]), []);
    // One thread has ended; the next may be started on its CPU.
    assert_eq!(world.decide(&[0, 1, 2]), []);
    let mut one_more = World::new(2, 3, &[0, 0, 1, 1]);
    one_more.refer(0, 1, 1000);
    one_more.refer(1, 1, 1000);
    assert_eq!(one_more.decide(&[0, 1, 2]), [(0, 1), (1, 1)]);
}

#[test]
fn where_no_thread_ran_there_may_be_no_cpu() {
    let mut world = World::new(3, 2, &[0, 1]);
    world.refer(0, 2, 1000);
    assert_eq!(world.decide(&[0, 1]), []);
    // The number of CPUs is unknown.
    let mut world = World::new(2, 0, &[0, 1]);
    world.refer(0, 1, 1000);
    assert_eq!(world.decide(&[0, 1]), []);
}

#[test]
fn threads_do_not_move_beyond_the_budget() {
    let enough_ns = REFILL_NS + BACK_MOVES * REFILL_NS;
    for (balance_ns, moves) in [(enough_ns - 1.0, 0), (enough_ns, 2)] {
        let mut world = World::new(2, 4, &[0, 0, 1]);
        world.budget.balance_ns = balance_ns;
        world.refer(0, 1, 1000);
        world.refer(1, 1, 1000);
        // Moves in parallel cost as much as one.
        assert_eq!(world.decide(&[0, 1, 2]).len(), moves);
    }
}

proptest! {
    #[test]
    fn no_node_has_more_threads_than_cpus_or_than_it_had(
        on in prop::collection::vec(0u16..3, 1..9),
        cpus_per_node in 0u32..4,
        references in prop::collection::vec(
            (0usize..9, 0usize..3, 0u32..600, any::<bool>(), any::<bool>()),
            0..40,
        ),
    ) {
        let mut world = World::new(3, cpus_per_node, &on);
        let all: Vec<usize> = (0..on.len()).collect();
        let on_node = |on: &[u16], node: u16| on.iter().filter(|&&other| other == node).count();
        // Nodes of threads that are still on their way.
        let mut arrived = on.clone();
        for (thread, memory, times, decides, arrives) in references {
            let thread = thread % on.len();
            std::mem::swap(&mut world.on, &mut arrived);
            world.refer(thread, memory, times);
            let before = world.on.clone();
            let moves = if decides { world.decide(&all) } else { Vec::new() };
            world.on = before;
            std::mem::swap(&mut world.on, &mut arrived);
            for (thread, node) in moves {
                world.on[thread] = node;
            }
            if arrives {
                arrived.clone_from(&world.on);
            }
            for node in 0..3 {
                let bound = on_node(&on, node).max(cpus_per_node as usize);
                prop_assert!(on_node(&world.on, node) <= bound);
            }
        }
    }
}
