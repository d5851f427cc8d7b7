//! System calls about mappings and the nodes of their pages.

use super::{Errno, call, number};

/// `PROT_NONE`.
pub const PROT_NONE: usize = 0;
/// `PROT_READ`.
pub const PROT_READ: usize = 1;
/// `PROT_WRITE`.
pub const PROT_WRITE: usize = 2;
/// `PROT_EXEC`.
pub const PROT_EXEC: usize = 4;
/// `MAP_FIXED`.
pub const MAP_FIXED: usize = 0x10;
/// `MAP_SHARED`.
pub const MAP_SHARED: usize = 1;
/// `MAP_PRIVATE`.
pub const MAP_PRIVATE: usize = 2;
/// `MAP_ANONYMOUS`.
pub const MAP_ANONYMOUS: usize = 0x20;
/// `MAP_NORESERVE`.
pub const MAP_NORESERVE: usize = 0x4000;

/// Maps `length` bytes; `fd` is `None` for anonymous memory.
pub fn mmap(
    length: usize,
    protection: usize,
    flags: usize,
    fd: Option<usize>,
    offset: usize,
) -> Result<usize, Errno> {
    let fd = fd.unwrap_or(usize::MAX);
    // SAFETY: without MAP_FIXED (no caller passes it) a new mapping touches no existing memory.
    unsafe { call(number::MMAP, [0, length, protection, flags, fd, offset]) }
}

/// Maps zeroed private memory that looks like the program's, without reserving swap space.
pub fn map_anonymous(length: usize) -> Result<usize, Errno> {
    anonymous(length, PROT_READ | PROT_WRITE)
}

/// Maps zeroed private memory for this library, without reserving swap space. It has `PROT_WRITE` without `PROT_READ`; on
/// the supported processors it can be read all the same. So the kernel never merges it with mappings of the program, and
/// readers of the list of mappings can tell it apart ([`nearpage_wire::is_own_memory`]).
pub fn reserve(length: usize) -> Result<usize, Errno> {
    anonymous(length, PROT_WRITE)
}

fn anonymous(length: usize, protection: usize) -> Result<usize, Errno> {
    mmap(
        length,
        protection,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        None,
        0,
    )
}

/// Gives memory of [`reserve`] the program's usual protection.
///
/// # Safety
/// The range is whole pages of such memory.
pub unsafe fn make_readable(address: usize, length: usize) -> Result<usize, Errno> {
    let protection = PROT_READ | PROT_WRITE;
    // SAFETY: the caller's promise; more may be done with it than before.
    unsafe { call(number::MPROTECT, [address, length, protection, 0, 0, 0]) }
}

/// Unmaps memory.
///
/// # Safety
/// Nothing may use the memory any more.
pub unsafe fn munmap(address: usize, length: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { call(number::MUNMAP, [address, length, 0, 0, 0, 0]) }
}

/// Advises the kernel about memory.
///
/// # Safety
/// The advice must not destroy data that someone uses.
pub unsafe fn madvise(address: usize, length: usize, advice: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { call(number::MADVISE, [address, length, advice, 0, 0, 0]) }
}

/// Changes the protection of mapped memory.
///
/// # Safety
/// The range is this library's, and nothing needs the protection that it had.
pub unsafe fn mprotect(address: usize, length: usize, protection: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { call(number::MPROTECT, [address, length, protection, 0, 0, 0]) }
}

/// Which pages of a page-aligned range are in memory: bit 0 of one byte per page.
pub fn mincore(
    address: usize,
    length: usize,
    present: &mut [u8],
    page_bytes: usize,
) -> Result<usize, Errno> {
    let length = length.min(present.len() * page_bytes);
    // SAFETY: the kernel writes one byte per page of the range, no more than `present` has.
    unsafe {
        call(
            number::MINCORE,
            [address, length, present.as_mut_ptr() as usize, 0, 0, 0],
        )
    }
}

/// Sets the memory policy of a range. `node_mask` is bit n of word n / 64; may be empty.
pub fn mbind(
    address: usize,
    length: usize,
    mode: usize,
    node_mask: &[u64],
    flags: usize,
) -> Result<usize, Errno> {
    // The kernel looks at maxnode − 1 bits, and takes 0 for very many.
    let maxnode = node_mask.len() * 64 + 1;
    // SAFETY: a policy changes where pages live, never what they hold; the mask is readable.
    unsafe {
        call(
            number::MBIND,
            [
                address,
                length,
                mode,
                node_mask.as_ptr() as usize,
                maxnode,
                flags,
            ],
        )
    }
}

/// Sets the memory policy of the calling thread. `node_mask` as for [`mbind`].
pub fn set_mempolicy(mode: usize, node_mask: &[u64]) -> Result<usize, Errno> {
    let maxnode = node_mask.len() * 64 + 1;
    // SAFETY: a policy changes where pages come from, never what they hold; the mask is readable.
    unsafe {
        call(
            number::SET_MEMPOLICY,
            [mode, node_mask.as_ptr() as usize, maxnode, 0, 0, 0],
        )
    }
}

/// Asks for a memory policy, which one by `flags`. Returns the mode, and writes the nodes into `node_mask`, which must have
/// a bit for every node that the kernel supports.
pub fn get_mempolicy(node_mask: &mut [u64], address: usize, flags: usize) -> Result<u32, Errno> {
    let mut mode = 0u32;
    // SAFETY: the kernel writes one number, and as many bits as the mask has.
    unsafe {
        call(
            number::GET_MEMPOLICY,
            [
                &raw mut mode as usize,
                node_mask.as_mut_ptr() as usize,
                node_mask.len() * 64,
                address,
                flags,
                0,
            ],
        )
    }?;
    Ok(mode)
}

/// Moves pages of this process to `nodes`, or, with `nodes` empty, asks where they are. One entry
/// per page in each slice; `status` gets the node or a negative error number.
pub fn move_pages(
    pages: &[usize],
    nodes: &[i32],
    status: &mut [i32],
    flags: usize,
) -> Result<usize, Errno> {
    let count = pages.len().min(status.len());
    let count = if nodes.is_empty() {
        count
    } else {
        count.min(nodes.len())
    };
    let nodes = if nodes.is_empty() {
        0
    } else {
        nodes.as_ptr() as usize
    };
    // SAFETY: each slice holds `count` entries; the addresses themselves may be anything.
    unsafe {
        call(
            number::MOVE_PAGES,
            [
                0,
                count,
                pages.as_ptr() as usize,
                nodes,
                status.as_mut_ptr() as usize,
                flags,
            ],
        )
    }
}
