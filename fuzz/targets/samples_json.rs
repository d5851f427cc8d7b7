//! Measured costs of samples, kept in `~/.cache/nearpage/samples.json`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpage_runner::fuzz::measured_costs(bytes));
