#![no_main]
//! A plan file of a program or a job; a plan that was read must be the same after it is written and read again.

use libfuzzer_sys::fuzz_target;
use nearpage_plan::PlanFile;

fuzz_target!(|text: &str| {
    if let Ok(plan) = PlanFile::from_toml(text, "fuzz") {
        let written = match &plan {
            PlanFile::Program(plan) => plan.to_toml(),
            PlanFile::Job(job) => job.to_toml(),
        };
        let again = PlanFile::from_toml(&written, "again").expect(&written);
        assert_eq!(again, plan, "{written}");
    }
});
