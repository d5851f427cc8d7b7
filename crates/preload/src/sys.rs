//! System calls, made directly: nothing here allocates, locks, sets `errno`, or can be cancelled.
//!
//! Every call returns the kernel's value, or the error number as [`Errno`].

use core::arch::asm;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// `EFBIG`.
pub const EFBIG: Errno = Errno(27);
/// `RLIMIT_FSIZE`.
pub const RESOURCE_FILE_BYTES: usize = 1;
/// `EINTR`.
pub const EINTR: Errno = Errno(4);
/// `ENOMEM`.
pub const ENOMEM: Errno = Errno(12);
/// `EPERM`.
pub const EPERM: Errno = Errno(1);
/// `ENOSYS`.
pub const ENOSYS: Errno = Errno(38);

/// Numbers of the system calls.
#[allow(missing_docs)]
#[cfg(target_arch = "x86_64")]
pub mod number {
    pub const READ: usize = 0;
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const FSTAT: usize = 5;
    pub const LSEEK: usize = 8;
    pub const MMAP: usize = 9;
    pub const MPROTECT: usize = 10;
    pub const MUNMAP: usize = 11;
    pub const BRK: usize = 12;
    pub const SCHED_YIELD: usize = 24;
    pub const MREMAP: usize = 25;
    pub const MINCORE: usize = 27;
    pub const MADVISE: usize = 28;
    pub const GETPID: usize = 39;
    pub const GETTID: usize = 186;
    pub const FCNTL: usize = 72;
    pub const FUTEX: usize = 202;
    pub const SCHED_SETAFFINITY: usize = 203;
    pub const SCHED_GETAFFINITY: usize = 204;
    pub const TGKILL: usize = 234;
    pub const CLOCK_GETTIME: usize = 228;
    pub const PRCTL: usize = 157;
    pub const EXIT_GROUP: usize = 231;
    pub const MBIND: usize = 237;
    pub const SET_MEMPOLICY: usize = 238;
    pub const GET_MEMPOLICY: usize = 239;
    pub const OPENAT: usize = 257;
    pub const READLINKAT: usize = 267;
    pub const MOVE_PAGES: usize = 279;
    pub const UNLINKAT: usize = 263;
    pub const FALLOCATE: usize = 285;
    pub const PRLIMIT64: usize = 302;
    pub const GETCPU: usize = 309;
    pub const GETRUSAGE: usize = 98;
    pub const RT_SIGACTION: usize = 13;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const RT_SIGPENDING: usize = 127;
    pub const GETPPID: usize = 110;
    pub const TIMER_CREATE: usize = 222;
    pub const TIMER_SETTIME: usize = 223;
    pub const TIMER_DELETE: usize = 226;
    pub const CLOCK_GETRES: usize = 229;
    pub const SET_MEMPOLICY_HOME_NODE: usize = 450;
}

/// Numbers of the system calls.
#[allow(missing_docs)]
#[cfg(target_arch = "aarch64")]
pub mod number {
    pub const READ: usize = 63;
    pub const WRITE: usize = 64;
    pub const CLOSE: usize = 57;
    pub const FSTAT: usize = 80;
    pub const LSEEK: usize = 62;
    pub const MMAP: usize = 222;
    pub const MPROTECT: usize = 226;
    pub const MUNMAP: usize = 215;
    pub const BRK: usize = 214;
    pub const SCHED_YIELD: usize = 124;
    pub const MREMAP: usize = 216;
    pub const MINCORE: usize = 232;
    pub const MADVISE: usize = 233;
    pub const GETPID: usize = 172;
    pub const GETTID: usize = 178;
    pub const FCNTL: usize = 25;
    pub const FUTEX: usize = 98;
    pub const SCHED_SETAFFINITY: usize = 122;
    pub const SCHED_GETAFFINITY: usize = 123;
    pub const TGKILL: usize = 131;
    pub const CLOCK_GETTIME: usize = 113;
    pub const PRCTL: usize = 167;
    pub const EXIT_GROUP: usize = 94;
    pub const MBIND: usize = 235;
    pub const SET_MEMPOLICY: usize = 237;
    pub const GET_MEMPOLICY: usize = 236;
    pub const OPENAT: usize = 56;
    pub const READLINKAT: usize = 78;
    pub const MOVE_PAGES: usize = 239;
    pub const UNLINKAT: usize = 35;
    pub const FALLOCATE: usize = 47;
    pub const PRLIMIT64: usize = 261;
    pub const GETCPU: usize = 168;
    pub const GETRUSAGE: usize = 165;
    pub const RT_SIGACTION: usize = 134;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const RT_SIGPENDING: usize = 136;
    pub const GETPPID: usize = 173;
    pub const TIMER_CREATE: usize = 107;
    pub const TIMER_SETTIME: usize = 110;
    pub const TIMER_DELETE: usize = 111;
    pub const CLOCK_GETRES: usize = 114;
    pub const SET_MEMPOLICY_HOME_NODE: usize = 450;
}

/// A system call of up to six arguments; unused ones are 0.
///
/// # Safety
/// As the call itself: pointers must be valid for what the kernel does with them.
#[inline]
pub unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the registers are those of the kernel's calling convention; the rest is the caller's.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
             in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
             options(nostack));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("svc 0", inlateout("x0") a as isize => result, in("x1") b, in("x2") c, in("x3") d,
             in("x4") e, in("x5") f, in("x8") number, options(nostack));
    }
    if (-4095..0).contains(&result) {
        Err(Errno(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// `PROT_READ`.
pub const PROT_READ: usize = 1;
/// `PROT_WRITE`.
pub const PROT_WRITE: usize = 2;
/// `PROT_EXEC`.
pub const PROT_EXEC: usize = 4;
/// `MAP_FIXED`.
pub const MAP_FIXED: usize = 0x10;
/// `MAP_SHARED`.
pub const MAP_SHARED: usize = 1;
/// `MAP_PRIVATE`.
pub const MAP_PRIVATE: usize = 2;
/// `MAP_ANONYMOUS`.
pub const MAP_ANONYMOUS: usize = 0x20;
/// `MAP_NORESERVE`.
pub const MAP_NORESERVE: usize = 0x4000;
/// `O_RDONLY`.
pub const O_RDONLY: usize = 0;
/// `O_WRONLY`.
pub const O_WRONLY: usize = 1;
/// `O_RDWR`.
pub const O_RDWR: usize = 2;
/// `O_CREAT`.
pub const O_CREAT: usize = 0o100;
/// `O_EXCL`.
pub const O_EXCL: usize = 0o200;
/// `O_TRUNC`.
pub const O_TRUNC: usize = 0o1000;
/// `O_APPEND`.
pub const O_APPEND: usize = 0o2000;
/// `O_CLOEXEC`.
pub const O_CLOEXEC: usize = 0o2000000;
/// `AT_FDCWD`.
const AT_FDCWD: usize = -100isize as usize;

/// Maps `length` bytes; `fd` is `None` for anonymous memory.
pub fn mmap(
    length: usize,
    protection: usize,
    flags: usize,
    fd: Option<usize>,
    offset: usize,
) -> Result<usize, Errno> {
    let fd = fd.unwrap_or(usize::MAX);
    // SAFETY: without MAP_FIXED (no caller passes it) a new mapping touches no existing memory.
    unsafe { call(number::MMAP, [0, length, protection, flags, fd, offset]) }
}

/// Zeroed private memory, not reserved in advance.
pub fn reserve(length: usize) -> Result<usize, Errno> {
    mmap(
        length,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        None,
        0,
    )
}

/// Unmaps.
///
/// # Safety
/// Nothing may use the memory any more.
pub unsafe fn munmap(address: usize, length: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { call(number::MUNMAP, [address, length, 0, 0, 0, 0]) }
}

/// Opens `path`, which ends in a zero byte. Flags are or-ed with `O_CLOEXEC`; new files are 0600.
pub fn open(path: &[u8], flags: usize) -> Result<usize, Errno> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is readable and terminated.
    unsafe {
        call(
            number::OPENAT,
            [
                AT_FDCWD,
                path.as_ptr() as usize,
                flags | O_CLOEXEC,
                0o600,
                0,
                0,
            ],
        )
    }
}

/// The target of a symbolic link, whose path ends in a zero byte. Returns the number of bytes.
pub fn readlink(path: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is readable and terminated, the buffer writable for its length.
    unsafe {
        call(
            number::READLINKAT,
            [
                AT_FDCWD,
                path.as_ptr() as usize,
                buffer.as_mut_ptr() as usize,
                buffer.len(),
                0,
                0,
            ],
        )
    }
}

/// Closes a descriptor that this library opened.
pub fn close(fd: usize) {
    // SAFETY: no memory is involved.
    let _ = unsafe { call(number::CLOSE, [fd, 0, 0, 0, 0, 0]) };
}

/// Reads into `buffer`; returns the number of bytes, 0 at the end.
pub fn read(fd: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is writable for its length.
    unsafe {
        call(
            number::READ,
            [fd, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0],
        )
    }
}

/// Writes all of `bytes`, however often that takes; `EFBIG` where that might pass the file size limit,
/// which would be a SIGXFSZ for the program.
pub fn write(fd: usize, mut bytes: &[u8]) -> Result<(), Errno> {
    if !may_grow(fd, bytes.len())? {
        return Err(EFBIG);
    }
    while !bytes.is_empty() {
        // SAFETY: the slice is readable for its length.
        match unsafe {
            call(
                number::WRITE,
                [fd, bytes.as_ptr() as usize, bytes.len(), 0, 0, 0],
            )
        } {
            Ok(0) => return Err(Errno(5)),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// May `bytes` be written to this descriptor within the file size limit? Others that append to the
/// file meanwhile are allowed for.
fn may_grow(fd: usize, bytes: usize) -> Result<bool, Errno> {
    const SEEK_CUR: usize = 1;
    const OTHERS_BYTES: u64 = 64 << 10;
    let limit = resource_limit(RESOURCE_FILE_BYTES)?;
    if limit == u64::MAX {
        return Ok(true);
    }
    let mut status = [0u64; 32];
    // SAFETY: the kernel's structure is smaller.
    unsafe {
        call(
            number::FSTAT,
            [fd, status.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    }?;
    // Size and mode of the kernel's `struct stat`; pipes and terminals have no limit.
    let mode = if cfg!(target_arch = "x86_64") {
        status[3] as u32
    } else {
        status[2] as u32
    };
    if mode & 0o170_000 != 0o100_000 {
        return Ok(true);
    }
    // SAFETY: no memory is involved.
    let at = unsafe { call(number::LSEEK, [fd, 0, SEEK_CUR, 0, 0, 0]) }? as u64;
    let end = at.max(status[6]).saturating_add(bytes as u64);
    Ok(end.saturating_add(OTHERS_BYTES) <= limit)
}

/// Allocates the file's space on disk, so that later stores to its mapping have a block to go to.
pub fn fallocate(fd: usize, length: usize) -> Result<usize, Errno> {
    // SAFETY: no memory is involved.
    unsafe { call(number::FALLOCATE, [fd, 0, 0, length, 0, 0]) }
}

/// Removes the file at `path`, which ends in a zero byte.
pub fn unlink(path: &[u8]) {
    debug_assert!(path.last() == Some(&0));
    // SAFETY: the path is readable and terminated.
    let _ = unsafe {
        call(
            number::UNLINKAT,
            [AT_FDCWD, path.as_ptr() as usize, 0, 0, 0, 0],
        )
    };
}

/// Device and file number of a descriptor.
pub fn identity(fd: usize) -> Result<[u64; 2], Errno> {
    Ok(file_status(fd)?.identity)
}

/// What fstat(2) says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Device and file number.
    pub identity: [u64; 2],
    /// Size in bytes.
    pub size: u64,
    /// Last change: seconds since 1970, nanoseconds.
    pub changed: [u64; 2],
}

/// What fstat(2) says of a descriptor.
pub fn file_status(fd: usize) -> Result<FileStatus, Errno> {
    let mut status = [0u64; 32];
    // SAFETY: the kernel's structure is smaller.
    unsafe {
        call(
            number::FSTAT,
            [fd, status.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    }?;
    // The structures of both processors have these at the same places.
    Ok(FileStatus {
        identity: [status[0], status[1]],
        size: status[6],
        changed: [status[11], status[12]],
    })
}

/// Was the descriptor opened for reading alone?
pub fn is_read_only(fd: usize) -> bool {
    const F_GETFL: usize = 3;
    const O_ACCMODE: usize = 3;
    // SAFETY: no memory is involved.
    let flags = unsafe { call(number::FCNTL, [fd, F_GETFL, 0, 0, 0, 0]) };
    flags.is_ok_and(|flags| flags & O_ACCMODE == O_RDONLY)
}

/// This process's id.
pub fn getpid() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { call(number::GETPID, [0; 6]) }.unwrap_or(0) as u32
}

/// This thread's id.
pub fn gettid() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { call(number::GETTID, [0; 6]) }.unwrap_or(0) as u32
}

/// Where the heap that `brk` extends ends.
pub fn program_break() -> usize {
    // SAFETY: asks where it is, and changes nothing.
    unsafe { call(number::BRK, [0; 6]) }.unwrap_or(0)
}

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: no memory is involved.
    let _ = unsafe { call(number::SCHED_YIELD, [0; 6]) };
}

/// The parent's number.
pub fn getppid() -> u32 {
    // SAFETY: no memory is involved.
    unsafe { call(number::GETPPID, [0; 6]) }.unwrap_or(0) as u32
}

/// The CPU that the calling thread is on.
pub fn getcpu() -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Some(cpu) = segment_cpu() {
        return cpu;
    }
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one number.
    let _ = unsafe { call(number::GETCPU, [&raw mut cpu as usize, 0, 0, 0, 0, 0]) };
    cpu
}

/// The CPU as its descriptor tables have it: the limit of a segment that the kernel keeps for this, CPU
/// in the lower 12 bits (arch/x86/include/asm/segment.h, `vdso_read_cpunode`).
#[cfg(target_arch = "x86_64")]
fn segment_cpu() -> Option<u32> {
    const SEGMENT: u32 = 15 * 8 + 3;
    let (limit, there): (u32, u8);
    // SAFETY: reads a descriptor, if there is one.
    unsafe {
        core::arch::asm!("lsl {limit:e}, {segment:e}", "setz {there}",
            segment = in(reg) SEGMENT, limit = lateout(reg) limit, there = lateout(reg_byte) there,
            options(nomem, nostack));
    }
    (there != 0).then_some(limit & 0xfff)
}

/// The memory node of the CPU that the calling thread is on.
pub fn node() -> u32 {
    let mut node = 0u32;
    // SAFETY: the kernel writes one number.
    let _ = unsafe { call(number::GETCPU, [0, &raw mut node as usize, 0, 0, 0, 0]) };
    node
}

/// Nanoseconds between two ticks: the resolution of `CLOCK_MONOTONIC_COARSE`.
pub fn tick_ns() -> u64 {
    const CLOCK_MONOTONIC_COARSE: usize = 6;
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes two words.
    let _ = unsafe {
        call(
            number::CLOCK_GETRES,
            [
                CLOCK_MONOTONIC_COARSE,
                time.as_mut_ptr() as usize,
                0,
                0,
                0,
                0,
            ],
        )
    };
    time[0] * 1_000_000_000 + time[1]
}

/// What the calling thread used in user mode and in the kernel, in nanoseconds.
pub fn thread_usage_ns() -> (u64, u64) {
    const THREAD: usize = 1;
    /// `struct rusage`: two times in seconds and microseconds, and 14 more words.
    const WORDS: usize = 18;
    let mut usage = [0u64; WORDS];
    // SAFETY: the kernel writes as many words.
    let _ = unsafe {
        call(
            number::GETRUSAGE,
            [THREAD, usage.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    let [user_s, user_us, kernel_s, kernel_us, ..] = usage;
    let ns = |s: u64, us: u64| s * 1_000_000_000 + us * 1_000;
    (ns(user_s, user_us), ns(kernel_s, kernel_us))
}

/// Bytes of the kernel's set of signals.
const SIGNAL_SET_BYTES: usize = 8;
/// `SA_SIGINFO | SA_ONSTACK | SA_RESTART`.
const HANDLER_FLAGS: usize = 0x1800_0004;
/// `SA_RESTORER`, which x86-64 asks for.
const WITH_RESTORER: usize = if cfg!(target_arch = "x86_64") {
    0x400_0000
} else {
    0
};

/// What the kernel does on a signal: its `struct sigaction`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Action {
    /// 0 default, 1 ignore, or an address.
    pub handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

impl Action {
    /// Is nothing set?
    pub fn is_default(&self) -> bool {
        self.handler == 0
    }
}

/// What is done on `signal`.
pub fn action(signal: i32) -> Result<Action, Errno> {
    let mut old = Action::default();
    // SAFETY: the kernel writes one structure.
    unsafe {
        call(
            number::RT_SIGACTION,
            [
                signal as usize,
                0,
                &raw mut old as usize,
                SIGNAL_SET_BYTES,
                0,
                0,
            ],
        )
    }?;
    Ok(old)
}

/// Lets `handler` handle `signal`, on the alternate stack where there is one, with all others
/// blocked meanwhile, and restarts what it interrupts.
pub fn handle(signal: i32, handler: usize) -> Result<usize, Errno> {
    set_action(
        signal,
        &Action {
            handler,
            flags: HANDLER_FLAGS | WITH_RESTORER,
            restorer: restorer(),
            mask: u64::MAX,
        },
    )
}

/// Lets the default be done on `signal`.
pub fn set_default(signal: i32) -> Result<usize, Errno> {
    set_action(signal, &Action::default())
}

fn set_action(signal: i32, action: &Action) -> Result<usize, Errno> {
    // SAFETY: the structure is readable; the handler that it names stays loaded.
    unsafe {
        call(
            number::RT_SIGACTION,
            [
                signal as usize,
                core::ptr::from_ref(action) as usize,
                0,
                SIGNAL_SET_BYTES,
                0,
                0,
            ],
        )
    }
}

/// Where handlers return to.
#[cfg(target_arch = "x86_64")]
fn restorer() -> usize {
    /// `rt_sigreturn`. Unwinders know it by these very instructions.
    #[unsafe(naked)]
    unsafe extern "C" fn sigreturn() {
        core::arch::naked_asm!("mov rax, 15", "syscall");
    }
    sigreturn as *const () as usize
}

/// The kernel has a place of its own.
#[cfg(target_arch = "aarch64")]
fn restorer() -> usize {
    0
}

/// Does the calling thread block `signal`?
pub fn is_blocked(signal: i32) -> bool {
    let mut set = 0u64;
    // SAFETY: the kernel writes one word.
    let result = unsafe {
        call(
            number::RT_SIGPROCMASK,
            [0, 0, &raw mut set as usize, SIGNAL_SET_BYTES, 0, 0],
        )
    };
    result.is_ok() && set >> (signal - 1) & 1 == 1
}

/// Does `signal` wait for the calling thread?
pub fn is_pending(signal: i32) -> bool {
    let mut set = 0u64;
    // SAFETY: the kernel writes one word.
    let result = unsafe {
        call(
            number::RT_SIGPENDING,
            [&raw mut set as usize, SIGNAL_SET_BYTES, 0, 0, 0, 0],
        )
    };
    result.is_ok() && set >> (signal - 1) & 1 == 1
}

/// A timer on a clock of the calling thread, which sends it `signal` with its number; not yet set.
pub fn timer_create(clock: i32, signal: i32, tid: u32) -> Result<u32, Errno> {
    const SIGEV_THREAD_ID: u32 = 4;
    // The value (a word), the signal, how, to whom.
    let mut event = [0u32; 16];
    (event[0], event[2], event[3], event[4]) = (tid, signal as u32, SIGEV_THREAD_ID, tid);
    let mut timer = 0u32;
    // SAFETY: the kernel reads 64 bytes and writes one number.
    unsafe {
        call(
            number::TIMER_CREATE,
            [
                clock as isize as usize,
                event.as_ptr() as usize,
                &raw mut timer as usize,
                0,
                0,
                0,
            ],
        )
    }?;
    Ok(timer)
}

/// Sets a timer: interval, then time to the first expiry, each in seconds and nanoseconds.
pub fn timer_settime(timer: u32, times: [u64; 4]) -> Result<usize, Errno> {
    // SAFETY: the kernel reads four words.
    unsafe {
        call(
            number::TIMER_SETTIME,
            [timer as usize, 0, times.as_ptr() as usize, 0, 0, 0],
        )
    }
}

/// Deletes a timer.
pub fn timer_delete(timer: u32) {
    // SAFETY: no memory is involved.
    let _ = unsafe { call(number::TIMER_DELETE, [timer as usize, 0, 0, 0, 0, 0]) };
}

/// CLOCK_MONOTONIC in nanoseconds, by system call. Hot paths use [`clock_ns`].
pub fn monotonic_ns() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: the kernel writes two words; 1 is CLOCK_MONOTONIC.
    let _ = unsafe {
        call(
            number::CLOCK_GETTIME,
            [1, time.as_mut_ptr() as usize, 0, 0, 0, 0],
        )
    };
    time[0] * 1_000_000_000 + time[1]
}

/// Tells a tracer that looks at system calls of a mark; nobody else knows the option.
pub fn tell_tracer(which: u32) {
    let option = nearpage_wire::trace::MARK_OPTION as usize;
    // SAFETY: the kernel refuses an option that it does not know.
    let _ = unsafe { call(number::PRCTL, [option, which as usize, 0, 0, 0, 0]) };
}

unsafe extern "C" {
    fn clock_gettime(clock: i32, time: *mut [u64; 2]) -> i32;
}

/// CLOCK_MONOTONIC in nanoseconds, through the C library, which needs no system call for it.
#[inline]
pub fn clock_ns() -> u64 {
    let mut time = [0u64; 2];
    // SAFETY: two words are written; the function neither locks nor allocates. 1 is CLOCK_MONOTONIC.
    unsafe { clock_gettime(1, &mut time) };
    time[0] * 1_000_000_000 + time[1]
}

/// Advice about memory.
///
/// # Safety
/// The advice must not destroy data that someone uses.
pub unsafe fn madvise(address: usize, length: usize, advice: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { call(number::MADVISE, [address, length, advice, 0, 0, 0]) }
}

/// Which pages of a page-aligned range are in memory: bit 0 of one byte per page.
pub fn mincore(
    address: usize,
    length: usize,
    present: &mut [u8],
    page_bytes: usize,
) -> Result<usize, Errno> {
    let length = length.min(present.len() * page_bytes);
    // SAFETY: the kernel writes one byte per page of the range, no more than `present` has.
    unsafe {
        call(
            number::MINCORE,
            [address, length, present.as_mut_ptr() as usize, 0, 0, 0],
        )
    }
}

/// Pins thread `tid` (0: the caller) to the CPUs of `mask`, bit n of word n / 64.
pub fn sched_setaffinity(tid: u32, mask: &[u64]) -> Result<usize, Errno> {
    // SAFETY: the mask is readable for its length.
    unsafe {
        call(
            number::SCHED_SETAFFINITY,
            [
                tid as usize,
                size_of_val(mask),
                mask.as_ptr() as usize,
                0,
                0,
                0,
            ],
        )
    }
}

/// Is there a thread of this process with that id? An id may be another process's once a thread has ended.
pub fn has_thread(tid: u32) -> bool {
    // SAFETY: signal 0 is none.
    let asked = unsafe {
        call(
            number::TGKILL,
            [getpid() as usize, tid as usize, 0, 0, 0, 0],
        )
    };
    asked.is_ok()
}

/// The CPUs that thread `tid` (0: the caller) may run on. Returns the bytes written.
pub fn sched_getaffinity(tid: u32, mask: &mut [u64]) -> Result<usize, Errno> {
    // SAFETY: the mask is writable for its length.
    unsafe {
        call(
            number::SCHED_GETAFFINITY,
            [
                tid as usize,
                size_of_val(mask),
                mask.as_mut_ptr() as usize,
                0,
                0,
                0,
            ],
        )
    }
}

/// Sets the memory policy of a range. `node_mask` is bit n of word n / 64; may be empty.
pub fn mbind(
    address: usize,
    length: usize,
    mode: usize,
    node_mask: &[u64],
    flags: usize,
) -> Result<usize, Errno> {
    // The kernel looks at maxnode − 1 bits, and takes 0 for very many.
    let maxnode = node_mask.len() * 64 + 1;
    // SAFETY: a policy changes where pages live, never what they hold; the mask is readable.
    unsafe {
        call(
            number::MBIND,
            [
                address,
                length,
                mode,
                node_mask.as_ptr() as usize,
                maxnode,
                flags,
            ],
        )
    }
}

/// Sets the memory policy of the calling thread. `node_mask` as for [`mbind`].
pub fn set_mempolicy(mode: usize, node_mask: &[u64]) -> Result<usize, Errno> {
    let maxnode = node_mask.len() * 64 + 1;
    // SAFETY: a policy changes where pages come from, never what they hold; the mask is readable.
    unsafe {
        call(
            number::SET_MEMPOLICY,
            [mode, node_mask.as_ptr() as usize, maxnode, 0, 0, 0],
        )
    }
}

/// Asks for a memory policy: mode, and nodes into `node_mask`, which has a bit for every node that a kernel
/// may have. What is asked for is up to `flags`.
pub fn get_mempolicy(node_mask: &mut [u64], address: usize, flags: usize) -> Result<u32, Errno> {
    let mut mode = 0u32;
    // SAFETY: the kernel writes one number, and as many bits as the mask has.
    unsafe {
        call(
            number::GET_MEMPOLICY,
            [
                &raw mut mode as usize,
                node_mask.as_mut_ptr() as usize,
                node_mask.len() * 64,
                address,
                flags,
                0,
            ],
        )
    }?;
    Ok(mode)
}

/// Moves pages of this process to `nodes`, or, with `nodes` empty, asks where they are. One entry
/// per page in each slice; `status` gets the node or a negative error number.
pub fn move_pages(
    pages: &[usize],
    nodes: &[i32],
    status: &mut [i32],
    flags: usize,
) -> Result<usize, Errno> {
    let count = pages.len().min(status.len());
    let count = if nodes.is_empty() {
        count
    } else {
        count.min(nodes.len())
    };
    let nodes = if nodes.is_empty() {
        0
    } else {
        nodes.as_ptr() as usize
    };
    // SAFETY: each slice holds `count` entries; the addresses themselves may be anything.
    unsafe {
        call(
            number::MOVE_PAGES,
            [
                0,
                count,
                pages.as_ptr() as usize,
                nodes,
                status.as_mut_ptr() as usize,
                flags,
            ],
        )
    }
}

/// Sleeps while `*word == expected`, at most `timeout_ns`.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expected: u32, timeout_ns: u64) {
    let timeout = [timeout_ns / 1_000_000_000, timeout_ns % 1_000_000_000];
    // SAFETY: both pointers are valid for the call; 128 is FUTEX_WAIT | FUTEX_PRIVATE_FLAG.
    let _ = unsafe {
        call(
            number::FUTEX,
            [
                word.as_ptr() as usize,
                128,
                expected as usize,
                timeout.as_ptr() as usize,
                0,
                0,
            ],
        )
    };
}

/// Wakes up to `count` sleepers on `word`.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, count: u32) {
    // SAFETY: the pointer is valid; 129 is FUTEX_WAKE | FUTEX_PRIVATE_FLAG.
    let _ = unsafe {
        call(
            number::FUTEX,
            [word.as_ptr() as usize, 129, count as usize, 0, 0, 0],
        )
    };
}

/// The soft limit of a resource of this process, `u64::MAX` for unlimited.
pub fn resource_limit(resource: usize) -> Result<u64, Errno> {
    let mut limit = [0u64; 2];
    // SAFETY: the kernel writes two words.
    unsafe {
        call(
            number::PRLIMIT64,
            [0, resource, 0, limit.as_mut_ptr() as usize, 0, 0],
        )
    }?;
    Ok(limit[0])
}

#[cfg(test)]
mod tests;
