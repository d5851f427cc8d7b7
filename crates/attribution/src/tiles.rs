//! Two-dimensional tiles: rows of an array are split into shares, and the columns of each share are dealt to threads.
//!
//! Along the array, each share of rows is a segment with several threads, within which columns go round these threads
//! once per row. Tiles are therefore found in two steps: segments, then a block-cyclic distribution over the users of
//! each segment, with one block size for all.

use std::ops::Range;

use nearpage_recording::ThreadIndex;

use crate::{
    Affinity, Cell, Team,
    ownership::{Fit, Ownership},
    pattern::Effort,
    period::best_cyclic,
    segments::Segment,
};

/// Smallest activity of a segment's user, relative to the most active user. With a dozen samples per user, chance
/// makes one three times as active as another.
const USER_MIN: f64 = 0.25;
/// Largest relative difference of equal block sizes.
const SAME_BLOCK: f64 = 0.02;

/// A share of the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct RowShare {
    /// Pages up to the last sampled page, in units of [`Affinity::page_bytes`].
    pub pages: Range<u32>,
    /// Threads to which the columns are dealt, in order.
    pub threads: Vec<ThreadIndex>,
}

pub(crate) struct Tiles {
    pub shares: Vec<RowShare>,
    pub block_bytes: f64,
    pub fit: Fit,
}

/// The tiles that a team's accesses form, if any.
pub(crate) fn best_tiles(
    affinity: &Affinity,
    cells: &[Cell],
    segments: &[Segment],
    team: &Team,
    effort: Effort,
) -> Option<Tiles> {
    // Without a cut between rows, the pattern can only be block-cyclic.
    if !(2..=team.threads.len()).contains(&segments.len()) {
        return None;
    }
    let page = affinity.page_bytes as f64;
    let size = u64::from(affinity.pages) * affinity.page_bytes;
    let mut shares: Vec<RowShare> = Vec::new();
    // For each share, its accesses and the best block size.
    let mut found: Vec<(Ownership, f64)> = Vec::new();
    for segment in segments {
        let of = |page: u32| cells.partition_point(|cell| cell.page < page);
        let own = &cells[of(segment.first_page)..of(segment.last_page + 1)];
        let threads = users(own, team, segment)?;
        let users = Team {
            threads: threads.clone(),
            ..team.clone()
        };
        let ownership = Ownership::new(own, &users, affinity.page_bytes, size);
        let block = best_cyclic(&ownership, page, size as f64, effort)?;
        found.push((ownership, block));
        let pages = segment.first_page..segment.last_page + 1;
        shares.push(RowShare { pages, threads });
    }
    let by_samples =
        |a: &&(Ownership, f64), b: &&(Ownership, f64)| a.0.samples.total_cmp(&b.0.samples);
    let block = found.iter().max_by(by_samples)?.1;
    let all: f64 = cells.iter().map(|cell| f64::from(cell.samples)).sum();
    let mut fit = Fit::default();
    for (ownership, own) in &found {
        if (own - block).abs() > SAME_BLOCK * block {
            return None;
        }
        let part = ownership.samples / all;
        let of_share = ownership.fit(block);
        fit.explained += part * of_share.explained;
        fit.chance += part * of_share.chance;
    }
    Some(Tiles {
        shares,
        block_bytes: block,
        fit,
    })
}

/// Team members that use a segment, in order of the team. None for fewer than two users, or if the main user is no
/// member.
fn users(cells: &[Cell], team: &Team, segment: &Segment) -> Option<Vec<ThreadIndex>> {
    let sum = |thread: ThreadIndex| -> f64 {
        let own = cells.iter().filter(|cell| cell.thread == thread);
        own.map(|cell| f64::from(cell.samples)).sum()
    };
    let most = sum(segment.user);
    let members = team.threads.iter().copied();
    let users: Vec<ThreadIndex> = members.filter(|&one| sum(one) >= USER_MIN * most).collect();
    (users.len() > 1 && users.contains(&segment.user)).then_some(users)
}
