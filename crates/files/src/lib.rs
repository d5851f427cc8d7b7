//! Opens files that others wrote, writes where others may write, and makes folders that last as long as a command runs.
//!
//! A name in a recording, in `/proc/PID/maps` or in `/tmp` can stand for anything by the time it is opened: a FIFO, on
//! which `open` waits forever, a device, or a link to another place. Files that nearpage did not write itself a moment
//! before are opened here. Files that the user names on the command line are not, as the user may mean a FIFO.
//!
//! Paths are bytes; [`path_to_text`] encodes them as text without loss. [`MappedFile`] opens a file that a process has
//! mapped, even if the file was deleted since.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

mod names;
mod process;
mod temporary;

pub use names::{bytes_of_text, bytes_to_text, path_from_text, path_to_text, readable};
pub use process::{
    DELETED_SUFFIX, MappedFile, MapsLine, device_numbers, living_thread, memory_folder, path_inside,
};
pub use temporary::TemporaryFolder;

/// Opens a regular file for reading.
///
/// # Errors
/// Errors of the system; [`io::ErrorKind::InvalidInput`] if it is no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before opening, as opening alone has effects on some devices.
    regular(&fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    opened(options.read(true), libc::O_NONBLOCK | libc::O_NOCTTY, path)
}

/// Opens a regular file, not a link to one, for reading and writing.
///
/// # Errors
/// Errors of [`open`].
pub fn open_to_write(path: &Path) -> io::Result<File> {
    regular(&fs::symlink_metadata(path)?)?;
    let mut options = OpenOptions::new();
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
    opened(options.read(true).write(true), flags, path)
}

/// The result of reading or removing a file; `None` if there is none.
///
/// # Errors
/// All errors but [`io::ErrorKind::NotFound`].
pub fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Opens a folder.
///
/// # Errors
/// Errors of the system; [`io::ErrorKind::NotADirectory`].
pub fn open_folder(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NONBLOCK;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Contents of a regular file of at most `bytes_max` bytes.
///
/// # Errors
/// Errors of [`open`]; [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?
        .take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it has more than the {} MiB that are read", bytes_max >> 20),
        )),
        false => Ok(bytes),
    }
}

/// Contents of a regular text file of at most `bytes_max` bytes.
///
/// # Errors
/// Errors of [`read`]; [`io::ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, bytes_max)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Creates a file that only its owner may read, for reading and writing. An existing file or link is removed first.
///
/// # Errors
/// Errors of the system.
pub fn create(path: &Path) -> io::Result<File> {
    let new = || {
        OpenOptions::new()
            .write(true)
            .read(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    };
    match new() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            new()
        }
        made => made,
    }
}

/// Replaces the contents of a file, for its owner alone. The new contents are written beside the file and renamed, so
/// that readers see all of the old or all of the new contents. A full disk leaves the old contents.
///
/// # Errors
/// Errors of the system.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    let beside = path.with_file_name(name);
    let written = create(&beside)
        .and_then(|mut file| file.write_all(contents))
        .and_then(|()| fs::rename(&beside, path));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&beside);
    })
}

/// Whether the path leads to a device or pipe (`/dev/stdout`) that is to be written to, not replaced. False if a user
/// other than root and this one put it there: into a folder of theirs, or `/tmp`.
pub fn is_written_through(path: &Path) -> bool {
    let (Ok(there), Ok(leads_to)) = (fs::symlink_metadata(path), fs::metadata(path)) else {
        return false;
    };
    !leads_to.is_file() && is_of(there.uid(), own_user())
}

/// Whether nobody but root and this user can write to the file, and thus cut it short while it is mapped.
pub fn is_written_by_this_user_alone(metadata: &fs::Metadata) -> bool {
    is_of(metadata.uid(), own_user()) && metadata.mode() & 0o022 == 0
}

/// The user who owns files that this process makes.
pub fn own_user() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

fn is_of(user: u32, own: u32) -> bool {
    user == 0 || user == own
}

fn opened(options: &mut OpenOptions, flags: libc::c_int, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(flags).open(path)?;
    // Another file may have taken the name since the check.
    regular(&file.metadata()?)?;
    Ok(file)
}

fn regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{chown, lchown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn fifo(path: &Path) {
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name ends in a zero byte.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o666) }, 0);
    }

    #[test]
    fn nothing_but_regular_files_is_opened_and_nothing_waits() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fifo(&at("fifo"));
        let _socket = UnixListener::bind(at("socket")).unwrap();
        symlink(at("fifo"), at("link")).unwrap();
        for path in [
            at("fifo"),
            at("socket"),
            at("link"),
            "/dev/null".into(),
            folder.path().into(),
        ] {
            for tried in [open(&path), open_to_write(&path)] {
                let error = tried.expect_err("it is no regular file");
                assert_eq!(
                    error.kind(),
                    io::ErrorKind::InvalidInput,
                    "{}",
                    path.display()
                );
            }
            assert!(read(&path, 10).is_err());
            assert_eq!(open_folder(&path).is_ok(), path == folder.path());
        }
        assert_eq!(
            open(&at("nothing")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn links_are_read_and_never_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "kept").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_text(&link, 4).unwrap(), "kept");
        assert!(open_to_write(&link).is_err());
        assert!(open_to_write(&file).is_ok());
        create(&link).unwrap().write_all(b"new").unwrap();
        assert_eq!(
            [&file, &link].map(|path| fs::read_to_string(path).unwrap()),
            ["kept", "new"]
        );
        assert_eq!(fs::metadata(&link).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn contents_are_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::create_dir(folder.path().join("folder")).unwrap();
        assert!(replace(&folder.path().join("folder"), b"text").is_err());
        let names = fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 2, "nothing is left beside them");
    }

    #[test]
    fn large_files_and_binary_files_are_refused_as_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"\xff\xfe").unwrap();
        assert_eq!(read(&path, 2).unwrap(), b"\xff\xfe");
        assert_eq!(
            read(&path, 1).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        assert_eq!(
            read_text(&path, 2).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn devices_and_pipes_are_written_to_unless_somebody_else_put_them_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fifo(&at("fifo"));
        fs::write(at("file"), "").unwrap();
        symlink("/dev/null", at("link")).unwrap();
        symlink(at("file"), at("to-file")).unwrap();
        for (path, expected) in [
            (at("fifo"), true),
            (at("link"), true),
            ("/dev/null".into(), true),
            (at("file"), false),
            (at("to-file"), false),
            (at("none"), false),
        ] {
            assert_eq!(is_written_through(&path), expected, "{}", path.display());
        }
        assert!(is_of(0, 7) && is_of(7, 7) && !is_of(8, 7));
        // Only root can give files away.
        if chown(at("fifo"), Some(65534), None).is_ok() {
            lchown(at("link"), Some(65534), None).unwrap();
            assert!(!is_written_through(&at("fifo")) && !is_written_through(&at("link")));
        }
    }
}
