//! Whom to observe.

use std::ffi::OsString;
use std::path::PathBuf;

/// Whom to observe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A command that is started for it: command and arguments; looked for in PATH.
    Command(Vec<OsString>),
    /// Running processes and their descendants, with all their threads.
    Processes(Vec<u32>),
    /// The processes of a control group and of the groups in it: its folder under `/sys/fs/cgroup`,
    /// absolute or from the mount point of the unified hierarchy on.
    Cgroup(PathBuf),
    /// Every process of the machine but the caller's own.
    All,
}

impl From<Vec<OsString>> for Target {
    fn from(command: Vec<OsString>) -> Self {
        Self::Command(command)
    }
}
