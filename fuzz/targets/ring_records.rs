#![no_main]
//! The bytes of a ring: records, their order, and what follows of threads and mappings.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    nearpage_sampler::fuzz::ring(data);
});
