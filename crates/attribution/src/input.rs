//! What attribution reads.

use nearpage_machine::Machine;
use nearpage_recording::{AccessBatch, ColumnSelection, Mark, Recording, SampleCounts, Tables};

/// Accesses in chunks, in order of time as far as the recorder had them so, that several threads
/// read at once.
pub trait AccessChunks: Sync {
    /// Number of chunks.
    fn chunks(&self) -> usize;

    /// Reads the chunk of a number into a batch, in place of what it held, best in order. Every thread has one of its own.
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

/// Chunks of a recording's table or log.
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

/// A recording.
pub struct Input<'a, A: AccessChunks + ?Sized> {
    /// The accesses.
    pub accesses: &'a A,
    /// Objects, threads, modules and where they were, first touches.
    pub tables: &'a Tables,
    /// Marks of the stable phase; may be empty.
    pub marks: &'a [Mark],
    /// What became of samples.
    pub counts: SampleCounts,
    /// The machine of the recording, for which accesses are remote; absent: none is.
    pub machine: Option<&'a Machine>,
}

impl<'a> Input<'a, Recording> {
    /// All of a recording.
    pub fn new(recording: &'a Recording) -> Self {
        Input {
            accesses: recording,
            tables: &recording.tables,
            marks: &recording.metadata.marks,
            counts: recording.metadata.counts,
            machine: Some(&recording.machine),
        }
    }

    /// The same, with its accesses read through something that looks on.
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

/// Which accesses count.
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

/// How to attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Unit of placement, in bytes: a power of two, 4096 or more.
    pub page_bytes: u64,
    /// Which accesses count.
    pub operations: Operations,
    /// Only accesses within the marked stable phase, of processes that marked one.
    pub stable_phase_only: bool,
    /// Threads that read and add up; 0: as many as there are CPUs to run on. The result is the same.
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
