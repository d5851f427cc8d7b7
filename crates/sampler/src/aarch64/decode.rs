//! Decodes AArch64 instructions: control flow, memory accesses, and changes of general registers.
//!
//! `yaxpeax-arm` reads the encodings. This module adds which operands are memory, which are written, and how addresses
//! follow from them (Arm Architecture Reference Manual, C1.3.3 and C3). Memory accesses without a known address count
//! as undecoded: SVE, whose predicated and gathered accesses depend on registers that samples do not carry; loads with
//! pointer authentication; memory tags; and loads and stores that the library does not know. 32-bit code is not
//! decoded.

use nearpage_recording::AccessKind;
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{
    InstDecoder, Instruction as A64Instruction, Opcode, Operand as A64, ShiftStyle, SizeCode,
};

use crate::flow::Flow;
use crate::instruction::{Code, Decode, Effects, Fusion, Instruction, Reference, Successor};
use crate::verdict::{
    Formula, Operand, Operation, Part, Register, RegisterSet, Step, Undecoded, set,
};

const INSTRUCTION_BYTES: usize = 4;
/// Register number of the stack pointer, in samples and in operands that may be the stack pointer. In other operands
/// the number means the zero register.
const SP: u16 = 31;
const LINK: Register = 30;

#[derive(Default)]
pub(crate) struct Decoder {
    decoder: InstDecoder,
}

impl Decode for Decoder {
    fn instruction(&mut self, code: Code<'_>, offset: usize) -> Instruction {
        let address = code.at(offset);
        let word = word(code, offset);
        let raw = word.and_then(|word| {
            self.decoder
                .decode(&mut U8Reader::new(&word.to_le_bytes()))
                .ok()
        });
        let (effects, afterwards) = match (&raw, word) {
            (Some(raw), Some(word)) => effects(raw, word, address),
            (_, word) => (unknown(word), None),
        };
        Instruction {
            address,
            length: INSTRUCTION_BYTES,
            next: match &raw {
                Some(raw) => next(raw, address),
                None if effects.undecoded.is_some() => Successor::Below,
                None => Successor::Invalid,
            },
            effects,
            afterwards,
            step: raw.and_then(|raw| step(&raw, address)),
            repeats: false,
            // There are no comparisons with memory.
            fusion: Fusion::None,
        }
    }

    fn sweep(code: Code<'_>, first: usize) -> Flow {
        if code.bitness != 64 {
            return Flow::default();
        }
        let decoder = InstDecoder::default();
        let (mut starts, mut jumps) = (Vec::new(), Vec::new());
        let first = first.next_multiple_of(INSTRUCTION_BYTES);
        for offset in (first..code.bytes.len()).step_by(INSTRUCTION_BYTES) {
            let Some(word) = word(code, offset) else {
                break;
            };
            starts.push(offset as u32);
            let Ok(raw) = decoder.decode(&mut U8Reader::new(&word.to_le_bytes())) else {
                continue;
            };
            let (Successor::Jump(target) | Successor::Either(target)) = next(&raw, code.at(offset))
            else {
                continue;
            };
            let target = target.wrapping_sub(code.address);
            if target < code.bytes.len() as u64 {
                jumps.push((target as u32, offset as u32));
            }
        }
        Flow::new(starts, jumps)
    }

    /// Instructions begin at multiples of four bytes.
    fn converge(_: Code<'_>, at: usize) -> Option<usize> {
        Some(at % INSTRUCTION_BYTES)
    }
}

fn word(code: Code<'_>, offset: usize) -> Option<u32> {
    let bytes = code.bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Whether the word is in the encodings of loads and stores (C4.1).
fn loads_or_stores(word: u32) -> bool {
    (word >> 25) & 0b0101 == 0b0100
}

/// Effects of an instruction that the library does not know.
fn unknown(word: Option<u32>) -> Effects {
    let sve = |word: u32| (word >> 25) & 0b1111 == 0b0010 && word >> 31 == 1;
    Effects {
        undecoded: match word {
            Some(word) if sve(word) => Some(Undecoded::VectorIndex),
            Some(word) if loads_or_stores(word) => Some(Undecoded::NoCode),
            _ => None,
        },
        // The instruction may write any register.
        writes: RegisterSet::MAX,
        ..Effects::default()
    }
}

fn next(raw: &A64Instruction, address: u64) -> Successor {
    use Opcode::*;
    let target = raw.operands.iter().find_map(|operand| match operand {
        A64::PCOffset(offset) => Some(address.wrapping_add(*offset as u64)),
        _ => None,
    });
    match (raw.opcode, target) {
        (B, Some(target)) => Successor::Jump(target),
        (Bcc(_) | CBZ | CBNZ | TBZ | TBNZ, Some(target)) => Successor::Either(target),
        (BL | BLR | BLRAA | BLRAAZ | BLRAB | BLRABZ, _) => Successor::Elsewhere,
        (BR | BRAA | BRAAZ | BRAB | BRABZ, _) => Successor::Elsewhere,
        (RET | RETAA | RETAB | ERET | ERETAA | ERETAB, _) => Successor::Elsewhere,
        (UDF | BRK | HLT, _) => Successor::Elsewhere,
        _ => Successor::Below,
    }
}

/// Effects of an instruction, and its references in terms of the registers just after it.
fn effects(raw: &A64Instruction, word: u32, address: u64) -> (Effects, Option<Vec<Reference>>) {
    let mut effects = Effects {
        writes: destinations(raw),
        ..Effects::default()
    };
    let ahead = matches!(raw.opcode, Opcode::PRFM | Opcode::PRFUM);
    let Some(kind) = kind(raw.opcode) else {
        let other = loads_or_stores(word) && !ahead;
        effects.undecoded = other.then_some(Undecoded::NoCode);
        return (effects, Some(Vec::new()));
    };
    let operands = raw.operands.iter();
    let Some(memory) = operands
        .copied()
        .find_map(|operand| memory(operand, address))
    else {
        effects.undecoded = Some(Undecoded::NoCode);
        return (effects, None);
    };
    let Memory { formula, moved } = memory;
    let loaded = effects.writes;
    let reference = |address| vec![Reference { address, kind }];
    effects.references = reference(formula);
    let base = set(formula.base);
    if moved != Writeback::Not {
        effects.writes |= base;
    }
    let afterwards = match moved {
        _ if loaded & formula.registers() != 0 => None,
        Writeback::Not => Some(reference(formula)),
        Writeback::By(bytes) => Some(reference(Formula {
            displacement: formula.displacement.wrapping_sub(bytes as u64),
            ..formula
        })),
        Writeback::Unknown => None,
    };
    (effects, afterwards)
}

/// An address, and the change of its base register by writeback.
struct Memory {
    formula: Formula,
    moved: Writeback,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writeback {
    Not,
    By(i64),
    Unknown,
}

/// The memory reference of an operand; none if the operand is no memory.
fn memory(operand: A64, address: u64) -> Option<Memory> {
    let at = |base: u16, bytes: i64| Formula {
        base: Some(base as Register),
        index: None,
        index_part: Part::Whole,
        from_thread_pointer: false,
        scale: 1,
        displacement: bytes as u64,
        mask: u64::MAX,
    };
    let memory = match operand {
        A64::RegPreIndex(base, bytes, writes_back) => Memory {
            formula: at(base, bytes.into()),
            moved: match writes_back {
                true => Writeback::By(bytes.into()),
                false => Writeback::Not,
            },
        },
        A64::RegPostIndex(base, bytes) => Memory {
            formula: at(base, 0),
            moved: Writeback::By(bytes.into()),
        },
        A64::RegPostIndexReg(base, _) => Memory {
            formula: at(base, 0),
            moved: Writeback::Unknown,
        },
        A64::RegRegOffset(base, index, size, style, shift) => {
            // The zero register means no index.
            let index = (index != SP).then_some(index as Register);
            Memory {
                formula: Formula {
                    index,
                    index_part: part(size, style)?,
                    from_thread_pointer: false,
                    scale: 1 << shift.min(7),
                    ..at(base, 0)
                },
                moved: Writeback::Not,
            }
        }
        // A literal, with an address relative to the instruction.
        A64::PCOffset(offset) => Memory {
            formula: Formula {
                base: None,
                displacement: address.wrapping_add(offset as u64),
                ..at(0, 0)
            },
            moved: Writeback::Not,
        },
        _ => return None,
    };
    Some(memory)
}

/// Part of the index register that is used in the address.
fn part(size: SizeCode, style: ShiftStyle) -> Option<Part> {
    match (style, size) {
        (ShiftStyle::LSL | ShiftStyle::UXTX | ShiftStyle::SXTX, SizeCode::X) => Some(Part::Whole),
        (ShiftStyle::UXTW, _) => Some(Part::Unsigned32),
        (ShiftStyle::SXTW, _) => Some(Part::Signed32),
        _ => None,
    }
}

/// Whether an instruction loads or stores. Atomic instructions do both and count as stores. `None` for others and for
/// prefetches, as nobody waits for their data.
fn kind(opcode: Opcode) -> Option<AccessKind> {
    use Opcode::*;
    match opcode {
        LDR | LDRB | LDRH | LDRSB | LDRSH | LDRSW | LDUR | LDURB | LDURH | LDURSB | LDURSH
        | LDURSW | LDTR | LDTRB | LDTRH | LDTRSB | LDTRSH | LDTRSW | LDP | LDPSW | LDNP | LDAR
        | LDARB | LDARH | LDLAR | LDLARB | LDLARH | LDAPR | LDAPRB | LDAPRH | LDAPUR | LDAPURB
        | LDAPURH | LDAPURSB | LDAPURSH | LDAPURSW | LDXR | LDXRB | LDXRH | LDXP | LDAXR
        | LDAXRB | LDAXRH | LDAXP | LD1 | LD2 | LD3 | LD4 | LD1R | LD2R | LD3R | LD4R => {
            Some(AccessKind::Load)
        }
        STR | STRB | STRH | STRW | STUR | STURB | STURH | STTR | STTRB | STTRH | STP | STNP
        | STLR | STLRB | STLRH | STLLR | STLLRB | STLLRH | STLUR | STLURB | STLURH | STXR
        | STXRB | STXRH | STXP | STLXR | STLXRB | STLXRH | STLXP | ST1 | ST2 | ST3 | ST4 => {
            Some(AccessKind::Store)
        }
        opcode if is_atomic(opcode) => Some(AccessKind::Store),
        _ => None,
    }
}

/// Whether the instruction is a read-modify-write of the Large System Extensions.
fn is_atomic(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        SWP(_)
            | SWPB(_)
            | SWPH(_)
            | CAS(_)
            | CASB(_)
            | CASH(_)
            | CASP(_)
            | LDADD(_)
            | LDADDB(_)
            | LDADDH(_)
            | LDCLR(_)
            | LDCLRB(_)
            | LDCLRH(_)
            | LDEOR(_)
            | LDEORB(_)
            | LDEORH(_)
            | LDSET(_)
            | LDSETB(_)
            | LDSETH(_)
            | LDSMAX(_)
            | LDSMAXB(_)
            | LDSMAXH(_)
            | LDSMIN(_)
            | LDSMINB(_)
            | LDSMINH(_)
            | LDUMAX(_)
            | LDUMAXB(_)
            | LDUMAXH(_)
            | LDUMIN(_)
            | LDUMINB(_)
            | LDUMINH(_)
    )
}

/// General registers that an instruction writes, except the base register of its address. In doubt a register is
/// included: an overlooked write would lead to wrong addresses.
fn destinations(raw: &A64Instruction) -> RegisterSet {
    use Opcode::*;
    let register = |operand: usize| match raw.operands[operand] {
        A64::Register(_, number) if number != SP => 1 << number,
        A64::RegisterOrSP(_, number) => 1 << number,
        A64::RegisterPair(_, number) if number < SP - 1 => 3 << number,
        _ => 0,
    };
    match raw.opcode {
        CAS(_) | CASB(_) | CASH(_) | CASP(_) => register(0),
        opcode if is_atomic(opcode) => register(1),
        LDP | LDPSW | LDNP | LDXP | LDAXP => register(0) | register(1),
        // The status register of a store-exclusive.
        STXR | STXRB | STXRH | STXP | STLXR | STLXRB | STLXRH | STLXP => register(0),
        opcode if kind(opcode) == Some(AccessKind::Store) => 0,
        BL | BLR | BLRAA | BLRAAZ | BLRAB | BLRABZ => 1 << LINK,
        B | Bcc(_) | CBZ | CBNZ | TBZ | TBNZ | BR | RET => 0,
        CCMN | CCMP | MSR => 0,
        _ => register(0),
    }
}

/// The instruction as a step that can be repeated from register values alone; none if it has no such form.
fn step(raw: &A64Instruction, address: u64) -> Option<Step> {
    use Opcode::*;
    let [to, first, second, third] = raw.operands;
    let (size, to) = match to {
        A64::Register(size, number) if number != SP => (size, number),
        A64::RegisterOrSP(size, number) => (size, number),
        _ => return None,
    };
    let wide = size == SizeCode::X;
    let to = to as Register;
    let done = |operation, from| {
        Some(Step {
            operation,
            wide,
            to,
            from,
        })
    };
    let copy = |from| done(Operation::Copy, from);
    match (raw.opcode, first, second) {
        (ADR, A64::PCOffset(offset), _) => {
            copy(Operand::Immediate(address.wrapping_add(offset as u64)))
        }
        (ADRP, A64::PCOffset(offset), _) => {
            let page = address & !0xfff;
            copy(Operand::Immediate(page.wrapping_add(offset as u64)))
        }
        (MOVZ, A64::ImmShift(value, shift), _) => {
            copy(Operand::Immediate(u64::from(value) << shift))
        }
        (MOVN, A64::ImmShift(value, shift), _) => {
            copy(Operand::Immediate(!(u64::from(value) << shift)))
        }
        (ORR, first, A64::RegShift(ShiftStyle::LSL, 0, _, from))
            if is_zero(first) && from != SP =>
        {
            copy(Operand::Register(from as Register))
        }
        (ADD | ADDS, first, second) => copy(Operand::Formula(sum(first, second, 1, wide)?)),
        (SUB | SUBS, first, second) => copy(Operand::Formula(sum(first, second, -1, wide)?)),
        // Sign-extension, zero-extension and shifts are aliases of bit-field moves.
        (SBFM | UBFM, A64::Register(_, from), A64::Immediate(rotate)) if from != SP => {
            let from_register = Operand::Register(from as Register);
            let A64::Immediate(last) = third else {
                return None;
            };
            let bits = if wide { 64 } else { 32 };
            let signed = raw.opcode == SBFM;
            match (rotate, last) {
                (0, 31) if signed && wide => done(Operation::SignExtend32, from_register),
                (0, 15) if signed => done(Operation::SignExtend16, from_register),
                (0, 7) if signed => done(Operation::SignExtend8, from_register),
                (0, 15) => done(Operation::ZeroExtend16, from_register),
                (0, 7) => done(Operation::ZeroExtend8, from_register),
                // A left shift, expressed as a scale.
                (rotate, last) if !signed && last + 1 == rotate && bits - rotate < 8 => {
                    copy(Operand::Formula(Formula {
                        base: None,
                        index: Some(from as Register),
                        index_part: Part::Whole,
                        from_thread_pointer: false,
                        scale: 1 << (bits - rotate),
                        displacement: 0,
                        mask: u64::MAX,
                    }))
                }
                (shift, last) if last == bits - 1 && Register::try_from(from) == Ok(to) => {
                    let operation = match signed {
                        true => Operation::ShiftRightSigned,
                        false => Operation::ShiftRight,
                    };
                    done(operation, Operand::Immediate(shift.into()))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

fn is_zero(operand: A64) -> bool {
    matches!(operand, A64::Register(_, SP))
}

/// A sum, or a difference if `sign` is −1; none if a formula cannot express it.
fn sum(first: A64, second: A64, sign: i64, wide: bool) -> Option<Formula> {
    let base = match first {
        A64::Register(_, SP) => None,
        A64::Register(_, number) | A64::RegisterOrSP(_, number) => Some(number as Register),
        _ => return None,
    };
    let plus = |bytes: i64| Formula {
        base,
        index: None,
        index_part: Part::Whole,
        from_thread_pointer: false,
        scale: 1,
        displacement: bytes.wrapping_mul(sign) as u64,
        mask: u64::MAX,
    };
    match second {
        A64::Immediate(value) => Some(plus(value.into())),
        A64::ImmShift(value, shift) => Some(plus(i64::from(value) << shift)),
        A64::RegShift(style, shift, size, number) if sign == 1 && shift < 8 && number != SP => {
            let index_part = match (style, size) {
                // Only the lower 32 bits of the result count, so the whole register may be added.
                (ShiftStyle::LSL, _) if !wide => Part::Whole,
                _ => part(size, style)?,
            };
            Some(Formula {
                index: Some(number as Register),
                index_part,
                from_thread_pointer: false,
                scale: 1 << shift,
                ..plus(0)
            })
        }
        _ => None,
    }
}
