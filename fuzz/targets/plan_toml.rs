#![no_main]
//! A plan file, of a program or a job; one that is read must come back the same from what is written of it.

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
