//! Decisions about unmatched memory, such as many small objects that share pages.

use super::judges::{HOURS_NS, PrefersPlacement};
use super::*;

fn interleave() -> Placement {
    Placement::Interleave { nodes: Vec::new() }
}

fn carrefour() -> Machine {
    preset("carrefour-a").expect("preset")
}

/// Three objects of half a page, which the main thread filled and all threads read.
fn rows(threads: u32) -> Recording {
    let mut recording = Recording::new(threads);
    let cells: Vec<(u32, u32, f32)> = (0..threads).map(|thread| (0, thread, 1000.0)).collect();
    for function in ["rows", "columns", "vectors"] {
        let group = recording.object(function, 1, Pattern::ReadShared, &cells);
        group.size_bytes = PAGE / 2;
        group.first_touches = vec![(0, ThreadIndex(0))];
    }
    recording
}

/// Adds an object in which each thread uses a share of its own.
fn add_blocks(recording: &mut Recording, toucher: impl Fn(u32) -> u32) {
    let threads = recording.tables.threads.len() as u32;
    let cells: Vec<(u32, u32, f32)> = (0..4 * threads)
        .map(|page| (page, page / 4, 1000.0))
        .collect();
    let touches = (0..4 * threads).map(|page| (page, ThreadIndex(toucher(page))));
    let group = recording.object("blocks", 4 * threads, block(), &cells);
    group.first_touches = touches.collect();
}

#[test]
fn small_objects_are_spread_together_and_a_reason_is_given() {
    let plan = rows(16).decide(Policy::Auto, &carrefour());
    let decision = only(&plan);
    assert_eq!(
        (&decision.subject, &decision.placement),
        (&Subject::Unmatched, &interleave())
    );
    assert_eq!(
        (decision.name.as_str(), decision.start),
        ("unmatched memory", Start::Allocation)
    );
    let why = &decision.why;
    assert!(
        why.starts_with("48k loads and 0 stores by 16 threads to rows cg.c:80 (inlined), "),
        "{why}"
    );
    assert!(
        why.contains("; over all nodes; predicted to save "),
        "{why}"
    );
    let effect = decision.effect;
    assert_eq!((effect.accesses, effect.cost_share), (48000.0, 1.0));
    assert_eq!(
        (effect.local_before, effect.local_after),
        (Some(0.25), 0.25)
    );
    assert_eq!(
        Plan::from_toml(&plan.to_toml(), "plan.toml").expect("it is read again"),
        plan
    );
    // Other policies decide only about objects.
    for policy in [Policy::Object, Policy::Uniform, Policy::Interleave] {
        assert_eq!(rows(16).decide(policy, &carrefour()).decisions, []);
    }
}

/// For small objects laid over each other, it is unknown which thread touched which object first: they may be well
/// placed.
#[test]
fn memory_of_unknown_use_is_not_spread() {
    let mut recording = rows(16);
    for group in &mut recording.attribution.objects {
        group.instances = 500;
    }
    assert_eq!(recording.decide(Policy::Auto, &carrefour()).decisions, []);
    let mut recording = rows(16);
    for group in &mut recording.attribution.objects {
        group.first_touches.clear();
    }
    assert_eq!(recording.decide(Policy::Auto, &carrefour()).decisions, []);
}

/// An object worth deciding about is part of unmatched memory, unless a decision keeps it apart.
#[test]
fn where_unmatched_memory_is_spread_what_is_well_placed_is_kept_by_a_decision() {
    let mut recording = rows(16);
    add_blocks(&mut recording, |page| page / 4);
    let plan = recording.decide(Policy::Auto, &carrefour());
    let of = |rest: bool| {
        let mut decisions = plan.decisions.iter();
        decisions.find(|one| (one.subject == Subject::Unmatched) == rest)
    };
    assert_eq!(plan.decisions.len(), 2, "{plan:?}");
    assert_eq!(of(true).expect("the rest").placement, interleave());
    let kept = of(false).expect("the blocks");
    assert_eq!(kept.placement, Placement::FirstTouch);
    assert!(
        kept.why
            .ends_with("although the memory around it is placed"),
        "{}",
        kept.why
    );
    assert_eq!(
        (kept.effect.local_before, kept.effect.local_after),
        (Some(1.0), 1.0)
    );
    // Without a decision about unmatched memory, the objects need no decision either.
    let mut alone = Recording::new(16);
    add_blocks(&mut alone, |page| page / 4);
    assert_eq!(alone.decide(Policy::Auto, &carrefour()).decisions, []);
}

/// For objects that each thread allocates for itself, first touch is the only choice.
#[test]
fn instances_of_their_own_threads_are_kept_too() {
    let mut recording = rows(16);
    add_blocks(&mut recording, |page| page / 4);
    let site = recording.attribution.objects.len() as u32 - 1;
    let first = recording.tables.objects.len() as u32;
    let own = |thread| object(site, thread, 0, 4 * PAGE);
    recording.tables.objects.extend((0..16).map(own));
    let group = recording.attribution.objects.last_mut().expect("blocks");
    group.instances = 16;
    group.listed_instances = (first..first + 16).map(ObjectId).collect();
    group.uses = (0..16)
        .map(|thread| InstanceUse {
            object: ObjectId(first + thread),
            thread: ThreadIndex(thread),
            accesses: 4000.0,
            samples: 4000.0,
            cost_ns: 4e9,
        })
        .collect();
    let plan = recording.decide(Policy::Auto, &carrefour());
    let placements: Vec<_> = plan.decisions.iter().map(|one| &one.placement).collect();
    assert_eq!(placements, [&interleave(), &Placement::FirstTouch]);
}

#[test]
fn stacks_code_and_files_are_no_part_of_it() {
    let named = |kind, name: &str| {
        let mut recording = rows(16);
        for group in &mut recording.attribution.objects {
            (group.kind, group.name) = (kind, ObjectName::Other(name.to_owned()));
        }
        recording.decide(Policy::Auto, &carrefour()).decisions
    };
    assert_eq!(named(ObjectKind::Stack, "stack"), []);
    assert_eq!(named(ObjectKind::Tls, "thread-local storage"), []);
    assert_eq!(named(ObjectKind::Code, "cg"), []);
    assert_eq!(named(ObjectKind::Mapping, "/usr/share/table"), []);
    assert_eq!(named(ObjectKind::Mapping, "anonymous memory").len(), 1);
    assert_eq!(
        named(ObjectKind::HeapArea, "heap, outside logged objects").len(),
        1
    );
}

#[test]
fn unmatched_memory_may_go_to_its_next_user_or_to_nodes_with_threads() {
    let mut recording = rows(2);
    recording.attribution.objects[1].affinity.initialisation = vec![filled_by_master()];
    let parameters = Parameters {
        phases: true,
        ..Parameters::default()
    };
    let nodes = [0, 1].map(|node| (NodeId(node), 1)).into();
    let of_threads = Placement::Interleave { nodes };
    for (placement, start, of_samples) in [
        (Placement::FirstTouch, Start::SecondThread, false),
        (Placement::FirstTouch, Start::Parallel, false),
        (interleave(), Start::Parallel, false),
        (interleave(), Start::SecondThread, true),
        (of_threads, Start::Allocation, true),
    ] {
        let mut judge = PrefersPlacement {
            placement: placement.clone(),
            start,
            of_samples,
        };
        // One thread per node, on two of four nodes.
        let chosen = recording.with(&opteron(), |input| {
            let Ok(chosen) = choose(input, &parameters, &mut judge);
            chosen
        });
        assert_eq!(
            chosen.time.planned_ns,
            0.5 * HOURS_NS,
            "{placement} {start:?}"
        );
        assert_eq!(only(&chosen.plan).subject, Subject::Unmatched);
    }
}

#[test]
fn a_prediction_counts_it() {
    let mut recording = rows(8);
    let mut area = recording.attribution.objects[0].clone();
    area.kind = ObjectKind::HeapArea;
    area.name = ObjectName::Other("heap, outside logged objects".to_owned());
    recording.attribution.objects.push(area);
    add_blocks(&mut recording, |page| page / 4);
    let rest = Decision {
        name: "the rest".to_owned(),
        subject: Subject::Unmatched,
        placement: interleave(),
        start: Start::Allocation,
        why: String::new(),
        effect: Default::default(),
    };
    let empty = recording.decide(Policy::Object, &opteron());
    let of = |decisions: Vec<Decision>| {
        let plan = Plan {
            decisions,
            ..empty.clone()
        };
        recording.predict(&plan, &opteron())
    };
    let without = of(Vec::new());
    assert_eq!(without.objects.len(), 4, "three call sites and the blocks");
    assert!(
        without
            .objects
            .iter()
            .all(|object| object.decisions.is_empty())
    );
    let spread = of(vec![rest.clone()]);
    assert_eq!(spread.objects.len(), 5, "and the heap");
    for object in &spread.objects {
        assert_eq!(object.decisions, [0], "{object:?}");
        assert_eq!(object.planned.local_share, 0.25, "{object:?}");
        assert_ne!(object.name, "unmatched memory");
    }
    let blocks = recording.decide(Policy::Interleave, &opteron()).decisions;
    let kept = Decision {
        placement: Placement::FirstTouch,
        ..blocks[0].clone()
    };
    let kept = of(vec![rest, kept]);
    let blocks = kept.objects.iter().find(|object| object.size_bytes > PAGE);
    let blocks = blocks.expect("the blocks");
    assert_eq!(
        (blocks.decisions.as_slice(), blocks.planned.local_share),
        (&[1][..], 1.0)
    );
}
