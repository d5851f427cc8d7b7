//! Misses replayed per second on one core, by policy and machine, and memory use: eight threads, a generated trace that
//! is streamed, with pages in the proportions of Verghese's workloads: private, shared read-mostly, shared and written.
//!
//! `cargo bench -p nearpage-simulator [-- MILLIONS_OF_MISSES PAGES]`

use nearpage_machine::{CpuId, preset};
use nearpage_recording::trace::{Miss, PageIndex, Served, StepBatch, Steps, TracedThread};
use nearpage_recording::{AccessKind, ThreadIndex};
use nearpage_simulator::{Job, SimulatedPolicy, StepSource, ThreadSteps, Trace, simulate};

const THREADS: u64 = 8;
const BATCH: u64 = 8192;
/// Fewest replayed misses per second.
const LIMIT: f64 = 10e6;

struct Generated {
    misses: u64,
    pages: u64,
}

struct Generator<'a> {
    trace: &'a Generated,
    thread: u64,
    left: u64,
    random: u64,
    misses: Vec<Miss>,
}

/// Generating must be cheap beside the replay: patterns are made once, and each batch repeats them with other pages.
impl Steps for Generator<'_> {
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, nearpage_recording::Error> {
        if self.left == 0 {
            return Ok(false);
        }
        let count = self.left.min(BATCH);
        self.left -= count;
        batch.trace_events.clear();
        let private = self.trace.pages / 2 / THREADS;
        let shared = self.trace.pages / 2;
        if self.misses.is_empty() {
            for _ in 0..BATCH {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let random = self.random >> 20;
                let (page, kind) = match self.random % 100 {
                    // Private data; thread 0 has initialised half of the pages.
                    0..=49 => (self.thread * private + random % private, AccessKind::Load),
                    50..=59 => (self.thread * private + random % private, AccessKind::Store),
                    // Shared data, with most accesses to a small hot part.
                    60..=97 => (
                        shared + (random % shared) * (random >> 20 & 7) / 8,
                        AccessKind::Load,
                    ),
                    _ => (shared + random % (shared / 16 + 1), AccessKind::Store),
                };
                self.misses.push(Miss {
                    instructions: (random % 200) as u32,
                    page: PageIndex(page as u32),
                    offset: 0,
                    kind,
                    served: Served::Memory,
                    tlb_miss: random.is_multiple_of(4),
                    sampled: false,
                    depends_on: 0,
                });
            }
        } else {
            // Private pages change within the thread's own half, so that new pages become hot.
            let first = self.thread * private;
            for miss in &mut self.misses {
                let page = u64::from(miss.page.0);
                if page < shared {
                    let next = page - first + 61;
                    miss.page = PageIndex(
                        (first
                            + if next >= private {
                                next - private
                            } else {
                                next
                            }) as u32,
                    );
                }
            }
        }
        batch.misses.clear();
        batch
            .misses
            .extend_from_slice(&self.misses[..count as usize]);
        Ok(true)
    }
}

impl Trace for Generated {
    fn pages(&self) -> usize {
        self.pages as usize
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        Ok((0..THREADS)
            .map(|thread| {
                let traced = TracedThread {
                    thread: ThreadIndex(thread as u32),
                    cpu: CpuId(thread as u32),
                    started_by: 0,
                    start_instructions: 0,
                };
                let steps = Generator {
                    trace: self,
                    thread,
                    left: self.misses / THREADS,
                    random: 0x9e37_79b9_7f4a_7c15
                        ^ (thread + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9),
                    misses: Vec::new(),
                };
                (traced, StepSource::Read(Box::new(steps)))
            })
            .collect())
    }
}

/// CPU time of this thread so far. It leaves out other programs' work, except for the caches that they use.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split_whitespace().next();
    first
        .and_then(|ns| ns.parse::<f64>().ok())
        .expect("the kernel has schedstat")
        / 1e9
}

/// Peak resident memory of this process, in bytes.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

fn main() {
    let mut numbers = std::env::args()
        .skip(1)
        .filter_map(|text| text.parse::<u64>().ok());
    let misses = numbers.next().unwrap_or(40) * 1_000_000;
    let pages = numbers.next().unwrap_or(100_000);
    let trace = Generated { misses, pages };
    // The cost of generating, which is subtracted.
    let started = cpu_seconds();
    let mut seen = 0u64;
    for (_, mut steps) in trace.threads().expect("generated") {
        let mut batch = StepBatch::default();
        while steps.next(&mut batch).expect("generated") {
            seen += batch.misses.len() as u64;
        }
    }
    let generating = cpu_seconds() - started;
    println!(
        "{misses} misses of {THREADS} threads on {pages} pages; generating them {:.1} ns each",
        generating * 1e9 / seen as f64
    );
    for machine in ["flash-8", "flash-8-contended"] {
        for policy in ["first-touch", "post-facto", "migrate-replicate"] {
            let job = Job::new(SimulatedPolicy::from_name(policy).expect("policy"));
            let machine = preset(machine).expect("preset");
            let mut rates: Vec<f64> = (0..3)
                .map(|_| {
                    let started = cpu_seconds();
                    let outcome = simulate(&trace, &machine, std::slice::from_ref(&job), 1)
                        .expect("simulates");
                    let seconds = cpu_seconds() - started;
                    assert_eq!(outcome[0].misses, seen);
                    seen as f64 / seconds
                })
                .collect();
            rates.sort_by(f64::total_cmp);
            let verdict = match policy {
                "migrate-replicate" if rates[1] >= LIMIT => "  at least 10: held",
                "migrate-replicate" => "  at least 10: MISSED",
                _ => "",
            };
            println!(
                "{:<18} {policy:<18} {:>6.1} M misses/s of CPU time (median of 3, {:.1} to {:.1}){verdict}",
                machine.name,
                rates[1] / 1e6,
                rates[0] / 1e6,
                rates[2] / 1e6
            );
        }
    }
    // Last, because the kernel reports the peak: many more pages.
    let pages = 4_000_000;
    let trace = Generated { misses, pages };
    let policy = SimulatedPolicy::from_name("migrate-replicate").expect("policy");
    let machine = preset("flash-8").expect("preset");
    simulate(&trace, &machine, &[Job::new(policy)], 1).expect("simulates");
    let limit = (512 << 20) + 64 * pages;
    let peak = peak_bytes();
    println!(
        "{pages} pages: peak memory {:.0} MiB, {:.0} bytes a page; at most {:.0} MiB: {}",
        peak as f64 / 1048576.0,
        peak as f64 / pages as f64,
        limit as f64 / 1048576.0,
        if peak <= limit { "held" } else { "MISSED" }
    );
}
