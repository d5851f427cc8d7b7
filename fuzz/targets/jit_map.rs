//! What runtimes write of the code that they generate: `/tmp/perf-PID.map`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpage_recording::fuzz::jit_map(bytes));
