//! Processes that existed before they were observed: their membership in the target, and their mappings.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use nearpage_files::DELETED_SUFFIX;
use nearpage_recording::elf::ElfFile;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::mappings::{Change, Mappings};
use crate::processes::{Mapping, Processes};

/// Processes whose records count.
#[derive(Clone, Debug)]
pub(crate) enum Members {
    /// All processes.
    All,
    /// These processes and their descendants.
    Processes(FxHashSet<u32>),
}

/// State of a known process.
#[derive(Clone, Debug)]
enum KnownProcess {
    /// No member: a kernel thread.
    Other,
    Member(Mappings),
}

/// A thread that was found running.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundThread {
    pub tid: u32,
    pub name: String,
}

/// Processes with their mappings.
#[derive(Debug)]
pub(crate) struct Discovery {
    processes: Processes,
    members: Members,
    own_pid: u32,
    known: FxHashMap<u32, KnownProcess>,
    /// Build-ids by device and inode.
    build_ids: FxHashMap<(u64, u64), Vec<u8>>,
    /// Processes with samples since the last look.
    seen: FxHashSet<u32>,
    /// Live processes whose mappings could not be read.
    pub unreadable: FxHashSet<u32>,
}

impl Discovery {
    pub fn new(processes: Processes, members: Members) -> Self {
        Self {
            processes,
            members,
            own_pid: std::process::id(),
            known: FxHashMap::default(),
            build_ids: FxHashMap::default(),
            seen: FxHashSet::default(),
            unreadable: FxHashSet::default(),
        }
    }

    /// Whether records of this process count.
    pub fn admits(&self, pid: u32) -> bool {
        // Process 0 is the idle task. A process at its end has no number any more.
        if pid == 0 || pid == u32::MAX || pid == self.own_pid {
            return false;
        }
        match &self.members {
            Members::All => !matches!(self.known.get(&pid), Some(KnownProcess::Other)),
            Members::Processes(members) => members.contains(&pid),
        }
    }

    /// Adds processes to the members.
    pub fn include(&mut self, pids: impl IntoIterator<Item = u32>) {
        if let Members::Processes(members) = &mut self.members {
            members.extend(pids);
        }
    }

    /// Threads and mappings of a process that is met for the first time; none if the process is known or no member.
    pub fn meet(&mut self, pid: u32, mapped: impl FnMut(Mapping, &[u8])) -> Vec<FoundThread> {
        self.seen.insert(pid);
        if self.known.contains_key(&pid) || !self.admits(pid) {
            return Vec::new();
        }
        if self.processes.stat(pid).is_ok_and(|stat| stat.kernel) {
            self.known.insert(pid, KnownProcess::Other);
            return Vec::new();
        }
        self.known
            .insert(pid, KnownProcess::Member(Mappings::default()));
        let threads = self.threads(pid);
        match self.processes.mappings(pid) {
            Ok(all) => self.now(pid, &all, mapped, |_| ()),
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied && self.processes.lives(pid) =>
            {
                self.unreadable.insert(pid);
            }
            Err(_) => {}
        }
        threads
    }

    pub fn threads(&self, pid: u32) -> Vec<FoundThread> {
        let threads = self.processes.threads(pid).into_iter();
        threads
            .map(|tid| FoundThread {
                tid,
                name: self.processes.name(pid, tid).unwrap_or_default(),
            })
            .collect()
    }

    /// Compares a process's present mappings with the known ones: reports new mappings with build-id, and removed
    /// ranges.
    pub fn now(
        &mut self,
        pid: u32,
        all: &[Mapping],
        mut mapped: impl FnMut(Mapping, &[u8]),
        mut unmapped: impl FnMut(std::ops::Range<u64>),
    ) {
        let Some(KnownProcess::Member(mappings)) = self.known.get_mut(&pid) else {
            return;
        };
        let (processes, build_ids) = (&self.processes, &mut self.build_ids);
        mappings.now(all, |change| match change {
            Change::Mapped(mapping) => {
                let build_id = build_id(processes, build_ids, pid, &mapping);
                mapped(mapping, build_id);
            }
            Change::Unmapped(range) => unmapped(range),
        });
    }

    /// Enters a mapping from a kernel record and reports the parts that are new.
    pub fn map(&mut self, pid: u32, mapping: &Mapping, mut mapped: impl FnMut(Mapping)) {
        if let Some(KnownProcess::Member(mappings)) = self.known.get_mut(&pid) {
            mappings.map(mapping, |change| {
                if let Change::Mapped(part) = change {
                    mapped(part);
                }
            });
        }
    }

    /// Enters a forked process; false if its parent is unknown.
    pub fn fork(&mut self, parent_pid: u32, pid: u32) -> bool {
        if let Members::Processes(members) = &mut self.members
            && members.contains(&parent_pid)
        {
            members.insert(pid);
        }
        match self.known.get(&parent_pid) {
            Some(KnownProcess::Member(mappings)) => {
                let mappings = mappings.clone();
                self.known.insert(pid, KnownProcess::Member(mappings));
                true
            }
            _ => false,
        }
    }

    /// Forgets the mappings of a process that executes another program.
    pub fn exec(&mut self, pid: u32) {
        self.known
            .insert(pid, KnownProcess::Member(Mappings::default()));
    }

    /// Forgets a process that ended, as its number may be reused.
    pub fn end(&mut self, pid: u32) {
        self.known.remove(&pid);
        self.seen.remove(&pid);
        if let Members::Processes(members) = &mut self.members {
            members.remove(&pid);
        }
    }

    /// Members with records since the last call.
    pub fn take_seen(&mut self) -> Vec<u32> {
        let mut seen: Vec<u32> = self.seen.drain().collect();
        seen.retain(|pid| matches!(self.known.get(pid), Some(KnownProcess::Member(_))));
        seen.sort_unstable();
        seen
    }
}

/// Build-id of the file behind an executable mapping; empty if there is none.
fn build_id<'a>(
    processes: &Processes,
    known: &'a mut FxHashMap<(u64, u64), Vec<u8>>,
    pid: u32,
    mapping: &Mapping,
) -> &'a [u8] {
    const EXECUTABLE: u32 = libc::PROT_EXEC as u32;
    if mapping.protection & EXECUTABLE == 0 || !mapping.of_file() {
        return &[];
    }
    let mut path = processes.file(pid, &mapping.path);
    // Another file may have the path of a deleted file.
    let is_nameless = mapping.path.ends_with(DELETED_SUFFIX);
    let mapped = is_nameless.then(|| processes.mapped_file(pid, mapping));
    let nameless = mapped.flatten().and_then(|mapped| mapped.open().ok());
    if let Some(file) = &nameless {
        path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    }
    let Ok(metadata) = fs::metadata(&path) else {
        return &[];
    };
    known
        .entry((metadata.dev(), metadata.ino()))
        .or_insert_with(|| {
            let file = ElfFile::open(&path).ok();
            file.map(|file| file.build_id_bytes()).unwrap_or_default()
        })
}
