//! Sizes of blocks, and blocks over a part of an object.

use std::ops::Range;

use nearpage_attribution::{ObjectGroup, RowShare};
use nearpage_plan::{PageRun, Placement};

use crate::context::Context;

/// A block of the size that enforcement can do; see the module.
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

/// Equal shares of a part of an object, one for each thread of a team in order. What is before the part goes with its
/// first share, and what is after it with its last: plans cover whole objects.
pub(crate) fn over_part(
    context: &Context,
    team: usize,
    block_bytes: u64,
    part_bytes: &Range<u64>,
    size_bytes: u64,
) -> Option<Placement> {
    let threads = context.team(&context.team_name(team)?)?;
    let page_bytes = context.page_bytes.max(1);
    let end = size_bytes.max(part_bytes.end).div_ceil(page_bytes);
    let first = |share: usize| match share {
        0 => 0,
        share => {
            let offset = block_bytes.saturating_mul(share as u64);
            let begin = part_bytes.start.saturating_add(offset);
            // A page that two shares meet in belongs to the one with more of it.
            (begin.saturating_add(page_bytes / 2) / page_bytes).min(end)
        }
    };
    let mut runs = Vec::with_capacity(threads.len());
    for (share, &thread) in threads.iter().enumerate() {
        let next = match share + 1 == threads.len() {
            true => end,
            false => first(share + 1),
        };
        let pages = next.saturating_sub(first(share));
        if pages > 0 {
            runs.push(PageRun {
                first_page: first(share),
                pages,
                owner: context.owner(thread)?,
            });
        }
    }
    (!runs.is_empty()).then_some(Placement::Runs(runs))
}

/// Tiles: the rows' shares, of each of which pieces go to its threads in turn. None where they would be more than
/// `runs_max` runs of pages.
pub(crate) fn tiles(
    context: &Context,
    group: &ObjectGroup,
    block_bytes: u64,
    shares: &[RowShare],
    runs_max: usize,
) -> Option<Placement> {
    let page_bytes = context.page_bytes.max(1);
    let size_bytes = group.size_bytes.max(1);
    let offset = |page: u32| u64::from(page).saturating_mul(group.affinity.page_bytes);
    let block_bytes = block_bytes.max(page_bytes);
    if size_bytes / block_bytes > runs_max as u64 {
        return None;
    }
    let mut runs: Vec<PageRun> = Vec::new();
    for (number, share) in shares.iter().enumerate() {
        // Nothing is known of the pages between two shares: half of them to each.
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
