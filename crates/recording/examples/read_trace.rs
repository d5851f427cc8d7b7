//! Measures how fast a trace is decoded and its pages are looked up, as a simulator reads it: `read_trace FOLDER`. The
//! threads of the trace are read one after the other on one CPU; then come its accesses, and the statistics of a
//! report. Figures are CPU time, which is valid on a busy machine.

use std::path::Path;

use nearpage_recording::trace::{StepBatch, Steps};
use nearpage_recording::{AccessBatch, ColumnSelection, Recording};

/// CPU time of this thread so far.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|text| text.parse().ok());
    nanoseconds.map_or(f64::NAN, |nanoseconds: f64| nanoseconds / 1e9)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: read_trace FOLDER")?;
    let begin = cpu_seconds();
    let recording = Recording::open(Path::new(&folder))?;
    println!("open {:.3} s", cpu_seconds() - begin);
    let trace = recording.trace()?;
    for _ in 0..5 {
        let begin = cpu_seconds();
        let (mut batch, mut misses, mut trace_events) = (StepBatch::default(), 0, 0);
        let mut pages = 0u64;
        for position in 0..trace.threads().len() {
            let mut steps = trace.steps(position);
            while steps.next(&mut batch)? {
                misses += batch.misses.len();
                trace_events += batch.trace_events.len();
                pages ^= batch
                    .misses
                    .iter()
                    .map(|miss| u64::from(miss.page.0))
                    .sum::<u64>();
            }
        }
        let seconds = cpu_seconds() - begin;
        println!(
            "steps: {misses} misses, {trace_events} others on {} pages in {seconds:.3} s, {:.1} M misses/s ({pages:x})",
            trace.pages().len(),
            misses as f64 / seconds / 1e6
        );
    }
    let (begin, mut batch, mut count) = (cpu_seconds(), AccessBatch::default(), 0);
    let mut reader = recording.chunk_reader();
    for chunk in 0..recording.access_chunks() {
        reader.read(chunk, ColumnSelection::ALL, &mut batch)?;
        count += batch.len();
    }
    let seconds = cpu_seconds() - begin;
    println!(
        "accesses: {count} in {seconds:.3} s, {:.1} M/s",
        count as f64 / seconds / 1e6
    );
    let begin = cpu_seconds();
    let statistics = recording.trace_statistics()?;
    let seconds = cpu_seconds() - begin;
    let misses = statistics.data_misses + statistics.fetch_misses;
    println!(
        "statistics: {misses} misses in {seconds:.3} s, {:.1} M/s",
        misses as f64 / seconds / 1e6
    );
    Ok(())
}
