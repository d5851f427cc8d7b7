#![no_main]
//! Bodies of Intel's and AMD's hardware samples, decoded up to accesses.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    nearpage_sampler::fuzz::memory_samples(data);
});
