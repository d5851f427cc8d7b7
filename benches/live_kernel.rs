//! The kernel of the daemon's benchmarks: nothing moves, and time is the thread's own.

use std::io;

use nearpage_live::Kernel;
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
