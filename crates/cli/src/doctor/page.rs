//! Memory-policy calls on one anonymous page.

use std::io;

pub const MPOL_WEIGHTED_INTERLEAVE: i32 = 6;
const BYTES: usize = 4096;

/// Runs `act` on a fresh page.
fn with_page<T>(act: impl FnOnce(*mut libc::c_void) -> io::Result<T>) -> io::Result<T> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping wherever the kernel likes.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let result = act(address);
    // SAFETY: unmaps what was just mapped.
    unsafe { libc::munmap(address, BYTES) };
    result
}

pub fn bind(mode: i32) -> io::Result<()> {
    with_page(|address| {
        let nodes: u64 = 1;
        // SAFETY: the mask outlives the call; the page is ours.
        let status = unsafe { libc::syscall(libc::SYS_mbind, address, BYTES, mode, &nodes, 64, 0) };
        if status == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    })
}

pub fn query_node() -> io::Result<i32> {
    with_page(|address| {
        // SAFETY: the page is mapped and ours; a store gives it memory.
        unsafe { address.cast::<u8>().write_volatile(1) };
        let mut node: i32 = -1;
        // SAFETY: one page, one status, no target nodes: a query.
        let status = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                0,
                1,
                &address,
                std::ptr::null::<i32>(),
                &mut node,
                0,
            )
        };
        if status == 0 && node >= 0 {
            Ok(node)
        } else {
            Err(io::Error::last_os_error())
        }
    })
}
