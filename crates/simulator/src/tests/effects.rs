//! Marked phases under `post-facto`, and options without effect.

use super::*;

#[test]
fn post_facto_places_pages_for_the_marked_phases() {
    let machine = machine(2, CLOCK);
    let mark = |at, begin| (at, 0, TraceEvent::Mark { begin });
    let signal = |at, sequence| (at, 0, TraceEvent::Signal { sequence });
    let resume = |at, after| {
        let waited_instructions = 0;
        let what = TraceEvent::Resume {
            after,
            waited_instructions,
        };
        (at, 0, what)
    };
    // Node 0 fills the page, and stores to it again between the marked phases; node 1 loads it in both phases.
    let filler = vec![
        mark(50, true),
        signal(50, 1),
        resume(50, 2),
        mark(50, false),
        mark(90, true),
        signal(90, 3),
    ];
    let reader = vec![signal(5, 2), resume(5, 3)];
    let trace = trace(
        1,
        vec![
            thread(0, 0, 0, batch(vec![store(0, 0); 90], filler)),
            thread(1, 4, 1, batch(vec![load(0, 0); 10], reader)),
        ],
    );
    let outcome = one(&trace, &machine, job("post-facto", &[]));
    assert_eq!((outcome.local, outcome.remote()), (10, 0));
    let still = one(&trace, &machine, job("first-touch", &[]));
    assert_eq!(still.remote(), 10);
}

#[test]
fn options_without_effect_are_refused() {
    // This machine has a fixed cost of moves.
    for (name, value) in [
        ("copy", "cpu"),
        ("flush", "mapping"),
        ("batch_pages", "2"),
        ("batch_ns", "5"),
    ] {
        let refused = refusal("smile-4", job("migrate", &[(name, value)]));
        let expected =
            format!("{name} has no effect: the cost of a move is one number on this machine");
        assert!(refused.starts_with(&expected), "{refused}");
    }
    let by_step = "flash-8-contended";
    for (policy, settings, reason) in [
        (
            "first-touch",
            &[("flush", "all")][..],
            "flush has no effect: no policy moves pages",
        ),
        (
            "first-touch",
            &[("every", "2")],
            "every has no effect: no policy decides while",
        ),
        (
            "migrate",
            &[("min_latency", "5")],
            "min_latency has no effect: it is for source=loads",
        ),
        (
            "migrate",
            &[("batch_ns", "5"), ("move_ns", "5")],
            "batch_ns has no effect: move_ns makes the cost of a move one number",
        ),
    ] {
        let refused = refusal(by_step, job(policy, settings));
        assert!(refused.starts_with(reason), "{refused}");
    }
    // An option that has an effect on one of the policies is accepted.
    let jobs = ["first-touch", "migrate"].map(|name| job(name, &[("batch_pages", "2")]));
    let machine = preset(by_step).expect("preset");
    simulate(&each(1, &[0], &[]), &machine, &jobs, 1).expect("simulates");
}

#[test]
fn nodes_without_memory_are_no_idle_controllers() {
    let memory = "memory_bytes = 1_000_000\n";
    let machine = Machine::from_toml(
        &format!(
            "name = \"t\"\npage_bytes = 4096\nlatency_ns = [[1, 2, 2], [2, 1, 2], [2, 2, 1]]\n{CLOCK}\
             [[node]]\nid = 0\ncpus = \"0\"\n{memory}[[node]]\nid = 1\ncpus = \"1\"\n{memory}\
             [[node]]\nid = 2\ncpus = \"2\"\nmemory_bytes = 0\n"
        ),
        "test",
    )
    .expect("machine");
    let outcome = one(
        &each(2, &[0], &reads(2, 5)),
        &machine,
        job("round-robin", &[]),
    );
    assert_eq!(outcome.controller_load, [5, 5, 0]);
    assert_eq!(outcome.controller_imbalance(), 0.0);
}
