use std::io;
use std::path::{Path, PathBuf};

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder is not empty.
    #[error("{}: already exists and is not empty; choose another folder with -o, or remove it", .0.display())]
    FolderInUse(PathBuf),
    /// The folder has no recording.
    #[error("{}: no recording here ({file} is missing); `nearpage record -o DIR -- COMMAND` makes one", folder.display())]
    NotARecording {
        /// The folder that was named.
        folder: PathBuf,
        /// Name of the missing file.
        file: &'static str,
    },
    /// The file has another format version.
    #[error("{}: format version {found}, this nearpage reads version {expected}; record again, or use the nearpage that wrote it", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version that this reader supports.
        expected: u32,
    },
    /// The file has invalid contents.
    #[error("{}: damaged: {cause}; the recording has to be made again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was expected and found.
        cause: String,
    },
    /// Another tool's file has invalid contents, or lacks data that a recording needs.
    #[error("{}: {cause}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What was expected, found, and what to do.
        cause: String,
    },
    /// The recording has samples only, where every miss is needed.
    #[error("{}: it has samples only, not every miss: `report`, `plan` and `evaluate` work from it, simulating and \
             downsampling out need a recording made with `nearpage trace`", .0.display())]
    SamplesOnly(PathBuf),
    /// The end of the trace is missing.
    #[error("{}: cut short: what the program did at its end is missing (it was killed, or the disk was full); \
             `report` and `plan` work from what is there, to simulate it has to be recorded again", .0.display())]
    CutShort(PathBuf),
    /// The operating system refused an operation.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The operation, as a verb that follows "cannot".
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn damaged(file: &Path, cause: impl ToString) -> Self {
        Self::Damaged {
            file: file.to_owned(),
            cause: cause.to_string(),
        }
    }
}

/// Adds the file and the action to an I/O error.
pub(crate) trait IoContext<T> {
    fn at(self, file: &Path, action: &'static str) -> Result<T, Error>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn at(self, file: &Path, action: &'static str) -> Result<T, Error> {
        self.map_err(|source| Error::Io {
            file: file.to_owned(),
            action,
            source,
        })
    }
}
