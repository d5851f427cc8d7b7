//! Recordings, written, read, converted and refused.

mod assembly;
mod fixtures;
mod import;
mod lies;
mod log;
mod making;
mod modules;
mod tables;
mod trace;
