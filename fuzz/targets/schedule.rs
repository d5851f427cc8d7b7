#![no_main]
//! A schedule file.

use libfuzzer_sys::fuzz_target;
use nearpage_simulator::Schedule;

fuzz_target!(|text: &str| {
    if let Err(error) = Schedule::from_toml(text, "fuzz") {
        assert!(!error.to_string().contains('\n'), "{error}");
    }
});
