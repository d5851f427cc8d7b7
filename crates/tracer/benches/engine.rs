//! What a reference costs in the tracer, the emulator left out: triad with a random gather, and a
//! loop that hits, one thread. Each figure is the best of many short stretches, so that a busy
//! machine changes it little.
//!
//! `cargo bench -p nearpage-tracer [-- LOOP]`

use std::time::Instant;

use nearpage_tracer::process::Process;
use nearpage_tracer::qemu::AccessKind;
use nearpage_tracer::thread::{Code, Run, Thread};
use nearpage_wire::tracer_setup::Setup;

const SETUP: &str = "nearpage tracer setup 1
page_bytes 4096
line_bytes 64
l1_fetch 32768 2
l1_data 32768 2
l2 524288 2
tlb 64 64 8
cpu_nodes 0 1 2 3 4 5 6 7
thread_cpus 0 1 2 3 4 5 6 7
quantum 10000
sample_period 100003
";

const LOAD: AccessKind = AccessKind::LOAD_AND_STORE[0];
const STORE: AccessKind = AccessKind::LOAD_AND_STORE[1];

/// References in a stretch.
const STRETCH: u64 = 4_000;

fn main() {
    let folder = std::env::temp_dir().join(format!("nearpage-engine-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("TMPDIR can be written to");
    let setup = Setup::parse(SETUP).expect("it is right");
    let process: &'static Process =
        Box::leak(Box::new(Process::new(setup, &folder, 0).expect("folder")));
    let birth = process.take_new_thread();
    let mut thread = Thread::new(process, &birth).expect("CPU");

    let mut random = 88_172_645_463_325_252_u64;
    let mut element = 0_u64;
    let gather = |thread: &mut Thread| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let read = |thread: &mut Thread, address: u64, number: usize| {
            thread.access(address, Code::new(0x40_1000, number, false), LOAD);
        };
        thread.block(Run::new(0x40_1000, 16, 2));
        read(thread, (1 << 30) + 0x3000 + element * 8, 1);
        read(thread, (2 << 30) + 0x5000 + element * 8, 3);
        read(thread, (4 << 30) + random % (1 << 20) * 8, 9);
        let store = Code::new(0x40_1000, 14, false);
        thread.access((3 << 30) + 0x6000 + element * 8, store, STORE);
        element = (element + 1) % (1 << 20);
    };
    time("triad and gather", &mut thread, 4, gather);

    let mut at = 0_u64;
    let hits = |thread: &mut Thread| {
        thread.block(Run::new(0x40_2000, 8, 1));
        for number in 0..3 {
            let address = (5 << 30) + (at + number as u64 * 1024) % 16_384;
            thread.access(address, Code::new(0x40_2000, number, false), LOAD);
        }
        let store = Code::new(0x40_2000, 3, false);
        thread.access((6 << 30) + at % 4096, store, STORE);
        at += 8;
    };
    time("hits", &mut thread, 4, hits);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

fn time(name: &str, thread: &mut Thread, references: u64, mut round: impl FnMut(&mut Thread)) {
    let mut wanted = std::env::args().skip(1).filter(|word| word != "--bench");
    if wanted.next().is_some_and(|word| !name.starts_with(&word)) {
        return;
    }
    let mut best = f64::INFINITY;
    let stretches = std::env::var("STRETCHES")
        .ok()
        .and_then(|count| count.parse().ok());
    for _ in 0..stretches.unwrap_or(4000) {
        let began = Instant::now();
        for _ in 0..STRETCH / references {
            round(thread);
        }
        let ns = began.elapsed().as_nanos() as f64 / STRETCH as f64;
        best = best.min(ns);
    }
    println!("{name}: {best:.1} ns a data reference");
}
