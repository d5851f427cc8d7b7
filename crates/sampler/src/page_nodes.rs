//! Asks the kernel on which node pages are.

use std::io;
use std::path::Path;

use nearpage_files::living_thread;
use nearpage_machine::NodeId;
use nearpage_recording::{Access, ThreadIndex};
use rustc_hash::FxHashMap;

/// Largest number of pages per query. Later accesses of a round have no node.
const PAGES_MAX: usize = 8192;

/// Fills in `page_node` as far as the kernel knows the node. `pid` returns the process of a thread.
pub(crate) fn look_up(
    accesses: &mut [Access],
    pid: impl Fn(ThreadIndex) -> u32,
    page_bytes: usize,
) {
    let page = |address: u64| address & !(page_bytes as u64 - 1);
    let mut by_process: FxHashMap<u32, FxHashMap<u64, Option<NodeId>>> = FxHashMap::default();
    let mut pages = 0;
    for access in accesses.iter() {
        if pages == PAGES_MAX {
            break;
        }
        let known = by_process.entry(pid(access.thread)).or_default();
        pages += usize::from(known.insert(page(access.address), None).is_none());
    }
    for (pid, nodes) in &mut by_process {
        let addresses: Vec<u64> = nodes.keys().copied().collect();
        for (address, node) in addresses.iter().zip(nodes_of(*pid, &addresses)) {
            nodes.insert(*address, node);
        }
    }
    for access in accesses {
        let nodes = by_process.get(&pid(access.thread));
        access.page_node =
            nodes.and_then(|nodes| nodes.get(&page(access.address)).copied().flatten());
    }
}

/// Nodes of a process's pages; none for pages that do not exist or may not be queried.
fn nodes_of(pid: u32, pages: &[u64]) -> Vec<Option<NodeId>> {
    let mut status = vec![-1i32; pages.len()];
    if page_nodes(pid, pages, &mut status).is_err() {
        return vec![None; pages.len()];
    }
    status
        .into_iter()
        .map(|node| u16::try_from(node).ok().map(NodeId))
        .collect()
}

/// `move_pages(2)` without target nodes: queries the node of each page of a process. Each status is a node, or the
/// negative of an `errno`.
///
/// # Errors
/// The error of the call: no such process, or no permission.
pub fn page_nodes(pid: u32, pages: &[u64], status: &mut [i32]) -> io::Result<()> {
    call_move_pages(pid, pages, None, status)
}

/// `move_pages(2)`: moves pages that the process alone has mapped, each to its node. Each status is a node, or the
/// negative of an `errno`.
///
/// # Errors
/// The error of the call as a whole.
pub fn move_pages(pid: u32, pages: &[u64], nodes: &[NodeId], status: &mut [i32]) -> io::Result<()> {
    let nodes: Vec<libc::c_int> = nodes.iter().map(|node| node.0.into()).collect();
    call_move_pages(pid, pages, Some(&nodes), status)
}

/// Makes a system call that reaches a process's memory through a thread: the main thread, or another live thread if
/// the main thread has ended.
///
/// # Errors
/// The error of the call.
pub(crate) fn with_memory<T>(
    pid: u32,
    mut call: impl FnMut(u32) -> io::Result<T>,
) -> io::Result<T> {
    call(pid).or_else(|error| {
        if !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ESRCH)) {
            return Err(error);
        }
        match living_thread(Path::new("/proc"), pid) {
            Some(thread) if thread != pid => call(thread),
            _ => Err(error),
        }
    })
}

fn call_move_pages(
    pid: u32,
    pages: &[u64],
    nodes: Option<&[libc::c_int]>,
    status: &mut [i32],
) -> io::Result<()> {
    const MPOL_MF_MOVE: libc::c_int = 1 << 1;
    assert_eq!(pages.len(), status.len());
    assert!(nodes.is_none_or(|nodes| nodes.len() == pages.len()));
    with_memory(pid, |thread| {
        // SAFETY: the arrays have as many elements as the count says and outlive the call, which writes to `status`
        // alone. Without target nodes, no page moves. With target nodes, pages of another process move, with unchanged
        // contents.
        let result = unsafe {
            libc::syscall(
                libc::SYS_move_pages,
                thread as libc::pid_t,
                pages.len(),
                pages.as_ptr(),
                nodes.map_or(std::ptr::null(), <[libc::c_int]>::as_ptr),
                status.as_mut_ptr(),
                nodes.map_or(0, |_| MPOL_MF_MOVE),
            )
        };
        // A positive result is the number of pages that were not moved, as their status says.
        match result < 0 {
            true => Err(io::Error::last_os_error()),
            false => Ok(()),
        }
    })
}
