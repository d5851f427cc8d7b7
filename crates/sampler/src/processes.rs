//! Running processes in `/proc` (`proc(5)`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nearpage_files::{
    MappedFile, MapsLine, living_thread, memory_folder, path_from_text, path_inside, path_to_text,
};
use nearpage_perf_abi::FileId;
use rustc_hash::{FxHashMap, FxHashSet};

/// `/proc`, or a substitute in tests.
#[derive(Clone, Debug)]
pub(crate) struct Processes {
    root: PathBuf,
}

/// Fields of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub name: String,
    pub state: char,
    pub parent: u32,
    /// Whether the process is a kernel thread.
    pub kernel: bool,
    /// Start time in clock ticks since boot.
    pub started: u64,
}

impl Stat {
    /// Whether the thread has ended and only waits to be reaped. A process's state is its main thread's: other threads
    /// may still run.
    pub fn ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X' | 'x')
    }

    /// Parses `PID (NAME) STATE PPID PGRP SESSION TTY TPGID FLAGS …`, with the start time in field 22. The name may
    /// contain any character.
    pub fn parse(text: &str) -> Option<Self> {
        const PF_KTHREAD: u64 = 0x0020_0000;
        let (begin, end) = (text.find('(')?, text.rfind(')')?);
        let mut fields = text.get(end + 1..)?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let parent = fields.next()?.parse().ok()?;
        let flags: u64 = fields.nth(4)?.parse().ok()?;
        let started = fields.nth(12)?.parse().ok()?;
        Some(Self {
            name: text.get(begin + 1..end)?.to_owned(),
            state,
            parent,
            kernel: flags & PF_KTHREAD != 0,
            started,
        })
    }
}

/// Start time of a process in clock ticks since boot, which differs between processes that use the same id. `None` if
/// there is no such process.
pub fn process_started(pid: u32) -> Option<u64> {
    let stat = Processes::new(Path::new("/proc")).stat(pid).ok()?;
    Some(stat.started)
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub begin: u64,
    pub end: u64,
    pub file_offset: u64,
    /// `PROT_…` bits.
    pub protection: u32,
    /// The file whose pages the mapping shares with other processes.
    pub shared: Option<FileId>,
    /// The path as in the kernel's records: a file, `[heap]`, `[anon:NAME]`…; `//anon` for lines without a path. Paths
    /// that are not UTF-8 are encoded by [`nearpage_files::path_to_text`].
    pub path: String,
}

impl Mapping {
    /// Whether the mapping is of a file.
    pub fn of_file(&self) -> bool {
        self.path.starts_with('/') && !self.path.starts_with("//")
    }

    /// Mappings in `text`, the contents of `/proc/PID/maps`; invalid lines are skipped.
    pub fn all(text: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let lines = text.split(|byte| *byte == b'\n');
        lines.filter_map(MapsLine::parse).filter_map(Self::of_line)
    }

    /// `None` if the range is empty.
    fn of_line(line: MapsLine) -> Option<Self> {
        let bits = [
            (b'r', libc::PROT_READ),
            (b'w', libc::PROT_WRITE),
            (b'x', libc::PROT_EXEC),
        ];
        let bits = bits
            .iter()
            .filter(|(letter, _)| line.permissions.contains(letter));
        let protection = bits.fold(0, |all, (_, bit)| all | *bit as u32);
        let file = FileId {
            device: line.device,
            inode: line.inode,
        };
        let is_shared = line.permissions.contains(&b's');
        let file = (line.inode != 0).then_some(file);
        (!line.range.is_empty()).then(|| Self {
            begin: line.range.start,
            end: line.range.end,
            file_offset: line.file_offset,
            protection,
            shared: file.and_then(|file| file.if_shared(is_shared, protection)),
            path: match line.path.as_slice() {
                b"" => "//anon".to_owned(),
                path => path_to_text(path),
            },
        })
    }
}

impl Processes {
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    fn path(&self, pid: u32, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }

    /// State of a process; an error if it does not exist.
    pub fn stat(&self, pid: u32) -> io::Result<Stat> {
        let text = fs::read(self.path(pid, "stat"))?;
        let stat = Stat::parse(&String::from_utf8_lossy(&text));
        stat.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Whether the process exists and has a live thread.
    pub fn lives(&self, pid: u32) -> bool {
        self.stat(pid).is_ok_and(|stat| self.is_running(pid, &stat))
    }

    /// Whether any thread lives; `stat` is the main thread's.
    fn is_running(&self, pid: u32, stat: &Stat) -> bool {
        !stat.ended() || living_thread(&self.root, pid).is_some()
    }

    /// The process of the thread `tid`, and its owner.
    pub fn process_and_owner(&self, tid: u32) -> io::Result<(u32, u32)> {
        // The thread's name may be no valid text.
        let text = fs::read(self.path(tid, "status"))?;
        let text = String::from_utf8_lossy(&text);
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().next()?.parse().ok()
        };
        let both = number("Tgid:").zip(number("Uid:"));
        both.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Threads of a process in order of creation; none if it has ended.
    pub fn threads(&self, pid: u32) -> Vec<u32> {
        numbers(&self.path(pid, "task"))
    }

    pub fn name(&self, pid: u32, tid: u32) -> Option<String> {
        let name = fs::read(self.path(pid, &format!("task/{tid}/comm"))).ok()?;
        Some(String::from_utf8_lossy(&name).trim_end().to_owned())
    }

    /// Nanoseconds for which a thread was on a CPU; `None` if it has ended, or if the kernel does not count them.
    pub fn running_ns(&self, pid: u32, tid: u32) -> Option<u64> {
        let text = fs::read_to_string(self.path(pid, &format!("task/{tid}/schedstat"))).ok()?;
        text.split_ascii_whitespace().next()?.parse().ok()
    }

    /// All live processes.
    pub fn all(&self) -> Vec<u32> {
        let mut all = numbers(&self.root);
        all.retain(|pid| self.lives(*pid));
        all
    }

    /// `roots` and their descendants, roots first.
    pub fn with_descendants(&self, roots: &[u32]) -> Vec<u32> {
        let mut children: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        for pid in numbers(&self.root) {
            if let Ok(stat) = self.stat(pid)
                && self.is_running(pid, &stat)
            {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        let mut found: Vec<u32> = Vec::new();
        let mut seen: FxHashSet<u32> = FxHashSet::default();
        found.extend(roots.iter().filter(|pid| seen.insert(**pid)));
        let mut next = 0;
        while let Some(pid) = found.get(next) {
            let children = children.get(pid).into_iter().flatten();
            let new: Vec<u32> = children.copied().filter(|pid| seen.insert(*pid)).collect();
            found.extend(new);
            next += 1;
        }
        found
    }

    /// Mappings of a process by address; empty for a kernel thread.
    pub fn mappings(&self, pid: u32) -> io::Result<Vec<Mapping>> {
        let text = fs::read(memory_folder(&self.root, pid).join("maps"))?;
        Ok(Mapping::all(&text).collect())
    }

    /// The file that process `pid` sees at `path`, which may be in another mount namespace.
    pub fn file(&self, pid: u32, path: &str) -> PathBuf {
        path_inside(&self.root, pid, &path_from_text(path))
    }

    /// The file that process `pid` has mapped at the beginning of a mapping, if the mapping is still the same.
    pub fn mapped_file(&self, pid: u32, mapping: &Mapping) -> Option<MappedFile> {
        MappedFile::find(
            &self.root,
            pid,
            mapping.begin,
            &path_from_text(&mapping.path),
        )
    }
}

/// Names of entries that are numbers, in the folder's order.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use proptest::prelude::*;

    use super::*;

    /// A `/proc` with these files.
    pub(crate) fn proc_with(files: &[(&str, &str)]) -> (tempfile::TempDir, Processes) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let processes = Processes::new(root.path());
        (root, processes)
    }

    #[test]
    fn states_are_read_whatever_the_name() {
        let stat =
            Stat::parse("12 (a) b (c) S 7 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9 9\n")
                .unwrap();
        assert_eq!(
            (stat.name.as_str(), stat.parent, stat.started),
            ("a) b (c", 7, 777)
        );
        assert!(!stat.ended() && !stat.kernel);
        assert!(
            Stat::parse("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 3\n")
                .unwrap()
                .kernel
        );
        assert!(
            Stat::parse("9 (x) Z 1 9 9 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 1 0 3\n")
                .unwrap()
                .ended()
        );
        for bad in [
            "",
            "12 (x",
            "12 x) S",
            "12 (x) S 1",
            "12 (x) S 7 12 12 0 -1 4194560 1 2",
            ") (",
        ] {
            assert_eq!(Stat::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn mappings_are_read_with_their_names() {
        let text = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000001000 r-xp 00002000 fe:01 1234                       /usr/lib/a b.so (deleted)
7f0000002000-7f0000003000 rw-p 00000000 00:00 0 
7f0000004000-7f0000005000 ---p 00000000 00:00 0                          [anon:two words]
nonsense
10-5 r--p 0 00:00 0
7f10-7f";
        let (_root, processes) = proc_with(&[("7/maps", text)]);
        let found = processes.mappings(7).unwrap();
        let shape: Vec<_> = found
            .iter()
            .map(|mapping| {
                (
                    mapping.protection,
                    mapping.file_offset,
                    mapping.path.as_str(),
                )
            })
            .collect();
        assert_eq!(
            shape,
            [
                (3, 0, "[heap]"),
                (5, 0x2000, "/usr/lib/a b.so (deleted)"),
                (3, 0, "//anon"),
                (0, 0, "[anon:two words]")
            ]
        );
        assert_eq!(
            (found[2].begin, found[2].end),
            (0x7f00_0000_2000, 0x7f00_0000_3000)
        );
        assert!(processes.mappings(8).is_err());
    }

    #[test]
    fn descendants_come_after_their_ancestors() {
        let stat = |parent: u32, state: char| {
            format!("1 (x) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 3\n")
        };
        let files = [
            ("10/stat", stat(1, 'S')),
            ("30/stat", stat(20, 'S')),
            ("20/stat", stat(10, 'R')),
            ("21/stat", stat(10, 'Z')),
            ("40/stat", stat(1, 'S')),
            // Process ids that were reused meanwhile can form a cycle.
            ("50/stat", stat(51, 'S')),
            ("51/stat", stat(50, 'S')),
        ];
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| (*path, text.as_str()))
            .collect();
        let (_root, processes) = proc_with(&files);
        assert_eq!(processes.with_descendants(&[10, 10]), [10, 20, 30]);
        assert_eq!(processes.with_descendants(&[50]), [50, 51]);
        assert!(processes.lives(20) && !processes.lives(21) && !processes.lives(99));
    }

    #[test]
    fn a_process_lives_while_any_thread_does() {
        let stat = |state: char, parent: u32| {
            format!("1 (x) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 3\n")
        };
        let (ended, runs, child) = (stat('Z', 1), stat('S', 1), stat('S', 10));
        let (_root, processes) = proc_with(&[
            ("10/stat", &ended),
            ("10/maps", ""),
            ("10/task/10/stat", &ended),
            ("10/task/12/stat", &runs),
            ("10/task/12/maps", "1000-2000 r-xp 00000000 fe:01 7 /x\n"),
            ("20/stat", &ended),
            ("20/task/20/stat", &ended),
            ("30/stat", &child),
        ]);
        assert!(processes.lives(10) && !processes.lives(20));
        let mut all = processes.all();
        all.sort_unstable();
        assert_eq!(all, [10, 30]);
        assert_eq!(processes.with_descendants(&[10]), [10, 30]);
        assert_eq!(processes.with_descendants(&[1]), [1, 10, 30]);
        assert_eq!(processes.mappings(10).unwrap()[0].path, "/x");
    }

    #[test]
    fn names_and_paths_that_are_not_utf8_are_read() {
        let (root, processes) = proc_with(&[("7/maps", "")]);
        let status = b"Name:\tcaf\xe9\nTgid:\t7\nUid:\t3\t3\t3\t3\n";
        fs::write(root.path().join("7/status"), status).unwrap();
        assert_eq!(processes.process_and_owner(7).unwrap(), (7, 3));
        let maps = b"1000-2000 r-xp 00000000 fe:01 7 /caf\xe9/x\n";
        fs::write(root.path().join("7/maps"), maps).unwrap();
        let found = processes.mappings(7).unwrap();
        let file = processes.file(7, &found[0].path);
        let expected = std::ffi::OsStr::from_bytes(b"7/root/caf\xe9/x");
        assert_eq!(file, root.path().join(expected));
    }

    #[test]
    fn this_process_is_read() {
        let processes = Processes::new(Path::new("/proc"));
        let own = std::process::id();
        let here = (&raw const OTHER) as u64;
        let mappings = processes.mappings(own).unwrap();
        let text = fs::read("/proc/self/maps").unwrap();
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(Mapping::all(&text).count(), lines);
        assert!(mappings.is_sorted_by_key(|mapping| mapping.begin));
        assert!(
            mappings
                .iter()
                .any(|mapping| (mapping.begin..mapping.end).contains(&here))
        );
        assert!(processes.threads(own).contains(&own));
        assert_eq!(processes.process_and_owner(own).unwrap().0, own);
        assert!(processes.file(own, "/proc/self").exists());
    }

    static OTHER: u8 = 7;

    proptest! {
        #[test]
        fn any_line_is_read_or_not(line in "[0-9a-f]{0,17}-?[0-9a-f]{0,17} ?.{0,40}") {
            for mapping in Mapping::all(line.as_bytes()) {
                prop_assert!(mapping.begin < mapping.end && !mapping.path.is_empty());
            }
            let _ = Stat::parse(&line);
        }
    }
}
