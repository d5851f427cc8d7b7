//! One plan of recordings with different inputs.

use nearpage_attribution::Operations;
use nearpage_machine::{Machine, ThreadPlacement, preset};
use nearpage_plan::Placement;
use nearpage_planner::recordings::differ_in_input;
use nearpage_planner::several_inputs::{AcrossInputs, Evidence, plan_for_all};
use nearpage_planner::{Analysis, Error, Parameters, Planner, Policy};
use tempfile::TempDir;

use crate::making::Samples;

fn opteron() -> Machine {
    preset("opteron-4").unwrap()
}

fn on_four() -> Samples {
    Samples::of("opteron-4", &[0, 1, 2, 3])
}

fn written(samples: &[Samples]) -> (Vec<Analysis>, TempDir) {
    let scratch = TempDir::new().unwrap();
    let written = |(number, samples): (usize, &Samples)| {
        let folder = scratch.path().join(number.to_string());
        samples.write(&folder);
        Analysis::of(&folder, Operations::Both).unwrap()
    };
    (samples.iter().enumerate().map(written).collect(), scratch)
}

fn for_all(samples: &[Samples]) -> AcrossInputs {
    let (analyses, _scratch) = written(samples);
    assert!(differ_in_input(&analyses, &opteron()).unwrap());
    plan_for_all(&analyses, &opteron(), None, &Parameters::default()).unwrap()
}

#[test]
fn shares_of_any_size_hold_for_all_inputs() {
    let inputs = for_all(&[
        on_four().with_input("16", 16, 16),
        on_four().with_input("64", 64, 64),
    ]);
    let [grid] = inputs.objects.as_slice() else {
        panic!("{:?}", inputs.objects)
    };
    assert_eq!(grid.evidence, Evidence::Holds);
    assert_eq!(grid.placement, "block");
    assert_eq!(grid.size_bytes, [Some(64 * 4096), Some(256 * 4096)]);
    for local in &grid.local {
        assert!(local.unwrap() > 0.99, "{grid:?}");
    }
    assert_eq!(inputs.base, 0);
    let why = &inputs.planned.plan.decisions[0].why;
    assert!(why.ends_with("; holds for all inputs"), "{why}");
}

/// At the small size, each of four blocks is one thread's share. Only the larger input shows that blocks keep their
/// size.
#[test]
fn blocks_that_are_shares_at_one_size_keep_their_size_if_another_size_says_so() {
    let small = on_four().with_input("small", 16, 16);
    let large = on_four().with_input("large", 64, 16);
    let inputs = for_all(&[small, large]);
    let [grid] = inputs.objects.as_slice() else {
        panic!("{:?}", inputs.objects)
    };
    assert_eq!(grid.placement, "block-cyclic:64K", "{grid:?}");
    assert_eq!(grid.evidence, Evidence::Holds);
    assert!(
        grid.local.iter().all(|local| local.unwrap() > 0.99),
        "{grid:?}"
    );
}

#[test]
fn objects_without_a_common_placement_depend_on_the_input() {
    let reversed = Samples {
        is_reversed: true,
        ..on_four().with_input("reversed", 64, 64)
    };
    let inputs = for_all(&[on_four().with_input("16", 16, 16), reversed]);
    let [grid] = inputs.objects.as_slice() else {
        panic!("{:?}", inputs.objects)
    };
    assert_eq!(grid.evidence, Evidence::DependsOnInput, "{grid:?}");
    let why = &inputs.planned.plan.decisions[0].why;
    assert!(why.ends_with("; depends on the input"), "{why}");
    for one in &inputs.recordings {
        assert!(one.planned_ns <= 1.001 * one.first_touch_ns, "{inputs:?}");
    }
    let mut recordings = inputs.recordings.iter();
    assert!(
        recordings.any(|one| one.own_plan_ns < one.planned_ns),
        "{inputs:?}"
    );
}

#[test]
fn teams_of_another_size_are_another_input() {
    let (analyses, _scratch) = written(&[on_four(), Samples::of("opteron-4", &[0, 1])]);
    assert!(differ_in_input(&analyses, &opteron()).unwrap());
    let inputs = for_all(&[on_four(), Samples::of("opteron-4", &[0, 1])]);
    assert_eq!(inputs.objects[0].placement, "block");
    assert!(
        inputs.recordings.iter().all(|one| one.local_after > 0.99),
        "{inputs:?}"
    );
    assert_eq!(
        inputs
            .recordings
            .iter()
            .map(|one| one.threads)
            .collect::<Vec<_>>(),
        [4, 2]
    );
}

#[test]
fn one_memory_node_predicts_no_time() {
    let text = "name = \"laptop\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = \"0-3\"\n";
    let laptop = Machine::from_toml(text, "laptop").unwrap();
    let (analyses, _scratch) = written(&[on_four(), on_four().with_input("64", 64, 64)]);
    let error = plan_for_all(
        &analyses,
        &laptop,
        Some(ThreadPlacement::Compact),
        &Parameters::default(),
    );
    match error {
        Err(Error::Incomparable(message)) => assert!(
            message.starts_with("no time can be predicted on laptop"),
            "{message}"
        ),
        other => panic!("{other:?}"),
    }
}

/// A plan of a small run is predicted for a larger run as the larger run would use it. Predictions once found nothing
/// placed there, since the object has another size.
#[test]
fn plans_of_another_input_are_predicted_as_runs_use_them() {
    let (analyses, _scratch) = written(&[
        on_four().with_input("16", 16, 16),
        on_four().with_input("64", 64, 64),
    ]);
    let machine = opteron();
    let [small, large] = [&analyses[0], &analyses[1]].map(|one| Planner::of(one, &machine, None));
    let plan = small
        .plans(Policy::Auto, &Parameters::default())
        .unwrap()
        .remove(0);
    assert!(matches!(
        plan.decisions[0].placement,
        Placement::Block { .. }
    ));
    let predicted = large.predict(plan, &Parameters::default()).unwrap();
    assert_eq!(predicted.prediction.objects[0].placement, "block");
    assert!(
        predicted.prediction.planned.local_share > 0.99,
        "{predicted:?}"
    );
    let time = predicted.time.unwrap();
    assert!(time.planned_ns < 0.8 * time.first_touch_ns, "{time:?}");
}
