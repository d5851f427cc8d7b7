//! Segments that are made before the process gives up the right, or the path, by which it could make more: servers that
//! root starts change to a user of their own, or to another root folder.
//!
//! The files are sparse, so that they take no space before they are used, and their mappings are inaccessible, so that
//! `mlockall` does not fill them. A store to a hole of a full disk would end the program. So each block is populated
//! when it is claimed, and the kernel then says that there is no space (`MADV_POPULATE_WRITE`, Linux 5.14; older kernels
//! get no reserve).

use nearpage_wire::allocation_log::{BLOCK_BYTES, SEGMENT_HEADER_BYTES};

use super::{LARGEST_SEGMENT_BLOCKS, Segments};
use crate::sys::{self, Errno};

/// Number of segments: 256 MiB of the log.
const SEGMENTS: usize = 8;
/// Bytes of a segment.
pub(super) const SEGMENT_BYTES: usize = SEGMENT_HEADER_BYTES + LARGEST_SEGMENT_BLOCKS * BLOCK_BYTES;
/// `MADV_POPULATE_WRITE`.
const ADVICE_POPULATE_WRITE: usize = 23;

/// Mapped segments that are not used yet; 0 for none.
pub(super) struct Reserve([usize; SEGMENTS]);

impl Reserve {
    pub const fn none() -> Self {
        Self([0; SEGMENTS])
    }

    /// Takes a segment. It becomes accessible, and its header's page present.
    pub fn take(&mut self) -> Option<Result<usize, Errno>> {
        let start = core::mem::take(self.0.iter_mut().find(|start| **start != 0)?);
        // SAFETY: a segment that nothing uses yet.
        let opened =
            unsafe { sys::mprotect(start, SEGMENT_BYTES, sys::PROT_READ | sys::PROT_WRITE) };
        Some(opened.and_then(|_| populate(start, SEGMENT_HEADER_BYTES).map(|()| start)))
    }
}

impl Segments {
    /// Makes segments for later, unless there are some, or they could harm.
    pub(super) fn reserve(&mut self) -> Result<(), Errno> {
        if self.reserve.0.iter().any(|start| *start != 0) {
            return Ok(());
        }
        // The program may need all of its address space.
        if sys::resource_limit(sys::RESOURCE_ADDRESS_SPACE)? != u64::MAX {
            return Ok(());
        }
        if self.segment == 0 {
            // Tells whether there is room, and has the header whose marks the recorder reads.
            let _ = self.next_segment();
        }
        // A segment's header is present, so this does nothing but ask whether the kernel knows the advice.
        if self.segment == 0 || populate(self.segment, SEGMENT_HEADER_BYTES).is_err() {
            return Ok(());
        }
        for place in 0..SEGMENTS {
            let sequence = self.sequence + place as u32;
            self.reserve.0[place] = self.make(sequence, SEGMENT_BYTES, |fd| {
                sys::ftruncate(fd, SEGMENT_BYTES)?;
                sys::mmap(SEGMENT_BYTES, sys::PROT_NONE, sys::MAP_SHARED, Some(fd), 0)
            })?;
        }
        Ok(())
    }
}

/// Makes pages of a reserved segment present, with space on disk.
pub(super) fn populate(start: usize, bytes: usize) -> Result<(), Errno> {
    const EFAULT: Errno = Errno(14);
    const ENOSPC: Errno = Errno(28);
    // SAFETY: accessible memory of a segment, whose content stays.
    match unsafe { sys::madvise(start, bytes, ADVICE_POPULATE_WRITE) } {
        // A store would be a SIGBUS.
        Err(EFAULT) => Err(ENOSPC),
        populated => populated.map(|_| ()),
    }
}
