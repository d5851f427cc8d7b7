//! The allocator's functions.

use core::arch::naked_asm;
use core::ffi::c_int;

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::allocation_log::{FLAG_REALLOCATED, FLAG_ZEROED};

use super::entry::{caller, enter};
use crate::place;
use crate::real;
#[cfg(target_arch = "x86_64")]
use crate::real::Function;
use crate::sample_heap::SAMPLE_HEAP;
use crate::thread::Thread;
use crate::tracker::TRACKER;
#[cfg(target_arch = "x86_64")]
use crate::tracker::{FILTER, Filter};

enter! {
    reallocarray => reallocarray_at, "rcx", "x3";
    posix_memalign => posix_memalign_at, "rcx", "x3";
    aligned_alloc => aligned_alloc_at, "rdx", "x2";
    memalign => memalign_at, "rdx", "x2";
    valloc => valloc_at, "rsi", "x1";
    pvalloc => pvalloc_at, "rsi", "x1";
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

/// Subtracts a small allocation from the thread's countdown; false when the countdown is used up.
fn count_down(size: usize) -> bool {
    let thread = Thread::current();
    // SAFETY: the thread's own storage.
    unsafe {
        (*thread).countdown = (*thread).countdown.wrapping_sub(size as i64);
        (*thread).countdown > 0
    }
}

/// An allocation that the assembly did not pass on: `allocate` is the real function. Small allocations
/// are subtracted from the countdown already.
#[inline(always)]
fn allocate(
    at: usize,
    size: usize,
    alignment: usize,
    flags: u16,
    real: impl FnOnce() -> usize,
) -> usize {
    let is_due = TRACKER.is_due(caller(at), size);
    if size >= LARGE_ALLOCATION_BYTES
        && !(is_due || place::wants(size) || place::brk_heap::is_planned())
    {
        return real();
    }
    allocate_observed(at, size, alignment, flags, is_due, real)
}

// A function of its own, so that calls that are passed on need no frame.
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
        // The allocator does not tell sizes: the object may be of any size.
        let bytes = real::usable_bytes(address).unwrap_or(isize::MAX as usize);
        if place::wants(bytes) || TRACKER.is_logged(address) {
            free_observed(address, bytes, at);
        }
        real::free(address)
    }
}

// A function of its own, so that calls that are passed on need no frame.
#[inline(never)]
fn free_observed(address: usize, bytes: usize, at: usize) {
    let logged = TRACKER.logged(address);
    if let Some(mut observed) = TRACKER.observe(at) {
        TRACKER.freed(&mut observed, address, bytes, logged, 0);
    }
}

/// `realloc`; a small size is subtracted from the countdown already.
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
        // Asked before the call: after it, another thread may have an object at the old address.
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
            // The call failed: the old object lives on and is logged again.
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
    // The C library refuses or adjusts such alignments itself.
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
