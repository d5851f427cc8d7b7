//! Plan files: read only if they are small enough for a plan, written whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Error, JobPlan, Plan, PlanFile};

/// No plan is this large; a larger file is something else.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl Plan {
    /// Reads a plan file.
    ///
    /// # Errors
    /// The file is unreadable, or no plan: the message names file and line.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_toml(&read_text(path)?, &path.display().to_string())
    }

    /// Reads a plan file that was found in a folder, not named by the user: only a regular file.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn read_found(path: &Path) -> Result<Self, Error> {
        let text =
            nearpage_files::read_text(path, FILE_BYTES_MAX).map_err(|source| Error::Read {
                path: path.to_owned(),
                source,
            })?;
        Self::from_toml(&text, &path.display().to_string())
    }

    /// Writes a plan file, whole or not at all: an earlier file stays until the new one is complete. Devices and pipes,
    /// such as `/dev/null`, are written to and stay. Links, and FIFOs or devices of another user, are replaced by the
    /// file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_text(path, &self.to_toml())
    }
}

impl PlanFile {
    /// Reads a plan file.
    ///
    /// # Errors
    /// As [`Plan::read`].
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_toml(&read_text(path)?, &path.display().to_string())
    }
}

impl JobPlan {
    /// Writes a plan file, as [`Plan::write`] does.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        write_text(path, &self.to_toml())
    }
}

fn write_text(path: &Path, text: &str) -> Result<(), Error> {
    write_whole(path, text.as_bytes()).map_err(|source| Error::Write {
        path: path.to_owned(),
        source,
    })
}

/// Reads a text file of bounded size.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    let read = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).map_err(read)?.len() > FILE_BYTES_MAX {
        return Err(read(io::Error::other("it is too large to be a plan")));
    }
    fs::read_to_string(path).map_err(read)
}

/// Writes a file that does not exist yet, and flushes it to the disk.
pub(crate) fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Writes a file beside `path` and renames it, so that a reader sees the old file or the new one.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path
        .file_name()
        .ok_or_else(|| io::Error::other("it names no file"))?;
    if nearpage_files::is_written_through(path) {
        return fs::write(path, content);
    }
    let mut beside = OsString::from(".");
    beside.push(name);
    beside.push(format!(".{}", unique()));
    let beside = path.with_file_name(beside);
    write_new(&beside, content)
        .and_then(|()| fs::rename(&beside, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&beside);
        })
}

/// A name that differs between processes and between calls; later names sort behind earlier ones.
pub(crate) fn unique() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    format!("{:020}-{:06}-{}", now.as_nanos(), call, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("plan.toml");
        let plan =
            Plan::from_toml("version = 1\nprogram = { executable = \"cg\" }", "p").expect("plan");
        plan.write(&path).expect("written");
        plan.write(&path).expect("replaced");
        assert_eq!(Plan::read(&path).expect("read"), plan);
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1);
        let missing = folder.path().join("none/plan.toml");
        assert!(
            plan.write(&missing)
                .expect_err("no folder")
                .to_string()
                .contains("none/plan.toml")
        );
        assert!(
            Plan::read(&missing)
                .expect_err("no file")
                .to_string()
                .contains("none/plan.toml")
        );
        // With a folder in the way the rename fails, and nothing stays behind.
        fs::create_dir(folder.path().join("d.toml")).expect("folder");
        assert!(plan.write(&folder.path().join("d.toml")).is_err());
        assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 2);
    }
}
