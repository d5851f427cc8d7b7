//! Files from copies on the node that a process runs on (`nearpage run --replicate`).
//!
//! Before the program begins, its private, read-only and never written mappings (text and constants) of files with copies are
//! mapped again from the copy on this node, with the same contents. Files that the program maps later are mapped
//! from copies as well. A page that is written afterwards becomes the process's own, as without copies. All other mappings
//! remain mappings of the file itself.
//!
//! A process keeps the copies of the node on which it began. A forked child that the kernel starts on another node maps
//! that node's copies instead. Threads that run on another node read remotely. The table of copies is
//! [`nearpage_wire::replicas`].

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use nearpage_wire::replicas::{COUNTERS_AT, Entry, device, read_header};

use crate::message::Text;
use crate::sys;

/// Address of the mapped table; 0: there are no copies.
static TABLE: AtomicUsize = AtomicUsize::new(0);
static TABLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The node whose copies the process began with.
static NODE: AtomicU32 = AtomicU32::new(u32::MAX);

/// Most mappings of one process that are mapped from copies when it begins.
const MAPPINGS_MAX: usize = 512;

/// The loader calls this when all modules are loaded and relocated, before the program's own code.
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
        && let Some(table) = table()
    {
        count(from_copies(table, sys::node()));
    }
}

/// Maps copies of the node on which a forked child runs. Makes only system calls, and needs little stack.
pub fn forked() {
    let Some(table) = table() else { return };
    let node = sys::node();
    if NODE.load(Relaxed) != node {
        count(from_copies(table, node));
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

/// Maps no copies from now on: the program filters its system calls.
pub fn stop() {
    TABLE.store(0, Release);
}

/// The process that was counted last; a child that was forked is another one.
static COUNTED: AtomicU32 = AtomicU32::new(0);

/// Is this the first mapping of a process that is mapped from a copy?
fn is_first_of(pid: u32) -> bool {
    COUNTED.swap(pid, Relaxed) != pid
}

/// Counts mappings and bytes in the table, and the process with its first mapping: `nearpage run` reports the sums.
fn count([mappings, bytes]: [u64; 2]) {
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

/// The first entry of a table for which `is_it` is true.
fn entry(table: &[u8], is_it: impl Fn(&Entry) -> bool) -> Option<Entry> {
    let (_, entries) = read_header(table)?;
    let mut entries = (0..entries).filter_map(|index| Entry::read(table, index));
    entries.find(is_it)
}

/// The copy of a file on a node, opened for reading.
fn copy(table: &[u8], node: u32, is_it: impl Fn(&Entry) -> bool) -> Option<Copy> {
    let (pid, _) = read_header(table)?;
    let entry = entry(table, |entry| entry.node == node && is_it(entry))?;
    let mut path = Text::<64>::new();
    let written = path.push(b"/proc/")
        && path.push_number(pid.into())
        && path.push(b"/fd/")
        && path.push_number(entry.fd.into())
        && path.push(b"\0");
    // Opening fails if the process that keeps the copy has ended, or is in another PID namespace.
    written.then(|| sys::open(path.as_bytes(), sys::O_RDONLY).ok().map(Copy))?
}

/// A descriptor of a copy, closed when dropped.
pub struct Copy(usize);

impl Copy {
    /// The descriptor.
    pub fn fd(&self) -> c_int {
        self.0 as c_int
    }

    /// Counts a mapping of the copy.
    pub fn mapped(&self, bytes: usize) {
        count([1, bytes as u64]);
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// The copy to map instead of file `fd`, if there is one and the program cannot notice. A
/// shared mapping of a file that the program may write to must be of that very file.
pub fn instead_of(fd: c_int, flags: u32) -> Option<Copy> {
    let table = table()?;
    let fd = usize::try_from(fd).ok()?;
    if flags as usize & sys::MAP_PRIVATE == 0 && !sys::is_read_only(fd) {
        return None;
    }
    let status = sys::file_status(fd).ok()?;
    copy(table, sys::node(), |entry| {
        entry.file == status.identity
            && entry.size == status.size
            && entry.changed == status.changed
    })
}

/// Memory for reading the list of mappings, and for the mappings found. It is not on the stack: a forked child runs on the
/// stack of one of its parent's threads, which may be small.
struct Scratch {
    /// More than any line has: a path is at most 4096 bytes.
    buffer: [u8; 8192],
    found: [Mapped; MAPPINGS_MAX],
}

/// Replaces the process's mappings of files, or of other nodes' copies, by mappings of a node's copies. Returns the number
/// of mappings and of bytes.
fn from_copies(table: &[u8], node: u32) -> [u64; 2] {
    NODE.store(node, Relaxed);
    let bytes = size_of::<Scratch>();
    let Ok(address) = sys::reserve(bytes) else {
        return [0; 2];
    };
    // SAFETY: just mapped, of that size, by nobody else used, and zeros are a `Scratch`.
    let replaced = replace(table, node, unsafe { &mut *(address as *mut Scratch) });
    // SAFETY: it was used above alone.
    let _ = unsafe { sys::munmap(address, bytes) };
    replaced
}

fn replace(table: &[u8], node: u32, scratch: &mut Scratch) -> [u64; 2] {
    let Ok(fd) = sys::open(b"/proc/thread-self/smaps\0", sys::O_RDONLY) else {
        return [0; 2];
    };
    let Scratch { buffer, found } = scratch;
    let mut mappings = 0;
    let mut smaps = Smaps::default();
    each_line(fd, buffer, |line| {
        if let (Some(mapped), true) = (smaps.line(line), mappings < MAPPINGS_MAX) {
            found[mappings] = mapped;
            mappings += 1;
        }
    });
    sys::close(fd);
    let (mut replaced_mappings, mut bytes) = (0, 0);
    for mapped in &found[..mappings] {
        // A shared mapping of the file itself stays: the program may rely on it. A mapping of a copy may be replaced by one of
        // another copy.
        let file = match entry(table, |entry| entry.copy == mapped.file) {
            Some(entry) if entry.node == node => continue,
            Some(entry) => entry.mapped,
            None if mapped.flags == sys::MAP_PRIVATE => mapped.file,
            None => continue,
        };
        let Some(copy) = copy(table, node, |entry| entry.mapped == file) else {
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
                    mapped.flags | sys::MAP_FIXED,
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
    [replaced_mappings, bytes]
}

/// Calls `visit` with every line of a file.
fn each_line(fd: usize, buffer: &mut [u8], mut visit: impl FnMut(&[u8])) {
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

/// A mapping of a file that a mapping of a copy can replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mapped {
    start: usize,
    end: usize,
    protection: usize,
    /// [`sys::MAP_PRIVATE`] or [`sys::MAP_SHARED`].
    flags: usize,
    offset: usize,
    file: [u64; 2],
}

/// Reads `/proc/self/smaps`, line by line.
#[derive(Debug, Default)]
struct Smaps {
    /// The mapping that the current lines describe.
    mapped: Option<Mapped>,
}

impl Smaps {
    /// Reads a line; returns the mapping whose description is complete with it, if a copy can replace that mapping.
    fn line(&mut self, line: &[u8]) -> Option<Mapped> {
        // Written pages (relocated constants, for example) are the process's own, whether in memory or swapped out.
        if let Some(rest) = line.strip_prefix(b"Anonymous:")
            && !is_zero(rest)
        {
            self.mapped = None;
        }
        if let Some(rest) = line.strip_prefix(b"Swap:") {
            return self.mapped.take().filter(|_| is_zero(rest));
        }
        let first = line.first()?;
        if first.is_ascii_digit() || (b'a'..=b'f').contains(first) {
            self.mapped = mapping(line);
        }
        None
    }
}

/// Is the number of kilobytes in a line 0?
fn is_zero(rest: &[u8]) -> bool {
    rest.iter().find(|byte| **byte != b' ') == Some(&b'0')
}

/// `START-END r-xp OFFSET MAJOR:MINOR INODE PATH`, of a file, readable and not writable.
fn mapping(line: &[u8]) -> Option<Mapped> {
    let mut fields = line
        .split(|byte| *byte == b' ')
        .filter(|field| !field.is_empty());
    let mut range = fields.next()?.split(|byte| *byte == b'-');
    let (start, end) = (number(range.next()?, 16)?, number(range.next()?, 16)?);
    let &[b'r', b'-', executable, sharing] = fields.next()? else {
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
        flags: match sharing {
            b'p' => sys::MAP_PRIVATE,
            _ => sys::MAP_SHARED,
        },
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
mod tests;
