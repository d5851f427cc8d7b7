//! The pointer chase that calibration samples.

use std::arch::asm;

use crate::calibrate::Places;

/// Follows a chain of pointers for `steps` steps. Returns the last pointer and the addresses of three places in the
/// code.
pub(crate) fn run(chain: *const u8, steps: u64) -> (*const u8, Places) {
    let (begin, load, after): (u64, u64, u64);
    let mut pointer = chain;
    // The load is neither first nor last in its block, so the three places differ.
    // SAFETY: each pointer of the chain leads to another of its elements. The code touches no other memory, and only
    // the registers named.
    unsafe {
        asm!(
            "adr {begin}, 2f",
            "adr {load}, 3f",
            "adr {after}, 4f",
            ".p2align 6",
            "2:",
            "add {other}, {other}, #3",
            "eor {other}, {other}, {count}",
            "3:",
            "ldr {pointer}, [{pointer}]",
            "4:",
            "add {other}, {other}, #5",
            "subs {count}, {count}, #1",
            "b.ne 2b",
            begin = out(reg) begin,
            load = out(reg) load,
            after = out(reg) after,
            other = inout(reg) 0u64 => _,
            count = inout(reg) steps.max(1) => _,
            pointer = inout(reg) pointer,
            options(nostack, readonly),
        );
    }
    (pointer, Places { begin, load, after })
}
