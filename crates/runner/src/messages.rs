//! The file in which the preload library leaves messages ([`nearpage_wire::messages`]).

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nearpage_recording::Messages;
use nearpage_wire::messages::{FILE_BYTES, MAGIC};

use crate::Environment;

/// Makes the file in `folder`, an absolute path, and adds the library's variable for the file to `environment`.
///
/// # Errors
/// A note for the user: without the file, messages of the library are lost.
pub(crate) fn add_file(folder: &Path, environment: &mut Environment) -> Result<(), String> {
    let path = folder.join(Messages::FILE);
    make(&path).map_err(|error| {
        let path = path.display();
        format!(
            "{path}: can't be made ({error}): what the preload library has to say will be missing"
        )
    })?;
    environment.push((nearpage_wire::MESSAGES_VARIABLE.into(), path.into()));
    Ok(())
}

fn make(path: &PathBuf) -> io::Result<()> {
    let mut new = OpenOptions::new();
    let mut file = new.write(true).create_new(true).mode(0o600).open(path)?;
    // The space is allocated on disk, because the program stores into a mapping of the file and would crash on a full
    // disk.
    // SAFETY: the call takes no pointers; the descriptor is open.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, FILE_BYTES as libc::off_t) } {
        0 => file.write_all(&MAGIC),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_all_its_space_and_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = Environment::new();
        add_file(folder.path(), &mut environment).unwrap();
        let (name, path) = &environment[0];
        assert_eq!(name, nearpage_wire::MESSAGES_VARIABLE);
        assert_eq!(std::fs::read(path).unwrap().len(), FILE_BYTES);
        assert_eq!(Messages::read(folder.path()), Messages::default());
        let note = add_file(folder.path(), &mut environment).unwrap_err();
        assert!(
            note.contains("File exists") && environment.len() == 1,
            "{note}"
        );
    }
}
