//! Real programs under nearpage while things go wrong around them; `tests/chaos` runs more events.

use nearpage_tests::chaos::{Event, Harness, Outcome, available};
use nearpage_tests::{Case, nearpage_path};

/// Seed of the events: another seed tests other events.
const SEED: u64 = 20_261_125;

#[test]
fn programs_do_not_notice_what_happens_to_their_observer() {
    let case = Case::new("chaos");
    let programs = available();
    assert!(
        programs.len() >= 25,
        "only {} programs are installed",
        programs.len()
    );
    let harness = Harness::new(&nearpage_path(), case.folder()).unwrap();
    let events = (0..40).map(|number| Event::draw(SEED, number, &programs));
    let harms: Vec<String> = events
        .filter_map(|event| match harness.run(&event).unwrap() {
            Outcome::BrokenRules(harm) => Some(harm.to_string()),
            Outcome::Well | Outcome::Unjudged => None,
        })
        .collect();
    assert!(harms.is_empty(), "{}", harms.join("\n"));
}
