//! Errors of attribution.

use thiserror::Error;

/// Why a recording could not be attributed.
#[derive(Debug, Error)]
pub enum Error {
    /// A batch of accesses could not be read.
    #[error("accesses, chunk {chunk} of {chunks}: {source}")]
    Read {
        /// Number of the chunk.
        chunk: usize,
        /// Number of chunks in the recording.
        chunks: usize,
        /// The reader's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The columns of a batch don't fit each other, or name a thread that isn't in the table.
    #[error("accesses, chunk {chunk}: {what}; the recording is damaged, record again")]
    Damaged {
        /// Number of the chunk.
        chunk: usize,
        /// What is wrong with the batch.
        what: String,
    },
    /// The page size is no power of two, or below 4096 bytes.
    #[error("page size {page_bytes}: expected a power of two of 4096 bytes or more")]
    PageSize {
        /// The rejected page size.
        page_bytes: u64,
    },
}
