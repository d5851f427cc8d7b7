//! Which placement each policy gives an object.

use super::*;

/// The worked example: 8 threads on the Opterons' 4 nodes, two threads per node, all data first touched by the main
/// thread on node 0.
#[test]
fn golden_opteron() {
    let mut recording = Recording::new(8);
    recording
        .object("build", 32, block(), &block_cells())
        .first_touches = vec![(0, ThreadIndex(0))];
    let plan = recording.decide(Policy::Object, &opteron());
    let decision = only(&plan);
    assert_eq!(decision.name, "inlined cg.c:5 (malloc)");
    assert_eq!(
        decision.placement,
        Placement::Block {
            team: String::new()
        }
    );
    assert_eq!(
        decision.why,
        "320 loads and 0 stores by 8 threads; each of the 8 threads of openmp uses a share of its own, 16K now \
         (100 % of the accesses are by the owner)"
    );
    assert_eq!(decision.effect.local_before, Some(0.25));
    assert_eq!(
        (decision.effect.local_after, decision.effect.cost_share),
        (1.0, 1.0)
    );
    let Subject::CallSite {
        frames,
        order: None,
        thread: None,
        size_bytes,
    } = &decision.subject
    else {
        panic!("a call site: {:?}", decision.subject)
    };
    assert_eq!(*size_bytes, 32 * PAGE);
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| (frame.module.as_str(), frame.offset, frame.line))
        .collect();
    assert_eq!(
        frames,
        [("cg", 0x10, 33), ("cg", 0x100, 80)],
        "no C library, nothing inlined"
    );
    assert_eq!(
        (plan.policy.as_str(), plan.machine.as_str(), plan.page_bytes),
        ("object", "opteron-4", PAGE)
    );
    let team = &plan.teams[0];
    assert_eq!((team.name.as_str(), team.threads), ("openmp", 8));
    assert_eq!(
        (team.module.as_str(), team.build_id.as_str(), team.offset),
        ("libgomp.so.1", "bb", 0x1d0)
    );

    let prediction = recording.predict(&plan, &opteron());
    let [predicted] = prediction.objects.as_slice() else {
        panic!("one object")
    };
    assert_eq!(
        (predicted.decisions.first(), predicted.first_touch_assumed),
        (Some(&0), false)
    );
    assert!(prediction.planned.mean_latency_ns.is_some());
    // Table 2's first column, its diagonal, and its mean.
    assert_eq!(
        prediction.first_touch.mean(),
        (102.0 + 143.0 + 179.0 + 141.0) / 4.0
    );
    assert_eq!(
        prediction.planned.mean(),
        (102.0 + 107.0 + 102.0 + 108.0) / 4.0
    );
    let all: f64 = opteron().weights().iter().flatten().sum();
    assert!((prediction.interleave.mean() - all / 16.0).abs() < 1e-9);
    assert_eq!(
        (
            prediction.first_touch.local_share,
            prediction.interleave.local_share,
            prediction.planned.local_share
        ),
        (0.25, 0.25, 1.0)
    );
}

#[test]
fn equations_find_the_pattern_behind_the_pages() {
    for policy in [Policy::Uniform, Policy::HopSensitive] {
        let mut recording = Recording::new(8);
        recording.object("build", 32, block(), &block_cells());
        assert_eq!(
            only(&recording.decide(policy, &opteron())).placement,
            Placement::Block {
                team: String::new()
            }
        );
    }
}

#[test]
fn equations_write_page_runs_where_no_pattern_fits() {
    // Threads 6 and 7 are on node 3, 0 and 1 on node 0; page 3 is silent and follows page 2.
    let cells = [
        (0, 6, 2.0),
        (0, 7, 3.0),
        (1, 7, 4.0),
        (1, 0, 1.0),
        (2, 0, 9.0),
        (5, 6, 5.0),
    ];
    let mut recording = Recording::new(8);
    recording.object("build", 8, Pattern::Mixed, &cells);
    let expected = Placement::Runs(vec![
        run(0, 2, thread(7)),
        run(2, 2, thread(0)),
        run(4, 4, thread(6)),
    ]);
    assert_eq!(
        only(&recording.decide(Policy::Uniform, &opteron())).placement,
        expected
    );
    assert_eq!(
        only(&recording.decide(Policy::Object, &opteron())).placement,
        expected
    );
}

#[test]
fn silent_pages_take_the_pattern_where_there_is_one() {
    // Only the last page of each share was sampled: neighbours alone would cut shares in halves. Thread 7 also uses
    // page 0, so that the pattern as a whole does not fit.
    let mut cells: Vec<_> = (0..8).map(|share| (4 * share + 3, share, 10.0)).collect();
    cells.insert(0, (0, 7, 50.0));
    let mut recording = Recording::new(8);
    recording.object("build", 32, block(), &cells);
    let placement = only(&recording.decide(Policy::Uniform, &opteron()))
        .placement
        .clone();
    let Placement::Runs(runs) = placement else {
        panic!("runs: {placement:?}")
    };
    let found: Vec<_> = runs.iter().map(|run| (run.first_page, run.pages)).collect();
    assert_eq!(found, [(0, 1), (1, 7), (8, 8), (16, 8), (24, 8)]);
}

#[test]
fn hop_sensitive_puts_a_page_between_its_readers() {
    // Threads 0, 2 and 4 are on nodes 0, 1 and 2; node 1 reads least, but is near both other nodes.
    let page = |page| [(page, 0, 10.0), (page, 2, 9.0), (page, 4, 10.0)];
    let cells = [page(0), page(1)].concat();
    let mut recording = Recording::new(8);
    recording.object("build", 2, Pattern::Mixed, &cells);
    let machine = opteron();
    let whole = |policy, machine| only(&recording.decide(policy, machine)).placement.clone();
    assert_eq!(
        whole(Policy::HopSensitive, &machine),
        Placement::Whole(thread(2))
    );
    assert_eq!(
        whole(Policy::Uniform, &machine),
        Placement::Whole(thread(0))
    );

    // A node without CPUs between the two ends of a line: no thread is there, so the node itself is the owner.
    let line = "name = \"line\"\npage_bytes = 4096\ndistance = [[10, 12, 30], [12, 10, 12], [30, 12, 10]]\n\
                [[node]]\nid = 0\ncpus = \"0\"\n[[node]]\nid = 1\n[[node]]\nid = 2\ncpus = \"1\"\n";
    let line = Machine::from_toml(line, "line").expect("machine");
    assert_eq!(
        whole(Policy::HopSensitive, &line),
        Placement::Whole(Owner::Node(NodeId(1)))
    );
}

#[test]
fn what_threads_share_is_kept_from_memory_that_is_far_from_all_of_them() {
    let recording = master_initialised(2, Pattern::Shared, &shared_cells(2));
    // The first two nodes' memory is at a distance of 15 on average, the third's, without CPUs, at this distance.
    let placement = |distance: u32| {
        let text = format!(
            "name = \"three\"\npage_bytes = 4096\n\
             distance = [[10, 20, {distance}], [20, 10, {distance}], [{distance}, {distance}, 10]]\n\
             [[node]]\nid = 0\ncpus = \"0\"\n[[node]]\nid = 1\ncpus = \"1\"\n[[node]]\nid = 2\n"
        );
        let machine = Machine::from_toml(&text, "three").expect("machine");
        only(&recording.decide(Policy::Object, &machine))
            .placement
            .clone()
    };
    let of = |nodes: &[u16]| Placement::Interleave {
        nodes: nodes.iter().map(|&node| (NodeId(node), 1)).collect(),
    };
    assert_eq!(placement(18), of(&[]));
    assert_eq!(placement(30), of(&[0, 1]));

    // Beside an expander alone, the node with CPUs has the pages by first touch.
    let text = "name = \"two\"\npage_bytes = 4096\ndistance = [[10, 30], [30, 10]]\n\
                [[node]]\nid = 0\ncpus = \"0-1\"\n[[node]]\nid = 1\n";
    let two = Machine::from_toml(text, "two").expect("machine");
    for policy in [Policy::Object, Policy::Auto] {
        assert_eq!(recording.decide(policy, &two).decisions, []);
    }
}

#[test]
fn every_pattern_has_its_placement() {
    let cells: Vec<_> = (0..32)
        .flat_map(|page| (0..8).map(move |thread| (page, thread, 1.0)))
        .collect();
    let cyclic = Pattern::BlockCyclic {
        team: 0,
        block_bytes: 5000,
        period_bytes: 40_000,
    };
    for (pattern, expected) in [
        (
            block(),
            Some(Placement::Block {
                team: String::new(),
            }),
        ),
        (
            cyclic,
            Some(Placement::BlockCyclic {
                block_bytes: 5000,
                team: String::new(),
            }),
        ),
        (
            Pattern::Private {
                thread: ThreadIndex(5),
            },
            Some(Placement::Whole(thread(5))),
        ),
        (
            Pattern::Shared,
            Some(Placement::Interleave { nodes: Vec::new() }),
        ),
        (
            Pattern::ReadShared,
            Some(Placement::Interleave { nodes: Vec::new() }),
        ),
        (Pattern::Unknown, None),
    ] {
        for machine in [opteron(), one_node()] {
            let mut recording = Recording::new(8);
            recording.object("build", 32, pattern.clone(), &cells);
            let plan = recording.decide(Policy::Object, &machine);
            let found = plan
                .decisions
                .first()
                .map(|decision| decision.placement.clone());
            assert_eq!(found, expected, "{pattern:?} on {}", machine.name);
        }
    }
}

#[test]
fn a_machine_of_one_node_still_decides_by_thread() {
    let mut recording = Recording::new(4);
    recording.object(
        "build",
        6,
        Pattern::Mixed,
        &[(0, 3, 2.0), (1, 3, 2.0), (2, 1, 5.0), (4, 2, 1.0)],
    );
    let plan = recording.decide(Policy::HopSensitive, &one_node());
    assert_eq!(
        only(&plan).placement,
        Placement::Runs(vec![
            run(0, 2, thread(3)),
            run(2, 2, thread(1)),
            run(4, 2, thread(2))
        ])
    );
    assert_eq!(only(&plan).effect.local_after, 1.0);
}

#[test]
fn objects_that_first_touch_places_well_are_left_to_it() {
    for policy in [Policy::Object, Policy::Uniform, Policy::HopSensitive] {
        for machine in [opteron(), one_node()] {
            let mut recording = Recording::new(8);
            let group = recording.object("build", 32, block(), &block_cells());
            group.first_touches = (0..32).map(|page| (page, ThreadIndex(page / 4))).collect();
            assert_eq!(
                recording.decide(policy, &machine).decisions,
                [],
                "{policy:?} on {}",
                machine.name
            );
        }
    }
}

#[test]
fn small_and_cheap_objects_are_left_alone() {
    let mut recording = Recording::new(8);
    recording.object(
        "build",
        32,
        block(),
        &block_cells()
            .iter()
            .map(|c| (c.0, c.1, 1000.0))
            .collect::<Vec<_>>(),
    );
    recording.object(
        "small",
        1,
        Pattern::Private {
            thread: ThreadIndex(3),
        },
        &[(0, 3, 1e6)],
    );
    recording.object(
        "cheap",
        8,
        Pattern::Private {
            thread: ThreadIndex(3),
        },
        &[(0, 3, 1.0)],
    );
    // `auto` goes by time: thread 3 spends most of the time, on an object that cannot be placed.
    for policy in Policy::ALL
        .into_iter()
        .filter(|&policy| policy != Policy::Auto)
    {
        let plan = recording.decide(policy, &opteron());
        assert_eq!(only(&plan).name, "build cg.c:80 (inlined)", "{policy:?}");
    }
}

#[test]
fn sharing_among_some_nodes_interleaves_without_naming_them() {
    let cells: Vec<_> = (0..8)
        .flat_map(|page| [(page, 0, 5.0), (page, 1, 5.0), (page, 2, 5.0)])
        .collect();
    let mut recording = Recording::new(8);
    recording.object("build", 8, Pattern::Shared, &cells);
    let placement = only(&recording.decide(Policy::Object, &opteron()))
        .placement
        .clone();
    // The plan names no nodes, so it serves machines with other nodes.
    assert_eq!(placement, Placement::Interleave { nodes: Vec::new() });
    // All threads fit on one node of AMD48: first touch is local.
    let amd48 = preset("amd48").expect("preset");
    assert_eq!(recording.decide(Policy::Object, &amd48).decisions, []);
}

#[test]
fn threads_of_other_processes_do_not_count() {
    let mut recording = Recording::new(8);
    recording.object(
        "build",
        4,
        Pattern::Mixed,
        &[(0, 2, 1.0), (0, 7, 99.0), (1, 2, 1.0), (1, 7, 99.0)],
    );
    recording.tables.threads[7].pid = PID + 1;
    recording.attribution.teams[0].threads.pop();
    let plan = recording.decide(Policy::Uniform, &opteron());
    assert_eq!(only(&plan).placement, Placement::Whole(thread(2)));
    assert_eq!(only(&plan).effect.accesses, 2.0);
}

#[test]
fn huge_pages_are_decided_whole() {
    // 1024 small pages are two huge ones; thread 6 has most of the first, thread 2 of the second.
    let mut cells: Vec<_> = (0..512)
        .map(|page| (page, if page < 200 { 2 } else { 6 }, 1.0))
        .collect();
    cells.extend((512..1024).map(|page| (page, if page < 800 { 2 } else { 6 }, 1.0)));
    let mut recording = Recording::new(8);
    recording.object("build", 1024, Pattern::Mixed, &cells);
    let machine = opteron();
    let plan = recording.with(&machine, |input| {
        decide(
            Policy::Uniform,
            &Input {
                page_bytes: 512 * PAGE,
                ..input.clone()
            },
            &Parameters::default(),
        )
    });
    assert_eq!(
        only(&plan).placement,
        Placement::Runs(vec![run(0, 1, thread(6)), run(1, 1, thread(2))])
    );
    assert_eq!(plan.page_bytes, 512 * PAGE);
}

#[test]
fn too_many_runs_are_decided_in_larger_units() {
    let cells: Vec<_> = (0..64)
        .map(|page| (page, if page % 2 == 0 { 0 } else { 7 }, 1.0))
        .collect();
    let mut recording = Recording::new(8);
    recording.object("build", 64, Pattern::Mixed, &cells);
    let parameters = Parameters {
        runs_max: 10,
        ..Parameters::default()
    };
    let plan = recording.with(&opteron(), |input| {
        decide(Policy::Uniform, input, &parameters)
    });
    // In units of two pages every unit ties, and the lowest node wins all.
    assert_eq!(only(&plan).placement, Placement::Whole(thread(0)));
}

/// Recorded with pages of 4 KiB, planned for a machine with pages of 16 KiB: runs once became four times too long.
#[test]
fn segments_are_placed_in_pages_of_the_machine() {
    let cells: Vec<_> = (0..64).map(|page| (page, 3 - page / 16, 20.0)).collect();
    let mut recording = Recording::new(4);
    recording.object("build", 64, Pattern::Segments(Vec::new()), &cells);
    let plan = recording.with(&opteron(), |input| {
        let input = Input {
            page_bytes: 4 * PAGE,
            ..input.clone()
        };
        decide(Policy::Object, &input, &Parameters::default())
    });
    let run = |first_page, index| PageRun {
        first_page,
        pages: 4,
        owner: thread(index),
    };
    let runs = vec![run(0, 3), run(4, 2), run(8, 1), run(12, 0)];
    assert_eq!(only(&plan).placement, Placement::Runs(runs));
}

/// Nodes of a main thread and three workers on four nodes of one CPU each, and `beside` of the main thread's team. The
/// main thread makes `by_main` loads, each worker 100.
fn beside_workers(by_main: f32) -> (Vec<u16>, u32) {
    let mut recording = Recording::new(4);
    let cells: Vec<(u32, u32, f32)> = (0..4)
        .map(|thread| (thread, thread, if thread == 0 { by_main } else { 100.0 }))
        .filter(|cell| cell.2 > 0.0)
        .collect();
    recording.object("build", 4, Pattern::Mixed, &cells);
    let team = |name: &str, threads: std::ops::Range<u32>| Team {
        name: name.to_owned(),
        pid: PID,
        threads: threads.map(ThreadIndex).collect(),
        is_joined: false,
    };
    recording.attribution.teams = vec![team("worker", 1..4), team("main", 0..1)];
    let nodes = recording.with(&opteron(), |input| input.thread_nodes.to_vec());
    let plan = recording.decide(Policy::Object, &opteron());
    let main = plan.teams.iter().find(|team| team.name == "main");
    (
        nodes.iter().map(|node| node.0).collect(),
        main.expect("a team of its own").beside,
    )
}

/// The main thread and the first worker once shared a CPU, and took twice as long.
#[test]
fn a_main_thread_that_works_has_a_cpu_that_no_worker_has() {
    assert_eq!(beside_workers(90.0), (vec![3, 0, 1, 2], 3));
    assert_eq!(beside_workers(50.0), (vec![3, 0, 1, 2], 3));
    assert_eq!(beside_workers(40.0), (vec![0, 0, 1, 2], 0));
    assert_eq!(beside_workers(0.0), (vec![0, 0, 1, 2], 0));
}
