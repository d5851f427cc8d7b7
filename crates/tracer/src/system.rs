//! Functions of the C library that Rust's standard library does not offer.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut [c_long; 2]) -> c_int;
    fn gettid() -> c_int;
    fn fcntl(descriptor: c_int, command: c_int, ...) -> c_int;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn getrlimit(resource: c_int, limits: *mut [c_ulong; 2]) -> c_int;
    fn posix_fallocate(descriptor: c_int, offset: c_long, bytes: c_long) -> c_int;
    fn mmap(
        address: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        descriptor: c_int,
        offset: c_long,
    ) -> *mut c_void;
    fn munmap(address: *mut c_void, bytes: usize) -> c_int;
    fn access(path: *const c_char, mode: c_int) -> c_int;
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int;
}

/// CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let mut time = [0; 2];
    // SAFETY: it fills a timespec, two longs on every 64-bit Linux.
    unsafe { clock_gettime(1, &mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// The calling thread's id.
pub fn thread_id() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    (unsafe { gettid() }) as u32
}

/// The same file under a high descriptor, which programs don't expect to be free, closed on `exec`. If there is none, the
/// same descriptor.
pub fn out_of_the_way(file: File) -> File {
    const F_DUPFD_CLOEXEC: c_int = 1030;
    for at_least in [1000, 200] {
        // SAFETY: it duplicates a descriptor that `file` owns.
        let descriptor = unsafe { fcntl(file.as_raw_fd(), F_DUPFD_CLOEXEC, at_least) };
        if descriptor >= 0 {
            // SAFETY: the new descriptor is nobody else's.
            return unsafe { OwnedFd::from_raw_fd(descriptor) }.into();
        }
    }
    file
}

/// Address of a function or variable of the program that loaded this plugin.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is terminated; a null handle is the search of all that is loaded.
    let address = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

/// Fails if a file of this length would exceed the file size limit: making it would send a SIGXFSZ,
/// which ends the program.
///
/// # Errors
/// `EFBIG`.
pub fn refuse_beyond_limit(bytes: u64) -> std::io::Result<()> {
    const RLIMIT_FSIZE: c_int = 1;
    const EFBIG: i32 = 27;
    let mut limits = [c_ulong::MAX; 2];
    // SAFETY: it fills a rlimit, two unsigned longs on every 64-bit Linux.
    unsafe { getrlimit(RLIMIT_FSIZE, &mut limits) };
    match bytes > limits[0] {
        true => Err(std::io::Error::from_raw_os_error(EFBIG)),
        false => Ok(()),
    }
}

/// Mapped memory. If it maps a file, its contents outlive the process.
pub struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is the owner's alone, as a box is.
unsafe impl Send for Memory {}

impl Memory {
    /// Maps zeros: of a file, which gets this length, or anonymous memory. `None` if there is no room.
    pub fn new(file: Option<&File>, bytes: usize) -> Option<Self> {
        const READ_WRITE: c_int = 3;
        const SHARED: c_int = 1;
        const PRIVATE_ANONYMOUS: c_int = 0x22;
        const FAILED: usize = usize::MAX;
        let (flags, descriptor) = match file {
            Some(file) => (SHARED, file.as_raw_fd()),
            None => (PRIVATE_ANONYMOUS, -1),
        };
        if file.is_some() {
            refuse_beyond_limit(bytes as u64).ok()?;
            // If the disk had no room, a store would end the program by a signal.
            // SAFETY: it concerns the file alone.
            if unsafe { posix_fallocate(descriptor, 0, bytes as c_long) } != 0 {
                return None;
            }
        }
        // SAFETY: a mapping at an address that is free.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                READ_WRITE,
                flags,
                descriptor,
                0,
            )
        };
        let start = NonNull::new(start.cast()).filter(|_| start.addr() != FAILED)?;
        Some(Self { start, bytes })
    }

    /// Its words; the memory stays mapped as long as the process lives.
    pub fn into_words(self) -> &'static [AtomicU32] {
        let memory = ManuallyDrop::new(self);
        // SAFETY: it is mapped at a page's begin, and stays so.
        unsafe { std::slice::from_raw_parts(memory.start.as_ptr().cast(), memory.bytes / 4) }
    }

    /// Writes a word at `offset`, a multiple of 8, with release order.
    #[inline]
    pub fn publish(&mut self, offset: usize, word: u64) {
        if offset.is_multiple_of(8) && offset + 8 <= self.bytes {
            // SAFETY: it is inside, aligned, and nobody else's while `self` is borrowed.
            let place = unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) };
            place.store(word, Ordering::Release);
        }
    }
}

impl Deref for Memory {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: it is mapped, readable, and only `self` changes it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for Memory {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `new` mapped it, and nobody has it any more.
        unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Maps a file, which gets this length, as words that all its users share. They stay mapped.
pub fn shared_words(file: &File, count: usize) -> Option<&'static [AtomicU64]> {
    let memory = ManuallyDrop::new(Memory::new(Some(file), count * size_of::<AtomicU64>())?);
    // SAFETY: it is mapped for good, from a page's beginning, and nobody changes it but atomically.
    Some(unsafe { std::slice::from_raw_parts(memory.start.as_ptr().cast(), count) })
}

/// Is the descriptor open for writing?
pub fn may_write(descriptor: c_int) -> bool {
    const F_GETFL: c_int = 3;
    const ACCESS: c_int = 3;
    // SAFETY: it is asked; that of a closed one fails.
    let flags = unsafe { fcntl(descriptor, F_GETFL) };
    flags >= 0 && flags & ACCESS != 0
}

/// May the calling process run that file?
pub fn may_run(path: &CStr) -> bool {
    const EXECUTE: c_int = 1;
    // SAFETY: the path is terminated.
    (unsafe { access(path.as_ptr(), EXECUTE) }) == 0
}

/// Executes another program in place of this one; returns if that fails.
pub fn run_instead(path: &CStr, arguments: &[CString], environment: &[CString]) {
    let pointers = |words: &[CString]| -> Vec<*const c_char> {
        let ends = std::iter::once(std::ptr::null());
        words.iter().map(|word| word.as_ptr()).chain(ends).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: terminated strings, in lists that end with null.
    unsafe { execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
}
