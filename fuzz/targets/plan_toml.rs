#![no_main]
//! A plan file; one that is read must come back the same from what is written of it.

use libfuzzer_sys::fuzz_target;
use nearpage_plan::Plan;

fuzz_target!(|text: &str| {
    if let Ok(plan) = Plan::from_toml(text, "fuzz") {
        let written = plan.to_toml();
        let again = Plan::from_toml(&written, "again").expect(&written);
        assert_eq!(again, plan, "{written}");
    }
});
