//! The functions that would let the program see, or lose, the signals of [`crate::signal`].

use core::ffi::{c_int, c_void};

use crate::real;
use crate::signal;

/// Stands in front of `sigaction`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(number: c_int, new: *const c_void, old: *mut c_void) -> c_int {
    // SAFETY: both structures begin with the handler, and the rest of the old one may be zero: no
    // flags, no other signals blocked.
    unsafe {
        if signal::is_ours(number) {
            let handler = (!new.is_null()).then(|| *new.cast::<usize>());
            if let Some(before) = signal::program_sets(number, handler) {
                if !old.is_null() {
                    old.cast::<[usize; 19]>().write([0; 19]);
                    *old.cast::<usize>() = before;
                }
                return 0;
            }
        }
        real::sigaction(number, new, old)
    }
}

/// Defines the functions that set a handler by its address alone.
macro_rules! set_handler {
    ($($name:literal $function:ident => $real:ident;)*) => {$(
        /// Stands in front of the function of this name.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function(number: c_int, handler: usize) -> usize {
            match signal::program_sets(number, Some(handler)) {
                Some(before) => before,
                // SAFETY: the caller's promise.
                None => unsafe { real::$real(number, handler) },
            }
        }
    )*};
}

set_handler! {
    "signal" set_signal => signal;
    "bsd_signal" set_bsd_signal => bsd_signal;
    "__sysv_signal" set_sysv_signal => sysv_signal;
    "sigset" set_sigset => sigset;
}

/// Calls `wait` with the program's set of signals, less the signal of this library.
unsafe fn wait_for<R>(set: *const c_void, wait: impl FnOnce(*const c_void) -> R) -> R {
    if !signal::is_on() || set.is_null() {
        return wait(set);
    }
    // SAFETY: the C library's sets have 1024 bits.
    match unsafe { signal::without_ours(set.cast::<[u64; 16]>().read_unaligned()) } {
        Some(set) => wait((&raw const set).cast()),
        None => wait(set),
    }
}

/// Stands in front of `sigwait`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const c_void, number: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::sigwait(set, number)) }
}

/// Stands in front of `sigwaitinfo`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(set: *const c_void, info: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::sigwaitinfo(set, info)) }
}

/// Stands in front of `sigtimedwait`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const c_void,
    info: *mut c_void,
    timeout: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::sigtimedwait(set, info, timeout)) }
}

/// Stands in front of `signalfd`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signalfd(fd: c_int, set: *const c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::signalfd(fd, set, flags)) }
}
