//! Memory that several processes share. A plan serves each process by itself, so it can name no thread of another.

use nearpage_machine::CpuId;

use super::*;

/// Eight processes of one thread each. The first has touched all pages of an object that they share.
fn processes(pattern: Pattern, cells: &[(u32, u32, f32)]) -> Recording {
    let mut recording = master_initialised(8, pattern, cells);
    recording.attribution.objects[0].is_shared_memory = true;
    recording.attribution.objects[0].first_touches =
        (0..32).map(|page| (page, ThreadIndex(0))).collect();
    recording.attribution.teams.clear();
    for (index, thread) in recording.tables.threads.iter_mut().enumerate() {
        (thread.pid, thread.order, thread.team_index) = (PID + index as u32, 0, 0);
        (thread.start, thread.team) = (None, "main".into());
        recording.attribution.teams.push(Team {
            name: "main".into(),
            pid: thread.pid,
            threads: vec![ThreadIndex(index as u32)],
            is_joined: false,
        });
        recording.attribution.threads[index].cpus = vec![(CpuId(0), 40.0)];
    }
    recording
}

fn used_by_all() -> Vec<(u32, u32, f32)> {
    let pages = (0..32).flat_map(|page| (0..8).map(move |thread| (page, thread, 10.0)));
    pages.collect()
}

#[test]
fn processes_that_run_together_take_cpus_one_after_another() {
    let mut recording = processes(Pattern::Shared, &used_by_all());
    let nodes = |recording: &Recording| {
        recording.with(&opteron(), |input| {
            let nodes = input.thread_nodes.iter();
            nodes.map(|node| node.0).collect::<Vec<_>>()
        })
    };
    assert_eq!(nodes(&recording), [0, 0, 1, 1, 2, 2, 3, 3]);
    // A process that begins when another has ended takes its place: two run at a time, on two nodes.
    for (index, thread) in recording.tables.threads.iter_mut().enumerate() {
        (thread.born_ns, thread.died_ns) = (index as u64 / 2 * 10, index as u64 / 2 * 10 + 10);
    }
    assert_eq!(nodes(&recording), [0, 1, 0, 1, 0, 1, 0, 1]);
}

#[test]
fn memory_that_all_processes_use_is_spread() {
    let recording = processes(Pattern::Shared, &used_by_all());
    for policy in [Policy::Object, Policy::Uniform, Policy::Auto] {
        let plan = recording.decide(policy, &opteron());
        let decision = only(&plan);
        assert_eq!(
            decision.placement,
            Placement::Interleave { nodes: vec![] },
            "{policy:?}"
        );
        // The accesses of all processes count, and a quarter of them is by the first toucher's node.
        let effect = &decision.effect;
        assert_eq!((effect.cost_share, effect.local_before), (1.0, Some(0.25)));
    }
}

#[test]
fn parts_of_processes_stay_where_these_touched_them() {
    let mut recording = processes(block(), &block_cells());
    // As it is, one process has touched them all.
    for policy in [Policy::Object, Policy::Auto] {
        let plan = recording.decide(policy, &opteron());
        for decision in &plan.decisions {
            let placement = &decision.placement;
            assert!(
                matches!(placement, Placement::Interleave { .. }),
                "{policy:?}: {placement}"
            );
        }
    }
    recording.attribution.objects[0].first_touches =
        (0..32).map(|page| (page, ThreadIndex(page / 4))).collect();
    for policy in [Policy::Object, Policy::Uniform, Policy::Auto] {
        assert_eq!(
            recording.decide(policy, &opteron()).decisions,
            [],
            "{policy:?}"
        );
    }
}
