#![no_main]
//! The tracer's setup: a readable setup must be the same after it is written and read again, and have valid cache sets
//! and divisors.

use libfuzzer_sys::fuzz_target;
use nearpage_wire::tracer_setup::Setup;

fuzz_target!(|text: &str| {
    let Ok(setup) = Setup::parse(text) else {
        return;
    };
    assert!(setup.l2.sets(setup.line_bytes) > 0 && setup.tlb.usable_ways() > 0);
    let again = setup.to_string();
    assert_eq!(
        Setup::parse(&again).map(|setup| setup.to_string()),
        Ok(again.clone())
    );
});
