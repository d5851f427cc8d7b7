//! Measures the cost of converting logs to tables: the constants of `src/convert.rs`.
//!
//! ```text
//! cargo run --release -p nearpage-recording --example conversion_cost -- [MODULE…]
//! ```
//! The cost is the elapsed time of the first `Recording::open` of made-up logs, less that of the second, median of 5.
//! It is given per access, per byte of allocation log, and per byte of MODULE (default: this program), which is mapped
//! by a process that has an access and a call site in it.

#[path = "../tests/all/making/mod.rs"]
mod making;

use std::path::Path;
use std::time::Instant;

use making::{Block, access, batch, fork, map, metadata, name, segment};
use nearpage_recording::{LogWriter, Recording};
use nearpage_wire::allocation_log::{BLOCK_BYTES, Kind};

const CODE: u32 = 5;
const PROGRAM: u64 = 0x40_0000;

/// Contents of a made-up recording.
#[derive(Clone, Copy, Default)]
struct Amount<'a> {
    accesses: u64,
    allocations: u64,
    module: Option<&'a Path>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fixed = milliseconds(Amount::default())?.0;
    println!("fixed: {fixed:.1} ms");
    for accesses in [10_000, 100_000, 1_000_000] {
        let (milliseconds, _) = milliseconds(Amount {
            accesses,
            ..Amount::default()
        })?;
        let each = (milliseconds - fixed) * 1e6 / accesses as f64;
        println!("{accesses} accesses: {milliseconds:.1} ms, {each:.0} ns each");
    }
    for allocations in [10_000, 100_000, 1_000_000] {
        let (milliseconds, bytes) = milliseconds(Amount {
            allocations,
            ..Amount::default()
        })?;
        let each = (milliseconds - fixed) * 1e6 / bytes as f64;
        println!(
            "{bytes} bytes of allocation log, {allocations} objects: {milliseconds:.1} ms, {each:.2} ns a byte"
        );
    }
    let mut modules: Vec<_> = std::env::args().skip(1).map(Into::into).collect();
    if modules.is_empty() {
        modules.push(std::env::current_exe()?);
    }
    for module in &modules {
        let (milliseconds, _) = milliseconds(Amount {
            accesses: 1,
            allocations: 1,
            module: Some(module),
        })?;
        let bytes = module.metadata()?.len();
        let each = (milliseconds - fixed) * 1e6 / bytes as f64;
        println!(
            "{}, {bytes} bytes: {milliseconds:.1} ms, {each:.2} ns a byte",
            module.display()
        );
    }
    Ok(())
}

/// Median time of the conversion in milliseconds, and bytes of the allocation log.
fn milliseconds(amount: Amount) -> Result<(f64, u64), Box<dyn std::error::Error>> {
    let (mut times, mut log_bytes) = (Vec::new(), 0);
    for _ in 0..5 {
        let scratch = tempfile::tempdir()?;
        let folder = scratch.path().join("recording");
        log_bytes = write(&folder, amount)?;
        let open = || -> Result<f64, nearpage_recording::Error> {
            let begin = Instant::now();
            Recording::open(&folder)?;
            Ok(begin.elapsed().as_secs_f64() * 1e3)
        };
        times.push(open()? - open()?);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], log_bytes))
}

fn write(folder: &Path, amount: Amount) -> Result<u64, nearpage_recording::Error> {
    let mut log = LogWriter::create(folder, metadata(), &making::machine())?;
    let path = amount.module.unwrap_or(Path::new("/nonexistent/program"));
    log.events(&[
        fork(1, 100, 100, 0, 1),
        name(2, 100, 0, "program", true),
        map(3, 100, PROGRAM, 0x100_0000, CODE, &path.to_string_lossy()),
        map(3, 100, 0xa000_0000, 1 << 32, 3, "[heap]"),
        fork(9, 100, 101, 1, 100),
    ])?;
    let mut blocks = Vec::new();
    let mut block = Block::of(100).thread(4, 0, 0);
    for number in 0..amount.allocations {
        if number % 1000 == 0 {
            let frames = [PROGRAM + 0x2000 + number % 4096, PROGRAM + 0x3000];
            block = block.record(Kind::CallSite, number as u32 / 1000, &frames);
        }
        block = block.allocate(
            20 + number,
            0xa000_0000 + number * 64,
            64,
            number as u32 / 1000,
        );
        if block.bytes_used() + 128 > BLOCK_BYTES {
            blocks.push(std::mem::replace(&mut block, Block::of(100)).bytes());
        }
    }
    blocks.push(block.bytes());
    let logs = log.allocation_log_folder();
    segment(&logs, 100, 4, &blocks);
    for first in (0..amount.accesses).step_by(1000) {
        let accesses: Vec<_> = (first..(first + 1000).min(amount.accesses))
            .map(|number| {
                let address = 0xa000_0000 + number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 32);
                access(30 + number * 1_000_000, (number % 2) as u32, address)
            })
            .collect();
        log.accesses(&batch(&accesses))?;
    }
    drop(log);
    let file = folder.join("recording.json");
    let complete = std::fs::read_to_string(&file)
        .map(|text| text.replace("\"incomplete\"", "\"complete\""))
        .and_then(|text| std::fs::write(&file, text));
    complete.expect("the folder that was just made");
    Ok(std::fs::read_dir(logs)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("alloc-"))
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum())
}
