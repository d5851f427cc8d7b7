//! Writes the allocation log that [`nearpage_wire::allocation_log`] specifies.
//!
//! A thread owns the block that it fills, so a record costs a few stores. To claim a block, a thread takes a
//! lock that no signal handler and no other code of this library holds. It waits only while another thread makes a
//! segment, for a bounded time; after that the record is dropped.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::allocation_log::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_MAGIC, MARKS_OFFSET, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC,
};

use crate::checksum::crc32;
use crate::message::{self, Text};
use crate::sys::{self, Errno};
use crate::thread::Thread;

mod reserve;

use reserve::{Reserve, populate};

/// Blocks of the first segment; each further one has twice as many as the one before.
const FIRST_SEGMENT_BLOCKS: usize = 4;
/// Blocks of the largest segment: 32 MiB.
const LARGEST_SEGMENT_BLOCKS: usize = 2048;
/// Blocks of threads that ended, kept for threads to come.
const PARKED_BLOCKS: usize = 64;
/// A block with less room than this is closed, not parked.
const PARKED_ROOM_BYTES: usize = 2048;
/// How often, and how long each time, a thread waits for another one that makes a segment.
const WAITS_MAX: u32 = 10_000;
const WAIT_NS: u64 = 200_000;

struct Segments {
    directory: Text<4000>,
    /// The newest segment's path. It is not on the stack, which may be the small one of a signal handler.
    path: Text<4096>,
    pid: u32,
    start_ns: u64,
    sequence: u32,
    bytes_max: u64,
    bytes: u64,
    segment: usize,
    blocks: usize,
    next_block: usize,
    /// Is the segment one of the reserve, whose blocks have no space on disk yet?
    is_sparse: bool,
    reserve: Reserve,
    parked: [usize; PARKED_BLOCKS],
}

/// The log of one process.
pub struct Log {
    on: AtomicBool,
    /// The process's first segment; 0 before there is one.
    first: AtomicUsize,
    lock: AtomicU32,
    segments: UnsafeCell<Segments>,
    /// Records that could not be written.
    pub dropped: AtomicU64,
    /// Counts forks: blocks of an earlier generation belong to the parent.
    pub generation: AtomicU32,
    /// Blocks handed out, for tests and totals.
    pub blocks_claimed: AtomicUsize,
}

// SAFETY: `segments` is only touched under `lock`, or while there is one thread.
unsafe impl Sync for Log {}

impl Log {
    /// A log that is off.
    pub const fn new() -> Self {
        Self {
            on: AtomicBool::new(false),
            first: AtomicUsize::new(0),
            lock: AtomicU32::new(0),
            segments: UnsafeCell::new(Segments {
                directory: Text::new(),
                path: Text::new(),
                pid: 0,
                start_ns: 0,
                sequence: 0,
                bytes_max: 0,
                bytes: 0,
                segment: 0,
                blocks: 0,
                next_block: 0,
                is_sparse: false,
                reserve: Reserve::none(),
                parked: [0; PARKED_BLOCKS],
            }),
            dropped: AtomicU64::new(0),
            generation: AtomicU32::new(1),
            blocks_claimed: AtomicUsize::new(0),
        }
    }

    /// Switches the log of process `pid` on. Segments are made in `directory` when they are first needed, `bytes_max`
    /// bytes of them in all. False when the folder's name is unusable.
    pub fn open(&self, directory: &[u8], pid: u32, start_ns: u64, bytes_max: u64) -> bool {
        let Some(_lock) = self.lock() else {
            return false;
        };
        // SAFETY: under the lock.
        let segments = unsafe { &mut *self.segments.get() };
        segments.pid = pid;
        segments.start_ns = start_ns;
        segments.bytes_max = bytes_max;
        segments.directory.clear();
        let usable = directory.starts_with(b"/") && segments.directory.push(directory);
        self.on.store(usable, Ordering::Release);
        usable
    }

    /// Is the log on? It goes off when the disk is full or the size bound is reached.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Must `thread` claim a block before it appends a record of `words` words?
    #[inline]
    pub fn needs_block(&self, thread: &Thread, words: usize) -> bool {
        thread.block == 0
            || thread.generation != self.generation.load(Ordering::Relaxed)
            || thread.block_used as usize + words * 8 > BLOCK_BYTES
    }

    /// Appends a record to the thread's block, which [`Self::needs_block`] says has room for it.
    #[inline]
    pub fn append(&self, thread: &mut Thread, words: &[u64]) {
        let used = thread.block_used as usize;
        if thread.block == 0 || used + words.len() * 8 > BLOCK_BYTES {
            return;
        }
        // SAFETY: the block is mapped, this thread's alone, and has room; words are little-endian
        // on both architectures.
        unsafe {
            core::ptr::copy_nonoverlapping(
                words.as_ptr(),
                (thread.block + used) as *mut u64,
                words.len(),
            );
            let committed = used + words.len() * 8 - BLOCK_HEADER_BYTES;
            (*((thread.block + 8) as *const AtomicU32)).store(committed as u32, Ordering::Release);
        }
        thread.block_used = (used + words.len() * 8) as u32;
    }

    /// Closes the thread's block and claims another. With `handed_on`, the other block may be one that an
    /// ended thread has partly filled; the caller then writes a Thread record first. False if the log is
    /// off, also since just now.
    pub fn claim(&self, thread: &mut Thread, handed_on: bool) -> bool {
        let generation = self.generation.load(Ordering::Relaxed);
        if thread.block != 0 && thread.generation == generation {
            close(thread.block);
        }
        thread.block = 0;
        thread.generation = generation;
        if !self.is_on() {
            return false;
        }
        let Some(_lock) = self.lock() else {
            return false;
        };
        // Another thread may have switched the log off meanwhile, and reported why.
        if !self.is_on() {
            return false;
        }
        // SAFETY: under the lock.
        let segments = unsafe { &mut *self.segments.get() };
        if handed_on && let Some(parked) = segments.parked.iter_mut().find(|block| **block != 0) {
            thread.block = core::mem::take(parked);
            // SAFETY: a claimed block that no thread fills.
            let committed =
                unsafe { (*((thread.block + 8) as *const AtomicU32)).load(Ordering::Acquire) };
            thread.block_used = committed + BLOCK_HEADER_BYTES as u32;
            return true;
        }
        match segments.next_block() {
            Ok(block) => {
                // SAFETY: a fresh block of a mapped segment. The magic goes last.
                unsafe {
                    *((block + 4) as *mut u32) = thread.number;
                    (*(block as *const AtomicU32))
                        .store(u32::from_le_bytes(BLOCK_MAGIC), Ordering::Release);
                }
                if segments.sequence == 1 {
                    self.first.store(segments.segment, Ordering::Release);
                }
                thread.block = block;
                thread.block_used = BLOCK_HEADER_BYTES as u32;
                self.blocks_claimed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(cause) => {
                self.on.store(false, Ordering::Release);
                segments.report_failure(cause);
                false
            }
        }
    }

    /// Makes segments in advance: the process is about to give up the right, or the path, by which it could make more.
    pub fn reserve(&self) {
        if !self.is_on() {
            return;
        }
        let Some(_lock) = self.lock() else {
            return;
        };
        // SAFETY: under the lock.
        let segments = unsafe { &mut *self.segments.get() };
        // If this fails, the log says why it ends when it ends.
        let _ = segments.reserve();
    }

    /// Counts a mark in the first segment's header, which the recorder reads while the program runs.
    pub fn count_mark(&self) {
        let first = self.first.load(Ordering::Acquire);
        if first != 0 {
            // SAFETY: segments stay mapped, and their headers are longer; both sides use whole-word atomic accesses.
            let marks = unsafe { &*((first + MARKS_OFFSET) as *const AtomicU64) };
            marks.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes the block of a thread that ends, and keeps it for another thread or closes it.
    pub fn release(&self, thread: &mut Thread) {
        let block = core::mem::take(&mut thread.block);
        if block == 0 || thread.generation != self.generation.load(Ordering::Relaxed) {
            return;
        }
        if thread.block_used as usize + PARKED_ROOM_BYTES <= BLOCK_BYTES
            && let Some(_lock) = self.lock()
        {
            // SAFETY: under the lock.
            let segments = unsafe { &mut *self.segments.get() };
            if let Some(place) = segments.parked.iter_mut().find(|place| **place == 0) {
                *place = block;
                return;
            }
        }
        close(block);
    }

    /// In the forked child `pid`: the parent's blocks and segments are not ours to write.
    pub fn forked_child(&self, pid: u32, start_ns: u64) {
        self.lock.store(0, Ordering::Release);
        self.first.store(0, Ordering::Release);
        // SAFETY: the child has one thread.
        let segments = unsafe { &mut *self.segments.get() };
        segments.pid = pid;
        segments.start_ns = start_ns;
        segments.sequence = 0;
        segments.bytes = 0;
        segments.segment = 0;
        segments.blocks = 0;
        segments.next_block = 0;
        segments.is_sparse = false;
        segments.reserve = Reserve::none();
        segments.parked = [0; PARKED_BLOCKS];
        self.dropped.store(0, Ordering::Relaxed);
        self.blocks_claimed.store(0, Ordering::Relaxed);
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Takes the lock. Its holder makes only system calls that return soon; the wait is bounded all the same.
    fn lock(&self) -> Option<Lock<'_>> {
        for _ in 0..WAITS_MAX {
            if self.lock.swap(1, Ordering::Acquire) == 0 {
                return Some(Lock(&self.lock));
            }
            sys::futex_wait(&self.lock, 1, WAIT_NS);
        }
        None
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new()
    }
}

struct Lock<'log>(&'log AtomicU32);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
        sys::futex_wake(self.0, 1);
    }
}

/// Why there is no further block.
enum Cause {
    /// The log has its greatest size.
    Bound,
    /// The segment could not be made.
    Segment(Errno),
}

impl Segments {
    fn next_block(&mut self) -> Result<usize, Cause> {
        if self.segment == 0 || self.next_block == self.blocks {
            self.next_segment()?;
        }
        let block = self.segment + SEGMENT_HEADER_BYTES + self.next_block * BLOCK_BYTES;
        if self.is_sparse {
            populate(block, BLOCK_BYTES).map_err(Cause::Segment)?;
        }
        self.next_block += 1;
        Ok(block)
    }

    fn next_segment(&mut self) -> Result<(), Cause> {
        let reserved = self.reserve.take().transpose().map_err(Cause::Segment)?;
        let blocks = match reserved {
            Some(_) => LARGEST_SEGMENT_BLOCKS,
            None => (FIRST_SEGMENT_BLOCKS << self.sequence.min(20)).min(LARGEST_SEGMENT_BLOCKS),
        };
        let bytes = SEGMENT_HEADER_BYTES + blocks * BLOCK_BYTES;
        if self.bytes + bytes as u64 > self.bytes_max {
            return Err(Cause::Bound);
        }
        let start = match reserved {
            Some(start) => start,
            None => self
                .make(self.sequence, bytes, |fd| allocate_and_map(fd, bytes))
                .map_err(Cause::Segment)?,
        };
        self.is_sparse = reserved.is_some();
        let header = [
            u64::from_le_bytes(SEGMENT_MAGIC),
            u64::from(self.pid) | u64::from(self.sequence) << 32,
            self.start_ns,
            bytes as u64,
            BLOCK_BYTES as u64,
        ];
        // SAFETY: a fresh mapping of more than a page. The magic goes last.
        unsafe {
            for (index, word) in header.iter().enumerate().skip(1) {
                *(start as *mut u64).add(index) = *word;
            }
            (*(start as *const AtomicU64)).store(header[0], Ordering::Release);
        }
        // The earlier segment stays mapped: threads still fill blocks of it.
        self.segment = start;
        self.blocks = blocks;
        self.next_block = 0;
        self.sequence += 1;
        self.bytes += bytes as u64;
        Ok(())
    }

    fn name(&mut self, sequence: u32) {
        let path = &mut self.path;
        path.clear();
        path.push(self.directory.as_bytes());
        path.push(b"/alloc-");
        path.push_number(self.pid.into());
        path.push(b"-");
        path.push_number(self.start_ns);
        path.push(b"-");
        path.push_number(sequence.into());
        path.push(b".log");
        path.push(b"\0");
    }

    /// Creates a segment's file, and gives it space and a mapping. The descriptor is closed.
    fn make(
        &mut self,
        sequence: u32,
        bytes: usize,
        map: impl FnOnce(usize) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        // A failure is reported with the file's path.
        self.name(sequence);
        // Growing a file beyond this limit is a SIGXFSZ, which would kill the program.
        if sys::resource_limit(sys::RESOURCE_FILE_BYTES)? < bytes as u64 {
            return Err(sys::EFBIG);
        }
        let path = self.path.as_bytes();
        let fd = sys::open(path, sys::O_RDWR | sys::O_CREAT | sys::O_EXCL)?;
        let result = map(fd);
        sys::close(fd);
        if result.is_err() {
            sys::unlink(path);
        }
        result
    }

    fn report_failure(&self, cause: Cause) {
        let pid = self.pid;
        match cause {
            Cause::Bound => message::ends_log(format_args!(
                "the allocation log of process {pid} has reached {} MiB and ends here; raise it with {}",
                self.bytes_max >> 20,
                nearpage_wire::LOG_BYTES_MAX_VARIABLE
            )),
            Cause::Segment(Errno(number)) => message::ends_log(format_args!(
                "allocations of process {pid} are not logged{}: its log cannot grow (error {number}{})",
                if self.sequence > 0 { " any more" } else { "" },
                match number {
                    2 =>
                        ", no such folder: the process is in another root or mount namespace, or the recorder has ended",
                    13 =>
                        ", permission denied: have the user who owns that folder start the program",
                    23 | 24 => ", too many open files: raise ulimit -n",
                    27 => ", file size limit: raise ulimit -f",
                    28 => ", disk full: record to another disk with -o",
                    30 => ", read-only file system: record to another one with -o",
                    122 => ", disk quota: record to another disk with -o",
                    _ => "",
                },
            )),
        }
    }
}

/// Gives a segment's file its space on disk, and maps it.
fn allocate_and_map(fd: usize, bytes: usize) -> Result<usize, Errno> {
    allocate(fd, bytes)?;
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    sys::mmap(bytes, protection, sys::MAP_SHARED, Some(fd), 0)
}

/// Gives the file its space on disk, by writing zeros where the file system knows no `fallocate`.
fn allocate(fd: usize, bytes: usize) -> Result<(), Errno> {
    const EOPNOTSUPP: Errno = Errno(95);
    match sys::fallocate(fd, bytes) {
        Ok(_) => Ok(()),
        Err(EOPNOTSUPP | sys::ENOSYS) => {
            static ZEROS: [u8; 4096] = [0; 4096];
            (0..bytes.div_ceil(ZEROS.len())).try_for_each(|_| sys::write(fd, &ZEROS))
        }
        Err(error) => Err(error),
    }
}

/// `MADV_DONTNEED`: of a shared file mapping, it drops the mapped pages and keeps the file's.
const ADVICE_DONT_NEED: usize = 4;

/// Stores the checksum of a block that no thread fills any more, and drops its pages from the program's
/// resident memory.
fn close(block: usize) {
    // SAFETY: a claimed block, still mapped; its committed bytes do not change any more.
    unsafe {
        let committed = (*((block + 8) as *const AtomicU32)).load(Ordering::Acquire) as usize;
        let records = core::slice::from_raw_parts(
            (block + BLOCK_HEADER_BYTES) as *const u8,
            committed.min(BLOCK_BYTES - BLOCK_HEADER_BYTES),
        );
        // 0 means open; a block whose checksum happens to be 0 stays so.
        (*((block + 12) as *const AtomicU32)).store(crc32(records), Ordering::Release);
        let _ = sys::madvise(block, BLOCK_BYTES, ADVICE_DONT_NEED);
    }
}

#[cfg(test)]
mod tests;
