//! Hooks of `mmap`, `mremap`, `munmap`, `brk` and `sbrk`.

use core::arch::naked_asm;
use core::ffi::c_int;

use nearpage_wire::allocation_log::FLAG_REALLOCATED;

use super::entry::{caller, enter};
use crate::place;
use crate::real;
use crate::replicas;
use crate::sys;
use crate::tracker::{Mapping, TRACKER};

enter! {
    mremap => mremap_at, "r9", "x5";
    munmap => munmap_at, "rdx", "x2";
    brk => brk_at, "rsi", "x1";
    sbrk => sbrk_at, "rsi", "x1";
}

/// Defines `mmap` under both its names. Protection and flags share a register, so that the stack address of the call
/// can be the sixth argument.
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
                ".cfi_def_cfa sp, 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                body = sym mmap_at,
            );
        }
    )*};
}

enter_mmap! { mmap mmap64 }

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
        start = unsafe { place::remap::remap(old, old_length, new_length, flags as usize, new) }
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
