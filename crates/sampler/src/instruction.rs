//! What one instruction does, whatever the architecture.

use nearpage_recording::AccessKind;

use crate::flow::Flow;
use crate::verdict::{Formula, RegisterSet, Step, Undecoded};

/// A stretch of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'a> {
    /// Run-time address of the first byte.
    pub address: u64,
    pub bytes: &'a [u8],
    /// 64 or 32.
    pub bitness: u32,
}

impl Code<'_> {
    /// The run-time address of the byte at `offset`.
    pub fn at(&self, offset: usize) -> u64 {
        self.address.wrapping_add(offset as u64)
    }
}

/// Reads an architecture's instructions: pure functions of code, but for buffers kept between calls.
pub(crate) trait Decode {
    /// The instruction at `offset`.
    fn instruction(&mut self, code: Code<'_>, offset: usize) -> Instruction;

    /// Decodes from `first`, where an instruction is known to begin, to the end.
    fn sweep(code: Code<'_>, first: usize) -> Flow;

    /// Finds an instruction boundary shortly before `at` where none is known; `None` where that
    /// cannot be told.
    fn converge(code: Code<'_>, at: usize) -> Option<usize>;
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// Run-time address.
    pub address: u64,
    /// Bytes; at least 1.
    pub length: usize,
    pub next: Successor,
    pub effects: Effects,
    /// What its references are once it is done, in terms of the registers just after it; `None` where
    /// an address register is overwritten.
    pub afterwards: Option<Vec<Reference>>,
    /// It as something that can be done again from registers alone.
    pub step: Option<Step>,
    /// Interrupts stop it half-way, and stand on it.
    pub repeats: bool,
    pub fusion: Fusion,
}

/// What comes after an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successor {
    /// The one below.
    Below,
    /// The one below, or the one at this address.
    Either(u64),
    /// The one at this address.
    Jump(u64),
    /// Not told by the code, or after a call.
    Elsewhere,
    /// Code ends here: there is no valid encoding.
    Invalid,
}

/// Whether the processor makes one operation of two instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fusion {
    #[default]
    None,
    /// A comparison, with the conditional jump below.
    Comparison,
    /// A conditional jump, with the comparison above.
    Jump,
}

/// What an instruction does to memory and to general registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    /// Memory it references.
    pub references: Vec<Reference>,
    /// Why memory that it references besides cannot be told.
    pub undecoded: Option<Undecoded>,
    /// General registers it writes.
    pub writes: RegisterSet,
}

impl Effects {
    /// Does it reference memory?
    pub fn references_memory(&self) -> bool {
        !self.references.is_empty() || self.undecoded.is_some()
    }
}

/// One memory reference, in terms of the registers just before the instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reference {
    pub address: Formula,
    pub kind: AccessKind,
}
