//! What changes the program's code (loading, unloading, replacing it by another), the markers, and
//! this library's own beginning and end.

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};

use super::entry::{announce, enter};
use crate::place::rest;
use crate::real::{self, Function};
use crate::tracker::TRACKER;

enter! {
    dlclose => dlclose_at, "rsi", "x1";
    nearpage_begin => begin_at, "rdi", "x0";
    nearpage_end => end_at, "rdi", "x0";
}

announce! {
    dlopen => note_loading;
    dlmopen => note_loading;
    execve => note_replacing;
    execv => note_replacing;
    execvp => note_replacing;
    execvpe => note_replacing;
    execveat => note_replacing;
    fexecve => note_replacing;
    execl => note_replacing;
    execlp => note_replacing;
    execle => note_replacing;
}

extern "C" fn note_loading(at: usize, function: Function) -> usize {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.loading(&mut observed, at);
    }
    real::entry(function)
}

extern "C" fn note_replacing(at: usize, function: Function) -> usize {
    TRACKER.replacing(at);
    rest::leave();
    real::entry(function)
}

/// Stands in front of `posix_spawn`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const c_void,
    environment: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    rest::launching(|| unsafe {
        real::posix_spawn(pid, path, actions, attributes, arguments, environment)
    })
}

/// Stands in front of `posix_spawnp`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const c_void,
    environment: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    rest::launching(|| unsafe {
        real::posix_spawnp(pid, file, actions, attributes, arguments, environment)
    })
}

/// Stands in front of `popen`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn popen(command: *const c_char, mode: *const c_char) -> usize {
    // SAFETY: the caller's promise.
    rest::launching(|| unsafe { real::popen(command, mode) })
}

/// Stands in front of `system`. A thread that is cancelled in it keeps what it was launched with, and ends.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn system(command: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    rest::launching(|| unsafe { real::system(command) })
}

unsafe extern "C" fn dlclose_at(handle: usize, at: usize) -> c_int {
    // SAFETY: as the function itself.
    let result = unsafe { real::dlclose(handle) };
    if let Some(_observed) = TRACKER.observe(at) {
        TRACKER.unloaded();
    }
    result
}

extern "C" fn begin_at(at: usize) {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.mark(&mut observed, 1);
    }
}

extern "C" fn end_at(at: usize) {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.mark(&mut observed, 2);
    }
}

extern "C" fn construct() {
    let place = 0usize;
    TRACKER.constructed(&raw const place as usize);
}

extern "C" fn destruct() {
    let place = 0usize;
    TRACKER.finish(&raw const place as usize);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destruct;
