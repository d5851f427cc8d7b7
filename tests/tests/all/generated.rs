//! Programs whose accesses are known: the table must match the program, and plans must not be far from the best.
//! `tests/generated --seeds 200` judges plans for many programs.

use std::ops::Range;

use nearpage_tests::generated::{
    Initialiser, Kind, Program, RecordingOptions, Run, Summary, Trial, Truth,
};
use nearpage_tests::{Case, nearpage_path};

/// Seeds of the programs whose table is checked.
const SEEDS: Range<u64> = 0..20;
/// Seeds of the programs that are recorded and planned.
const RECORDED: Range<u64> = 1..6;
/// Passes to count: enough for objects with two alternating uses to be used in both ways.
const PASSES: u64 = 3;

/// Compares tables of programs with what their instrumented runs count.
fn compare_tables(name: &str, seeds: impl Iterator<Item = u64>, other_size: bool) {
    let case = Case::new(name);
    for seed in seeds {
        let program = Program::draw(seed);
        let folder = case.path(seed.to_string());
        let run = Run::new(&program, &nearpage_path(), &folder).unwrap();
        let (size, team) = if other_size {
            program.other
        } else {
            (1, program.team)
        };
        let counts = run.count(size, team, PASSES).unwrap();
        let truth = Truth::of(&program, size, team, PASSES);
        assert_eq!(truth.differences(&program, &counts), [""; 0], "{program}");
    }
}

#[test]
fn tables_are_what_instrumented_programs_count() {
    compare_tables("generated-counts", SEEDS.step_by(2), false);
}

#[test]
fn tables_are_what_programs_of_another_size_and_team_count() {
    compare_tables("generated-other-counts", SEEDS.skip(1).step_by(2), true);
}

#[test]
fn threads_initialise_each_line_of_their_objects_once() {
    for seed in 0..50 {
        let program = Program::draw(seed);
        let (size, team) = program.other;
        let truth = Truth::of(&program, size, team, 0);
        for (object, truth) in program.objects.iter().zip(&truth.objects) {
            let (first, end) = object.extent(size, team);
            let lines = match object.kind {
                // The main thread initialises the unused ends of rows, too.
                Kind::Padded { row, used } if object.initialiser == Initialiser::Threads => {
                    end / row * used
                }
                _ => end - first,
            };
            let initialised: u64 = truth.units.iter().map(|unit| unit.initialised).sum();
            assert_eq!(initialised, lines, "seed {seed}: {object:?}");
        }
    }
}

#[test]
fn a_wrong_table_is_noticed() {
    let case = Case::new("generated-wrong");
    let program = Program::draw(1);
    let run = Run::new(&program, &nearpage_path(), case.folder()).unwrap();
    let counts = run.count(1, program.team, PASSES).unwrap();
    let truth = Truth::of(&program, 1, program.team, PASSES + 1);
    assert!(!truth.differences(&program, &counts).is_empty());
}

#[test]
fn plans_are_not_far_from_the_best_placement() {
    let case = Case::new("generated-plans");
    let trial = |seed: u64| {
        let folder = case.path(seed.to_string());
        Trial::new(
            Program::draw(seed),
            &nearpage_path(),
            &folder,
            1,
            RecordingOptions::default(),
        )
        .unwrap()
    };
    let trials: Vec<Trial> = RECORDED.map(trial).collect();
    for trial in &trials {
        for judgement in [&trial.own, &trial.other] {
            let [planned, best, first_touch] = judgement.local;
            assert!(planned <= best && first_touch <= best, "{}", trial.program);
            assert!(best > 0.1, "{}", trial.program);
        }
        assert!(trial.own.accesses > 20, "{}", trial.program);
    }
    let results: Vec<_> = trials.iter().map(Trial::to_json).collect();
    let summary = Summary::of(&results);
    // On a busy machine objects have few samples, so the bound is low.
    assert!(summary.score_median() > 0.5, "{summary}");
}
