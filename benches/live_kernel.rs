//! Common part of the daemon's benchmarks: a stand-in for the kernel in which nothing moves and time is the thread's
//! CPU time, settings of the daemon, and random numbers.

use std::io;

use nearpage_live::{Estimate, GuardThresholds, Kernel, Limits, LivePolicy, Settings};
use nearpage_machine::NodeId;

pub const PAGE: u64 = 4096;
pub const SECOND: u64 = 1_000_000_000;

/// A clock that shows the thread's CPU time, plus a second for each interval.
pub struct Clock {
    pub intervals: u64,
}

impl Kernel for Clock {
    fn now_ns(&mut self) -> u64 {
        self.intervals * SECOND + cpu_ns()
    }

    fn sleep_ns(&mut self, _: u64) {}

    fn started(&mut self, pid: u32) -> Option<u64> {
        Some(u64::from(pid))
    }

    fn page_nodes(&mut self, _: u32, pages: &[u64], nodes: &mut [i32]) -> io::Result<()> {
        for (page, node) in pages.iter().zip(nodes) {
            *node = (page / PAGE % 4) as i32;
        }
        Ok(())
    }

    fn move_pages(&mut self, _: u32, _: &[u64], _: &[NodeId], _: &mut [i32]) -> io::Result<()> {
        Ok(())
    }
}

/// Settings of a daemon with the named policy.
pub fn settings(policy: &str, pages: usize) -> Settings {
    Settings {
        policy: LivePolicy::from_name(policy).expect("a policy of that name"),
        pages,
        limits: Limits {
            stall_ns: 20_000_000,
            bytes_per_second: 1 << 30,
        },
        guard_thresholds: GuardThresholds::default(),
        dry_run: true,
        moves_threads: false,
        seed: 1,
        page_bytes: PAGE,
        estimate: Estimate::TimeLost { latency_ns: 100.0 },
        clock_mhz: 2000,
        source: "clock".to_owned(),
    }
}

/// Initial state of the random numbers.
pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next number of Marsaglia's xorshift.
pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// CPU time of this thread.
pub fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// The median; of an even number of values, the upper of the two middle ones.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
