//! Files of other tools, read up to accesses and events: `perf.data`, the text of `perf script`, samples in CSV.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpage_recording::fuzz::import(bytes));
