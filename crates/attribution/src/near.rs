//! Prefetches memory, so that the processor can wait for several cache misses at once.

/// Prefetches the cache line of `place`.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching changes nothing that a program can see and faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    // Other architectures wait for memory when it is accessed.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
