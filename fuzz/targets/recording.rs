#![no_main]
//! An interrupted recording: threads, objects and modules are assembled from its two logs.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, allocation_segment, pieces, recorder_log};
use nearpage_recording::Recording;

thread_local!(static SCRATCH: Scratch = {
    let scratch = Scratch::default();
    scratch.write("machine.toml", include_bytes!("../../crates/recording/tests/fixtures/version-1-log/machine.toml"));
    scratch.write("recording.json", include_bytes!("../../crates/recording/tests/fixtures/version-1-log/recording.json"));
    scratch
});

/// First tag of the allocation log's pieces, from whose tags it is subtracted.
const ALLOCATIONS: u8 = 0x40;

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        let is_allocation = |(tag, _): &(u8, &[u8])| tag & ALLOCATIONS != 0;
        let log = recorder_log(pieces(data).filter(|piece| !is_allocation(piece)));
        let allocations = pieces(data).filter(is_allocation);
        let segment =
            allocation_segment(allocations.map(|(tag, piece)| (tag & !ALLOCATIONS, piece)));
        scratch.write("log/recorder.log", &log);
        scratch.write("log/alloc-100-4-0.log", &segment);
        if let Ok(recording) = Recording::open(scratch.folder()) {
            let count: u64 = recording
                .accesses()
                .map(|batch| batch.expect("readable").len() as u64)
                .sum();
            assert_eq!(count, recording.access_count());
        }
    });
});
