//! The values that the assembly hooks compare with.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::real;
use crate::sample_heap::{BASE, LENGTH};

/// The assembly hooks compare each freed pointer with these values: most frees go straight to the real function.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Filter {
    /// Start of the range of addresses that always enter Rust.
    slow_base: AtomicUsize,
    /// Its length: the range of sampled objects, or all addresses if sizes cannot be read from
    /// the word before an object (and until that is known).
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

    /// Lets only frees of objects that may be logged enter Rust.
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
