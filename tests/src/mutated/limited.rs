//! A command with limits on its time and its memory.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest time that a command may take.
pub const TIME_MAX: Duration = Duration::from_secs(20);
/// Largest address space that a command may have, in bytes.
pub const MEMORY_MAX: u64 = 1 << 30;

/// Time and memory that commands used.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourceUse {
    /// Wall time.
    pub time: Duration,
    /// Resident memory, in bytes.
    pub memory: u64,
}

impl ResourceUse {
    /// The larger value of each field.
    pub fn max(self, other: Self) -> Self {
        Self {
            time: self.time.max(other.time),
            memory: self.memory.max(other.memory),
        }
    }
}

/// A started command, with output to files in `folder`.
pub(super) struct Limited<'a> {
    child: Child,
    began: Instant,
    folder: &'a Path,
    ended: Option<(ExitStatus, ResourceUse)>,
}

impl<'a> Limited<'a> {
    /// Starts a command with standard output and error in the files `out` and `err` of the folder.
    pub fn spawn(mut command: Command, folder: &'a Path) -> io::Result<Self> {
        let limit = libc::rlimit {
            rlim_cur: MEMORY_MAX,
            rlim_max: MEMORY_MAX,
        };
        let no_core = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        let set = move || {
            // SAFETY: reads two structures that outlive the calls, which may be made between fork and exec.
            let failed = unsafe {
                libc::setrlimit(libc::RLIMIT_AS, &limit)
                    | libc::setrlimit(libc::RLIMIT_CORE, &no_core)
            };
            match failed {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // SAFETY: the closure allocates nothing and takes no lock.
        unsafe { command.pre_exec(set) };
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("out"))?)
            .stderr(File::create(folder.join("err"))?)
            .spawn()?;
        Ok(Self {
            child,
            began: Instant::now(),
            folder,
            ended: None,
        })
    }

    /// Is the time limit still ahead?
    pub fn has_time(&self) -> bool {
        self.began.elapsed() < TIME_MAX
    }

    /// Standard output so far.
    pub fn out(&self) -> String {
        fs::read_to_string(self.folder.join("out")).unwrap_or_default()
    }

    /// Kills the command if it still runs.
    pub fn end(&mut self) -> io::Result<()> {
        match self.has_ended()? {
            true => Ok(()),
            false => self.child.kill(),
        }
    }

    /// Has the command ended? Does not wait.
    pub fn has_ended(&mut self) -> io::Result<bool> {
        if self.ended.is_some() {
            return Ok(true);
        }
        let mut status = 0;
        // SAFETY: a structure of numbers, for which zeros are valid values.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        let pid = self.child.id() as libc::pid_t;
        // SAFETY: both variables outlive the call; the child is this process's and has not been waited for.
        match unsafe { libc::wait4(pid, &mut status, libc::WNOHANG, &mut usage) } {
            0 => Ok(false),
            -1 => Err(io::Error::last_os_error()),
            _ => {
                let used = ResourceUse {
                    time: self.began.elapsed(),
                    memory: usage.ru_maxrss as u64 * 1024,
                };
                self.ended = Some((ExitStatus::from_raw(status), used));
                Ok(true)
            }
        }
    }

    /// Waits for the end, or kills the command after [`TIME_MAX`] and returns no status.
    pub fn wait(&mut self) -> io::Result<(Option<ExitStatus>, ResourceUse)> {
        let mut in_time = true;
        while !self.has_ended()? {
            if in_time && !self.has_time() {
                in_time = false;
                self.child.kill()?;
            }
            sleep(Duration::from_millis(2));
        }
        let (status, used) = self.ended.expect("it has ended");
        Ok((in_time.then_some(status), used))
    }

    /// A broken rule in how the command ended.
    pub fn fault(&self, status: Option<ExitStatus>, used: &ResourceUse) -> Option<String> {
        let said = fs::read_to_string(self.folder.join("err")).unwrap_or_default();
        let panic = said
            .lines()
            .position(|line| line.contains("internal error"));
        if let Some(at) = panic {
            let lines: Vec<&str> = said.lines().skip(at).take(2).collect();
            return Some(lines.join(" "));
        }
        let Some(status) = status else {
            return Some(format!("it took longer than {TIME_MAX:?}"));
        };
        if let Some(signal) = status.signal() {
            let last = said.lines().last().unwrap_or_default();
            return Some(format!("signal {signal} ended it: {last}"));
        }
        (used.memory > MEMORY_MAX).then(|| format!("it took {} MiB of memory", used.memory >> 20))
    }
}
