//! Patterns: who uses which part of an object.

use nearpage_recording::ThreadIndex;

use rustc_hash::FxHashMap;

use crate::{
    Affinity, Cell, Team,
    ownership::{Fit, Ownership, divergence},
    parts::has_parts,
    period::best_cyclic,
};

/// Who uses which part of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Too few accesses to say.
    Unknown,
    /// One thread only.
    Private {
        /// Which.
        thread: ThreadIndex,
    },
    /// Several instances, each used by one thread: see [`crate::ObjectGroup::users`].
    PrivateEach,
    /// Each thread of a team its own contiguous share, in order of the team.
    Block {
        /// Position in [`crate::Attribution::teams`].
        team: usize,
        /// Bytes of one thread's share.
        block_bytes: u64,
    },
    /// Pieces dealt to the threads of a team in order, over and over.
    BlockCyclic {
        /// Position in [`crate::Attribution::teams`].
        team: usize,
        /// Bytes of one piece.
        block_bytes: u64,
        /// Bytes after which the pattern repeats: the piece × the team's size.
        period_bytes: u64,
    },
    /// All threads everywhere, with stores.
    Shared,
    /// All threads everywhere, loads only.
    ReadShared,
    /// Parts belong to threads, but no rule fits: explicit page runs.
    Mixed,
}

/// Accesses that a pattern is told from, at least.
const SAMPLES_MIN: f64 = 8.0;
/// A thread with this share of the accesses has the object to itself.
const PRIVATE_SHARE: f64 = 0.97;
/// Accesses that the threads of a team must have made for the team to explain the object.
const TEAM_SHARE: f64 = 0.7;
/// Skill ([`Fit::skill`]) from which a rule is taken for the pattern: half of what chance leaves.
const SKILL_MIN: f64 = 0.5;
/// Skill of a whole-object block that no search for smaller pieces could better by much.
const SKILL_CLEAR: f64 = 0.97;
/// A smaller skill is as good as the best one where it has fewer boundaries.
pub(crate) const SKILL_TIE: f64 = 0.02;
/// Evidence against chance, in nats: e^-10 is one false pattern in 20,000 objects.
pub(crate) const EVIDENCE_MIN: f64 = 10.0;
/// Stores of an object that counts as read-only: sampling mistakes one now and then.
const STORES_READ_ONLY: f64 = 0.01;

/// Finds the pattern of an object of `size_bytes`.
///
/// The initialisation is left out, but for objects that know nothing else. Block and block-cyclic
/// are the same rule, pieces dealt to the threads of a team in order; it is accepted where the
/// share of accesses that it explains is well above what chance would (half of the rest, and
/// significant), so that stray accesses, a boundary page shared by neighbours and threads that were
/// not seen do no harm. The size of the pieces comes from the frequency at which thread numbers
/// repeat along the object (a Fourier transform, n log n in the pages), refined to the boundaries.
pub fn find_pattern(affinity: &Affinity, size_bytes: u64, teams: &[Team]) -> Pattern {
    let cells = if affinity.cells.is_empty() {
        &affinity.initialisation
    } else {
        &affinity.cells
    };
    let count = |cell: &Cell| f64::from(cell.loads + cell.stores);
    // Hardware samples stand for many accesses; samples that share a weight still are one each.
    let unit = affinity.sample_weight.max(1.0);
    let all: f64 = cells.iter().map(count).sum();
    let mut by_thread: FxHashMap<ThreadIndex, f64> = FxHashMap::default();
    for cell in cells {
        *by_thread.entry(cell.thread).or_default() += count(cell);
    }
    let mut threads: Vec<(ThreadIndex, f64)> = by_thread.into_iter().collect();
    threads.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(&(first, most)) = threads.first().filter(|_| all / unit >= SAMPLES_MIN) else {
        return Pattern::Unknown;
    };
    if most >= PRIVATE_SHARE * all {
        return Pattern::Private { thread: first };
    }

    if affinity.pages > 1 {
        if let Some(pattern) = best_rule(affinity, cells, size_bytes, teams, unit, all) {
            return pattern;
        }
        if has_parts(cells, unit, all, most / all) {
            return Pattern::Mixed;
        }
    }
    let stores: f64 = cells.iter().map(|cell| f64::from(cell.stores)).sum();
    if stores <= STORES_READ_ONLY * all {
        Pattern::ReadShared
    } else {
        Pattern::Shared
    }
}

/// Block or block-cyclic over the team that accesses the object most.
fn best_rule(
    affinity: &Affinity,
    cells: &[Cell],
    size_bytes: u64,
    teams: &[Team],
    unit: f64,
    all: f64,
) -> Option<Pattern> {
    let (team, ownership) = teams
        .iter()
        .enumerate()
        .filter(|(_, team)| team.threads.len() > 1)
        .map(|(number, team)| {
            (
                number,
                Ownership::new(cells, team, affinity.page_bytes, size_bytes, unit),
            )
        })
        .filter(|(_, ownership)| {
            ownership.samples * unit >= TEAM_SHARE * all && ownership.active() > 1
        })
        .max_by(|(a, left), (b, right)| left.samples.total_cmp(&right.samples).then(b.cmp(a)))?;
    let size = size_bytes as f64;
    let members = ownership.team() as f64;
    let significant = |fit: &Fit| {
        fit.skill() >= SKILL_MIN && ownership.samples * fit.divergence() >= EVIDENCE_MIN
    };

    // The whole object in shares; pages are the limit of what can be told.
    let block = size / members;
    let block_fit = ownership.fit(block);
    let found = Pattern::Block {
        team,
        block_bytes: size_bytes.div_ceil(ownership.team() as u64),
    };
    if significant(&block_fit) && block_fit.skill() >= SKILL_CLEAR {
        return Some(found);
    }
    let cyclic = best_cyclic(&ownership, affinity.page_bytes as f64, size)
        .map(|block| (block, ownership.fit(block)))
        .filter(|(block, fit)| significant(fit) && pieces_are_owned(&ownership, *block));
    if significant(&block_fit)
        && cyclic.is_none_or(|(_, fit)| fit.skill() <= block_fit.skill() + SKILL_TIE)
    {
        return Some(found);
    }
    let block_bytes = cyclic?.0.round() as u64;
    Some(Pattern::BlockCyclic {
        team,
        block_bytes,
        period_bytes: block_bytes * ownership.team() as u64,
    })
}

/// Are so many pieces their owner's that it can't be a coincidence, the search for the size of the
/// pieces included? Samples can't say that where pages belong to threads at random.
fn pieces_are_owned(ownership: &Ownership, block: f64) -> bool {
    let (pieces, owned) = ownership.pieces(block);
    let chance = 1.0 / ownership.team() as f64;
    let tried = (ownership.end_page() as f64).ln();
    pieces > 0.0
        && owned > chance * pieces
        && pieces * divergence(owned / pieces, chance) >= tried + EVIDENCE_MIN / 2.0
}

#[cfg(test)]
mod tests;
