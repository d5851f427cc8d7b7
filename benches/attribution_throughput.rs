//! Number of accesses attributed per second, and peak memory.
//!
//! ```text
//! cargo bench -p nearpage-attribution --bench attribution_throughput [-- DIR | MILLIONS]
//! ```
//!
//! DIR: a recording on disk. MILLIONS: synthetic accesses in memory, 20 million by default, over a million objects, 64
//! GiB and 64 threads. Half of the objects live all the time; the others replace each other. Three of four accesses go
//! to large arrays in blocks, the others anywhere. Limits: 10 million accesses a second on two cores, 1 GiB at 100
//! million.

use std::{path::Path, time::Instant};

use nearpage_attribution::{AccessChunks, Input, Options, ReadError, attribute};
use nearpage_machine::CpuId;
use nearpage_recording::{
    Access, AccessBatch, AccessKind, CallSiteId, Level, Object, ObjectKind, Recording, Resolution,
    SampleCounts, Tables, Thread, ThreadIndex,
};

const THREADS: u32 = 64;
const OBJECTS: u64 = 1_000_000;
const CHUNK: u64 = 1 << 18;
const ARRAYS: u64 = 16;
const ARRAY_BYTES: u64 = 2 << 30;
const SMALL_BYTES: u64 = 64 << 10;
const ARRAY_BASE: u64 = 0x7000_0000_0000;
const SMALL_BASE: u64 = 0x5600_0000_0000;
/// Objects that live at the same time beside the arrays; objects that are freed leave their slot to others.
const SLOTS: u64 = OBJECTS / 2;

struct MadeUp {
    chunks: u64,
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

impl MadeUp {
    fn fill(&self, chunk: usize, batch: &mut AccessBatch) {
        batch.clear();
        let mut state = (chunk as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for row in 0..CHUNK {
            let number = chunk as u64 * CHUNK + row;
            let at = random(&mut state);
            let thread = (at >> 8) as u32 % THREADS;
            let address = if !at.is_multiple_of(4) {
                let share = ARRAY_BYTES / u64::from(THREADS);
                ARRAY_BASE
                    + (at >> 20) % ARRAYS * ARRAY_BYTES
                    + u64::from(thread) * share
                    + (at >> 30) % share
            } else {
                SMALL_BASE + (at >> 20) % (SLOTS * SMALL_BYTES)
            };
            batch.push(Access {
                time_ns: number * 100,
                thread: ThreadIndex(thread),
                cpu: CpuId(thread),
                address,
                instruction: 0x40_0000 + (at >> 58),
                kind: if at & 16 == 0 {
                    AccessKind::Load
                } else {
                    AccessKind::Store
                },
                level: Level::Unknown,
                resolution: Resolution::Exact,
                skid_bytes: 4,
                weight: 1.0,
                cost_ns: 1e6,
                page_node: None,
            });
        }
    }
}

impl AccessChunks for MadeUp {
    fn chunks(&self) -> usize {
        self.chunks as usize
    }

    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
        |chunk, batch| {
            self.fill(chunk, batch);
            Ok(())
        }
    }
}

fn tables(end_ns: u64) -> Tables {
    let object =
        |number: u64, address: u64, size_bytes: u64, born_ns: u64, died_ns: u64, site: u32| {
            Object {
                kind: ObjectKind::Heap,
                name: String::new(),
                pid: 1,
                address,
                size_bytes,
                born_ns,
                died_ns,
                weight: 1.0,
                call_site: Some(CallSiteId(site)),
                thread: Some(ThreadIndex(0)),
                order: number as u32,
                module: None,
                module_offset: 0,
                same_memory_as: None,
            }
        };
    let mut objects: Vec<Object> = (0..ARRAYS)
        .map(|n| {
            object(
                n,
                ARRAY_BASE + n * ARRAY_BYTES,
                ARRAY_BYTES,
                0,
                u64::MAX,
                n as u32,
            )
        })
        .collect();
    for n in 0..OBJECTS {
        let (slot, again) = (n % SLOTS, n / SLOTS);
        let change = slot * end_ns / SLOTS;
        let (born, died) = if again == 0 {
            (0, change.max(1))
        } else {
            (change.max(1), u64::MAX)
        };
        let site = ARRAYS + slot % 1000;
        objects.push(object(
            n,
            SMALL_BASE + slot * SMALL_BYTES,
            SMALL_BYTES,
            born,
            died,
            site as u32,
        ));
    }
    let thread = |index: u32| Thread {
        pid: 1,
        tid: 100 + index,
        name: "made-up".to_owned(),
        born_ns: 0,
        died_ns: u64::MAX,
        order: index,
        start: None,
        start_function: String::new(),
        team_index: index,
        team: "openmp".to_owned(),
        cpus: Vec::new(),
        counts: SampleCounts::default(),
    };
    Tables {
        objects,
        threads: (0..THREADS).map(thread).collect(),
        ..Tables::default()
    }
}

/// Peak resident memory of this process in MiB, from `/proc/self/status`.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Skips the argument that `cargo bench` adds.
    let argument = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"));
    let began = Instant::now();
    let (attribution, accesses) = match argument {
        Some(folder) if Path::new(&folder).is_dir() => {
            let recording = Recording::open(Path::new(&folder))?;
            (
                attribute(&Input::new(&recording), &Options::default())?,
                recording.access_count(),
            )
        }
        number => {
            let millions: u64 = number.as_deref().unwrap_or("20").parse()?;
            let made_up = MadeUp {
                chunks: (millions * 1_000_000).div_ceil(CHUNK),
            };
            let tables = tables(made_up.chunks * CHUNK * 100);
            println!(
                "tables: {:.2} s, peak {} MiB",
                began.elapsed().as_secs_f64(),
                peak_mib()
            );
            let input = Input {
                accesses: &made_up,
                tables: &tables,
                marks: &[],
                counts: SampleCounts::default(),
                machine: None,
            };
            (
                attribute(&input, &Options::default())?,
                made_up.chunks * CHUNK,
            )
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{accesses} accesses, {} rows: {seconds:.2} s, {:.1} million accesses/s, peak {} MiB",
        attribution.objects.len(),
        accesses as f64 / seconds / 1e6,
        peak_mib(),
    );
    println!(
        "costliest: {:?}, pages of {}",
        attribution.objects[0].pattern, attribution.objects[0].affinity.page_bytes
    );
    Ok(())
}
