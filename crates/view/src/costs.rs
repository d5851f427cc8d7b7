//! What accesses cost by object and by the instruction that made them: what the flame graph and the view of the source
//! are made from.

use std::ops::AddAssign;

use nearpage_attribution::{ObjectIndex, Search, StablePhase};
use nearpage_machine::NodeId;
use nearpage_recording::{AccessBatch, AccessKind, ModuleId};
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::functions::Instruction;
use crate::opened::{Opened, Stage};

/// Pairs of an object and an instruction that are followed; accesses of others are counted alone.
const PAIRS_MAX: usize = 1 << 20;
/// Instructions whose function and line are looked up, the costliest.
const LOOKED_UP_MAX: usize = 1 << 14;

/// What some accesses cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sums {
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// Of this, to another node's memory.
    pub remote_cost_ns: f64,
    /// Loads, by weight.
    pub loads: f64,
    /// Stores, by weight.
    pub stores: f64,
}

impl AddAssign for Sums {
    fn add_assign(&mut self, other: Self) {
        self.cost_ns += other.cost_ns;
        self.remote_cost_ns += other.remote_cost_ns;
        self.loads += other.loads;
        self.stores += other.stores;
    }
}

impl Sums {
    /// Is any of them at least this share of the same of `whole`?
    pub fn is_at_least(&self, share: f64, whole: &Self) -> bool {
        [
            (self.cost_ns, whole.cost_ns),
            (self.remote_cost_ns, whole.remote_cost_ns),
            (self.loads, whole.loads),
            (self.stores, whole.stores),
        ]
        .iter()
        .any(|&(part, whole)| part > 0.0 && part >= share * whole)
    }
}

/// Where in a program an instruction is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CodePlace {
    /// None of generated code.
    pub module: Option<ModuleId>,
    /// Innermost function; `(unknown)` where it has no name.
    pub function: String,
    /// As the debug information has it; empty where there is none.
    pub file: String,
    /// 0 where it is not known.
    pub line: u32,
}

/// What an instruction did to an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostRow {
    /// Position of the object in the attribution's; none where no row of it is the object's.
    pub object: Option<usize>,
    pub instruction: Instruction,
    /// Position in [`Costs::places`].
    pub place: usize,
    pub sums: Sums,
}

/// By object and instruction.
#[derive(Debug)]
pub(crate) struct Costs {
    /// The costliest first.
    pub rows: Vec<CostRow>,
    pub places: Vec<CodePlace>,
    /// Accesses whose object and instruction were not followed, as there were too many.
    pub left_out: u64,
    /// Share of the accesses that this is from, 0 to 1.
    pub share: f64,
}

/// Adds up accesses.
struct CostAdder<'a> {
    opened: &'a Opened,
    /// One for all chunks, which come in the order of time.
    search: Search<'a>,
    stable: StablePhase,
    /// Process of each thread.
    pids: Vec<u32>,
    /// Node of each CPU.
    nodes: Vec<Option<NodeId>>,
    /// By group of the object index and instruction.
    sums: FxHashMap<(usize, Instruction), Sums>,
    left_out: u64,
}

impl<'a> CostAdder<'a> {
    fn new(opened: &'a Opened, index: &'a ObjectIndex) -> Self {
        let recording = &opened.recording;
        let threads = &recording.tables.threads;
        let mut nodes = Vec::new();
        for node in &recording.machine.nodes {
            for cpu in &node.cpus {
                let at = cpu.0 as usize;
                nodes.resize(nodes.len().max(at + 1), None);
                nodes[at] = Some(node.id);
            }
        }
        Self {
            opened,
            search: index.search(),
            stable: StablePhase::new(&recording.metadata.marks, threads),
            pids: threads.iter().map(|thread| thread.pid).collect(),
            nodes,
            sums: FxHashMap::default(),
            left_out: 0,
        }
    }

    fn add(&mut self, batch: &AccessBatch) {
        for row in 0..batch.len() {
            let (thread, time_ns) = (batch.thread[row], batch.time_ns[row]);
            let Some(&pid) = self.pids.get(thread.0 as usize) else {
                continue;
            };
            if !self.stable.has(thread, time_ns) {
                continue;
            }
            // What is in no object is in no table of objects either.
            let Some(found) = self.search.find(pid, time_ns, batch.address[row]) else {
                continue;
            };
            let instruction = self
                .opened
                .functions
                .instruction(pid, batch.instruction[row]);
            let pair = (found.group, instruction);
            if self.sums.len() >= PAIRS_MAX && !self.sums.contains_key(&pair) {
                self.left_out += 1;
                continue;
            }
            let cpu = self.nodes.get(batch.cpu[row].0 as usize).copied().flatten();
            let is_remote = match (batch.page_node[row], cpu) {
                (Some(page), Some(cpu)) => page != cpu,
                _ => false,
            };
            let cost_ns = f64::from(batch.cost_ns[row]);
            let weight = f64::from(batch.weight[row]);
            let is_store = batch.kind[row] == AccessKind::Store;
            *self.sums.entry(pair).or_default() += Sums {
                cost_ns,
                remote_cost_ns: if is_remote { cost_ns } else { 0.0 },
                loads: if is_store { 0.0 } else { weight },
                stores: if is_store { weight } else { 0.0 },
            };
        }
    }
}

/// A row of the attribution, if there is one, and an instruction.
type Pair = (Option<usize>, Instruction);

impl Costs {
    /// Of a recording, or of a part of its time, of which `stage` is.
    pub fn new(opened: &Opened, stage: &Stage, selection: Option<(u64, u64)>) -> Self {
        let index = ObjectIndex::new(&opened.recording.tables.objects);
        let mut adder = CostAdder::new(opened, &index);
        let share = opened.for_each_batch(selection, |batch| adder.add(batch));
        let left_out = adder.left_out;
        // The attribution's rows may be several groups, which have patterns alike.
        let mut positions = FxHashMap::default();
        for (position, group) in stage.attribution.objects.iter().enumerate() {
            for &sample in &group.samples {
                if let Some(group) = index.group_of(sample) {
                    positions.entry(group).or_insert(position);
                }
            }
        }
        let mut merged: FxHashMap<Pair, Sums> = FxHashMap::default();
        for ((group, instruction), sums) in adder.sums {
            let position = positions.get(&group).copied();
            *merged.entry((position, instruction)).or_default() += sums;
        }
        let mut rows: Vec<(Pair, Sums)> = merged.into_iter().collect();
        rows.sort_by(|(a, one), (b, other)| {
            let by_cost = other.cost_ns.total_cmp(&one.cost_ns);
            by_cost.then_with(|| a.cmp(b))
        });
        Self::named(opened, rows, left_out, share)
    }

    fn named(opened: &Opened, rows: Vec<(Pair, Sums)>, left_out: u64, share: f64) -> Self {
        let mut places = vec![CodePlace {
            function: "(instructions that cost less)".to_owned(),
            ..CodePlace::default()
        }];
        let mut known: FxHashMap<Instruction, usize> = FxHashMap::default();
        let mut numbers: FxHashMap<CodePlace, usize> = FxHashMap::default();
        let rows = rows.into_iter().map(|((object, instruction), sums)| {
            let may_be_looked_up = known.len() < LOOKED_UP_MAX;
            let place = match known.get(&instruction) {
                Some(&place) => place,
                None if may_be_looked_up => {
                    let found = opened.functions.code_place(instruction);
                    let place = *numbers.entry(found).or_insert_with_key(|found| {
                        places.push(found.clone());
                        places.len() - 1
                    });
                    known.insert(instruction, place);
                    place
                }
                None => 0,
            };
            CostRow {
                object,
                instruction,
                place,
                sums,
            }
        });
        Self {
            rows: rows.collect(),
            places,
            left_out,
            share,
        }
    }
}
