//! The functions that programs call instead of the C library's.
//!
//! On x86-64 `malloc`, `calloc`, `realloc` and `free` of small objects never leave a few
//! instructions of assembly: subtract from the thread's countdown, compare, jump on to the real
//! function. Everything else enters Rust with the address of the return address as an additional
//! argument, by a jump, so that the program's frame is the next one on the stack.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::allocation_log::{FLAG_REALLOCATED, FLAG_ZEROED};

use crate::call_site::Caller;
use crate::place;
use crate::real::{self, Function};
use crate::replicas;
use crate::sample_heap::SAMPLE_HEAP;
use crate::signal;
use crate::sys;
use crate::thread::Thread;
use crate::tracker::{Birth, FILTER, Filter, Mapping, TRACKER};

/// Defines an exported function that enters `$body` with the call's place on the stack as the
/// argument after its own: register `$x86`, or `$aarch`.
macro_rules! enter {
    ($($name:ident => $body:ident, $x86:literal, $aarch:literal;)*) => {$(
        /// Stands in front of the function of this name.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("mov ", $x86, ", rsp"), "jmp {body}", body = sym $body);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-16]!",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset x29, -16",
                ".cfi_offset x30, -8",
                "mov x29, sp",
                concat!("mov ", $aarch, ", sp"),
                "bl {body}",
                "ldp x29, x30, [sp], #16",
                "ret",
                ".cfi_endproc",
                body = sym $body,
            );
        }
    )*};
}

enter! {
    reallocarray => reallocarray_at, "rcx", "x3";
    posix_memalign => posix_memalign_at, "rcx", "x3";
    aligned_alloc => aligned_alloc_at, "rdx", "x2";
    memalign => memalign_at, "rdx", "x2";
    valloc => valloc_at, "rsi", "x1";
    pvalloc => pvalloc_at, "rsi", "x1";
    mremap => mremap_at, "r9", "x5";
    munmap => munmap_at, "rdx", "x2";
    brk => brk_at, "rsi", "x1";
    sbrk => sbrk_at, "rsi", "x1";
    pthread_create => pthread_create_at, "r8", "x4";
    thrd_create => thrd_create_at, "rcx", "x3";
    dlclose => dlclose_at, "rsi", "x1";
    nearpage_begin => begin_at, "rdi", "x0";
    nearpage_end => end_at, "rdi", "x0";
}

#[cfg(target_arch = "aarch64")]
enter! {
    malloc => malloc_counted, "rsi", "x1";
    calloc => calloc_counted, "rdx", "x2";
    realloc => realloc_counted, "rdx", "x2";
    free => free_at, "rsi", "x1";
}

/// Stands in front of `malloc`.
///
/// # Safety
/// As the function itself.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn malloc() {
    naked_asm!(
        "cmp rdi, {large}",
        "jae 2f",
        "mov rax, qword ptr [rip + nearpage_thread@GOTTPOFF]",
        "sub qword ptr fs:[rax], rdi",
        "jle 2f",
        "jmp qword ptr [rip + {real} + {malloc}]",
        "2:",
        "mov rsi, rsp",
        "jmp {slow}",
        large = const LARGE_ALLOCATION_BYTES,
        real = sym real::ADDRESSES,
        malloc = const Function::malloc as usize * 8,
        slow = sym malloc_at,
    );
}

/// Stands in front of `calloc`.
///
/// # Safety
/// As the function itself.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn calloc() {
    naked_asm!(
        "mov rax, rdi",
        "mul rsi",
        "jo 2f",
        "cmp rax, {large}",
        "jae 2f",
        "mov rcx, qword ptr [rip + nearpage_thread@GOTTPOFF]",
        "sub qword ptr fs:[rcx], rax",
        "jle 2f",
        "jmp qword ptr [rip + {real} + {calloc}]",
        "2:",
        "mov rdx, rsp",
        "jmp {slow}",
        large = const LARGE_ALLOCATION_BYTES,
        real = sym real::ADDRESSES,
        calloc = const Function::calloc as usize * 8,
        slow = sym calloc_at,
    );
}

/// Stands in front of `free`.
///
/// # Safety
/// As the function itself.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn free() {
    naked_asm!(
        "test rdi, rdi",
        "je 3f",
        "mov rax, rdi",
        "sub rax, qword ptr [rip + {filter} + {base}]",
        "cmp rax, qword ptr [rip + {filter} + {length}]",
        "jb 2f",
        "mov rax, qword ptr [rip + {filter} + {watched}]",
        "cmp qword ptr [rdi - 8], rax",
        "jae 2f",
        "jmp qword ptr [rip + {real} + {free}]",
        "2:",
        "mov rsi, rsp",
        "jmp {slow}",
        "3:",
        "ret",
        filter = sym FILTER,
        base = const Filter::SLOW_BASE,
        length = const Filter::SLOW_LENGTH,
        watched = const Filter::WATCHED_CHUNK_BYTES,
        real = sym real::ADDRESSES,
        free = const Function::free as usize * 8,
        slow = sym free_at,
    );
}

/// Stands in front of `realloc`.
///
/// # Safety
/// As the function itself.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn realloc() {
    naked_asm!(
        "cmp rsi, {large}",
        "jae 2f",
        "mov rax, qword ptr [rip + nearpage_thread@GOTTPOFF]",
        "sub qword ptr fs:[rax], rsi",
        "jle 2f",
        "test rdi, rdi",
        "je 3f",
        "mov rax, rdi",
        "sub rax, qword ptr [rip + {filter} + {base}]",
        "cmp rax, qword ptr [rip + {filter} + {length}]",
        "jb 2f",
        "mov rax, qword ptr [rip + {filter} + {watched}]",
        "cmp qword ptr [rdi - 8], rax",
        "jae 2f",
        "3:",
        "jmp qword ptr [rip + {real} + {realloc}]",
        "2:",
        "mov rdx, rsp",
        "jmp {slow}",
        large = const LARGE_ALLOCATION_BYTES,
        filter = sym FILTER,
        base = const Filter::SLOW_BASE,
        length = const Filter::SLOW_LENGTH,
        watched = const Filter::WATCHED_CHUNK_BYTES,
        real = sym real::ADDRESSES,
        realloc = const Function::realloc as usize * 8,
        slow = sym realloc_at,
    );
}

/// Defines `mmap` under both its names. Protection and flags share a register, so that the place
/// on the stack can be the sixth argument.
macro_rules! enter_mmap {
    ($($name:ident)*) => {$(
        /// Stands in front of `mmap`.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                "shl rcx, 32",
                "mov edx, edx",
                "or rdx, rcx",
                "mov rcx, r8",
                "mov r8, r9",
                "mov r9, rsp",
                "jmp {body}",
                body = sym mmap_at,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-16]!",
                ".cfi_def_cfa_offset 16",
                ".cfi_offset x29, -16",
                ".cfi_offset x30, -8",
                "mov x29, sp",
                "mov w2, w2",
                "orr x2, x2, x3, lsl #32",
                "mov x3, x4",
                "mov x4, x5",
                "mov x5, sp",
                "bl {body}",
                "ldp x29, x30, [sp], #16",
                "ret",
                ".cfi_endproc",
                body = sym mmap_at,
            );
        }
    )*};
}

enter_mmap! { mmap mmap64 }

/// Defines functions that are announced to `$note` and then jumped to, with all that they were
/// called with: some have any number of arguments, some look at their return address.
macro_rules! announce {
    ($($name:ident => $note:ident;)*) => {$(
        /// Stands in front of the function of this name.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "push rcx",
                ".cfi_adjust_cfa_offset 8",
                "push r8",
                ".cfi_adjust_cfa_offset 8",
                "push r9",
                ".cfi_adjust_cfa_offset 8",
                "push rax",
                ".cfi_adjust_cfa_offset 8",
                "lea rdi, [rsp + 56]",
                "mov esi, {function}",
                "call {note}",
                "mov r11, rax",
                "pop rax",
                ".cfi_adjust_cfa_offset -8",
                "pop r9",
                ".cfi_adjust_cfa_offset -8",
                "pop r8",
                ".cfi_adjust_cfa_offset -8",
                "pop rcx",
                ".cfi_adjust_cfa_offset -8",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "jmp r11",
                ".cfi_endproc",
                note = sym $note,
                function = const Function::$name as usize,
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(
                ".cfi_startproc",
                "stp x29, x30, [sp, #-80]!",
                ".cfi_def_cfa_offset 80",
                ".cfi_offset x29, -80",
                ".cfi_offset x30, -72",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "add x0, sp, #80",
                "mov x1, {function}",
                "bl {note}",
                "mov x16, x0",
                "ldp x6, x7, [sp, #64]",
                "ldp x4, x5, [sp, #48]",
                "ldp x2, x3, [sp, #32]",
                "ldp x0, x1, [sp, #16]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                ".cfi_endproc",
                note = sym $note,
                function = const Function::$name as usize,
            );
        }
    )*};
}

announce! {
    dlopen => note_loading;
    dlmopen => note_loading;
    execve => note_replacing;
    execv => note_replacing;
    execvp => note_replacing;
    execvpe => note_replacing;
    execveat => note_replacing;
    fexecve => note_replacing;
    execl => note_replacing;
    execlp => note_replacing;
    execle => note_replacing;
}

/// Begins a thread: learns where it is to start, and jumps there without leaving a frame.
#[unsafe(naked)]
unsafe extern "C" fn thread_entry() {
    #[cfg(target_arch = "x86_64")]
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {begin}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "mov rdi, rdx",
        "jmp rax",
        ".cfi_endproc",
        begin = sym begin_thread,
    );
    #[cfg(target_arch = "aarch64")]
    naked_asm!(
        ".cfi_startproc",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        "bl {begin}",
        "mov x16, x0",
        "mov x0, x1",
        "ldp x29, x30, [sp], #16",
        "br x16",
        ".cfi_endproc",
        begin = sym begin_thread,
    );
}

/// The caller of a hook, from the place that its entry passed.
fn caller(at: usize) -> Caller {
    // SAFETY: the entry stubs pass the address of the return address, or of the frame record.
    unsafe {
        if cfg!(target_arch = "x86_64") {
            Caller {
                address: *(at as *const usize),
                at,
            }
        } else {
            Caller {
                address: *((at + 8) as *const usize),
                at: at + 16,
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn malloc_counted(size: usize, at: usize) -> usize {
    // SAFETY: the thread's own countdown; the rest is the caller's promise.
    unsafe {
        if size < LARGE_ALLOCATION_BYTES && count_down(size) {
            real::malloc(size)
        } else {
            malloc_at(size, at)
        }
    }
}

#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn calloc_counted(count: usize, size: usize, at: usize) -> usize {
    // SAFETY: as in `malloc_counted`.
    unsafe {
        match count.checked_mul(size) {
            Some(bytes) if bytes < LARGE_ALLOCATION_BYTES && count_down(bytes) => {
                real::calloc(count, size)
            }
            _ => calloc_at(count, size, at),
        }
    }
}

#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn realloc_counted(old: usize, size: usize, at: usize) -> usize {
    if size < LARGE_ALLOCATION_BYTES {
        count_down(size);
    }
    // SAFETY: the caller's promise.
    unsafe { realloc_at(old, size, at) }
}

/// Takes a small allocation from the thread's countdown; false when that used it up.
fn count_down(size: usize) -> bool {
    let thread = Thread::current();
    // SAFETY: the thread's own storage.
    unsafe {
        (*thread).countdown = (*thread).countdown.wrapping_sub(size as i64);
        (*thread).countdown > 0
    }
}

/// An allocation that the assembly did not pass on: `allocate` is the real function. Small ones
/// have been taken from the countdown.
#[inline(always)]
fn allocate(
    at: usize,
    size: usize,
    alignment: usize,
    flags: u16,
    real: impl FnOnce() -> usize,
) -> usize {
    let is_due = TRACKER.is_due(caller(at), size);
    if size >= LARGE_ALLOCATION_BYTES && !is_due && !place::wants(size) {
        return real();
    }
    allocate_observed(at, size, alignment, flags, is_due, real)
}

// Apart, so that what is passed on needs no frame.
#[inline(never)]
fn allocate_observed(
    at: usize,
    size: usize,
    alignment: usize,
    flags: u16,
    is_due: bool,
    real: impl FnOnce() -> usize,
) -> usize {
    let Some(mut observed) = TRACKER.observe(at) else {
        return real();
    };
    if size < LARGE_ALLOCATION_BYTES
        && let Some(sample) =
            TRACKER.allocate_sample(&mut observed, caller(at), size, alignment, flags)
    {
        return sample;
    }
    let address = real();
    if address != 0 && TRACKER.wants(size) {
        TRACKER.allocated(&mut observed, caller(at), address, size, flags, is_due);
    }
    address
}

unsafe extern "C" fn malloc_at(size: usize, at: usize) -> usize {
    // SAFETY: as the function itself.
    allocate(at, size, 16, 0, || unsafe { real::malloc(size) })
}

unsafe extern "C" fn calloc_at(count: usize, size: usize, at: usize) -> usize {
    // SAFETY: as the function itself; a sample has at least `bytes` bytes.
    unsafe {
        let Some(bytes) = count.checked_mul(size) else {
            return real::calloc(count, size);
        };
        let address = allocate(at, bytes, 16, FLAG_ZEROED, || real::calloc(count, size));
        if SAMPLE_HEAP.contains(address) {
            core::ptr::write_bytes(address as *mut u8, 0, bytes);
        }
        address
    }
}

unsafe extern "C" fn free_at(address: usize, at: usize) {
    // SAFETY: the caller gives the object up.
    unsafe {
        if address == 0 {
            return;
        }
        real::resolve();
        if SAMPLE_HEAP.contains(address) {
            free_observed(address, 0, at);
            return SAMPLE_HEAP.free(address);
        }
        // Where the allocator cannot be asked, it may be of any size.
        let bytes = real::usable_bytes(address).unwrap_or(isize::MAX as usize);
        if place::wants(bytes) || TRACKER.is_logged(address) {
            free_observed(address, bytes, at);
        }
        real::free(address)
    }
}

// Apart, so that what is passed on needs no frame.
#[inline(never)]
fn free_observed(address: usize, bytes: usize, at: usize) {
    let logged = TRACKER.logged(address);
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.freed(&mut observed, address, bytes, logged, 0);
    }
}

/// `realloc`; a small size has been taken from the countdown.
unsafe extern "C" fn realloc_at(old: usize, size: usize, at: usize) -> usize {
    // SAFETY: the caller's pointer, and memory that the allocators gave.
    unsafe {
        if old == 0 {
            return allocate(at, size, 16, 0, || real::realloc(0, size));
        }
        if SAMPLE_HEAP.contains(old) {
            return realloc_sample(old, size, at);
        }
        let Some(mut observed) = TRACKER.observe(at) else {
            return real::realloc(old, size);
        };
        let known_bytes = real::usable_bytes(old);
        let old_bytes = known_bytes.unwrap_or(isize::MAX as usize);
        if size != 0
            && size < LARGE_ALLOCATION_BYTES
            && let Some(known_bytes) = known_bytes
            && let Some(sample) =
                TRACKER.allocate_sample(&mut observed, caller(at), size, 16, FLAG_REALLOCATED)
        {
            core::ptr::copy_nonoverlapping(
                old as *const u8,
                sample as *mut u8,
                known_bytes.min(size),
            );
            let logged = TRACKER.logged(old);
            TRACKER.freed(&mut observed, old, old_bytes, logged, FLAG_REALLOCATED);
            real::free(old);
            return sample;
        }
        // Before the call: after it, another thread may have the old address.
        let logged = TRACKER.logged(old);
        TRACKER.freed(&mut observed, old, old_bytes, logged, FLAG_REALLOCATED);
        let is_due = size != 0 && TRACKER.is_due(caller(at), size);
        let new = real::realloc(old, size);
        if new != 0 {
            TRACKER.allocated(
                &mut observed,
                caller(at),
                new,
                size,
                FLAG_REALLOCATED,
                is_due,
            );
        } else if size != 0 {
            // It failed, and the old object is still there.
            let (due, bytes) = (logged.is_some(), known_bytes.unwrap_or(0));
            TRACKER.allocated(&mut observed, caller(at), old, bytes, FLAG_REALLOCATED, due);
        }
        new
    }
}

unsafe fn realloc_sample(old: usize, size: usize, at: usize) -> usize {
    // SAFETY: a sample is readable for its usable bytes; the new object has `size` bytes.
    unsafe {
        if size == 0 {
            free_at(old, at);
            return 0;
        }
        let new = allocate(at, size, 16, FLAG_REALLOCATED, || real::malloc(size));
        if new != 0 {
            core::ptr::copy_nonoverlapping(
                old as *const u8,
                new as *mut u8,
                SAMPLE_HEAP.usable_bytes(old).min(size),
            );
            free_at(old, at);
        }
        new
    }
}

unsafe extern "C" fn reallocarray_at(old: usize, count: usize, size: usize, at: usize) -> usize {
    // SAFETY: as the function itself.
    unsafe {
        // A product that overflows fails in the real function, with its error number.
        let bytes = count.saturating_mul(size);
        if bytes < LARGE_ALLOCATION_BYTES {
            count_down(bytes);
        }
        if bytes == usize::MAX {
            real::realloc(old, bytes)
        } else {
            realloc_at(old, bytes, at)
        }
    }
}

unsafe fn allocate_aligned(
    alignment: usize,
    size: usize,
    at: usize,
    real: impl FnOnce() -> usize,
) -> usize {
    // What the C library would refuse or adjust, it does itself.
    if !alignment.is_power_of_two() || alignment > LARGE_ALLOCATION_BYTES {
        return allocate(at, size.max(LARGE_ALLOCATION_BYTES), 16, 0, real);
    }
    if size < LARGE_ALLOCATION_BYTES && count_down(size) {
        real::resolve();
        return real();
    }
    allocate(at, size, alignment, 0, real)
}

unsafe extern "C" fn posix_memalign_at(
    out: *mut usize,
    alignment: usize,
    size: usize,
    at: usize,
) -> c_int {
    let mut result = 0;
    // SAFETY: as the function itself; `out` is written only on success, as POSIX asks.
    unsafe {
        let mut address = 0usize;
        let got = if alignment < 8 {
            result = real::posix_memalign(&mut address, alignment, size);
            address
        } else {
            allocate_aligned(alignment, size, at, || {
                result = real::posix_memalign(&mut address, alignment, size);
                if result == 0 { address } else { 0 }
            })
        };
        if result == 0 {
            *out = got;
        }
    }
    result
}

unsafe extern "C" fn aligned_alloc_at(alignment: usize, size: usize, at: usize) -> usize {
    // SAFETY: as the function itself.
    unsafe { allocate_aligned(alignment, size, at, || real::aligned_alloc(alignment, size)) }
}

unsafe extern "C" fn memalign_at(alignment: usize, size: usize, at: usize) -> usize {
    // SAFETY: as the function itself.
    unsafe { allocate_aligned(alignment, size, at, || real::memalign(alignment, size)) }
}

unsafe extern "C" fn valloc_at(size: usize, at: usize) -> usize {
    // SAFETY: as the function itself.
    unsafe { allocate_aligned(4096, size, at, || real::valloc(size)) }
}

unsafe extern "C" fn pvalloc_at(size: usize, at: usize) -> usize {
    // SAFETY: as the function itself, which rounds up to whole pages.
    unsafe {
        allocate_aligned(4096, size.max(1).saturating_add(4095) & !4095, at, || {
            real::pvalloc(size)
        })
    }
}

/// Stands in front of `malloc_usable_size`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(address: usize) -> usize {
    if SAMPLE_HEAP.contains(address) {
        return SAMPLE_HEAP.usable_bytes(address);
    }
    // SAFETY: the caller's promise.
    unsafe { real::malloc_usable_size(address) }
}

/// `MAP_FAILED`.
const FAILED: usize = usize::MAX;

unsafe extern "C" fn mmap_at(
    address: usize,
    length: usize,
    how: u64,
    fd: c_int,
    offset: isize,
    at: usize,
) -> usize {
    let (protection, flags) = (how as u32, (how >> 32) as u32);
    let copy = replicas::instead_of(fd, flags);
    // SAFETY: as the function itself.
    let map = || unsafe {
        let start = real::mmap(
            address,
            length,
            protection as c_int,
            flags as c_int,
            copy.as_ref().map_or(fd, replicas::Copy::fd),
            offset,
        );
        if let (Some(copy), true) = (&copy, start != FAILED) {
            copy.mapped(length);
        }
        start
    };
    if TRACKER.is_allocator(caller(at).address) {
        return map();
    }
    let Some(mut observed) = TRACKER.observe(at) else {
        return map();
    };
    let start = map();
    if start != FAILED {
        TRACKER.mapped(
            &mut observed,
            caller(at),
            &Mapping {
                start,
                length,
                protection,
                map_flags: flags,
                fd,
            },
            0,
        );
    }
    start
}

unsafe extern "C" fn mremap_at(
    old: usize,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    new: usize,
    at: usize,
) -> usize {
    // SAFETY: as the function itself.
    let remap = || unsafe { real::mremap(old, old_length, new_length, flags, new) };
    if TRACKER.is_allocator(caller(at).address) {
        return remap();
    }
    let Some(mut observed) = TRACKER.observe(at) else {
        return remap();
    };
    let now = sys::clock_ns();
    TRACKER.unmapping([old, old_length]);
    let mut start = remap();
    if start == FAILED {
        // SAFETY: as the function itself.
        start =
            unsafe { crate::place::remap::remap(old, old_length, new_length, flags as usize, new) }
                .unwrap_or(FAILED);
    }
    if start != FAILED {
        if old_length != 0 {
            TRACKER.unmapped(&mut observed, [old, old_length], now, FLAG_REALLOCATED);
        }
        let mapping = Mapping {
            start,
            length: new_length,
            protection: u32::MAX,
            map_flags: u32::MAX,
            fd: -1,
        };
        TRACKER.mapped(&mut observed, caller(at), &mapping, FLAG_REALLOCATED);
    }
    start
}

unsafe extern "C" fn munmap_at(address: usize, length: usize, at: usize) -> c_int {
    // SAFETY: as the function itself.
    let unmap = || unsafe { real::munmap(address, length) };
    if TRACKER.is_allocator(caller(at).address) {
        return unmap();
    }
    let Some(mut observed) = TRACKER.observe(at) else {
        return unmap();
    };
    let now = sys::clock_ns();
    TRACKER.unmapping([address, length]);
    let result = unmap();
    if result == 0 {
        TRACKER.unmapped(&mut observed, [address, length], now, 0);
    }
    result
}

unsafe extern "C" fn brk_at(end: usize, at: usize) -> c_int {
    // SAFETY: as the function itself.
    unsafe {
        let Some(mut observed) = TRACKER.observe(at) else {
            return real::brk(end);
        };
        let old = real::sbrk(0);
        let result = real::brk(end);
        if result == 0 {
            TRACKER.break_moved(&mut observed, caller(at), old, end);
        }
        result
    }
}

unsafe extern "C" fn sbrk_at(increment: isize, at: usize) -> usize {
    // SAFETY: as the function itself.
    unsafe {
        if increment == 0 || TRACKER.is_allocator(caller(at).address) {
            return real::sbrk(increment);
        }
        let Some(mut observed) = TRACKER.observe(at) else {
            return real::sbrk(increment);
        };
        let old = real::sbrk(increment);
        if old != FAILED {
            TRACKER.break_moved(
                &mut observed,
                caller(at),
                old,
                old.wrapping_add_signed(increment),
            );
        }
        old
    }
}

/// Creates a thread through `create`, which gets the routine and argument to start it with.
unsafe fn create_thread(
    start: usize,
    argument: usize,
    attributes: *const c_void,
    at: usize,
    create: impl FnOnce(usize, usize) -> c_int,
) -> c_int {
    // SAFETY: the attributes are the program's; the record is freed by the new thread, or here when
    // there is none.
    unsafe {
        let Some(birth) = TRACKER.thread_is_created(start, argument, attributes, at) else {
            return create(start, argument);
        };
        let record = real::malloc(size_of::<Birth>()) as *mut Birth;
        if record.is_null() {
            TRACKER.thread_is_not_created();
            return create(start, argument);
        }
        record.write(birth);
        let result = create(thread_entry as *const () as usize, record as usize);
        if result != 0 {
            TRACKER.thread_is_not_created();
            real::free(record as usize);
        }
        result
    }
}

/// Where a thread begins.
#[repr(C)]
struct Start {
    routine: usize,
    argument: usize,
}

unsafe extern "C" fn begin_thread(record: *mut Birth) -> Start {
    // SAFETY: `create_thread` wrote the record and left it to this thread.
    unsafe {
        let birth = record.read();
        real::free(record as usize);
        TRACKER.thread_begins(&birth);
        Start {
            routine: birth.start_routine,
            argument: birth.argument,
        }
    }
}

unsafe extern "C" fn pthread_create_at(
    thread: *mut usize,
    attributes: *const c_void,
    start: usize,
    argument: usize,
    at: usize,
) -> c_int {
    // SAFETY: as the function itself.
    unsafe {
        create_thread(start, argument, attributes, at, |start, argument| {
            real::pthread_create(thread, attributes, start, argument)
        })
    }
}

unsafe extern "C" fn thrd_create_at(
    thread: *mut usize,
    start: usize,
    argument: usize,
    at: usize,
) -> c_int {
    // SAFETY: as the function itself.
    unsafe {
        create_thread(start, argument, core::ptr::null(), at, |start, argument| {
            real::thrd_create(thread, start, argument)
        })
    }
}

unsafe fn fork_through(real: unsafe fn() -> c_int) -> c_int {
    let mut entered = Thread::enter();
    // SAFETY: as the function itself. The token is held, so that handlers of the program that run
    // in the child before this function returns there write nothing into the parent's log.
    let pid = unsafe { real() };
    if pid == 0
        && let Some((thread, _token)) = &mut entered
    {
        TRACKER.forked_child(thread);
    }
    pid
}

/// Stands in front of `fork`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fork_through(real::fork) }
}

/// Stands in front of `_Fork`.
///
/// # Safety
/// As the function itself.
#[unsafe(export_name = "_Fork")]
pub unsafe extern "C" fn fork_async() -> c_int {
    // SAFETY: the caller's promise.
    unsafe { fork_through(real::_fork) }
}

/// Stands in front of `_exit` and `_Exit`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) {
    TRACKER.finish(Thread::pointer());
    // SAFETY: the caller's promise.
    unsafe { real::_exit(status) }
}

/// Stands in front of `_Exit`.
///
/// # Safety
/// As the function itself.
#[unsafe(export_name = "_Exit")]
pub unsafe extern "C" fn exit_at_once(status: c_int) {
    // SAFETY: the caller's promise.
    unsafe { _exit(status) }
}

/// Stands in front of `sigaction`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(number: c_int, new: *const c_void, old: *mut c_void) -> c_int {
    // SAFETY: both structures begin with the handler, and the rest of the old one may be zero: no
    // flags, no other signals blocked.
    unsafe {
        if signal::is_ours(number) {
            let handler = (!new.is_null()).then(|| *new.cast::<usize>());
            if let Some(before) = signal::program_sets(number, handler) {
                if !old.is_null() {
                    old.cast::<[usize; 19]>().write([0; 19]);
                    *old.cast::<usize>() = before;
                }
                return 0;
            }
        }
        real::sigaction(number, new, old)
    }
}

/// Defines the functions that set a handler by its address alone.
macro_rules! set_handler {
    ($($name:literal $function:ident => $real:ident;)*) => {$(
        /// Stands in front of the function of this name.
        ///
        /// # Safety
        /// As the function itself.
        #[unsafe(export_name = $name)]
        pub unsafe extern "C" fn $function(number: c_int, handler: usize) -> usize {
            match signal::program_sets(number, Some(handler)) {
                Some(before) => before,
                // SAFETY: the caller's promise.
                None => unsafe { real::$real(number, handler) },
            }
        }
    )*};
}

set_handler! {
    "signal" set_signal => signal;
    "bsd_signal" set_bsd_signal => bsd_signal;
    "__sysv_signal" set_sysv_signal => sysv_signal;
    "sigset" set_sigset => sigset;
}

/// Calls `wait` with the program's set of signals, without ours.
unsafe fn wait_for<R>(set: *const c_void, wait: impl FnOnce(*const c_void) -> R) -> R {
    if !signal::is_on() || set.is_null() {
        return wait(set);
    }
    // SAFETY: the C library's sets have 1024 bits.
    match unsafe { signal::without_ours(set.cast::<[u64; 16]>().read_unaligned()) } {
        Some(set) => wait((&raw const set).cast()),
        None => wait(set),
    }
}

/// Stands in front of `sigwait`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const c_void, number: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::sigwait(set, number)) }
}

/// Stands in front of `sigwaitinfo`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(set: *const c_void, info: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::sigwaitinfo(set, info)) }
}

/// Stands in front of `sigtimedwait`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const c_void,
    info: *mut c_void,
    timeout: *const c_void,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::sigtimedwait(set, info, timeout)) }
}

/// Stands in front of `signalfd`.
///
/// # Safety
/// As the function itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signalfd(fd: c_int, set: *const c_void, flags: c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { wait_for(set, |set| real::signalfd(fd, set, flags)) }
}

extern "C" fn note_loading(at: usize, function: Function) -> usize {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.loading(&mut observed, at);
    }
    real::entry(function)
}

extern "C" fn note_replacing(at: usize, function: Function) -> usize {
    TRACKER.replacing(at);
    real::entry(function)
}

unsafe extern "C" fn dlclose_at(handle: usize, at: usize) -> c_int {
    // SAFETY: as the function itself.
    let result = unsafe { real::dlclose(handle) };
    if let Some(_observed) = TRACKER.observe(at) {
        TRACKER.unloaded();
    }
    result
}

extern "C" fn begin_at(at: usize) {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.mark(&mut observed, 1);
    }
}

extern "C" fn end_at(at: usize) {
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.mark(&mut observed, 2);
    }
}

extern "C" fn construct() {
    let place = 0usize;
    TRACKER.constructed(&raw const place as usize);
}

extern "C" fn destruct() {
    let place = 0usize;
    TRACKER.finish(&raw const place as usize);
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = destruct;
