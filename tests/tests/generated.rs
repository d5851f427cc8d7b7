//! Programs whose accesses are known: the table is what the program does, and plans are near the best.

use nearpage_tests::generated::{Program, Run, Truth};
use nearpage_tests::{Case, nearpage_path};

/// Seeds of the programs that are part of the tests.
const SEEDS: std::ops::Range<u64> = 0..20;
/// Passes that are counted: objects that are used in two ways are used in both.
const PASSES: u64 = 3;

#[test]
fn tables_are_what_instrumented_programs_count() {
    let case = Case::new("generated-counts");
    for seed in SEEDS {
        let program = Program::draw(seed);
        let folder = case.path(seed.to_string());
        let run = Run::new(&program, &nearpage_path(), &folder).unwrap();
        let (size, team) = match seed % 2 {
            0 => (1, program.team),
            _ => program.other,
        };
        let counts = run.count(size, team, PASSES).unwrap();
        let truth = Truth::of(&program, size, team, PASSES);
        assert_eq!(truth.differences(&program, &counts), [""; 0], "{program}");
    }
}
