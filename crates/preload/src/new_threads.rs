//! Records that a thread's creator hands to the new thread.
//!
//! The records are not allocated by the program's allocator: a thread that frees memory there gets an arena of its own, 64 MiB
//! or more of address space, which threads that allocate nothing never need. There is room for 64 threads that were created
//! and have not begun, including those of a forked process's parent. Each further record has a mapping of its own.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, Ordering::*};

use crate::sys;
use crate::tracker::ThreadStart;

const PLACES: usize = 64;

/// Records of threads that have not begun.
pub struct NewThreads {
    places: [Place; PLACES],
}

/// Room for one record.
#[repr(C)]
struct Place {
    record: UnsafeCell<MaybeUninit<ThreadStart>>,
    is_taken: AtomicBool,
}

// SAFETY: a record belongs to whoever took its place, then to the thread that it was handed to.
unsafe impl Sync for NewThreads {}

/// The records of this process.
pub static NEW_THREADS: NewThreads = NewThreads::new();

impl NewThreads {
    const fn new() -> Self {
        Self {
            places: [const {
                Place {
                    record: UnsafeCell::new(MaybeUninit::uninit()),
                    is_taken: AtomicBool::new(false),
                }
            }; PLACES],
        }
    }

    /// Memory for a record, for the caller until it is [given back](Self::give_back); `None` if no memory is left.
    pub fn take(&self) -> Option<*mut ThreadStart> {
        let is_free = |place: &&Place| {
            let taken = &place.is_taken;
            taken
                .compare_exchange(false, true, Acquire, Relaxed)
                .is_ok()
        };
        match self.places.iter().find(is_free) {
            Some(place) => Some(place.record.get().cast()),
            None => Some(sys::reserve(size_of::<ThreadStart>()).ok()? as *mut ThreadStart),
        }
    }

    /// Takes back a record that nobody reads any more.
    ///
    /// # Safety
    /// It was [taken](Self::take), and is given back once.
    pub unsafe fn give_back(&self, record: *mut ThreadStart) {
        let own = |place: &&Place| place.record.get().cast() == record;
        match self.places.iter().find(own) {
            Some(place) => place.is_taken.store(false, Release),
            // SAFETY: a mapping of our own, by the caller's promise.
            None => _ = unsafe { sys::munmap(record as usize, size_of::<ThreadStart>()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_record_has_a_place_of_its_own_and_places_are_used_again() {
        let new_threads = NewThreads::new();
        let take = |count: usize| -> BTreeSet<usize> {
            (0..count)
                .map(|_| new_threads.take().unwrap() as usize)
                .collect()
        };
        let all = take(PLACES + 3);
        assert_eq!(all.len(), PLACES + 3);
        for record in &all {
            // SAFETY: the record was taken above.
            unsafe { new_threads.give_back(*record as *mut ThreadStart) };
        }
        let again = take(PLACES);
        assert!(again.is_subset(&all));
    }
}
