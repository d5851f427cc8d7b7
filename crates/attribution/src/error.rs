//! What can go wrong.

use thiserror::Error;

/// Why a recording could not be attributed.
#[derive(Debug, Error)]
pub enum Error {
    /// A batch of accesses could not be read.
    #[error("accesses, chunk {chunk} of {chunks}: {source}")]
    Read {
        /// Number of the chunk.
        chunk: usize,
        /// Of how many.
        chunks: usize,
        /// Its reader's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The columns of a batch don't fit each other, or name a thread that isn't in the table.
    #[error("accesses, chunk {chunk}: {what}; the recording is damaged, record again")]
    Damaged {
        /// Number of the chunk.
        chunk: usize,
        /// What was found.
        what: String,
    },
    /// Pages of a size that no machine has.
    #[error("page size {page_bytes}: expected a power of two of 4096 bytes or more")]
    PageSize {
        /// The size in question.
        page_bytes: u64,
    },
}
