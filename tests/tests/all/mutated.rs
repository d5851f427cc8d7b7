//! Runs every command that reads recordings on recordings with false content; `tests/mutated` runs more of them.

use std::fs;

use nearpage_tests::mutated::{Seeds, Trials};
use nearpage_tests::{Case, nearpage_path};

/// Seed of the changes: another seed tests other changes.
const SEED: u64 = 20_261_125;

#[test]
fn mutated_recordings_end_no_command() {
    let case = Case::new("mutated");
    let nearpage = nearpage_path();
    let seeds = Seeds::new(&nearpage, &case.path("seeds")).unwrap();
    assert!(seeds.names().len() >= 3, "{:?}", seeds.names());
    let mutated = case.path("mutated");
    fs::create_dir_all(&mutated).unwrap();
    let mut trials = Trials::new(&nearpage, &seeds, &mutated);
    let failures: Vec<String> = (0..20)
        .filter_map(|number| trials.run(SEED, number).unwrap())
        .map(|failure| failure.to_string())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // A command that refuses its recording at once tests little: of 120 commands, enough must accept theirs.
    assert!(trials.taken >= 20, "{} took their recording", trials.taken);
}
