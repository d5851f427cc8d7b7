use std::io;
use std::path::{Path, PathBuf};

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder holds something already.
    #[error("{}: already exists and is not empty; choose another folder with -o, or remove it", .0.display())]
    FolderInUse(PathBuf),
    /// There is no recording.
    #[error("{}: no recording here ({file} is missing); `nearpage record -o DIR -- COMMAND` makes one", folder.display())]
    NotARecording {
        /// The folder that was named.
        folder: PathBuf,
        /// What a recording would have.
        file: &'static str,
    },
    /// Another format version.
    #[error("{}: format version {found}, this nearpage reads version {expected}; record again, or use the nearpage that wrote it", file.display())]
    Version {
        /// The file.
        file: PathBuf,
        /// What it says.
        found: u32,
        /// What this reader knows.
        expected: u32,
    },
    /// A file that is not what it should be.
    #[error("{}: damaged: {cause}; the recording has to be made again", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What was expected and found.
        cause: String,
    },
    /// Another tool's file that is not what it should be, or lacks what a recording needs.
    #[error("{}: {cause}", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
        /// What was expected, found, and what to do.
        cause: String,
    },
    /// A recording of samples where every miss is needed.
    #[error("{}: it has samples only, not every miss: `report`, `plan` and `evaluate` work from it, simulating and \
             downsampling out need a recording made with `nearpage trace`", .0.display())]
    SamplesOnly(PathBuf),
    /// A trace whose end is missing.
    #[error("{}: cut short: what the program did at its end is missing (it was killed, or the disk was full); \
             `report` and `plan` work from what is there, to simulate it has to be recorded again", .0.display())]
    CutShort(PathBuf),
    /// The system refused.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was being done.
        action: &'static str,
        /// What the system said.
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
