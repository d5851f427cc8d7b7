//! Counters at hand when they are needed.

/// Has an element brought into the CPU's caches, where the processor can be asked to and there is
/// such an element. Who goes by pages in random order, and knows which come next, need not wait for
/// memory.
#[inline]
pub fn fetch_ahead<T>(slice: &[T], position: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = slice.get(position) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, without effect but on caches, about an address that is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, position);
}
