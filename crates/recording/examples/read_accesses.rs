//! Measures how fast accesses are read, after the tables are in memory: `read_accesses FOLDER [THREADS]`.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nearpage_recording::{AccessBatch, ColumnSelection, Error, Recording};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments
        .first()
        .ok_or("usage: read_accesses FOLDER [THREADS]")?;
    let threads: usize = arguments.get(1).map_or(Ok(2), |text| text.parse())?;
    let begin = Instant::now();
    let recording = Recording::open(Path::new(folder))?;
    println!(
        "open {:.3} s, {} objects",
        begin.elapsed().as_secs_f64(),
        recording.tables.objects.len()
    );

    let attribution = ColumnSelection {
        level: false,
        resolution: false,
        skid_bytes: false,
        ..ColumnSelection::ALL
    };
    for (name, columns) in [
        ("all columns", ColumnSelection::ALL),
        ("attribution's columns", attribution),
    ] {
        let (begin, cpu, next) = (Instant::now(), cpu_seconds()?, AtomicUsize::new(0));
        let count = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..threads)
                .map(|_| scope.spawn(|| read(&recording, columns, &next)))
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap_or(Ok(0)))
                .sum::<Result<usize, Error>>()
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        let (rate, cost) = (
            count as f64 / seconds / 1e6,
            (cpu_seconds()? - cpu) * 1e9 / count as f64,
        );
        println!(
            "{name}: {count} accesses in {seconds:.3} s, {rate:.1} M/s on {threads} threads, {cost:.1} ns of CPU each"
        );
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    println!(
        "{}",
        status
            .lines()
            .find(|line| line.starts_with("VmHWM"))
            .unwrap_or_default()
    );
    Ok(())
}

/// User and system time of this process, from ticks of 10 ms. Unlike elapsed time, it is valid on a busy machine.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(11);
    Ok(fields
        .take(2)
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0)
}

fn read(
    recording: &Recording,
    columns: ColumnSelection,
    next: &AtomicUsize,
) -> Result<usize, Error> {
    let (mut batch, mut count) = (AccessBatch::default(), 0);
    loop {
        let chunk = next.fetch_add(1, Ordering::Relaxed);
        if chunk >= recording.access_chunks() {
            return Ok(count);
        }
        recording.read_chunk(chunk, columns, &mut batch)?;
        count += batch.len();
    }
}
