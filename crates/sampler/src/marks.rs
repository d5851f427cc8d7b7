//! Notices when a program marks the beginning of its stable part. The preload library counts these marks in its log
//! ([`nearpage_wire::allocation_log`]).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use nearpage_wire::allocation_log::MARKS_OFFSET;

/// Time between two looks.
const LOOK_NS: u64 = 50_000_000;
/// Largest number of watched processes. A program with more processes marks no common stable part.
const PROCESSES_MAX: usize = 64;

/// Marks of the processes that log into a folder.
#[derive(Debug)]
pub(crate) struct Marks {
    folder: PathBuf,
    folder_changed: Option<SystemTime>,
    logs: BTreeMap<OsString, WatchedLog>,
    next_look_ns: u64,
}

/// A process's log. Its file stays open: opening it for every look would be most of what a look costs.
#[derive(Debug, Default)]
struct WatchedLog {
    file: Option<File>,
    marks: u64,
}

impl WatchedLog {
    /// Whether there are more marks than at the last look.
    fn has_new_ones(&mut self, path: &Path) -> bool {
        if self.file.is_none() {
            self.file = nearpage_files::open(path).ok();
        }
        let mut count = [0; 8];
        let file = self.file.as_ref();
        let read = file.map(|file| file.read_exact_at(&mut count, MARKS_OFFSET as u64));
        if !matches!(read, Some(Ok(()))) {
            return false;
        }
        let before = std::mem::replace(&mut self.marks, u64::from_le_bytes(count));
        self.marks > before
    }
}

impl Marks {
    pub fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            folder_changed: None,
            logs: BTreeMap::new(),
            next_look_ns: 0,
        }
    }

    /// Whether a process has marked a beginning since the last look. Reads the logs at intervals of [`LOOK_NS`].
    pub fn new_ones(&mut self, now_ns: u64) -> bool {
        if now_ns < self.next_look_ns {
            return false;
        }
        self.next_look_ns = now_ns + LOOK_NS;
        self.look_for_logs();
        let mut marked = false;
        for (name, log) in &mut self.logs {
            marked |= log.has_new_ones(&self.folder.join(name));
        }
        marked
    }

    fn look_for_logs(&mut self) {
        let changed = fs::metadata(&self.folder).and_then(|folder| folder.modified());
        let changed = changed.ok();
        if changed.is_some() && changed == self.folder_changed {
            return;
        }
        self.folder_changed = changed;
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for name in entries.map(|entry| entry.file_name()) {
            let text = name.to_string_lossy();
            let is_first = text.starts_with("alloc-") && text.ends_with("-0.log");
            if is_first && self.logs.len() < PROCESSES_MAX {
                self.logs.entry(name).or_default();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_every_process_are_noticed_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut marks = Marks::new(folder.path());
        let mut now_ns = 0;
        let mut look = || {
            now_ns += LOOK_NS;
            marks.new_ones(now_ns)
        };
        let write = |name: &str, count: u64| {
            let mut header = [0; 64];
            header[MARKS_OFFSET..][..8].copy_from_slice(&count.to_le_bytes());
            // Like the program's, stores go to the same file.
            let mut new = fs::OpenOptions::new();
            let file = new.create(true).write(true).truncate(false);
            let file = file.open(folder.path().join(name)).unwrap();
            file.write_all_at(&header, 0).unwrap();
        };
        assert!(!look());
        write("alloc-7-1-0.log", 0);
        write("alloc-7-1-10.log", 9);
        write("samples-7.ring", 9);
        assert!(!look());
        write("alloc-7-1-0.log", 1);
        assert!(look() && !look());
        write("alloc-8-2-0.log", 2);
        assert!(look() && !look());
        // A log that is shorter than its header.
        fs::write(folder.path().join("alloc-9-2-0.log"), [1]).unwrap();
        assert!(!look());
    }

    #[test]
    fn between_two_looks_nothing_is_read() {
        let mut marks = Marks::new(Path::new("/nonexistent"));
        assert!(!marks.new_ones(5));
        assert_eq!(marks.next_look_ns, 5 + LOOK_NS);
        assert!(!marks.new_ones(6));
        assert_eq!(marks.next_look_ns, 5 + LOOK_NS);
    }
}
