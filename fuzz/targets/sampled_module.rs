#![no_main]
//! A module, as the sampler looks for code in it.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::Scratch;

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| nearpage_sampler::fuzz::module(&scratch.write("module", data)));
});
