//! Memory asked for before it is needed, so that the processor waits for many places at once.

/// Asks for the cache line of `place`.
#[inline(always)]
pub(crate) fn prefetch<T>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching changes nothing that a program can see and faults on no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    // Elsewhere, memory is waited for when it is needed.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
