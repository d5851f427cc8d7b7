//! Files from copies on the node that a process runs on (`nearpage run --replicate`).
//!
//! Before the program begins, what it has mapped of files that have copies, private, not writable, and
//! nowhere written (text and constants), is mapped anew from the copy on this node; the contents are the
//! same. So are, later, the files that it maps itself. A page that is written afterwards becomes the
//! process's own, as it would have before. Whatever cannot be had from a copy stays with the file.
//!
//! A process keeps the copies of the node on which it began: threads that run on another one read
//! from afar. What has copies is in a table ([`nearpage_wire::replicas`]).

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use nearpage_wire::replicas::{COUNTERS_AT, Entry, device, read_header};

use crate::message::Text;
use crate::sys;

/// Where the table is mapped; 0: there are no copies.
static TABLE: AtomicUsize = AtomicUsize::new(0);
static TABLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Mappings of one process that are made of copies before it begins, at most.
const MAPPINGS_MAX: usize = 512;

/// The loader calls this once all modules are there and relocated, before the program's own code.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
extern "C" fn start() {
    use crate::environment;
    if !environment::is_disabled()
        && let Some(path) = environment::variable(nearpage_wire::replicas::VARIABLE)
        && open(path).is_some()
    {
        from_copies();
    }
}

/// Maps the table.
fn open(path: &[u8]) -> Option<()> {
    let mut name = Text::<64>::new();
    if !(name.push(path) && name.push(b"\0")) {
        return None;
    }
    let fd = sys::open(name.as_bytes(), sys::O_RDWR).ok()?;
    let mapped = sys::file_status(fd).ok().and_then(|status| {
        let bytes = status.size as usize;
        let protection = sys::PROT_READ | sys::PROT_WRITE;
        let address = sys::mmap(bytes, protection, sys::MAP_SHARED, Some(fd), 0).ok()?;
        Some((address, bytes))
    });
    sys::close(fd);
    let (address, bytes) = mapped?;
    TABLE_BYTES.store(bytes, Relaxed);
    TABLE.store(address, Release);
    Some(())
}

/// The table, if there is one.
fn table() -> Option<&'static [u8]> {
    let address = TABLE.load(Acquire);
    if address == 0 {
        return None;
    }
    // SAFETY: mapped for good, of that size, and written before anyone had its path. The counters
    // in its header are read by nobody here.
    Some(unsafe { core::slice::from_raw_parts(address as *const u8, TABLE_BYTES.load(Relaxed)) })
}

/// The process that was counted last; a child that was forked is another one.
static COUNTED: AtomicU32 = AtomicU32::new(0);

/// Is this the first that a process has from copies?
fn is_first_of(pid: u32) -> bool {
    COUNTED.swap(pid, Relaxed) != pid
}

/// Counts mappings and bytes, and the process with its first mapping, for whoever started the program.
fn count(mappings: u64, bytes: u64) {
    if mappings == 0 {
        return;
    }
    let counts = [u64::from(is_first_of(sys::getpid())), mappings, bytes];
    let address = TABLE.load(Acquire);
    for (at, count) in COUNTERS_AT.into_iter().zip(counts) {
        // SAFETY: inside the header, eight bytes each, aligned; atomic for all who map it.
        let counter = unsafe { &*((address + at) as *const AtomicU64) };
        counter.fetch_add(count, Relaxed);
    }
}

/// The copy of a file on this node, opened for reading.
fn copy(is_it: impl Fn(&Entry) -> bool) -> Option<usize> {
    let table = table()?;
    let (pid, entries) = read_header(table)?;
    let node = sys::node();
    let entry = (0..entries)
        .filter_map(|index| Entry::read(table, index))
        .find(|entry| entry.node == node && is_it(entry))?;
    let mut path = Text::<64>::new();
    let written = path.push(b"/proc/")
        && path.push_number(pid.into())
        && path.push(b"/fd/")
        && path.push_number(entry.fd.into())
        && path.push(b"\0");
    // Whoever has it open may have ended, or be in another namespace of processes.
    written.then(|| sys::open(path.as_bytes(), sys::O_RDONLY).ok())?
}

/// A descriptor of a copy, closed in the end.
pub struct Copy(usize);

impl Copy {
    /// The descriptor.
    pub fn fd(&self) -> c_int {
        self.0 as c_int
    }

    /// So many bytes were mapped of it.
    pub fn mapped(&self, bytes: usize) {
        count(1, bytes as u64);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// What to map instead of file `fd`: its copy, where it has one and that is the same to the program. A
/// shared mapping of a file that it may write to must be of that very file.
pub fn instead_of(fd: c_int, flags: u32) -> Option<Copy> {
    if fd < 0 || TABLE.load(Relaxed) == 0 {
        return None;
    }
    let fd = fd as usize;
    if flags as usize & sys::MAP_PRIVATE == 0 && !sys::is_read_only(fd) {
        return None;
    }
    let status = sys::file_status(fd).ok()?;
    copy(|entry| {
        entry.file == status.identity
            && entry.size == status.size
            && entry.changed == status.changed
    })
    .map(Copy)
}

/// Maps from copies what the process has of files now.
#[cfg(not(test))]
fn from_copies() {
    let Ok(fd) = sys::open(b"/proc/self/smaps\0", sys::O_RDONLY) else {
        return;
    };
    let mut found = [Mapped::default(); MAPPINGS_MAX];
    let mut mappings = 0;
    let mut smaps = Smaps::default();
    each_line(fd, |line| {
        if let (Some(mapped), true) = (smaps.line(line), mappings < MAPPINGS_MAX) {
            found[mappings] = mapped;
            mappings += 1;
        }
    });
    sys::close(fd);
    let (mut replaced_mappings, mut bytes) = (0, 0);
    for mapped in &found[..mappings] {
        let Some(copy) = copy(|entry| entry.mapped == mapped.file).map(Copy) else {
            continue;
        };
        let length = mapped.end - mapped.start;
        // SAFETY: the same contents in place of what is there, nowhere written and not writable;
        // the kernel exchanges them at once for all threads.
        let replaced = unsafe {
            sys::call(
                sys::number::MMAP,
                [
                    mapped.start,
                    length,
                    mapped.protection,
                    sys::MAP_PRIVATE | sys::MAP_FIXED,
                    copy.0,
                    mapped.offset,
                ],
            )
        };
        if replaced.is_ok() {
            replaced_mappings += 1;
            bytes += length as u64;
        }
    }
    count(replaced_mappings, bytes);
}

/// Calls `visit` with every line of a file.
#[cfg_attr(test, allow(dead_code))]
fn each_line(fd: usize, mut visit: impl FnMut(&[u8])) {
    // More than any line has: a path is at most 4096 bytes.
    let mut buffer = [0u8; 8192];
    let mut filled = 0;
    loop {
        let read = match sys::read(fd, &mut buffer[filled..]) {
            Ok(0) | Err(_) => return,
            Ok(read) => read,
        };
        filled += read;
        let mut begin = 0;
        while let Some(end) = buffer[begin..filled].iter().position(|byte| *byte == b'\n') {
            visit(&buffer[begin..begin + end]);
            begin += end + 1;
        }
        if begin == 0 && filled == buffer.len() {
            return; // No line is that long.
        }
        buffer.copy_within(begin..filled, 0);
        filled -= begin;
    }
}

/// A mapping of a file that can be made of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mapped {
    start: usize,
    end: usize,
    protection: usize,
    offset: usize,
    file: [u64; 2],
}

/// Reads `/proc/self/smaps`, line by line.
#[derive(Debug, Default)]
struct Smaps {
    /// The mapping that the lines are about.
    mapped: Option<Mapped>,
}

impl Smaps {
    /// The mapping whose last missing fact this line was, if it can be made of a copy.
    fn line(&mut self, line: &[u8]) -> Option<Mapped> {
        if let Some(rest) = line.strip_prefix(b"Anonymous:") {
            // Pages that were written are the process's own: relocated constants, for one.
            let mapped = self.mapped.take();
            return mapped.filter(|_| rest.iter().find(|byte| **byte != b' ') == Some(&b'0'));
        }
        let first = line.first()?;
        if first.is_ascii_digit() || (b'a'..=b'f').contains(first) {
            self.mapped = mapping(line);
        }
        None
    }
}

/// `START-END r-xp OFFSET MAJOR:MINOR INODE PATH`, of a file, private, readable and not writable.
fn mapping(line: &[u8]) -> Option<Mapped> {
    let mut fields = line
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty());
    let mut range = fields.next()?.split(|byte| *byte == b'-');
    let (start, end) = (number(range.next()?, 16)?, number(range.next()?, 16)?);
    let &[b'r', b'-', executable, b'p'] = fields.next()? else {
        return None;
    };
    let offset = number(fields.next()?, 16)?;
    let mut numbers = fields.next()?.split(|byte| *byte == b':');
    let (major, minor) = (number(numbers.next()?, 16)?, number(numbers.next()?, 16)?);
    let inode = number(fields.next()?, 10)?;
    let execute = match executable {
        b'x' => sys::PROT_EXEC,
        _ => 0,
    };
    (inode != 0 && start < end).then_some(Mapped {
        start: start as usize,
        end: end as usize,
        protection: sys::PROT_READ | execute,
        offset: offset as usize,
        file: [device(major, minor), inode],
    })
}

fn number(text: &[u8], radix: u64) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, byte| {
        let digit = char::from(*byte).to_digit(radix as u32)?;
        sum.checked_mul(radix)?.checked_add(digit.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(text: &str) -> Vec<Mapped> {
        let mut smaps = Smaps::default();
        text.lines()
            .filter_map(|line| smaps.line(line.as_bytes()))
            .collect()
    }

    #[test]
    fn only_what_was_never_written_is_made_of_copies() {
        let text = "\
55d0c0000000-55d0c0001000 r--p 00002000 fe:01 123   /usr/bin/a b
Size:                  4 kB
Anonymous:             0 kB
55d0c0001000-55d0c0002000 r-xp 00003000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
VmFlags: rd ex mr mw me
55d0c0002000-55d0c0003000 r--p 00004000 fe:01 123   /usr/bin/a b
Anonymous:             4 kB
55d0c0003000-55d0c0004000 rw-p 00005000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
7f0000000000-7f0000001000 r--s 00000000 fe:01 124   /data
Anonymous:             0 kB
7f0000001000-7f0000002000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000002000-7f0000003000 ---p 00000000 fe:01 123   /usr/bin/a b
Anonymous:             0 kB
";
        let file = [device(0xfe, 1), 123];
        let text_at = |start: usize, protection, offset| Mapped {
            start,
            end: start + 0x1000,
            protection,
            offset,
            file,
        };
        assert_eq!(
            candidates(text),
            [
                text_at(0x55d0_c000_0000, sys::PROT_READ, 0x2000),
                text_at(0x55d0_c000_1000, sys::PROT_READ | sys::PROT_EXEC, 0x3000),
            ]
        );
    }

    #[test]
    fn a_process_s_own_text_is_found_line_by_line() {
        let fd = sys::open(b"/proc/self/smaps\0", sys::O_RDONLY).unwrap();
        let (mut smaps, mut found) = (Smaps::default(), Vec::new());
        each_line(fd, |line| found.extend(smaps.line(line)));
        sys::close(fd);
        let here = candidates as *const () as usize;
        let text = found
            .iter()
            .find(|one| (one.start..one.end).contains(&here));
        assert_eq!(
            text.expect("this code").protection,
            sys::PROT_READ | sys::PROT_EXEC
        );
    }

    #[test]
    fn a_process_is_counted_once_and_its_child_by_itself() {
        let counted = [7, 7, 8, 8].map(is_first_of);
        assert_eq!(counted, [true, false, true, false]);
    }

    #[test]
    fn without_a_table_every_file_is_itself() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        use std::os::fd::AsRawFd;
        assert!(instead_of(file.as_raw_fd(), sys::MAP_PRIVATE as u32).is_none());
        let status = sys::file_status(file.as_raw_fd() as usize).unwrap();
        let metadata = file.metadata().unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_eq!(status.identity, [metadata.dev(), metadata.ino()]);
        assert_eq!(status.size, metadata.len());
        assert_eq!(
            status.changed,
            [metadata.mtime() as u64, metadata.mtime_nsec() as u64]
        );
        assert!(sys::is_read_only(file.as_raw_fd() as usize));
    }
}
