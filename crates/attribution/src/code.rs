//! From instruction addresses to modules.

use std::cmp::Reverse;

use nearpage_recording::{ModuleId, ModuleMapping};
use rustc_hash::FxHashMap;

use crate::{Hot, lifetimes::Lifetimes};

/// Where each process has its code. Where code was unloaded and other code loaded in its place, the
/// later one counts.
pub(crate) struct CodeMap {
    /// By process; by address, the later-born one last.
    processes: FxHashMap<u32, Vec<ModuleMapping>>,
}

impl CodeMap {
    pub fn new(mappings: &[ModuleMapping], lifetimes: &Lifetimes) -> CodeMap {
        let mut sorted: Vec<&ModuleMapping> = mappings.iter().collect();
        sorted.sort_by_key(|mapping| (mapping.address, mapping.born_ns));
        let mut processes: FxHashMap<u32, Vec<_>> = FxHashMap::default();
        for mapping in sorted {
            if let Some(process) = lifetimes.process(mapping.pid) {
                processes.entry(process).or_default().push(*mapping);
            }
        }
        CodeMap { processes }
    }

    fn module(&self, process: u32, instruction: u64) -> Option<(ModuleId, u64)> {
        let code = self.processes.get(&process)?;
        let at = code
            .partition_point(|mapping| mapping.address <= instruction)
            .checked_sub(1)?;
        let mapping = &code[at];
        (instruction - mapping.address < mapping.size_bytes)
            .then(|| (mapping.module, instruction.wrapping_sub(mapping.bias)))
    }

    /// The costliest of instructions, given by address, process, cost and accesses. One instruction
    /// of a module is one, in whatever process.
    pub fn costliest(
        &self,
        instructions: impl Iterator<Item = (u64, u32, f64, f64)>,
        count: usize,
    ) -> Vec<Hot> {
        let mut sums: FxHashMap<(Option<ModuleId>, u64), (f64, f64)> = FxHashMap::default();
        let mut sorted: Vec<_> = instructions.collect();
        sorted.sort_unstable_by_key(|&(instruction, process, ..)| (instruction, process));
        for (instruction, process, cost_ns, accesses) in sorted {
            let key = match self.module(process, instruction) {
                Some((module, offset)) => (Some(module), offset),
                None => (None, instruction),
            };
            let sum = sums.entry(key).or_default();
            sum.0 += cost_ns;
            sum.1 += accesses;
        }
        let mut hot: Vec<Hot> = sums
            .into_iter()
            .map(|((module, offset), (cost_ns, accesses))| Hot {
                module,
                offset,
                cost_ns,
                accesses,
            })
            .collect();
        hot.sort_unstable_by(|a, b| {
            let by = |hot: &Hot| (hot.cost_ns, hot.accesses);
            by(b)
                .partial_cmp(&by(a))
                .unwrap_or(std::cmp::Ordering::Equal)
                .then((a.module, Reverse(a.offset)).cmp(&(b.module, Reverse(b.offset))))
        });
        hot.truncate(count);
        hot
    }
}
