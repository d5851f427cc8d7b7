//! Pages that count as hints, and pages that don't.

use nearpage_attribution::IN_BRK_HEAP;
use nearpage_planner::quality;

use super::*;

/// A program with 32 pages of an array, 40 pages of the heap, and a library's memory: 8 pages of its own static data,
/// and 4 pages that it allocated when the program called it. Of each object, one page in `every` was sampled.
fn program(every: u32) -> Recording {
    let mut recording = Recording::new(4);
    let cells = |pages: u32| -> Vec<(u32, u32, f32)> {
        let sampled = (0..pages).filter(|page| page % every == 0);
        sampled.map(|page| (page, page % 4, 100.0)).collect()
    };
    recording.object("array", 32, Pattern::Unknown, &cells(32));
    let heap = recording.object("heap", 40, Pattern::Unknown, &cells(40));
    heap.kind = ObjectKind::HeapArea;
    heap.name = ObjectName::Other(IN_BRK_HEAP.to_owned());
    let arenas = recording.object("arenas", 16, Pattern::Unknown, &cells(16));
    arenas.kind = ObjectKind::HeapArea;
    arenas.name = ObjectName::Other("arenas, outside logged objects".to_owned());
    let own = recording.object("data", 8, Pattern::Unknown, &cells(8));
    own.kind = ObjectKind::Static;
    own.name = ObjectName::Symbol(ModuleId(1), 0x4000);
    let id = own.listed_instances[0].0 as usize;
    recording.tables.objects[id].name = "gomp_icv".into();
    recording.object("GOMP_parallel", 4, Pattern::Unknown, &cells(4));
    let team = recording.tables.call_sites.last_mut().expect("added");
    // The frames are malloc in the C library, its caller in the OpenMP runtime, then the program.
    team.frames[1].module = Some(ModuleId(1));
    team.frames[2].module = Some(ModuleId(1));
    recording
}

#[test]
fn pages_of_the_heap_have_hints_and_pages_of_libraries_have_none() {
    let (all, half) = (program(1), program(2));
    let of = |reference: &Recording, ours: &Recording| {
        reference.with(&opteron(), |reference| {
            ours.with(&opteron(), |ours| {
                let plan = decide(Policy::HopSensitive, ours, &Parameters::default());
                quality(reference, ours, &plan, Policy::HopSensitive)
            })
        })
    };
    let same = of(&all, &all);
    assert_eq!(
        (same.reference, same.recording, same.same),
        (32 + 40, 32 + 40, 32 + 40)
    );
    let lossy = of(&all, &half);
    assert_eq!(
        (lossy.reference, lossy.recording, lossy.common),
        (72, 36, 36)
    );
    assert_eq!(
        (lossy.coverage(), lossy.accuracy(), lossy.useful_fraction()),
        (0.5, 1.0, 0.5)
    );
    // Pages that the reference lacks are hints, too.
    let mut nothing = Recording::new(4);
    nothing.tables = all.tables.clone();
    let more = of(&nothing, &half);
    assert_eq!((more.reference, more.recording, more.same), (0, 36, 0));
}

/// Of an array in four shares one page in five was sampled: by the pattern, the plan places all of it.
#[test]
fn a_plan_is_compared_with_hints_for_pages_without_samples() {
    let program = |every: u32| {
        let mut recording = Recording::new(4);
        let sampled = (0..40).filter(|page| page % every == 0);
        let cells: Vec<(u32, u32, f32)> = sampled.map(|page| (page, page / 10, 100.0)).collect();
        recording.object("array", 40, block(), &cells);
        recording
    };
    let (all, fifth) = (program(1), program(5));
    let found = |placement: Placement| {
        let mut plan = fifth.decide(Policy::Object, &opteron());
        plan.decisions[0].placement = placement;
        all.with(&opteron(), |reference| {
            fifth.with(&opteron(), |ours| {
                quality(reference, ours, &plan, Policy::Object)
            })
        })
    };
    let in_blocks = found(Placement::Block {
        team: "openmp".into(),
    });
    assert_eq!(in_blocks.useful_fraction(), 0.2);
    assert_eq!(in_blocks.planned_coverage(), 1.0);
    assert_eq!(in_blocks.planned_useful_fraction(), 1.0);
    // The first thread's pages are on its node, and of spread pages a fourth is on each.
    for other in [
        Placement::Whole(thread(0)),
        Placement::Interleave { nodes: Vec::new() },
    ] {
        let found = found(other);
        assert_eq!(found.planned_coverage(), 1.0);
        assert_eq!(found.planned_useful_fraction(), 0.25);
    }
    // Without faults of a thread, its pages are nowhere.
    let left = found(Placement::FirstTouch);
    assert_eq!((left.planned, left.planned_same), (0, 0.0));
}

#[test]
fn pages_that_a_plan_leaves_are_compared_where_first_touch_puts_them() {
    let mut recording = Recording::new(4);
    let cells: Vec<(u32, u32, f32)> = (0..40).map(|page| (page, page / 10, 100.0)).collect();
    let array = recording.object("array", 40, block(), &cells);
    // The second thread touched the half that the first two threads use.
    array.first_touches = (0..40)
        .map(|page| (page, ThreadIndex(if page < 20 { 1 } else { page / 10 })))
        .collect();
    let found = |decisions: &[Placement]| {
        let mut plan = recording.decide(Policy::Object, &opteron());
        plan.decisions.truncate(decisions.len());
        for (decision, placement) in plan.decisions.iter_mut().zip(decisions) {
            decision.placement = placement.clone();
        }
        recording.with(&opteron(), |input| {
            quality(input, input, &plan, Policy::Object)
        })
    };
    for left in [found(&[]), found(&[Placement::FirstTouch])] {
        assert_eq!((left.planned, left.planned_same), (0, 30.0));
        assert_eq!(left.first_touch_useful_fraction(), 0.75);
    }
    let placed = found(&[Placement::Whole(thread(2))]);
    assert_eq!((placed.planned, placed.planned_same), (40, 10.0));
    assert_eq!(placed.first_touch_same, 30.0);
}
