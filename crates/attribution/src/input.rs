//! Input of attribution.

use nearpage_machine::Machine;
use nearpage_recording::{AccessBatch, ColumnSelection, Mark, Recording, SampleCounts, Tables};

/// Accesses in chunks, nearly in order of time, that several threads can read at once.
pub trait AccessChunks: Sync {
    /// Number of chunks.
    fn chunks(&self) -> usize;

    /// Returns a function that reads a chunk by number into a batch and replaces the batch's contents. Reading in
    /// order is fastest. Each thread needs its own reader.
    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError>;
}

/// Why a chunk can't be read.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// Batches in memory.
impl AccessChunks for [AccessBatch] {
    fn chunks(&self) -> usize {
        self.len()
    }

    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
        |chunk, batch| {
            batch.clone_from(&self[chunk]);
            Ok(())
        }
    }
}

/// Chunks of a recording's table of accesses, or of the log of an unfinished recording.
impl AccessChunks for Recording {
    fn chunks(&self) -> usize {
        self.access_chunks()
    }

    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
        let columns = ColumnSelection {
            level: false,
            resolution: false,
            skid_bytes: false,
            ..ColumnSelection::ALL
        };
        let mut reader = self.chunk_reader();
        move |chunk, batch| Ok(reader.read(chunk, columns, batch)?)
    }
}

/// A recording, or parts of one, to attribute.
pub struct Input<'a, A: AccessChunks + ?Sized> {
    /// The accesses.
    pub accesses: &'a A,
    /// Objects, threads, modules with their mappings, and first touches.
    pub tables: &'a Tables,
    /// Marks of the stable phase; may be empty.
    pub marks: &'a [Mark],
    /// Numbers of samples that were kept and lost, by reason.
    pub counts: SampleCounts,
    /// Machine of the recording, whose nodes tell remote accesses; without a machine, no access counts as remote.
    pub machine: Option<&'a Machine>,
}

impl<'a> Input<'a, Recording> {
    /// The whole recording as input.
    pub fn new(recording: &'a Recording) -> Self {
        Input {
            accesses: recording,
            tables: &recording.tables,
            marks: &recording.metadata.marks,
            counts: recording.metadata.counts,
            machine: Some(&recording.machine),
        }
    }

    /// The same input with its accesses read through `accesses`.
    #[must_use]
    pub fn through<A: AccessChunks + ?Sized>(self, accesses: &'a A) -> Input<'a, A> {
        let Self {
            tables,
            marks,
            counts,
            machine,
            ..
        } = self;
        Input {
            accesses,
            tables,
            marks,
            counts,
            machine,
        }
    }
}

/// Kinds of accesses to attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operations {
    /// Loads, stores and fetches.
    #[default]
    Both,
    /// Loads and fetches.
    Loads,
    /// Stores.
    Stores,
}

/// Options of an attribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Unit of placement, in bytes: a power of two, 4096 or more.
    pub page_bytes: u64,
    /// Kinds of accesses that count.
    pub operations: Operations,
    /// Whether processes that marked a stable phase count within this phase only.
    pub stable_phase_only: bool,
    /// Number of threads that read and add up; 0: one per available CPU. The result does not depend on this number.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            page_bytes: 4096,
            operations: Operations::Both,
            stable_phase_only: true,
            workers: 0,
        }
    }
}
