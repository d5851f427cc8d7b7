//! The few calls of the C library that Rust's has no name for.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut [c_long; 2]) -> c_int;
    fn gettid() -> c_int;
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let mut time = [0; 2];
    // SAFETY: it fills a timespec, two longs on every 64-bit Linux.
    unsafe { clock_gettime(1, &mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// The calling thread's id.
pub fn thread_id() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    (unsafe { gettid() }) as u32
}

/// The same file under a descriptor that programs don't expect to be free, closed on `exec`; or the
/// same descriptor where there is none.
pub fn out_of_the_way(file: std::fs::File) -> std::fs::File {
    const F_DUPFD_CLOEXEC: c_int = 1030;
    for at_least in [1000, 200] {
        // SAFETY: it duplicates a descriptor that `file` owns.
        let descriptor = unsafe { fcntl(file.as_raw_fd(), F_DUPFD_CLOEXEC, at_least) };
        if descriptor >= 0 {
            // SAFETY: the new descriptor is nobody else's.
            return unsafe { OwnedFd::from_raw_fd(descriptor) }.into();
        }
    }
    file
}

/// Address of a function or variable of the program that loaded us.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is terminated; a null handle is the search of all that is loaded.
    let address = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!address.is_null()).then_some(address)
}
