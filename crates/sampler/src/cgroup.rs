//! Control groups (`cgroups(7)`): folders, each with a list of processes.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nearpage_files::{bytes_to_text, path_from_text};

use crate::error::Error;

const PROCESSES_FILE: &str = "cgroup.procs";

#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    folder: File,
}

impl Cgroup {
    /// Finds a group by its folder, or by its path below the mount point of the unified hierarchy.
    pub fn find(path: &Path, proc_root: &Path) -> Result<Self, Error> {
        let fault = |reason: String| Error::Cgroup {
            path: path.to_owned(),
            reason,
        };
        let mounts = fs::read(proc_root.join("self/mountinfo")).unwrap_or_default();
        let mount = mount_point(&mounts);
        let under = |mount: &PathBuf| mount.join(path.strip_prefix("/").unwrap_or(path));
        let places = [
            path.is_absolute().then(|| path.to_owned()),
            mount.as_ref().map(under),
        ];
        let found = places.into_iter().flatten().find(|place| place.is_dir());
        let found = found.ok_or_else(|| {
            fault(match &mount {
                Some(mount) => {
                    format!("there is no such folder, here or under {}", mount.display())
                }
                None => {
                    "there is no such folder, and no unified hierarchy is mounted here".to_owned()
                }
            })
        })?;
        if !found.join(PROCESSES_FILE).exists() {
            return Err(fault(format!(
                "expected the folder of a control group, found one without {PROCESSES_FILE}"
            )));
        }
        let folder = File::open(&found).map_err(|error| fault(error.to_string()))?;
        Ok(Self {
            path: found,
            folder,
        })
    }

    /// File descriptor of the group's folder.
    pub fn raw(&self) -> libc::c_int {
        self.folder.as_raw_fd()
    }

    /// Whether the group still exists.
    pub fn exists(&self) -> bool {
        self.path.join(PROCESSES_FILE).exists()
    }

    /// The error for a group that no longer exists.
    pub fn vanished(&self) -> Error {
        Error::Cgroup {
            path: self.path.clone(),
            reason: "it was removed while nearpage attached to it: nothing was recorded".to_owned(),
        }
    }

    /// Processes in the group and in its descendants.
    pub fn processes(&self) -> Vec<u32> {
        let mut found = Vec::new();
        // Groups may vanish while they are read.
        let _ = add_processes(&self.path, &mut found);
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn add_processes(folder: &Path, found: &mut Vec<u32>) -> io::Result<()> {
    let text = fs::read_to_string(folder.join(PROCESSES_FILE))?;
    found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = add_processes(&entry.path(), found);
        }
    }
    Ok(())
}

/// Mount point of the unified hierarchy in `/proc/self/mountinfo`.
pub(crate) fn mount_point(mounts: &[u8]) -> Option<PathBuf> {
    let mounts = bytes_to_text(mounts);
    mounts.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let path = mount.split(' ').nth(4)?;
        kind.starts_with("cgroup2 ")
            .then(|| path_from_text(path).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_with_those_in_them() {
        let root = tempfile::tempdir().unwrap();
        let mount = root.path().join("cgroup");
        let inner = mount.join("jobs/one/inner");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(root.path().join("proc/self")).unwrap();
        let mounts = format!(
            "24 1 0:22 / /proc rw - proc proc rw\n\
             35 24 0:30 / {} rw,nosuid - cgroup2 cgroup2 rw\n",
            mount.display()
        );
        let proc_root = root.path().join("proc");
        // Other mount points may have names that are not UTF-8.
        let mounts = [b"23 1 0:21 / /caf\xe9 rw - tmpfs t rw\n", mounts.as_bytes()].concat();
        fs::write(proc_root.join("self/mountinfo"), mounts).unwrap();
        fs::write(mount.join("jobs/one/cgroup.procs"), "12\n7\n").unwrap();
        fs::write(inner.join("cgroup.procs"), "9\n12\n").unwrap();
        for path in [
            Path::new("jobs/one"),
            Path::new("/jobs/one"),
            &mount.join("jobs/one"),
        ] {
            let group = Cgroup::find(path, &proc_root).unwrap();
            assert_eq!(group.processes(), [7, 9, 12]);
            assert!(group.exists());
        }
        let group = Cgroup::find(Path::new("jobs/one"), &proc_root).unwrap();
        fs::remove_dir_all(mount.join("jobs/one")).unwrap();
        assert!(!group.exists() && group.processes().is_empty());
        let says = |path: &str| {
            Cgroup::find(Path::new(path), &proc_root)
                .unwrap_err()
                .to_string()
        };
        assert!(
            says("jobs/two").contains("no such folder, here or under"),
            "{}",
            says("jobs/two")
        );
        assert!(
            says("jobs").contains("without cgroup.procs"),
            "{}",
            says("jobs")
        );
    }
}
