//! What the daemon asks of the kernel, behind a trait, so that tests have a kernel of their own.

use std::io;

use nearpage_machine::NodeId;

/// Moves pages and tells the time.
pub trait Kernel {
    /// CLOCK_MONOTONIC.
    fn now_ns(&mut self) -> u64;

    /// Waits.
    fn sleep_ns(&mut self, ns: u64);

    /// When a process began, in whatever unit: a process number that is used again is another
    /// process. `None`: there is no such process.
    fn started(&mut self, pid: u32) -> Option<u64>;

    /// `move_pages(2)`: moves pages of a process, each to its node; one status a page, a node or
    /// the negative of an `errno`.
    ///
    /// # Errors
    /// What the call as a whole was refused for.
    fn move_pages(
        &mut self,
        pid: u32,
        pages: &[u64],
        nodes: &[NodeId],
        status: &mut [i32],
    ) -> io::Result<()>;
}

/// The kernel that runs.
#[derive(Debug, Default)]
pub struct Linux;

impl Kernel for Linux {
    fn now_ns(&mut self) -> u64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    fn sleep_ns(&mut self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }

    fn started(&mut self, pid: u32) -> Option<u64> {
        let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        started(&text)
    }

    fn move_pages(
        &mut self,
        pid: u32,
        pages: &[u64],
        nodes: &[NodeId],
        status: &mut [i32],
    ) -> io::Result<()> {
        assert!(pages.len() == nodes.len() && pages.len() == status.len());
        let nodes: Vec<libc::c_int> = nodes.iter().map(|node| node.0.into()).collect();
        const MPOL_MF_MOVE: libc::c_int = 1 << 1;
        // SAFETY: the three arrays have as many elements as the count says and outlive the call,
        // which writes to `status` alone. What moves is another process's memory, whose contents
        // stay what they are.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                pid as libc::pid_t,
                pages.len(),
                pages.as_ptr(),
                nodes.as_ptr(),
                status.as_mut_ptr(),
                MPOL_MF_MOVE,
            )
        };
        // Above 0: so many pages were not moved, as their status says.
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Field 22 of `/proc/PID/stat`, in clock ticks since the system started. The name in it may contain
/// anything, so fields count from its closing parenthesis.
fn started(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let text = std::str::from_utf8(&stat[after_name..]).ok()?;
    text.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_contain_anything() {
        let stat = b"12 (a ) (b) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9 9";
        assert_eq!(started(stat), Some(777));
        assert_eq!(started(b"12 (cut"), None);
    }

    #[test]
    fn a_page_of_ours_is_moved_to_where_it_is() {
        let mut kernel = Linux;
        let page = vec![1u8; 3 * 4096];
        let address = (page.as_ptr() as u64 + 4095) & !4095;
        let own = std::process::id();
        let mut status = [0];
        match kernel.move_pages(own, &[address], &[NodeId(0)], &mut status) {
            Ok(()) => assert_eq!(status, [0]),
            // A kernel without memory nodes, or a container that may not.
            Err(error) => assert!(
                matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)),
                "{error}"
            ),
        }
        assert!(kernel.started(own).is_some());
        assert_eq!(kernel.started(u32::MAX / 2), None);
    }
}
