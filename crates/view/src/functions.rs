//! Functions that make accesses. The costliest functions have colours of their own.

use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use nearpage_recording::{
    AccessBatch, ColumnSelection, ModuleId, ModuleMapping, Recording, Symbols,
};
use rustc_hash::{FxHashMap, FxHasher};

use crate::costs::CodePlace;

/// Maximum number of functions with a colour of their own; other functions share one colour.
pub const FUNCTIONS_MAX: usize = 31;
/// Maximum number of the sample's instructions that are looked up before the page shows anything, by cost.
const LOOKED_UP_FIRST: usize = 4096;
/// Number of entries that a [`Lookup`] remembers; a power of two.
const LOOKUP_ENTRIES: usize = 4096;

/// The functions of a recording.
#[derive(Debug)]
pub struct Functions {
    /// Names by colour, ordered by cost; the last name stands for all other functions.
    pub names: Vec<String>,
    slots: FxHashMap<String, u8>,
    code: Code,
    /// Colours by instruction, as a cache. Must be locked before `symbols`.
    known: Mutex<FxHashMap<Instruction, u8>>,
    symbols: Mutex<Symbols>,
}

/// A module and a virtual address in its file. Generated code has no module; its address is the address in memory.
pub(crate) type Instruction = (Option<ModuleId>, u64);

/// Mappings of code, ordered by process, address and time.
#[derive(Debug)]
struct Code(Vec<ModuleMapping>);

impl Code {
    fn find(&self, pid: u32, instruction: u64) -> Instruction {
        let at = self
            .0
            .partition_point(|mapping| (mapping.pid, mapping.address) <= (pid, instruction));
        let found = at.checked_sub(1).map(|at| &self.0[at]);
        let found = found.filter(|mapping| {
            mapping.pid == pid && instruction - mapping.address < mapping.size_bytes
        });
        match found {
            Some(mapping) => (Some(mapping.module), instruction.wrapping_sub(mapping.bias)),
            None => (None, instruction),
        }
    }
}

/// Innermost function at an instruction, as in tables of hot instructions.
fn code_place(symbols: &mut Symbols, (module, offset): Instruction) -> CodePlace {
    let frame = module.and_then(|module| symbols.instruction(module, offset).into_iter().next());
    let (function, file, line) = frame.map_or_else(Default::default, |frame| {
        (frame.function, frame.file, frame.line)
    });
    CodePlace {
        module,
        function: match function.is_empty() {
            true => "(unknown)".to_owned(),
            false => function,
        },
        file,
        line,
    }
}

impl Functions {
    /// Functions with the highest cost in some chunks. Chunks that can't be read are skipped.
    pub fn new(recording: &Recording, chunks: &[usize]) -> Self {
        let mut mappings = recording.tables.mappings.clone();
        mappings.sort_by_key(|mapping| (mapping.pid, mapping.address, mapping.born_ns));
        let code = Code(mappings);
        let columns = ColumnSelection {
            thread: true,
            instruction: true,
            weight: true,
            cost_ns: true,
            ..ColumnSelection::NONE
        };
        let pids: Vec<u32> = recording.tables.threads.iter().map(|one| one.pid).collect();
        let mut instructions: FxHashMap<(u32, u64), (f64, f64)> = FxHashMap::default();
        let mut batch = AccessBatch::default();
        let mut reader = recording.chunk_reader();
        for &chunk in chunks {
            if reader.read(chunk, columns, &mut batch).is_err() {
                continue;
            }
            for (row, &instruction) in batch.instruction.iter().enumerate() {
                let pid = pids.get(batch.thread[row].0 as usize).copied().unwrap_or(0);
                let sum = instructions.entry((pid, instruction)).or_default();
                sum.0 += f64::from(batch.cost_ns[row]);
                sum.1 += f64::from(batch.weight[row]);
            }
        }
        let mut costliest: Vec<((u32, u64), (f64, f64))> = instructions.into_iter().collect();
        let order =
            |a: &(f64, f64), b: &(f64, f64)| b.0.total_cmp(&a.0).then_with(|| b.1.total_cmp(&a.1));
        costliest.sort_by(|a, b| order(&a.1, &b.1).then_with(|| a.0.cmp(&b.0)));
        costliest.truncate(LOOKED_UP_FIRST);
        let mut symbols = recording.symbols();
        let mut sums: FxHashMap<String, (f64, f64)> = FxHashMap::default();
        for ((pid, instruction), (cost_ns, weight)) in costliest {
            let name = code_place(&mut symbols, code.find(pid, instruction)).function;
            let sum = sums.entry(name).or_default();
            *sum = (sum.0 + cost_ns, sum.1 + weight);
        }
        let mut named: Vec<(String, (f64, f64))> = sums.into_iter().collect();
        named.sort_by(|a, b| order(&a.1, &b.1).then_with(|| a.0.cmp(&b.0)));
        named.truncate(FUNCTIONS_MAX);
        let names = named.into_iter().map(|(name, _)| name);
        Self::of(names.collect(), code, symbols)
    }

    fn of(mut names: Vec<String>, code: Code, symbols: Symbols) -> Self {
        let slots = names.iter().cloned().zip(0..).collect();
        names.push("other functions".to_owned());
        Self {
            names,
            slots,
            code,
            known: Mutex::default(),
            symbols: Mutex::new(symbols),
        }
    }

    /// A number that changes if the names or their order change.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = FxHasher::default();
        self.names.hash(&mut hasher);
        hasher.finish()
    }

    fn slot(&self, pid: u32, instruction: u64) -> u8 {
        let place = self.code.find(pid, instruction);
        let mut known = self.known.lock().expect("nobody panics holding it");
        if let Some(&slot) = known.get(&place) {
            return slot;
        }
        let name = self.code_place(place).function;
        let others = (self.names.len() - 1) as u8;
        let slot = self.slots.get(&name).copied().unwrap_or(others);
        known.insert(place, slot);
        slot
    }

    /// Place of an instruction in the program's source.
    pub(crate) fn code_place(&self, instruction: Instruction) -> CodePlace {
        code_place(&mut self.symbols(), instruction)
    }

    /// Locks the lookup of functions and lines.
    pub(crate) fn symbols(&self) -> MutexGuard<'_, Symbols> {
        self.symbols.lock().expect("nobody panics holding it")
    }
}

/// Looks up colours of functions, with a cache of recent instructions.
pub(crate) struct Lookup<'a> {
    functions: &'a Functions,
    /// Process, instruction and colour; process 0 executes no code, so it marks a free entry.
    remembered: Vec<(u32, u64, u8)>,
}

impl<'a> Lookup<'a> {
    pub fn new(functions: &'a Functions) -> Self {
        Self {
            functions,
            remembered: vec![(0, 0, 0); LOOKUP_ENTRIES],
        }
    }

    /// Colour of the function that contains an instruction.
    #[inline]
    pub fn slot(&mut self, pid: u32, instruction: u64) -> u8 {
        let at = (instruction ^ instruction >> 12) as usize % LOOKUP_ENTRIES;
        let (known_pid, known, slot) = self.remembered[at];
        if (known_pid, known) == (pid, instruction) && pid != 0 {
            return slot;
        }
        let slot = self.functions.slot(pid, instruction);
        self.remembered[at] = (pid, instruction, slot);
        slot
    }
}

/// No functions, for recordings without code.
impl Default for Functions {
    fn default() -> Self {
        Self::of(Vec::new(), Code(Vec::new()), Symbols::default())
    }
}
