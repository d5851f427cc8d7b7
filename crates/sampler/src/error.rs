//! Errors of sampling, with cause and remedy.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Why sampling cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command was not found.
    #[error("{}: command not found", command.display())]
    CommandNotFound {
        /// The command as given.
        command: OsString,
    },
    /// The command exists but cannot be executed.
    #[error("{}: cannot be run: {source}", command.display())]
    NotExecutable {
        /// The command as given.
        command: OsString,
        /// The kernel's reason.
        source: io::Error,
    },
    /// No process could be created for the command.
    #[error("cannot start a process: {source}{}", remedy(source))]
    Launch {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel refused an event.
    #[error("perf_event_open: {}: {}; {}", .0.source, .0.cause, .0.remedy)]
    Refused(Refusal),
    /// The kernel refused a hardware event.
    #[error("{event}: {source}")]
    PmuRefused {
        /// The event in perf's notation.
        event: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The requested source does not work here, or no source does.
    #[error("{0}")]
    NoSource(String),
    /// The kernel refused the memory for records.
    #[error(
        "cannot map {bytes} bytes for the records of a CPU: {source}; raise \
         /proc/sys/kernel/perf_event_mlock_kb or the limit on locked memory (ulimit -l)"
    )]
    RingRefused {
        /// The smallest size that was tried, in bytes.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The process does not exist.
    #[error("process {pid}: there is none with this number")]
    NoProcess {
        /// The process id as given.
        pid: u32,
    },
    /// The process exists but cannot be observed.
    #[error("process {pid}: {reason}")]
    Unobservable {
        /// The process id as given.
        pid: u32,
        /// Why the process cannot be observed.
        reason: String,
    },
    /// The process ended while nearpage attached to it.
    #[error("process {pid} ended while nearpage attached to it: nothing was recorded")]
    EndedMeanwhile {
        /// The process id as given.
        pid: u32,
    },
    /// The path is no control group.
    #[error("cgroup {}: {reason}", path.display())]
    Cgroup {
        /// The path as given.
        path: PathBuf,
        /// Why the control group cannot be used.
        reason: String,
    },
    /// The list of CPUs could not be read.
    #[error(transparent)]
    Cpus(#[from] nearpage_machine::Error),
    /// Machine code of this architecture cannot be decoded.
    #[error(
        "clock samples cannot be decoded on {architecture}: only x86_64 and aarch64 are supported"
    )]
    Architecture {
        /// The architecture in Rust's spelling.
        architecture: &'static str,
    },
    /// The options contradict each other or are invalid.
    #[error("{0}")]
    Options(String),
    /// The receiver of accesses and events failed.
    #[error("cannot write the recording: {0}")]
    Sink(#[source] io::Error),
    /// Waiting for records or for the command failed.
    #[error("cannot wait for samples: {0}")]
    Wait(#[source] io::Error),
}

/// Why the preload library will not be in the command, with a remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoPreload(pub String);

/// The text names no [`SkidSide`](crate::SkidSide).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: expected `before`, `at` or `block`")]
pub struct UnknownSkidSide(pub String);

/// A refused `perf_event_open`, explained.
#[derive(Debug)]
pub struct Refusal {
    /// The kernel's error.
    pub source: io::Error,
    /// Cause of the error.
    pub cause: String,
    /// Remedy for the error.
    pub remedy: String,
}

impl Refusal {
    /// Explains the error of an attempt to open an event. `proc_root` is `/proc`, except in tests.
    pub fn explain(source: io::Error, proc_root: &Path) -> Self {
        let (cause, remedy) = match source.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => match paranoid_level(proc_root) {
                Some(level) if level > 2 => (
                    format!(
                        "kernel.perf_event_paranoid is {level}, which reserves perf events for administrators"
                    ),
                    "run `sysctl kernel.perf_event_paranoid=2`, or give nearpage CAP_PERFMON"
                        .to_owned(),
                ),
                _ => (
                    "a security filter forbids the system call (container seccomp profiles do)"
                        .to_owned(),
                    "allow perf_event_open in the container's seccomp profile, or add CAP_PERFMON"
                        .to_owned(),
                ),
            },
            Some(libc::EMFILE | libc::ENFILE) => (
                "too many open files: two are needed per CPU".to_owned(),
                "raise the limit on open files (ulimit -n)".to_owned(),
            ),
            Some(libc::ENOSYS) => (
                "this kernel, or the sandbox the program runs in, has no perf events".to_owned(),
                "use a kernel with CONFIG_PERF_EVENTS, outside the sandbox".to_owned(),
            ),
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => (
                "this machine has no such event".to_owned(),
                "virtual machines need a PMU passed through for hardware events".to_owned(),
            ),
            Some(libc::ESRCH) => (
                "the process has ended".to_owned(),
                "start it again".to_owned(),
            ),
            _ => (
                "the kernel does not take the event's attributes".to_owned(),
                "Linux 4.1 or later is needed".to_owned(),
            ),
        };
        Self {
            source,
            cause,
            remedy,
        }
    }
}

/// Remedy for a failed creation of a process.
fn remedy(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise ulimit -n",
        Some(libc::EAGAIN) => "; raise ulimit -u",
        _ => "",
    }
}

/// `kernel.perf_event_paranoid`; `None` if it is unknown (the file may be empty).
pub fn paranoid_level(proc_root: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(proc_root.join("sys/kernel/perf_event_paranoid")).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proc_with(level: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("sys/kernel")).unwrap();
        std::fs::write(root.path().join("sys/kernel/perf_event_paranoid"), level).unwrap();
        root
    }

    fn explained(errno: i32, level: &str) -> String {
        let root = proc_with(level);
        Error::Refused(Refusal::explain(
            io::Error::from_raw_os_error(errno),
            root.path(),
        ))
        .to_string()
    }

    #[test]
    fn refusals_name_cause_and_remedy() {
        assert!(explained(libc::EACCES, "4\n").contains("perf_event_paranoid is 4"));
        assert!(explained(libc::EPERM, "2\n").contains("seccomp"));
        assert!(explained(libc::EPERM, "").contains("seccomp"));
        assert!(explained(libc::EMFILE, "2").contains("ulimit -n"));
        assert!(explained(libc::ENOSYS, "2").contains("CONFIG_PERF_EVENTS"));
        let launch = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            Error::Launch { source }.to_string()
        };
        assert!(launch(libc::EMFILE).ends_with("; raise ulimit -n"));
        assert!(launch(libc::EAGAIN).ends_with("; raise ulimit -u"));
        assert!(launch(libc::ENOMEM).ends_with(')'));
    }
}
