//! Rules that deal pieces of an object to the threads of a team: shares, pieces that go round, tiles, and two of these
//! in turn.

use crate::{
    Affinity, Pattern, Team,
    in_turn::{BlockRule, ObjectCells, two_rules},
    ownership::{Fit, Ownership, divergence},
    pattern::{
        Cut, EVIDENCE_MIN, Effort, SEGMENTS_SKILL_MARGIN, SINGLE_RULE_SKILL, SKILL_MIN, SKILL_TIE,
    },
    period::best_cyclic,
    shares::{Shares, best_partial},
    tiles::best_tiles,
};

/// Smallest share of an object's accesses that a team must make to explain the object.
pub(crate) const TEAM_SHARE: f64 = 0.7;
/// Skill from which a whole-object block is accepted without a search for smaller pieces.
const SKILL_CLEAR: f64 = 0.97;
/// Smallest skill of each of two rules in turn.
const SKILL_IN_TURN: f64 = 0.3;
/// Pieces whose first round covers at least this share of the object are an alternative to equal shares.
const ONE_ROUND: f64 = 0.9;
/// Skill by which such pieces must beat equal shares.
const ONE_ROUND_TIE: f64 = 0.1;

/// The best rule (block, block-cyclic or tiles) with its skill, over the team that accesses the object most, or over
/// the main thread joined with a team.
pub(crate) fn best_rule(
    affinity: &Affinity,
    cut: &Cut,
    size_bytes: u64,
    teams: &[Team],
    all: f64,
) -> Option<(Pattern, f64)> {
    // Scales the skill from the team's accesses to all accesses.
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
        (Some(team), Some(joined)) if joined.1 > team.1 + SEGMENTS_SKILL_MARGIN => Some(joined),
        (Some(team), _) => Some(team),
        (None, joined) => joined,
    }
}

/// The object in which a rule is searched.
struct Rule<'a, 'c> {
    affinity: &'a Affinity,
    cut: &'a Cut<'c>,
    size_bytes: u64,
    ownership: &'a Ownership,
}

impl Rule<'_, '_> {
    /// The best rule over a team, and its skill. `team` is the number of the team in patterns.
    fn best(&self, team: usize, threads: &Team) -> Option<(Pattern, f64)> {
        let Self {
            affinity,
            cut,
            size_bytes,
            ownership,
        } = *self;
        let size = size_bytes as f64;
        let members = ownership.team() as f64;
        let significant = |fit: &Fit| self.is_significant(fit);

        // Equal shares of the whole object; boundaries are known to a page.
        let block = size / members;
        let block_fit = ownership.fit(block);
        let found = Pattern::Block {
            team,
            block_bytes: size_bytes.div_ceil(ownership.team() as u64),
        };
        if significant(&block_fit) && block_fit.skill() >= SKILL_CLEAR {
            return Some((found, block_fit.skill()));
        }
        let in_order = Shares::of(ownership, cut.segments());
        let page = affinity.page_bytes as f64;
        // Clearly unequal shares follow no rule: each is a segment.
        let is_equal = |start: f64, block: f64, fit: &Fit| {
            let shares = in_order.as_ref();
            shares.is_none_or(|shares| shares.are_equal(start, block, page, fit.explained))
        };
        if let Some(shares) = &in_order
            && let Some(partial) = best_partial(ownership, shares, affinity.page_bytes)
            && significant(&partial.fit)
            && partial.fit.skill() > block_fit.skill() + SKILL_TIE
            && is_equal(partial.start_bytes, partial.block_bytes, &partial.fit)
        {
            return Some((partial.pattern(team, size_bytes), partial.fit.skill()));
        }
        let cyclic = best_cyclic(ownership, page, size, cut.effort)
            .map(|block| (block, ownership.fit(block)));
        let owned = cyclic.filter(|(block, fit)| {
            significant(fit) && pieces_are_owned(ownership, *block, cut.effort)
        });
        let is_better = |(block, fit): (f64, Fit)| {
            let is_once = block * members >= ONE_ROUND * size;
            let tie = if is_once { ONE_ROUND_TIE } else { SKILL_TIE };
            fit.skill() > block_fit.skill() + tie
        };
        if significant(&block_fit)
            && !owned.is_some_and(is_better)
            && is_equal(0.0, block, &block_fit)
        {
            return self.with_second(found, block_fit.skill(), cyclic, threads);
        }
        let owned = owned.filter(|(block, fit)| {
            block * members < ONE_ROUND * size || is_equal(0.0, *block, fit)
        });
        let Some((block, fit)) = owned else {
            // With two threads, rows and columns in turn resemble tiles, so the two rules are tried first.
            if let Some(two) = self.two_in_turn(team, threads, cyclic) {
                return Some(two);
            }
            let tiles = best_tiles(affinity, cut.cells, cut.segments(), threads, cut.effort)
                .filter(|tiles| significant(&tiles.fit))?;
            let skill = tiles.fit.skill();
            let pattern = Pattern::Tiles {
                block_bytes: tiles.block_bytes.round() as u64,
                shares: tiles.shares,
            };
            return Some((pattern, skill));
        };
        match self.pieces(team, block) {
            once @ Pattern::PartialBlock { .. } => Some((once, fit.skill())),
            pieces => self.with_second(pieces, fit.skill(), cyclic, threads),
        }
    }

    fn is_significant(&self, fit: &Fit) -> bool {
        let evidence = self.ownership.samples * fit.divergence();
        fit.skill() >= SKILL_MIN && evidence >= self.cut.effort.enough(EVIDENCE_MIN)
    }

    /// The pattern of pieces dealt to the threads of a team.
    fn pieces(&self, team: usize, block: f64) -> Pattern {
        let block_bytes = block.round() as u64;
        let period_bytes = block_bytes.saturating_mul(self.ownership.team() as u64);
        let pages = self.cut.cells.iter().map(|cell| u64::from(cell.page) + 1);
        let used_bytes = pages.max().unwrap_or(0) * self.affinity.page_bytes;
        let round_bytes = period_bytes.min(self.size_bytes);
        match used_bytes <= round_bytes.saturating_add(self.affinity.page_bytes) {
            // Each thread has one piece: no sample is in a second round.
            true => Pattern::PartialBlock {
                team,
                block_bytes,
                part_bytes: 0..round_bytes,
            },
            false => Pattern::BlockCyclic {
                team,
                block_bytes,
                period_bytes,
            },
        }
    }

    /// The given rule, or two rules in turn if the given one explains little.
    fn with_second(
        &self,
        pattern: Pattern,
        skill: f64,
        cyclic: Option<(f64, Fit)>,
        threads: &Team,
    ) -> Option<(Pattern, f64)> {
        let team = match pattern {
            Pattern::Block { team, .. } | Pattern::BlockCyclic { team, .. }
                if skill < SINGLE_RULE_SKILL =>
            {
                team
            }
            _ => return Some((pattern, skill)),
        };
        let two = self.two_in_turn(team, threads, cyclic);
        Some(two.unwrap_or((pattern, skill)))
    }

    /// Shares of the whole object in one phase and pieces that go round in another. The skill is the larger of the
    /// two.
    fn two_in_turn(
        &self,
        team: usize,
        threads: &Team,
        cyclic: Option<(f64, Fit)>,
    ) -> Option<(Pattern, f64)> {
        let Self {
            affinity,
            cut,
            size_bytes,
            ownership,
        } = *self;
        let by_pieces = cyclic.map_or(0.0, |(_, fit)| fit.skill());
        // One rule is enough, though too few pieces may show it: then segments tell more.
        if by_pieces >= SINGLE_RULE_SKILL {
            return None;
        }
        let place = ObjectCells {
            cells: cut.cells,
            page_bytes: affinity.page_bytes,
            size_bytes,
        };
        let (page, size) = (affinity.page_bytes as f64, size_bytes as f64);
        let members = ownership.team() as f64;
        let shares = BlockRule {
            block_bytes: size / members,
        };
        let goes_round = |block: &f64| 2.0 * block * members <= size;
        let by_shares = ownership.fit(shares.block_bytes).skill();
        let pieces =
            cyclic.filter(|(block, fit)| goes_round(block) && fit.skill() >= SKILL_IN_TURN);
        let after_pieces = pieces.and_then(|(block_bytes, _)| {
            let first = BlockRule { block_bytes };
            two_rules(place, threads, first, cut.effort, |left| {
                Some((shares, left.fit(shares.block_bytes)))
            })?;
            Some(block_bytes)
        });
        let after_shares = || {
            if by_shares < SKILL_IN_TURN {
                return None;
            }
            let found = two_rules(place, threads, shares, cut.effort, |left| {
                let block_bytes = best_cyclic(left, page, size, cut.effort).filter(goes_round)?;
                Some((BlockRule { block_bytes }, left.fit(block_bytes)))
            })?;
            Some(found.block_bytes)
        };
        let block_bytes = after_pieces.or_else(after_shares)?.round() as u64;
        let patterns = [
            Pattern::Block {
                team,
                block_bytes: size_bytes.div_ceil(ownership.team() as u64),
            },
            Pattern::BlockCyclic {
                team,
                block_bytes,
                period_bytes: block_bytes.saturating_mul(ownership.team() as u64),
            },
        ];
        Some((
            Pattern::InTurn(Box::new(patterns)),
            by_shares.max(by_pieces),
        ))
    }
}

/// Whether more pieces belong to their owners than by chance, given the search for the piece size. Samples alone
/// cannot tell where pages belong to random threads.
fn pieces_are_owned(ownership: &Ownership, block: f64, effort: Effort) -> bool {
    let (pieces, owned) = ownership.pieces(block);
    let chance = 1.0 / ownership.team() as f64;
    let tried = (ownership.end_page() as f64).ln();
    pieces > 0.0
        && owned > chance * pieces
        && pieces * divergence(owned / pieces, chance) >= effort.enough(tried + EVIDENCE_MIN / 2.0)
}
