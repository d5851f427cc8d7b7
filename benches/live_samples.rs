//! CPU time of a sample's way through `nearpage live`, from the bytes in a ring to the policy, in three parts: decoding
//! to accesses (the sampler), copying to the interval's buffer (the observer), and from there through the page table to
//! a policy that only watches. 100,000 samples a second from four threads on four CPUs, in rounds of a fifth of a
//! second; rings and pages far exceed a core's caches. CPU time of the thread.
//!
//! `cargo bench -p nearpage-live --bench live_samples [-- INTERVALS]`. To count instructions, which other work on the
//! machine does not influence: `valgrind --tool=callgrind --toggle-collect='*Following::round*'` (up to the buffer) or
//! `'*Daemon::step*'` (from the buffer on).

use std::io;

use nearpage_live::{Daemon, FreeMemory, Kernel, Observer};
use nearpage_machine::preset;
use nearpage_recording::{Access, Event};
use nearpage_sampler::Sink;
use nearpage_sampler::bench::{Following, append_sample};

#[path = "live_kernel.rs"]
mod live_kernel;

use live_kernel::{Clock, PAGE, SECOND, SEED, cpu_ns, median, next_random, settings};

const SAMPLES: usize = 100_000;
const ROUNDS: usize = 5;
const THREADS: u32 = 4;
const PAGES: usize = 30_000;
/// Memory that a program uses while the daemon waits: more than caches hold.
const EVICTED_BYTES: usize = 96 << 20;
/// Longest permitted time of all parts, per sample: 1 % of a core.
const LIMIT_NS: f64 = 100.0;
/// A load whose address is in a register.
#[cfg(target_arch = "x86_64")]
const LOAD: [u8; 4] = [0x48, 0x8b, 0x47, 0x08]; // mov rax, [rdi + 8]
#[cfg(not(target_arch = "x86_64"))]
const LOAD: [u8; 4] = [0x20, 0x00, 0x40, 0xf9]; // ldr x0, [x1]
/// Number of sampled places in the code.
const PLACES: u64 = 64;

/// A page of sampled code, which is read but never executed.
static CODE: std::sync::LazyLock<Vec<u8>> =
    std::sync::LazyLock::new(|| LOAD.repeat(2 * PLACES as usize));

/// A sink that only counts accesses.
#[derive(Default)]
struct Nothing {
    accesses: usize,
}

impl Sink for Nothing {
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()> {
        self.accesses += accesses.len();
        Ok(())
    }

    fn events(&mut self, _: &[Event]) -> io::Result<()> {
        Ok(())
    }
}

/// Contents of the rings for a round, by CPU, with addresses in random order over `pages` pages.
fn rings(pages: u64, begin_ns: u64, random: &mut u64) -> Vec<Vec<u8>> {
    let pid = std::process::id();
    let mut rings = vec![Vec::new(); THREADS as usize];
    for sample in 0..SAMPLES / ROUNDS {
        let random = next_random(random);
        let cpu = sample as u32 % THREADS;
        let time_ns = begin_ns + (sample * 1_000_000_000 / SAMPLES) as u64;
        let ip =
            CODE.as_ptr() as u64 + LOAD.len() as u64 * (random >> 10 & (PLACES - 1)) + 4 * PLACES;
        let address = (1 << 30) + (random >> 20) % pages * PAGE;
        let who = (pid, pid + cpu, cpu);
        append_sample(&mut rings[cpu as usize], who, time_ns, ip, address);
    }
    rings
}

/// Evicts the daemon's data from caches, as a program does while the daemon waits.
fn evict(memory: &mut [u64]) {
    for line in memory.chunks_mut(8) {
        line[0] = line[0].wrapping_add(1);
    }
    std::hint::black_box(memory);
}

fn measure(pages: u64, intervals: usize, others: &mut [u64]) {
    let mut kernel = Clock { intervals: 1 };
    let machine = preset("opteron-4").expect("a preset");
    let mut daemon =
        Daemon::new(settings("watch", PAGES), &machine, kernel.now_ns()).expect("four nodes");
    let mut observer = Observer::new(100_000);
    let code = (CODE.as_ptr() as u64, CODE.len() as u64);
    let mut alone = Following::itself(code.0, code.1);
    let mut followed = Following::itself(code.0, code.1);
    let mut random = SEED;
    let (mut to_accesses, mut to_buffer, mut deciding, mut all) = (vec![], vec![], vec![], vec![]);
    for interval in 0..intervals + 3 {
        let (mut accesses_ns, mut buffer_ns, mut nothing) = (0, 0, Nothing::default());
        let interval_ns = kernel.now_ns();
        let rounds: Vec<_> = (0..ROUNDS)
            .map(|round| {
                let begin_ns = interval_ns + (round as u64) * SECOND / ROUNDS as u64;
                rings(pages, begin_ns, &mut random)
            })
            .collect();
        let rounds: Vec<Vec<&[u8]>> = rounds
            .iter()
            .map(|round| round.iter().map(Vec::as_slice).collect())
            .collect();
        for round in &rounds {
            evict(others);
            let began_ns = cpu_ns();
            alone.round(round, &mut nothing).expect("taken");
            accesses_ns += cpu_ns() - began_ns;
        }
        for round in &rounds {
            evict(others);
            let began_ns = cpu_ns();
            followed.round(round, &mut observer).expect("taken");
            buffer_ns += cpu_ns() - began_ns;
        }
        kernel.intervals += 1;
        evict(others);
        let began_ns = cpu_ns();
        let report = daemon
            .step(&mut observer, &mut kernel, &FreeMemory::default(), 0, None)
            .expect("no log");
        let deciding_ns = cpu_ns() - began_ns;
        assert_eq!(nothing.accesses, SAMPLES);
        if interval < 3 {
            continue;
        }
        assert!(report.hot_pages > 0);
        let each = |ns: u64| ns as f64 / SAMPLES as f64;
        to_accesses.push(each(accesses_ns));
        to_buffer.push(each(buffer_ns));
        deciding.push(each(deciding_ns));
        all.push(each(buffer_ns + deciding_ns));
    }
    let all = median(all);
    println!(
        "{pages:>6} pages: to accesses {:5.1} ns a sample, to the buffer {:5.1}, to the policy {:5.1} more: {all:5.1} in all{}",
        median(to_accesses),
        median(to_buffer),
        median(deciding),
        match all > LIMIT_NS {
            true => "; MISSED",
            false => "",
        }
    );
}

fn main() {
    let intervals = std::env::args()
        .skip(1)
        .find_map(|word| word.parse().ok())
        .unwrap_or(31);
    println!(
        "{SAMPLES} samples a second, a table of {PAGES} pages, median of {intervals}; all may take {LIMIT_NS} ns"
    );
    for (caches, bytes) in [
        ("as they were left", 0),
        ("full of a program's memory", EVICTED_BYTES),
    ] {
        println!("caches {caches}");
        let mut others = vec![1u64; bytes / 8];
        for pages in [1000, 25_000, 49_000] {
            measure(pages, intervals, &mut others);
        }
    }
}
