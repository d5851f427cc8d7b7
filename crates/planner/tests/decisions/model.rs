//! `auto` by the contention model.

use super::*;

#[test]
fn auto_places_blocks_near_their_threads() {
    let plan = master_initialised(8, block(), &block_cells()).decide(Policy::Auto, &opteron());
    let decision = only(&plan);
    assert_eq!(
        decision.placement,
        Placement::Block {
            team: String::new()
        }
    );
    assert!(
        decision.why.contains("; predicted to save "),
        "{}",
        decision.why
    );
    assert_eq!(plan.policy, "auto");
}

/// A clock's samples are 1 ms each, however long a miss takes. If the machine knows only distances, accesses and
/// computation still have to be times.
#[test]
fn auto_weighs_computation_by_time_where_no_latency_is_known() {
    let mut recording = master_initialised(8, block(), &block_cells());
    for thread in &mut recording.tables.threads {
        thread.counts.accesses = 400;
        thread.counts.compute = 400;
    }
    let known = recording.decide(Policy::Auto, &opteron());
    let distances = Machine {
        latency_ns: None,
        ..opteron()
    };
    let plan = recording.decide(Policy::Auto, &distances);
    assert_eq!(only(&plan).placement, only(&known).placement);
    assert!(matches!(only(&plan).placement, Placement::Block { .. }));
}

/// The main thread fills blocks that other threads then use: remote stores lose more than local loads save.
#[test]
fn auto_lets_placements_wait_where_filling_would_cost_more_than_moving() {
    let cells: Vec<(u32, u32, f32)> = block_cells()
        .into_iter()
        // The last thread uses its block most, so that placing all near one thread differs from first touch.
        .map(|(page, thread, loads)| (page, thread, 1000.0 * loads + thread as f32))
        .collect();
    let mut recording = master_initialised(8, block(), &cells);
    let parameters = Parameters {
        phases: true,
        ..Parameters::default()
    };
    let decide_on = |recording: &Recording, machine: &Machine| {
        recording.with(machine, |input| decide(Policy::Auto, input, &parameters))
    };
    let machine = Machine {
        moves: nearpage_machine::Moves {
            fixed_ns: Some(1000.0),
            ..opteron().moves
        },
        ..opteron()
    };
    let at_once = decide_on(&recording, &machine);
    assert_eq!(only(&at_once).start, Start::Allocation);
    let group = &mut recording.attribution.objects[0];
    let stores = |page| Cell {
        page,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 2000.0,
        samples: 2000.0,
        cost_ns: 2e9,
    };
    group.affinity.initialisation = (0..32).map(stores).collect();
    let later = decide_on(&recording, &machine);
    assert_eq!(only(&later).placement, only(&at_once).placement);
    assert_eq!(only(&later).start, Start::SecondThread);
    let dear = Machine {
        moves: nearpage_machine::Moves {
            fixed_ns: Some(1e11),
            ..opteron().moves
        },
        ..opteron()
    };
    for decision in decide_on(&recording, &dear).decisions {
        assert_eq!(decision.start, Start::Allocation, "{decision:?}");
    }
}

/// On the Opterons, threads 0 and 1 share a node, so that data of thread 1 that thread 0 fills are where thread 1 works,
/// but only there.
#[test]
fn auto_keeps_what_is_near_its_worker_by_chance_there_if_it_places_anything() {
    let worker = ThreadIndex(1);
    let decided = |with_blocks: bool, pattern: Pattern, toucher: u32| {
        let mut recording = match with_blocks {
            true => master_initialised(8, block(), &block_cells()),
            false => Recording::new(8),
        };
        let cells: Vec<_> = (0..32).map(|page| (page, worker.0, 10.0)).collect();
        let group = recording.object("private", 32, pattern, &cells);
        group.first_touches = vec![(0, ThreadIndex(toucher))];
        let plan = recording.decide(Policy::Auto, &opteron());
        let found = plan.decisions.into_iter();
        let mut found = found.filter(|decision| decision.name.starts_with("private"));
        let decision = found.next();
        assert_eq!(found.next(), None);
        decision.map(|decision| (decision.placement, decision.why))
    };
    let private = Pattern::Private { thread: worker };
    let in_turn = Pattern::InTurn(Box::new([block(), private.clone()]));
    for pattern in [private.clone(), in_turn] {
        let (placement, why) = decided(true, pattern, 0).expect("a decision");
        assert_eq!(placement, Placement::Whole(thread(1)));
        assert!(
            why.contains("only because the thread that fills it"),
            "{why}"
        );
    }
    assert_eq!(
        decided(false, private.clone(), 0),
        None,
        "nothing is placed"
    );
    assert_eq!(
        decided(true, private.clone(), 1),
        None,
        "its own first touch"
    );
    assert_eq!(decided(true, Pattern::Mixed, 0), None, "no thread alone");
    let (placement, why) = decided(true, private, 7).expect("a decision");
    assert_eq!(placement, Placement::Whole(thread(1)));
    assert!(!why.contains("only because"), "on another node: {why}");
}

/// Blocks cost the main thread time once, when it fills them, and save time whenever the team goes over them.
#[test]
fn auto_places_what_pays_in_a_run_as_long_as_it_is_told() {
    let mut recording = master_initialised(8, block(), &block_cells());
    let stores = |page| Cell {
        page,
        thread: ThreadIndex(0),
        loads: 0.0,
        stores: 300.0,
        samples: 300.0,
        cost_ns: 300.0,
    };
    let group = &mut recording.attribution.objects[0];
    group.affinity.initialisation = (0..32).map(stores).collect();
    let chosen = |runtime_scale| {
        let machine = opteron();
        let parameters = Parameters {
            runtime_scale,
            ..Parameters::default()
        };
        recording.with(&machine, |input| {
            let mut model = Model::new(input, &parameters).expect("nodes");
            let Ok(chosen) = choose(input, &parameters, &mut model);
            let times = model.times(&chosen.plan);
            // The model predicts for the finished plan the times by which it was chosen.
            for (predicted_ns, chosen_ns) in [
                (times[1].first_touch_ns, chosen.time.first_touch_ns),
                (times[1].planned_ns, chosen.time.planned_ns),
            ] {
                assert!(
                    (predicted_ns / chosen_ns - 1.0).abs() < 1e-9,
                    "{times:?} {chosen:?}"
                );
            }
            (chosen.plan, times)
        })
    };
    let (plan, [short, _]) = chosen(1.0);
    assert!(plan.decisions.is_empty(), "{plan:?}");
    let (plan, [recorded, long]) = chosen(100.0);
    only(&plan);
    assert!(long.planned_ns < long.first_touch_ns);
    assert!(recorded.planned_ns > recorded.first_touch_ns);
    assert_eq!(recorded.first_touch_ns, short.first_touch_ns);
}

#[test]
fn auto_spreads_what_all_threads_read_where_controllers_are_short() {
    let recording = master_initialised(16, Pattern::ReadShared, &shared_cells(16));
    let plan = recording.decide(Policy::Auto, &preset("carrefour-a").expect("preset"));
    let interleave = Placement::Interleave { nodes: Vec::new() };
    assert_eq!(only(&plan).placement, interleave);
}

/// The expander's memory takes more than twice as long as the others' on average.
#[test]
fn auto_spreads_what_all_threads_read_over_the_nodes_beside_an_expander() {
    let machine = preset("epyc-9224-cxl").expect("preset");
    let machine = machine.with_cpus(8).expect("CPUs");
    let recording = master_initialised(8, Pattern::ReadShared, &shared_cells(8));
    let nodes = (0..4).map(|node| (NodeId(node), 1)).collect();
    for policy in [Policy::Object, Policy::Auto] {
        let plan = recording.decide(policy, &machine);
        let found = &only(&plan).placement;
        assert_eq!(
            *found,
            Placement::Interleave {
                nodes: Vec::clone(&nodes)
            },
            "{policy:?}"
        );
    }
}

/// A machine that was discovered, but not measured: without an assumed bandwidth, one node would serve all threads as
/// well as all nodes.
#[test]
fn auto_spreads_what_all_threads_read_where_nothing_is_known_of_controllers() {
    let machine = Machine {
        latency_ns: None,
        ..opteron()
    };
    let threads = machine.nodes.iter().map(|node| node.cpus.as_slice().len());
    let threads = threads.sum::<usize>() as u32;
    let recording = master_initialised(threads, Pattern::ReadShared, &shared_cells(threads));
    let plan = recording.decide(Policy::Auto, &machine);
    let interleave = Placement::Interleave { nodes: Vec::new() };
    assert_eq!(only(&plan).placement, interleave);
    // A machine with a clock rate counts as described: bandwidths that its description leaves out are unlimited.
    let unlimited = Machine {
        processor: nearpage_machine::Processor {
            clock_ghz: Some(2.0),
            ..machine.processor
        },
        ..machine.clone()
    };
    // There, interleaving only saves that no thread is farther from the pages than others.
    let saved = |machine: &Machine| {
        let parameters = Parameters::default();
        recording.with(machine, |input| {
            let mut model = Model::new(input, &parameters).expect("several nodes");
            let Ok(chosen) = choose(input, &parameters, &mut model);
            1.0 - chosen.time.planned_ns / chosen.time.first_touch_ns
        })
    };
    assert!(saved(&machine) > 3.0 * saved(&unlimited));
}

#[test]
fn auto_copies_what_is_only_read_where_that_can_be_done() {
    let recording = master_initialised(8, Pattern::ReadShared, &shared_cells(8));
    let parameters = Parameters {
        replicas: true,
        ..Parameters::default()
    };
    let plan = recording.with(&opteron(), |input| decide(Policy::Auto, input, &parameters));
    assert_eq!(only(&plan).placement, Placement::Replicate);
    let local = recording.predict(&plan, &opteron()).planned.local_share;
    assert_eq!(local, 1.0);
}

#[test]
fn auto_leaves_alone_what_it_cannot_improve_or_does_not_know() {
    // Each thread has pages of its own, which it touched first.
    let mut recording = Recording::new(8);
    let touches = (0..32).map(|page| (page, ThreadIndex(page / 4))).collect();
    recording
        .object("build", 32, block(), &block_cells())
        .first_touches = touches;
    assert_eq!(recording.decide(Policy::Auto, &opteron()).decisions, []);
    // Two samples of a long run may be chance.
    let few = [(0, 2, 1.0), (31, 3, 1.0)];
    let plan = master_initialised(8, Pattern::Mixed, &few).decide(Policy::Auto, &opteron());
    assert_eq!(plan.decisions, []);
}

/// Threads go round in pieces of 3.3 pages, and touched them first. A page in which two pieces meet is of the thread
/// with less of it, which came first. Two of three pages have no fault in the recording.
#[test]
fn owners_touched_their_pieces_though_pages_belong_to_two() {
    const PIECE: u64 = 13_500;
    let owner = |offset: u64| (offset / PIECE % 8) as u32;
    let owners = |page: u32| {
        let begin = u64::from(page) * PAGE;
        [begin, begin + PAGE / 2, begin + PAGE - 1].map(owner)
    };
    let cells: Vec<(u32, u32, f32)> = (0..576).map(|page| (page, owners(page)[1], 8.0)).collect();
    let pattern = Pattern::BlockCyclic {
        team: 0,
        block_bytes: PIECE,
        period_bytes: 8 * PIECE,
    };
    let touch = |page: u32| {
        let [first, most, last] = owners(page);
        (page, ThreadIndex(if first == most { last } else { first }))
    };
    let mut recording = Recording::new(8);
    recording
        .object("build", 576, pattern, &cells)
        .first_touches = (0..576).step_by(3).map(touch).collect();
    assert_eq!(recording.decide(Policy::Auto, &opteron()).decisions, []);
}

/// Pages that any thread may read, with a sample or two each: a run for each page fits only these samples.
#[test]
fn auto_does_not_take_chance_for_affinity() {
    let cells: Vec<(u32, u32, f32)> = (0..600).map(|page| (page, page * 7919 % 8, 1.0)).collect();
    let mut recording = Recording::new(8);
    recording
        .object("build", 600, Pattern::Mixed, &cells)
        .first_touches = vec![(0, ThreadIndex(0))];
    let uniform = recording.decide(Policy::Uniform, &opteron());
    assert!(matches!(only(&uniform).placement, Placement::Runs(_)));
    for decision in recording.decide(Policy::Auto, &opteron()).decisions {
        assert!(
            !matches!(decision.placement, Placement::Runs(_)),
            "{decision:?}"
        );
    }
    // With fifty samples per page, the pattern is no chance.
    let cells: Vec<(u32, u32, f32)> = cells.iter().map(|cell| (cell.0, cell.1, 50.0)).collect();
    let mut recording = Recording::new(8);
    recording
        .object("build", 600, Pattern::Mixed, &cells)
        .first_touches = vec![(0, ThreadIndex(0))];
    let auto = recording.decide(Policy::Auto, &opteron());
    assert!(matches!(only(&auto).placement, Placement::Runs(_)));
}

#[test]
fn auto_goes_by_patterns_on_a_machine_of_one_node() {
    let recording = master_initialised(8, block(), &block_cells());
    let auto = recording.decide(Policy::Auto, &one_node());
    let object = recording.decide(Policy::Object, &one_node());
    assert_eq!(auto.decisions, object.decisions);
    assert_eq!(auto.decisions.len(), 1);
}
