//! Decisions about the heap that `brk` extends, whose pages are full of small objects.

use nearpage_attribution::IN_BRK_HEAP;

use super::*;

/// A heap that the main thread filled, and of which each of four threads uses a share of its own.
fn heap() -> Recording {
    let mut recording = Recording::new(4);
    let cells: Vec<(u32, u32, f32)> = (0..40).map(|page| (page, page / 10, 1000.0)).collect();
    let group = recording.object("allocate", 40, block(), &cells);
    group.kind = ObjectKind::HeapArea;
    group.name = ObjectName::Other(IN_BRK_HEAP.to_owned());
    group.first_touches = (0..40).map(|page| (page, ThreadIndex(0))).collect();
    recording
}

#[test]
fn every_policy_places_them_by_their_distance_from_its_start() {
    let recording = heap();
    let shares = Placement::Block {
        team: String::new(),
    };
    // With an input of another size, shares would be no worse than spreading the heap.
    for policy in [
        Policy::Auto,
        Policy::Object,
        Policy::Uniform,
        Policy::HopSensitive,
    ] {
        let plan = recording.decide(policy, &opteron());
        let decision = only(&plan);
        let size_bytes = 40 * PAGE;
        assert_eq!(decision.subject, Subject::BrkHeap { size_bytes });
        assert_eq!(
            (decision.name.as_str(), &decision.placement),
            (IN_BRK_HEAP, &shares)
        );
        assert_eq!(decision.effect.local_after, 1.0, "{policy:?}");
        let predicted = recording.predict(&plan, &opteron());
        assert_eq!(predicted.objects.len(), 1);
        assert_eq!(predicted.objects[0].decisions, [0]);
        assert_eq!(
            (
                predicted.first_touch.local_share,
                predicted.planned.local_share
            ),
            (0.25, 1.0)
        );
        assert_eq!(
            Plan::from_toml(&plan.to_toml(), "plan.toml").expect("it is read again"),
            plan
        );
    }
}

/// The heap is memory that no object's decision is about. A plan without a decision about the heap predicts nothing for
/// it, and a phase cannot place it.
#[test]
fn a_plan_without_it_predicts_nothing_of_it_and_no_phase_has_it() {
    let recording = heap();
    let empty = Plan {
        decisions: Vec::new(),
        ..recording.decide(Policy::Object, &opteron())
    };
    assert_eq!(recording.predict(&empty, &opteron()).objects, []);
    let parameters = Parameters {
        of_phase: true,
        ..Parameters::default()
    };
    let plan = recording.with(&opteron(), |input| decide(Policy::Auto, input, &parameters));
    assert_eq!(plan.decisions, []);
    // Memory that allocators map by themselves is not part of this heap.
    let mut arenas = heap();
    arenas.attribution.objects[0].name =
        ObjectName::Other("arenas, outside logged objects".to_owned());
    for policy in [Policy::Object, Policy::Uniform] {
        assert_eq!(arenas.decide(policy, &opteron()).decisions, []);
    }
}

/// Objects in a heap that is placed would move with the pages around them.
#[test]
fn well_placed_objects_of_the_heap_are_kept_by_a_decision() {
    for policy in [Policy::Object, Policy::Uniform, Policy::Auto] {
        let mut recording = heap();
        let cells: Vec<(u32, u32, f32)> = (0..40).map(|page| (page, page / 10, 1000.0)).collect();
        for kind in [ObjectKind::Heap, ObjectKind::Mapping] {
            let group = recording.object("blocks", 40, block(), &cells);
            group.kind = kind;
            let touches = (0..40).map(|page| (page, ThreadIndex(page / 10)));
            group.first_touches = touches.collect();
        }
        let plan = recording.decide(policy, &opteron());
        let [of_heap, kept] = plan.decisions.as_slice() else {
            panic!("{policy:?}: {plan:?}");
        };
        assert!(matches!(of_heap.subject, Subject::BrkHeap { .. }));
        assert!(matches!(kept.subject, Subject::CallSite { .. }));
        assert_eq!(kept.placement, Placement::FirstTouch);
        assert!(
            kept.why
                .ends_with("although the memory around it is placed"),
            "{}",
            kept.why
        );
        assert_eq!(kept.effect.local_after, 1.0);
    }
}

/// A small part of the cost is not worth what a wrong decision about all small objects would lose.
#[test]
fn samples_leave_a_heap_with_little_of_the_cost_alone() {
    for (samples, is_placed) in [(100.0, false), (1000.0, true)] {
        let mut recording = heap();
        let cells: Vec<(u32, u32, f32)> = (0..40).map(|page| (page, page / 10, samples)).collect();
        let costly: Vec<(u32, u32, f32)> = (0..40).map(|page| (page, page / 10, 2000.0)).collect();
        recording.attribution.objects.clear();
        let group = recording.object("blocks", 40, block(), &costly);
        group.kind = ObjectKind::Mapping;
        group.first_touches = (0..40).map(|page| (page, ThreadIndex(0))).collect();
        let group = recording.object("allocate", 40, block(), &cells);
        group.kind = ObjectKind::HeapArea;
        group.name = ObjectName::Other(IN_BRK_HEAP.to_owned());
        group.first_touches = (0..40).map(|page| (page, ThreadIndex(0))).collect();
        let plan = recording.decide(Policy::Auto, &opteron());
        let heaps = plan
            .decisions
            .iter()
            .filter(|one| one.subject.is_brk_heap());
        assert_eq!(heaps.count() == 1, is_placed, "{:?}", plan.decisions);
        assert_eq!(plan.decisions.len(), 1 + usize::from(is_placed));
    }
}
