#![no_main]
//! Texts from the kernel: processes, mappings, mounts, and fields of a PMU's events.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| nearpage_sampler::fuzz::kernel_text(text));
