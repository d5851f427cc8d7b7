//! CPU time of `nearpage live` between sampler and kernel, by policy: for a decision about 30,000 pages, and for a
//! sample's way from the sampler's batch through the page table to the policy. Four nodes, 100,000 samples per
//! interval, a synthetic process whose pages never move; CPU time of the thread.
//!
//! `cargo bench -p nearpage-live --bench live_decisions [-- INTERVALS [POLICY…]]`. To count instructions, which other
//! work on the machine does not influence, run one policy under
//! `valgrind --tool=callgrind --toggle-collect='*Daemon::step*'`.

use nearpage_live::{Daemon, FreeMemory, Kernel, LivePolicy, Observer, Report};
use nearpage_machine::{CpuId, preset};
use nearpage_recording::{Access, AccessKind, Event, Level, Resolution, SampleCounts, ThreadIndex};
use nearpage_sampler::Sink;

#[path = "live_kernel.rs"]
mod live_kernel;

use live_kernel::{Clock, PAGE, SECOND, SEED, cpu_ns, median, next_random, settings};

const PAGES: u64 = 30_000;
/// Samples per interval of one second, at the rate for which the daemon's cost is stated.
const SAMPLES: u64 = 100_000;
const THREADS: u32 = 16;
/// Intervals after which the daemon has asked for the nodes of all pages.
const FIRST_INTERVALS: u64 = 8;
/// Longest permitted decision.
const LIMIT_MS: f64 = 10.0;

/// Samples of an interval: half of the pages belong to one thread each, the others to all threads. One in eight samples
/// is a store.
fn batch(begin_ns: u64, random: &mut u64) -> Vec<Access> {
    let mut batch = Vec::new();
    for sample in 0..SAMPLES {
        let random = next_random(random);
        let page = (random >> 20) % PAGES;
        let thread = match page % 2 {
            0 => (page / 2) as u32 % THREADS,
            _ => (random >> 50) as u32 % THREADS,
        };
        batch.push(Access {
            time_ns: begin_ns + sample * SECOND / SAMPLES,
            thread: ThreadIndex(thread),
            cpu: CpuId(thread % 4),
            address: (1 << 30) + page * PAGE + 8,
            instruction: 0x40_0000,
            kind: match random >> 40 & 7 {
                0 => AccessKind::Store,
                _ => AccessKind::Load,
            },
            level: Level::Unknown,
            resolution: Resolution::Exact,
            skid_bytes: 0,
            weight: 1.0,
            cost_ns: 100_000.0,
            page_node: None,
        });
    }
    batch
}

struct Figures {
    deciding_ms: f64,
    longest_ms: f64,
    sample_ns: f64,
    actions: usize,
}

fn measure(name: &str, intervals: u64) -> Figures {
    let mut kernel = Clock { intervals: 1 };
    let machine = preset("opteron-4").expect("a preset");
    let mut daemon =
        Daemon::new(settings(name, PAGES as usize), &machine, kernel.now_ns()).expect("four nodes");
    let mut observer = Observer::new(100_000);
    let pid = std::process::id();
    let events: Vec<Event> = (0..THREADS)
        .map(|thread| Event::Fork {
            time_ns: 0,
            pid,
            tid: pid + thread,
            thread: ThreadIndex(thread),
            parent_pid: 1,
        })
        .collect();
    observer.events(&events).expect("taken");
    let (mut deciding, mut sample, mut actions) = (Vec::new(), Vec::new(), 0);
    let mut random = SEED;
    for interval in 1..=FIRST_INTERVALS + intervals {
        let batch = batch(kernel.now_ns(), &mut random);
        let counts: Vec<Event> = (0..THREADS)
            .map(|thread| Event::Counts {
                thread: ThreadIndex(thread),
                counts: SampleCounts {
                    samples: interval * 10_000,
                    ..SampleCounts::default()
                },
            })
            .collect();
        kernel.intervals += 1;
        let began_ns = cpu_ns();
        observer.accesses(&batch).expect("taken");
        observer.events(&counts).expect("taken");
        let report: Report = daemon
            .step(&mut observer, &mut kernel, &FreeMemory::default(), 0, None)
            .expect("no log");
        let all_ns = cpu_ns() - began_ns;
        if interval <= FIRST_INTERVALS {
            continue;
        }
        assert_eq!(report.entry.interval.observations.len(), batch.len());
        deciding.push(report.deciding_ns as f64 / 1e6);
        sample.push(all_ns as f64 / batch.len() as f64);
        actions += report.entry.actions.len();
    }
    Figures {
        longest_ms: deciding.iter().copied().fold(0.0, f64::max),
        deciding_ms: median(deciding),
        sample_ns: median(sample),
        actions: actions / intervals as usize,
    }
}

fn main() {
    let intervals = std::env::args()
        .skip(1)
        .find_map(|word| word.parse().ok())
        .unwrap_or(31);
    println!(
        "{PAGES} pages, {} samples an interval, median of {intervals}; a decision may take {LIMIT_MS} ms",
        SAMPLES
    );
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let is_asked = |name: &&str| asked.iter().any(|word| word == name);
    let all = !LivePolicy::names().iter().any(is_asked);
    for name in LivePolicy::names()
        .into_iter()
        .filter(|name| all || is_asked(name))
    {
        let Figures {
            deciding_ms,
            longest_ms,
            sample_ns,
            actions,
        } = measure(name, intervals);
        println!(
            "{name:<20} decision {deciding_ms:6.2} ms, at most {longest_ms:6.2} ms; {sample_ns:4.0} ns a sample in all; {actions} actions an interval{}",
            match deciding_ms > LIMIT_MS {
                true => "; MISSED",
                false => "",
            }
        );
    }
}
