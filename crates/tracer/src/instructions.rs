//! Instructions of a block that QEMU is translating: their bytes, properties decoded from the bytes, and callbacks
//! before an instruction runs.

use crate::qemu::{BlockCallback, Instruction, Interface, NO_REGISTERS};

/// An instruction's bytes, up to `bytes_max`; empty if the host has no copy of the instruction.
///
/// # Safety
/// It belongs to the block that QEMU is translating.
pub(crate) unsafe fn instruction_text<'a>(
    qemu: &Interface,
    instruction: *const Instruction,
    bytes_max: usize,
) -> &'a [u8] {
    // SAFETY: as this function's; QEMU has as many bytes there as it says.
    unsafe {
        let bytes = (qemu.insn_haddr)(instruction);
        if bytes.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(bytes, (qemu.insn_size)(instruction).min(bytes_max))
    }
}

/// Registers a callback before the instruction runs.
///
/// # Safety
/// The instruction belongs to the block that QEMU is translating.
pub(crate) unsafe fn at<T>(
    qemu: &Interface,
    instruction: *mut Instruction,
    callback: BlockCallback,
    data: *const T,
) {
    // SAFETY: as this function's.
    unsafe {
        (qemu.register_vcpu_insn_exec_cb)(
            instruction,
            callback,
            NO_REGISTERS,
            data.cast_mut().cast(),
        );
    }
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// Does the instruction have a lock prefix, or is it `xchg`, which needs none?
pub(crate) fn is_atomic(text: &[u8]) -> bool {
    let mut opcode = text.iter().skip_while(|byte| is_prefix(**byte));
    let locked = text
        .iter()
        .take_while(|byte| is_prefix(**byte))
        .any(|byte| *byte == 0xf0);
    locked || matches!(opcode.next(), Some(0x86 | 0x87))
}

/// Is it `movs`, `stos`, `lods`, `cmps`, `scas`, `ins` or `outs`? Each of its repetitions is a reference of
/// its own, although the addresses are consecutive.
pub(crate) fn is_string_instruction(text: &[u8]) -> bool {
    let opcode = text.iter().find(|byte| !is_prefix(**byte));
    matches!(opcode, Some(0x6c..=0x6f | 0xa4..=0xa7 | 0xaa..=0xaf))
}

/// Does the instruction have the prefix of the segment register GS?
pub(crate) fn names_gs(text: &[u8]) -> bool {
    text.iter()
        .take_while(|byte| is_prefix(**byte))
        .any(|byte| *byte == 0x65)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_known_by_their_bytes() {
        // lock inc, lock xadd with REX, xchg with memory.
        for text in [
            &b"\xf0\xff\x00"[..],
            b"\xf0\x48\x0f\xc1\x07",
            b"\x48\x87\x07",
        ] {
            assert!(is_atomic(text) && !is_string_instruction(text));
        }
        // rep movsb, stosq.
        for text in [&b"\xf3\xa4"[..], b"\x48\xab"] {
            assert!(is_string_instruction(text) && !is_atomic(text));
        }
        // inc, mov with an immediate that looks like a prefix.
        for text in [&b"\xff\x00"[..], b"\xc6\x00\xf0", b""] {
            assert!(!is_string_instruction(text) && !is_atomic(text));
        }
    }
}
