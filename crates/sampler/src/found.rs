//! Finds the processes, or the control group, of a target.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use nearpage_machine::CpuId;

use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::opening::Opening;
use crate::perf_event::Scope;
use crate::processes::Processes;
use crate::target::Target;

/// A target that exists.
#[derive(Debug)]
pub(crate) enum FoundTarget {
    Processes(Vec<Root>),
    /// A control group, and whether the kernel allows events for the group.
    Cgroup(Cgroup, bool),
    All,
}

/// A requested process.
#[derive(Debug)]
pub(crate) struct Root {
    pub pid: u32,
    /// A pidfd, readable once the process has ended; absent before Linux 5.3.
    handle: Option<OwnedFd>,
    ended: bool,
}

impl FoundTarget {
    /// Looks for the target; `None` for a command, which does not run yet.
    pub fn of(
        target: &Target,
        processes: &Processes,
        proc_root: &Path,
    ) -> Result<Option<Self>, Error> {
        Ok(Some(match target {
            Target::Command(_) => return Ok(None),
            Target::Processes(pids) if pids.is_empty() => {
                return Err(Error::Options("no process given".to_owned()));
            }
            Target::Processes(pids) => {
                let roots = pids.iter().map(|pid| Root::find(*pid, processes));
                Self::Processes(roots.collect::<Result<_, _>>()?)
            }
            Target::Cgroup(path) => Self::Cgroup(Cgroup::find(path, proc_root)?, false),
            Target::All => Self::All,
        }))
    }

    /// Tests whether the kernel allows events for the control group.
    pub fn try_cgroup(&mut self, opening: &Opening, cpu: CpuId) {
        if let Self::Cgroup(group, allowed) = self {
            *allowed = opening.try_scope(Scope::CgroupOn(group.raw(), cpu)).is_ok();
        }
    }

    /// Whether events cover the machine or a control group, not single threads.
    pub fn machine_wide(&self) -> bool {
        matches!(self, Self::All | Self::Cgroup(_, true))
    }

    /// Fails if the control group was removed since it was found.
    pub fn still_there(&self) -> Result<(), Error> {
        match self {
            Self::Cgroup(group, _) if !group.exists() => Err(group.vanished()),
            _ => Ok(()),
        }
    }

    /// The present processes of the target, except this one.
    pub fn members(&self, processes: &Processes) -> Vec<u32> {
        let mut members = match self {
            Self::Processes(roots) => {
                let roots: Vec<u32> = roots.iter().map(|root| root.pid).collect();
                processes.with_descendants(&roots)
            }
            Self::Cgroup(group, _) => group.processes(),
            Self::All => processes.all(),
        };
        members.retain(|pid| *pid != std::process::id());
        members
    }
}

impl Root {
    fn find(pid: u32, processes: &Processes) -> Result<Self, Error> {
        let unobservable = |reason: String| Err(Error::Unobservable { pid, reason });
        let (Ok(stat), Ok((process, _))) = (processes.stat(pid), processes.process_and_owner(pid))
        else {
            return Err(Error::NoProcess { pid });
        };
        if process != pid {
            return unobservable(format!(
                "it is a thread of process {process}: attach to that one"
            ));
        } else if pid == std::process::id() {
            return unobservable("it is nearpage itself".to_owned());
        } else if stat.kernel {
            return unobservable(format!(
                "it is a thread of the kernel ({}), which has no memory of its own",
                stat.name
            ));
        } else if !processes.lives(pid) {
            return unobservable(
                "it has ended, and only waits for its parent (a zombie)".to_owned(),
            );
        }
        // SAFETY: the call takes no pointers, and the returned descriptor is ours.
        let handle = unsafe {
            let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int;
            (fd >= 0).then(|| OwnedFd::from_raw_fd(fd))
        };
        Ok(Self {
            pid,
            handle,
            ended: false,
        })
    }

    /// The pidfd of a live process, which is readable once the process has ended.
    pub fn handle(&self) -> Option<libc::c_int> {
        let handle = self.handle.as_ref().filter(|_| !self.ended)?;
        Some(handle.as_raw_fd())
    }

    /// Whether all processes have ended. Updates each of them, so that ended ones are no longer polled.
    pub fn all_ended(roots: &mut [Self], processes: &Processes) -> bool {
        for root in roots.iter_mut() {
            root.check(processes);
        }
        roots.iter().all(|root| root.ended)
    }

    /// Updates `ended`. The process id may be reused, the pidfd not.
    fn check(&mut self, processes: &Processes) {
        if self.ended {
            return;
        }
        self.ended = match &self.handle {
            None => !processes.lives(self.pid),
            Some(handle) => {
                let mut polled = libc::pollfd {
                    fd: handle.as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: one element that outlives the call.
                unsafe { libc::poll(&mut polled, 1, 0) > 0 }
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_goes_is_missed() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("job");
        std::fs::create_dir(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), "").unwrap();
        let target = Target::Cgroup(group.clone());
        let processes = Processes::new(root.path());
        let found = FoundTarget::of(&target, &processes, root.path());
        let found = found.unwrap().unwrap();
        assert!(found.still_there().is_ok());
        std::fs::remove_dir_all(&group).unwrap();
        let line = found.still_there().unwrap_err().to_string();
        let expected = format!(
            "cgroup {}: it was removed while nearpage attached to it: nothing was recorded",
            group.display()
        );
        assert_eq!(line, expected);
    }
}
