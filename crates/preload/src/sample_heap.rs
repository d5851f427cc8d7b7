//! The heap of sampled small allocations: one reserved address range of fixed size, so that `free`
//! needs one comparison to find out whether a pointer is a sample.
//!
//! The range is cut into slabs of one size class each. Whoever frees an object pushes it on its
//! class's return list with a compare-and-swap; whoever allocates takes the whole list at once
//! (no ABA problem) under a lock that is tried a few times. If the lock stays taken, or the range is
//! used up, the real allocator serves the caller. Nothing here waits without bound.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use crate::sys;

/// Bytes of address space; memory is used as it is touched.
pub const RANGE_BYTES: usize = 32 << 20;
const SLAB_BYTES: usize = 64 << 10;
const SLABS: usize = RANGE_BYTES / SLAB_BYTES;
/// How often the lock is tried.
const TRIES_MAX: u32 = 100;
/// Largest object.
pub const OBJECT_BYTES_MAX: usize = 4096;
/// Multiples of 16 up to 128, then four classes to each doubling.
const CLASSES: usize = 8 + 4 * 5;

/// Size class that holds `size` bytes; None above [`OBJECT_BYTES_MAX`].
fn class_of(size: usize) -> Option<usize> {
    if size <= 128 {
        return Some(size.max(1).div_ceil(16) - 1);
    }
    if size > OBJECT_BYTES_MAX {
        return None;
    }
    // 2^k < size ≤ 2^(k+1), in quarters of 2^k.
    let k = (size - 1).ilog2() as usize;
    Some(8 + (k - 7) * 4 + ((size - 1) >> (k - 2)) % 4)
}

/// Bytes of an object of `class`.
fn class_bytes(class: usize) -> usize {
    match class.checked_sub(8) {
        None => (class + 1) * 16,
        Some(upper) => (4 + upper % 4 + 1) << (upper / 4 + 5),
    }
}

/// Start of the range, 0 while there is none.
pub static BASE: AtomicUsize = AtomicUsize::new(0);
/// Length of the range, 0 while there is none.
pub static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// The heap of samples.
#[derive(Debug)]
pub struct SampleHeap {
    lock: AtomicBool,
    /// Slabs that belong to a class so far.
    slabs: AtomicUsize,
    /// Class of each slab.
    classes: [AtomicU8; SLABS],
    /// Freed objects, a list through their first words.
    returned: [AtomicUsize; CLASSES],
    /// Objects ready for use, a list through their first words. Guarded by the lock.
    ready: [AtomicUsize; CLASSES],
    /// Start of the unused part of each class's newest slab. Guarded by the lock.
    rest: [AtomicUsize; CLASSES],
    rest_end: [AtomicUsize; CLASSES],
}

/// The process's heap of samples.
pub static SAMPLE_HEAP: SampleHeap = SampleHeap::new();

impl SampleHeap {
    const fn new() -> Self {
        Self {
            lock: AtomicBool::new(false),
            slabs: AtomicUsize::new(0),
            classes: [const { AtomicU8::new(0) }; SLABS],
            returned: [const { AtomicUsize::new(0) }; CLASSES],
            ready: [const { AtomicUsize::new(0) }; CLASSES],
            rest: [const { AtomicUsize::new(0) }; CLASSES],
            rest_end: [const { AtomicUsize::new(0) }; CLASSES],
        }
    }

    /// Reserves the range; false if the kernel refuses.
    pub fn reserve(&self) -> bool {
        // Two slabs more than needed, so that slabs can be aligned to their size, with something before and behind
        // them that keeps the kernel from joining them with the program's mappings.
        let Ok(start) = sys::reserve(RANGE_BYTES + 2 * SLAB_BYTES) else {
            return false;
        };
        let base = (start + 1).next_multiple_of(SLAB_BYTES);
        // SAFETY: inside the range. What is there are the program's objects.
        if unsafe { sys::make_readable(base, RANGE_BYTES) }.is_err() {
            return false;
        }
        BASE.store(base, Ordering::Release);
        LENGTH.store(RANGE_BYTES, Ordering::Release);
        true
    }

    /// Is `address` in the range?
    #[inline]
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(BASE.load(Ordering::Relaxed)) < LENGTH.load(Ordering::Relaxed)
    }

    /// An object of at least `size` bytes at a multiple of `alignment` (a power of two), or None.
    pub fn allocate(&self, size: usize, alignment: usize) -> Option<usize> {
        // Classes of a power of two lie at multiples of themselves.
        let wanted = if alignment <= 16 {
            size
        } else {
            size.max(alignment).checked_next_power_of_two()?
        };
        let class = class_of(wanted)?;
        if LENGTH.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut tries = 0;
        while self.lock.swap(true, Ordering::Acquire) {
            tries += 1;
            if tries == TRIES_MAX {
                return None;
            }
            // The holder needs a dozen instructions more, unless the kernel has taken its CPU.
            if tries < TRIES_MAX / 2 {
                core::hint::spin_loop()
            } else {
                sys::sched_yield()
            }
        }
        let object = self.take(class);
        self.lock.store(false, Ordering::Release);
        object
    }

    fn take(&self, class: usize) -> Option<usize> {
        let (ready, rest, rest_end) = (
            self.ready.get(class)?,
            self.rest.get(class)?,
            self.rest_end.get(class)?,
        );
        let mut object = ready.load(Ordering::Relaxed);
        if object == 0 {
            object = self.returned.get(class)?.swap(0, Ordering::Acquire);
        }
        if object != 0 {
            // SAFETY: a free object of the range; its first word links to the next.
            ready.store(unsafe { *(object as *const usize) }, Ordering::Relaxed);
            return Some(object);
        }
        let bytes = class_bytes(class);
        let mut next = rest.load(Ordering::Relaxed);
        if next + bytes > rest_end.load(Ordering::Relaxed) {
            let slab = self.slabs.load(Ordering::Relaxed);
            self.classes
                .get(slab)?
                .store(class as u8, Ordering::Release);
            self.slabs.store(slab + 1, Ordering::Relaxed);
            next = BASE.load(Ordering::Relaxed) + slab * SLAB_BYTES;
            rest_end.store(next + SLAB_BYTES, Ordering::Relaxed);
        }
        rest.store(next + bytes, Ordering::Relaxed);
        Some(next)
    }

    /// Bytes that the object at `address` may use.
    pub fn usable_bytes(&self, address: usize) -> usize {
        let slab = address.wrapping_sub(BASE.load(Ordering::Relaxed)) / SLAB_BYTES;
        self.classes
            .get(slab)
            .map_or(0, |class| class_bytes(class.load(Ordering::Acquire).into()))
    }

    /// Takes an object back.
    ///
    /// # Safety
    /// `address` came from [`Self::allocate`] and nothing uses it any more.
    pub unsafe fn free(&self, address: usize) {
        let slab = address.wrapping_sub(BASE.load(Ordering::Relaxed)) / SLAB_BYTES;
        let Some(class) = self.classes.get(slab) else {
            return;
        };
        let Some(list) = self
            .returned
            .get(usize::from(class.load(Ordering::Acquire)))
        else {
            return;
        };
        let mut head = list.load(Ordering::Relaxed);
        loop {
            // SAFETY: the object is free and holds at least one word.
            unsafe { *(address as *mut usize) = head };
            match list.compare_exchange_weak(head, address, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Releases the lock in a forked child, where the thread that held it does not exist.
    pub fn forked_child(&self) {
        self.lock.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_sizes_with_little_waste() {
        for size in 0..=OBJECT_BYTES_MAX {
            let bytes = class_bytes(class_of(size).unwrap());
            assert!(
                bytes >= size && bytes.is_multiple_of(16),
                "{size} in {bytes}"
            );
            assert!(bytes <= 16.max(size + size / 4 + 16), "{size} in {bytes}");
        }
        assert_eq!(class_of(OBJECT_BYTES_MAX), Some(CLASSES - 1));
        assert_eq!(class_of(OBJECT_BYTES_MAX + 1), None);
    }

    #[test]
    fn objects_are_disjoint_aligned_and_used_again_by_many_threads() {
        let heap = &SAMPLE_HEAP;
        assert!(heap.reserve());
        let workers: Vec<_> = (0..4u8)
            .map(|mark| {
                std::thread::spawn(move || {
                    let mut live: Vec<(usize, usize)> = Vec::new();
                    for step in 0..20_000usize {
                        let (size, alignment) = (1 + step * 37 % 4000, 16 << (step % 6));
                        if let Some(address) = heap.allocate(size, alignment) {
                            assert!(heap.contains(address) && heap.usable_bytes(address) >= size);
                            assert_eq!(address % alignment, 0);
                            // SAFETY: the object is ours.
                            unsafe { std::ptr::write_bytes(address as *mut u8, mark, size) };
                            live.push((address, size));
                        }
                        if live.len() > 100 {
                            let (address, size) = live.swap_remove(step % 100);
                            // SAFETY: the object is ours until it is freed here.
                            unsafe {
                                assert!(
                                    std::slice::from_raw_parts(address as *const u8, size)
                                        .iter()
                                        .all(|byte| *byte == mark)
                                );
                                heap.free(address);
                            }
                        }
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
        let used = heap.slabs.load(Ordering::Relaxed);
        assert!(
            used < SLABS / 2,
            "freed objects are used again, not {used} slabs"
        );
        let taken: Vec<_> = std::iter::from_fn(|| heap.allocate(4096, 4096)).collect();
        assert!(taken.len() > SLABS * 7, "the range is used up");
        assert_eq!(heap.allocate(4096, 16), None);
        // SAFETY: nothing uses it.
        unsafe { heap.free(taken[0]) };
        assert_eq!(heap.allocate(4096, 16), Some(taken[0]));
    }
}
