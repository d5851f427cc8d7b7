//! The tracer: a plugin for QEMU that sends every load, store and instruction
//! fetch of an unmodified program, or of a whole guest, through the caches and TLBs of a machine, and writes what they
//! let through into a trace ([`nearpage_wire::trace`]).
//!
//! It is loaded into QEMU (`qemu-x86_64 -plugin libnearpage_tracer.so,setup=FILE,out=FOLDER PROGRAM`),
//! which is why this crate alone is under the GPL-2.0-or-later. It is told what to do by a setup
//! ([`nearpage_wire::tracer_setup`]), and shares nothing else with the rest of nearpage.
//!
//! What the preload library does while it logs the program's allocations is none of the program's: its
//! code is left out, and what others (the unwinder, the C library) do for it, between marks that it
//! executes ([`plugin`]). What the loader does to load it is in the trace.
//!
//! Processes are traced each by itself: caches of one are not invalidated by another, and a forked
//! child starts with cold caches and a file of its own. What a program runs by `exec` is emulated
//! and traced likewise ([`exec`]). A guest under QEMU's system emulator is one trace, whose threads
//! are the guest's CPUs ([`guest`]). In the lab, the machine's model decides how long everything takes in a guest (module `lab`).

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
