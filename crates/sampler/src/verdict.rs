//! Meaning of a sample at an address, worked out once per address: the instructions that it stands for, and the
//! formulas of their addresses in terms of the sample's registers.

use nearpage_recording::{AccessKind, Resolution};

/// Size of a register array: more general registers than any architecture has, and the thread pointer.
pub(crate) const REGISTERS: usize = 33;

/// General registers as in samples, in the kernel's order (`PERF_REG_X86_…`: AX BX CX DX SI DI BP SP R8–R15;
/// `PERF_REG_ARM64_…`: X0–X30 SP). The last entry is the thread pointer (on x86-64, the base of FS), if it is known.
pub(crate) type Registers = [u64; REGISTERS];

/// Values of registers.
pub(crate) trait RegisterValues {
    /// Value of a register; 0 if it is unknown.
    fn of(&self, register: Register) -> u64;
}

impl RegisterValues for Registers {
    #[inline]
    fn of(&self, register: Register) -> u64 {
        self[usize::from(register)]
    }
}

/// Position of the thread pointer in [`Registers`].
pub(crate) const THREAD_POINTER: Register = REGISTERS as Register - 1;

/// Position in [`Registers`].
pub(crate) type Register = u8;

/// A set of registers, one bit each.
pub(crate) type RegisterSet = u64;

/// Meaning of all samples at one address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// One or more accesses, which share the sample's weight.
    Accesses {
        templates: Box<[Template]>,
        resolution: Resolution,
    },
    /// No memory access.
    Compute,
    /// A memory access with unknown address, or unknown code.
    Undecoded(Undecoded),
}

impl Verdict {
    /// Whether an address depends on the thread pointer.
    pub fn needs_thread_pointer(&self) -> bool {
        let pointer = set(Some(THREAD_POINTER));
        let needs = |template: &Template| template.address.registers() & pointer != 0;
        matches!(self, Self::Accesses { templates, .. } if templates.iter().any(needs))
    }
}

/// Why an access cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Undecoded {
    /// Code bytes are unknown or invalid.
    NoCode,
    /// Instruction boundaries before the sampled instruction are ambiguous.
    Ambiguous,
    /// Address registers were overwritten before the sample.
    Overwritten,
    /// The address is relative to GS, or to FS in 32-bit code.
    ThreadBase,
    /// The access has one address per lane of a vector register, which samples do not carry.
    VectorIndex,
}

/// One access in terms of a sample's registers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template {
    /// Address of the instruction.
    pub instruction: u64,
    /// Distance from the sampled instruction pointer back to the instruction. Jumps between them may exceed the range
    /// of `i8`, at which the value then stops.
    pub skid_bytes: i8,
    pub kind: AccessKind,
    /// Steps that recover overwritten address registers.
    pub steps: Box<[Step]>,
    pub address: Formula,
}

impl Template {
    /// The accessed address. Reads only those of `registers` that the address needs.
    #[inline]
    pub fn address(&self, registers: &impl RegisterValues) -> u64 {
        match self.steps.is_empty() {
            true => self.address.value(registers),
            false => self.address_after_steps(registers),
        }
    }

    fn address_after_steps(&self, registers: &impl RegisterValues) -> u64 {
        let mut registers: Registers = std::array::from_fn(|at| registers.of(at as Register));
        for step in &self.steps {
            step.apply(&mut registers);
        }
        self.address.value(&registers)
    }
}

/// `base + index × scale + displacement`, plus the thread pointer, modulo the address size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Formula {
    pub base: Option<Register>,
    pub index: Option<Register>,
    pub index_part: Part,
    pub scale: u8,
    pub displacement: u64,
    /// Whether the thread pointer is added.
    pub from_thread_pointer: bool,
    /// Mask with one bits for the width of addresses.
    pub mask: u64,
}

/// Part of an index register that is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Part {
    #[default]
    Whole,
    /// The lower 32 bits, signed or unsigned.
    Signed32,
    Unsigned32,
}

impl Formula {
    #[inline]
    pub fn value(&self, registers: &impl RegisterValues) -> u64 {
        let register = |register: Option<Register>| register.map_or(0, |r| registers.of(r));
        let index = match self.index_part {
            Part::Whole => register(self.index),
            Part::Signed32 => register(self.index) as i32 as u64,
            Part::Unsigned32 => u64::from(register(self.index) as u32),
        };
        let index = index.wrapping_mul(u64::from(self.scale));
        register(self.base)
            .wrapping_add(register(self.thread_pointer()))
            .wrapping_add(index)
            .wrapping_add(self.displacement)
            & self.mask
    }

    pub fn registers(&self) -> RegisterSet {
        set(self.base) | set(self.index) | set(self.thread_pointer())
    }

    fn thread_pointer(&self) -> Option<Register> {
        self.from_thread_pointer.then_some(THREAD_POINTER)
    }
}

/// A set of at most one register.
pub(crate) fn set(register: Option<Register>) -> RegisterSet {
    register.map_or(0, |register| 1 << register)
}

/// An instruction without memory operand that can be repeated on a sample's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub operation: Operation,
    /// Whether the operation has 64 bits; else 32, and the upper half becomes zero.
    pub wide: bool,
    pub to: Register,
    pub from: Operand,
}

/// Second operand of a [`Step`]; the first is the changed register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Register(Register),
    Immediate(u64),
    Formula(Formula),
}

impl Operand {
    pub fn registers(&self) -> RegisterSet {
        match self {
            Operand::Register(register) => 1 << register,
            Operand::Immediate(_) => 0,
            Operand::Formula(formula) => formula.registers(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Copy,
    ZeroExtend8,
    ZeroExtend16,
    SignExtend8,
    SignExtend16,
    SignExtend32,
    Add,
    Subtract,
    And,
    Or,
    Xor,
    Multiply,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    Negate,
    Not,
}

impl Operation {
    /// Whether the result depends on the register's old value.
    pub fn reads_destination(self) -> bool {
        use Operation::*;
        !matches!(
            self,
            Copy | ZeroExtend8 | ZeroExtend16 | SignExtend8 | SignExtend16 | SignExtend32
        )
    }
}

impl Step {
    /// Registers that the step reads.
    pub fn reads(&self) -> RegisterSet {
        let own = if self.operation.reads_destination() {
            1 << self.to
        } else {
            0
        };
        own | self.from.registers()
    }

    fn apply(&self, registers: &mut Registers) {
        let from = match self.from {
            Operand::Register(register) => registers[usize::from(register)],
            Operand::Immediate(value) => value,
            Operand::Formula(formula) => formula.value(registers),
        };
        let to = &mut registers[usize::from(self.to)];
        let shift = from as u32 & if self.wide { 63 } else { 31 };
        let result = match self.operation {
            Operation::Copy => from,
            Operation::ZeroExtend8 => from as u8 as u64,
            Operation::ZeroExtend16 => from as u16 as u64,
            Operation::SignExtend8 => from as i8 as u64,
            Operation::SignExtend16 => from as i16 as u64,
            Operation::SignExtend32 => from as i32 as u64,
            Operation::Add => to.wrapping_add(from),
            Operation::Subtract => to.wrapping_sub(from),
            Operation::And => *to & from,
            Operation::Or => *to | from,
            Operation::Xor => *to ^ from,
            Operation::Multiply => to.wrapping_mul(from),
            Operation::ShiftLeft => *to << shift,
            Operation::ShiftRight if self.wide => *to >> shift,
            Operation::ShiftRight => u64::from(*to as u32 >> shift),
            Operation::ShiftRightSigned if self.wide => (*to as i64 >> shift) as u64,
            Operation::ShiftRightSigned => (*to as i32 >> shift) as u64,
            Operation::Negate => to.wrapping_neg(),
            Operation::Not => !*to,
        };
        *to = if self.wide {
            result
        } else {
            u64::from(result as u32)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_steps_clear_the_upper_half() {
        let mut registers = [u64::MAX; REGISTERS];
        let step = |operation, wide, from| Step {
            operation,
            wide,
            to: 3,
            from,
        };
        step(Operation::Add, false, Operand::Immediate(2)).apply(&mut registers);
        assert_eq!(registers[3], 1);
        step(Operation::Subtract, false, Operand::Immediate(3)).apply(&mut registers);
        assert_eq!(registers[3], 0xffff_fffe);
        step(Operation::ShiftRightSigned, false, Operand::Immediate(33)).apply(&mut registers);
        assert_eq!(registers[3], 0xffff_ffff);
        step(Operation::SignExtend32, true, Operand::Register(3)).apply(&mut registers);
        assert_eq!(registers[3], u64::MAX);
    }

    #[test]
    fn formulas_wrap_at_their_address_size() {
        let formula = Formula {
            base: Some(0),
            index: Some(1),
            index_part: Part::Whole,
            from_thread_pointer: false,
            scale: 8,
            displacement: -16i64 as u64,
            mask: u32::MAX.into(),
        };
        let mut registers = [0; REGISTERS];
        (registers[0], registers[1]) = (8, 3);
        assert_eq!(formula.value(&registers), 16);
        registers[1] = 0;
        assert_eq!(formula.value(&registers), 0xffff_fff8);
        registers[1] = 0x5_ffff_fffe;
        let part = |index_part| Formula {
            index_part,
            ..formula
        };
        assert_eq!(part(Part::Signed32).value(&registers), 0xffff_ffe8);
        assert_eq!(part(Part::Unsigned32).value(&registers), 0xffff_ffe8);
        let wide = |index_part| Formula {
            mask: u64::MAX,
            ..part(index_part)
        };
        assert_eq!(wide(Part::Signed32).value(&registers), -24i64 as u64);
        assert_eq!(wide(Part::Unsigned32).value(&registers), 0x7_ffff_ffe8);
    }
}
