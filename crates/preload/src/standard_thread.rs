//! What a thread of C++'s `std::thread` executes, as libstdc++ creates it.
//!
//! Such threads all have one start routine, inside libstdc++, which tells nothing of the program. Its argument is a
//! `std::thread::_State_impl<…>`, whose virtual function `_M_run` is compiled for the type of what the program passed to
//! `std::thread`: the name of that instance says the type. A pointer to a function has the same type as many others; it is
//! the object's last member, as libstdc++ lays out the arguments behind one another and the function after them.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use crate::sample_heap::SAMPLE_HEAP;
use crate::{loader, real, sys};

/// `std::thread::_M_start_thread`, which libstdc++ defines.
const START_THREAD: &CStr =
    c"_ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE";
/// Position of `_M_run` in the virtual table of `_State_impl`, behind two destructors.
const RUN: usize = 2;
/// No larger object is read.
const STATE_BYTES_MAX: usize = 4096;
/// On kernels with larger pages, objects are not read.
const PAGE_BYTES: usize = 4096;
const WORD_BYTES: usize = size_of::<usize>();

/// What a thread of `std::thread` executes. Zeros: it is none, or that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Callable {
    /// Address of its `_M_run`.
    pub run: usize,
    /// The address of code in the object's last member: of the function, if the program passed a pointer to one.
    pub function: usize,
}

/// What a new thread executes that begins at `start_routine` with `argument`.
///
/// # Safety
/// If the routine is that of `std::thread`, nobody frees the argument before this returns.
pub unsafe fn callable(start_routine: usize, argument: usize) -> Callable {
    let mut none = Callable::default();
    if !argument.is_multiple_of(WORD_BYTES)
        || !loader::defines(start_routine, START_THREAD)
        || !is_mapped(argument, WORD_BYTES)
    {
        return none;
    }
    // SAFETY: the words are mapped, in memory that the caller keeps, or in a readable segment of a module.
    unsafe {
        let table = *(argument as *const usize);
        let entry = table.wrapping_add(RUN * WORD_BYTES);
        if !table.is_multiple_of(WORD_BYTES) || !loader::is_readable(entry) {
            return none;
        }
        let run = *(entry as *const usize);
        if !loader::is_code(run) {
            return none;
        }
        none.run = run;
        none.function = last_code_pointer(argument).unwrap_or(0);
    }
    none
}

/// The address of code in the object's last word.
///
/// # Safety
/// The object is there.
unsafe fn last_code_pointer(object: usize) -> Option<usize> {
    let is_sample = SAMPLE_HEAP.contains(object);
    // Without a size before the object, an allocator would have to be asked that may not have made it.
    let is_of_glibc = real::SIZE_BEFORE_POINTER.load(Ordering::Relaxed) == 1
        && object % PAGE_BYTES >= 2 * WORD_BYTES;
    let bytes = match is_sample {
        true => SAMPLE_HEAP.usable_bytes(object),
        // SAFETY: the size stands in the same page.
        false if is_of_glibc => unsafe { real::usable_bytes(object)? },
        false => return None,
    } & !(WORD_BYTES - 1);
    if !(3 * WORD_BYTES..=STATE_BYTES_MAX).contains(&bytes) || !is_mapped(object, bytes) {
        return None;
    }
    let last = object + bytes - WORD_BYTES;
    // SAFETY: inside the object and mapped.
    only_code([last, last - WORD_BYTES].map(|word| unsafe { *(word as *const usize) }))
}

/// The one of two words that is an address of code: an allocator may add a word to an object, which holds anything.
fn only_code(words: [usize; 2]) -> Option<usize> {
    match words.map(loader::is_code) {
        [true, false] => Some(words[0]),
        [false, true] => Some(words[1]),
        _ => None,
    }
}

/// Is all of this memory mapped? Another program may pass any number to a start routine.
fn is_mapped(start: usize, bytes: usize) -> bool {
    let first = start & !(PAGE_BYTES - 1);
    let length = (start + bytes - first).next_multiple_of(PAGE_BYTES);
    let mut present = [0; STATE_BYTES_MAX / PAGE_BYTES + 1];
    sys::mincore(first, length, &mut present, PAGE_BYTES).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_address_is_told_from_data_and_two_from_one() {
        let code = callable as *const () as usize;
        let data = &raw const code as usize;
        assert_eq!(only_code([code, data]), Some(code));
        assert_eq!(only_code([7, code]), Some(code));
        assert_eq!(only_code([code, code]), None);
        assert_eq!(only_code([data, 0]), None);
    }

    #[test]
    fn routines_of_other_modules_have_no_callable() {
        let own = callable as *const () as usize;
        // SAFETY: neither routine is that of `std::thread`.
        unsafe {
            assert_eq!(callable(own, 0), Callable::default());
            assert_eq!(callable(own, own & !7), Callable::default());
        }
    }

    #[test]
    fn memory_that_is_not_mapped_is_known() {
        assert!(is_mapped(callable as *const () as usize, 8));
        assert!(!is_mapped(8, 8));
    }
}
