//! The daemon's interface to the kernel, a trait that tests implement themselves.

use std::io;
use std::path::Path;

use nearpage_machine::{CpuList, NodeId};

use crate::address_space::{AddressSpace, RespectedPolicies};

/// Kernel functions that the daemon uses.
pub trait Kernel {
    /// Time of CLOCK_MONOTONIC in nanoseconds.
    fn now_ns(&mut self) -> u64;

    /// Sleeps for a time in nanoseconds.
    fn sleep_ns(&mut self, ns: u64);

    /// Start time of a process in an arbitrary unit, which distinguishes processes with a reused number. `None`: there
    /// is no such process.
    fn started(&mut self, pid: u32) -> Option<u64>;

    /// Restrictions of a process's memory; the default implementation has none.
    fn address_space(&mut self, _pid: u32) -> AddressSpace {
        AddressSpace::default()
    }

    /// CPUs that a thread of a process may run on; `None`: there is no such thread.
    fn affinity(&mut self, _pid: u32, _tid: u32) -> Option<CpuList> {
        None
    }

    /// `sched_setaffinity(2)`; `false`: refused.
    fn set_affinity(&mut self, _pid: u32, _tid: u32, _cpus: &CpuList) -> bool {
        false
    }

    /// `move_pages(2)` without nodes: returns a node or a negative `errno` for each page of a process.
    ///
    /// # Errors
    /// The error of the call as a whole.
    fn page_nodes(&mut self, _pid: u32, _pages: &[u64], _nodes: &mut [i32]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// `move_pages(2)`: moves pages of a process, each to its node. The status of each page is a node or a negative `errno`.
    ///
    /// # Errors
    /// The error of the call as a whole.
    fn move_pages(
        &mut self,
        pid: u32,
        pages: &[u64],
        nodes: &[NodeId],
        status: &mut [i32],
    ) -> io::Result<()>;
}

/// The running Linux kernel.
#[derive(Debug)]
pub struct Linux {
    huge_page_bytes: u64,
    respected: RespectedPolicies,
}

/// Size of a huge page on x86-64, and elsewhere with pages of 4 KiB.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

impl Default for Linux {
    fn default() -> Self {
        let path = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let size = text.trim().parse().ok().filter(|&bytes| bytes > 0);
        Self {
            huge_page_bytes: size.unwrap_or(HUGE_PAGE_BYTES),
            respected: RespectedPolicies::default(),
        }
    }
}

impl Linux {
    /// A kernel for programs whose pages stay under these policies.
    pub fn respecting(respected: RespectedPolicies) -> Self {
        Self {
            respected,
            ..Self::default()
        }
    }
}

impl Kernel for Linux {
    fn now_ns(&mut self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the call writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn sleep_ns(&mut self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }

    fn started(&mut self, pid: u32) -> Option<u64> {
        nearpage_sampler::process_started(pid)
    }

    fn address_space(&mut self, pid: u32) -> AddressSpace {
        AddressSpace::read(
            Path::new("/proc"),
            pid,
            self.huge_page_bytes,
            self.respected,
        )
    }

    fn affinity(&mut self, pid: u32, tid: u32) -> Option<CpuList> {
        // The thread's name may contain any bytes.
        let status = std::fs::read(format!("/proc/{pid}/task/{tid}/status")).ok()?;
        let status = String::from_utf8_lossy(&status);
        let mut lines = status.lines();
        let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        list.trim().parse().ok()
    }

    fn set_affinity(&mut self, pid: u32, tid: u32, cpus: &CpuList) -> bool {
        // The thread id may have been reused by another process.
        if !Path::new(&format!("/proc/{pid}/task/{tid}")).exists() {
            return false;
        }
        const BITS: usize = u64::BITS as usize;
        let last = cpus.as_slice().last().map_or(0, |cpu| cpu.0 as usize);
        let mut mask = vec![0u64; last / BITS + 1];
        for cpu in cpus.as_slice() {
            mask[cpu.0 as usize / BITS] |= 1 << (cpu.0 as usize % BITS);
        }
        // SAFETY: the call reads only the bytes of the mask.
        let result = unsafe {
            libc::sched_setaffinity(
                tid as libc::pid_t,
                size_of_val(mask.as_slice()),
                mask.as_ptr().cast(),
            )
        };
        result == 0
    }

    fn page_nodes(&mut self, pid: u32, pages: &[u64], nodes: &mut [i32]) -> io::Result<()> {
        nearpage_sampler::page_nodes(pid, pages, nodes)
    }

    fn move_pages(
        &mut self,
        pid: u32,
        pages: &[u64],
        nodes: &[NodeId],
        status: &mut [i32],
    ) -> io::Result<()> {
        nearpage_sampler::move_pages(pid, pages, nodes, status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_and_a_thread_of_ours_stay_where_they_are() {
        let mut kernel = Linux::default();
        let page = vec![1u8; 3 * 4096];
        let address = (page.as_ptr() as u64 + 4095) & !4095;
        let own = std::process::id();
        let mut status = [0];
        match kernel.move_pages(own, &[address], &[NodeId(0)], &mut status) {
            Ok(()) => assert_eq!(status, [0]),
            // A kernel without NUMA, or a container without the permission.
            Err(error) => assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
                "{error}"
            ),
        }
        let mut node = [-1];
        if kernel.page_nodes(own, &[address], &mut node).is_ok() {
            assert_eq!(node, [0]);
        }
        let affinity = kernel.affinity(own, own).expect("the first thread");
        assert!(kernel.set_affinity(own, own, &affinity));
        assert_eq!(kernel.affinity(own, own), Some(affinity));
        assert_eq!(kernel.affinity(own, u32::MAX / 2), None);
        assert!(kernel.started(own).is_some());
        assert_eq!(kernel.started(u32::MAX / 2), None);
    }
}
