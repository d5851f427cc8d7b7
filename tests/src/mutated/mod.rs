//! Recordings that lie: their checksums are right, and rows of their tables, words of their logs and of `recording.json` are
//! not. Every command that reads recordings ends by itself, within [`TIME_MAX`] and [`MEMORY_MAX`].
//!
//! [`Trials::run`] copies one of the sound recordings ([`Seeds`]), changes it by a seed and a number
//! (`nearpage_recording::fuzz::mutate`), and runs the commands on it. The sound recordings are made once in a folder: a number
//! means the same as long as these are there.

mod limited;
mod seeds;
mod session;
mod trials;

pub use limited::{MEMORY_MAX, TIME_MAX, Used};
pub use seeds::Seeds;
pub use trials::{COMMANDS, Failure, Trials};
