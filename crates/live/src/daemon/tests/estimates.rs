//! Numbers of accesses that samples stand for.

use super::*;

#[test]
fn samples_that_are_taken_less_often_stand_for_more_accesses() {
    let world = world();
    for (estimate, expected) in [
        (Estimate::TimeLost { latency_ns: 100.0 }, 10 * PERIOD_NS),
        (Estimate::Weights, 1000),
    ] {
        let daemon = daemon("carrefour", &world, |settings| settings.estimate = estimate);
        let mut program = Program::new();
        assert_eq!(daemon.accesses_per_thousand(&program.observer), 0);
        for rarer in [1u16, 8] {
            program.observer.begin_interval();
            program.loads(5, f32::from(rarer));
            let found = daemon.accesses_per_thousand(&program.observer);
            assert_eq!(found, u64::from(rarer) * expected);
        }
    }
}
