#![no_main]
//! recording.json.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::Scratch;
use nearpage_recording::Recording;

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        scratch.write("recording.json", data);
        Recording::open(scratch.folder()).expect_err("there is nothing else in the folder");
    });
});
