#![no_main]
//! A trace with damage: pages, steps and accesses of its readable parts.

use libfuzzer_sys::fuzz_target;
use nearpage_fuzz::{Scratch, pieces, trace_file};
use nearpage_recording::Recording;
use nearpage_recording::trace::{StepBatch, Steps, Trace};

thread_local!(static SCRATCH: Scratch = {
    let scratch = Scratch::default();
    let machine = nearpage_machine::preset("flash-8").expect("preset");
    scratch.write("machine.toml", machine.to_toml().as_bytes());
    scratch.write("recording.json", include_bytes!("../../crates/recording/tests/fixtures/version-1-log/recording.json"));
    scratch.write("log/recorder.log", b"NPRECLOG\x01\0\0\0\0\0\0\0");
    scratch
});

fuzz_target!(|data: &[u8]| {
    SCRATCH.with(|scratch| {
        scratch.write("trace/trace-100-4.trace", &trace_file(pieces(data)));
        let Ok(recording) = Recording::open(scratch.folder()) else {
            return;
        };
        let count: u64 = recording
            .accesses()
            .map(|batch| batch.expect("readable").len() as u64)
            .sum();
        assert_eq!(count, recording.access_count());
        if let Ok(trace) = recording.trace() {
            all_steps(&trace);
        }
    });
});

fn all_steps(trace: &Trace) {
    let mut batch = StepBatch::default();
    for position in 0..trace.threads().len() {
        let mut steps = trace.steps(position);
        while steps.next(&mut batch).expect("every page is known") {
            for miss in &batch.misses {
                assert!((miss.page.0 as usize) < trace.pages().len());
            }
        }
    }
}
