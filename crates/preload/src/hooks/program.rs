//! What changes the program's code (loading, unloading, replacing it by another), the markers, and
//! this library's own beginning and end.

use core::arch::naked_asm;
use core::ffi::c_int;

use super::entry::{announce, enter};
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
    real::entry(function)
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
