//! Derives the verdict on a sample from the code around its instruction.

use nearpage_recording::Resolution;

use crate::calibrate::SkidSide;
use crate::flow::Flow;
use crate::instruction::{Code, Decode, Instruction, Reference, Successor};
use crate::verdict::{Operand, Operation, RegisterSet, Step, Template, Undecoded, Verdict};

/// Largest number of instructions over which overwritten address registers are traced back.
const RECOMPUTE_MAX: usize = 24;
/// Largest number of instructions that are followed to come back to the same instruction in a loop.
const LOOP_MAX: usize = 48;
/// Largest number of memory instructions of one block that share a sample.
const BLOCK_MAX: usize = 64;

/// Judges samples. Keeps buffers between calls, but no state.
#[derive(Default)]
pub(crate) struct Judge<D> {
    decoder: D,
}

struct Candidate {
    instruction: u64,
    references: Vec<Reference>,
    steps: Box<[Step]>,
}

impl<D: Decode> Judge<D> {
    /// The verdict on samples at `code.address + at`. `flow` is the control flow of `code`.
    pub fn judge(&mut self, code: Code<'_>, flow: &Flow, at: usize, side: SkidSide) -> Verdict {
        let Some(index) = flow.index(at) else {
            return Verdict::Undecoded(Undecoded::Ambiguous);
        };
        let sampled = self.decoder.instruction(code, at);
        match side {
            SkidSide::Before if sampled.repeats => self.itself(sampled),
            SkidSide::Before => self.just_before(code, flow, index),
            SkidSide::At => self.itself(sampled),
            SkidSide::Block => self.block(code, at),
        }
    }

    fn itself(&self, instruction: Instruction) -> Verdict {
        let candidate = Candidate {
            instruction: instruction.address,
            references: instruction.effects.references,
            steps: [].into(),
        };
        let undecoded = instruction.effects.undecoded;
        let ip = instruction.address;
        verdict(ip, vec![candidate], undecoded, Resolution::Exact)
    }

    fn just_before(&mut self, code: Code<'_>, flow: &Flow, index: usize) -> Verdict {
        let at = flow.start(index);
        let ip = code.address.wrapping_add(at as u64);
        let mut candidates = Vec::new();
        let mut undecoded = None;
        let mut before = flow.just_before(&mut self.decoder, code, index);
        before.sort_unstable();
        before.dedup();
        for before in before {
            let instruction = self.decoder.instruction(code, flow.start(before));
            if !instruction.effects.references_memory() {
                continue;
            }
            match self.recover(code, flow, at, before, instruction) {
                Ok(candidate) => candidates.push(candidate),
                Err(reason) => undecoded = Some(reason),
            }
        }
        if candidates.is_empty() && undecoded == Some(Undecoded::Overwritten) {
            // The instruction at the sampled address may serve instead, as its registers are intact.
            let sampled = self.decoder.instruction(code, at);
            let verdict = self.itself(sampled);
            if matches!(verdict, Verdict::Accesses { .. }) {
                return verdict;
            }
        }
        let resolution = if candidates.len() > 1 {
            Resolution::Block
        } else {
            Resolution::Exact
        };
        verdict(ip, candidates, undecoded, resolution)
    }

    /// Finds the addresses of the instruction `before`, which was executed before the sample at `at`.
    fn recover(
        &mut self,
        code: Code<'_>,
        flow: &Flow,
        at: usize,
        before: usize,
        instruction: Instruction,
    ) -> Result<Candidate, Undecoded> {
        let effects = instruction.effects;
        if let Some(reason) = effects.undecoded {
            return Err(reason);
        }
        if let Some(references) = instruction.afterwards {
            return Ok(Candidate {
                instruction: instruction.address,
                references,
                steps: [].into(),
            });
        }
        let references = effects.references;
        let needed = addresses(&references);
        let steps = self
            .recompute(code, flow, before, needed & effects.writes, effects.writes)
            .or_else(|| self.next_time(code, at, instruction.address, needed))
            .ok_or(Undecoded::Overwritten)?;
        Ok(Candidate {
            instruction: instruction.address,
            references,
            steps: steps.into(),
        })
    }

    /// Steps that restore the registers `needed` to their values before the instruction `index`, from registers
    /// outside `overwritten`. Each step computes a value again, or copies it from a register that still holds it.
    fn recompute(
        &mut self,
        code: Code<'_>,
        flow: &Flow,
        mut index: usize,
        mut needed: RegisterSet,
        mut overwritten: RegisterSet,
    ) -> Option<Vec<Step>> {
        let mut steps = Vec::new();
        // Registers whose present values serve as copies, so that earlier steps must not change them.
        let mut copies: RegisterSet = 0;
        for _ in 0..RECOMPUTE_MAX {
            if needed == 0 {
                steps.reverse();
                return Some(steps);
            }
            if flow.is_target(flow.start(index)) {
                return None;
            }
            index = flow.above(&mut self.decoder, code, index)?;
            let instruction = self.decoder.instruction(code, flow.start(index));
            let writes = instruction.effects.writes;
            if writes & needed != 0 {
                let step = instruction.step.filter(|step| writes == 1 << step.to)?;
                if writes & copies != 0 {
                    return None;
                }
                needed = needed & !writes | step.reads() & (overwritten | writes);
                steps.push(step);
            } else if let Some(copy) =
                copy_of(instruction.step, needed).filter(|_| writes & overwritten == 0)
            {
                needed &= !(1 << copy.to);
                copies |= writes;
                steps.push(copy);
            }
            overwritten |= writes;
        }
        None
    }

    /// For a load in a loop that overwrote its own address: steps to the address of the next execution. In a chain of
    /// pointers, the loaded pointer leads to that address.
    fn next_time(
        &mut self,
        code: Code<'_>,
        at: usize,
        wanted: u64,
        needed: RegisterSet,
    ) -> Option<Vec<Step>> {
        let mut path = Vec::new();
        let mut at = at;
        while path.len() < LOOP_MAX {
            let instruction = self.decoder.instruction(code, at);
            if instruction.address == wanted {
                return steps_to_end(&path, needed);
            }
            let next = match instruction.next {
                Successor::Jump(target) => target,
                Successor::Either(target) if target <= instruction.address => target,
                Successor::Below | Successor::Either(_) => {
                    instruction.address.wrapping_add(instruction.length as u64)
                }
                Successor::Elsewhere | Successor::Invalid => return None,
            };
            at = usize::try_from(next.wrapping_sub(code.address)).ok()?;
            if at >= code.bytes.len() {
                return None;
            }
            path.push(instruction);
        }
        None
    }

    /// The verdict under emulators, which check for interrupts between translation blocks only: the sample stands for
    /// any memory instruction in the straight-line code that begins here.
    fn block(&mut self, code: Code<'_>, at: usize) -> Verdict {
        let ip = code.address.wrapping_add(at as u64);
        let mut path: Vec<Instruction> = Vec::new();
        let mut candidates = Vec::new();
        let mut undecoded = None;
        let mut at = at;
        while candidates.len() < BLOCK_MAX {
            let instruction = self.decoder.instruction(code, at);
            if instruction.next == Successor::Invalid {
                break;
            }
            let effects = &instruction.effects;
            undecoded = undecoded.or(effects.undecoded);
            if !effects.references.is_empty() {
                match steps_to_end(&path, addresses(&effects.references)) {
                    Some(steps) => candidates.push(Candidate {
                        instruction: instruction.address,
                        references: effects.references.clone(),
                        steps: steps.into(),
                    }),
                    None => undecoded = Some(Undecoded::Overwritten),
                }
            }
            if instruction.next != Successor::Below {
                break;
            }
            at += instruction.length;
            path.push(instruction);
        }
        verdict(ip, candidates, undecoded, Resolution::Block)
    }
}

/// Steps from the sampled registers along `path` to the registers `needed` at its end.
fn steps_to_end(path: &[Instruction], mut needed: RegisterSet) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    for instruction in path.iter().rev() {
        let writes = instruction.effects.writes;
        if writes & needed != 0 {
            let step = instruction.step.filter(|step| writes == 1 << step.to)?;
            needed = needed & !writes | step.reads();
            steps.push(step);
        }
    }
    steps.reverse();
    Some(steps)
}

/// If `step` copied one of the registers `needed`: the step that copies it back.
fn copy_of(step: Option<Step>, needed: RegisterSet) -> Option<Step> {
    match step? {
        Step {
            operation: Operation::Copy,
            wide: true,
            to,
            from: Operand::Register(from),
        } if needed & 1 << from != 0 => Some(Step {
            operation: Operation::Copy,
            wide: true,
            to: from,
            from: Operand::Register(to),
        }),
        _ => None,
    }
}

fn addresses(references: &[Reference]) -> RegisterSet {
    references
        .iter()
        .fold(0, |all, reference| all | reference.address.registers())
}

fn verdict(
    ip: u64,
    candidates: Vec<Candidate>,
    undecoded: Option<Undecoded>,
    resolution: Resolution,
) -> Verdict {
    let templates: Box<[Template]> = candidates
        .into_iter()
        .flat_map(
            |Candidate {
                 instruction,
                 references,
                 steps,
             }| {
                references.into_iter().map(move |reference| Template {
                    instruction,
                    skid_bytes: (ip.wrapping_sub(instruction) as i64)
                        .clamp(i8::MIN.into(), i8::MAX.into())
                        as i8,
                    kind: reference.kind,
                    steps: steps.clone(),
                    address: reference.address,
                })
            },
        )
        .collect();
    match undecoded {
        _ if !templates.is_empty() => Verdict::Accesses {
            templates,
            resolution,
        },
        Some(reason) => Verdict::Undecoded(reason),
        None => Verdict::Compute,
    }
}
