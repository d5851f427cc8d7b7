//! Hooks of functions that create threads and fork or end processes.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use super::entry::enter;
use crate::new_threads::NEW_THREADS;
use crate::place::unmatched_memory;
use crate::real;
use crate::replicas;
use crate::thread::Thread;
use crate::tracker::{TRACKER, ThreadStart};

enter! {
    pthread_create => pthread_create_at, "r8", "x4";
    thrd_create => thrd_create_at, "rcx", "x3";
}

/// First code of a new thread: notes that the thread begins, and jumps to the program's start routine without a frame of
/// its own.
#[unsafe(naked)]
unsafe extern "C" fn thread_entry() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {begin}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        begin = sym begin_thread,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        "bl {begin}",
        "mov x16, x0",
        "mov x0, x1",
        "ldp x29, x30, [sp], #16",
        ".cfi_def_cfa sp, 0",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "br x16",
        ".cfi_endproc",
        begin = sym begin_thread,
    );
}

/// Creates a thread through `create`, which gets the routine and argument to start it with.
unsafe fn create_thread(
    start: usize,
    argument: usize,
    attributes: *const c_void,
    at: usize,
    create: impl FnOnce(usize, usize) -> c_int,
) -> c_int {
    // SAFETY: the attributes are the program's; the record is given back by the new thread, or here
    // when there is none.
    unsafe {
        let Some(new_thread) = TRACKER.thread_is_created(start, argument, attributes, at) else {
            return create(start, argument);
        };
        let Some(record) = NEW_THREADS.take() else {
            TRACKER.thread_is_not_created(&new_thread);
            return create(start, argument);
        };
        let result = unmatched_memory::creating_thread(|resumes_unmatched| {
            record.write(ThreadStart {
                resumes_unmatched,
                ..new_thread
            });
            create(thread_entry as *const () as usize, record as usize)
        });
        if result != 0 {
            TRACKER.thread_is_not_created(&new_thread);
            NEW_THREADS.give_back(record);
        }
        result
    }
}

/// The start routine of the program, and its argument.
#[repr(C)]
struct Start {
    routine: usize,
    argument: usize,
}

unsafe extern "C" fn begin_thread(record: *mut ThreadStart) -> Start {
    // SAFETY: `create_thread` wrote the record and left it to this thread.
    unsafe {
        let new_thread = record.read();
        NEW_THREADS.give_back(record);
        TRACKER.thread_begins(&new_thread);
        if new_thread.resumes_unmatched {
            unmatched_memory::resume();
        }
        Start {
            routine: new_thread.start_routine,
            argument: new_thread.argument,
        }
    }
}

unsafe extern "C" fn pthread_create_at(
    thread: *mut usize,
    attributes: *const c_void,
    start: usize,
    argument: usize,
    at: usize,
) -> c_int {
    // SAFETY: as the function itself.
    unsafe {
        create_thread(start, argument, attributes, at, |start, argument| {
            real::pthread_create(thread, attributes, start, argument)
        })
    }
}

unsafe extern "C" fn thrd_create_at(
    thread: *mut usize,
    start: usize,
    argument: usize,
    at: usize,
) -> c_int {
    // SAFETY: as the function itself.
    unsafe {
        create_thread(start, argument, core::ptr::null(), at, |start, argument| {
            real::thrd_create(thread, start, argument)
        })
    }
}

unsafe fn fork_through(real: unsafe fn() -> c_int) -> c_int {
    let mut entered = Thread::enter();
    // SAFETY: as the function itself. The token is held, so that handlers of the program that run
    // in the child before this function returns there write nothing into the parent's log.
    let pid = unsafe { real() };
    if pid == 0 {
        replicas::forked();
        if let Some((thread, _token)) = &mut entered {
            TRACKER.forked_child(thread);
        }
    }
    pid
}

/// Stands in front of `fork`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fork_through(real::fork) }
}

/// Stands in front of `_Fork`.
///
/// # Safety
/// As the function itself.
#[unsafe(export_name = "_Fork")]
pub unsafe extern "C" fn fork_async() -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fork_through(real::_fork) }
}

/// Stands in front of `_exit` and `_Exit`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) {
    TRACKER.finish(Thread::pointer());
    // SAFETY: the caller's promise.
    unsafe { real::_exit(status) }
}

/// Stands in front of `_Exit`.
///
/// # Safety
/// As the function itself.
#[unsafe(export_name = "_Exit")]
pub unsafe extern "C" fn exit_at_once(status: c_int) {
    // SAFETY: the caller's promise.
    unsafe { _exit(status) }
}
