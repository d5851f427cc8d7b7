//! Equal shares of an object, or of its used part.

use crate::{
    Pattern, Segment,
    ownership::{Fit, Ownership},
    pattern::{OWNER_SHARE, SKILL_TIE},
    period::refine,
};

/// Largest error of a boundary, as a part of a share, for shares to count as equal: one row more in a dozen.
const UNEQUAL: f64 = 0.085;
/// Least and greatest share of the samples that unequal shares must explain beyond equal ones.
const UNEQUAL_COST: [f64; 2] = [0.02, 0.045];
/// Largest shortfall of the last share, in shares, per other thread: shares are rounded up to rows.
const LAST_SHORTER: f64 = 0.125;

/// Segments that belong to a team's threads in order, one per thread, with their certain pages.
pub(crate) struct Shares {
    /// First and last page of each share.
    pages: Vec<[u32; 2]>,
    /// Share of the accesses to all segments that their owners make.
    owned: f64,
    /// Number of samples of all segments.
    samples: f64,
}

impl Shares {
    pub fn of(ownership: &Ownership, segments: &[Segment]) -> Option<Self> {
        let mut owned: Vec<(usize, [u32; 2])> = Vec::new();
        for segment in segments.iter().filter(|one| one.share >= OWNER_SHARE) {
            let member = ownership.member(segment.user)?;
            match owned.last_mut() {
                Some(last) if last.0 == member => last.1[1] = segment.last_page,
                _ => owned.push((member, [segment.first_page, segment.last_page])),
            }
        }
        let is_in_order = owned.iter().map(|one| one.0).eq(0..ownership.team());
        let samples: f64 = segments.iter().map(|one| one.samples).sum();
        let by_owners: f64 = segments.iter().map(|one| one.samples * one.share).sum();
        is_in_order.then(|| Self {
            pages: owned.into_iter().map(|one| one.1).collect(),
            owned: by_owners / samples.max(f64::MIN_POSITIVE),
            samples,
        })
    }

    /// Whether the shares equal blocks from an offset on that explain the share `explained` of the accesses.
    /// Boundaries count as different only if they also explain more, as a neighbour reads the rows beside a share,
    /// too.
    pub fn are_equal(&self, start_bytes: f64, block_bytes: f64, page: f64, explained: f64) -> bool {
        // Segments begin where samples suit them: each boundary gains about a sample by chance.
        let fitted = self.pages.len() as f64 - 1.0;
        let by_chance = (fitted + 2.0 * fitted.sqrt()) / self.samples.max(1.0);
        let [least, most] = UNEQUAL_COST;
        if self.owned - explained <= by_chance.clamp(least, most) {
            return true;
        }
        let off = UNEQUAL * block_bytes;
        let is_near = |(number, pair): (usize, &[[u32; 2]])| {
            let boundary = start_bytes + (number + 1) as f64 * block_bytes;
            let least = (f64::from(pair[0][1]) + 1.0) * page;
            let most = f64::from(pair[1][0]) * page;
            boundary >= least.min(most) - off && boundary <= most.max(least) + off
        };
        self.pages.windows(2).enumerate().all(is_near)
    }
}

pub(crate) struct Partial {
    pub start_bytes: f64,
    pub block_bytes: f64,
    end_bytes: f64,
    pub fit: Fit,
}

impl Partial {
    pub fn pattern(&self, team: usize, size_bytes: u64) -> Pattern {
        let end_bytes = (self.end_bytes.round() as u64).min(size_bytes);
        Pattern::PartialBlock {
            team,
            block_bytes: self.block_bytes.round() as u64,
            part_bytes: (self.start_bytes.round() as u64).min(end_bytes)..end_bytes,
        }
    }
}

/// The best equal shares for an object whose segments belong to a team's threads in order. Shares from the object's
/// beginning are preferred to shares of the used part if they explain as much.
pub(crate) fn best_partial(
    ownership: &Ownership,
    owned: &Shares,
    page_bytes: u64,
) -> Option<Partial> {
    let team = ownership.team();
    let page = page_bytes as f64;
    let first_bytes = f64::from(owned.pages[0][0]) * page;
    let end_bytes = (f64::from(owned.pages[team - 1][1]) + 1.0) * page;
    // The middle between the last page of one share and the first page of the next.
    let boundary =
        |pair: &[[u32; 2]]| 0.5 * page * (f64::from(pair[0][1]) + 1.0 + f64::from(pair[1][0]));
    let boundaries: Vec<f64> = owned.pages.windows(2).map(boundary).collect();
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
        // The last share may be smaller but must exist.
        let left_bytes = start_bytes + shares * block_bytes - end_bytes;
        let shorter_bytes = block_bytes * (LAST_SHORTER * (shares - 1.0)).min(1.0);
        let is_one_round = left_bytes > -page && left_bytes <= shorter_bytes + page;
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
