//! Where instructions of a stretch of code begin, and which of them can come just before another.

use iced_x86::{Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic};

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
    /// The instruction at `offset`; one without a valid encoding is `INVALID` and one byte long.
    pub fn instruction(&self, offset: usize) -> Instruction {
        let bytes = self.bytes.get(offset..).unwrap_or_default();
        let address = self.address.wrapping_add(offset as u64);
        Decoder::with_ip(self.bitness, bytes, address, DecoderOptions::NONE).decode()
    }
}

/// Control flow of a stretch of code; positions are offsets into it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Where instructions begin, ascending.
    starts: Vec<u32>,
    /// Direct jumps (target, jump) inside the stretch, ascending.
    jumps: Vec<(u32, u32)>,
}

/// How far before the sampled instruction trial decoding begins, and from how many places.
const CONVERGE_BYTES: usize = 160;
const CONVERGE_TRIALS: usize = 32;

impl Flow {
    /// Decodes from `first`, where an instruction is known to begin, to the end.
    pub fn sweep(code: Code<'_>, first: usize) -> Self {
        let mut flow = Self::default();
        let end = code.address.wrapping_add(code.bytes.len() as u64);
        let bytes = code.bytes.get(first..).unwrap_or_default();
        let address = code.address.wrapping_add(first as u64);
        let mut decoder = Decoder::with_ip(code.bitness, bytes, address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let position = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                // Data between code, or a cut at the end: try one byte on.
                let _ = decoder.set_position(position + 1);
                decoder.set_ip(address.wrapping_add(position as u64 + 1));
                continue;
            }
            let start = (first + position) as u32;
            flow.starts.push(start);
            let jumps = matches!(
                instruction.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            );
            let target = instruction.near_branch_target();
            if jumps && (code.address..end).contains(&target) {
                flow.jumps.push(((target - code.address) as u32, start));
            }
        }
        flow.jumps.sort_unstable();
        flow
    }

    /// Finds an instruction boundary shortly before `at` where none is known: x86 code decoded from
    /// a wrong place falls into step after a few instructions, so trials from many places that
    /// reach `at` should agree on the instruction before it. `None` where they don't.
    pub fn converge(code: Code<'_>, at: usize) -> Option<usize> {
        let first = at.saturating_sub(CONVERGE_BYTES);
        let trials = first..(first + CONVERGE_TRIALS).min(at.saturating_sub(15).max(first + 1));
        let bytes = code.bytes.get(..at.max(1).min(code.bytes.len()))?;
        let mut reached: Vec<(usize, usize)> = Vec::with_capacity(CONVERGE_TRIALS);
        let mut tried = 0;
        for trial in trials {
            tried += 1;
            let mut decoder = Decoder::new(code.bitness, bytes, DecoderOptions::NONE);
            decoder.set_position(trial).ok()?;
            let (mut position, mut previous) = (trial, trial);
            while position < at {
                previous = position;
                let invalid = decoder.decode().is_invalid();
                if invalid && decoder.last_error() == DecoderError::NoMoreBytes {
                    break;
                }
                // Data before the code, as compilers at run time leave it: one byte on, as `sweep`.
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

    /// Which instruction begins at `offset`.
    pub fn index(&self, offset: usize) -> Option<usize> {
        self.starts.binary_search(&(offset as u32)).ok()
    }

    /// Where the `index`th instruction begins.
    pub fn start(&self, index: usize) -> usize {
        self.starts[index] as usize
    }

    /// Is `offset` the target of a direct jump?
    pub fn is_target(&self, offset: usize) -> bool {
        self.jumps_to(offset).next().is_some()
    }

    /// The instruction that runs into the `index`th from above: the one before it in memory, unless
    /// that one goes elsewhere. What comes back from a call is not the call.
    pub fn above(&self, code: Code<'_>, index: usize) -> Option<usize> {
        let above = index.checked_sub(1)?;
        let instruction = code.instruction(self.start(above));
        let falls_through = !matches!(
            instruction.flow_control(),
            FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Return
                | FlowControl::Call
                | FlowControl::IndirectCall
                | FlowControl::Exception
        );
        (falls_through && self.start(above) + instruction.len() == self.start(index))
            .then_some(above)
    }

    /// Instructions that may have been executed just before the `index`th. A comparison that the
    /// processor fuses with its jump counts as the jump, since no interrupt comes between them. At
    /// the head of a loop only the jumps back count: it is entered once and repeated often.
    pub fn just_before(&self, code: Code<'_>, index: usize) -> Vec<usize> {
        let at = self.start(index);
        let back = |jump: &usize| self.start(*jump) >= at;
        let jumps: Vec<usize> = self
            .jumps_to(at)
            .filter_map(|jump| self.index(jump))
            .collect();
        let loops = jumps.iter().any(back);
        let above = if loops { None } else { self.above(code, index) };
        let jumps = jumps.into_iter().filter(|jump| !loops || back(jump));
        jumps
            .chain(above)
            .map(|before| self.fused(code, before).unwrap_or(before))
            .collect()
    }

    /// The comparison that is one operation with the conditional jump `index`, if it is one.
    fn fused(&self, code: Code<'_>, index: usize) -> Option<usize> {
        if !code.instruction(self.start(index)).is_jcc_short_or_near() {
            return None;
        }
        let above = self.above(code, index)?;
        let instruction = code.instruction(self.start(above));
        // Memory with an immediate is not fused, registers alone are of no interest.
        let has_immediate =
            (0..instruction.op_count()).any(|n| is_immediate(instruction.op_kind(n)));
        let fused =
            matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test) && !has_immediate;
        fused.then_some(above)
    }

    fn jumps_to(&self, target: usize) -> impl Iterator<Item = usize> + '_ {
        let begin = self
            .jumps
            .partition_point(|(other, _)| (*other as usize) < target);
        let here = self.jumps[begin..]
            .iter()
            .take_while(move |(other, _)| *other as usize == target);
        here.map(|(_, jump)| *jump as usize)
    }
}

/// Whether an operand is an immediate.
fn is_immediate(kind: iced_x86::OpKind) -> bool {
    use iced_x86::OpKind::*;
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
