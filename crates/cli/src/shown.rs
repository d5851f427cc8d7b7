//! The screen of `live` and `top`: the terminal for the screen, and the output of the command meanwhile.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use nearpage_screen::{Kind, Subject};

use crate::terminal;

/// Minimum width of a screen, in columns.
const COLUMNS_MIN: usize = 60;

/// The terminal for the screen; `None` without a terminal, or if it is too simple, too narrow or in the background.
pub fn screen_terminal() -> Option<File> {
    let error = io::stderr();
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
    if !error.is_terminal() || is_dumb || !nearpage_screen::is_ours(&error) {
        return None;
    }
    (terminal::width_of(&error)? >= COLUMNS_MIN)
        .then(|| error.as_fd().try_clone_to_owned().ok().map(File::from))
        .flatten()
}

/// Subject of the screen, from the daemon's first record.
pub fn subject(kind: Kind, head: &nearpage_live::Head, dry_run: bool) -> Subject {
    Subject {
        kind,
        policy: head.policy.clone(),
        nodes: head.nodes.clone(),
        page_bytes: head.page_bytes,
        dry_run,
    }
}

/// Lines to print later: while standard error belongs to the command, or before the screen starts.
#[derive(Default)]
pub struct DeferredLines(RefCell<Vec<String>>);

impl DeferredLines {
    pub fn say(&self, line: &str) {
        self.0.borrow_mut().push(line.to_owned());
    }

    /// Takes the lines out.
    pub fn take(&self) -> Vec<String> {
        self.0.take()
    }
}

/// Standard descriptors that a command is to inherit. Dropping the value restores them.
pub struct HandedOver {
    /// Each replaced descriptor, with a copy of the original.
    saved: Vec<(libc::c_int, OwnedFd)>,
}

impl HandedOver {
    /// Redirects output from the terminal into `file`; with `everything`, other output as well.
    pub fn output(file: &File, everything: bool) -> io::Result<Self> {
        let mut handed_over = Self { saved: Vec::new() };
        if everything || io::stdout().is_terminal() {
            handed_over.replace(libc::STDOUT_FILENO, io::stdout().as_fd(), file)?;
        }
        if everything || io::stderr().is_terminal() {
            handed_over.replace(libc::STDERR_FILENO, io::stderr().as_fd(), file)?;
        }
        Ok(handed_over)
    }

    /// Replaces input from a terminal by `/dev/null`, because the screen reads the keys.
    pub fn without_keys(mut self) -> io::Result<Self> {
        if io::stdin().is_terminal() {
            let nothing = File::open("/dev/null")?;
            self.replace(libc::STDIN_FILENO, io::stdin().as_fd(), &nothing)?;
        }
        Ok(self)
    }

    fn replace(
        &mut self,
        descriptor: libc::c_int,
        now: std::os::fd::BorrowedFd,
        by: &File,
    ) -> io::Result<()> {
        let saved = now.try_clone_to_owned()?;
        // SAFETY: the call takes no pointers; both descriptors are open.
        if unsafe { libc::dup2(by.as_raw_fd(), descriptor) } < 0 {
            return Err(io::Error::last_os_error());
        }
        self.saved.push((descriptor, saved));
        Ok(())
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        for (descriptor, saved) in self.saved.drain(..) {
            // SAFETY: the call takes no pointers; both descriptors are open.
            unsafe { libc::dup2(saved.as_raw_fd(), descriptor) };
        }
    }
}

/// File for the command's output: the named file, or an unnamed temporary file.
pub fn output_file(path: Option<&Path>) -> anyhow::Result<File> {
    if let Some(path) = path {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        return file.open(path).with_context(|| path.display().to_string());
    }
    let unnamed = OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(libc::O_TMPFILE)
        .open(std::env::temp_dir());
    // Not every file system supports O_TMPFILE.
    unnamed
        .or_else(|_| in_memory())
        .context("no file for what the command prints")
}

fn in_memory() -> io::Result<File> {
    // SAFETY: the name is a constant C string; the returned descriptor is new and has no other owner.
    unsafe {
        match libc::memfd_create(c"output".as_ptr(), libc::MFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// Prints the command's output where it would have gone: on standard output if that is a terminal, else standard error.
pub fn print_output(mut file: File) -> io::Result<()> {
    file.seek(SeekFrom::Start(0))?;
    match io::stdout().is_terminal() {
        true => io::copy(&mut file, &mut io::stdout().lock())?,
        false => io::copy(&mut file, &mut io::stderr().lock())?,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn output_without_a_name_is_kept_and_read_again() {
        for file in [
            output_file(None).expect("a file"),
            in_memory().expect("memory"),
        ] {
            let mut file = file;
            file.write_all(b"one\n").expect("written");
            file.seek(SeekFrom::Start(0)).expect("a file");
            let mut text = String::new();
            file.read_to_string(&mut text).expect("text");
            assert_eq!(text, "one\n");
        }
    }
}
