//! Decodes x86 instructions: boundaries, memory accesses, and changes of general registers.

use iced_x86::{
    Decoder as X86Decoder, DecoderError, DecoderOptions, FlowControl,
    Instruction as X86Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register as X86Register, UsedMemory,
};
use nearpage_recording::AccessKind;

use crate::flow::Flow;
use crate::instruction::{Code, Decode, Effects, Fusion, Instruction, Reference, Successor};
use crate::verdict::{Formula, Operand, Operation, Part, Register, Step, Undecoded, set};

/// Decodes instructions; keeps buffers between calls.
pub(crate) struct Decoder {
    factory: InstructionInfoFactory,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            factory: InstructionInfoFactory::new(),
        }
    }
}

/// Distance before the sampled instruction at which trial decoding begins, and number of trials.
const CONVERGE_BYTES: usize = 160;
const CONVERGE_TRIALS: usize = 32;

impl Decode for Decoder {
    /// The instruction at `offset`. Invalid encodings have a length of one byte.
    fn instruction(&mut self, code: Code<'_>, offset: usize) -> Instruction {
        let instruction = raw(code, offset);
        let target = instruction.near_branch_target();
        let next = match instruction.flow_control() {
            _ if instruction.is_invalid() => Successor::Invalid,
            FlowControl::UnconditionalBranch => Successor::Jump(target),
            FlowControl::ConditionalBranch => Successor::Either(target),
            FlowControl::Next | FlowControl::Interrupt | FlowControl::XbeginXabortXend => {
                Successor::Below
            }
            _ => Successor::Elsewhere,
        };
        let effects = effects(&mut self.factory, &instruction);
        Instruction {
            address: code.at(offset),
            length: instruction.len().max(1),
            next,
            afterwards: afterwards(&instruction, &effects),
            step: step(&instruction),
            effects,
            repeats: instruction.is_string_instruction()
                && (instruction.has_rep_prefix()
                    || instruction.has_repe_prefix()
                    || instruction.has_repne_prefix()),
            fusion: fusion(&instruction),
        }
    }

    fn sweep(code: Code<'_>, first: usize) -> Flow {
        let (mut starts, mut jumps) = (Vec::new(), Vec::new());
        let end = code.address.wrapping_add(code.bytes.len() as u64);
        let bytes = code.bytes.get(first..).unwrap_or_default();
        let address = code.address.wrapping_add(first as u64);
        let mut decoder = X86Decoder::with_ip(code.bitness, bytes, address, DecoderOptions::NONE);
        let mut instruction = X86Instruction::default();
        while decoder.can_decode() {
            let position = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                // Data between code, or a cut at the end: continues one byte later.
                let _ = decoder.set_position(position + 1);
                decoder.set_ip(address.wrapping_add(position as u64 + 1));
                continue;
            }
            let start = (first + position) as u32;
            starts.push(start);
            let is_jump = matches!(
                instruction.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            );
            let target = instruction.near_branch_target();
            if is_jump && (code.address..end).contains(&target) {
                jumps.push(((target - code.address) as u32, start));
            }
        }
        Flow::new(starts, jumps)
    }

    /// Finds an instruction boundary shortly before `at`, without a known one. x86 code that is decoded from a wrong
    /// place falls into step after a few instructions, so trials from many places should agree on the instruction
    /// before `at`. `None` if they do not.
    fn converge(code: Code<'_>, at: usize) -> Option<usize> {
        let first = at.saturating_sub(CONVERGE_BYTES);
        let trials = first..(first + CONVERGE_TRIALS).min(at.saturating_sub(15).max(first + 1));
        let bytes = code.bytes.get(..at.max(1).min(code.bytes.len()))?;
        let mut reached: Vec<(usize, usize)> = Vec::with_capacity(CONVERGE_TRIALS);
        let mut tried = 0;
        for trial in trials {
            tried += 1;
            let mut decoder = X86Decoder::new(code.bitness, bytes, DecoderOptions::NONE);
            decoder.set_position(trial).ok()?;
            let (mut position, mut previous) = (trial, trial);
            while position < at {
                previous = position;
                let invalid = decoder.decode().is_invalid();
                if invalid && decoder.last_error() == DecoderError::NoMoreBytes {
                    break;
                }
                // Data before the code, as runtime compilers leave it: continues one byte later, as `sweep` does.
                position = if invalid {
                    position + 1
                } else {
                    decoder.position()
                };
                decoder.set_position(position).ok()?;
            }
            if position == at {
                reached.push((previous, trial));
            }
        }
        let (previous, trial) = *reached.first()?;
        let agreeing = reached
            .iter()
            .filter(|(other, _)| *other == previous)
            .count();
        (agreeing * 4 >= reached.len() * 3 && agreeing * 4 >= tried).then_some(trial)
    }
}

/// The instruction at `offset`. Invalid encodings are `INVALID` and one byte long.
fn raw(code: Code<'_>, offset: usize) -> X86Instruction {
    let bytes = code.bytes.get(offset..).unwrap_or_default();
    X86Decoder::with_ip(code.bitness, bytes, code.at(offset), DecoderOptions::NONE).decode()
}

/// Kind of fusion in which an instruction can take part.
fn fusion(instruction: &X86Instruction) -> Fusion {
    // Comparisons of memory with an immediate are not fused. Comparisons of registers do not matter here.
    let has_immediate =
        || (0..instruction.op_count()).any(|n| is_immediate(instruction.op_kind(n)));
    match instruction.mnemonic() {
        _ if instruction.is_jcc_short_or_near() => Fusion::Jump,
        Mnemonic::Cmp | Mnemonic::Test if !has_immediate() => Fusion::Comparison,
        _ => Fusion::None,
    }
}

fn is_immediate(kind: OpKind) -> bool {
    use OpKind::*;
    matches!(
        kind,
        Immediate8
            | Immediate8_2nd
            | Immediate16
            | Immediate32
            | Immediate64
            | Immediate8to16
            | Immediate8to32
            | Immediate8to64
            | Immediate32to64
    )
}

/// Effects of an instruction on memory and registers.
fn effects(factory: &mut InstructionInfoFactory, instruction: &X86Instruction) -> Effects {
    let info = factory.info(instruction);
    let mut effects = Effects::default();
    for used in info.used_registers() {
        if access_kind(used.access()) == Some(AccessKind::Store) {
            effects.writes |= set(general(used.register()));
        }
    }
    for memory in info.used_memory() {
        let Some(kind) = access_kind(memory.access()) else {
            continue;
        };
        match formula(memory) {
            Ok(address) => effects.references.push(Reference { address, kind }),
            Err(undecoded) => effects.undecoded = Some(undecoded),
        }
    }
    effects
}

/// The references in terms of the registers just after the instruction: the stack pointer and the pointers of string
/// instructions move by known amounts. `None` if an address register is overwritten.
fn afterwards(instruction: &X86Instruction, effects: &Effects) -> Option<Vec<Reference>> {
    if instruction.mnemonic() == Mnemonic::Leave {
        // Loads the old frame pointer from the address below the new stack pointer.
        let base = general(X86Register::RSP);
        let mask = effects.references.first()?.address.mask;
        let displacement = if mask == u64::MAX { -8i64 } else { -4 } as u64;
        let address = Formula {
            base,
            index: None,
            index_part: Part::Whole,
            from_thread_pointer: false,
            scale: 1,
            displacement,
            mask,
        };
        return Some(vec![Reference {
            address,
            kind: AccessKind::Load,
        }]);
    }
    let stack = set(general(X86Register::RSP));
    let string = set(general(X86Register::RSI)) | set(general(X86Register::RDI));
    let mut references = effects.references.clone();
    for Reference { address, .. } in &mut references {
        let lost = address.registers() & effects.writes;
        if lost == 0 {
            continue;
        }
        let moved_bytes = if lost == stack && !writes_stack_pointer_otherwise(instruction) {
            instruction.stack_pointer_increment()
        } else if instruction.is_string_instruction() && lost & !string == 0 {
            // Assumes ascending addresses: code with the direction flag set is too rare to sample the flags.
            instruction.memory_size().size() as i32
        } else {
            return None;
        };
        address.displacement = address.displacement.wrapping_sub(moved_bytes as u64);
    }
    Some(references)
}

/// Whether the stack pointer changes by an unknown amount.
fn writes_stack_pointer_otherwise(instruction: &X86Instruction) -> bool {
    let named = (0..instruction.op_count()).any(|n| {
        instruction.op_kind(n) == OpKind::Register
            && instruction.op_register(n).full_register() == X86Register::RSP
    });
    named || instruction.stack_pointer_increment() == 0 || instruction.mnemonic() == Mnemonic::Enter
}

/// The instruction as a step that can be repeated from register values alone; none if it has no such form.
fn step(instruction: &X86Instruction) -> Option<Step> {
    let to = instruction.op0_register();
    if instruction.op0_kind() != OpKind::Register || !(to.is_gpr32() || to.is_gpr64()) {
        return None;
    }
    let (wide, to) = (to.is_gpr64(), general(to)?);
    let operation = match instruction.mnemonic() {
        Mnemonic::Mov | Mnemonic::Lea => Operation::Copy,
        Mnemonic::Movzx => match source_bytes(instruction)? {
            1 => Operation::ZeroExtend8,
            _ => Operation::ZeroExtend16,
        },
        Mnemonic::Movsx | Mnemonic::Movsxd => match source_bytes(instruction)? {
            1 => Operation::SignExtend8,
            2 => Operation::SignExtend16,
            _ => Operation::SignExtend32,
        },
        Mnemonic::Add | Mnemonic::Inc => Operation::Add,
        Mnemonic::Sub | Mnemonic::Dec => Operation::Subtract,
        Mnemonic::And => Operation::And,
        Mnemonic::Or => Operation::Or,
        Mnemonic::Xor => Operation::Xor,
        Mnemonic::Imul if instruction.op_count() == 2 => Operation::Multiply,
        Mnemonic::Shl => Operation::ShiftLeft,
        Mnemonic::Shr => Operation::ShiftRight,
        Mnemonic::Sar => Operation::ShiftRightSigned,
        Mnemonic::Neg => Operation::Negate,
        Mnemonic::Not => Operation::Not,
        _ => return None,
    };
    let from = match instruction.op_count() {
        1 => Operand::Immediate(1),
        2 => operand(instruction)?,
        _ => return None,
    };
    Some(Step {
        operation,
        wide,
        to,
        from,
    })
}

fn operand(instruction: &X86Instruction) -> Option<Operand> {
    if instruction.mnemonic() == Mnemonic::Lea {
        return effective_address(instruction).map(Operand::Formula);
    }
    match instruction.op1_kind() {
        OpKind::Register if is_low(instruction.op1_register()) => {
            general(instruction.op1_register()).map(Operand::Register)
        }
        OpKind::Memory => None,
        _ => instruction.try_immediate(1).ok().map(Operand::Immediate),
    }
}

fn source_bytes(instruction: &X86Instruction) -> Option<usize> {
    (instruction.op1_kind() == OpKind::Register).then(|| instruction.op1_register().size())
}

/// Whether the register is none of AH, BH, CH and DH.
fn is_low(register: X86Register) -> bool {
    !matches!(
        register,
        X86Register::AH | X86Register::BH | X86Register::CH | X86Register::DH
    )
}

fn effective_address(instruction: &X86Instruction) -> Option<Formula> {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    if instruction.is_ip_rel_memory_operand() {
        let displacement = instruction.ip_rel_memory_address();
        return Some(Formula {
            base: None,
            index: None,
            index_part: Part::Whole,
            from_thread_pointer: false,
            scale: 1,
            displacement,
            mask: u64::MAX,
        });
    }
    let wide = !(base.is_gpr32() || index.is_gpr32());
    Some(Formula {
        base: named(base)?,
        index: named(index)?,
        index_part: Part::Whole,
        from_thread_pointer: false,
        scale: instruction.memory_index_scale() as u8,
        displacement: instruction.memory_displacement64(),
        mask: if wide { u64::MAX } else { u32::MAX.into() },
    })
}

fn formula(memory: &UsedMemory) -> Result<Formula, Undecoded> {
    if memory.segment() == X86Register::GS {
        return Err(Undecoded::ThreadBase);
    }
    if memory.index().is_vector_register() {
        return Err(Undecoded::VectorIndex);
    }
    let mask = match memory.address_size() {
        iced_x86::CodeSize::Code16 => u16::MAX.into(),
        iced_x86::CodeSize::Code32 => u32::MAX.into(),
        _ => u64::MAX,
    };
    let formula = Formula {
        base: named(memory.base()).ok_or(Undecoded::Overwritten)?,
        index: named(memory.index()).ok_or(Undecoded::Overwritten)?,
        index_part: Part::Whole,
        from_thread_pointer: false,
        scale: memory.scale() as u8,
        displacement: memory.displacement(),
        mask,
    };
    match memory.segment() {
        // The base of FS is unknown in 32-bit code.
        X86Register::FS if mask != u64::MAX => Err(Undecoded::ThreadBase),
        X86Register::FS => Ok(Formula {
            from_thread_pointer: true,
            ..formula
        }),
        _ => Ok(formula),
    }
}

/// `Some(None)` for no register, `None` for registers that samples do not carry.
fn named(register: X86Register) -> Option<Option<Register>> {
    if register == X86Register::None {
        Some(None)
    } else {
        general(register).map(Some)
    }
}

/// Position, in samples, of a general register or of the register that contains it.
fn general(register: X86Register) -> Option<Register> {
    // Encoded as AX CX DX BX SP BP SI DI R8…, sampled as AX BX CX DX SI DI BP SP R8….
    const SAMPLED: [Register; 8] = [0, 2, 3, 1, 7, 6, 4, 5];
    let full = register.full_register();
    let number = full.is_gpr64().then(|| full.number())?;
    // Registers of later extensions (R16 and up) are not sampled.
    if number < 8 {
        Some(SAMPLED[number])
    } else {
        (number < 16).then_some(number as Register)
    }
}

fn access_kind(access: OpAccess) -> Option<AccessKind> {
    match access {
        OpAccess::None | OpAccess::NoMemAccess => None,
        OpAccess::Read | OpAccess::CondRead => Some(AccessKind::Load),
        OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
            Some(AccessKind::Store)
        }
    }
}
