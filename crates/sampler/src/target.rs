//! The processes to observe.

use std::ffi::OsString;
use std::path::PathBuf;

/// The processes to observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A command with its arguments, which is looked up in PATH and started.
    Command(Vec<OsString>),
    /// Running processes and their descendants, with all their threads.
    Processes(Vec<u32>),
    /// The processes of a control group and of its descendants. The path is the group's folder under `/sys/fs/cgroup`:
    /// absolute, or relative to the mount point of the unified hierarchy.
    Cgroup(PathBuf),
    /// All processes of the machine except the caller.
    All,
}

impl From<Vec<OsString>> for Target {
    fn from(command: Vec<OsString>) -> Self {
        Self::Command(command)
    }
}
