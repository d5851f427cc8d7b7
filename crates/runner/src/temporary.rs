//! Folders for as long as a command runs.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, IoContext};

/// A folder that nobody else may write into, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    /// Makes one; `purpose` becomes part of its name.
    pub(crate) fn new(purpose: &str) -> Result<Self, Error> {
        let name = |number: u32| {
            let process = std::process::id();
            std::env::temp_dir().join(format!("nearpage-{purpose}-{process}-{number}"))
        };
        let make = |path: &PathBuf| fs::DirBuilder::new().mode(0o700).create(path);
        let failure = "can't make a temporary folder";
        for path in (0..1000).map(name) {
            match make(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.at(&path, failure).map(|()| Self { path }),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into()).at(&name(0), failure)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Best effort: what stays behind is small files in the temporary folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn folders_are_private_differ_and_go() {
        let [one, other] = ["test", "test"].map(|purpose| TemporaryFolder::new(purpose).unwrap());
        assert_ne!(one.path(), other.path());
        let mode = fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::write(one.path().join("file"), "").unwrap();
        let path = one.path().to_owned();
        drop(one);
        assert!(!path.exists() && other.path().exists());
    }
}
