//! Patterns: who uses which part of an object.

use std::cell::OnceCell;
use std::ops::Range;

use nearpage_recording::ThreadIndex;

use rustc_hash::FxHashMap;

pub(crate) use crate::effort::Effort;
use crate::{
    Affinity, Cell, ObjectGroup, Team,
    in_turn::{ObjectCells, one_then_shares},
    ownership::{Fit, Ownership},
    parts::has_parts,
    period::best_cyclic,
    pieces::segments_of_pieces,
    rule::{TEAM_SHARE, best_rule},
    segments::{Anywhere, Counts, Segment, anywhere},
    tiles::RowShare,
};

/// Which threads use which parts of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Too few accesses to find a pattern.
    Unknown,
    /// One thread uses the whole object.
    Private {
        /// The thread that uses the object.
        thread: ThreadIndex,
    },
    /// Several instances, each used by one thread ([`crate::ObjectGroup::uses`]).
    PrivateEach,
    /// Several instances, of which consecutive runs belong to threads, in order of creation. The segments' pages are
    /// numbers of objects, counted from the first used object.
    PrivateRuns(Vec<Segment>),
    /// A contiguous share for each thread of a team, in order of the team.
    Block {
        /// Position of the team in [`crate::Attribution::teams`].
        team: usize,
        /// Size of one thread's share in bytes.
        block_bytes: u64,
    },
    /// A block distribution over a part of the object. The remainder of the object has almost no accesses.
    PartialBlock {
        /// Position of the team in [`crate::Attribution::teams`].
        team: usize,
        /// Size of one thread's share in bytes.
        block_bytes: u64,
        /// Range of the part within the object, in bytes.
        part_bytes: Range<u64>,
    },
    /// Pieces dealt to the threads of a team in order, repeatedly.
    BlockCyclic {
        /// Position of the team in [`crate::Attribution::teams`].
        team: usize,
        /// Size of one piece in bytes.
        block_bytes: u64,
        /// Period of the pattern in bytes: the piece × the team's size.
        period_bytes: u64,
    },
    /// Tiles of a two-dimensional array: rows are split into shares, and the columns of each share are dealt to
    /// threads.
    Tiles {
        /// Bytes of a row that belong to one tile.
        block_bytes: u64,
        /// Shares of the rows, in ascending order.
        shares: Vec<RowShare>,
    },
    /// Two patterns in turn: rows in one phase and columns in another, or all by one thread and then a share by each
    /// thread. The coarser pattern comes first.
    InTurn(Box<[Pattern; 2]>),
    /// All threads access all parts, with stores.
    Shared,
    /// All threads access all parts, with loads only.
    ReadShared,
    /// Contiguous parts, each used mostly by one thread, in no regular order.
    Segments(Vec<Segment>),
    /// Parts belong to threads, but no rule fits. A plan needs explicit runs of pages.
    Mixed,
}

impl Pattern {
    /// Whether all threads use all of the object, so that no part has an owner.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared | Self::ReadShared)
    }
}

/// Smallest number of samples for a pattern.
const SAMPLES_MIN: f64 = 8.0;
/// A thread with this share of the accesses has the object to itself.
const PRIVATE_SHARE: f64 = 0.97;
/// A thread with this share has the object to itself if the other accesses do not belong to parts of the object.
const MOSTLY_PRIVATE_SHARE: f64 = 0.85;
/// Smallest skill ([`Fit::skill`]) of an accepted rule: it explains half of the accesses that chance does not.
pub(crate) const SKILL_MIN: f64 = 0.5;
/// Largest difference in skill that counts as a tie, so that the rule with fewer boundaries wins.
pub(crate) const SKILL_TIE: f64 = 0.02;
/// Smallest evidence against chance, in nats. At 10, e^-10 is one false pattern in 20,000 objects.
pub(crate) const EVIDENCE_MIN: f64 = 10.0;
/// Largest share of stores of an object that counts as read-only, as sampling misjudges a few accesses.
const STORES_READ_ONLY: f64 = 0.01;

/// Smallest share of a segment's accesses by its user for the user to own the segment.
pub(crate) const OWNER_SHARE: f64 = 0.5;
/// Segments must beat a rule by this skill, as only rules carry over to other sizes and teams.
pub(crate) const SEGMENTS_SKILL_MARGIN: f64 = 0.05;
/// Skill from which no second rule is searched beside a rule.
pub(crate) const SINGLE_RULE_SKILL: f64 = 0.8;
/// Largest number of segments (of pages or of instances) that counts as a pattern.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// Finds the pattern of an object of `size_bytes`.
///
/// The initialisation counts only for objects without later accesses. Block and block-cyclic are the same rule: pieces
/// dealt to the threads of a team in order. The rule is accepted if it explains significantly more accesses than
/// chance, at least half of the others. Stray accesses, boundary pages shared by neighbours and unsampled threads
/// therefore do no harm. The piece size comes from the frequency at which thread numbers repeat along the object (a
/// Fourier transform, n log n in the pages), refined to the boundaries.
pub fn find_pattern(affinity: &Affinity, size_bytes: u64, teams: &[Team]) -> Pattern {
    pattern_by(affinity, size_bytes, teams, Effort::Recording)
}

/// Whether half of an object's samples may show pieces that go round the threads: only if all samples show at least a
/// weak sign of them.
pub(crate) fn may_repeat(group: &ObjectGroup, teams: &[Team]) -> bool {
    match group.pattern {
        Pattern::BlockCyclic { .. } | Pattern::Tiles { .. } | Pattern::InTurn(_) => return true,
        _ if group.affinity.pages < 2 => return false,
        _ => {}
    }
    let (cells, affinity) = (group.affinity.pattern_cells(), &group.affinity);
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

/// Finds a pattern with more or less effort; see [`find_pattern`].
pub(crate) fn pattern_by(
    affinity: &Affinity,
    size_bytes: u64,
    teams: &[Team],
    effort: Effort,
) -> Pattern {
    let cells = affinity.pattern_cells();
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
        let explains_little = rule
            .as_ref()
            .is_none_or(|found| found.1 < SINGLE_RULE_SKILL);
        let place = ObjectCells {
            cells,
            page_bytes: affinity.page_bytes,
            size_bytes,
        };
        match rule {
            // No segments can be more skilful by [`SEGMENTS_SKILL_MARGIN`].
            Some((pattern, skill)) if skill + SEGMENTS_SKILL_MARGIN >= 1.0 => return pattern,
            Some((pattern @ Pattern::InTurn(_), _)) => return pattern,
            rule => {
                let owned = owned_segments(cut, affinity.pages, all, most / all);
                // If segments with single owners explain the accesses, there is no second pattern.
                let is_owned = owned.as_ref().is_some_and(|one| one.1 >= SINGLE_RULE_SKILL);
                if explains_little
                    && !is_owned
                    && let Some(pattern) = one_then_shares(place, teams, first, effort)
                {
                    return pattern;
                }
                match (rule, owned) {
                    (Some((_, skill)), Some((segments, clearer)))
                        if clearer > skill + SEGMENTS_SKILL_MARGIN =>
                    {
                        return Pattern::Segments(segments);
                    }
                    (Some((pattern, _)), _) => return pattern,
                    (None, Some((segments, _))) => return Pattern::Segments(segments),
                    (None, None) => {}
                }
            }
        }
        if has_parts(cells, all, most / all, effort) {
            return Pattern::Mixed;
        }
    }
    if most >= MOSTLY_PRIVATE_SHARE * all {
        return Pattern::Private { thread: first };
    }
    let stores: f64 = cells.iter().map(|cell| f64::from(cell.stores)).sum();
    let accesses: f64 = cells.iter().map(Cell::accesses).sum();
    if stores <= STORES_READ_ONLY * accesses {
        Pattern::ReadShared
    } else {
        Pattern::Shared
    }
}

/// Cells with their segments, which are searched only on demand: the search costs more than most rules.
pub(crate) struct Cut<'a> {
    pub cells: &'a [Cell],
    pub effort: Effort,
    /// None where there are no samples.
    found: OnceCell<Option<(Counts<'a>, Anywhere)>>,
}

impl<'a> Cut<'a> {
    fn new(cells: &'a [Cell], effort: Effort) -> Self {
        Self {
            cells,
            effort,
            found: OnceCell::new(),
        }
    }

    fn found(&self) -> Option<&(Counts<'a>, Anywhere)> {
        let find = || {
            let counts = Counts::new(self.cells)?;
            let found = anywhere(&counts, self.effort);
            Some((counts, found))
        };
        self.found.get_or_init(find).as_ref()
    }

    /// Segments that may begin at any page.
    pub fn segments(&self) -> &[Segment] {
        self.found().map_or(&[], |(_, found)| &found.segments)
    }

    /// Segments of whole pieces of an object with `pages` pages if they fit, else segments that may begin anywhere.
    /// Also returns the number of parameters that were fitted to the samples.
    fn into_segments(self, pages: u32) -> (Vec<Segment>, usize) {
        self.found();
        let Some((counts, found)) = self.found.into_inner().flatten() else {
            return (Vec::new(), 0);
        };
        match segments_of_pieces(&counts, pages, found.evidence, self.effort) {
            // Parameters: the piece size, and each segment's owner.
            Some(segments) => {
                let chosen = segments.len() + 1;
                (segments, chosen)
            }
            // Parameters: each segment's owner and beginning.
            None => {
                let chosen = 2 * found.segments.len();
                (found.segments, chosen)
            }
        }
    }
}

/// The object's segments and their skill. None if their users explain the accesses not clearly better than the thread
/// with the largest share (`most`), or if there are more than [`SEGMENTS_MAX`].
fn owned_segments(cut: Cut, pages: u32, samples: f64, most: f64) -> Option<(Vec<Segment>, f64)> {
    let effort = cut.effort;
    let (found, chosen) = cut.into_segments(pages);
    let owned: f64 = found.iter().map(|one| one.samples * one.share).sum();
    let fit = Fit {
        explained: ((owned - chosen as f64) / samples).clamp(0.0, 1.0),
        chance: most,
    };
    let is_clear =
        fit.skill() >= SKILL_MIN && samples * fit.divergence() >= effort.enough(EVIDENCE_MIN);
    (is_clear && (2..=SEGMENTS_MAX).contains(&found.len())).then(|| {
        let skill = fit.skill();
        (found, skill)
    })
}

#[cfg(test)]
pub(crate) mod tests;
