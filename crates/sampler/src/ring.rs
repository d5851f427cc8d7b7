//! The memory into which the kernel writes an event's records.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nearpage_perf_abi::control_page;

use crate::merge::UnreadRecords;
use crate::perf_event::PerfEvent;

/// A mapped ring: one control page, then `data_bytes` (a power of two) of records.
#[derive(Debug)]
pub(crate) struct Ring {
    map: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
    aux: Option<Aux>,
}

/// The AUX area, into which hardware writes beside the ring.
#[derive(Debug)]
struct Aux {
    map: NonNull<u8>,
    /// Size, a power of two.
    bytes: usize,
}

impl Ring {
    /// Maps the ring of `event`.
    pub fn map(event: &PerfEvent, page_bytes: usize, data_bytes: usize) -> io::Result<Self> {
        debug_assert!(data_bytes.is_power_of_two() && data_bytes >= page_bytes);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of ours.
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
            aux: None,
        })
    }

    /// Also maps an AUX area of `bytes` bytes, a power of two and at least two pages. `event` must be the ring's.
    pub fn map_aux(&mut self, event: &PerfEvent, bytes: usize) -> io::Result<()> {
        debug_assert!(bytes.is_power_of_two() && bytes >= 2 * self.page_bytes);
        let begin = (self.page_bytes + self.data_bytes).next_multiple_of(bytes);
        self.position(control_page::AUX_OFFSET)
            .store(begin as u64, Ordering::Relaxed);
        self.position(control_page::AUX_SIZE)
            .store(bytes as u64, Ordering::Release);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.raw(),
                begin as libc::off_t,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        self.aux = Some(Aux { map, bytes });
        Ok(())
    }

    /// Appends `length` bytes of the AUX area from `offset` to `out`, with the offsets of PERF_RECORD_AUX. Reads at
    /// most the area's size, and nothing without an area.
    pub fn read_aux(&self, offset: u64, length: u64, out: &mut Vec<u8>) {
        let Some(aux) = &self.aux else { return };
        // Pairs with the kernel's barrier between the data and the head.
        let _ = self
            .position(control_page::AUX_HEAD)
            .load(Ordering::Acquire);
        let length = length.min(aux.bytes as u64) as usize;
        let begin = offset as usize & (aux.bytes - 1);
        let first = length.min(aux.bytes - begin);
        for (begin, length) in [(begin, first), (0, length - first)] {
            // SAFETY: the range is in the mapping, and the hardware writes only to space that the tail has released.
            out.extend_from_slice(unsafe {
                std::slice::from_raw_parts(aux.map.as_ptr().add(begin), length)
            });
        }
    }

    /// Returns the AUX area up to `offset` to the hardware.
    pub fn release_aux(&self, offset: u64) {
        if self.aux.is_some() {
            self.position(control_page::AUX_TAIL)
                .store(offset, Ordering::Release);
        }
    }

    /// Number of bytes that the kernel has written so far.
    pub fn written(&self) -> u64 {
        self.position(control_page::DATA_HEAD)
            .load(Ordering::Relaxed)
    }

    /// All records that were written and not given back.
    pub fn unread(&self) -> UnreadRecords<'_> {
        let tail = self
            .position(control_page::DATA_TAIL)
            .load(Ordering::Relaxed);
        // Pairs with the kernel's barrier between writing records and moving the head.
        let head = self
            .position(control_page::DATA_HEAD)
            .load(Ordering::Acquire);
        let length = (head.wrapping_sub(tail) as usize).min(self.data_bytes);
        let begin = tail as usize & (self.data_bytes - 1);
        let first = length.min(self.data_bytes - begin);
        UnreadRecords::new([self.data(begin, first), self.data(0, length - first)])
    }

    /// Returns the space of the first `bytes` unread bytes to the kernel.
    pub fn give_back(&mut self, bytes: usize) {
        let tail = self.position(control_page::DATA_TAIL);
        let passed = tail.load(Ordering::Relaxed).wrapping_add(bytes as u64);
        tail.store(passed, Ordering::Release);
    }

    /// Appends all unread records to `out`, and returns their space to the kernel.
    pub fn drain(&mut self, out: &mut Vec<u8>) {
        let bytes = self.unread().append_to(out);
        self.give_back(bytes);
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as `self` lives, and the offset is aligned and within the page.
        // Both sides use atomic accesses of whole words.
        unsafe { &*self.map.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    fn data(&self, begin: usize, length: usize) -> &[u8] {
        debug_assert!(begin + length <= self.data_bytes);
        // SAFETY: the range is in the mapping, and the kernel does not write between tail and head.
        unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().add(self.page_bytes + begin), length)
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Some(aux) = &self.aux {
            // SAFETY: mapped by `map_aux` with this length, and no slice outlives `read_aux`.
            unsafe { libc::munmap(aux.map.as_ptr().cast(), aux.bytes) };
        }
        // SAFETY: mapped by `map` with this length, and no slice outlives `drain`.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.page_bytes + self.data_bytes) };
    }
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for Ring {}
