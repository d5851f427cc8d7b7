//! The files in a recording's folder, and how they are put in place.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nearpage_machine::Machine;

use crate::error::IoContext;
use crate::storage::checksums::{Checksums, TableChecksums};
use crate::{Error, Metadata};

/// Format version of `recording.json` and of the tables.
pub const FORMAT_VERSION: u32 = 1;
/// File with the metadata of the whole recording.
pub const METADATA_FILE: &str = "recording.json";
/// File with the machine on which the recording was made.
pub const MACHINE_FILE: &str = "machine.toml";
/// Folder of the logs; removed once the logs have become tables.
pub const LOG_FOLDER: &str = "log";
/// Folder of the trace, with a file per process image.
pub const TRACE_FOLDER: &str = "trace";
/// Name of [`LOG_FOLDER`] while it is removed.
const REMOVED_LOG_FOLDER: &str = "log.removed";
/// Attempts to remove a folder in which processes make files that had found it by its former name.
const REMOVALS_MAX: usize = 100;
/// The recorder's own log, in [`LOG_FOLDER`].
pub const RECORDER_LOG_FILE: &str = "recorder.log";

/// Size limit of `recording.json` and `machine.toml`, which have a line for each process and node and are read whole.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// Locks the folder while the returned file is open, to say that a recorder is at work there. Best effort: not every
/// file system has locks.
pub(crate) fn lock(folder: &Path) -> Result<File, Error> {
    let opened = nearpage_files::open_folder(folder).at(folder, "open")?;
    match opened.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::FolderInUse(folder.to_owned())),
        _ => Ok(opened),
    }
}

/// Whether a recorder is at work in the folder.
pub fn has_recorder(folder: &Path) -> bool {
    let locked = nearpage_files::open_folder(folder).map(|opened| opened.try_lock());
    matches!(locked, Ok(Err(TryLockError::WouldBlock)))
}

/// Creates `folder` with mode 0700, or takes an existing empty folder.
pub(crate) fn create(folder: &Path) -> Result<(), Error> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).at(parent, "create the folder")?;
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {
            if fs::read_dir(folder)
                .at(folder, "read the folder")?
                .next()
                .is_some()
            {
                return Err(Error::FolderInUse(folder.to_owned()));
            }
            fs::set_permissions(folder, Permissions::from_mode(0o700))
                .at(folder, "set the mode of")?;
        }
        other => other.at(folder, "create the folder")?,
    }
    let logs = folder.join(LOG_FOLDER);
    match DirBuilder::new().mode(0o700).create(&logs) {
        // Another recorder took the empty folder at the same time.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(Error::FolderInUse(folder.to_owned()))
        }
        created => created.at(&logs, "create the folder"),
    }
}

/// Temporary path of a file until it is renamed to `file`.
pub(crate) fn unfinished(file: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".unfinished");
    file.with_file_name(name)
}

pub(crate) fn create_file(file: &Path) -> Result<File, Error> {
    nearpage_files::create(file).at(file, "create")
}

/// Replaces the contents of `file` atomically: readers see all of the old or all of the new contents.
pub(crate) fn replace(file: &Path, contents: &[u8]) -> io::Result<()> {
    let unfinished = unfinished(file);
    nearpage_files::create(&unfinished)?.write_all(contents)?;
    fs::rename(&unfinished, file)
}

/// Like [`replace`], with an error that names the file.
fn replace_file(file: &Path, contents: &[u8]) -> Result<(), Error> {
    replace(file, contents).at(file, "write")
}

/// Writes `recording.json`. `checksums` are those of the tables, or empty before any is written.
pub(crate) fn write_metadata(
    folder: &Path,
    metadata: &Metadata,
    checksums: &TableChecksums,
) -> Result<(), Error> {
    #[derive(serde::Serialize)]
    struct Whole<'a> {
        #[serde(flatten)]
        metadata: &'a Metadata,
        #[serde(skip_serializing_if = "TableChecksums::is_empty")]
        tables: &'a TableChecksums,
    }
    let whole = Whole {
        metadata,
        tables: checksums,
    };
    // People read this file, too. A job has one per rank, so indentation is a single space.
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    let written = serde::Serialize::serialize(&whole, &mut serializer);
    written.map_err(|error| Error::damaged(folder, error))?;
    text.push(b'\n');
    replace_file(&folder.join(METADATA_FILE), &text)
}

pub(crate) fn read_metadata(folder: &Path) -> Result<Metadata, Error> {
    /// The version is read first, so that a later version is reported as such and not as damage.
    #[derive(serde::Deserialize)]
    struct VersionOnly {
        version: u32,
    }
    let file = folder.join(METADATA_FILE);
    let text = match nearpage_files::read_text(&file, TEXT_BYTES_MAX) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Err(Error::NotARecording {
                folder: folder.to_owned(),
                file: METADATA_FILE,
            });
        }
        read => read.at(&file, "read")?,
    };
    let VersionOnly { version } =
        serde_json::from_str(&text).map_err(|error| Error::damaged(&file, error))?;
    if version != FORMAT_VERSION {
        return Err(Error::Version {
            file,
            found: version,
            expected: FORMAT_VERSION,
        });
    }
    serde_json::from_str(&text).map_err(|error| Error::damaged(&file, error))
}

/// Reads the tables' checksums from `recording.json`.
pub(crate) fn read_checksums(folder: &Path) -> Result<TableChecksums, Error> {
    #[derive(serde::Deserialize)]
    struct ChecksumsOnly {
        #[serde(default)]
        tables: TableChecksums,
    }
    let file = folder.join(METADATA_FILE);
    let text = nearpage_files::read_text(&file, TEXT_BYTES_MAX).at(&file, "read")?;
    let ChecksumsOnly { tables } =
        serde_json::from_str(&text).map_err(|error| Error::damaged(&file, error))?;
    Ok(tables)
}

/// Replaces a table's checksum in `recording.json`, and leaves all other entries unchanged.
pub(crate) fn replace_checksum(folder: &Path, table: &str, sums: &Checksums) -> Result<(), Error> {
    let file = folder.join(METADATA_FILE);
    let text = nearpage_files::read_text(&file, TEXT_BYTES_MAX).at(&file, "read")?;
    let mut whole: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| Error::damaged(&file, error))?;
    whole["tables"][table] = sums.to_string().into();
    replace_file(&file, whole.to_string().as_bytes())
}

pub(crate) fn write_machine(folder: &Path, machine: &Machine) -> Result<(), Error> {
    replace_file(&folder.join(MACHINE_FILE), machine.to_toml().as_bytes())
}

pub(crate) fn read_machine(folder: &Path) -> Result<Machine, Error> {
    let file = folder.join(MACHINE_FILE);
    let text = nearpage_files::read_text(&file, TEXT_BYTES_MAX).at(&file, "read")?;
    let machine: Machine =
        toml::from_str(&text).map_err(|error| Error::damaged(&file, error.message()))?;
    machine
        .validate()
        .map_err(|fault| Error::damaged(&file, fault))?;
    Ok(machine)
}

/// Removes the logs of a recording whose accesses are in tables. Processes of the program may live on and start others,
/// each of which makes a log. So the folder first gets another name, under which they don't find it.
///
/// # Errors
/// The folder cannot be renamed or removed.
pub(crate) fn remove_logs(folder: &Path) -> Result<(), Error> {
    let removed = folder.join(REMOVED_LOG_FOLDER);
    let logs = folder.join(LOG_FOLDER);
    fs::rename(&logs, &removed).at(&logs, "rename the folder")?;
    let mut attempts = 1;
    loop {
        match fs::remove_dir_all(&removed) {
            Err(error)
                if error.kind() == ErrorKind::DirectoryNotEmpty && attempts < REMOVALS_MAX =>
            {
                attempts += 1;
            }
            done => return done.at(&removed, "remove the folder"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_removed_while_processes_make_new_ones() {
        let scratch = tempfile::tempdir().unwrap();
        let logs = scratch.path().join(LOG_FOLDER);
        fs::create_dir(&logs).unwrap();
        File::create(logs.join("begun")).unwrap();
        let makes_logs = || {
            let made =
                (0..).take_while(|number| File::create(logs.join(number.to_string())).is_ok());
            made.count()
        };
        std::thread::scope(|scope| {
            let made = [scope.spawn(makes_logs), scope.spawn(makes_logs)];
            while fs::read_dir(&logs).unwrap().count() < 100 {
                std::hint::spin_loop();
            }
            remove_logs(scratch.path()).unwrap();
            assert!(made.into_iter().all(|made| made.join().is_ok()));
        });
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
