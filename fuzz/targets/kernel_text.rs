#![no_main]
//! What the kernel says in words: processes, mappings, mounts, the fields of a PMU's events.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| nearpage_sampler::fuzz::kernel_text(text));
