//! Cost of accesses by object and instruction, which the flame graph and the source view use.

use std::ops::AddAssign;

use nearpage_recording::ModuleId;
use rustc_hash::FxHashMap;
use serde::Serialize;

use crate::functions::Instruction;
use crate::opened::{Opened, Stage};

/// Maximum number of instructions whose function and line are looked up, by cost.
const LOOKED_UP_MAX: usize = 1 << 14;

/// Cost of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sums {
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// Part of `cost_ns` that was lost to another node's memory.
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
    /// Is any sum at least this share of the corresponding sum of `whole`?
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

/// Place of an instruction in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct CodePlace {
    /// `None` for generated code.
    pub module: Option<ModuleId>,
    /// Innermost function; `(unknown)` without a name.
    pub function: String,
    /// File name in the debug information; empty without debug information.
    pub file: String,
    /// 0 if the line is not known.
    pub line: u32,
}

/// Cost of an instruction's accesses to an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CostRow {
    /// Position of the object in the attribution.
    pub object: usize,
    pub instruction: Instruction,
    /// Position in [`Costs::places`].
    pub place: usize,
    pub sums: Sums,
}

/// Costs by object and instruction.
#[derive(Debug)]
pub(crate) struct Costs {
    /// Rows by cost, in descending order.
    pub rows: Vec<CostRow>,
    pub places: Vec<CodePlace>,
    /// Accesses of instructions that were not counted separately, because there were too many instructions.
    pub left_out: u64,
    /// Share of the accesses that the figures represent, 0 to 1.
    pub share: f64,
}

/// Position of an object in the attribution, and an instruction.
type Pair = (usize, Instruction);

impl Costs {
    /// Costs of a recording, or of the selection of time that `stage` belongs to.
    pub fn new(opened: &Opened, stage: &Stage) -> Self {
        let mut rows: Vec<(Pair, Sums)> = Vec::new();
        let mut accesses = 0.0;
        for (position, code) in stage.code.iter().enumerate() {
            accesses += stage.attribution.objects[position].accesses();
            rows.extend(code.iter().map(|one| {
                let sums = Sums {
                    cost_ns: one.cost_ns,
                    remote_cost_ns: one.remote_cost_ns,
                    loads: one.loads,
                    stores: one.stores,
                };
                ((position, (one.module, one.offset)), sums)
            }));
        }
        rows.sort_by(|(a, one), (b, other)| {
            let by_cost = other.cost_ns.total_cmp(&one.cost_ns);
            by_cost.then_with(|| a.cmp(b))
        });
        let followed: f64 = rows.iter().map(|(_, sums)| sums.loads + sums.stores).sum();
        Self::named(
            opened,
            rows,
            (accesses - followed).max(0.0).round() as u64,
            stage.share,
        )
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
