//! Tests of scans, faults, and moves of pages and threads.

use nearpage_recording::AccessKind;
use nearpage_recording::trace::Served;
use proptest::prelude::*;

use super::*;
use crate::{Copies, ThreadCounts};

const PAGES: u32 = 600;

/// A process of 600 pages with a thread on each of two nodes with two CPUs. A scan covers 1 MB, and a tick is 100 ms.
struct Driver {
    policy: KernelBalancing,
    threads: Vec<ThreadCounts>,
}

impl Driver {
    fn new(set: &[(&str, &str)]) -> Self {
        let mut parameters = KernelBalancingParameters::default();
        for (name, value) in [("scan_size_mb", "1"), ("tick_ns", "100000000")]
            .iter()
            .chain(set)
        {
            assert_eq!(parameters.set(name, value), Ok(true), "{name}");
        }
        let setting = Setting {
            nodes: 2,
            pages: PAGES as usize,
            memory_nodes: 0b11,
            near_memory_nodes: 0b11,
            cpus_per_node: 0,
            clock_ghz: 2.0,
            every: 1,
            seed: 0,
        };
        let mut policy =
            KernelBalancing::new(&parameters, &setting, 4096, &[2, 2]).expect("parameters");
        for page in 0..PAGES {
            // Numbers are in descending order, to show that scans are in order of address.
            policy.place(
                page,
                Place {
                    application: 0,
                    number: u64::from(PAGES - page),
                },
            );
        }
        let threads = (0..2u16).map(|node| ThreadCounts {
            thread: ThreadIndex(node.into()),
            application: 0,
            node,
            busy_ns: 0,
            reads: 0,
            writes: 0,
        });
        Self {
            policy,
            threads: threads.collect(),
        }
    }

    /// A tick in which these threads run; returns the pages unmapped at its end.
    fn tick(&mut self, ran: &[usize]) -> Vec<u32> {
        for (number, thread) in self.threads.iter_mut().enumerate() {
            thread.busy_ns = if ran.contains(&number) { 100 * MS } else { 0 };
        }
        self.policy.end_epoch(
            &Epoch {
                duration_ns: 100 * MS,
                threads: &self.threads,
                ..Epoch::default()
            },
            &mut Vec::new(),
        );
        self.policy.unmap()
    }

    /// Does a fault move the page?
    fn fault(&mut self, page: u32, thread: u32, home: u16) -> bool {
        let observation = Observation {
            page,
            node: self.threads[thread as usize].node,
            thread: ThreadIndex(thread),
            kind: AccessKind::Load,
            served: Served::Memory,
            copies: Copies::at(home),
            pressure: false,
        };
        let mut actions = Vec::new();
        self.policy.observe(&observation, &mut actions);
        if let [action] = &actions[..] {
            assert_eq!(
                (action.kind, action.node),
                (ActionKind::Migrate, observation.node)
            );
        }
        !actions.is_empty()
    }

    fn task(&mut self, thread: usize) -> &mut Task {
        self.policy.tasks[thread].as_mut().expect("thread")
    }
}

#[test]
fn scans_come_when_a_thread_has_run_for_its_period() {
    let mut driver = Driver::new(&[]);
    // A second without run time does not count towards the scan delay of a second.
    for _ in 0..10 {
        assert!(driver.tick(&[]).is_empty());
    }
    for tick in 0..10 {
        assert!(driver.tick(&[0]).is_empty(), "{tick}");
    }
    // 1 MB is 256 pages, from the lowest address.
    let scanned = driver.tick(&[0]);
    assert_eq!(
        scanned,
        (0..256).map(|at| PAGES - 1 - at).collect::<Vec<_>>()
    );
    // The process has 2 MB, so the period is 500 ms. The scan comes after the 1000 ms of the first period, two ticks,
    // and 32 times the scan's time.
    let mut ticks = 1;
    while driver.tick(&[0]).is_empty() {
        ticks += 1;
    }
    assert_eq!(ticks, 7);
}

#[test]
fn pages_that_have_not_faulted_since_are_passed_over() {
    let mut driver = Driver::new(&[("scan_period_min_ms", "100"), ("scan_delay_ms", "0")]);
    let mut scanned = Vec::new();
    for _ in 0..20 {
        scanned.extend(driver.tick(&[0]));
    }
    assert_eq!(scanned.len(), PAGES as usize, "each once");
    assert!(driver.policy.processes[0].sequence > 0);
    driver.fault(7, 0, 0);
    let mut again = Vec::new();
    for _ in 0..20 {
        again.extend(driver.tick(&[0]));
    }
    assert_eq!(again, [7]);
}

#[test]
fn a_range_in_which_a_page_is_unmapped_counts_in_full() {
    let mut driver = Driver::new(&[("scan_period_min_ms", "100"), ("scan_delay_ms", "0")]);
    for _ in 0..20 {
        driver.tick(&[0]);
    }
    // Every second page from the lowest address on has faulted; the next scan begins there.
    driver.policy.processes[0].offset = 0;
    for at in 0..PAGES / 2 {
        driver.fault(PAGES - 1 - 2 * at, 0, 0);
    }
    let mut scanned = Vec::new();
    while scanned.is_empty() {
        scanned = driver.tick(&[0]);
    }
    assert_eq!(scanned.len(), 128, "of 256 pages, a megabyte");
}

#[test]
fn a_scan_that_begins_at_the_end_goes_on_at_the_begin() {
    let mut driver = Driver::new(&[("scan_period_min_ms", "100"), ("scan_delay_ms", "0")]);
    driver.tick(&[]);
    let process = &mut driver.policy.processes[0];
    (process.offset, process.sequence) = (PAGES as usize, 3);
    let mut scanned = Vec::new();
    while driver.policy.processes[0].sequence == 3 {
        scanned = driver.tick(&[0]);
    }
    assert_eq!(scanned.len(), 256);
    assert_eq!(scanned[0], PAGES - 1);
}

#[test]
fn early_faults_move_pages_at_once() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    assert!(driver.fault(1, 1, 0), "first");
    assert!(!driver.fault(1, 0, 0), "local");
    assert!(!driver.fault(1, 1, 0), "the last was on the other node");
    assert!(driver.fault(1, 1, 0), "private");
}

#[test]
fn a_page_stays_where_the_node_that_faults_has_no_memory() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    driver.policy.memory_nodes = 0b01;
    assert!(!driver.fault(1, 1, 0));
    let task = driver.task(1);
    assert_eq!((task.locality, task.recent.memory[0]), ([1, 0, 1], [0, 1]));
}

#[test]
fn later_two_faults_in_a_row_are_needed() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    for (sequence, first) in [(4, true), (5, false)] {
        driver.policy.processes[0].sequence = sequence;
        let task = driver.task(1);
        task.preferred = Some(1);
        task.scan_sequence = sequence;
        let page = 10 + sequence as u32;
        // Thread 0 has faulted last, so the page does not move in either case.
        driver.fault(page, 0, 0);
        assert!(!driver.fault(page, 1, 0));
        assert!(driver.fault(page, 1, 0), "twice in a row");
        // Without a last fault, the page moves early only, unless the group's balance allows it.
        driver.task(1).in_group = true;
        assert_eq!(driver.fault(page + 20, 1, 0), first, "{sequence}");
    }
}

#[test]
fn a_groups_pages_follow_its_threads_with_hysteresis() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    let task = driver.task(1);
    (task.preferred, task.scan_sequence, task.in_group) = (Some(1), 5, true);
    driver.policy.processes[0].sequence = 5;
    // The condition is cpu(1) x memory(0) x 3 > cpu(0) x memory(1) x 4.
    for (memory, expected) in [([40, 30], false), ([41, 30], true)] {
        let faults = &mut driver.policy.processes[0].group.faults;
        faults.memory = memory.map(|count| [count, 0]).to_vec();
        faults.cpu = vec![[10, 0], [10, 0]];
        let task = driver.policy.tasks[1].as_ref().expect("thread");
        // The last fault was another thread's on the same node.
        let last = Some((ThreadIndex(9), 1));
        assert_eq!(
            driver.policy.should_move(task, last, ThreadIndex(1), 0),
            expected
        );
    }
    // With three times as many faults on the target's CPUs, the page moves always.
    for (cpu, expected) in [(30, false), (31, true)] {
        let faults = &mut driver.policy.processes[0].group.faults;
        faults.memory = vec![[1, 0], [1000, 0]];
        faults.cpu = vec![[10, 0], [cpu, 0]];
        let task = driver.policy.tasks[1].as_ref().expect("thread");
        let last = Some((ThreadIndex(9), 1));
        assert_eq!(
            driver.policy.should_move(task, last, ThreadIndex(1), 0),
            expected
        );
    }
}

/// Thread `thread` faults `count` times on memory of node `home`; the page itself does not move.
fn use_memory(driver: &mut Driver, thread: usize, home: usize, count: u64) {
    let task = driver.task(thread);
    task.recent.memory[home][PRIVATE] += count;
    task.locality[usize::from(task.node == home as u16)] += count;
    driver.policy.processes[0].sequence += 1;
    // One more fault, on the thread's own node, triggers the placement.
    let page = 300 + thread as u32;
    let home = driver.threads[thread].node;
    driver.fault(page, thread as u32, home);
}

#[test]
fn a_thread_goes_to_an_idle_cpu_of_its_preferred_node() {
    let mut driver = Driver::new(&[]);
    driver.threads[1].node = 0;
    driver.tick(&[]);
    use_memory(&mut driver, 1, 1, 100);
    assert_eq!(driver.task(1).preferred, Some(1));
    driver.tick(&[]);
    let moves = driver.policy.thread_moves();
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].thread, moves[0].node), (ThreadIndex(1), 1));
    // A thread stays if its move would unbalance the load and a swap would gain nothing.
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    use_memory(&mut driver, 0, 0, 100);
    use_memory(&mut driver, 1, 0, 100);
    driver.tick(&[]);
    assert_eq!(driver.policy.thread_moves(), []);
    let mut driver = Driver::new(&[("move_threads", "0")]);
    driver.threads[1].node = 0;
    driver.tick(&[]);
    use_memory(&mut driver, 1, 1, 100);
    driver.tick(&[]);
    assert_eq!(driver.policy.thread_moves(), []);
}

#[test]
fn threads_swap_where_both_gain() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    use_memory(&mut driver, 0, 1, 100);
    use_memory(&mut driver, 1, 0, 100);
    driver.tick(&[]);
    let moves: Vec<(u32, u16)> = driver
        .policy
        .thread_moves()
        .iter()
        .map(|moved| (moved.thread.0, moved.node))
        .collect();
    assert_eq!(moves, [(0, 1), (1, 0)]);
}

/// Sets a thread's faults by node, and whether the thread is in its process's group.
fn with_faults(driver: &mut Driver, thread: usize, memory: &[u64], in_group: bool) {
    let task = driver.task(thread);
    task.faults.memory = memory.iter().map(|&count| [0, count]).collect();
    task.in_group = in_group;
}

#[test]
fn a_thread_may_join_a_busy_cpu_where_the_load_is_as_balanced_then() {
    let mut driver = Driver::new(&[]);
    let more = [2, 3, 4].map(|number| ThreadCounts {
        thread: ThreadIndex(number),
        node: u16::from(number == 4),
        ..driver.threads[0]
    });
    driver.threads.extend(more);
    driver.tick(&[]);
    // Node 0's two CPUs have three threads, node 1's two CPUs have two. All threads have their memory on node 1.
    for thread in 0..5 {
        with_faults(&mut driver, thread, &[0, 100], false);
        driver.task(thread).preferred = Some(1);
    }
    assert_eq!(driver.policy.find_node(0), Some((1, None)));
    // With three threads on node 1, another one would unbalance the load.
    driver.task(2).node = 1;
    assert_eq!(driver.policy.find_node(0), None);
}

#[test]
fn displaced_threads_are_judged_by_group_only_within_one_group() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    with_faults(&mut driver, 0, &[0, 100], false);
    with_faults(&mut driver, 1, &[0, 100], true);
    driver.task(0).preferred = Some(1);
    // The group of thread 1 has its memory on node 0; thread 1 itself has its own on node 1.
    driver.policy.processes[0].group.faults.memory = vec![[0, 900], [0, 100]];
    assert_eq!(driver.policy.find_node(0), None);
    with_faults(&mut driver, 1, &[100, 0], true);
    assert_eq!(driver.policy.find_node(0), Some((1, Some(1))));
}

#[test]
fn a_thread_in_no_group_looks_at_every_node() {
    let mut parameters = KernelBalancingParameters::default();
    assert_eq!(parameters.set("tick_ns", "100000000"), Ok(true));
    let setting = Setting {
        nodes: 3,
        pages: 1,
        memory_nodes: 0b111,
        near_memory_nodes: 0b111,
        cpus_per_node: 0,
        clock_ghz: 2.0,
        every: 1,
        seed: 0,
    };
    let policy = KernelBalancing::new(&parameters, &setting, 4096, &[1, 1, 1]);
    let mut driver = Driver::new(&[]);
    driver.policy = policy.expect("parameters");
    driver.threads.push(ThreadCounts {
        thread: ThreadIndex(2),
        node: 2,
        ..driver.threads[0]
    });
    driver.tick(&[]);
    // Thread 0 prefers node 1, but thread 1 gains nothing by leaving it. Thread 2 gains more on node 0 than thread 0
    // loses on node 2.
    for (thread, memory) in [[30, 50, 20], [0, 100, 0], [100, 0, 0]].iter().enumerate() {
        with_faults(&mut driver, thread, memory, false);
    }
    driver.task(0).preferred = Some(1);
    assert_eq!(driver.policy.find_node(0), Some((2, Some(2))));
}

#[test]
fn a_thread_of_a_group_settles_where_it_is_or_goes() {
    let mut driver = Driver::new(&[]);
    driver.tick(&[]);
    for thread in 0..2 {
        with_faults(&mut driver, thread, &[100, 0], true);
    }
    driver.policy.processes[0].group.faults.memory = vec![[0, 200], [0, 0]];
    for (in_group, settled) in [(true, 1), (false, 0)] {
        let task = driver.task(1);
        (task.preferred, task.in_group) = (Some(0), in_group);
        driver.policy.movers = vec![ThreadIndex(1)];
        driver.tick(&[]);
        assert_eq!(driver.policy.thread_moves(), []);
        assert_eq!(driver.task(1).preferred, Some(settled), "{in_group}");
    }
}

#[test]
fn contradictions_are_one_line() {
    let mut parameters = KernelBalancingParameters::default();
    let new = |parameters: &KernelBalancingParameters, nodes| {
        let setting = Setting {
            nodes,
            pages: 1,
            memory_nodes: 0b11,
            near_memory_nodes: 0b11,
            cpus_per_node: 0,
            clock_ghz: 2.0,
            every: 1,
            seed: 0,
        };
        KernelBalancing::new(parameters, &setting, 4096, &[1, 1]).map_err(|error| error.0)
    };
    assert!(new(&parameters, 2).is_ok());
    let error = new(&parameters, 1).expect_err("one node");
    assert!(error.starts_with("kernel-balancing: Linux balances nothing"));
    assert_eq!(parameters.set("scan_period_max_ms", "999"), Ok(true));
    let error = new(&parameters, 2).expect_err("periods");
    assert!(error.starts_with("scan_period_max_ms=999 is below scan_period_min_ms=1000"));
    assert_eq!(parameters.set("trigger", "1"), Ok(false));
    assert!(parameters.set("scan_size_mb", "0").is_err());
}

proptest! {
    #[test]
    fn pages_move_to_who_faults_and_threads_where_there_is_room(
        faults in prop::collection::vec((0u32..20, 0u32..2, 0u16..2), 0..200),
    ) {
        let run = || {
            let mut driver = Driver::new(&[("scan_delay_ms", "0"), ("scan_period_min_ms", "1")]);
            let mut found = Vec::new();
            driver.tick(&[0, 1]);
            for (at, &(page, thread, home)) in faults.iter().enumerate() {
                let node = driver.threads[thread as usize].node;
                if driver.fault(page, thread, home) {
                    assert_ne!(node, home, "a page that is there already");
                    found.push((page, node));
                }
                if at % 10 == 9 {
                    let unmapped = driver.tick(&[0, 1]);
                    assert!(unmapped.iter().all(|&page| page < PAGES));
                    for moved in driver.policy.thread_moves() {
                        driver.threads[moved.thread.0 as usize].node = moved.node;
                    }
                }
            }
            found
        };
        prop_assert_eq!(run(), run());
    }
}
