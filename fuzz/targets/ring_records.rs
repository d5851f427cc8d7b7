#![no_main]
//! Bytes of a perf ring: records, their order, and the threads and mappings that follow from them.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    nearpage_sampler::fuzz::ring(data);
});
