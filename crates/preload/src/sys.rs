//! System calls, made directly: nothing here allocates, locks, sets `errno`, or can be cancelled.
//!
//! Every call returns the kernel's value, or the error number as [`Errno`].

mod files;
mod memory;
mod signals;

use core::arch::asm;

pub use files::*;
pub use memory::*;
pub use signals::*;

/// An error number of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// `EFBIG`.
pub const EFBIG: Errno = Errno(27);
/// `RLIMIT_FSIZE`.
pub const RESOURCE_FILE_BYTES: usize = 1;
/// `RLIMIT_AS`.
pub const RESOURCE_ADDRESS_SPACE: usize = 9;
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
    pub const PREAD64: usize = 17;
    pub const SECCOMP: usize = 317;
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
    pub const FTRUNCATE: usize = 77;
    pub const GETEUID: usize = 107;
    pub const SETUID: usize = 105;
    pub const SETREUID: usize = 113;
    pub const SETRESUID: usize = 117;
    pub const CHROOT: usize = 161;
    pub const SETNS: usize = 308;
    pub const UNSHARE: usize = 272;
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
    pub const PREAD64: usize = 67;
    pub const SECCOMP: usize = 277;
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
    pub const FTRUNCATE: usize = 46;
    pub const GETEUID: usize = 175;
    pub const SETUID: usize = 146;
    pub const SETREUID: usize = 145;
    pub const SETRESUID: usize = 147;
    pub const CHROOT: usize = 51;
    pub const SETNS: usize = 268;
    pub const UNSHARE: usize = 97;
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

/// The effective user.
pub fn effective_user() -> Option<u32> {
    // SAFETY: no memory is involved.
    unsafe { call(number::GETEUID, [0; 6]) }
        .ok()
        .map(|user| user as u32)
}

/// The end of the heap that `brk` extends.
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

/// The calling thread's CPU without a system call: the kernel stores it in the lower 12 bits of a segment's limit
/// (arch/x86/include/asm/segment.h, `vdso_read_cpunode`).
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

/// The calling thread's time in user mode and in the kernel, in nanoseconds.
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

/// Makes a system call with an option that only the tracer knows, to tell it of a mark.
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
