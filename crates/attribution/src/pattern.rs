//! Patterns: who uses which part of an object.

use std::cell::OnceCell;
use std::ops::Range;

use nearpage_recording::ThreadIndex;

use rustc_hash::FxHashMap;

pub(crate) use crate::effort::Effort;
use crate::{
    Affinity, Cell, ObjectGroup, Team,
    ownership::{Fit, Ownership, divergence},
    parts::has_parts,
    period::{best_cyclic, refine},
    segments::{Segment, segments},
    tiles::{RowShare, best_tiles},
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
    /// Several instances, each used by one thread: see [`crate::ObjectGroup::uses`].
    PrivateEach,
    /// Several instances, runs of which belong to threads in the order in which they were made: pages of segments are
    /// numbers of objects, from the first that was used on.
    PrivateRuns(Vec<Segment>),
    /// Each thread of a team its own contiguous share, in order of the team.
    Block {
        /// Position in [`crate::Attribution::teams`].
        team: usize,
        /// Bytes of one thread's share.
        block_bytes: u64,
    },
    /// The same of a part of the object; what is outside it has no accesses to speak of.
    PartialBlock {
        /// Position in [`crate::Attribution::teams`].
        team: usize,
        /// Bytes of one thread's share.
        block_bytes: u64,
        /// Offsets of the part, in bytes.
        part_bytes: Range<u64>,
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
    /// Rows in shares, of each of which the columns are dealt to some threads: tiles of a two-dimensional array.
    Tiles {
        /// Bytes of a tile's part of a row.
        block_bytes: u64,
        /// Shares of the rows, ascending.
        shares: Vec<RowShare>,
    },
    /// All threads everywhere, with stores.
    Shared,
    /// All threads everywhere, loads only.
    ReadShared,
    /// Contiguous parts, each mostly of one thread, in no order that a rule says.
    Segments(Vec<Segment>),
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
pub(crate) const SKILL_MIN: f64 = 0.5;
/// Skill of a whole-object block that no search for smaller pieces could better by much.
const SKILL_CLEAR: f64 = 0.97;
/// A smaller skill is as good as the best one where it has fewer boundaries.
pub(crate) const SKILL_TIE: f64 = 0.02;
/// Evidence against chance, in nats: e^-10 is one false pattern in 20,000 objects.
pub(crate) const EVIDENCE_MIN: f64 = 10.0;
/// Stores of an object that counts as read-only: sampling mistakes one now and then.
const STORES_READ_ONLY: f64 = 0.01;

/// A segment's user with this share of its accesses owns it.
pub(crate) const OWNER_SHARE: f64 = 0.5;
/// A rule gives way to segments that are by so much more skilful: rules carry over to other sizes and teams.
const CLEARER: f64 = 0.05;
/// More segments than this, of pages or of instances, are no pattern that anybody could follow.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// Finds the pattern of an object of `size_bytes`.
///
/// The initialisation is left out, but for objects that know nothing else. Block and block-cyclic
/// are the same rule, pieces dealt to the threads of a team in order; it is accepted where the
/// share of accesses that it explains is well above what chance would (half of the rest, and
/// significant), so that stray accesses, a boundary page shared by neighbours and threads that were
/// not seen do no harm. The size of the pieces comes from the frequency at which thread numbers
/// repeat along the object (a Fourier transform, n log n in the pages), refined to the boundaries.
pub fn find_pattern(affinity: &Affinity, size_bytes: u64, teams: &[Team]) -> Pattern {
    pattern_by(affinity, size_bytes, teams, Effort::Recording)
}

/// May pieces that go round threads be found in half of an object's samples? Not where all of them show next to nothing.
pub(crate) fn may_repeat(group: &ObjectGroup, teams: &[Team]) -> bool {
    match group.pattern {
        Pattern::BlockCyclic { .. } | Pattern::Tiles { .. } => return true,
        _ if group.affinity.pages < 2 => return false,
        _ => {}
    }
    let (cells, affinity) = (group.affinity.told_by(), &group.affinity);
    let samples = TEAM_SHARE * group.sample_count() as f64;
    let repeats = |team: &Team| {
        let own = Ownership::new(cells, team, affinity.page_bytes, group.size_bytes);
        let (page, size) = (affinity.page_bytes as f64, group.size_bytes as f64);
        own.samples >= samples
            && own.active() > 1
            && best_cyclic(&own, page, size, Effort::Recording)
                .is_some_and(|block| own.fit(block).skill() >= SKILL_MIN / 2.0)
    };
    teams.iter().any(repeats)
}

/// [`find_pattern`] with more or less effort.
pub(crate) fn pattern_by(
    affinity: &Affinity,
    size_bytes: u64,
    teams: &[Team],
    effort: Effort,
) -> Pattern {
    let cells = affinity.told_by();
    let count = |cell: &Cell| f64::from(cell.samples);
    let all: f64 = cells.iter().map(count).sum();
    let mut by_thread: FxHashMap<ThreadIndex, f64> = FxHashMap::default();
    for cell in cells {
        *by_thread.entry(cell.thread).or_default() += count(cell);
    }
    let mut threads: Vec<(ThreadIndex, f64)> = by_thread.into_iter().collect();
    threads.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let Some(&(first, most)) = threads
        .first()
        .filter(|_| all >= effort.enough(SAMPLES_MIN))
    else {
        return Pattern::Unknown;
    };
    if most >= PRIVATE_SHARE * all {
        return Pattern::Private { thread: first };
    }

    if affinity.pages > 1 {
        let cut = Cut::new(cells, effort);
        let rule = best_rule(affinity, &cut, size_bytes, teams, all);
        match rule {
            // No segments are so much more skilful.
            Some((pattern, skill)) if skill + CLEARER >= 1.0 => return pattern,
            rule => match (
                rule,
                owned_segments(cut.into_segments(), all, most / all, effort),
            ) {
                (Some((_, skill)), Some((segments, clearer))) if clearer > skill + CLEARER => {
                    return Pattern::Segments(segments);
                }
                (Some((pattern, _)), _) => return pattern,
                (None, Some((segments, _))) => return Pattern::Segments(segments),
                (None, None) => {}
            },
        }
        if has_parts(cells, all, most / all, effort) {
            return Pattern::Mixed;
        }
    }
    let stores: f64 = cells.iter().map(|cell| f64::from(cell.stores)).sum();
    let accesses: f64 = cells.iter().map(Cell::accesses).sum();
    if stores <= STORES_READ_ONLY * accesses {
        Pattern::ReadShared
    } else {
        Pattern::Shared
    }
}

/// Cells, cut into segments once somebody asks: the search for the cuts costs more than most rules do.
struct Cut<'a> {
    cells: &'a [Cell],
    effort: Effort,
    segments: OnceCell<Vec<Segment>>,
}

impl<'a> Cut<'a> {
    fn new(cells: &'a [Cell], effort: Effort) -> Self {
        Self {
            cells,
            effort,
            segments: OnceCell::new(),
        }
    }

    fn segments(&self) -> &[Segment] {
        self.segments
            .get_or_init(|| segments(self.cells, self.effort))
    }

    fn into_segments(self) -> Vec<Segment> {
        self.segments();
        self.segments.into_inner().unwrap_or_default()
    }
}

/// Block, block-cyclic or tiles over the team that accesses the object most, or over the main thread and that team, and
/// the skill.
fn best_rule(
    affinity: &Affinity,
    cut: &Cut,
    size_bytes: u64,
    teams: &[Team],
    all: f64,
) -> Option<(Pattern, f64)> {
    // The skill is that of all accesses, those of others than the team too.
    let best = |ownership: &Ownership, number: usize, team: &Team| {
        let rule = Rule {
            affinity,
            cut,
            size_bytes,
            ownership,
        };
        let (pattern, skill) = rule.best(number, team)?;
        Some((pattern, skill * ownership.samples / all))
    };
    let covers =
        |ownership: &Ownership| ownership.samples >= TEAM_SHARE * all && ownership.active() > 1;
    let of_most = |joined: bool| {
        let own = |team: &Team| Ownership::new(cut.cells, team, affinity.page_bytes, size_bytes);
        let numbered = teams.iter().enumerate();
        let found = numbered
            .filter(|(_, team)| team.is_joined == joined && team.threads.len() > 1)
            .map(|(number, team)| (number, own(team)))
            .filter(|(_, ownership)| covers(ownership))
            .max_by(|(a, left), (b, right)| left.samples.total_cmp(&right.samples).then(b.cmp(a)));
        found.and_then(|(team, ownership)| best(&ownership, team, &teams[team]))
    };
    let by_team = of_most(false);
    if by_team.as_ref().is_some_and(|one| one.1 >= SKILL_CLEAR) {
        return by_team;
    }
    let by_joined = of_most(true);
    match (by_team, by_joined) {
        (Some(team), Some(joined)) if joined.1 > team.1 + CLEARER => Some(joined),
        (Some(team), _) => Some(team),
        (None, joined) => joined,
    }
}

/// What a rule is looked for in.
struct Rule<'a> {
    affinity: &'a Affinity,
    cut: &'a Cut<'a>,
    size_bytes: u64,
    ownership: &'a Ownership,
}

impl Rule<'_> {
    /// The best rule over a team, which patterns name by `team`, and its skill.
    fn best(&self, team: usize, threads: &Team) -> Option<(Pattern, f64)> {
        let Self {
            affinity,
            cut,
            size_bytes,
            ownership,
        } = *self;
        let size = size_bytes as f64;
        let members = ownership.team() as f64;
        let significant = |fit: &Fit| {
            fit.skill() >= SKILL_MIN
                && ownership.samples * fit.divergence() >= cut.effort.enough(EVIDENCE_MIN)
        };

        // The whole object in shares; pages are the limit of what can be told.
        let block = size / members;
        let block_fit = ownership.fit(block);
        let found = Pattern::Block {
            team,
            block_bytes: size_bytes.div_ceil(ownership.team() as u64),
        };
        if significant(&block_fit) && block_fit.skill() >= SKILL_CLEAR {
            return Some((found, block_fit.skill()));
        }
        if let Some(partial) = best_partial(ownership, cut.segments(), affinity.page_bytes)
            && significant(&partial.fit)
            && partial.fit.skill() > block_fit.skill() + SKILL_TIE
        {
            return Some((partial.pattern(team, size_bytes), partial.fit.skill()));
        }
        let cyclic = best_cyclic(ownership, affinity.page_bytes as f64, size, cut.effort)
            .map(|block| (block, ownership.fit(block)))
            .filter(|(block, fit)| {
                significant(fit) && pieces_are_owned(ownership, *block, cut.effort)
            });
        if significant(&block_fit)
            && cyclic.is_none_or(|(_, fit)| fit.skill() <= block_fit.skill() + SKILL_TIE)
        {
            return Some((found, block_fit.skill()));
        }
        let Some((block, fit)) = cyclic else {
            let tiles = best_tiles(affinity, cut.cells, cut.segments(), threads, cut.effort)?;
            let skill = tiles.fit.skill();
            let pattern = Pattern::Tiles {
                block_bytes: tiles.block_bytes.round() as u64,
                shares: tiles.shares,
            };
            return significant(&tiles.fit).then_some((pattern, skill));
        };
        let block_bytes = block.round() as u64;
        let period_bytes = block_bytes.saturating_mul(ownership.team() as u64);
        if period_bytes >= size_bytes {
            // Each thread's turn comes once.
            let pattern = Pattern::PartialBlock {
                team,
                block_bytes,
                part_bytes: 0..size_bytes,
            };
            return Some((pattern, fit.skill()));
        }
        let pattern = Pattern::BlockCyclic {
            team,
            block_bytes,
            period_bytes,
        };
        Some((pattern, fit.skill()))
    }
}

/// A block distribution over a part of an object.
struct Partial {
    start_bytes: f64,
    block_bytes: f64,
    end_bytes: f64,
    fit: Fit,
}

impl Partial {
    fn pattern(&self, team: usize, size_bytes: u64) -> Pattern {
        let end_bytes = (self.end_bytes.round() as u64).min(size_bytes);
        Pattern::PartialBlock {
            team,
            block_bytes: self.block_bytes.round() as u64,
            part_bytes: (self.start_bytes.round() as u64).min(end_bytes)..end_bytes,
        }
    }
}

/// Where the object's segments are the team's in order, one each, the equal shares that explain them best: of all from
/// the object's beginning, where those do as well, else of what is used.
fn best_partial(ownership: &Ownership, segments: &[Segment], page_bytes: u64) -> Option<Partial> {
    let mut owned: Vec<(usize, &Segment, &Segment)> = Vec::new();
    for segment in segments.iter().filter(|one| one.share >= OWNER_SHARE) {
        let member = ownership.member(segment.user)?;
        match owned.last_mut() {
            Some(last) if last.0 == member => last.2 = segment,
            _ => owned.push((member, segment, segment)),
        }
    }
    let team = ownership.team();
    if !owned.iter().map(|one| one.0).eq(0..team) {
        return None;
    }
    let page = page_bytes as f64;
    let first_bytes = f64::from(owned[0].1.first_page) * page;
    let end_bytes = (f64::from(owned[team - 1].2.last_page) + 1.0) * page;
    // Between the last page that one is seen on and the first of the next.
    let boundary = |pair: &[(usize, &Segment, &Segment)]| {
        0.5 * page * (f64::from(pair[0].2.last_page) + 1.0 + f64::from(pair[1].1.first_page))
    };
    let boundaries: Vec<f64> = owned.windows(2).map(boundary).collect();
    let (mut sum, mut squares) = (0.0, 0.0);
    for (number, boundary) in boundaries.iter().enumerate() {
        sum += boundary * (number + 1) as f64;
        squares += ((number + 1) * (number + 1)) as f64;
    }
    let shares = team as f64;
    let (from_start, _) = refine(ownership, (sum / squares).max(page), page, 0.0);
    let of_used = (end_bytes - first_bytes) / shares;
    let mut candidates = vec![(0.0, from_start), (first_bytes, of_used)];
    if let [second, .., last] = boundaries[..] {
        let block = (last - second) / (shares - 2.0);
        candidates.push(((second - block).max(0.0), block));
    }
    let mut best: Option<Partial> = None;
    for (start_bytes, block_bytes) in candidates {
        let fit = ownership.fit_from(start_bytes, block_bytes);
        // The last share may be smaller, but is one.
        let is_one_round = start_bytes + shares * block_bytes > end_bytes - page;
        let known = best.as_ref().map_or(f64::MIN, |best| best.fit.skill());
        if is_one_round && fit.skill() > known + SKILL_TIE {
            best = Some(Partial {
                start_bytes,
                block_bytes,
                end_bytes: end_bytes.min(start_bytes + shares * block_bytes),
                fit,
            });
        }
    }
    best
}

/// The object's segments and their skill, where their users explain clearly more than the thread with the share
/// `most` of its accesses does, and few enough to be looked at.
fn owned_segments(
    found: Vec<Segment>,
    samples: f64,
    most: f64,
    effort: Effort,
) -> Option<(Vec<Segment>, f64)> {
    let owned: f64 = found.iter().map(|one| one.samples * one.share).sum();
    // Each segment's owner and beginning are chosen to suit its samples.
    let chosen = 2.0 * found.len() as f64;
    let fit = Fit {
        explained: ((owned - chosen) / samples).clamp(0.0, 1.0),
        chance: most,
    };
    let is_clear =
        fit.skill() >= SKILL_MIN && samples * fit.divergence() >= effort.enough(EVIDENCE_MIN);
    (is_clear && (2..=SEGMENTS_MAX).contains(&found.len())).then(|| {
        let skill = fit.skill();
        (found, skill)
    })
}

/// Are so many pieces their owner's that it can't be a coincidence, the search for the size of the
/// pieces included? Samples can't say that where pages belong to threads at random.
fn pieces_are_owned(ownership: &Ownership, block: f64, effort: Effort) -> bool {
    let (pieces, owned) = ownership.pieces(block);
    let chance = 1.0 / ownership.team() as f64;
    let tried = (ownership.end_page() as f64).ln();
    pieces > 0.0
        && owned > chance * pieces
        && pieces * divergence(owned / pieces, chance) >= effort.enough(tried + EVIDENCE_MIN / 2.0)
}

#[cfg(test)]
pub(crate) mod tests;
