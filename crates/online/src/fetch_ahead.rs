//! Prefetching of counters.

/// Prefetches an element into the CPU's caches, if the element exists and the target is x86-64. Loops over pages in
/// random order that know the next page then need not wait for memory.
#[inline]
pub fn fetch_ahead<T>(slice: &[T], position: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(element) = slice.get(position) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch affects nothing but caches, and the address is valid.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(element).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, position);
}
