//! The log of movements, compared with the counts.

use super::policies::eager;
use super::*;
use crate::{MovementKind, Movements, Part};

/// The job with all movements kept.
fn followed(mut job: Job) -> Job {
    job.options.movements_max = usize::MAX;
    job
}

/// Writers on every node take turns at the same pages, which all start on node 0.
fn contended() -> MemoryTrace {
    let turn = |store_page: u32| {
        let reads = (0..12).map(|page| load(3, page));
        reads
            .chain([store(5, store_page)])
            .collect::<Vec<_>>()
            .repeat(900)
    };
    touched_by_first(12, vec![(4, turn(1)), (8, turn(2)), (12, turn(3))])
}

/// First and last home of each page, the last one computed from the movements.
fn replayed(movements: &Movements) -> Vec<(u8, u8)> {
    let homes = movements.extents.iter().flat_map(|extent| &extent.homes);
    let mut homes: Vec<(u8, u8)> = homes.map(|home| (home.0, home.0)).collect();
    for movement in &movements.kept {
        let home = &mut homes[movement.page as usize].1;
        assert_eq!(u16::from(*home), movement.from, "{movement:?}");
        match movement.kind {
            MovementKind::Replicate | MovementKind::Refresh => {}
            _ => *home = movement.to as u8,
        }
    }
    homes
}

#[test]
fn movements_are_what_was_counted_and_lead_to_the_last_homes() {
    let machine = machine(4, CLOCK);
    let trace = contended();
    let mut seen = 0;
    for job in eager() {
        let plain = one(&trace, &machine, job.clone());
        assert_eq!((&plain.movements, &plain.timeline), (&None, &None));
        let name = plain.policy.clone();
        let mut outcome = one(&trace, &machine, followed(job));
        let movements = outcome.movements.take().expect("kept");
        let timeline = outcome.timeline.take().expect("kept");
        assert_eq!(outcome, plain, "{name}: following changes nothing");

        let count = |kind| {
            let kept = movements.kept.iter();
            kept.filter(|movement| movement.kind == kind).count() as u64
        };
        let counts = [
            MovementKind::Migrate,
            MovementKind::Interleave,
            MovementKind::Replicate,
            MovementKind::Refresh,
            MovementKind::Collapse,
        ]
        .map(count);
        let expected = [
            outcome.migrated,
            outcome.interleaved,
            outcome.replicated,
            outcome.refreshed,
            outcome.collapsed,
        ];
        assert_eq!(counts, expected, "{name}");
        assert_eq!((movements.omitted, movements.pages_omitted), (0, 0));
        assert!(movements.kept.is_sorted_by_key(|movement| movement.time_ns));
        let homes = movements.extents.iter().flat_map(|extent| &extent.homes);
        let homes: Vec<(u8, u8)> = homes.copied().collect();
        assert_eq!(homes.len(), 12, "{name}: every page was touched");
        assert_eq!(replayed(&movements), homes, "{name}");
        seen += movements.kept.len();

        let sum = |figure: fn(&Part) -> u64| timeline.parts().iter().map(figure).sum::<u64>();
        assert_eq!(sum(|part| part.local), outcome.local, "{name}");
        assert_eq!(sum(|part| part.remote), outcome.remote(), "{name}");
        assert_eq!(
            sum(|part| part.migrated),
            outcome.migrated + outcome.interleaved
        );
        assert_eq!(
            sum(|part| part.replicated),
            outcome.replicated + outcome.refreshed
        );
        for (node, &load) in outcome.controller_load.iter().enumerate() {
            let parts = timeline.parts().iter();
            let found: u64 = parts.map(|part| part.controller_load[node]).sum();
            assert_eq!(found, load, "{name}, node {node}");
        }
    }
    assert!(seen > 100, "the policies move pages here: {seen}");
}

#[test]
fn movements_beyond_the_bound_are_counted() {
    let machine = machine(4, CLOCK);
    let trace = contended();
    let jobs = eager();
    let job = jobs.first().expect("there are some");
    let all = one(&trace, &machine, followed(job.clone()));
    let all = all.movements.expect("kept");
    let mut few = job.clone();
    few.options.movements_max = 3;
    let few = one(&trace, &machine, few).movements.expect("kept");
    assert!(all.kept.len() > 3);
    assert_eq!(few.kept, all.kept[..3]);
    assert_eq!(few.omitted, all.kept.len() as u64 - 3);
    assert_eq!(few.extents, all.extents, "first and last homes stay whole");
}
