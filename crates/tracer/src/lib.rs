//! The tracer: a plugin for QEMU that sends every load, store and instruction
//! fetch of an unmodified program, or of a whole guest, through the caches and TLBs of a machine, and writes what they
//! let through into a trace ([`nearpage_wire::trace`]).
//!
//! It is loaded into QEMU (`qemu-x86_64 -plugin libnearpage_tracer.so,setup=FILE,out=FOLDER PROGRAM`),
//! which is why this crate alone is under the GPL-2.0-or-later. It is told what to do by a setup
//! ([`nearpage_wire::tracer_setup`]), and shares nothing else with the rest of nearpage.
//!
//! The preload library's own work inside the program (logging allocations) is left out of the trace: its code by
//! address, and what the unwinder and the C library do on its behalf by marks that it executes ([`plugin`]). Loading the
//! library is in the trace.
//!
//! Each process is traced by itself: caches of one are not invalidated by another, and a forked child starts with cold caches
//! and a file of its own. Programs that a program runs by `exec` are emulated and traced, too ([`exec`]). A guest under
//! QEMU's system emulator is one trace, whose threads are the guest's CPUs ([`guest`]). In the lab, the model of the machine
//! decides how long everything in a guest takes (module `lab`).

pub mod caches;
pub mod calls;
pub mod children;
pub mod dependences;
pub mod directory;
pub mod error;
pub mod exec;
pub mod futexes;
pub mod guest;
mod instructions;
pub mod l1;
mod lab;
pub mod lock;
pub mod lockstep;
pub mod maps;
pub mod memory;
pub mod messages;
pub mod output;
pub mod pages;
pub mod pipes;
pub mod plugin;
pub mod process;
pub mod qemu;
pub mod serial;
pub mod sets;
pub mod system;
pub mod thread;
pub mod tlb;
mod vcpus;
