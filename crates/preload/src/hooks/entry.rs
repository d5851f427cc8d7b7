//! The stubs that programs call: they pass the stack address of the call on to a function in Rust.

use crate::call_site::Caller;

/// Defines an exported function that enters `$body`, with the stack address of the call as one more
/// argument: in register `$x86`, or `$aarch`.
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
                ".cfi_def_cfa sp, 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "ret",
                ".cfi_endproc",
                body = sym $body,
            );
        }
    )*};
}

/// Defines functions that call `$note` first and then jump to the real function with all arguments and the return address
/// as they were: some have any number of arguments, some look at their return address.
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
                ".cfi_def_cfa sp, 0",
                ".cfi_restore x29",
                ".cfi_restore x30",
                "br x16",
                ".cfi_endproc",
                note = sym $note,
                function = const Function::$name as usize,
            );
        }
    )*};
}

pub(super) use {announce, enter};

/// Where a stub of `announce!` keeps argument `number`. The real function gets the value that is there when the note
/// returns.
///
/// # Safety
/// `at` is that of an `announce!` entry that has not returned, and the function has so many arguments.
pub(super) unsafe fn argument(at: usize, number: usize) -> *mut usize {
    let place = match (cfg!(target_arch = "x86_64"), number) {
        (true, 0..6) => at - 8 * (number + 1),
        (true, _) => at + 8 * (number - 5),
        (false, 0..8) => at - 64 + 8 * number,
        (false, _) => at + 8 * (number - 8),
    };
    place as *mut usize
}

/// The caller of a hook, by the stack address that its stub passed.
pub(super) fn caller(at: usize) -> Caller {
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
