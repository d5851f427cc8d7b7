//! Objects that a program uses in two ways in turn: by rows in one phase and by columns in another; or all of it by
//! one thread, then a share by each thread.
//!
//! One rule explains only about half of such accesses, and a second rule explains the remaining ones. Without the
//! accesses by the owners of columns, for example, only those by the owners of rows are left.

use nearpage_recording::ThreadIndex;
use rustc_hash::FxHashMap;

use crate::{
    Cell, Pattern, Team,
    effort::Effort,
    ownership::{Fit, Ownership},
    pattern::EVIDENCE_MIN,
};

/// Smallest share of the accesses that the first rule may leave to the second. Two threads' rows and columns leave a
/// quarter.
const LEFT_MIN: f64 = 0.15;
/// Smallest skill of the second rule on the accesses that the first rule leaves.
const SKILL_MIN: f64 = 0.7;
/// Smallest share of the accesses that both rules explain together.
const EXPLAINED_MIN: f64 = 0.88;
/// For one thread that uses all of an object: smallest share of its accesses among those outside its own part.
const EVERYWHERE_MIN: f64 = 0.25;

/// A rule: pieces of `block_bytes`, dealt to a team's threads in order.
#[derive(Clone, Copy)]
pub(crate) struct BlockRule {
    pub block_bytes: f64,
}

/// The object and its cells.
#[derive(Clone, Copy)]
pub(crate) struct ObjectCells<'a> {
    pub cells: &'a [Cell],
    pub page_bytes: u64,
    pub size_bytes: u64,
}

/// Finds a second rule beside `first`: a block distribution beside dealt pieces, or the reverse. `other` searches the
/// accesses that the first rule leaves.
pub(crate) fn two_rules(
    object: ObjectCells,
    team: &Team,
    first: BlockRule,
    effort: Effort,
    other: impl FnOnce(&Ownership) -> Option<(BlockRule, Fit)>,
) -> Option<BlockRule> {
    let owner = Owners::new(object, team, first);
    let left: Vec<Cell> = object
        .cells
        .iter()
        .filter(|cell| !owner.has(cell))
        .copied()
        .collect();
    let all = samples(object.cells);
    let ownership = Ownership::new(&left, team, object.page_bytes, object.size_bytes);
    if ownership.samples < LEFT_MIN * all {
        return None;
    }
    let (second, fit) = other(&ownership)?;
    let explained = 1.0 - (samples(&left) - fit.explained * ownership.samples) / all;
    let is_clear = fit.skill() >= SKILL_MIN
        && ownership.samples * fit.divergence() >= effort.enough(EVIDENCE_MIN);
    (is_clear && explained >= EXPLAINED_MIN).then_some(second)
}

/// Owners of pages under a rule. A page where two pieces meet has two owners.
struct Owners<'a> {
    team: &'a [ThreadIndex],
    page_bytes: f64,
    block_bytes: f64,
}

impl<'a> Owners<'a> {
    fn new(object: ObjectCells, team: &'a Team, rule: BlockRule) -> Self {
        Self {
            team: &team.threads,
            page_bytes: object.page_bytes as f64,
            block_bytes: rule.block_bytes.max(1.0),
        }
    }

    fn of(&self, offset: f64) -> ThreadIndex {
        let piece = (offset / self.block_bytes) as u64;
        self.team[(piece % self.team.len() as u64) as usize]
    }

    fn has(&self, cell: &Cell) -> bool {
        let first = f64::from(cell.page) * self.page_bytes;
        // A piece that covers less than 1/16 of the page at its edge does not count.
        [1.0 / 16.0, 0.5, 15.0 / 16.0]
            .iter()
            .any(|part| self.of(first + part * self.page_bytes) == cell.thread)
    }
}

/// Finds the pattern of one thread that uses all of an object while each thread of a team has a share.
pub(crate) fn one_then_shares(
    object: ObjectCells,
    teams: &[Team],
    most: ThreadIndex,
    effort: Effort,
) -> Option<Pattern> {
    let others: Vec<Cell> = object
        .cells
        .iter()
        .filter(|cell| cell.thread != most)
        .copied()
        .collect();
    let all = samples(object.cells);
    let left = samples(&others);
    if left < LEFT_MIN * all {
        return None;
    }
    let found = teams.iter().enumerate().filter_map(|(number, team)| {
        let skill = skill_of_shares(object, team, &others, most, effort)?;
        Some((number, skill))
    });
    let (team, _) = found.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    let members = teams[team].threads.len() as u64;
    let block_bytes = object.size_bytes.div_ceil(members);
    let patterns = [
        Pattern::Private { thread: most },
        Pattern::Block { team, block_bytes },
    ];
    Some(Pattern::InTurn(Box::new(patterns)))
}

/// Skill with which equal shares explain the accesses of all threads except `most`. The chance level is the accesses
/// of `most`, which must be in every share.
fn skill_of_shares(
    object: ObjectCells,
    team: &Team,
    others: &[Cell],
    most: ThreadIndex,
    effort: Effort,
) -> Option<f64> {
    let members = team.threads.len();
    if members < 2 || object.size_bytes < members as u64 * object.page_bytes {
        return None;
    }
    let block_bytes = object.size_bytes as f64 / members as f64;
    let owners = Owners::new(object, team, BlockRule { block_bytes });
    // Samples of `most` by the owner of the share that they are in.
    let mut here: FxHashMap<ThreadIndex, f64> = FxHashMap::default();
    let (mut ones, mut elsewhere) = (0.0, 0.0);
    for cell in object.cells.iter().filter(|cell| cell.thread == most) {
        let offset = (f64::from(cell.page) + 0.5) * object.page_bytes as f64;
        let owner = owners.of(offset.min(object.size_bytes as f64 - 1.0));
        *here.entry(owner).or_default() += f64::from(cell.samples);
        ones += f64::from(cell.samples);
        if owner != most {
            elsewhere += f64::from(cell.samples);
        }
    }
    let left = samples(others);
    if ones <= 0.0 || elsewhere < EVERYWHERE_MIN * (elsewhere + left) {
        return None;
    }
    let mut fit = Fit::default();
    for cell in others {
        let part = f64::from(cell.samples) / left;
        fit.explained += if owners.has(cell) { part } else { 0.0 };
        fit.chance += part * here.get(&cell.thread).copied().unwrap_or(0.0) / ones;
    }
    // `most` must use every share, at a quarter of the mean or more.
    let shares = team.threads.iter().filter(|&&thread| {
        let share = here.get(&thread).copied().unwrap_or(0.0) / ones;
        share >= 0.25 / members as f64
    });
    let is_everywhere = shares.count() == members;
    let is_clear =
        fit.skill() >= SKILL_MIN && left * fit.divergence() >= effort.enough(EVIDENCE_MIN);
    (is_everywhere && is_clear).then(|| fit.skill())
}

fn samples(cells: &[Cell]) -> f64 {
    cells.iter().map(|cell| f64::from(cell.samples)).sum()
}
