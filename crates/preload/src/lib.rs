//! The preload library: what nearpage puts into the programs it observes and places.
//!
//! The dynamic loader loads `libnearpage_preload.so` before the C library (`LD_PRELOAD`), so that
//! its functions stand in front of the allocator's, `mmap` and `pthread_create`. It writes the
//! allocation log ([`nearpage_wire::allocation_log`]) when `NEARPAGE_LOG` names a folder, and
//! enforces a plan ([`nearpage_wire::compact_plan`]) when `NEARPAGE_PLAN` names one. When
//! `NEARPAGE_SAMPLES` names a folder, it samples the program too ([`nearpage_wire::samples`]). When
//! `NEARPAGE_REPLICAS` names a table, files come from copies on the process's node ([`replicas`]). With none of these
//! variables, or with `NEARPAGE_DISABLE=1`, every call goes straight to the C library.
//!
//! It decides nothing, uses no standard library, and never unwinds or ends the program. It takes no heap memory of the program
//! (except for a record of each new thread) and waits for no lock that the program can hold. A failure inside switches
//! the library off; one line about it is left for the recorder ([`message`]).
//!
//! `operator new` and `delete` are not hooked. Those of the C++ runtimes call `malloc` and `free`, and stacks are unwound
//! through them. Objects of an allocator that replaces both `malloc` and `new` (tcmalloc, jemalloc, mimalloc) are not
//! seen where the program calls `new`; the recording says so. If this library exported these names, it would choose the
//! C++ runtime for plugins of C programs, which load their own runtime in a scope that this library cannot see.
//!
//! For the same reason no function of an OpenMP runtime is exported. If a phase of the plan begins with a parallel region,
//! the calls of the region's module are redirected one by one ([`regions`]).
//!
//! # Reading order
//! `hooks` (the exported functions) → `tracker` (what happens then) → `log`, `call_site`,
//! `sampling`, `sample_heap` and `large` (how that is logged) → `place` (plans) → `signal` (samples taken by this
//! library). What keeps the program unharmed: `launch` (programs that it executes), `seccomp` (filters of system
//! calls), `deepbind` (libraries that bypass the hooks). Below them: `thread`
//! (thread-local state), `real` and `loader` (the functions behind), `sys`, `message`,
//! `environment`.
//!
//! ```sh
//! mkdir /tmp/log
//! NEARPAGE_LOG=/tmp/log LD_PRELOAD=target/debug/libnearpage_preload.so ls
//! ls /tmp/log    # alloc-PID-START-0.log
//! ```
#![cfg_attr(not(test), no_std)]
#![cfg_attr(test, allow(dead_code))]

pub mod bounds;
pub mod call_site;
pub mod new_threads;
pub use nearpage_wire::checksum;
pub mod deepbind;
pub mod environment;
#[cfg(not(test))]
pub mod hooks;
pub mod large;
pub mod launch;
pub mod left_out;
pub mod loader;
pub mod log;
pub mod message;
pub mod modules;
pub mod pin;
pub mod place;
pub mod plan;
pub mod real;
pub mod regions;
pub mod replicas;
pub mod sample_heap;
pub mod sampling;
pub mod seccomp;
pub mod signal;
pub mod standard_thread;
pub mod sys;
pub mod thread;
pub mod touch;
pub mod tracker;

#[cfg(not(test))]
#[link(name = "c")]
unsafe extern "C" {}

/// Nothing here panics on purpose. After a panic the thread must neither continue in an unknown
/// state nor unwind into C: the process ends as by `abort`, after one line for the recorder.
#[cfg(not(test))]
#[panic_handler]
fn panic(information: &core::panic::PanicInfo<'_>) -> ! {
    message::line(format_args!(
        "internal error, please report it: {information}"
    ));
    loop {
        core::hint::spin_loop();
        // SAFETY: ends the process; 134 is what a shell shows for an abort.
        let _ = unsafe { sys::call(sys::number::EXIT_GROUP, [134, 0, 0, 0, 0, 0]) };
    }
}

// The precompiled `core` was made for unwinding and names a personality routine. This one says
// "continue unwinding" (8), in case the C++ runtime ever comes by.
#[cfg(all(not(test), target_arch = "x86_64"))]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "mov eax, 8",
    "ret"
);
#[cfg(all(not(test), target_arch = "aarch64"))]
core::arch::global_asm!(
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    "rust_eh_personality:",
    "mov w0, #8",
    "ret"
);
