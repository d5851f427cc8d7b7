//! What the daemon's benchmarks share: a kernel where nothing moves and time is the thread's own, the
//! daemon's settings, numbers at random.

use std::io;

use nearpage_live::{Estimate, GuardThresholds, Kernel, Limits, LivePolicy, Settings};
use nearpage_machine::NodeId;

pub const PAGE: u64 = 4096;
pub const SECOND: u64 = 1_000_000_000;

/// Time is the thread's own, and a second more each interval.
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

/// A daemon that decides by the policy of that name.
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

/// Where random numbers begin.
pub const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The next of Marsaglia's xorshift.
pub fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// CPU time of the thread.
pub fn cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

/// The upper one of two.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
