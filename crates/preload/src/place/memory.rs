//! Memory for the tables: mapped once, zeroed, never given back.

use crate::sys;

/// Types for which zeroed memory is a value: an empty table.
///
/// # Safety
/// All-zero bytes must be a valid value.
pub unsafe trait Zeroed {}

/// A value of its own mapping, which costs memory only where it is written to.
pub fn zeroed<T: Zeroed>() -> Option<&'static T> {
    let address = sys::reserve(size_of::<T>()).ok()?;
    // SAFETY: fresh, zeroed, page-aligned memory of that size that is never unmapped.
    Some(unsafe { &*(address as *const T) })
}

/// So many zeroed values, next to each other.
pub fn zeroed_slice<T: Zeroed>(count: usize) -> Option<&'static [T]> {
    if count == 0 {
        return Some(&[]);
    }
    let address = sys::reserve(size_of::<T>().checked_mul(count)?).ok()?;
    // SAFETY: as above.
    Some(unsafe { core::slice::from_raw_parts(address as *const T, count) })
}
