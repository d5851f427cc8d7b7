//! Plans decided for recordings, and predictions for plans.

use nearpage_machine::{Machine, ThreadPlacement, preset};
use nearpage_plan::{Decision, OnlineMigration, Plan};
use nearpage_planner::{Analysis, DecidedPlan, Error, Judged, Layout, Parameters, Planner, Policy};
use nearpage_recording::{ThreadIndex, ThreadPinning};

use crate::making::{
    Analysed, HEAP, Samples, Steps, Traced, grid, loads, on_node, shares_on, touched,
};

/// Samples of threads on these CPUs.
fn analysed(machine: &str, cpus: &[u32]) -> Analysed {
    analysed_after(machine, cpus, |_| ())
}

fn analysed_after(machine: &str, cpus: &[u32], change: impl FnOnce(&mut Samples)) -> Analysed {
    let mut samples = Samples::of(machine, cpus);
    change(&mut samples);
    samples.analysed()
}

fn planner<'a>(
    of: &'a Analysed,
    machine: &'a Machine,
    threads: Option<ThreadPlacement>,
) -> Planner<'a> {
    let Analysis {
        recording,
        attribution,
        ..
    } = &of.analysis;
    Planner::new(recording, attribution, machine, threads)
}

fn nodes(planner: &Planner) -> Vec<u16> {
    planner.thread_nodes().iter().map(|node| node.0).collect()
}

fn only(decided: Vec<DecidedPlan>) -> DecidedPlan {
    let mut decided = decided.into_iter();
    let one = decided.next().unwrap();
    assert_eq!(decided.next(), None, "one program");
    one
}

fn decided(planner: &Planner, policy: Policy) -> DecidedPlan {
    only(planner.decide(&[policy], &Parameters::default()).unwrap())
}

#[test]
fn threads_stay_where_they_were_recorded_on_the_same_nodes() {
    let samples = analysed("amd48", &[0, 7, 12, 13]);
    let machine = preset("amd48").unwrap();
    let planner = planner(&samples, &machine, None);
    assert_eq!(nodes(&planner), [0, 1, 2, 2]);
    let threads = planner.threads();
    assert_eq!(
        (threads.layout, threads.why.as_deref()),
        (Layout::AsRecorded, None)
    );
    assert_eq!(
        (threads.threads, threads.nodes_used, threads.nodes),
        (4, 3, 8)
    );
    assert_eq!(threads.words(), "threads as recorded, on 3 of 8 nodes");
}

#[test]
fn threads_are_compact_on_other_nodes_and_it_says_why() {
    let samples = analysed("opteron-4", &[3, 2, 1, 0]);
    let machine = preset("amd48").unwrap();
    let planner = planner(&samples, &machine, None);
    assert_eq!(nodes(&planner), [0; 4]);
    let threads = planner.threads();
    assert_eq!(threads.layout, Layout::Compact);
    assert_eq!(
        threads.words(),
        "threads compact (recorded on other nodes than those of amd48), on 1 of 8 nodes"
    );
    // As many nodes, but with other CPUs, are other nodes.
    let mut renumbered = preset("opteron-4").unwrap();
    let [first, .., last] = renumbered.nodes.as_mut_slice() else {
        panic!("four nodes")
    };
    std::mem::swap(&mut first.cpus, &mut last.cpus);
    let threads = Planner::new(
        &samples.analysis.recording,
        &samples.analysis.attribution,
        &renumbered,
        None,
    );
    assert_eq!(threads.threads().layout, Layout::Compact);
}

#[test]
fn threads_are_laid_out_as_asked() {
    let samples = analysed("amd48", &[0, 1, 2, 3]);
    let machine = preset("amd48").unwrap();
    let scattered = planner(&samples, &machine, Some(ThreadPlacement::Scatter));
    assert_eq!(nodes(&scattered), [0, 1, 2, 3]);
    assert_eq!(
        scattered.threads().words(),
        "threads scatter, on 4 of 8 nodes"
    );
    let compact = planner(&samples, &machine, Some(ThreadPlacement::Compact));
    assert_eq!(
        compact.threads().words(),
        "threads compact, on 1 of 8 nodes"
    );
    // The option asks for the recorded layout, on a machine with other nodes: threads are on the nodes of their CPUs
    // there.
    let four = analysed("opteron-4", &[0, 1, 2, 3]);
    let recorded = planner(&four, &machine, Some(ThreadPlacement::None));
    assert_eq!(nodes(&recorded), [0; 4]);
    assert_eq!(
        recorded.threads().words(),
        "threads as recorded, on 1 of 8 nodes"
    );
}

#[test]
fn a_main_thread_beside_a_team_is_predicted_where_the_plan_pins_it() {
    let mut samples = analysed_after("opteron-4", &[0, 1, 2, 3], |samples| {
        for (thread, number) in samples.tables.threads.iter_mut().zip(0..) {
            let (team, index) = if number == 0 {
                ("main", 0)
            } else {
                ("worker", number - 1)
            };
            (thread.team, thread.team_index) = (team.to_owned(), index);
        }
    });
    // A third of a worker's accesses by weight, below the half that counts as working; more than half as the planner
    // weighs uneven samples.
    let objects = samples.analysis.attribution.objects.iter_mut();
    let cells = objects.flat_map(|group| &mut group.affinity.cells);
    for cell in cells.filter(|cell| cell.thread == ThreadIndex(0)) {
        cell.loads /= 3.0;
    }
    assert!(samples.analysis.attribution.beside_main(100).is_none());
    let machine = preset("opteron-4").unwrap();
    let planner = planner(&samples, &machine, Some(ThreadPlacement::Scatter));
    let plans = planner
        .plans(Policy::Object, &Parameters::default())
        .unwrap();
    let main = plans[0]
        .teams
        .iter()
        .find(|team| team.name == "main")
        .unwrap();
    assert_eq!(main.beside, 3);
    assert_eq!(nodes(&planner), [3, 0, 1, 2]);
}

#[test]
fn threads_without_accesses_use_no_node() {
    let samples = analysed_after("amd48", &[0, 1], |samples| {
        let mut idle = samples.tables.threads[1].clone();
        (idle.order, idle.team_index, idle.tid) = (2, 2, idle.tid + 1);
        idle.cpus = Vec::new();
        samples.tables.threads.push(idle);
    });
    let machine = preset("amd48").unwrap();
    let planner = planner(&samples, &machine, None);
    let threads = planner.threads();
    assert_eq!((threads.threads, threads.nodes_used), (2, 1));
    assert_eq!(planner.thread_nodes().len(), 3);
}

#[test]
fn threads_on_fewer_nodes_than_there_are_get_a_note() {
    let machine = preset("amd48").unwrap();
    let notes = |cpus: &[u32], threads| {
        let samples = analysed("amd48", cpus);
        decided(&planner(&samples, &machine, threads), Policy::Object).notes
    };
    assert_eq!(
        notes(&[0, 1, 2, 3], None),
        [
            "all 4 threads are taken to run on one node, where every access can be local; `--threads scatter` plans for \
             threads spread over all 8"
        ]
    );
    let two = notes(&[0, 1, 6, 7], None);
    assert!(
        two[0].contains("4 threads are taken to run on 2 of 8 nodes; "),
        "{two:?}"
    );
    assert_eq!(notes(&[0, 6, 12, 18], None), [""; 0], "each on its own");
    let scatter = Some(ThreadPlacement::Scatter);
    assert_eq!(notes(&[0, 1, 2, 3], scatter), [""; 0], "no wider layout");
    // Each of two teams begins at the first node, so four threads are on two nodes.
    let teams = analysed_after("amd48", &[0, 1, 2, 3], |samples| {
        for thread in &mut samples.tables.threads[2..] {
            (thread.team, thread.team_index) = ("worker".to_owned(), thread.team_index - 2);
        }
    });
    let decided = decided(&planner(&teams, &machine, scatter), Policy::Object);
    assert_eq!(decided.threads.words(), "threads scatter, on 2 of 8 nodes");
    assert_eq!(decided.notes, [""; 0], "scattered as far as it goes");
}

#[test]
fn traced_threads_on_fewer_nodes_are_to_be_traced_again() {
    let machine = preset("flash-8").unwrap();
    let traced = shares_on([0, 0, 0, 0], 10).analysed();
    let decided = decided(&planner(&traced, &machine, None), Policy::Object);
    assert_eq!(
        decided.notes,
        [
            "all 4 threads were traced on one node, where every access can be local; `nearpage trace \
             --threads scatter` spreads them over all 8"
        ]
    );
    assert_eq!(
        decided.threads.words(),
        "threads as recorded, on 1 of 8 nodes"
    );
}

#[test]
fn given_plan_is_predicted_as_the_decided_one() {
    let traced = shares_on([0, 1, 2, 3], 40).analysed();
    let samples = analysed("opteron-4", &[0, 1, 2, 3]);
    let [flash, opteron] = ["flash-8", "opteron-4"].map(|name| preset(name).unwrap());
    for (recording, machine, by) in [
        (&traced, &flash, Judged::Replay),
        (&samples, &opteron, Judged::Model),
    ] {
        let planner = planner(recording, machine, None);
        for policy in Policy::ALL {
            let decided = decided(&planner, policy);
            assert_eq!(decided.time.unwrap().by, by);
            assert_eq!(decided.policy, policy.as_str());
            // Read from its file, as other commands read it.
            let read = Plan::from_toml(&decided.plan.to_toml(), "plan.toml").unwrap();
            let given = planner.predict(read, &Parameters::default()).unwrap();
            let name = policy.as_str();
            assert_eq!(given.prediction, decided.prediction, "{name}");
            assert_eq!(given.time, decided.time, "{name}");
            assert_eq!(given.plan.predicted, decided.plan.predicted, "{name}");
            assert_eq!(given.warnings, decided.warnings, "{name}");
            assert_eq!(given.notes, decided.notes, "{name}");
        }
    }
}

#[test]
fn shares_in_the_plan_file_are_the_predicted_ones() {
    let samples = analysed("opteron-4", &[0, 1, 2, 3]);
    let machine = preset("opteron-4").unwrap();
    let planner = planner(&samples, &machine, None);
    let mut decided = decided(&planner, Policy::Object);
    let check = |decided: &DecidedPlan| {
        let (prediction, time) = (&decided.prediction, decided.time.unwrap());
        let predicted = decided.plan.predicted.unwrap();
        assert_eq!(predicted.local_before, prediction.first_touch.local_share);
        assert_eq!(predicted.local_after, prediction.planned.local_share);
        assert_eq!(predicted.first_touch_ns, Some(time.scaled_first_touch_ns));
        assert_eq!(predicted.planned_ns, Some(time.scaled_planned_ns));
        let effect = decided.plan.decisions[0].effect;
        let object = &prediction.objects[0];
        assert_eq!(object.decisions, [0]);
        assert_eq!(effect.local_before, Some(object.first_touch.local_share));
        assert_eq!(effect.local_after, object.planned.local_share);
        (effect.local_before.unwrap(), effect.local_after)
    };
    let (before, after) = check(&decided);
    assert!((before, after) == (0.25, 1.0), "{before} {after}");
    // Figures in a plan that was changed by hand are replaced by those of the new prediction.
    decided.plan.decisions[0].placement = on_node(1);
    let moved = planner
        .predict(decided.plan, &Parameters::default())
        .unwrap();
    assert_eq!(check(&moved), (0.25, 0.25));
}

/// A plan that places the grid on a node where no thread runs.
fn losing(planner: &Planner) -> Plan {
    let mut plan = decided(planner, Policy::Object).plan;
    let decisions = plan.decisions.iter_mut();
    decisions.for_each(|decision: &mut Decision| decision.placement = on_node(7));
    plan.predicted = None;
    plan
}

#[test]
fn plans_that_lose_are_warned_about() {
    let traced = shares_on([0, 1, 2, 3], 40).analysed();
    let machine = preset("flash-8").unwrap();
    let planner = planner(&traced, &machine, None);
    let lost = planner
        .predict(losing(&planner), &Parameters::default())
        .unwrap();
    let [warning] = lost.warnings.as_slice() else {
        panic!("{:?}", lost.warnings)
    };
    assert!(
        warning.starts_with("this plan is predicted to be slower than first touch: "),
        "{warning}"
    );
    let predicted = lost.plan.predicted.unwrap();
    assert_eq!(predicted.is_slower(), Some(true));
    assert_eq!(predicted.local_after, 0.0);
    let won = decided(&planner, Policy::Auto);
    assert_eq!(won.warnings, [""; 0]);
    assert_eq!(won.plan.predicted.unwrap().is_slower(), Some(false));
    let mut empty = losing(&planner);
    empty.decisions.clear();
    let empty = planner.predict(empty, &Parameters::default()).unwrap();
    assert_eq!(empty.warnings, [""; 0]);
}

/// All threads use all pages, so that no move pays.
#[test]
fn plans_that_lose_by_online_migration_alone_are_warned_about() {
    let shared: Vec<Steps> = (0..4).map(|_| loads(HEAP, 4, 200)).collect();
    let traced = Traced::of(&touched(HEAP, 4), &shared).with(vec![grid(HEAP, 4)]);
    let traced = traced.analysed();
    let machine = preset("flash-8").unwrap();
    let planner = planner(&traced, &machine, None);
    let mut plan = decided(&planner, Policy::Object).plan;
    plan.decisions.clear();
    // Moves are assumed to be free, which is wrong.
    let parameters = [
        ("budget_permille", 1_000),
        ("cost_ns", 1),
        ("errors", 0),
        ("move_threads", 0),
        ("replication", 0),
    ];
    let parameters = parameters.map(|(name, value)| (name.to_owned(), value));
    plan.online_migration = Some(OnlineMigration {
        parameters: parameters.into(),
    });
    let lost = planner.predict(plan, &Parameters::default()).unwrap();
    assert_eq!(lost.plan.predicted.unwrap().is_slower(), Some(true));
    assert_eq!(lost.warnings.len(), 1);
    let named = lost.online_migration.unwrap();
    assert_eq!(named.get("budget_permille"), Some(&1_000));
}

#[test]
fn traces_are_replayed_only_with_threads_where_they_were_traced() {
    let traced = shares_on([0, 2, 4, 6], 20).analysed();
    let machine = preset("flash-8").unwrap();
    let by = |machine: &Machine, threads| {
        let decided = decided(&planner(&traced, machine, threads), Policy::Object);
        decided.time.map(|time| time.by)
    };
    assert_eq!(by(&machine, None), Some(Judged::Replay));
    let recorded = Some(ThreadPlacement::None);
    assert_eq!(by(&machine, recorded), Some(Judged::Replay));
    let compact = Some(ThreadPlacement::Compact);
    assert_eq!(
        by(&machine, compact),
        Some(Judged::Model),
        "on the nodes 0 to 3"
    );
    // Threads with other caches would have other misses.
    let opteron = preset("opteron-4").unwrap();
    assert_eq!(by(&opteron, None), Some(Judged::Model));
    // The layout puts threads on the nodes where they were traced.
    let traced = shares_on([0, 1, 2, 3], 20).analysed();
    let decided = decided(&planner(&traced, &machine, compact), Policy::Object);
    assert_eq!(decided.time.unwrap().by, Judged::Replay);
}

#[test]
fn online_migration_without_a_replay_is_noted() {
    let online_migration = Parameters {
        online_migration: true,
        ..Parameters::default()
    };
    let samples = analysed("opteron-4", &[0, 1, 2, 3]);
    let machine = preset("opteron-4").unwrap();
    let planner_of_samples = planner(&samples, &machine, None);
    let notes = |policy| {
        only(
            planner_of_samples
                .decide(&[policy], &online_migration)
                .unwrap(),
        )
        .notes
    };
    let found = notes(Policy::Auto);
    assert!(
        found[0].contains("cannot be replayed on opteron-4"),
        "{found:?}"
    );
    assert_eq!(notes(Policy::Object), [""; 0], "only `auto` migrates");
    let traced = shares_on([0, 1, 2, 3], 20).analysed();
    let flash = preset("flash-8").unwrap();
    let replayed = only(
        planner(&traced, &flash, None)
            .decide(&[Policy::Auto], &online_migration)
            .unwrap(),
    );
    assert_eq!(replayed.notes, [""; 0]);
}

#[test]
fn one_memory_node_has_no_times() {
    let text = "name = \"laptop\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0-3\"\n";
    let laptop = Machine::from_toml(text, "laptop").unwrap();
    let samples = analysed("opteron-4", &[0, 1, 2, 3]);
    let decided = decided(&planner(&samples, &laptop, None), Policy::Auto);
    assert_eq!((decided.time, decided.assumed), (None, None));
    let predicted = decided.plan.predicted.unwrap();
    assert_eq!(predicted.times_ns(), None);
    assert_eq!((predicted.local_before, predicted.local_after), (1.0, 1.0));
    assert_eq!(decided.warnings, [""; 0]);
    assert_eq!(decided.machine, "laptop");
}

#[test]
fn recording_without_threads_is_refused() {
    let samples = analysed_after("opteron-4", &[], |samples| samples.tables.objects.clear());
    let machine = preset("opteron-4").unwrap();
    let planner = planner(&samples, &machine, None);
    let refused = planner.decide(&[Policy::Auto], &Parameters::default());
    assert!(matches!(refused, Err(Error::NoThreads(_))));
    assert_eq!(planner.threads().words(), "threads as recorded");
}

#[test]
fn wandering_threads_are_where_they_were_seen_most() {
    let mut samples = analysed("amd48", &[0, 6]);
    samples.analysis.recording.metadata.thread_placement = ThreadPinning::None;
    let machine = preset("amd48").unwrap();
    let thread = ThreadIndex(1).0 as usize;
    let cpus = &mut samples.analysis.attribution.threads[thread].cpus;
    cpus.insert(0, (nearpage_machine::CpuId(12), 10.0));
    let planner = planner(&samples, &machine, None);
    assert_eq!(nodes(&planner), [0, 1]);
}
