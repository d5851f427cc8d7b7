#![no_main]
//! A recorder's log: the input itself, or frames with right checksums made of its pieces.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, pieces, recorder_log};
use nearpage_recording::AccessBatch;
use nearpage_recording::log::LogReader;

thread_local!(static SCRATCH: Scratch = Scratch::default());

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        for contents in [data, &recorder_log(pieces(data))] {
            scratch.write("log/recorder.log", contents);
            let Ok(log) = LogReader::open(scratch.folder()) else {
                continue;
            };
            let mut batch = AccessBatch::default();
            let mut accesses = 0;
            for chunk in 0..log.chunks() {
                log.read_chunk(chunk, &mut batch)
                    .expect("as when it was opened");
                accesses += batch.len() as u64;
            }
            assert_eq!(accesses, log.access_count);
        }
    });
});
