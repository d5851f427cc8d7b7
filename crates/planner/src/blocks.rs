//! Sizes of blocks, blocks over parts of an object, and tiles.

use std::ops::Range;

use nearpage_attribution::{ObjectGroup, RowShare};
use nearpage_plan::{PageRun, Parts, Placement, Tiles};
use nearpage_recording::ThreadIndex;

use crate::context::Context;
use crate::effect::share_near;
use crate::holder::{Holder, ResolvedPlacement};

/// A block size that enforcement can do: see "Whole pages" in `object.rs`.
pub(crate) fn whole_pages(block_bytes: u64, size_bytes: u64, page_bytes: u64) -> u64 {
    let page = page_bytes.max(1);
    if block_bytes <= page {
        return page;
    }
    let whole = (block_bytes + page / 2) / page * page;
    let pieces = u128::from(size_bytes / block_bytes);
    let drift = u128::from(whole.abs_diff(block_bytes)) * pieces;
    if drift <= u128::from(block_bytes / 2) {
        whole
    } else {
        block_bytes
    }
}

/// Equal shares of a part of an object, one for each thread of a team in order. The first share also gets the bytes
/// before the part, the last share the bytes after it: plans cover whole objects.
pub(crate) fn over_part(
    context: &Context,
    team: usize,
    block_bytes: u64,
    part_bytes: &Range<u64>,
    size_bytes: u64,
) -> Option<Placement> {
    let team = context.team_name(team)?;
    let threads = context.team(&team)?.len() as u64;
    // The last share may be shorter than the others.
    let end = part_bytes
        .start
        .saturating_add(block_bytes.saturating_mul(threads));
    let parts = Parts::new(std::iter::once(part_bytes.start..end).collect(), size_bytes)?;
    Some(Placement::Parts { parts, team })
}

/// Rounds of pieces that are taken for arrays, at most. With more rounds, a round is a row: another input does not
/// change its length.
const ARRAYS_MAX: u64 = 8;
/// Blocks and rows of a multiple of this size are constants of the program; sizes of arrays are no such multiples.
const CONSTANT_BYTES: u64 = 64 << 10;
/// Share of the samples by which another placement may explain less than the pieces that were found, in any case and by
/// chance.
const FITTED_SLACK: [f64; 2] = [0.01, 0.05];

/// How much less of a group's samples another placement may explain than pieces, whose size was fitted to them. The
/// samples that either leaves unexplained are mostly on pages where two pieces meet, and chance says on which side:
/// two standard errors of the difference are allowed.
pub(crate) fn fitted_slack(group: &ObjectGroup, explained: [f64; 2]) -> f64 {
    let unexplained: f64 = explained.iter().map(|share| 1.0 - share).sum();
    let samples = (group.sample_count() as f64).max(1.0);
    let [least, most] = FITTED_SLACK;
    (2.0 * (unexplained / samples).sqrt()).clamp(least, most)
}

/// Pieces that go round a team, as they carry over to other inputs and teams: as shares of arrays or columns of rows, if
/// their sizes tell of these and the accesses do not speak against them.
pub(crate) fn cyclic(
    context: &Context,
    group: &ObjectGroup,
    team: usize,
    block_bytes: u64,
) -> Option<Placement> {
    let team = context.team_name(team)?;
    let threads = context.team(&team)?.len() as u64;
    let period_bytes = block_bytes.saturating_mul(threads).max(1);
    let rounds = (group.size_bytes.saturating_add(period_bytes / 2)) / period_bytes;
    let other = if block_bytes.is_multiple_of(CONSTANT_BYTES) {
        None
    } else if let Some(parts) = arrays_of_rounds(group.size_bytes, period_bytes, rounds) {
        let team = team.clone();
        Some(Placement::Parts { parts, team })
    } else {
        let tiles = columns(context, block_bytes, threads, rounds);
        tiles.map(|tiles| Placement::Tiles {
            tiles,
            team: team.clone(),
        })
    };
    let pieces = Placement::BlockCyclic {
        block_bytes: whole_pages(block_bytes, group.size_bytes, context.page_bytes),
        team,
    };
    let Some(other) = other else {
        return Some(pieces);
    };
    let explained = [&pieces, &other].map(|placement| samples_by_owner(context, group, placement));
    match explained {
        [Some(by_pieces), Some(by_other)]
            if by_other >= by_pieces - fitted_slack(group, [by_pieces, by_other]) =>
        {
            Some(other)
        }
        _ => Some(pieces),
    }
}

/// Share of the samples that a pattern was fitted to that are of the thread to which a placement gives the page.
pub(crate) fn samples_by_owner(
    context: &Context,
    group: &ObjectGroup,
    placement: &Placement,
) -> Option<f64> {
    let owner = owners(context, group, placement)?;
    let (mut own, mut all) = (0.0, 0.0);
    for cell in group.affinity.pattern_cells() {
        let samples = f64::from(cell.samples);
        all += samples;
        if owner(cell.page) == Some(cell.thread) {
            own += samples;
        }
    }
    (all > 0.0).then(|| own / all)
}

/// As many arrays in one allocation as rounds of pieces fill an object, if these are few and whole: each array is in
/// shares. With a larger input the arrays grow, and their number stays.
fn arrays_of_rounds(size_bytes: u64, period_bytes: u64, rounds: u64) -> Option<Parts> {
    let left_bytes = size_bytes.abs_diff(rounds.saturating_mul(period_bytes));
    if !(2..=ARRAYS_MAX).contains(&rounds) || left_bytes > period_bytes / 16 {
        return None;
    }
    let at = |round: u64| {
        let offset = u128::from(size_bytes) * u128::from(round) / u128::from(rounds);
        u64::try_from(offset).unwrap_or(u64::MAX)
    };
    let parts = (0..rounds).map(|round| at(round)..at(round + 1)).collect();
    Parts::new(parts, size_bytes)
}

/// Columns of an array whose rows have a constant size, if pieces have none: each row is in shares, so that another team
/// has other pieces. Tiles of a team whose size is a prime number look the same. A round is as long as a row by no more
/// than the samples can tell: a page, over all rounds.
fn columns(context: &Context, block_bytes: u64, threads: u64, rounds: u64) -> Option<Tiles> {
    let period_bytes = block_bytes.checked_mul(threads)?;
    let row_bytes = period_bytes.checked_add(CONSTANT_BYTES / 2)? / CONSTANT_BYTES * CONSTANT_BYTES;
    let tolerance_bytes = context.page_bytes / rounds.max(1);
    let is_row = row_bytes.abs_diff(period_bytes) <= tolerance_bytes;
    let is_constant = block_bytes.is_multiple_of(context.page_bytes);
    if !is_row || is_constant {
        return None;
    }
    Tiles::new(1, u32::try_from(threads).ok()?, row_bytes)
}

/// Share of a group's accesses that are by the thread to which a placement gives the page.
pub(crate) fn by_owner(
    context: &Context,
    group: &ObjectGroup,
    placement: &Placement,
) -> Option<f64> {
    share_near(context, group, true, owners(context, group, placement)?)
}

/// The thread to which a placement gives each page.
fn owners<'a>(
    context: &'a Context,
    group: &ObjectGroup,
    placement: &'a Placement,
) -> Option<impl Fn(u32) -> Option<ThreadIndex> + 'a> {
    let unit = group.affinity.page_bytes;
    let resolved = ResolvedPlacement::new(placement, context, group.size_bytes)?;
    Some(
        move |page: u32| match resolved.holder(u64::from(page) * unit + unit / 2) {
            Holder::Thread(thread) => Some(thread),
            Holder::Node(_) | Holder::Spread(_) | Holder::Everywhere => None,
        },
    )
}

/// Tiles of a team; none unless its threads have them in order, as many in each share of the rows, and shares are about
/// equal.
fn tiles_of_team(
    context: &Context,
    group: &ObjectGroup,
    block_bytes: u64,
    shares: &[RowShare],
) -> Option<Placement> {
    let columns = shares.first().map(|share| share.threads.len())?;
    let owners: Vec<ThreadIndex> = shares
        .iter()
        .flat_map(|share| share.threads.clone())
        .collect();
    let (team, _) = context.teams().find(|(_, threads)| *threads == owners)?;
    let height = group.size_bytes / shares.len() as u64;
    let is_equal = shares.iter().zip(0u64..).all(|(share, number)| {
        let begin = u64::from(share.pages.start).saturating_mul(group.affinity.page_bytes);
        begin.abs_diff(number * height) <= height / 8
    });
    if shares.len() < 2 || !is_equal || shares.iter().any(|share| share.threads.len() != columns) {
        return None;
    }
    let row_bytes = block_bytes.checked_mul(columns as u64)?;
    let tiles = Tiles::new(shares.len() as u32, columns as u32, row_bytes)?;
    let team = team.to_owned();
    Some(Placement::Tiles { tiles, team })
}

/// Tiles: in each share of the rows, pieces go to the share's threads in turn. If the threads are no team, runs of
/// pages; none if there would be more than `runs_max` runs.
pub(crate) fn tiles(
    context: &Context,
    group: &ObjectGroup,
    block_bytes: u64,
    shares: &[RowShare],
    runs_max: usize,
) -> Option<Placement> {
    if let Some(placement) = tiles_of_team(context, group, block_bytes, shares) {
        return Some(placement);
    }
    let page_bytes = context.page_bytes.max(1);
    let size_bytes = group.size_bytes.max(1);
    let offset = |page: u32| u64::from(page).saturating_mul(group.affinity.page_bytes);
    let block_bytes = block_bytes.max(page_bytes);
    if size_bytes / block_bytes > runs_max as u64 {
        return None;
    }
    let mut runs: Vec<PageRun> = Vec::new();
    for (number, share) in shares.iter().enumerate() {
        // Unsampled pages between two shares: half of them to each.
        let begin = match number.checked_sub(1) {
            None => 0,
            Some(before) => offset(shares[before].pages.end).midpoint(offset(share.pages.start)),
        };
        let end = match shares.get(number + 1) {
            None => size_bytes,
            Some(next) => offset(share.pages.end).midpoint(offset(next.pages.start)),
        };
        let mut at = begin;
        while at < end {
            let piece = at / block_bytes;
            let thread = share.threads[(piece % share.threads.len() as u64) as usize];
            let next = ((piece + 1) * block_bytes).min(end);
            let first_page = runs.last().map_or(0, |run| run.first_page + run.pages);
            let last_page = match next == size_bytes {
                true => size_bytes.div_ceil(page_bytes),
                false => (next + page_bytes / 2) / page_bytes,
            };
            if last_page > first_page {
                runs.push(PageRun {
                    first_page,
                    pages: last_page - first_page,
                    owner: context.owner(thread)?,
                });
            }
            at = next;
        }
    }
    (!runs.is_empty()).then_some(Placement::Runs(runs))
}

#[cfg(test)]
mod tests {
    use super::whole_pages;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn blocks_become_whole_pages() {
        // NumaMMA's cjac under huge pages.
        assert_eq!(whole_pages(640 * KIB, 20 * MIB, 2 * MIB), 2 * MIB);
        assert_eq!(whole_pages(640 * KIB, 20 * MIB, 4 * KIB), 640 * KIB);
        assert_eq!(whole_pages(5 * MIB + 100, 558 * MIB, 4 * KIB), 5 * MIB);
        // Rounded to 4 or 6 MiB, the pieces would be out of step before a tenth of the object.
        assert_eq!(whole_pages(5 * MIB, 558 * MIB, 2 * MIB), 5 * MIB);
        assert_eq!(whole_pages(0, 0, 0), 1);
    }
}
