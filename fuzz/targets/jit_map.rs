//! `/tmp/perf-PID.map`, in which runtimes list generated code.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpage_recording::fuzz::jit_map(bytes));
