#![no_main]
//! The maps file, read by the tracer's own source, because no crate may depend on the tracer.

#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/tracer/src/maps/line.rs"]
mod line;

fuzz_target!(|text: &[u8]| {
    for mapping in text.split(|byte| *byte == b'\n').filter_map(line::mapping) {
        assert!(mapping.protection <= 7 && matches!(mapping.flags, 1 | 2));
        assert!(mapping.range.0 < mapping.range.1);
    }
});
