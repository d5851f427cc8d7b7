//! An output file that appears complete or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The content is written to a temporary file, which [`finish`](WholeFile::finish) renames; a drop before that removes
/// the temporary file. If the path is no regular file, such as `/dev/null` or a pipe, the content is written directly.
pub struct WholeFile {
    path: PathBuf,
    /// Path of the temporary file; `None`: the content is written directly.
    beside: Option<PathBuf>,
    out: BufWriter<File>,
}

impl WholeFile {
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let beside = beside(path);
        let file =
            File::create(beside.as_deref().unwrap_or(path)).with_context(|| refused(path))?;
        Ok(Self {
            path: path.to_owned(),
            beside,
            out: BufWriter::new(file),
        })
    }

    /// Checks that the file can be made, by making and removing it. A missing or foreign folder shows before the work.
    pub fn check(path: &Path) -> anyhow::Result<()> {
        if beside(path).is_some() {
            Self::create(path)?;
        }
        Ok(())
    }

    /// Writes a file with these contents.
    pub fn write(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
        let mut file = Self::create(path)?;
        let written = file.out.write_all(contents);
        written.with_context(|| refused(path))?;
        file.finish()
    }

    pub fn finish(mut self) -> anyhow::Result<()> {
        self.put_in_place().with_context(|| refused(&self.path))
    }

    fn put_in_place(&mut self) -> std::io::Result<()> {
        self.out.flush()?;
        if let Some(beside) = &self.beside {
            self.out.get_ref().sync_all()?;
            fs::rename(beside, &self.path)?;
            self.beside = None;
        }
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}

fn beside(path: &Path) -> Option<PathBuf> {
    if nearpage_files::is_written_through(path) {
        return None;
    }
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}", std::process::id()));
    Some(path.with_file_name(name))
}

fn refused(path: &Path) -> String {
    format!("{}: can't be written", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn an_unfinished_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a file");
        WholeFile::write(&path, b"old").unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"new").unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["a file"]);
        WholeFile::write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["a file"]);
    }

    #[test]
    fn devices_stay_devices() {
        use std::os::unix::fs::FileTypeExt;
        WholeFile::check(Path::new("/dev/null")).unwrap();
        WholeFile::write(Path::new("/dev/null"), b"text").unwrap();
        let there = fs::metadata("/dev/null").unwrap();
        assert!(there.file_type().is_char_device());
        let full = WholeFile::write(Path::new("/dev/full"), b"text").unwrap_err();
        assert_eq!(full.to_string(), "/dev/full: can't be written");
    }

    #[test]
    fn folders_that_are_not_there_show_early() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not there/file");
        let error = WholeFile::check(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{}: can't be written", path.display())
        );
        WholeFile::check(&folder.path().join("file")).unwrap();
        assert!(names(folder.path()).is_empty());
    }
}
