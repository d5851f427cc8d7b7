//! Call sites that allocate several objects, each for another thread.

use super::*;

/// Eight buffers, which the main thread allocated one after the other. The first thread uses three of them, the second
/// thread one, the third thread the rest; the last two buffers were never sampled.
#[test]
fn instances_go_to_their_users_in_order_of_allocation() {
    let mut recording = Recording::new(4);
    let cells: Vec<_> = (0..4)
        .flat_map(|page| [(page, 0, 6.0), (page, 1, 2.0), (page, 2, 4.0)])
        .collect();
    recording.object("buffers", 4, Pattern::Shared, &cells);
    recording.tables.objects.clear();
    for order in 0..6 {
        recording.tables.objects.push(object(0, 0, order, 4 * PAGE));
    }
    let group = &mut recording.attribution.objects[0];
    group.instances = 8;
    group.listed_instances = (0..6).map(ObjectId).collect();
    group.uses = (0..6)
        .map(|order| InstanceUse {
            object: ObjectId(order),
            thread: ThreadIndex([0, 0, 0, 1, 2, 2][order as usize]),
            accesses: 8.0,
            samples: 8.0,
            cost_ns: 8e6,
        })
        .collect();
    let plan = recording.decide(Policy::Object, &opteron());
    let found: Vec<_> = plan
        .decisions
        .iter()
        .map(|decision| match &decision.subject {
            Subject::CallSite {
                order: Some(order),
                thread: Some(0),
                ..
            } => (*order, decision.placement.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [((0, 2), 0), ((3, 3), 1), ((4, 7), 2)];
    assert_eq!(
        found,
        expected.map(|(order, index)| (order, Placement::Whole(thread(index))))
    );
    let total: f64 = plan
        .decisions
        .iter()
        .map(|decision| decision.effect.cost_share)
        .sum();
    assert!((total - 1.0).abs() < 1e-9);

    let prediction = recording.predict(&plan, &opteron());
    assert!((prediction.first_touch.local_share - 0.5).abs() < 1e-9);
    assert_eq!(
        (prediction.planned.local_share, prediction.accesses),
        (1.0, 48.0)
    );

    // The same buffers, each allocated by its user.
    for (order, object) in recording.tables.objects.iter_mut().enumerate() {
        object.thread = Some(ThreadIndex([0, 0, 0, 1, 2, 2][order]));
    }
    assert_eq!(recording.decide(Policy::Object, &opteron()).decisions, []);
}

/// The main thread allocates rows one by one, and each thread uses an equal share of them. A rule holds for any number
/// of rows and threads, unlike the recorded numbers of rows.
#[test]
fn instances_in_equal_shares_are_dealt_in_blocks() {
    let recording = |owner: fn(u32) -> u32| {
        let mut recording = Recording::new(4);
        let cells: Vec<_> = (0..4)
            .flat_map(|page| (0..4).map(move |thread| (page, thread, 4.0)))
            .collect();
        recording.object("rows", 4, Pattern::Shared, &cells);
        recording.tables.objects.clear();
        for order in 0..22 {
            recording.tables.objects.push(object(0, 0, order, 4 * PAGE));
        }
        let group = &mut recording.attribution.objects[0];
        group.instances = 22;
        group.listed_instances = (0..22).map(ObjectId).collect();
        group.uses = (0..22)
            .map(|order| InstanceUse {
                object: ObjectId(order),
                thread: ThreadIndex(owner(order)),
                accesses: 8.0,
                samples: 8.0,
                cost_ns: 8e6,
            })
            .collect();
        recording
    };
    let equal = recording(|order| ((order + 1) * 4 - 1) / 22);
    for policy in [Policy::Object, Policy::Auto] {
        let plan = equal.decide(policy, &opteron());
        let decision = only(&plan);
        let expected = Placement::ObjectBlocks {
            objects: 22,
            team: String::new(),
        };
        assert_eq!(decision.placement, expected);
        let prediction = equal.predict(&plan, &opteron());
        assert_eq!(prediction.planned.local_share, 1.0);
        assert!(prediction.first_touch.local_share < 0.4);
    }
    // Shares that fit no rule stay as they were recorded.
    let unequal = recording(|order| [0, 1, 1, 2, 3][order as usize / 5]);
    let plan = unequal.decide(Policy::Object, &opteron());
    assert_eq!(plan.decisions.len(), 4);
    assert!(
        plan.decisions
            .iter()
            .all(|one| matches!(one.placement, Placement::Whole(_)))
    );
}

/// One buffer for each thread, or several, dealt to threads in order of allocation: the rule holds for any number of
/// threads.
#[test]
fn instances_that_threads_use_in_turn_are_dealt_round_robin() {
    for count in [4, 11] {
        let mut recording = Recording::new(4);
        let cells: Vec<_> = (0..4)
            .flat_map(|page| (0..4).map(move |thread| (page, thread, 4.0)))
            .collect();
        recording.object("buffers", 4, Pattern::Shared, &cells);
        recording.tables.objects.clear();
        for order in 0..count {
            recording.tables.objects.push(object(0, 0, order, 4 * PAGE));
        }
        let group = &mut recording.attribution.objects[0];
        group.instances = count.into();
        group.listed_instances = (0..count).map(ObjectId).collect();
        group.uses = (0..count)
            .map(|order| InstanceUse {
                object: ObjectId(order),
                thread: ThreadIndex(order % 4),
                accesses: 8.0,
                samples: 8.0,
                cost_ns: 8e6,
            })
            .collect();
        for policy in [Policy::Object, Policy::Auto] {
            let plan = recording.decide(policy, &opteron());
            let decision = only(&plan);
            let team = String::new();
            assert_eq!(decision.placement, Placement::RoundRobin { team });
            let Subject::CallSite { order, thread, .. } = &decision.subject else {
                panic!("{:?}", decision.subject);
            };
            assert_eq!((*order, *thread), (None, Some(0)));
            let prediction = recording.predict(&plan, &opteron());
            assert_eq!(prediction.planned.local_share, 1.0);
            assert!(prediction.first_touch.local_share < 0.3);
        }
    }
}

/// As in a parallel sort: each thread allocates and writes an array of counts, and all threads read all of them. Half of
/// the accesses are local under first touch. An interleaved array has a quarter of them, so it stays where it is.
#[test]
fn objects_that_their_allocators_use_most_and_others_read_stay_at_first_touch() {
    let mut recording = Recording::new(4);
    let cells: Vec<_> = (0..4)
        .flat_map(|page| (0..4).map(move |thread| (page, thread, 24.0)))
        .collect();
    let group = recording.object("counts", 4, Pattern::Shared, &cells);
    // Of the four arrays laid over each other, the first thread touched its own first.
    group.first_touches = (0..4).map(|page| (page, ThreadIndex(0))).collect();
    group.touchers = (0..4).map(|thread| (ThreadIndex(thread), 4)).collect();
    group.instances = 4;
    group.listed_instances = (0..4).map(ObjectId).collect();
    group.uses = (0..16)
        .map(|at| {
            let accesses = if at / 4 == at % 4 { 48.0 } else { 16.0 };
            InstanceUse {
                object: ObjectId(at / 4),
                thread: ThreadIndex(at % 4),
                accesses,
                samples: accesses,
                cost_ns: accesses * 1e6,
            }
        })
        .collect();
    recording.tables.objects = (0..4).map(|one| object(0, one, 0, 4 * PAGE)).collect();
    let machine = preset("opteron-4").expect("a preset");
    let nothing = recording.decide(Policy::Auto, &machine);
    assert_eq!(nothing.decisions, []);
    let prediction = recording.predict(&nothing, &machine);
    assert_eq!(prediction.first_touch.local_share, 0.5);
    assert_eq!(prediction.accesses, 384.0);
}

/// Rows that the main thread allocates, and that their users fill. Of the rows laid over each other, the main thread touched
/// its own first, as in every trace.
#[test]
fn rows_that_their_users_touched_are_not_taken_for_the_main_threads() {
    let local_share = |touchers: [u64; 4]| {
        let mut recording = Recording::new(4);
        let cells: Vec<_> = (0..4)
            .flat_map(|page| (0..4).map(move |thread| (page, thread, 10.0)))
            .collect();
        let group = recording.object("rows", 4, Pattern::PrivateEach, &cells);
        group.first_touches = (0..4).map(|page| (page, ThreadIndex(0))).collect();
        let touchers = (0..).map(ThreadIndex).zip(touchers);
        group.touchers = touchers.filter(|toucher| toucher.1 > 0).collect();
        group.instances = 20;
        group.listed_instances = (0..20).map(ObjectId).collect();
        group.uses = (0..20)
            .map(|order| InstanceUse {
                object: ObjectId(order),
                thread: ThreadIndex(order / 5),
                accesses: 8.0,
                samples: 8.0,
                cost_ns: 8e6,
            })
            .collect();
        recording.tables.objects = (0..20).map(|order| object(0, 0, order, 4 * PAGE)).collect();
        let nothing = recording.decide(Policy::Interleave, &opteron());
        recording
            .predict(&nothing, &opteron())
            .first_touch
            .local_share
    };
    assert_eq!(local_share([20; 4]), 1.0);
    assert_eq!(local_share([80, 0, 0, 0]), 0.25);
}
