//! Memory for the tables: mapped once, zeroed, never unmapped.

use crate::sys;

/// Types for which zeroed memory is a value: an empty table.
///
/// # Safety
/// All-zero bytes must be a valid value.
pub unsafe trait Zeroed {}

/// A zeroed value in a mapping of its own, of which only written pages cost memory.
pub fn zeroed<T: Zeroed>() -> Option<&'static T> {
    let address = sys::reserve(size_of::<T>()).ok()?;
    // SAFETY: fresh, zeroed, page-aligned memory of that size that is never unmapped.
    Some(unsafe { &*(address as *const T) })
}

/// `count` zeroed values in a mapping of their own.
pub fn zeroed_slice<T: Zeroed>(count: usize) -> Option<&'static [T]> {
    if count == 0 {
        return Some(&[]);
    }
    let address = sys::reserve(size_of::<T>().checked_mul(count)?).ok()?;
    // SAFETY: as above.
    Some(unsafe { core::slice::from_raw_parts(address as *const T, count) })
}
