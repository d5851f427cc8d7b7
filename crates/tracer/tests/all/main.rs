//! The tracer against other code: its caches against plain ones, and the plugin inside QEMU against a
//! recount, against valgrind, and against programs that are hard on it.
//!
//! Needs gcc, qemu-user, valgrind and taskset.

mod batches;
mod emulated;
mod lockstep;
mod model;
mod plain;
