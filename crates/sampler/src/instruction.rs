//! Effects of single instructions, independent of the architecture.

use nearpage_recording::AccessKind;

use crate::flow::Flow;
use crate::verdict::{Formula, RegisterSet, Step, Undecoded};

/// A stretch of code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'a> {
    /// Run-time address of the first byte.
    pub address: u64,
    pub bytes: &'a [u8],
    /// 64 or 32 bits.
    pub bitness: u32,
}

impl Code<'_> {
    /// Run-time address of the byte at `offset`.
    pub fn at(&self, offset: usize) -> u64 {
        self.address.wrapping_add(offset as u64)
    }
}

/// Decodes an architecture's instructions. Implementations keep buffers, but no state that affects results.
pub(crate) trait Decode {
    /// The instruction at `offset`.
    fn instruction(&mut self, code: Code<'_>, offset: usize) -> Instruction;

    /// Decodes from `first`, where an instruction must begin, to the end.
    fn sweep(code: Code<'_>, first: usize) -> Flow;

    /// Finds an instruction boundary shortly before `at`, without a known one; `None` if it is ambiguous.
    fn converge(code: Code<'_>, at: usize) -> Option<usize>;
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Instruction {
    /// Run-time address.
    pub address: u64,
    /// Length in bytes, at least 1.
    pub length: usize,
    pub next: Successor,
    pub effects: Effects,
    /// The references in terms of the registers just after the instruction; `None` if it overwrites an address
    /// register.
    pub afterwards: Option<Vec<Reference>>,
    /// The instruction as a step that can be repeated from register values alone, if possible.
    pub step: Option<Step>,
    /// Whether interrupts can stop the instruction half-way; the sample then stands at the instruction.
    pub repeats: bool,
    pub fusion: Fusion,
}

/// Instruction that is executed next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successor {
    /// The next one in memory.
    Below,
    /// The next one in memory, or the one at this address.
    Either(u64),
    /// The one at this address.
    Jump(u64),
    /// Unknown from the code, or after a call.
    Elsewhere,
    /// None, as the encoding is invalid.
    Invalid,
}

/// Whether the processor fuses the instruction with another into one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fusion {
    #[default]
    None,
    /// A comparison, with the conditional jump after it.
    Comparison,
    /// A conditional jump, with the comparison before it.
    Jump,
}

/// Effects of an instruction on memory and general registers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Effects {
    /// Known memory references.
    pub references: Vec<Reference>,
    /// Why further memory references are unknown.
    pub undecoded: Option<Undecoded>,
    /// General registers that are written.
    pub writes: RegisterSet,
}

impl Effects {
    /// Whether the instruction references memory.
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
