//! Objects that a program uses in two ways in turn: rows in one phase and columns in another; all of it by one thread,
//! then each thread its share.
//!
//! No rule explains more than about half of such accesses. What one rule leaves, another one explains: after the
//! accesses by the owners of columns are taken away, the rest are by the owners of rows.

use nearpage_recording::ThreadIndex;
use rustc_hash::FxHashMap;

use crate::{
    Cell, Pattern, Team,
    effort::Effort,
    ownership::{Fit, Ownership},
    pattern::EVIDENCE_MIN,
};

/// Share of the accesses that the first way leaves to the second at least: of two threads' rows and columns, a quarter.
const LEFT_MIN: f64 = 0.15;
/// Skill with which the second rule explains what the first one leaves, at least.
const SKILL_MIN: f64 = 0.7;
/// Share of the accesses that both rules together explain at least.
const EXPLAINED_MIN: f64 = 0.88;
/// Share of the accesses to others' parts by a thread that uses all of an object, at least.
const EVERYWHERE_MIN: f64 = 0.25;

/// A rule that has been found over a team: pieces of `block_bytes`, dealt to its threads in order.
#[derive(Clone, Copy)]
pub(crate) struct Dealt {
    pub block_bytes: f64,
}

/// Where an object's accesses are looked at.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub cells: &'a [Cell],
    pub page_bytes: u64,
    pub size_bytes: u64,
}

/// Does a block distribution of the whole object explain what pieces in order leave, or the other way round?
/// `other` finds the second rule in the accesses that the first one leaves.
pub(crate) fn two_rules(
    place: Place,
    team: &Team,
    first: Dealt,
    effort: Effort,
    other: impl FnOnce(&Ownership) -> Option<(Dealt, Fit)>,
) -> Option<Dealt> {
    let owner = Owners::new(place, team, first);
    let left: Vec<Cell> = place
        .cells
        .iter()
        .filter(|cell| !owner.has(cell))
        .copied()
        .collect();
    let all = samples(place.cells);
    let ownership = Ownership::new(&left, team, place.page_bytes, place.size_bytes);
    if ownership.samples < LEFT_MIN * all {
        return None;
    }
    let (second, fit) = other(&ownership)?;
    let explained = 1.0 - (samples(&left) - fit.explained * ownership.samples) / all;
    let is_clear = fit.skill() >= SKILL_MIN
        && ownership.samples * fit.divergence() >= effort.enough(EVIDENCE_MIN);
    (is_clear && explained >= EXPLAINED_MIN).then_some(second)
}

/// Who owns pages under a rule: a page that two pieces meet in has two owners.
struct Owners<'a> {
    team: &'a [ThreadIndex],
    page_bytes: f64,
    block_bytes: f64,
}

impl<'a> Owners<'a> {
    fn new(place: Place, team: &'a Team, rule: Dealt) -> Self {
        Self {
            team: &team.threads,
            page_bytes: place.page_bytes as f64,
            block_bytes: rule.block_bytes.max(1.0),
        }
    }

    fn of(&self, offset: f64) -> ThreadIndex {
        let piece = (offset / self.block_bytes) as u64;
        self.team[(piece % self.team.len() as u64) as usize]
    }

    fn has(&self, cell: &Cell) -> bool {
        let first = f64::from(cell.page) * self.page_bytes;
        // What merely touches the page does not count.
        [1.0 / 16.0, 0.5, 15.0 / 16.0]
            .iter()
            .any(|part| self.of(first + part * self.page_bytes) == cell.thread)
    }
}

/// One thread that uses all of an object, while each thread of a team has its share.
pub(crate) fn one_then_shares(
    place: Place,
    teams: &[Team],
    most: ThreadIndex,
    effort: Effort,
) -> Option<Pattern> {
    let others: Vec<Cell> = place
        .cells
        .iter()
        .filter(|cell| cell.thread != most)
        .copied()
        .collect();
    let all = samples(place.cells);
    let left = samples(&others);
    if left < LEFT_MIN * all {
        return None;
    }
    let found = teams.iter().enumerate().filter_map(|(number, team)| {
        // Of two threads, the other one alone has a share that it could have by any rule.
        let skill = skill_of_shares(place, team, &others, most, effort)?;
        Some((number, skill))
    });
    let (team, _) = found.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    let members = teams[team].threads.len() as u64;
    let block_bytes = place.size_bytes.div_ceil(members);
    let patterns = [
        Pattern::Private { thread: most },
        Pattern::Block { team, block_bytes },
    ];
    Some(Pattern::InTurn(Box::new(patterns)))
}

/// How much better equal shares explain the accesses of all threads but one than that one's, which are everywhere, would.
fn skill_of_shares(
    place: Place,
    team: &Team,
    others: &[Cell],
    most: ThreadIndex,
    effort: Effort,
) -> Option<f64> {
    let members = team.threads.len();
    if members < 2 || place.size_bytes < members as u64 * place.page_bytes {
        return None;
    }
    let block_bytes = place.size_bytes as f64 / members as f64;
    let owners = Owners::new(place, team, Dealt { block_bytes });
    // Where the one thread is.
    let mut here: FxHashMap<ThreadIndex, f64> = FxHashMap::default();
    let (mut ones, mut elsewhere) = (0.0, 0.0);
    for cell in place.cells.iter().filter(|cell| cell.thread == most) {
        let offset = (f64::from(cell.page) + 0.5) * place.page_bytes as f64;
        let owner = owners.of(offset.min(place.size_bytes as f64 - 1.0));
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
    // The one thread is in every share.
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
