//! Decisions from intervals, and their repetition from a log.

use super::*;
use nearpage_online::{ActionKind, MigrateReplicate, Setting, Thresholds};
use proptest::prelude::*;

fn policy() -> Box<dyn OnlinePolicy> {
    let thresholds = Thresholds {
        trigger: 4,
        hold: 1,
        reset_cycles: 1_000_000_000,
        ..Thresholds::default()
    };
    let setting = Setting {
        nodes: 4,
        pages: 100,
        clock_ghz: 1.0,
        memory_nodes: 0b1111,
        near_memory_nodes: 0b1111,
        cpus_per_node: 0,
        every: 1,
        seed: 1,
    };
    Box::new(MigrateReplicate::new(&thresholds, &setting).expect("consistent thresholds"))
}

fn seen(page: u32, node: u16) -> ObservedAccess {
    ObservedAccess {
        after_ns: 0,
        page,
        node,
        home: 0,
        thread: 0,
        kind: AccessKind::Load,
        level: Level::Unknown,
    }
}

fn interval(begin_ns: u64, observations: Vec<ObservedAccess>) -> Interval {
    Interval {
        begin_ns,
        end_ns: begin_ns + 500_000_000,
        accesses_per_thousand: 2500,
        free_per_10000: 9000,
        full: vec![false; 4],
        observations,
        ..Interval::default()
    }
}

#[test]
fn counts_go_on_over_intervals_and_end_with_the_epoch() {
    let mut decider = Decider::new(policy(), 4, 100);
    let mut decide = |interval: Interval| decider.decide(&interval).actions;
    assert!(decide(interval(0, vec![seen(7, 2); 2])).is_empty());
    let actions = decide(interval(500_000_000, vec![seen(7, 2); 2]));
    assert_eq!(actions.len(), 1);
    let action = &actions[0];
    assert_eq!(
        (action.page, action.kind, action.node),
        (7, ActionKind::Migrate, 2)
    );
    // The epoch of a second ended with that interval.
    assert!(decide(interval(1_000_000_000, vec![seen(8, 2); 3])).is_empty());
    assert!(decide(interval(1_500_000_000, Vec::new())).is_empty());
    assert!(decide(interval(2_000_000_000, vec![seen(8, 2)])).is_empty());
}

#[test]
fn a_number_that_stands_for_another_page_starts_from_nothing() {
    let mut decider = Decider::new(policy(), 4, 100);
    let mut interval_of_another = interval(0, vec![seen(7, 2); 4]);
    interval_of_another.placed = vec![PageRenumbering {
        after: 3,
        page: 7,
        process: 1,
        number: 77,
    }];
    assert!(decider.decide(&interval_of_another).actions.is_empty());
    let mut gone = interval(0, vec![seen(7, 2)]);
    gone.forgotten = vec![7];
    let mut decider = Decider::new(policy(), 4, 100);
    decider.decide(&interval(0, vec![seen(7, 2); 3]));
    assert!(decider.decide(&gone).actions.is_empty());
}

#[test]
fn impossible_accesses_are_ignored() {
    let mut decider = Decider::new(policy(), 4, 100);
    let mut strange = vec![seen(100, 2); 4];
    strange.extend([seen(7, 4); 4]);
    strange.extend(
        [ObservedAccess {
            home: 9,
            ..seen(7, 1)
        }; 4],
    );
    assert!(decider.decide(&interval(0, strange)).actions.is_empty());
}

#[test]
fn samples_stand_for_more_accesses() {
    let interval = interval(0, Vec::new());
    assert_eq!(interval.scaled(4), 10);
    assert_eq!(interval.scaled(u64::MAX), u64::MAX);
}

proptest! {
    #[test]
    fn the_same_inputs_give_the_same_decisions_after_a_way_through_a_log(
        intervals in prop::collection::vec(
            prop::collection::vec((0u32..20, 0u16..4, 0u16..4, any::<bool>(), 0u8..3, 0u8..8), 0..100),
            1..10,
        ),
    ) {
        let (mut first, mut second) = (Decider::new(policy(), 4, 100), Decider::new(policy(), 4, 100));
        for (number, rows) in intervals.into_iter().enumerate() {
            let mut interval = interval(number as u64 * 500_000_000, Vec::new());
            for (after, (page, node, home, new, kind, level)) in rows.into_iter().enumerate() {
                if new {
                    let (process, number) = (node, u64::from(page) + 1000);
                    interval.placed.push(PageRenumbering { after, page, process, number });
                }
                interval.observations.push(ObservedAccess {
                    home,
                    kind: AccessKind::from_number(kind).expect("a kind"),
                    level: Level::from_number(level).expect("a level"),
                    ..seen(page, node)
                });
            }
            let text = serde_json::to_string(&interval).expect("JSON");
            let read: Interval = serde_json::from_str(&text).expect("what was written");
            prop_assert_eq!(&read, &interval);
            prop_assert_eq!(first.decide(&interval), second.decide(&read));
        }
    }
}
