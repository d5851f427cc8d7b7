//! Verdicts on AArch64 code. The encodings are from LLVM (`llvm-mc -triple=aarch64 -show-encoding`).

use nearpage_recording::AccessKind;
use nearpage_recording::AccessKind::{Load, Store};
use proptest::prelude::*;

use super::Decoder;
use crate::calibrate::SkidSide;
use crate::instruction::{Code, Decode};
use crate::verdict::{REGISTERS, Registers, Undecoded, Verdict};

type Judge = crate::judge::Judge<Decoder>;

const BASE: u64 = 0x40_1000;
const SP: usize = 31;
const NOP: u32 = 0xd503_201f;

/// X1 is a pointer; X2 and X3 are indices. The lower 32 bits of X3 are negative.
fn registers() -> Registers {
    let mut registers = [0; REGISTERS];
    registers[1] = 0x1_0000;
    registers[2] = 0x20;
    registers[3] = 0xffff_fffe;
    registers[SP] = 0x7000;
    registers
}

fn judge(words: &[u32], at: usize, side: SkidSide) -> Verdict {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let code = Code {
        address: BASE,
        bytes: &bytes,
        bitness: 64,
    };
    Judge::default().judge(code, &Decoder::sweep(code, 0), 4 * at, side)
}

/// Index of the instruction, kind and address of each access.
fn accesses(
    words: &[u32],
    at: usize,
    side: SkidSide,
    registers: &Registers,
) -> Vec<(u64, AccessKind, u64)> {
    let Verdict::Accesses { templates, .. } = judge(words, at, side) else {
        return Vec::new();
    };
    let access = |template: &crate::verdict::Template| {
        let index = (template.instruction - BASE) / 4;
        (index, template.kind, template.address(registers))
    };
    templates.iter().map(access).collect()
}

/// Encoding, assembly, and effect with [`registers`]: kind, address, and change of the base register.
const ACCESSES: [(u32, &str, AccessKind, u64, i64); 46] = [
    (0xf940_0020, "ldr x0, [x1]", Load, 0x1_0000, 0),
    (0xf940_0420, "ldr x0, [x1, #8]", Load, 0x1_0008, 0),
    (0xb862_6820, "ldr w0, [x1, x2]", Load, 0x1_0020, 0),
    (0xf863_d820, "ldr x0, [x1, w3, sxtw #3]", Load, 0xfff0, 0),
    (
        0xf863_4820,
        "ldr x0, [x1, w3, uxtw]",
        Load,
        0x1_0000_fffe,
        0,
    ),
    (0xf862_7820, "ldr x0, [x1, x2, lsl #3]", Load, 0x1_0100, 0),
    (0xf841_0420, "ldr x0, [x1], #16", Load, 0x1_0000, 16),
    (0xf85f_0c20, "ldr x0, [x1, #-16]!", Load, 0xfff0, -16),
    (0xf85f_d020, "ldur x0, [x1, #-3]", Load, 0xfffd, 0),
    (0xb980_0420, "ldrsw x0, [x1, #4]", Load, 0x1_0004, 0),
    (0x3940_07e0, "ldrb w0, [sp, #1]", Load, 0x7001, 0),
    (0x5800_0200, "ldr x0, #64", Load, BASE + 64, 0),
    (0xf822_7820, "str x0, [x1, x2, lsl #3]", Store, 0x1_0100, 0),
    (0xf81f_0fff, "str xzr, [sp, #-16]!", Store, 0x6ff0, -16),
    (0xb81f_c020, "stur w0, [x1, #-4]", Store, 0xfffc, 0),
    (0xa941_1825, "ldp x5, x6, [x1, #16]", Load, 0x1_0010, 0),
    (0xa8c2_1825, "ldp x5, x6, [x1], #32", Load, 0x1_0000, 32),
    (0xa9be_7bfd, "stp x29, x30, [sp, #-32]!", Store, 0x6fe0, -32),
    (0x6940_1825, "ldpsw x5, x6, [x1]", Load, 0x1_0000, 0),
    (0xa841_1825, "ldnp x5, x6, [x1, #16]", Load, 0x1_0010, 0),
    (0xad41_0420, "ldp q0, q1, [x1, #32]", Load, 0x1_0020, 0),
    (0xc85f_7c20, "ldxr x0, [x1]", Load, 0x1_0000, 0),
    (0xc805_7c20, "stxr w5, x0, [x1]", Store, 0x1_0000, 0),
    (0xc87f_9825, "ldaxp x5, x6, [x1]", Load, 0x1_0000, 0),
    (0xc825_9820, "stlxp w5, x0, x6, [x1]", Store, 0x1_0000, 0),
    (0xc8df_fc20, "ldar x0, [x1]", Load, 0x1_0000, 0),
    (0xc89f_fc20, "stlr x0, [x1]", Store, 0x1_0000, 0),
    (0xf8bf_c020, "ldapr x0, [x1]", Load, 0x1_0000, 0),
    (0x3dc0_0420, "ldr q0, [x1, #16]", Load, 0x1_0010, 0),
    (0xfc40_8420, "ldr d0, [x1], #8", Load, 0x1_0000, 8),
    (0xbc22_7820, "str s0, [x1, x2, lsl #2]", Store, 0x1_0080, 0),
    (0x4c40_7820, "ld1 {v0.4s}, [x1]", Load, 0x1_0000, 0),
    (
        0x4cdf_2820,
        "ld1 {v0.4s, v1.4s, v2.4s, v3.4s}, [x1], #64",
        Load,
        0x1_0000,
        64,
    ),
    (0x4d40_c820, "ld1r {v0.4s}, [x1]", Load, 0x1_0000, 0),
    (0x0ddf_9020, "ld1 {v0.s}[1], [x1], #4", Load, 0x1_0000, 4),
    (0x4c40_8820, "ld2 {v0.4s, v1.4s}, [x1]", Load, 0x1_0000, 0),
    (
        0x0cdf_4020,
        "ld3 {v0.8b, v1.8b, v2.8b}, [x1], #24",
        Load,
        0x1_0000,
        24,
    ),
    (
        0x4cdf_0020,
        "ld4 {v0.16b, v1.16b, v2.16b, v3.16b}, [x1], #64",
        Load,
        0x1_0000,
        64,
    ),
    (
        0x4c9f_ac20,
        "st1 {v0.2d, v1.2d}, [x1], #32",
        Store,
        0x1_0000,
        32,
    ),
    (
        0x0d20_a020,
        "st4 {v0.s, v1.s, v2.s, v3.s}[0], [x1]",
        Store,
        0x1_0000,
        0,
    ),
    (0xf820_0025, "ldadd x0, x5, [x1]", Store, 0x1_0000, 0),
    (0xf820_003f, "stadd x0, [x1]", Store, 0x1_0000, 0),
    (0xf8e0_8025, "swpal x0, x5, [x1]", Store, 0x1_0000, 0),
    (0xc8a0_7c25, "cas x0, x5, [x1]", Store, 0x1_0000, 0),
    (0x4824_7c26, "casp x4, x5, x6, x7, [x1]", Store, 0x1_0000, 0),
    (0xb820_4025, "ldsmax w0, w5, [x1]", Store, 0x1_0000, 0),
];

#[test]
fn all_ways_to_address_memory() {
    for (word, text, kind, address, moved) in ACCESSES {
        let expected = [(0, kind, address)];
        let before = registers();
        assert_eq!(
            accesses(&[word, NOP], 0, SkidSide::At, &before),
            expected,
            "{text}"
        );
        assert_eq!(
            accesses(&[word, NOP], 0, SkidSide::Block, &before),
            expected,
            "{text}"
        );
        let mut after = before;
        let base = if text.contains("[sp") { SP } else { 1 };
        after[base] = after[base].wrapping_add_signed(moved);
        assert_eq!(
            accesses(&[word, NOP], 1, SkidSide::Before, &after),
            expected,
            "{text}"
        );
        assert_eq!(
            judge(&[word, NOP], 0, SkidSide::Before),
            Verdict::Compute,
            "{text}"
        );
    }
}

#[test]
fn undecodable_instructions_are_reported() {
    let undecoded = |word: u32, reason| {
        assert_eq!(
            judge(&[word, NOP], 1, SkidSide::Before),
            Verdict::Undecoded(reason),
            "{word:#x}"
        );
    };
    // ld1 {v0.4s}, [x1], x2; ldr x1, [x1, #8]; ldp x5, x1, [x1]; ldr x2, [x1, x2]; ldaddal x0, x1, [x1]
    for word in [
        0x4cc2_7820,
        0xf940_0421,
        0xa940_0425,
        0xf862_6822,
        0xf8e0_0021,
    ] {
        undecoded(word, Undecoded::Overwritten);
    }
    // SVE: ld1w {z0.s}, p0/z, [x1]; ld1w {z0.s}, p0/z, [x1, z1.s, sxtw]
    for word in [0xa540_a020, 0x8541_4020] {
        undecoded(word, Undecoded::VectorIndex);
    }
    // ldraa x0, [x1, #8]
    undecoded(0xf820_1420, Undecoded::NoCode);
}

#[test]
fn instructions_without_memory_are_no_access() {
    // add x1, x1, #16; prfm pldl1keep, [x1, #64]; blr x3
    for word in [0x9100_4021, 0xf980_2020, 0xd63f_0060] {
        assert_eq!(
            judge(&[word, NOP], 1, SkidSide::Before),
            Verdict::Compute,
            "{word:#x}"
        );
        assert_eq!(
            judge(&[word, NOP], 0, SkidSide::At),
            Verdict::Compute,
            "{word:#x}"
        );
    }
    // ldr x0, [x1]; ret: the instruction after a return was reached by a jump.
    assert_eq!(
        judge(&[0xf940_0020, 0xd65f_03c0, NOP], 2, SkidSide::Before),
        Verdict::Compute
    );
}

#[test]
fn overwritten_addresses_are_computed_again() {
    // ldr x1, [x1] after instructions that compute x1
    let cases: [(&[u32], u64); 8] = [
        // mov x1, #0x120000
        (&[0xd2a0_0241], 0x12_0000),
        // mov x1, #0x120000; sub x1, x1, #1, lsl #12
        (&[0xd2a0_0241, 0xd140_0421], 0x11_f000),
        // mov x1, x2
        (&[0xaa02_03e1], 0x20),
        // add x1, x2, x3, lsl #3
        (&[0x8b03_0c41], 0x8_0000_0010),
        // add x1, x2, w3, sxtw #2
        (&[0x8b23_c841], 0x18),
        // lsl x1, x2, #3
        (&[0xd37d_f041], 0x100),
        // sxtw x1, w3
        (&[0x9340_7c61], -2i64 as u64),
        // adrp x1, to the next page; add x1, x1, #16
        (&[0xb000_0001, 0x9100_4021], 0x40_2010),
    ];
    for (made, address) in cases {
        let load = made.len();
        let words = [made, &[0xf940_0021, NOP]].concat();
        let mut registers = registers();
        registers[1] = 0xdead;
        assert_eq!(
            accesses(&words, load + 1, SkidSide::Before, &registers),
            [(load as u64, Load, address)],
            "{made:x?}"
        );
    }
    // mov x5, x1; ldr x1, [x1]: x5 still has the address.
    let mut copied = registers();
    (copied[1], copied[5]) = (0xdead, 0x1_0000);
    let words = [0xaa01_03e5, 0xf940_0021, NOP];
    assert_eq!(
        accesses(&words, 2, SkidSide::Before, &copied),
        [(1, Load, 0x1_0000)]
    );
}

#[test]
fn a_pointer_chase_leads_to_the_next_element() {
    // add x0, x0, #1; ldr x1, [x1]; cbnz x0, two back
    let words = [0x9100_0400, 0xf940_0021, 0xb5ff_ffc0];
    assert_eq!(
        accesses(&words, 2, SkidSide::Before, &registers()),
        [(1, Load, 0x1_0000)]
    );
    // ldr x0, [x1]; add x0, x0, #1; cbnz x0, two back: the loop's first instruction follows the jump.
    let words = [0xf940_0020, 0x9100_0400, 0xb5ff_ffc0];
    assert_eq!(judge(&words, 0, SkidSide::Before), Verdict::Compute);
    assert_eq!(
        accesses(&words, 1, SkidSide::Before, &registers()),
        [(0, Load, 0x1_0000)]
    );
}

#[test]
fn other_code_is_not_read() {
    let code = Code {
        address: BASE,
        bytes: &0xf940_0020_u32.to_le_bytes(),
        bitness: 32,
    };
    let verdict = Judge::default().judge(code, &Decoder::sweep(code, 0), 0, SkidSide::At);
    assert_eq!(verdict, Verdict::Undecoded(Undecoded::Ambiguous));
}

proptest! {
    #[test]
    fn any_words_get_a_verdict(
        words in prop::collection::vec(any::<u32>(), 1..80),
        at in 0usize..80,
        side in 0..3,
    ) {
        let side = [SkidSide::Before, SkidSide::At, SkidSide::Block][side as usize];
        if let Verdict::Accesses { templates, .. } = judge(&words, at, side) {
            prop_assert!(!templates.is_empty());
            for template in &templates {
                template.address(&[u64::MAX; REGISTERS]);
            }
        }
    }
}
