//! Recordings that lie, under each command that reads recordings; `tests/mutated` goes on where this ends.

use std::fs;

use nearpage_tests::mutated::{Seeds, Trials};
use nearpage_tests::{Case, nearpage_path};

/// Whoever changes it tests something else: the recordings are changed by choices drawn from it.
const SEED: u64 = 20_261_125;

#[test]
fn recordings_that_lie_end_no_command() {
    let case = Case::new("mutated");
    let nearpage = nearpage_path();
    let seeds = Seeds::new(&nearpage, &case.path("seeds")).unwrap();
    assert!(seeds.names().len() >= 3, "{:?}", seeds.names());
    let lies = case.path("lies");
    fs::create_dir_all(&lies).unwrap();
    let mut trials = Trials::new(&nearpage, &seeds, &lies);
    let failures: Vec<String> = (0..40)
        .filter_map(|number| trials.run(SEED, number).unwrap())
        .map(|failure| failure.to_string())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Of 240 commands: what is refused at once tries nothing.
    assert!(trials.taken >= 40, "{} took their recording", trials.taken);
}
