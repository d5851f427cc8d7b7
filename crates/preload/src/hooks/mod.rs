//! The functions that programs call instead of the C library's.
//!
//! On x86-64 `malloc`, `calloc`, `realloc` and `free` of small objects never leave a few
//! instructions of assembly: subtract from the thread's countdown, compare, jump on to the real
//! function. Everything else enters Rust with the address of the return address as an additional
//! argument, by a jump, so that the program's frame is the next one on the stack.

mod entry;
mod heap;
mod mappings;
mod program;
mod signals;
mod threads;
