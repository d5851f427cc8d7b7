//! The memory that the kernel writes an event's records to.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::perf_event::PerfEvent;

/// Where `data_head` and `data_tail` are in the control page (`struct perf_event_mmap_page`).
const HEAD_OFFSET: usize = 1024;
const TAIL_OFFSET: usize = 1032;

/// A mapped ring: one control page, then `data_bytes` (a power of two) of records.
#[derive(Debug)]
pub(crate) struct Ring {
    map: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
}

impl Ring {
    /// Maps the ring of `event`.
    pub fn map(event: &PerfEvent, page_bytes: usize, data_bytes: usize) -> io::Result<Self> {
        debug_assert!(data_bytes.is_power_of_two() && data_bytes >= page_bytes);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing of ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                page_bytes + data_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.raw(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self {
            map,
            page_bytes,
            data_bytes,
        })
    }

    /// Appends all records written so far to `out` and gives their space back to the kernel.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        let tail = self.position(TAIL_OFFSET).load(Ordering::Relaxed);
        // Pairs with the kernel's barrier between writing records and moving the head.
        let head = self.position(HEAD_OFFSET).load(Ordering::Acquire);
        let length = (head.wrapping_sub(tail) as usize).min(self.data_bytes);
        let begin = tail as usize & (self.data_bytes - 1);
        let first = length.min(self.data_bytes - begin);
        out.extend_from_slice(self.data(begin, first));
        out.extend_from_slice(self.data(0, length - first));
        self.position(TAIL_OFFSET).store(head, Ordering::Release);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as `self` lives, the offset is in it and
        // aligned; both sides use whole-word atomic accesses.
        unsafe { &*self.map.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    fn data(&self, begin: usize, length: usize) -> &[u8] {
        debug_assert!(begin + length <= self.data_bytes);
        // SAFETY: in the mapping; the kernel does not write between tail and head.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(self.page_bytes + begin), length)
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and no slice outlives `drain`.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.page_bytes + self.data_bytes) };
    }
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Ring {}
