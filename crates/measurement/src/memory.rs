//! System calls of the measurements: memory on one node, threads on one CPU.

use std::ffi::{c_long, c_ulong, c_void};
use std::io;
use std::ptr::{self, NonNull};
use std::slice;

use nearpage_machine::{CpuId, CpuList, NodeId};

/// `MPOL_BIND` of include/uapi/linux/mempolicy.h: only the given nodes. The out-of-memory killer can end a process
/// under this policy, so sizes are bounded by the free memory.
const MPOL_BIND: c_ulong = 2;
/// `MPOL_MF_MOVE` of the same header: only pages that no other process maps.
const MPOL_MF_MOVE: c_long = 2;
/// Maximum number of pages whose node is checked.
const PAGES_CHECKED: usize = 512;
/// Words of an affinity mask for all CPUs that a [`CpuId`] can name.
const CPU_MASK_WORDS: usize = 65_536 / 64;

/// Zeroed memory of one node, aligned to a huge page.
pub struct Buffer {
    mapping: NonNull<c_void>,
    mapped_bytes: usize,
    words: NonNull<u64>,
    bytes: usize,
}

impl Buffer {
    /// Allocates `bytes` (rounded down to words) on `node`, or where the kernel chooses. The kernel takes the pages
    /// when they are touched: huge pages if it has them, or small pages if `huge_page_bytes` is 0.
    pub fn new(bytes: usize, node: Option<NodeId>, huge_page_bytes: usize) -> io::Result<Self> {
        let align = huge_page_bytes.max(4096);
        let mapped_bytes = bytes + align;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapping = unsafe {
            libc::mmap(
                ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if mapping == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = NonNull::new(mapping).expect("the kernel maps nothing at address 0");
        let offset = mapping.align_offset(align);
        // SAFETY: less than `align` bytes into a mapping that has `align` to spare.
        let words = unsafe { mapping.byte_add(offset) }.cast();
        let buffer = Self {
            mapping,
            mapped_bytes,
            words,
            bytes: bytes / size_of::<u64>() * size_of::<u64>(),
        };
        if let Some(node) = node {
            let mut mask = vec![0 as c_ulong; usize::from(node.0) / 64 + 1];
            mask[usize::from(node.0) / 64] |= 1 << (node.0 % 64);
            // SAFETY: the range is the mapping of this buffer, the mask has that many bits; the
            // kernel counts one more (mbind(2), "maxnode").
            let status = unsafe {
                libc::syscall(
                    libc::SYS_mbind,
                    mapping.as_ptr(),
                    mapped_bytes,
                    MPOL_BIND,
                    mask.as_ptr(),
                    mask.len() * 64 + 1,
                    0,
                )
            };
            if status != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let advice = match huge_page_bytes {
            0 => libc::MADV_NOHUGEPAGE,
            _ => libc::MADV_HUGEPAGE,
        };
        // A kernel without transparent huge pages refuses the advice, and the buffer has small pages.
        // SAFETY: advice about the mapping of this buffer.
        unsafe { libc::madvise(mapping.as_ptr(), mapped_bytes, advice) };
        Ok(buffer)
    }

    /// The whole buffer.
    pub fn words(&self) -> &[u64] {
        // SAFETY: mapped, readable, aligned, initialised (the kernel zeroes it).
        unsafe { slice::from_raw_parts(self.words.as_ptr(), self.bytes / size_of::<u64>()) }
    }

    /// The whole buffer.
    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: mapped, writable, aligned, initialised, and borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.words.as_ptr(), self.bytes / size_of::<u64>()) }
    }

    /// Checks the node of up to 512 pages that are spread over the buffer, all of which must have been touched. Returns
    /// the number of checked pages and the number of those that are not on `node`.
    pub fn strays(&self, node: NodeId) -> io::Result<(usize, usize)> {
        let pages = (self.bytes / 4096).clamp(1, PAGES_CHECKED);
        let addresses = self.addresses(pages, self.bytes / pages / 4096 * 4096);
        let nodes = move_pages(&addresses, None)?;
        let elsewhere = |&&found: &&i32| found != i32::from(node.0);
        Ok((pages, nodes.iter().filter(elsewhere).count()))
    }

    /// Moves the buffer's pages of `page_bytes`, all of which must have been touched, to a node. Returns the number of
    /// pages that are on the node afterwards, and the number of all pages.
    pub fn move_to(&mut self, node: NodeId, page_bytes: usize) -> io::Result<(usize, usize)> {
        let pages = self.bytes / page_bytes;
        let addresses = self.addresses(pages, page_bytes);
        let targets = vec![i32::from(node.0); pages];
        let nodes = move_pages(&addresses, Some(&targets))?;
        let there = nodes.iter().zip(&targets);
        Ok((
            there.filter(|(found, target)| found == target).count(),
            pages,
        ))
    }

    fn addresses(&self, pages: usize, step: usize) -> Vec<*const c_void> {
        let address = |page: usize| self.words.as_ptr().wrapping_byte_add(page * step);
        (0..pages)
            .map(|page| address(page).cast_const().cast())
            .collect()
    }

    /// Share of the buffer that is in huge pages, from `/proc/self/smaps`.
    pub fn huge_share(&self) -> Option<f64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let start = self.words.as_ptr() as u64;
        Some(huge_bytes(&smaps, start, start + self.bytes as u64)? as f64 / self.bytes as f64)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is this buffer's, and no slice outlives it.
        unsafe { libc::munmap(self.mapping.as_ptr(), self.mapped_bytes) };
    }
}

/// Calls move_pages(2) on pages of this process, which moves the pages to `targets` if given. Returns the node, or a
/// negative error number, of each page.
fn move_pages(addresses: &[*const c_void], targets: Option<&[i32]>) -> io::Result<Vec<i32>> {
    let mut nodes = vec![-1i32; addresses.len()];
    let targets = targets.map_or(ptr::null(), |targets| {
        assert_eq!(targets.len(), addresses.len());
        targets.as_ptr()
    });
    // SAFETY: the kernel reads one address and, if given, one target per page, and writes as many words of `nodes`;
    // contents of pages do not change.
    let status = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0 as c_long,
            addresses.len(),
            addresses.as_ptr(),
            targets,
            nodes.as_mut_ptr(),
            MPOL_MF_MOVE,
        )
    };
    // A positive status is the number of pages that were not moved.
    match status {
        0.. => Ok(nodes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sum of `AnonHugePages` of the mappings that overlap `start..end`.
fn huge_bytes(smaps: &str, start: u64, end: u64) -> Option<u64> {
    let mut inside = false;
    let mut total = None;
    for line in smaps.lines() {
        let range = line.split(' ').next().and_then(|word| word.split_once('-'));
        if let Some((low, high)) = range
            && let (Ok(low), Ok(high)) =
                (u64::from_str_radix(low, 16), u64::from_str_radix(high, 16))
        {
            inside = low < end && start < high;
        } else if inside && let Some(rest) = line.strip_prefix("AnonHugePages:") {
            let kibibytes: u64 = rest.trim().strip_suffix(" kB")?.parse().ok()?;
            *total.get_or_insert(0) += kibibytes * 1024;
        }
    }
    total
}

/// Binds the calling thread to one CPU.
pub fn pin(cpu: CpuId) -> io::Result<()> {
    let mut mask = vec![0u64; CPU_MASK_WORDS];
    mask[cpu.0 as usize / 64] |= 1 << (cpu.0 % 64);
    // SAFETY: the kernel reads `CPU_MASK_WORDS` words of the mask.
    let status = unsafe { libc::sched_setaffinity(0, CPU_MASK_WORDS * 8, mask.as_ptr().cast()) };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The CPUs that the calling thread may run on.
pub fn allowed_cpus() -> io::Result<CpuList> {
    let mut mask = vec![0u64; CPU_MASK_WORDS];
    // SAFETY: the kernel writes at most `CPU_MASK_WORDS` words to the mask.
    let status =
        unsafe { libc::sched_getaffinity(0, CPU_MASK_WORDS * 8, mask.as_mut_ptr().cast()) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((0..65_536u32)
        .filter(|cpu| mask[*cpu as usize / 64] >> (cpu % 64) & 1 == 1)
        .map(CpuId)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_and_aligned() {
        let mut buffer = Buffer::new((5 << 20) + 3, None, 2 << 20).expect("memory");
        assert_eq!(buffer.words().len(), (5 << 20) / 8);
        assert!(buffer.words().iter().all(|&word| word == 0));
        assert_eq!(buffer.words().as_ptr() as usize % (2 << 20), 0);
        buffer.words_mut().fill(7);
        assert!(buffer.words().iter().all(|&word| word == 7));
    }

    #[test]
    fn huge_pages_are_those_of_the_range() {
        let smaps = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
AnonHugePages:      2048 kB
7f0000400000-7f0000800000 rw-p 00000000 00:00 0          [heap]
AnonHugePages:      4096 kB
";
        let bytes = |start, end| huge_bytes(smaps, start, end);
        assert_eq!(bytes(0x7f00_0000_0000, 0x7f00_0000_0001), Some(2 << 20));
        assert_eq!(bytes(0x7f00_003f_ffff, 0x7f00_0040_0001), Some(6 << 20));
        assert_eq!(bytes(0x7f00_0080_0000, 0x7f00_0090_0000), None);
    }

    #[test]
    fn this_thread_may_run_somewhere() {
        let before = allowed_cpus().expect("mask");
        let cpu = before.as_slice()[0];
        std::thread::spawn(move || {
            pin(cpu).expect("allowed");
            assert_eq!(allowed_cpus().expect("mask").as_slice(), [cpu]);
        })
        .join()
        .expect("pinned");
        assert_eq!(allowed_cpus().expect("mask"), before);
    }
}
