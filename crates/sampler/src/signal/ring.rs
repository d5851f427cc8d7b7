//! Reads a ring of samples that is mapped from a file.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nearpage_wire::samples::{HEADER_BYTES, Header, SLOT_BYTES, Slot, StopReason, offset, slot};

/// The ring, with the position up to which it has been read.
#[derive(Debug)]
pub(super) struct SampleRing {
    map: NonNull<u8>,
    bytes: usize,
    slots: u64,
    tail: u64,
    /// Number of slots whose writer died.
    unfinished: u64,
}

/// Counters and status that the process writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingStatus {
    pub dropped: u64,
    pub blocked_ns: u64,
    pub no_timer: u64,
    pub ended: Option<StopReason>,
}

impl SampleRing {
    /// Maps the file; `None` if it is not a ring, or not yet.
    pub fn open(path: &Path) -> Option<(Header, Self)> {
        let file = nearpage_files::open_to_write(path).ok()?;
        let file_bytes = file.metadata().ok()?.len();
        let bytes = usize::try_from(file_bytes).ok()?;
        if bytes < HEADER_BYTES {
            return None;
        }
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory of ours.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return None;
        }
        let mut ring = Self {
            map: NonNull::new(map.cast())?,
            bytes,
            slots: 0,
            tail: 0,
            unfinished: 0,
        };
        // Pairs with the writer's last store to the header.
        ring.word(0).load(Ordering::Acquire);
        let header = Header::parse(&ring.copy::<HEADER_BYTES>(0), file_bytes)?;
        ring.slots = header.slots.into();
        Some((header, ring))
    }

    pub fn set_period(&self, period_ns: u64) {
        self.word(offset::PERIOD_NS)
            .store(period_ns, Ordering::Relaxed);
    }

    /// Takes all slots up to one that is being written; if the writers are `gone`, skips such slots.
    pub fn take(&mut self, gone: bool) -> Vec<Slot> {
        let head = self.word(offset::HEAD).load(Ordering::Acquire);
        let mut slots = Vec::new();
        for number in self.tail..head.min(self.tail.saturating_add(self.slots)) {
            let at = HEADER_BYTES + (number % self.slots) as usize * SLOT_BYTES;
            let sequence = self.word(at + slot::SEQUENCE).load(Ordering::Acquire);
            if sequence != number.wrapping_add(1) {
                if !gone {
                    break;
                }
                self.unfinished += 1;
            } else if let Some(read) = Slot::parse(&self.copy::<SLOT_BYTES>(at)) {
                slots.push(read);
            }
            self.tail = number + 1;
        }
        self.word(offset::TAIL).store(self.tail, Ordering::Release);
        slots
    }

    pub fn status(&self) -> RingStatus {
        let word = |offset| self.word(offset).load(Ordering::Relaxed);
        RingStatus {
            dropped: word(offset::DROPPED).saturating_add(self.unfinished),
            blocked_ns: word(offset::BLOCKED_NS),
            no_timer: word(offset::NO_TIMER),
            ended: StopReason::from_number(self.half(offset::ENDED).load(Ordering::Relaxed)),
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.bytes && offset.is_multiple_of(8));
        // SAFETY: the word is aligned and in the mapping, which lives as long as `self`; both sides use atomic
        // accesses.
        unsafe { &*self.map.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        assert!(offset + 4 <= self.bytes && offset.is_multiple_of(4));
        // SAFETY: the half word is aligned and in the mapping, which lives as long as `self`; both sides use atomic
        // accesses.
        unsafe { &*self.map.as_ptr().add(offset).cast::<AtomicU32>() }
    }

    /// A copy of `N` bytes in whole words. Words that the other side writes meanwhile may have any value.
    fn copy<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut copy = [0; N];
        for (number, bytes) in copy.chunks_exact_mut(8).enumerate() {
            let word = self.word(offset + 8 * number).load(Ordering::Relaxed);
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        copy
    }
}

impl Drop for SampleRing {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; no reference outlives `self`.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for SampleRing {}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpage_wire::samples::{Kind, MAGIC};

    const SLOTS: usize = 4;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn bytes() -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + SLOTS * SLOT_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[offset::SLOTS] = SLOTS as u8;
        bytes[offset::SLOT_BYTES] = SLOT_BYTES as u8;
        bytes
    }

    /// Writes slot `number` as the library does, without its sequence number unless `whole`.
    fn write(ring: &SampleRing, number: u64, whole: bool) {
        let at = HEADER_BYTES + (number as usize % SLOTS) * SLOT_BYTES;
        ring.half(at + slot::KIND)
            .store(Kind::Sample as u32, Ordering::Relaxed);
        ring.word(at + slot::TIME_NS)
            .store(number, Ordering::Relaxed);
        if whole {
            ring.word(at).store(number + 1, Ordering::Release);
        }
        ring.word(offset::HEAD).store(number + 1, Ordering::Release);
    }

    #[test]
    fn slots_come_in_order_and_a_writer_that_died_is_passed_over() {
        let file = file(&bytes());
        let (_, mut ring) = SampleRing::open(file.path()).unwrap();
        let taken = |ring: &mut SampleRing, gone| -> Vec<u64> {
            ring.take(gone).iter().map(|slot| slot.time_ns).collect()
        };
        assert!(taken(&mut ring, false).is_empty());
        for number in 0..3 {
            write(&ring, number, true);
        }
        assert_eq!(taken(&mut ring, false), [0, 1, 2]);
        write(&ring, 3, false);
        write(&ring, 4, true);
        assert!(taken(&mut ring, false).is_empty());
        assert_eq!(ring.word(offset::TAIL).load(Ordering::Relaxed), 3);
        assert_eq!(taken(&mut ring, true), [4]);
        assert_eq!(ring.status().dropped, 1);
        // An invalid head from the other side.
        ring.word(offset::HEAD).store(u64::MAX, Ordering::Relaxed);
        assert!(taken(&mut ring, true).is_empty());
    }

    #[test]
    fn files_that_are_no_ring_are_not_opened() {
        for damage in [0, offset::SLOTS, offset::SLOT_BYTES] {
            let mut bytes = bytes();
            bytes[damage] ^= 0xff;
            assert!(SampleRing::open(file(&bytes).path()).is_none());
        }
        assert!(SampleRing::open(file(b"short").path()).is_none());
        assert!(SampleRing::open(Path::new("/nonexistent")).is_none());
    }
}
