#![no_main]
//! A segment of an allocation log: the input itself, or blocks with right checksums made of its pieces.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, allocation_segment, pieces};
use nearpage_recording::allocation_log::{Damage, find};

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        for contents in [data, &allocation_segment(pieces(data))] {
            scratch.write("alloc-100-4-0.log", contents);
            let mut damage = Damage::default();
            for image in find(scratch.folder()).expect("readable") {
                let _ = image.read(&mut damage, |_, record| {
                    record.word(record.len());
                });
            }
        }
    });
});
