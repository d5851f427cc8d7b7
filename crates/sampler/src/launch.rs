//! Starts the command as a process that waits until events have been opened on it.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::error::Error;

/// The command's process, which first waits and then runs.
#[derive(Debug)]
pub(crate) struct Child {
    pub pid: libc::pid_t,
    /// A pidfd, readable once the process has ended; absent before Linux 5.3.
    pub ended: Option<OwnedFd>,
    command: OsString,
    /// Pipe that lets the process continue when it is closed.
    barrier: Option<OwnedFd>,
    /// Pipe into which the process writes why it could not be executed.
    failure: OwnedFd,
    status: Option<ExitStatus>,
}

impl Child {
    /// Creates a process that waits before it executes `command`. The environment is the caller's with `environment`
    /// added. The process ignores the signals `ignored` and those that the caller ignores.
    pub fn waiting(
        command: &[OsString],
        environment: &[(OsString, OsString)],
        ignored: &[libc::c_int],
    ) -> Result<Self, Error> {
        let name = command
            .first()
            .ok_or_else(|| Error::Options("no command given".to_owned()))?;
        let launch = |source| Error::Launch { source };
        let nul = |_| {
            launch(io::Error::new(
                io::ErrorKind::InvalidInput,
                "an argument contains a zero byte",
            ))
        };
        let strings = |all: Vec<OsString>| {
            all.into_iter()
                .map(|one| CString::new(one.into_vec()))
                .collect::<Result<Vec<_>, _>>()
                .map_err(nul)
        };
        let arguments = strings(command.to_vec())?;
        let variables = strings(merged(std::env::vars_os(), environment))?;
        let arguments = pointers(&arguments);
        let variables = pointers(&variables);
        let (wait, barrier) = pipe().map_err(launch)?;
        let (failure, report) = pipe().map_err(launch)?;
        // SAFETY: between fork and exec, the child calls nothing that allocates or locks.
        let pid = match unsafe { libc::fork() } {
            -1 => return Err(launch(io::Error::last_os_error())),
            0 => {
                // SAFETY: this is the child. Its copies of the descriptors are open, and the vectors end with null and
                // point to live strings.
                unsafe { become_command(&wait, &barrier, &report, &arguments, &variables, ignored) }
            }
            pid => pid,
        };
        // SAFETY: the call takes no pointers, and the returned descriptor is ours.
        let ended = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int;
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        Ok(Self {
            pid,
            ended,
            command: name.clone(),
            barrier: Some(barrier),
            failure,
            status: None,
        })
    }

    /// Lets the process execute the command. Returns after the exec, or the error if it failed.
    pub fn execute(&mut self) -> Result<(), Error> {
        self.barrier = None;
        let mut errno = [0u8; 4];
        // SAFETY: reads at most the buffer's length. The read ends when exec closes the other end.
        let read =
            retry(|| unsafe { libc::read(self.failure.as_raw_fd(), errno.as_mut_ptr().cast(), 4) });
        if read != 4 {
            return Ok(());
        }
        self.wait(0).map_err(Error::Wait)?;
        let source = io::Error::from_raw_os_error(i32::from_ne_bytes(errno));
        let command = self.command.clone();
        Err(match source.kind() {
            io::ErrorKind::NotFound => Error::CommandNotFound { command },
            _ => Error::NotExecutable { command, source },
        })
    }

    /// Status of the process if it has ended.
    pub fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.wait(libc::WNOHANG)
    }

    pub fn signal(&mut self, signal: libc::c_int) {
        if self.status.is_none() {
            // SAFETY: the call takes no pointers. The process has not been waited for, so the id is still its own.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    fn wait(&mut self, options: libc::c_int) -> io::Result<Option<ExitStatus>> {
        if self.status.is_some() {
            return Ok(self.status);
        }
        let mut status = 0;
        // SAFETY: writes one integer to `status`.
        let waited = retry(|| unsafe { libc::waitpid(self.pid, &mut status, options) } as isize);
        match waited {
            -1 => return Err(io::Error::last_os_error()),
            0 => (),
            _ => self.status = Some(ExitStatus::from_raw(status)),
        }
        Ok(self.status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A process that still waits must not start when the barrier closes.
        if self.barrier.is_some() {
            self.signal(libc::SIGKILL);
            let _ = self.wait(0);
        }
    }
}

/// # Safety
/// Only for a freshly forked child. `arguments` and `variables` point to strings and end with null.
unsafe fn become_command(
    wait: &OwnedFd,
    barrier: &OwnedFd,
    report: &OwnedFd,
    arguments: &[*const libc::c_char],
    variables: &[*const libc::c_char],
    ignored: &[libc::c_int],
) -> ! {
    // SAFETY: the caller keeps the conditions above, and every call here is safe between fork and exec.
    unsafe {
        libc::close(barrier.as_raw_fd());
        let mut byte = 0u8;
        retry(|| libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1));
        for &signal in ignored {
            libc::signal(signal, libc::SIG_IGN);
        }
        libc::execvpe(arguments[0], arguments.as_ptr(), variables.as_ptr());
        let errno = (*libc::__errno_location()).to_ne_bytes();
        libc::write(report.as_raw_fd(), errno.as_ptr().cast(), 4);
        libc::_exit(127)
    }
}

fn merged(
    inherited: impl Iterator<Item = (OsString, OsString)>,
    added: &[(OsString, OsString)],
) -> Vec<OsString> {
    let kept = inherited.filter(|(name, _)| !added.iter().any(|(other, _)| other == name));
    kept.chain(added.iter().cloned())
        .map(|(name, value)| [&name, OsStr::new("="), &value].concat_os())
        .collect()
}

trait ConcatOs {
    fn concat_os(&self) -> OsString;
}

impl ConcatOs for [&OsStr] {
    fn concat_os(&self) -> OsString {
        OsString::from_vec(
            self.iter()
                .flat_map(|part| part.as_bytes())
                .copied()
                .collect(),
        )
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|one| one.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: writes two descriptors into `ends`, which are ours then.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// Repeats a system call that a signal interrupted.
fn retry(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let result = call();
        if result != -1 || io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return result;
        }
    }
}

/// A process's status as a shell shows it: the exit status, or 128 plus the number of the signal that ended it.
pub fn shell_status(status: ExitStatus) -> u8 {
    let of_signal = || status.signal().map(|signal| 128 + signal);
    let shown = status.code().or_else(of_signal).unwrap_or(1);
    shown.clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(words: &[&str]) -> Child {
        let command: Vec<OsString> = words.iter().map(Into::into).collect();
        Child::waiting(&command, &[("NEARPAGE_TEST".into(), "7".into())], &[]).unwrap()
    }

    #[test]
    fn passes_the_status_on() {
        for (script, status) in [
            ("exit $NEARPAGE_TEST", 7),
            ("kill -TERM $$", 143),
            ("true", 0),
        ] {
            let mut child = child(&["sh", "-c", script]);
            assert_eq!(child.status().unwrap(), None);
            child.execute().unwrap();
            let ended = child.wait(0).unwrap();
            assert_eq!(ended.map(shell_status), Some(status));
            assert_eq!(child.status().unwrap(), ended);
        }
    }

    #[test]
    fn says_why_a_command_cannot_run() {
        let error = child(&["nearpage-no-such-command"]).execute().unwrap_err();
        assert!(matches!(error, Error::CommandNotFound { .. }), "{error}");
        let error = child(&["/"]).execute().unwrap_err();
        assert!(matches!(error, Error::NotExecutable { .. }), "{error}");
        assert!(matches!(
            Child::waiting(&[], &[], &[]),
            Err(Error::Options(_))
        ));
    }

    #[test]
    fn a_command_that_never_went_never_runs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        drop(child(&["sh", "-c", &format!("echo ran > {path}")]));
        assert_eq!(std::fs::read(path).unwrap(), b"");
    }
}
