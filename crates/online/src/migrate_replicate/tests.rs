use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::Served;

use super::*;
use crate::Copies;

const SETTING: Setting = Setting {
    nodes: 4,
    pages: 3,
    memory_nodes: 0b1111,
    near_memory_nodes: 0b1111,
    cpus_per_node: 0,
    clock_ghz: 0.3,
    every: 1,
    seed: 0,
};
/// A driver with one page, its observations and the resulting actions.
struct Driver {
    policy: MigrateReplicate,
    copies: Copies,
    pressure: bool,
    actions: Vec<Action>,
}

impl Driver {
    fn new(thresholds: &Thresholds) -> Self {
        Self {
            policy: MigrateReplicate::new(thresholds, &SETTING).expect("thresholds"),
            copies: Copies::at(0),
            pressure: false,
            actions: Vec::new(),
        }
    }

    fn misses(&mut self, node: u16, kind: AccessKind, count: usize) -> &mut Self {
        for _ in 0..count {
            let observation = Observation {
                page: 1,
                node,
                thread: ThreadIndex(0),
                kind,
                served: Served::Memory,
                copies: self.copies,
                pressure: self.pressure,
            };
            self.policy.observe(&observation, &mut self.actions);
        }
        self
    }

    fn kinds(&self) -> Vec<(ActionKind, u16)> {
        self.actions
            .iter()
            .map(|action| (action.kind, action.node))
            .collect()
    }
}

fn base() -> Driver {
    Driver::new(&Thresholds::default())
}

use AccessKind::{Load, Store};
use ActionKind::{Migrate, Replicate};

#[test]
fn the_trigger_is_reached_at_128_and_not_at_127() {
    let mut driver = base();
    assert_eq!(driver.misses(2, Load, 127).kinds(), []);
    assert_eq!(driver.misses(2, Load, 1).kinds(), [(Migrate, 2)]);
    let reason = &driver.actions[0].reason;
    assert_eq!(reason.counts, [0, 0, 128, 0]);
    assert!(reason.to_string().contains("no holder above hold"));
}

#[test]
fn a_page_with_a_copy_is_never_hot() {
    let mut driver = base();
    driver.copies = Copies {
        home: 0,
        nodes: 0b101,
    };
    assert_eq!(
        driver.misses(2, Load, 1000).misses(0, Load, 1000).kinds(),
        []
    );
}

#[test]
fn hold_must_be_exceeded_by_a_node_with_a_copy() {
    let mut driver = base();
    // Node 3 has no copy, so its misses do not count against the hold threshold.
    driver
        .misses(3, Load, 100)
        .misses(0, Load, 32)
        .misses(2, Load, 128);
    assert_eq!(driver.kinds(), [(Migrate, 2)]);
    let mut driver = base();
    driver.misses(0, Load, 33).misses(2, Load, 128);
    assert_eq!(driver.kinds(), [(Replicate, 2)]);
}

#[test]
fn one_store_is_allowed_and_two_are_not() {
    let mut driver = base();
    driver
        .misses(0, Store, 1)
        .misses(0, Load, 32)
        .misses(2, Load, 128);
    assert_eq!(driver.kinds(), [(Replicate, 2)]);
    let mut driver = base();
    driver
        .misses(0, Store, 2)
        .misses(0, Load, 31)
        .misses(2, Load, 128);
    assert_eq!(driver.kinds(), []);
}

#[test]
fn one_migration_is_allowed_in_an_interval() {
    let mut driver = base();
    driver.misses(2, Load, 128);
    driver.copies = Copies::at(3);
    assert_eq!(driver.misses(1, Load, 128).kinds(), [(Migrate, 2)]);
    driver.policy.end_epoch(&Epoch::default(), &mut Vec::new());
    assert_eq!(
        driver.misses(1, Load, 127).kinds(),
        [(Migrate, 2)],
        "counts start afresh"
    );
    assert_eq!(
        driver.misses(1, Load, 1).kinds(),
        [(Migrate, 2), (Migrate, 1)]
    );
}

#[test]
fn a_node_that_goes_on_missing_is_considered_again() {
    let mut driver = base();
    driver.pressure = true;
    driver.misses(0, Load, 33).misses(2, Load, 255);
    assert_eq!(driver.kinds(), [], "no replicas under memory pressure");
    driver.pressure = false;
    assert_eq!(driver.misses(2, Load, 1).kinds(), [(Replicate, 2)]);
    // Full counters trigger nothing.
    driver.actions.clear();
    driver.pressure = true;
    driver.misses(2, Load, 70_000);
    driver.pressure = false;
    assert_eq!(driver.misses(2, Load, 1000).kinds(), []);
}

#[test]
fn each_half_leaves_the_other_alone() {
    let mut driver = base();
    driver.policy = driver.policy.replicate_only();
    assert_eq!(driver.misses(2, Load, 128).kinds(), []);
    let mut driver = base();
    driver.policy = driver.policy.migrate_only();
    assert_eq!(driver.misses(0, Load, 33).misses(2, Load, 128).kinds(), []);
}

#[test]
fn samples_divide_the_thresholds() {
    let sampled = Thresholds::default().sampled(10);
    assert_eq!(
        (
            sampled.trigger,
            sampled.hold,
            sampled.write,
            sampled.migrate
        ),
        (13, 3, 0, 1)
    );
    assert_eq!(
        Thresholds {
            trigger: 4,
            hold: 1,
            ..Thresholds::default()
        }
        .sampled(10)
        .trigger,
        1
    );
}

#[test]
fn ranges_are_checked() {
    let mut thresholds = Thresholds::default();
    assert_eq!(thresholds.set("trigger", "64"), Ok(true));
    assert_eq!(thresholds.set("nothing", "64"), Ok(false));
    assert_eq!(
        thresholds.set("trigger", "0").expect_err("range").0,
        "trigger=0: expected a whole number from 1 to 65534"
    );
    assert!(thresholds.set("hold", "many").is_err());
    assert_eq!(thresholds.set("hold", "64"), Ok(true));
    let error = MigrateReplicate::new(&thresholds, &SETTING).expect_err("hold");
    assert!(
        error.0.starts_with("hold=64 is not below trigger=64"),
        "{error}"
    );
}

#[test]
fn a_number_that_is_used_again_starts_afresh() {
    let mut driver = base();
    driver.misses(2, Load, 127);
    driver.policy.forget(1);
    assert_eq!(driver.misses(2, Load, 127).kinds(), []);
    assert_eq!(driver.policy.epoch_ns(), Some(106_666_666));
}
