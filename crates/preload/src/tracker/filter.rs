//! What the assembly hooks read.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::real;
use crate::sample_heap::{BASE, LENGTH};

/// What the assembly hooks compare freed pointers with, to pass on those that nobody asks about.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Filter {
    /// Start of the range of addresses that are no ordinary objects.
    slow_base: AtomicUsize,
    /// Its length: that of the samples, or everything where an object's size cannot be read from
    /// the word before it (and as long as that is not known).
    slow_length: AtomicUsize,
    /// A chunk of at least this many bytes, header included, may be in the log. 0: all of them.
    watched_chunk_bytes: AtomicUsize,
}

impl Filter {
    /// Offset of the field.
    pub const SLOW_BASE: usize = core::mem::offset_of!(Self, slow_base);
    /// Offset of the field.
    pub const SLOW_LENGTH: usize = core::mem::offset_of!(Self, slow_length);
    /// Offset of the field.
    pub const WATCHED_CHUNK_BYTES: usize = core::mem::offset_of!(Self, watched_chunk_bytes);

    /// Sends only what may have been recorded through Rust.
    pub(super) fn narrow(&self, watched_chunk_bytes: usize) {
        self.watched_chunk_bytes
            .store(watched_chunk_bytes, Ordering::Release);
        if real::SIZE_BEFORE_POINTER.load(Ordering::Relaxed) == 1 {
            self.slow_base
                .store(BASE.load(Ordering::Relaxed), Ordering::Release);
            self.slow_length
                .store(LENGTH.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

/// The filter of the assembly hooks.
pub static FILTER: Filter = Filter {
    slow_base: AtomicUsize::new(0),
    slow_length: AtomicUsize::new(usize::MAX),
    watched_chunk_bytes: AtomicUsize::new(usize::MAX),
};
