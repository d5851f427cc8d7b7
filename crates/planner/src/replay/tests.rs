//! Plans that are decided by replaying traces.

use nearpage_machine::preset;
use nearpage_plan::{ModuleImage, Placement, Start};
use nearpage_wire::trace::Record;
use tempfile::TempDir;

use super::*;
use crate::Planner;
use crate::making::{
    CODE, HEAP, SHARE, Samples, Steps, Traced, any_heap, block, decision, fetch, grid as made_grid,
    library, on_node, plan, share, shares_on, touched,
};

const THREADS: u64 = 4;

/// Four threads use a share each of a grid which the main thread filled.
fn shares(each: u64) -> Traced {
    shares_on([0, 1, 2, 3], each)
}

/// Calls `use_them` with the replays of a trace and the costliest program.
fn with_replays<T>(
    traced: &Traced,
    runtime_scale: f64,
    use_them: impl FnOnce(&mut Replays, &Input) -> T,
) -> T {
    let attribution = traced.attribution();
    let planner = Planner::new(
        &traced.recording,
        &attribution,
        &traced.recording.machine,
        None,
    );
    let programs = planner.programs().expect("a program");
    let replays = planner.replays(runtime_scale).expect("readable");
    use_them(&mut replays.expect("it can be replayed"), &programs[0])
}

fn grid(placement: Placement) -> Plan {
    plan(
        4,
        vec![decision("grid", any_heap(), placement, Start::Allocation)],
    )
}

#[test]
fn replay_tells_good_placements_from_bad_ones() {
    with_replays(&shares(100), 1.5, |replays, _| {
        let [good, bad] = [block(), on_node(7)].map(|placement| {
            let [recorded, _] = replays.times(&grid(placement)).expect("replayed");
            recorded
        });
        assert_eq!(good.first_touch_ns, bad.first_touch_ns);
        assert!(good.planned_ns < 0.8 * good.first_touch_ns, "{good:?}");
        assert!(bad.planned_ns > bad.first_touch_ns, "{bad:?}");
        let [nothing, _] = replays.times(&plan(4, Vec::new())).expect("replayed");
        assert_eq!(nothing.planned_ns, nothing.first_touch_ns);
    });
}

#[test]
fn longer_runs_have_a_longer_parallel_part() {
    with_replays(&shares(20), 3.0, |replays, _| {
        let time = replays.first_touch().expect("replayed");
        assert!(0.0 < time.parallel_ns && time.parallel_ns < time.all_ns);
        let [recorded, scaled] = replays.times(&grid(block())).expect("replayed");
        assert_eq!(recorded.first_touch_ns, time.all_ns);
        assert_eq!(scaled.first_touch_ns, time.all_ns + 2.0 * time.parallel_ns);
        assert!(scaled.planned_ns > recorded.planned_ns);
    });
}

#[test]
fn replayed_plans_are_not_replayed_again() {
    with_replays(&shares(5), 1.5, |replays, _| {
        let time = |replays: &mut Replays, plan: &Plan| {
            let [recorded, _] = replays.times(plan).expect("replayed");
            recorded.planned_ns
        };
        let first = time(replays, &grid(block()));
        assert_eq!(replays.known.len(), 2, "first touch and the plan");
        // Another decision that puts the same pages on the same nodes.
        let mut same = grid(block());
        same.decisions[0].name = "another name".to_owned();
        same.decisions.push(same.decisions[0].clone());
        assert_eq!(time(replays, &same), first);
        assert_eq!(replays.known.len(), 2);
        let both = replays.replay_plans(vec![grid(on_node(1)), grid(on_node(1))]);
        let both = both.expect("replayed");
        assert_eq!(both[0].all_ns, both[1].all_ns);
        assert_eq!(replays.known.len(), 3, "one of two that are the same");
        // Known times are used as they are.
        for known in replays.known.values_mut() {
            known.all_ns = 42.0;
        }
        assert_eq!(time(replays, &same), 42.0);
        // Starts, phases and online migration make other plans for the same pages.
        let mut later = grid(block());
        later.decisions[0].start = Start::SecondThread;
        assert_ne!(time(replays, &later), 42.0);
        let mut migrated = grid(block());
        migrated.online_migration = Some(OnlineMigration::default());
        assert_ne!(time(replays, &migrated), 42.0);
        assert_eq!(replays.known.len(), 5);
        // Known plans are not replayed again.
        assert_eq!(replays.progress.replayed(), 5);
    });
}

#[test]
fn recordings_that_machines_cannot_replay_have_no_replays() {
    let traced = shares(1);
    let of = |machine: &str| {
        let machine = preset(machine).expect("preset");
        let replays = Replays::of(&traced.recording, &machine, 1.5);
        replays.expect("readable").is_some()
    };
    assert!(of("flash-8"));
    assert!(!of("opteron-4"), "other caches");
    let folder = TempDir::new().expect("a folder");
    let folder = folder.path().join("samples");
    let samples = Samples::of("flash-8", &[0, 1]);
    samples.write(&folder);
    let recording = Recording::open(&folder).expect("a recording");
    let replays = Replays::of(&recording, &samples.machine, 1.5).expect("readable");
    assert!(replays.is_none(), "samples have no order");
}

#[test]
fn decision_gives_up_above_the_limit() {
    with_replays(&shares(100), 1.5, |replays, input| {
        let parameters = Parameters::default();
        let decide = |replays: &mut Replays, limit_ns| {
            let decided = replays.decide(limit_ns, input, &parameters);
            decided.expect("replayed")
        };
        assert_eq!(decide(replays, 1.0), None);
        let plan = decide(replays, f64::INFINITY).expect("a plan");
        let [decision] = plan.decisions.as_slice() else {
            panic!("one object: {:#?}", plan.decisions)
        };
        assert_eq!(decision.placement, block());
        assert!(
            plan.phases.is_empty() && plan.online_migration.is_none(),
            "nobody asked"
        );
        // A plan within the limit is the plan without one.
        let [_, scaled] = replays.times(&plan).expect("replayed");
        let limit_ns = 1.01 * scaled.planned_ns;
        assert_eq!(decide(replays, limit_ns), Some(plan));
    });
}

#[test]
fn parts_of_plans_are_replayed_with_the_other_parts() {
    with_replays(&shares(1), 1.5, |replays, _| {
        let phase = |name: &str| Phase {
            function: name.to_owned(),
            module: "program".to_owned(),
            build_id: String::new(),
            offset: 0,
            size_bytes: 0,
            threads: Vec::new(),
            decisions: grid(on_node(1)).decisions,
        };
        let mut around = grid(on_node(2));
        around.phases = vec![phase("forward"), phase("backward")];
        let part = grid(on_node(3));
        assert_eq!(replays.whole(part.clone()), part);
        replays.around = Some((around.clone(), None));
        let mut expected = part.clone();
        expected.phases.clone_from(&around.phases);
        assert_eq!(replays.whole(part.clone()), expected);
        replays.around = Some((around.clone(), Some(1)));
        let mut expected = around.clone();
        expected.phases[1].decisions.clone_from(&part.decisions);
        assert_eq!(replays.whole(part), expected);
    });
}

/// Two parallel regions, `forward` and `backward`. In the second region each thread uses the share of the thread
/// `exchange` numbers on.
fn two_regions(exchange: u64, library_file: &std::path::Path) -> Traced {
    let [forward, backward] = library(library_file);
    let each = 400;
    let steps = |thread: u64| {
        let mut steps: Steps = vec![fetch(CODE + forward.0)];
        steps.extend(share(thread, each));
        // All threads leave the first region together.
        let (signal, other) = (10 + thread, 10 + (thread + 1) % THREADS);
        steps.push((
            1,
            Record::Signal {
                sequence: signal,
                address: 0,
            },
        ));
        steps.push((
            1,
            Record::Resume {
                after: other,
                address: 0,
                waited_instructions: 0,
            },
        ));
        steps.push(fetch(CODE + backward.0));
        steps.extend(share((thread + exchange) % THREADS, each));
        steps
    };
    let pages = THREADS * SHARE;
    let threads: Vec<Steps> = (0..THREADS).map(steps).collect();
    let mut traced = Traced::of(&touched(HEAP, pages), &threads).with(vec![made_grid(HEAP, pages)]);
    let tables = &mut traced.recording.tables;
    tables.modules[0].path = library_file.display().to_string();
    tables.modules[0].build_id = ModuleImage::load(library_file).expect("a library").build_id;
    for mapping in &mut tables.mappings {
        mapping.bias = CODE;
    }
    traced
}

fn decided(traced: &Traced, parameters: Parameters) -> (Plan, [Times; 2]) {
    with_replays(traced, parameters.runtime_scale, |replays, input| {
        let plan = replays.decide(f64::INFINITY, input, &parameters);
        let plan = plan.expect("replayed").expect("no limit");
        let times = replays.times(&plan).expect("replayed");
        (plan, times)
    })
}

#[test]
fn phases_are_planned_where_they_save() {
    let folder = TempDir::new().expect("a folder");
    let with_phases = Parameters {
        phases: true,
        ..Parameters::default()
    };
    let exchanged = two_regions(1, &folder.path().join("exchanged.so"));
    let (plan, [_, with_phase]) = decided(&exchanged, with_phases);
    let [phase] = plan.phases.as_slice() else {
        panic!("one region after the first: {:#?}", plan.phases)
    };
    assert_eq!(phase.function, "backward._omp_fn.0");
    assert!(!phase.is_empty());
    let (fixed, [_, without]) = decided(&exchanged, Parameters::default());
    assert!(fixed.phases.is_empty(), "nobody asked for phases");
    assert!(
        with_phase.planned_ns < 0.99 * without.planned_ns,
        "{with_phase:?} {without:?}"
    );
    let steady = two_regions(0, &folder.path().join("steady.so"));
    let (plan, _) = decided(&steady, with_phases);
    assert_eq!(plan.phases, [], "each thread uses its share all the time");
    assert_eq!(plan.decisions.len(), 1);
}

#[test]
fn online_migration_is_planned_unless_it_costs() {
    with_replays(&shares(50), 1.0, |replays, _| {
        let start = grid(block());
        let [recorded, _] = replays.times(&start).expect("replayed");
        let decide = |replays: &mut Replays, planned_ns, replicas| {
            let chosen = ChosenPlan {
                plan: start.clone(),
                time: Times {
                    planned_ns,
                    ..recorded
                },
            };
            let parameters = Parameters {
                replicas,
                ..Parameters::default()
            };
            let decided = replays.decide_live(&chosen, &parameters);
            decided.expect("replayed")
        };
        // All pages are in place: migration saves nothing, and costs nothing.
        let kept = decide(replays, recorded.planned_ns, false).expect("it costs nothing");
        assert_eq!(kept.decisions, start.decisions);
        let parameters = kept.online_migration.expect("online migration").parameters;
        let no_copies = [("replication".to_owned(), 0)];
        assert_eq!(parameters.into_iter().collect::<Vec<_>>(), no_copies);
        let kept = decide(replays, recorded.planned_ns, true).expect("it costs nothing");
        assert!(
            kept.online_migration
                .expect("online migration")
                .parameters
                .is_empty()
        );
        // If the plan alone took less time, migration would cost time.
        let less_ns = recorded.planned_ns - 0.01 * recorded.first_touch_ns;
        assert_eq!(decide(replays, less_ns, false), None);
    });
}

#[test]
fn quickest_way_of_online_migration_is_taken_where_it_saves() {
    // All pages are on a node where no thread runs, so that first touch is quicker.
    with_replays(&shares(50), 1.0, |replays, _| {
        let start = grid(on_node(7));
        let [time, _] = replays.times(&start).expect("replayed");
        let chosen = ChosenPlan { plan: start, time };
        let decided = replays.decide_live(&chosen, &Parameters::default());
        let decided = decided.expect("replayed").expect("it saves");
        let of = |replays: &mut Replays, plan: &Plan| {
            let [recorded, _] = replays.times(plan).expect("replayed");
            recorded.planned_ns
        };
        let taken = of(replays, &decided);
        assert!(taken < time.planned_ns);
        for known in replays.known.values() {
            let is_plan = known.all_ns == time.planned_ns || known.all_ns == time.first_touch_ns;
            assert!(is_plan || taken <= known.all_ns);
        }
        assert_eq!(
            decided.decisions,
            [],
            "left to first touch, and migrated from there"
        );
    });
}
