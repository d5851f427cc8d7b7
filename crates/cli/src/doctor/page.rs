//! Memory-policy calls on one anonymous page.

use std::io;

pub const MPOL_WEIGHTED_INTERLEAVE: i32 = 6;
const BYTES: usize = 4096;

/// Runs `act` on a fresh page.
fn with_page<T>(act: impl FnOnce(*mut libc::c_void) -> io::Result<T>) -> io::Result<T> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: maps new memory at an address that the kernel chooses; no existing mapping is touched.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let result = act(address);
    // SAFETY: unmaps the page that was mapped above; no reference to the page is left.
    unsafe { libc::munmap(address, BYTES) };
    result
}

pub fn bind(mode: i32) -> io::Result<()> {
    with_page(|address| {
        let nodes: u64 = 1;
        // SAFETY: the mask outlives the call; the page belongs to this call.
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
        // SAFETY: the page is mapped, writable and used by this call alone. The store makes the kernel allocate memory.
        unsafe { address.cast::<u8>().write_volatile(1) };
        let mut node: i32 = -1;
        // SAFETY: one page and one status, both of which outlive the call; without target nodes the call is a query.
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
