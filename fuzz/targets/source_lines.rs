//! Functions, files and lines of imported code.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| nearpage_recording::fuzz::source_lines(bytes));
