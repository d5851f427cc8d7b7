//! Recordings with false content under right checksums: rows of tables, words of logs, or `recording.json` are wrong.
//! Every command that reads recordings must end by itself, within [`TIME_MAX`] and [`MEMORY_MAX`].
//!
//! [`Trials::run`] copies an original recording ([`Seeds`]), changes the copy by a seed and a number
//! (`nearpage_recording::fuzz::mutate`), and runs the commands on the copy. The originals are made once in a folder; a
//! number gives the same changes as long as they stay.

mod limited;
mod seeds;
mod session;
mod trials;

pub use limited::{MEMORY_MAX, ResourceUse, TIME_MAX};
pub use seeds::Seeds;
pub use trials::{COMMANDS, Failure, Trials};
