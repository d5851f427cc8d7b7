//! Libraries that the program loads with `RTLD_DEEPBIND`: they find the C library's functions before the ones of this
//! library. Their objects would not be seen, and one of our samples that they free would end the program.
//!
//! The flag itself is left alone, as such libraries count on finding their own functions first. Instead, once
//! they are loaded, the entries of their global offset tables for hooked functions are redirected to this library.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::loader::{self, CallSlot};
use crate::{real, sys};

/// `RTLD_DEEPBIND`.
const DEEPBIND: usize = 8;
/// Bytes of the page around a read-only relocation. On kernels with larger pages, such relocations are not redirected.
const PAGE_BYTES: usize = 4096;

/// A library was, or is being, loaded with this flag.
static IS_SEEN: AtomicBool = AtomicBool::new(false);

/// Takes note that `dlopen` is about to load a library with these flags.
pub fn loading(flags: usize) {
    if flags & DEEPBIND != 0 {
        IS_SEEN.store(true, Ordering::Relaxed);
    }
}

/// Redirects the calls of libraries that were loaded with the flag; to be called after each `dlopen`.
pub fn modules_changed() {
    if IS_SEEN.load(Ordering::Relaxed) {
        loader::each_call_of_others(PAGE_BYTES, redirect);
    }
}

/// Redirects a word of a global offset table to this library's function `name`. `module` is the range of the word's module.
fn redirect(name: &CStr, slot: CallSlot, module: [usize; 2]) {
    let Some(behind) = real::behind(name) else {
        return;
    };
    // SAFETY: a word of a loaded module, eight bytes long and aligned; the loader may be writing it.
    let word = unsafe { AtomicUsize::from_ptr(slot.address as *mut usize) };
    let leads_to = word.load(Ordering::Acquire);
    // An address in the module's own procedure linkage table: the loader looks the function up with the first call.
    let is_unbound = (module[0]..module[1]).contains(&leads_to);
    let is_behind = match is_unbound {
        true => loader::find_only(name) == Some(behind),
        false => leads_to == behind,
    };
    if !is_behind {
        return;
    }
    let Some(own) = loader::own(name) else {
        return;
    };
    let page = slot.address & !(PAGE_BYTES - 1);
    let protect = |protection: usize| {
        let arguments = [page, PAGE_BYTES, protection, 0, 0, 0];
        // SAFETY: a page that the loader made read-only once it was relocated, and for a moment is not.
        unsafe { sys::call(sys::number::MPROTECT, arguments) }
    };
    if slot.is_sealed && protect(sys::PROT_READ | sys::PROT_WRITE).is_err() {
        return;
    }
    // The loader may have bound it meanwhile, to the same function.
    word.store(own, Ordering::Release);
    if slot.is_sealed {
        let _ = protect(sys::PROT_READ);
    }
}
