//! The ring of samples that the recorder reads, and its files.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use nearpage_wire::samples::{HEADER_BYTES, Kind, MAGIC, SLOT_BYTES, offset, slot};

use super::{FORKED, PERIOD_NS, SIGNAL};
use crate::message::{self, Text};
use crate::sys;

/// Most bytes of `/proc/self/maps` that are copied.
const MAPS_BYTES_MAX: usize = 4 << 20;
/// `MADV_DONTFORK`.
const ADVICE_DONT_FORK: usize = 10;

// Values of [`RING`] that are no address.
/// No thread has made the ring yet.
pub(super) const NONE: usize = 0;
/// A thread is making the ring.
pub(super) const MAKING: usize = 1;
/// The ring could not be made.
pub(super) const FAILED: usize = 2;
/// The lowest value that is an address.
pub(super) const ADDRESS: usize = 4096;

/// Address of the mapped file.
pub(super) static RING: AtomicUsize = AtomicUsize::new(NONE);
pub(super) static SLOTS: AtomicUsize = AtomicUsize::new(0);
/// Samples that came before the ring was made.
pub(super) static EARLY: AtomicU64 = AtomicU64::new(0);

/// State for making the ring and for ending the process, used by one thread at a time.
pub(super) struct Files {
    pub(super) directory: Text<4000>,
    path: Text<4096>,
    pub(super) start_ns: u64,
    buffer: [u8; 4096],
}

pub(super) struct Owned(pub(super) UnsafeCell<Files>);

// SAFETY: touched while there is one thread, or by the thread that holds `FILES_TAKEN`.
unsafe impl Sync for Owned {}

pub(super) static FILES: Owned = Owned(UnsafeCell::new(Files {
    directory: Text::new(),
    path: Text::new(),
    start_ns: 0,
    buffer: [0; 4096],
}));
pub(super) static FILES_TAKEN: AtomicU32 = AtomicU32::new(0);

pub(super) fn word(at: usize, offset: usize) -> &'static AtomicU64 {
    // SAFETY: callers pass the address of the mapped header or of a slot, which stay mapped as long
    // as the process lives, and an offset in it that is a multiple of 8.
    unsafe { &*((at + offset) as *const AtomicU64) }
}

pub(super) fn half(at: usize, offset: usize) -> &'static AtomicU32 {
    // SAFETY: as `word`, with multiples of 4.
    unsafe { &*((at + offset) as *const AtomicU32) }
}

/// Takes a slot, lets `fill` write its contents, and publishes it; counts a lost sample if no slot is free.
pub(super) fn write(kind: Kind, tid: u32, fill: impl FnOnce(usize)) {
    let ring = RING.load(Ordering::Acquire);
    if ring < ADDRESS {
        EARLY.fetch_add(u64::from(kind == Kind::Sample), Ordering::Relaxed);
        return;
    }
    let slots = SLOTS.load(Ordering::Relaxed) as u64;
    let head = word(ring, offset::HEAD);
    let mut number = head.load(Ordering::Relaxed);
    loop {
        let tail = word(ring, offset::TAIL).load(Ordering::Acquire);
        if number.wrapping_sub(tail) >= slots {
            word(ring, offset::DROPPED).fetch_add(1, Ordering::Relaxed);
            return;
        }
        match head.compare_exchange_weak(number, number + 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(other) => number = other,
        }
    }
    let at = ring + HEADER_BYTES + (number & (slots - 1)) as usize * SLOT_BYTES;
    half(at, slot::KIND).store(kind as u32, Ordering::Relaxed);
    half(at, slot::TID).store(tid, Ordering::Relaxed);
    word(at, slot::TIME_NS).store(sys::clock_ns(), Ordering::Relaxed);
    fill(at);
    word(at, slot::SEQUENCE).store(number + 1, Ordering::Release);
}

/// Makes the ring, unless another thread does. Samples taken meanwhile are lost.
#[cold]
pub(super) fn make_ring() {
    if RING
        .compare_exchange(NONE, MAKING, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    let made = with_files(|files| files.make_ring());
    match made {
        Some(Ok(address)) => {
            RING.store(address, Ordering::Release);
            copy_maps();
        }
        failed => {
            RING.store(FAILED, Ordering::Release);
            let number = failed.and_then(Result::err).map_or(0, |error| error.0);
            message::line(format_args!(
                "no file for samples (error {number}): this process is not sampled"
            ));
        }
    }
}

pub(super) fn copy_maps() {
    with_files(Files::copy_maps);
}

/// Calls `work` with the files, unless another thread uses them.
pub(super) fn with_files<R>(work: impl FnOnce(&mut Files) -> R) -> Option<R> {
    FILES_TAKEN
        .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed)
        .ok()?;
    // SAFETY: just taken.
    let result = work(unsafe { &mut *FILES.0.get() });
    FILES_TAKEN.store(0, Ordering::Release);
    Some(result)
}

impl Files {
    fn name(&mut self, ending: &[u8]) {
        let path = &mut self.path;
        path.clear();
        path.push(self.directory.as_bytes());
        path.push(b"/samples-");
        path.push_number(sys::getpid().into());
        path.push(b"-");
        path.push_number(self.start_ns);
        path.push(ending);
        path.push(b"\0");
    }

    fn make_ring(&mut self) -> Result<usize, sys::Errno> {
        self.name(b".ring");
        let slots = SLOTS.load(Ordering::Relaxed);
        let bytes = HEADER_BYTES + slots * SLOT_BYTES;
        let path = self.path.as_bytes();
        let fd = sys::open(path, sys::O_RDWR | sys::O_CREAT | sys::O_EXCL)?;
        let mapped = sys::resource_limit(sys::RESOURCE_FILE_BYTES)
            .and_then(|limit| match limit < bytes as u64 {
                true => Err(sys::EFBIG),
                false => sys::fallocate(fd, bytes),
            })
            .and_then(|_| {
                sys::mmap(
                    bytes,
                    sys::PROT_READ | sys::PROT_WRITE,
                    sys::MAP_SHARED,
                    Some(fd),
                    0,
                )
            });
        sys::close(fd);
        let ring = mapped.inspect_err(|_| sys::unlink(path))?;
        // SAFETY: a mapping of our own. A child gets a ring of its own.
        let _ = unsafe { sys::madvise(ring, bytes, ADVICE_DONT_FORK) };
        half(ring, offset::PID).store(sys::getpid(), Ordering::Relaxed);
        half(ring, offset::PARENT).store(sys::getppid(), Ordering::Relaxed);
        word(ring, offset::START_NS).store(self.start_ns, Ordering::Relaxed);
        half(ring, offset::SLOTS).store(slots as u32, Ordering::Relaxed);
        half(ring, offset::SLOT_BYTES).store(SLOT_BYTES as u32, Ordering::Relaxed);
        half(ring, offset::SIGNAL).store(SIGNAL.load(Ordering::Relaxed) as u32, Ordering::Relaxed);
        half(ring, offset::FORKED).store(FORKED.load(Ordering::Relaxed), Ordering::Relaxed);
        word(ring, offset::PERIOD_NS).store(PERIOD_NS.load(Ordering::Relaxed), Ordering::Relaxed);
        word(ring, 0).store(u64::from_le_bytes(MAGIC), Ordering::Release);
        Ok(ring)
    }

    /// Replaces the copy of the process's mappings, for a recorder that reads it after the process has ended.
    fn copy_maps(&mut self) {
        self.name(b".maps");
        let flags = sys::O_WRONLY | sys::O_CREAT | sys::O_TRUNC;
        let Ok(to) = sys::open(self.path.as_bytes(), flags) else {
            return;
        };
        if let Ok(from) = sys::open(b"/proc/thread-self/maps\0", sys::O_RDONLY) {
            let mut copied = 0;
            while copied < MAPS_BYTES_MAX
                && let Ok(bytes @ 1..) = sys::read(from, &mut self.buffer)
                && let Some(text) = self.buffer.get(..bytes)
                && sys::write(to, text).is_ok()
            {
                copied += bytes;
            }
            sys::close(from);
        }
        sys::close(to);
    }
}
