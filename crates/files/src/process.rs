//! Files of running processes (`proc(5)`): the folder in `/proc` that describes a process's memory while any thread
//! lives, and the file behind a mapping whose path does not lead to it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::open;

/// Suffix that the kernel appends to the path of a mapped file that no longer has its name.
pub const DELETED_SUFFIX: &str = " (deleted)";
const DELETED: &[u8] = DELETED_SUFFIX.as_bytes();

/// Whether a `stat` file describes a thread that has ended.
fn has_ended(stat: &[u8]) -> bool {
    // The thread's name before the state may contain anything.
    let after = stat.iter().rposition(|byte| *byte == b')');
    let state = after.and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'Z' | b'X' | b'x'))
}

fn thread_has_ended(folder: &Path) -> bool {
    fs::read(folder.join("stat")).is_ok_and(|stat| has_ended(&stat))
}

/// A thread of a process that still has the process's memory: the main thread or, if it has ended, another one. `None`
/// if all threads have ended. For a process that does not exist, returns `pid`.
pub fn living_thread(proc_root: &Path, pid: u32) -> Option<u32> {
    let folder = proc_root.join(pid.to_string());
    if !thread_has_ended(&folder) {
        return Some(pid);
    }
    let threads = fs::read_dir(folder.join("task")).ok()?.flatten();
    threads
        .filter(|entry| !thread_has_ended(&entry.path()))
        .find_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The folder under `/proc` that describes a process's memory, root and program. The main thread's folder is empty once
/// the main thread has ended.
pub fn memory_folder(proc_root: &Path, pid: u32) -> PathBuf {
    let folder = proc_root.join(pid.to_string());
    match living_thread(proc_root, pid) {
        Some(tid) if tid != pid => folder.join("task").join(tid.to_string()),
        _ => folder,
    }
}

/// The file that a process sees at `path`, which may live in another mount namespace.
pub fn path_inside(proc_root: &Path, pid: u32, path: &Path) -> PathBuf {
    let root = memory_folder(proc_root, pid).join("root");
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsLine {
    /// Range of addresses.
    pub range: Range<u64>,
    /// Letters or dashes, `r`, `w`, `x` and `p` (private) or `s` (shared).
    pub permissions: [u8; 4],
    /// Offset in the file at which the range begins, in bytes.
    pub file_offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// The file's number on its device; 0: no file.
    pub inode: u64,
    /// A path, `[heap]`, `[anon:NAME]`…, or empty.
    pub path: Vec<u8>,
}

impl MapsLine {
    /// Parses `BEGIN-END rwxp OFFSET MAJOR:MINOR INODE   PATH`; `None` for anything else.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(fields.next()?).ok();
        let hexadecimal = |digits| u64::from_str_radix(digits, 16).ok();
        let (begin, end) = text()?.split_once('-')?;
        let range = hexadecimal(begin)?..hexadecimal(end)?;
        let permissions = text()?.as_bytes().try_into().ok()?;
        let file_offset = hexadecimal(text()?)?;
        let device = device_numbers(text()?)?;
        let inode = text()?.parse().ok()?;
        let path = fields.next().unwrap_or_default();
        let spaces = path.iter().take_while(|byte| **byte == b' ').count();
        Some(Self {
            range,
            permissions,
            file_offset,
            device,
            inode,
            path: without_octal_newlines(&path[spaces..]),
        })
    }

    fn is_of(&self, path: &[u8]) -> bool {
        self.path == path
            || self.path.strip_suffix(DELETED) == Some(path)
            || path.strip_suffix(DELETED) == Some(&self.path)
    }
}

/// Parses `MAJOR:MINOR` in hexadecimal, as the kernel and perf write the numbers of a device.
pub fn device_numbers(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    let number = |digits| u32::from_str_radix(digits, 16).ok();
    Some((number(major)?, number(minor)?))
}

/// Decodes newlines, which the kernel writes in octal.
fn without_octal_newlines(path: &[u8]) -> Vec<u8> {
    let mut rest = path;
    let mut plain = Vec::with_capacity(path.len());
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match rest.strip_prefix(b"\\012") {
            Some(after) => (b'\n', after),
            None => (*first, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

/// A file that a process has mapped.
pub struct MappedFile {
    folder: PathBuf,
    own_folder: PathBuf,
    line: MapsLine,
}

impl MappedFile {
    /// The file that the process has mapped at `address`, if its path was `path` when it was mapped.
    pub fn find(proc_root: &Path, pid: u32, address: u64, path: &Path) -> Option<Self> {
        let folder = memory_folder(proc_root, pid);
        let maps = fs::read(folder.join("maps")).ok()?;
        let mut lines = maps
            .split(|byte| *byte == b'\n')
            .filter_map(MapsLine::parse);
        let line = lines.find(|line| line.range.contains(&address))?;
        line.is_of(path.as_os_str().as_bytes()).then(|| Self {
            folder,
            own_folder: proc_root.join(pid.to_string()),
            line,
        })
    }

    /// Whether the file has lost its name, so that its path may lead to another file; always true for a memfd.
    pub fn is_deleted(&self) -> bool {
        self.line.path.ends_with(DELETED)
    }

    /// Opens the mapped file without its name: through `map_files`, which takes CAP_CHECKPOINT_RESTORE, otherwise as
    /// the process's program or through one of the process's descriptors.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if none of these leads to the file.
    pub fn open(&self) -> io::Result<File> {
        let Range { start, end } = self.line.range;
        let by_address = self.own_folder.join(format!("map_files/{start:x}-{end:x}"));
        let descriptors = fs::read_dir(self.folder.join("fd"));
        let descriptors = descriptors.into_iter().flatten().flatten();
        let links = [by_address, self.folder.join("exe")];
        let links = links
            .into_iter()
            .chain(descriptors.map(|entry| entry.path()));
        links
            .filter(|link| self.leads_here(link))
            .find_map(|link| open(&link).ok())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn leads_here(&self, link: &Path) -> bool {
        let same_name = fs::read_link(link)
            .is_ok_and(|to| to.as_os_str() == OsStr::from_bytes(&self.line.path));
        same_name && fs::metadata(link).is_ok_and(|file| file.ino() == self.line.inode)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use super::*;

    const ENDED: &str = "7 (a) b) Z 1 7 7 0 -1 4227084 0\n";
    const RUNS: &str = "8 (\u{7f} Z) S 1 7 7 0 -1 4194560 0\n";

    fn proc_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn memory_is_told_of_by_a_thread_that_lives() {
        let root = proc_with(&[
            ("7/stat", ENDED),
            ("7/task/7/stat", ENDED),
            ("7/task/8/stat", RUNS),
            ("9/stat", ENDED),
            ("9/task/9/stat", ENDED),
            ("10/stat", RUNS),
        ]);
        let living = |pid| living_thread(root.path(), pid);
        assert_eq!(
            [living(7), living(9), living(10), living(11)],
            [Some(8), None, Some(10), Some(11)]
        );
        assert_eq!(memory_folder(root.path(), 7), root.path().join("7/task/8"));
        assert_eq!(
            path_inside(root.path(), 10, Path::new("/lib/x.so")),
            root.path().join("10/root/lib/x.so")
        );
    }

    #[test]
    fn lines_of_maps_are_bytes() {
        let line =
            |text: &[u8]| MapsLine::parse(text).map(|line| (line.range, line.inode, line.path));
        assert_eq!(
            line(b"7f00-7f10 r-xp 00002000 fe:01 1234                       /caf\xe9/a b\\012c (deleted)"),
            Some((0x7f00..0x7f10, 1234, b"/caf\xe9/a b\nc (deleted)".to_vec()))
        );
        assert_eq!(
            line(b"1000-2000 rw-p 00000000 00:00 0 "),
            Some((0x1000..0x2000, 0, Vec::new()))
        );
        for nonsense in [&b""[..], b"nonsense", b"1-2 r", b"1-2 r--p 0 0:0 x /a"] {
            assert_eq!(line(nonsense), None);
        }
    }

    /// Copies `sleep` in a child. If this process itself had the copy open for writing, the copy would stay open in
    /// children that other tests fork at that moment. The copy could then not be executed (ETXTBSY) until those
    /// children execute another program.
    fn copy_sleep(to: &Path) {
        let copied = Command::new("cp").arg("/bin/sleep").arg(to).status();
        assert!(copied.unwrap().success());
    }

    /// A process that runs a copy of `sleep` at `program`; the copy is removed after the start.
    fn nameless(folder: &Path, program: &Path) -> Child {
        let program = folder.join(program);
        copy_sleep(&program);
        let child = Command::new(&program).arg("100").spawn().unwrap();
        fs::remove_file(&program).unwrap();
        child
    }

    /// Address at which a process has mapped the program, a moment after the process has its own memory.
    fn start_of_program(pid: u32, path: &Path) -> u64 {
        for _ in 0..6000 {
            let maps = fs::read(format!("/proc/{pid}/maps")).unwrap();
            let mut lines = maps
                .split(|byte| *byte == b'\n')
                .filter_map(MapsLine::parse);
            if let Some(line) = lines.find(|line| line.is_of(path.as_os_str().as_bytes())) {
                return line.range.start;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("{pid} has not mapped {} after a minute", path.display());
    }

    #[test]
    fn a_program_that_was_replaced_is_opened_and_not_what_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let mut child = nameless(folder.path(), Path::new("program"));
        fs::write(&path, "another").unwrap();
        let proc_root = Path::new("/proc");
        let at = start_of_program(child.id(), &path);
        let found = MappedFile::find(proc_root, child.id(), at, &path).unwrap();
        let mut bytes = Vec::new();
        found.open().unwrap().read_to_end(&mut bytes).unwrap();
        let other = MappedFile::find(proc_root, child.id(), at, Path::new("/bin/other"));
        let (is_deleted, is_other) = (found.is_deleted(), other.is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_deleted && !is_other);
        assert_eq!(bytes, fs::read("/bin/sleep").unwrap());
        assert!(MappedFile::find(proc_root, child.id(), at, &path).is_none());
    }

    #[test]
    fn a_program_in_memory_alone_is_opened() {
        // SAFETY: the name ends in a zero byte, and nothing else owns the returned descriptor.
        let memory = unsafe {
            use std::os::fd::FromRawFd;
            let fd = libc::memfd_create(c"x".as_ptr(), 0);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        let link = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
        copy_sleep(Path::new(&link));
        let mut child = Command::new(&link)
            .arg0("sleep")
            .arg("100")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let path = Path::new("/memfd:x (deleted)");
        let at = start_of_program(child.id(), path);
        let found = MappedFile::find(Path::new("/proc"), child.id(), at, path);
        let opened = found.and_then(|found| found.open().ok());
        child.kill().unwrap();
        child.wait().unwrap();
        let mut bytes = Vec::new();
        opened.unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, fs::read("/bin/sleep").unwrap());
    }
}
