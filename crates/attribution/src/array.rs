//! Arrays on huge pages. Random look-ups in many megabytes of small pages spend more time on address translation than
//! on the memory accesses.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use memmap2::{Advice, MmapMut};

/// Size of a huge page in bytes. Smaller arrays stay in a `Vec`.
const LARGE_BYTES: usize = 2 << 20;

/// An array of fixed length.
#[derive(Debug)]
pub(crate) enum Array<T> {
    Small(Vec<T>),
    Large(MmapMut, PhantomData<T>),
}

impl<T: Copy> Array<T> {
    /// An array of `length` copies of `value`.
    pub fn filled(value: T, length: usize) -> Array<T> {
        let bytes = length.saturating_mul(size_of::<T>());
        if bytes < LARGE_BYTES || align_of::<T>() > 4096 {
            return Array::Small(vec![value; length]);
        }
        let Ok(mut map) = MmapMut::map_anon(bytes) else {
            return Array::Small(vec![value; length]);
        };
        // Without huge pages, look-ups are merely slower.
        #[cfg(target_os = "linux")]
        let _ = map.advise(Advice::HugePage);
        let first = map.as_mut_ptr().cast::<T>();
        for at in 0..length {
            // SAFETY: the map has room for `length` items. It begins at a page boundary, which suffices for alignments
            // up to 4096.
            unsafe { first.add(at).write(value) };
        }
        Array::Large(map, PhantomData)
    }
}

impl<T: Copy> Clone for Array<T> {
    fn clone(&self) -> Self {
        match self {
            Array::Small(items) => Array::Small(items.clone()),
            Array::Large(..) => {
                let mut copy = Array::filled(self[0], self.len());
                copy.copy_from_slice(self);
                copy
            }
        }
    }
}

impl<T> Default for Array<T> {
    fn default() -> Self {
        Array::Small(Vec::new())
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match self {
            Array::Small(items) => items,
            // SAFETY: `filled` wrote an aligned `T` to each place that the map has room for.
            Array::Large(map, _) => unsafe {
                std::slice::from_raw_parts(map.as_ptr().cast(), map.len() / size_of::<T>())
            },
        }
    }
}

impl<T> DerefMut for Array<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Array::Small(items) => items,
            // SAFETY: `filled` wrote an aligned `T` to each place that the map has room for, and the map is borrowed
            // mutably.
            Array::Large(map, _) => unsafe {
                std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), map.len() / size_of::<T>())
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_ones_hold_what_they_are_given() {
        for length in [0, 1, 1000, 1 << 18, (1 << 18) + 1] {
            let mut array = Array::filled((7u64, 1u32), length);
            assert_eq!(array.len(), length);
            assert!(array.iter().all(|&item| item == (7, 1)));
            if let Some(last) = array.last_mut() {
                *last = (8, 2);
                assert_eq!(array[length - 1], (8, 2));
                assert_eq!(array.clone()[..], array[..]);
            }
        }
    }
}
