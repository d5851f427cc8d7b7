//! Tests of the whole policy, reference by reference.

use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::Served;

use super::*;
use crate::ThreadCounts;

mod properties;

const SETTING: Setting = Setting {
    nodes: 4,
    pages: 4,
    clock_ghz: 1.0,
    memory_nodes: 0b1111,
    near_memory_nodes: 0b1111,
    cpus_per_node: 0,
    every: 1,
    seed: 0,
};

/// Local latency 100 ns, remote 300 ns. A move takes 20 µs, the loss of a hundred remote references.
fn times() -> MemoryTimes {
    MemoryTimes {
        latency_ns: (0..4)
            .map(|cpu| {
                (0..4)
                    .map(|memory| if cpu == memory { 100.0 } else { 300.0 })
                    .collect()
            })
            .collect(),
        service_ns: 0.0,
        move_ns: 20_000.0,
        collapse_ns: 20_000.0,
        private_lines: 0,
    }
}

fn auto() -> Auto {
    Auto::new(&AutoParameters::default(), &SETTING, Some(&times())).expect("policy")
}

fn rich() -> Auto {
    let mut policy = auto();
    policy.migration_budget.balance_ns = 1e9;
    policy
}

fn seen(page: u32, node: u16, kind: AccessKind, copies: Copies) -> Observation {
    Observation {
        page,
        node,
        thread: ThreadIndex(node.into()),
        kind,
        served: Served::Memory,
        copies,
        pressure: false,
    }
}

/// Number of references until the policy acts, and its action.
fn acts(policy: &mut Auto, kind: AccessKind) -> Option<(u32, ActionKind, u16)> {
    (1..10_000).find_map(|count| {
        let mut actions = Vec::new();
        policy.observe(&seen(1, 2, kind, Copies::at(0)), &mut actions);
        actions
            .first()
            .map(|action| (count, action.kind, action.node))
    })
}

#[test]
fn a_page_moves_when_what_it_lost_has_paid_for_it() {
    // 100 references pay for the move, and 125 with two standard errors (2√n each). An evaluation comes every 25.
    let (count, kind, node) = acts(&mut rich(), AccessKind::Store).expect("it pays");
    assert_eq!((kind, node), (ActionKind::Migrate, 2));
    assert!((122..=150).contains(&count), "{count}");
    let (later, ..) = acts(
        &mut Auto {
            errors: 10.0,
            ..rich()
        },
        AccessKind::Store,
    )
    .expect("it pays");
    assert!(later > count, "less certain, later");
}

/// Node 2 would have paid for the page long ago. The page moves there when node 0's references trigger an evaluation.
#[test]
fn without_queues_no_page_moves_to_spread_load() {
    let mut policy = auto();
    let mut actions = Vec::new();
    let far = seen(1, 2, AccessKind::Store, Copies::at(0));
    (0..400).for_each(|_| policy.observe(&far, &mut actions));
    assert_eq!(actions, [], "nothing to spend");
    policy.migration_budget.balance_ns = 1e9;
    let near = seen(1, 0, AccessKind::Store, Copies::at(0));
    (0..25).for_each(|_| policy.observe(&near, &mut actions));
    let done: Vec<_> = actions.iter().map(|one| (one.kind, one.node)).collect();
    assert_eq!(done, [(ActionKind::Migrate, 2)]);
}

/// Thread 2 has run for a millisecond, and its references would take four: it waits for several at once.
#[test]
fn overlapping_waits_save_less() {
    let mut policy = rich();
    let near = seen(3, 2, AccessKind::Load, Copies::at(2));
    (0..40_000).for_each(|_| policy.observe(&near, &mut Vec::new()));
    pass(&mut policy, &[thread(2, 2)]);
    // 400 references pay instead of 100. With two standard errors 442 are needed; the page is evaluated every 25.
    let (count, kind, node) = acts(&mut policy, AccessKind::Store).expect("it pays");
    assert_eq!((kind, node), (ActionKind::Migrate, 2));
    assert_eq!(count, 450);
    // A thread that also computes is assumed to wait for the full latency of each reference.
    let mut policy = rich();
    (0..1000).for_each(|_| policy.observe(&near, &mut Vec::new()));
    pass(&mut policy, &[thread(2, 2)]);
    assert_eq!(
        acts(&mut policy, AccessKind::Store).expect("it pays").0,
        125
    );
}

#[test]
fn without_savings_only_a_share_of_the_time_is_spent() {
    let mut policy = auto();
    assert_eq!(
        acts(&mut policy, AccessKind::Load),
        None,
        "nothing to spend"
    );
    for _ in 0..6 {
        pass(&mut policy, &[thread(0, 0), thread(2, 2)]);
    }
    // A hundredth of 6 ms pays for one move, for the same amount of losses, and for the move back.
    assert!(acts(&mut policy, AccessKind::Load).is_some());
    assert_eq!(acts(&mut policy, AccessKind::Load), None);
    assert_eq!(policy.migration_budget.free_ns(), 0.0);
    // The saving pays for further moves.
    for _ in 0..200 {
        policy.observe(
            &seen(1, 2, AccessKind::Load, Copies::at(2)),
            &mut Vec::new(),
        );
    }
    pass(&mut policy, &[thread(0, 0), thread(2, 2)]);
    assert_eq!(
        policy.migration_budget.free_ns(),
        50_000.0,
        "40 µs, and a share of 1 ms"
    );
    // The page's number is given to another page, so nothing has to go back.
    policy.forget(1);
    assert_eq!(policy.migration_budget.free_ns(), 90_000.0);
}

#[test]
fn moves_that_have_paid_for_themselves_ask_for_less_certainty() {
    let careful = || Auto {
        errors: 10.0,
        ..rich()
    };
    let count = |mut policy: Auto| acts(&mut policy, AccessKind::Store).expect("it pays").0;
    let mut proven = careful();
    proven.migration_budget.saved(ThreadIndex(2), 20_000.0);
    pass(&mut proven, &[thread(0, 0), thread(2, 2)]);
    assert_eq!(count(proven), 125, "a hundred pay, with a look at each 25");
    let mut poor = careful();
    poor.migration_budget.charge(20_000.0);
    poor.migration_budget.saved(ThreadIndex(2), 20_000.0);
    pass(&mut poor, &[thread(0, 0), thread(2, 2)]);
    let (half, none) = (count(poor), count(careful()));
    assert!(125 < half && half < none, "{half}, {none}");
}

fn thread(number: u32, node: u16) -> ThreadCounts {
    ThreadCounts {
        thread: ThreadIndex(number),
        application: 0,
        node,
        busy_ns: 1_000_000,
        reads: 0,
        writes: 0,
    }
}

/// Ends an epoch of a millisecond with these threads.
fn pass(policy: &mut Auto, threads: &[ThreadCounts]) {
    let epoch = Epoch {
        duration_ns: 1_000_000,
        threads,
        ..Epoch::default()
    };
    policy.end_epoch(&epoch, &mut Vec::new());
}

/// A thread moves to its pages if that is cheaper than moving them; here it costs a tenth of one page move.
#[test]
fn a_thread_goes_to_its_pages() {
    let parameters = AutoParameters {
        refill_ns: 2000,
        budget_permille: 0,
        ..AutoParameters::default()
    };
    let setting = Setting {
        cpus_per_node: 2,
        ..SETTING
    };
    let threads = [thread(0, 0), thread(2, 2)];
    let look = |parameters: &AutoParameters| {
        let mut policy = Auto::new(parameters, &setting, Some(&times())).expect("policy");
        policy.migration_budget.balance_ns = 6000.0;
        let far = seen(1, 2, AccessKind::Store, Copies::at(0));
        (0..24).for_each(|_| policy.observe(&far, &mut Vec::new()));
        pass(&mut policy, &threads);
        let moves = policy.thread_moves();
        (policy, moves)
    };
    let (mut policy, moves) = look(&parameters);
    let moved: Vec<(u32, u16)> = moves.iter().map(|one| (one.thread.0, one.node)).collect();
    assert_eq!(moved, [(2, 0)]);
    assert_eq!(policy.thread_moves(), [], "told once");
    assert_eq!(policy.counts[4..8], [0; 4], "the thread is elsewhere");
    // The whole balance pays for the move and is reserved for the way back; the saving is added.
    assert_eq!(policy.migration_budget.free_ns(), 0.0);
    let near = Observation {
        node: 0,
        ..seen(1, 2, AccessKind::Store, Copies::at(0))
    };
    (0..10).for_each(|_| policy.observe(&near, &mut Vec::new()));
    // The first-touch node of a page that is first seen now is unknown.
    let new = Observation { page: 2, ..near };
    policy.observe(&new, &mut Vec::new());
    pass(&mut policy, &[thread(0, 0), thread(2, 0)]);
    assert_eq!(policy.migration_budget.free_ns(), 2000.0);

    let still = AutoParameters {
        move_threads: 0,
        ..parameters
    };
    assert_eq!(look(&still).1, []);
}

/// Node 2's references have paid for moving page 1, but its threads end before the evaluation, so they do not count.
#[test]
fn accesses_of_ended_threads_move_nothing() {
    let look = |policy: &mut Auto| {
        let mut actions = Vec::new();
        let seen = seen(1, 2, AccessKind::Store, Copies::at(0));
        (0..1000).for_each(|_| policy.observe(&seen, &mut actions));
        actions
    };
    let mut policy = rich();
    pass(&mut policy, &[thread(0, 0), thread(1, 2)]);
    assert_ne!(look(&mut policy), []);
    let mut policy = rich();
    pass(&mut policy, &[thread(0, 0)]);
    assert_eq!(look(&mut policy), []);
    // Unknown threads may live anywhere.
    let mut policy = rich();
    pass(&mut policy, &[]);
    assert_ne!(look(&mut policy), []);
}

#[test]
fn a_page_goes_back_without_asking() {
    let mut policy = auto();
    policy.observe(
        &seen(1, 0, AccessKind::Store, Copies::at(0)),
        &mut Vec::new(),
    );
    policy.pages[1].moves = 3;
    policy.migration_budget.balance_ns = -1e9;
    // The page is on node 2, and node 0's references pay for the move back.
    let mut found = None;
    for count in 1..1000 {
        let mut actions = Vec::new();
        let seen = seen(1, 0, AccessKind::Store, Copies::at(2));
        policy.observe(&seen, &mut actions);
        let action = actions
            .first()
            .map(|action| (count, action.kind, action.node));
        found = found.or(action);
    }
    let (count, kind, node) = found.expect("it goes back");
    assert_eq!((kind, node), (ActionKind::Migrate, 0));
    assert!((122..=150).contains(&count), "{count}");
    // A move to another node needs a positive balance.
    let mut elsewhere = auto();
    elsewhere.migration_budget.balance_ns = -1e9;
    assert_eq!(acts(&mut elsewhere, AccessKind::Store), None);
}

/// All other users of the page wait for the one thread that runs, so the page goes back without a margin.
#[test]
fn a_page_goes_back_at_once_to_the_thread_that_runs_alone() {
    let back = |busy_ns: u64| {
        let mut policy = Auto {
            errors: 10.0,
            ..auto()
        };
        let first = seen(1, 0, AccessKind::Store, Copies::at(0));
        policy.observe(&first, &mut Vec::new());
        let other = ThreadCounts {
            busy_ns,
            ..thread(1, 2)
        };
        pass(&mut policy, &[thread(0, 0), other]);
        policy.migration_budget.balance_ns = -1e9;
        (2..1000).find(|_| {
            let mut actions = Vec::new();
            let seen = seen(1, 0, AccessKind::Store, Copies::at(2));
            policy.observe(&seen, &mut actions);
            actions.iter().any(|action| action.node == 0)
        })
    };
    // A hundred references pay, with an evaluation every 25; ten standard errors are 75 more.
    assert_eq!(back(0), Some(125));
    assert!(back(1_000_000).expect("it goes back") >= 175);
}

/// Number of rounds of loads by nodes 0 and 2 until a page on node 0 is replicated.
fn rounds_to_copy(policy: &mut Auto, page: u32) -> Option<u32> {
    (1..20_000).find(|_| {
        let mut actions = Vec::new();
        for node in [0, 2] {
            let seen = seen(page, node, AccessKind::Load, Copies::at(0));
            policy.observe(&seen, &mut actions);
        }
        actions
            .iter()
            .any(|action| action.kind == ActionKind::Replicate)
    })
}

#[test]
fn a_copy_needs_no_way_back() {
    let mut policy = auto();
    // The budget has to cover the copy twice, and the expected cost of collapses beyond a move, which is 0 here.
    policy.migration_budget.balance_ns = 39_999.0;
    assert_eq!(rounds_to_copy(&mut policy, 1), None);
    policy.migration_budget.balance_ns = 40_000.0;
    assert!(rounds_to_copy(&mut policy, 2).is_some());
    assert_eq!(
        policy.migration_budget.free_ns(),
        20_000.0,
        "nothing is held for it"
    );
    // A move needs a reserve for the way back as well.
    policy.migration_budget.balance_ns = 59_999.0;
    assert_eq!(acts(&mut policy, AccessKind::Store), None);
}

/// Page 1 has moved from node 0 to node 2, whose controller has been busy for half of the time since.
#[test]
fn queueing_at_the_new_node_lowers_savings() {
    let times = MemoryTimes {
        service_ns: 100.0,
        ..times()
    };
    let saved_ns = |requests: [u64; 4]| {
        let parameters = AutoParameters {
            budget_permille: 0,
            ..AutoParameters::default()
        };
        let mut policy = Auto::new(&parameters, &SETTING, Some(&times)).expect("policy");
        let first = seen(1, 0, AccessKind::Store, Copies::at(0));
        policy.observe(&first, &mut Vec::new());
        let epoch = Epoch {
            duration_ns: 1_000_000,
            controller_requests: &requests,
            threads: &[thread(2, 2)],
            ..Epoch::default()
        };
        policy.end_epoch(&epoch, &mut Vec::new());
        let moved = seen(1, 2, AccessKind::Load, Copies::at(2));
        policy.observe(&moved, &mut Vec::new());
        policy.end_epoch(&epoch, &mut Vec::new());
        policy.migration_budget.balance_ns
    };
    assert_eq!(saved_ns([0; 4]), 200.0);
    // At half load, the Pollaczek-Khinchine wait is half a service time.
    assert_eq!(saved_ns([0, 0, 5000, 0]), 150.0);
    assert_eq!(saved_ns([5000, 0, 0, 0]), 250.0);
}

#[test]
fn a_store_to_a_copied_page_is_priced_and_makes_copies_dear() {
    let times = MemoryTimes {
        collapse_ns: 620_000.0,
        ..times()
    };
    let mut policy = Auto::new(&AutoParameters::default(), &SETTING, Some(&times)).expect("policy");
    policy.migration_budget.balance_ns = 1e9;
    // The cost is 20 µs and a twentieth of 600 µs: 250 loads pay, and less than 325 with certainty.
    let copied = rounds_to_copy(&mut policy, 1).expect("it pays");
    assert!((250..=325).contains(&copied), "{copied}");
    let before_ns = policy.migration_budget.balance_ns;
    policy.collapse(1);
    assert_eq!(policy.migration_budget.balance_ns, before_ns - 620_000.0);
    // The only copy so far was stored to, so half of all copies are expected to be.
    let next = rounds_to_copy(&mut policy, 2).expect("it pays");
    assert!(next > 1600, "{next}");
    // The balance would cover a copy, but not the expected store.
    policy.migration_budget.balance_ns = 100_000.0;
    assert_eq!(rounds_to_copy(&mut policy, 3), None);
}

/// Actions on a load of page 1, which is on node 0 alone.
fn on_load(policy: &mut Auto, node: u16) -> Vec<Action> {
    let mut actions = Vec::new();
    policy.observe(
        &seen(1, node, AccessKind::Load, Copies::at(0)),
        &mut actions,
    );
    actions
}

#[test]
fn pages_read_by_many_nodes_are_replicated_until_a_store() {
    let store = |policy: &mut Auto| {
        let seen = seen(1, 0, AccessKind::Store, Copies::at(0));
        policy.observe(&seen, &mut Vec::new());
    };
    let look = |policy: &mut Auto| {
        let mut found = None;
        for _ in 0..1000 {
            for node in [0, 2] {
                let actions = on_load(policy, node);
                found = found.or(actions.first().map(|action| (action.kind, action.node)));
            }
        }
        found
    };
    assert_eq!(look(&mut rich()), Some((ActionKind::Replicate, 2)));
    // Initialising stores come before the loads.
    let mut filled = rich();
    (0..9).for_each(|_| store(&mut filled));
    assert_eq!(look(&mut filled), Some((ActionKind::Replicate, 2)));
    let mut shared = rich();
    assert_eq!(on_load(&mut shared, 2), []);
    store(&mut shared);
    assert_eq!(look(&mut shared), None);
}

#[test]
fn machines_that_say_nothing_are_refused() {
    let error = |parameters: AutoParameters, setting: Setting, times: Option<&MemoryTimes>| {
        Auto::new(&parameters, &setting, times)
            .expect_err("refused")
            .0
    };
    let one = Setting {
        memory_nodes: 0b100,
        ..SETTING
    };
    let message = error(AutoParameters::default(), one, Some(&times()));
    assert!(
        message.starts_with("auto: memory is on one node"),
        "{message}"
    );
    let message = error(AutoParameters::default(), SETTING, None);
    assert!(
        message.starts_with("auto: cost_ns=0 leaves it"),
        "{message}"
    );
    let complete = AutoParameters {
        cost_ns: 1,
        remote_ns: 1,
        ..AutoParameters::default()
    };
    assert!(Auto::new(&complete, &SETTING, None).is_ok());
}
