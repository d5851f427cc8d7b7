#![no_main]
//! Packets of Arm's SPE, decoded up to accesses.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    nearpage_sampler::fuzz::spe_packets(data);
});
