#![no_main]
//! Arbitrary bytes as AArch64 code: control flow, and the accesses that samples in the code stand for.

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((at, code)) = data.split_first_chunk() else {
        return;
    };
    nearpage_sampler::fuzz::aarch64_code(code, usize::from(u16::from_le_bytes(*at)));
});
