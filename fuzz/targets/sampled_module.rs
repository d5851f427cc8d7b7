#![no_main]
//! A program or library, in which the sampler looks for code.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::Scratch;

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| nearpage_sampler::fuzz::module(&scratch.write("module", data)));
});
