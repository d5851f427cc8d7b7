//! The environment of programs that the process executes.
//!
//! Such a program is to load this library with the same settings, even if the process passes it an empty environment. The
//! library is left out where the loader would complain or the program would not survive: the library's file is gone (the
//! recorder has ended), the program is for another architecture or has a sanitizer, or system calls are filtered.

mod program;

use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicUsize, Ordering};

pub use program::Program;

use self::program::Fit;
use crate::thread::Thread;
use crate::tracker::TRACKER;
use crate::{environment, message, sys};

/// The loader's variable.
const PRELOAD: &str = "LD_PRELOAD";
/// What the names of nearpage's variables begin with.
const OWN_PREFIX: &[u8] = b"NEARPAGE_";
/// Most variables of nearpage that are remembered; nearpage has fewer.
const VARIABLES_MAX: usize = 24;
/// A thread's memory for composing an environment.
const SCRATCH_BYTES: usize = 256 << 10;
/// The part of that memory for bytes of a file, and for a path.
const BUFFER_BYTES: usize = 8 << 10;
/// The part of that memory for the value of [`PRELOAD`].
const TEXT_BYTES: usize = 8 << 10;

/// Addresses of terminated strings `NAME=VALUE`: nearpage's variables when the process started. 0 follows the last.
static VARIABLES: [AtomicUsize; VARIABLES_MAX] = [const { AtomicUsize::new(0) }; VARIABLES_MAX];
/// Address of the library's path in [`PRELOAD`] when the process started, terminated; 0: the library was loaded otherwise.
static LIBRARY: AtomicUsize = AtomicUsize::new(0);

/// Remembers nearpage's variables and the library's path from the environment.
pub fn start() {
    let Some(library) = environment::variable(PRELOAD).and_then(own_library) else {
        return;
    };
    let own = || environment::all().filter(|entry| entry.starts_with(OWN_PREFIX));
    let bytes = own().map(|entry| entry.len() + 1).sum::<usize>() + library.len() + 1;
    let Ok(mut free) = sys::map_anonymous(bytes) else {
        return;
    };
    let mut keep = |text: &[u8]| {
        let kept = free;
        // SAFETY: there is room for all texts with a zero byte each, which is there.
        unsafe { core::ptr::copy_nonoverlapping(text.as_ptr(), kept as *mut u8, text.len()) };
        free += text.len() + 1;
        kept
    };
    for (place, entry) in VARIABLES.iter().zip(own()) {
        place.store(keep(entry), Ordering::Relaxed);
    }
    LIBRARY.store(keep(library), Ordering::Release);
}

/// The environment for `program`: `given`, or another in the calling thread's memory, valid until the next call.
///
/// # Safety
/// `given` is null or a null-terminated array of terminated strings, and the program's path is terminated.
pub unsafe fn environment(program: &Program, given: *const *const c_char) -> *const *const c_char {
    // SAFETY: the caller's promise; the thread's memory is its own.
    unsafe {
        let Some(library) = library() else {
            return given;
        };
        let Some(scratch) = scratch() else {
            return given;
        };
        let (buffer, rest) = scratch.split_at_mut(BUFFER_BYTES);
        let fits = fits(program, library, buffer);
        let (text, pointers) = rest.split_at_mut(TEXT_BYTES);
        let (_, pointers, _) = pointers.align_to_mut::<*const c_char>();
        match compose(entries(given), library, fits, text, pointers) {
            Some(()) => pointers.as_ptr(),
            None => given,
        }
    }
}

/// Removes the library from the process's own environment, in place, unless `program` is to load the library.
///
/// # Safety
/// The program's path is terminated.
pub unsafe fn adjust_own(program: &Program) {
    let Some(library) = library() else {
        return;
    };
    // SAFETY: the caller's promise; the thread's memory is its own.
    let Some(scratch) = (unsafe { scratch() }) else {
        return;
    };
    // SAFETY: the caller's promise.
    if unsafe { fits(program, library, scratch) } {
        return;
    }
    if let Some(value) = environment::variable(PRELOAD) {
        for part in parts(value).filter(|part| *part == library.to_bytes()) {
            // The loader passes over empty parts.
            // SAFETY: the environment's strings are writable: this one holds a path that nobody compiles in.
            unsafe { core::ptr::write_bytes(part.as_ptr().cast_mut(), b':', part.len()) };
        }
    }
}

/// The library's path, if this process is observed or filters its system calls.
fn library() -> Option<&'static CStr> {
    let path = LIBRARY.load(Ordering::Acquire);
    if path == 0 || !(TRACKER.is_active() || TRACKER.is_filtered()) {
        return None;
    }
    // SAFETY: what `start` kept is terminated and never changes.
    Some(unsafe { CStr::from_ptr(path as *const c_char) })
}

/// Is the program to load the library?
///
/// # Safety
/// The program's path is terminated.
unsafe fn fits(program: &Program, library: &CStr, buffer: &mut [u8]) -> bool {
    if TRACKER.is_filtered() {
        return false;
    }
    let Ok(file) = sys::open(library.to_bytes_with_nul(), sys::O_RDONLY) else {
        return false;
    };
    sys::close(file);
    // SAFETY: the caller's promise.
    match unsafe { program.fit(buffer) } {
        Fit::Fits => true,
        Fit::OtherArchitecture => false,
        Fit::Sanitized(sanitizer) => {
            // SAFETY: the caller's promise.
            let name = unsafe { program.name() };
            message::line(format_args!(
                "{name} is built with {sanitizer}, which does not work beside the preload library: it runs without, so \
                 that its heap objects are not known and not placed; build it without -fsanitize to see them"
            ));
            false
        }
    }
}

/// The calling thread's memory for environments, mapped at first use. A child of `vfork` uses its parent's.
unsafe fn scratch() -> Option<&'static mut [u8]> {
    let thread = Thread::current();
    // SAFETY: the thread's own state, and memory that it alone uses while it executes a program.
    unsafe {
        if (*thread).scratch == 0 {
            (*thread).scratch = sys::map_anonymous(SCRATCH_BYTES).ok()?;
        }
        Some(core::slice::from_raw_parts_mut(
            (*thread).scratch as *mut u8,
            SCRATCH_BYTES,
        ))
    }
}

/// Unmaps the memory of a thread that ends.
pub fn thread_ends(thread: &mut Thread) {
    let scratch = core::mem::take(&mut thread.scratch);
    if scratch != 0 {
        // SAFETY: nothing refers to it between two programs.
        let _ = unsafe { sys::munmap(scratch, SCRATCH_BYTES) };
    }
}

/// The strings of an environment.
///
/// # Safety
/// As [`environment()`].
unsafe fn entries(given: *const *const c_char) -> &'static [*const c_char] {
    if given.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut count = 0;
        while !(*given.add(count)).is_null() {
            count += 1;
        }
        core::slice::from_raw_parts(given, count)
    }
}

/// The paths of a value of [`PRELOAD`].
fn parts(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = value.split(|byte| b" :".contains(byte));
    parts.filter(|part| !part.is_empty())
}

/// The path of this library in a value of [`PRELOAD`].
fn own_library(value: &[u8]) -> Option<&[u8]> {
    parts(value).find(|part| {
        let name = part.rsplit(|byte| *byte == b'/').next();
        nearpage_wire::is_own_module(name.unwrap_or_default())
    })
}

/// The value of the variable `name`, if `entry` is that variable.
///
/// # Safety
/// `entry` is terminated and outlives the value.
unsafe fn value_of<'a>(entry: *const c_char, name: &[u8]) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    let entry = unsafe { CStr::from_ptr(entry) }.to_bytes();
    entry.strip_prefix(name)?.strip_prefix(b"=")
}

/// Composes an environment into `pointers`; `None` if no change is needed, or another has no room.
///
/// # Safety
/// The entries are terminated.
unsafe fn compose(
    given: &[*const c_char],
    library: &CStr,
    fits: bool,
    text: &mut [u8],
    pointers: &mut [*const c_char],
) -> Option<()> {
    // SAFETY: the caller's promise, and what `start` kept.
    unsafe {
        let value = |name: &[u8]| given.iter().find_map(|entry| value_of(*entry, name));
        let before = value(PRELOAD.as_bytes());
        let library = library.to_bytes();
        let has_library = before.is_some_and(|value| parts(value).any(|part| part == library));
        let kept = VARIABLES.iter().map(|place| place.load(Ordering::Relaxed));
        let kept = kept
            .take_while(|kept| *kept != 0)
            .map(|kept| kept as *const c_char);
        let mut missing = kept.filter(|kept| {
            let text = CStr::from_ptr(*kept).to_bytes();
            let name = text.split(|byte| *byte == b'=').next();
            value(name.unwrap_or_default()).is_none()
        });
        let stays = match fits {
            true => {
                let is_off = value(nearpage_wire::DISABLE_VARIABLE.as_bytes()) == Some(b"1");
                is_off || has_library && missing.clone().next().is_none()
            }
            false => !has_library,
        };
        if stays {
            return None;
        }
        let others = parts(before.unwrap_or_default()).filter(|part| *part != library);
        let (preload, is_empty) = join(fits.then_some(library), others, text)?;
        let given = given.iter().copied();
        let others = given.filter(|entry| value_of(*entry, PRELOAD.as_bytes()).is_none());
        let added = core::iter::from_fn(|| missing.next().filter(|_| fits));
        let preload = (!is_empty).then_some(preload);
        let mut places = pointers.iter_mut();
        for entry in preload.into_iter().chain(others).chain(added) {
            *places.next()? = entry;
        }
        *places.next()? = core::ptr::null();
        Some(())
    }
}

/// `LD_PRELOAD=` with paths between colons, in `text`, and whether there are none.
fn join<'a>(
    first: Option<&'a [u8]>,
    others: impl Iterator<Item = &'a [u8]>,
    text: &mut [u8],
) -> Option<(*const c_char, bool)> {
    let mut end = 0;
    let mut push = |bytes: &[u8]| {
        let place = text.get_mut(end..end + bytes.len())?;
        place.copy_from_slice(bytes);
        end += bytes.len();
        Some(())
    };
    push(PRELOAD.as_bytes())?;
    let mut separator: &[u8] = b"=";
    for part in first.into_iter().chain(others) {
        push(separator)?;
        push(part)?;
        separator = b":";
    }
    push(b"\0")?;
    Some((text.as_ptr().cast(), separator == b"="))
}

#[cfg(test)]
mod tests;
