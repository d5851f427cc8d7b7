//! Observations of one run of a program: accesses, objects, threads, call sites and the machine, in memory and on disk.
//!
//! The types of this crate are the nouns that every later stage works on. The crate samples nothing and decides
//! nothing. A recording is a folder. While a run lasts, the folder holds an append-only framed log ([`log`]),
//! afterwards Parquet tables. Readers take both. `docs/reference/recording-format.md` has every file and column.
//!
//! A [`LogWriter`] writes a recording, and [`Recording::open`] reads one:
//!
//! ```no_run
//! use std::path::Path;
//!
//! let recording = nearpage_recording::Recording::open(Path::new("program.nearpage"))?;
//! for batch in recording.accesses() {
//!     let batch = batch?;
//!     println!("{} accesses from {} ns on", batch.len(), batch.time_ns[0]);
//! }
//! let mut symbols = recording.symbols();
//! if let Some((module, offset)) = recording.resolve(1234, recording.metadata.begin_ns, 0x5555_5555_5139) {
//!     println!("{}", symbols.instruction(module, offset)[0].function);
//! }
//! # Ok::<(), nearpage_recording::Error>(())
//! ```

mod access;
pub mod allocation_log;
mod assemble;
mod cached;
mod check;
pub mod convert;
pub mod elf;
mod error;
pub mod folder;
#[doc(hidden)]
pub mod fuzz;
pub mod import;
mod jit;
mod job;
mod launched;
pub mod log;
mod messages;
mod metadata;
mod nameless;
mod no_log;
mod origin;
mod recording;
mod shared;
mod source_lines;
mod storage;
mod symbols;
mod tables;
pub mod trace;

pub use access::{Access, AccessBatch, AccessKind, Level, Resolution, Source};
pub use error::Error;

pub use jit::generated_code;
pub use job::{Job, RankRecording, rank_words};
pub use launched::{Binding, Launched, Launcher, fit_for_a_file};
pub use log::{Finished, LogWriter};
pub use messages::Messages;
pub use metadata::{Attached, Metadata, RateChange, Status, ThreadPinning};
pub use no_log::{NoLog, UnsampledPrograms};
pub use origin::Origin;
pub use recording::{ChunkReader, ColumnSelection, Recording};
pub use storage::{LabelledAccess, LabelledTable, TablesWriter};
pub use symbols::{MachineCode, Symbols};
pub use tables::{
    CallSite, CallSiteId, Event, FirstTouch, Frame, Mark, Module, ModuleId, ModuleMapping, Object,
    ObjectId, ObjectKind, SampleCounts, Tables, Thread, ThreadIndex,
};

/// Version of everything that nearpage prints or serves as JSON. A key that is removed or changes its meaning takes the
/// next number.
pub const JSON_VERSION: u32 = 1;
