//! Patterns: who uses which part of an object.

use std::cell::OnceCell;
use std::ops::Range;

use nearpage_recording::ThreadIndex;

use rustc_hash::FxHashMap;

pub(crate) use crate::effort::Effort;
use crate::{
    Affinity, Cell, ObjectGroup, Team,
    in_turn::{Place, one_then_shares},
    ownership::{Fit, Ownership},
    parts::has_parts,
    period::best_cyclic,
    pieces::segments_of_pieces,
    rule::{TEAM_SHARE, best_rule},
    segments::{Anywhere, Counts, Segment, anywhere},
    tiles::RowShare,
};

/// Who uses which part of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Pattern {
    /// Too few accesses to say.
    Unknown,
    /// One thread only.
    Private {
        /// The one that uses it.
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
    /// Two patterns in turn, none of which explains the accesses of the other: rows by one phase, columns by another; all
    /// of it by one thread, then a share by each. The coarser one is first.
    InTurn(Box<[Pattern; 2]>),
    /// All threads everywhere, with stores.
    Shared,
    /// All threads everywhere, loads only.
    ReadShared,
    /// Contiguous parts, each mostly of one thread, in no order that a rule says.
    Segments(Vec<Segment>),
    /// Parts belong to threads, but no rule fits: explicit page runs.
    Mixed,
}

impl Pattern {
    /// Do all threads use all of it, so that no part has an owner?
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Shared | Self::ReadShared)
    }
}

/// Accesses that a pattern is told from, at least.
const SAMPLES_MIN: f64 = 8.0;
/// A thread with this share of the accesses has the object to itself.
const PRIVATE_SHARE: f64 = 0.97;
/// A thread with this share has it to itself but for strays, where these are no part of the object.
const MOSTLY_PRIVATE_SHARE: f64 = 0.85;
/// Skill ([`Fit::skill`]) from which a rule is taken for the pattern: half of what chance leaves.
pub(crate) const SKILL_MIN: f64 = 0.5;
/// A smaller skill is as good as the best one where it has fewer boundaries.
pub(crate) const SKILL_TIE: f64 = 0.02;
/// Evidence against chance, in nats: e^-10 is one false pattern in 20,000 objects.
pub(crate) const EVIDENCE_MIN: f64 = 10.0;
/// Stores of an object that counts as read-only: sampling mistakes one now and then.
const STORES_READ_ONLY: f64 = 0.01;

/// A segment's user with this share of its accesses owns it.
pub(crate) const OWNER_SHARE: f64 = 0.5;
/// A rule gives way to segments that are by so much more skilful: rules carry over to other sizes and teams.
pub(crate) const CLEARER: f64 = 0.05;
/// A rule that explains more than this is not looked for a second one beside it.
pub(crate) const SKILL_OF_ONE: f64 = 0.8;
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
        Pattern::BlockCyclic { .. } | Pattern::Tiles { .. } | Pattern::InTurn(_) => return true,
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
        let explains_little = rule.as_ref().is_none_or(|found| found.1 < SKILL_OF_ONE);
        let place = Place {
            cells,
            page_bytes: affinity.page_bytes,
            size_bytes,
        };
        match rule {
            // No segments are so much more skilful.
            Some((pattern, skill)) if skill + CLEARER >= 1.0 => return pattern,
            Some((pattern @ Pattern::InTurn(_), _)) => return pattern,
            rule => {
                let owned = owned_segments(cut, affinity.pages, all, most / all);
                // Parts that are each one thread's leave nothing to a second pattern.
                let is_owned = owned.as_ref().is_some_and(|one| one.1 >= SKILL_OF_ONE);
                if explains_little
                    && !is_owned
                    && let Some(pattern) = one_then_shares(place, teams, first, effort)
                {
                    return pattern;
                }
                match (rule, owned) {
                    (Some((_, skill)), Some((segments, clearer))) if clearer > skill + CLEARER => {
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

/// Cells, cut into segments once somebody asks: the search for the cuts costs more than most rules do.
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

    /// Segments of whole pieces of an object of so many pages, where they are that, else those that may begin anywhere; and how
    /// many numbers were chosen to suit the samples.
    fn into_segments(self, pages: u32) -> (Vec<Segment>, usize) {
        self.found();
        let Some((counts, found)) = self.found.into_inner().flatten() else {
            return (Vec::new(), 0);
        };
        match segments_of_pieces(&counts, pages, found.evidence, self.effort) {
            // The size, and each one's owner.
            Some(segments) => {
                let chosen = segments.len() + 1;
                (segments, chosen)
            }
            // Each one's owner and beginning.
            None => {
                let chosen = 2 * found.segments.len();
                (found.segments, chosen)
            }
        }
    }
}

/// The object's segments and their skill, where their users explain clearly more than the thread with the share
/// `most` of its accesses does, and few enough to be looked at.
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
