//! How fast a trace is decoded and its pages are looked up, as a simulator reads it:
//! `read_trace FOLDER`, one thread of the trace after the other on one CPU; then its accesses.

use std::path::Path;
use std::time::Instant;

use nearpage_recording::trace::{StepBatch, Steps};
use nearpage_recording::{AccessBatch, ColumnSelection, Recording};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: read_trace FOLDER")?;
    let begin = Instant::now();
    let recording = Recording::open(Path::new(&folder))?;
    println!("open {:.3} s", begin.elapsed().as_secs_f64());
    let trace = recording.trace()?;
    for _ in 0..3 {
        let begin = Instant::now();
        let (mut batch, mut misses, mut happenings) = (StepBatch::default(), 0, 0);
        let mut pages = 0u64;
        for position in 0..trace.threads().len() {
            let mut steps = trace.steps(position);
            while steps.next(&mut batch)? {
                misses += batch.misses.len();
                happenings += batch.happenings.len();
                pages ^= batch
                    .misses
                    .iter()
                    .map(|miss| u64::from(miss.page.0))
                    .sum::<u64>();
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "steps: {misses} misses, {happenings} others on {} pages in {seconds:.3} s, {:.1} M misses/s ({pages:x})",
            trace.pages().len(),
            misses as f64 / seconds / 1e6
        );
    }
    let (begin, mut batch, mut count) = (Instant::now(), AccessBatch::default(), 0);
    for chunk in 0..recording.access_chunks() {
        recording.read_chunk(chunk, ColumnSelection::ALL, &mut batch)?;
        count += batch.len();
    }
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "accesses: {count} in {seconds:.3} s, {:.1} M/s",
        count as f64 / seconds / 1e6
    );
    Ok(())
}
