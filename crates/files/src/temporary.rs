//! Folders that last as long as a command runs.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{memory_folder, own_user};

const PREFIX: &str = "nearpage-";

/// Upper bound of the time in `execve` between a process's new memory and its environment there.
const LAYOUT_OF_MEMORY: Duration = Duration::from_millis(20);

/// A folder that nobody else may write into. Dropping it removes the folder with its contents. If its owner was killed,
/// the next temporary folder that is made removes it.
#[derive(Debug)]
pub struct TemporaryFolder {
    path: PathBuf,
    is_named_to_programs: bool,
    /// The open and locked folder; the kernel releases the lock however this process ends.
    _owned: File,
}

impl TemporaryFolder {
    /// Makes a temporary folder in the system's folder for temporary files; `purpose` becomes part of its name.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(purpose: &str) -> io::Result<Self> {
        Self::below(&std::env::temp_dir(), purpose)
    }

    /// Makes a temporary folder in another folder.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn below(parent: &Path, purpose: &str) -> io::Result<Self> {
        remove_left(parent);
        let name = |number: u32| {
            let process = std::process::id();
            parent.join(format!("{PREFIX}{purpose}-{process}-{number}"))
        };
        let in_parent = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}: {error}", parent.display()))
        };
        for path in (0..1000).map(name) {
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => {
                    if let Some(_owned) = made.and_then(|()| own(&path)).map_err(in_parent)? {
                        return Ok(Self {
                            path,
                            is_named_to_programs: false,
                            _owned,
                        });
                    }
                }
            }
        }
        Err(in_parent(io::ErrorKind::AlreadyExists.into()))
    }

    /// The folder, whose path programs are told by their environment. If one of them goes on when the folder is dropped, the
    /// folder stays, and a temporary folder that is made later removes it.
    #[must_use]
    pub fn named_to_programs(mut self) -> Self {
        self.is_named_to_programs = true;
        self
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Locks and returns the folder; `None` if another process has a lock on it, or has already removed it.
fn own(path: &Path) -> io::Result<Option<File>> {
    let Some(folder) = crate::if_there(File::open(path))? else {
        return Ok(None);
    };
    let is_there = || fs::metadata(path).is_ok_and(|now| now.ino() == own_number(&folder));
    Ok((folder.try_lock().is_ok() && is_there()).then_some(folder))
}

fn own_number(folder: &File) -> u64 {
    folder.metadata().map_or(0, |metadata| metadata.ino())
}

/// Removes folders of this user whose owners were killed, unless a program that an owner left running may still use
/// them. Best effort: folders that stay are small.
fn remove_left(parent: &Path) {
    let user = own_user();
    let is_left = |path: &PathBuf| {
        let metadata = fs::symlink_metadata(path);
        metadata.is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == user)
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let named = entries.filter(|entry| is_name(&entry.file_name().to_string_lossy()));
    for path in named.map(|entry| entry.path()).filter(is_left) {
        if let Ok(Some(_owned)) = own(&path)
            && !is_named_to_a_process(&path)
        {
            let _ = fs::remove_dir_all(&path);
        }
    }
}

/// Whether [`TemporaryFolder::new`] makes such names. Folders that traced programs make have names of another form.
fn is_name(name: &str) -> bool {
    let mut parts = name.strip_prefix(PREFIX).unwrap_or_default().rsplit('-');
    let mut is_number = || parts.next().is_some_and(|part| part.parse::<u32>().is_ok());
    is_number() && is_number() && parts.next().is_some()
}

/// Whether the environment of a running process names the path.
fn is_named_to_a_process(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    let proc_root = Path::new("/proc");
    let environment = |pid| fs::read(memory_folder(proc_root, pid).join("environ")).ok();
    let names = |text: &[u8]| text.windows(name.len()).any(|part| part == name);
    let processes = fs::read_dir(proc_root).into_iter().flatten().flatten();
    let processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut without = Vec::new();
    for pid in processes {
        match environment(pid) {
            Some(text) if names(&text) => return true,
            Some(text) if text.is_empty() => without.push(pid),
            _ => {}
        }
    }
    // `execve` gives a process its new memory a moment before this memory has an environment.
    let has_program = |pid: &u32| proc_root.join(format!("{pid}/exe")).read_link().is_ok();
    without.retain(has_program);
    if without.is_empty() {
        return false;
    }
    std::thread::sleep(LAYOUT_OF_MEMORY);
    without
        .into_iter()
        .filter_map(environment)
        .any(|text| names(&text))
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        if self.is_named_to_programs && is_named_to_a_process(&self.path) {
            return;
        }
        // Best effort: the next temporary folder removes leftovers.
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

    #[test]
    fn a_folder_stays_while_a_program_that_was_told_its_path_goes_on() {
        let parent = tempfile::tempdir().unwrap();
        let named = || {
            let folder = TemporaryFolder::below(parent.path(), "test").unwrap();
            folder.named_to_programs()
        };
        let folder = named();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let mut program = std::process::Command::new("sleep")
            .arg("60")
            .env("LD_LIBRARY_PATH", folder.path())
            .spawn()
            .unwrap();
        drop(folder);
        let stayed = file.exists();
        program.kill().unwrap();
        program.wait().unwrap();
        assert!(stayed);
        // Processes that other tests start have this process's lock for a moment. A new folder may have the same name.
        let is_removed_later = (0..1000).any(|_| {
            drop(named());
            std::thread::sleep(Duration::from_millis(10));
            !file.exists()
        });
        assert!(is_removed_later);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn folders_of_killed_owners_are_removed_unless_a_process_uses_them() {
        let parent = tempfile::tempdir().unwrap();
        let in_use = TemporaryFolder::below(parent.path(), "test").unwrap();
        let left = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("file"), "").unwrap();
            path
        };
        let [unused, named, others, traced] = [
            "nearpage-plan-1-0",
            "nearpage-plan-2-0",
            "somebody-elses-1-0",
            "nearpage-pipes-1",
        ]
        .map(left);
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env("NEARPAGE_PLAN", named.join("file"))
            .spawn()
            .unwrap();
        let next = TemporaryFolder::below(parent.path(), "test").unwrap();
        assert!(next.path().exists() && in_use.path().exists());
        assert!(others.exists() && traced.exists());
        assert!(named.exists() && !unused.exists());
        child.kill().unwrap();
        child.wait().unwrap();
        drop(TemporaryFolder::below(parent.path(), "test").unwrap());
        assert!(!named.exists());
    }
}
