//! Control flow of code: where instructions begin, and which of them can precede another.

use crate::instruction::{Code, Decode, Fusion, Successor};

/// Control flow of a stretch of code. Positions are byte offsets in the stretch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// Positions of instructions, ascending.
    starts: Vec<u32>,
    /// Direct jumps (target, jump) inside the stretch, ascending.
    jumps: Vec<(u32, u32)>,
}

impl Flow {
    /// Control flow of instructions at `starts`, ascending, with the jumps (target, jump) among them.
    pub fn new(starts: Vec<u32>, mut jumps: Vec<(u32, u32)>) -> Self {
        jumps.sort_unstable();
        Self { starts, jumps }
    }

    /// Index of the instruction that begins at `offset`.
    pub fn index(&self, offset: usize) -> Option<usize> {
        self.starts.binary_search(&(offset as u32)).ok()
    }

    /// Position of the `index`th instruction.
    pub fn start(&self, index: usize) -> usize {
        self.starts[index] as usize
    }

    /// Whether `offset` is the target of a direct jump.
    pub fn is_target(&self, offset: usize) -> bool {
        self.jumps_to(offset).next().is_some()
    }

    /// The instruction from which control falls through to the `index`th: the one before it in memory, unless it never
    /// falls through. Calls do not count, as control comes back from the called function.
    pub fn above(&self, decoder: &mut impl Decode, code: Code<'_>, index: usize) -> Option<usize> {
        let above = index.checked_sub(1)?;
        let instruction = decoder.instruction(code, self.start(above));
        let falls_through = matches!(instruction.next, Successor::Below | Successor::Either(_));
        (falls_through && self.start(above) + instruction.length == self.start(index))
            .then_some(above)
    }

    /// Instructions that may have been executed just before the `index`th. Where the processor fuses a comparison with
    /// its jump, the comparison is returned, as no interrupt comes between them. At the head of a loop only jumps back
    /// count, as a loop is entered once and repeated often.
    pub fn just_before(
        &self,
        decoder: &mut impl Decode,
        code: Code<'_>,
        index: usize,
    ) -> Vec<usize> {
        let at = self.start(index);
        let back = |jump: &usize| self.start(*jump) >= at;
        let jumps: Vec<usize> = self
            .jumps_to(at)
            .filter_map(|jump| self.index(jump))
            .collect();
        let loops = jumps.iter().any(back);
        let above = match loops {
            true => None,
            false => self.above(decoder, code, index),
        };
        let jumps = jumps.into_iter().filter(|jump| !loops || back(jump));
        jumps
            .chain(above)
            .map(|before| self.fused(decoder, code, before).unwrap_or(before))
            .collect()
    }

    /// The comparison that is fused with the conditional jump `index`, if any.
    fn fused(&self, decoder: &mut impl Decode, code: Code<'_>, index: usize) -> Option<usize> {
        if decoder.instruction(code, self.start(index)).fusion != Fusion::Jump {
            return None;
        }
        let above = self.above(decoder, code, index)?;
        let instruction = decoder.instruction(code, self.start(above));
        (instruction.fusion == Fusion::Comparison).then_some(above)
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
