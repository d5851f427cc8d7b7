//! Two-dimensional tiles: rows of an array are split into shares, and the columns of each share are dealt to threads.
//!
//! Along the array, each share of rows is a segment with several threads, within which columns go round these threads
//! once per row. Tiles are therefore found in two steps: shares of the rows, then a block-cyclic distribution over the
//! users of each share, with one block size for all. The shares are segments with different users, or equal shares for
//! consecutive members of the team. For equal shares, the samples of all shares together show the block size.

use std::ops::Range;

use nearpage_recording::ThreadIndex;
use rustc_hash::FxHashMap;

use crate::{
    Affinity, Cell, Team,
    ownership::{Fit, Ownership},
    pattern::{Effort, SKILL_MIN},
    period::best_cyclic,
    segments::Segment,
};

/// Smallest activity of a segment's user, relative to the most active user. With a dozen samples per user, chance
/// makes one three times as active as another.
const USER_MIN: f64 = 0.25;
/// Largest relative difference of equal block sizes.
const SAME_BLOCK: f64 = 0.02;

/// Smallest number of rows in each of equal shares, on average. With one row, each thread has one piece, as in a block
/// distribution, and unequal pieces resemble such tiles.
const ROWS_MIN: f64 = 2.0;

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
    let members = team.threads.iter().enumerate();
    let search = Search {
        cells,
        team,
        numbers: members.map(|(number, &thread)| (thread, number)).collect(),
        page_bytes: affinity.page_bytes,
        size_bytes: u64::from(affinity.pages) * affinity.page_bytes,
        effort,
    };
    let grids = (2..=team.threads.len() / 2).filter_map(|shares| search.of_equal_shares(shares));
    let by_skill = |a: &Tiles, b: &Tiles| a.fit.skill().total_cmp(&b.fit.skill());
    let found = search.of_segments(segments).into_iter().chain(grids);
    found.max_by(by_skill)
}

/// Accesses in which tiles are searched.
struct Search<'a> {
    cells: &'a [Cell],
    team: &'a Team,
    /// Number of each thread in the team.
    numbers: FxHashMap<ThreadIndex, usize>,
    page_bytes: u64,
    size_bytes: u64,
    effort: Effort,
}

impl Search<'_> {
    /// Tiles in which each segment is a share of the rows.
    fn of_segments(&self, segments: &[Segment]) -> Option<Tiles> {
        // Without a cut between rows, the pattern can only be block-cyclic.
        if !(2..=self.team.threads.len()).contains(&segments.len()) {
            return None;
        }
        let mut shares: Vec<RowShare> = Vec::new();
        // For each share, its accesses and the best block size.
        let mut found: Vec<(Ownership, f64)> = Vec::new();
        for segment in segments {
            let pages = segment.first_page..segment.last_page + 1;
            let threads = users(self.cells_of(&pages), self.team, segment)?;
            let share = RowShare { pages, threads };
            let ownership = self.ownership_of(&share);
            let block = self.best_block(&ownership)?;
            found.push((ownership, block));
            shares.push(share);
        }
        let by_samples =
            |a: &&(Ownership, f64), b: &&(Ownership, f64)| a.0.samples.total_cmp(&b.0.samples);
        let block_bytes = found.iter().max_by(by_samples)?.1;
        let is_same = |own: &f64| (own - block_bytes).abs() <= SAME_BLOCK * block_bytes;
        if !found.iter().all(|(_, own)| is_same(own)) {
            return None;
        }
        let owned = found.iter().map(|(ownership, _)| ownership);
        let fit = self.fit(owned, block_bytes);
        Some(Tiles {
            shares,
            block_bytes,
            fit,
        })
    }

    /// Tiles of a grid: so many equal shares of the rows, each for as many members of the team.
    fn of_equal_shares(&self, count: usize) -> Option<Tiles> {
        let members = &self.team.threads;
        let columns = members.len() / count;
        if columns * count != members.len() {
            return None;
        }
        let end_page = f64::from(self.cells.last()?.page + 1);
        if self.skill_of_rows(count, end_page) < SKILL_MIN {
            return None;
        }
        // The thread of a column in the first share stands for those of its column in all shares.
        let by_column: Vec<Cell> = self
            .cells
            .iter()
            .filter_map(|cell| {
                let thread = members[self.numbers.get(&cell.thread)? % columns];
                Some(Cell { thread, ..*cell })
            })
            .collect();
        let block_bytes = self.best_block(&self.ownership(&by_column, &members[..columns]))?;
        let row_pages = block_bytes * columns as f64 / self.page_bytes as f64;
        let rows = (end_page / row_pages).round();
        if rows < ROWS_MIN * count as f64 {
            return None;
        }
        let boundary = |share: usize| {
            let row = (rows * share as f64 / count as f64).floor();
            (row * row_pages).round() as u32
        };
        let shares: Vec<RowShare> = members
            .chunks(columns)
            .enumerate()
            .map(|(share, threads)| {
                let end = match share + 1 == count {
                    true => end_page as u32,
                    false => boundary(share + 1),
                };
                RowShare {
                    pages: boundary(share)..end,
                    threads: threads.to_vec(),
                }
            })
            .collect();
        let owned: Vec<Ownership> = shares.iter().map(|one| self.ownership_of(one)).collect();
        let fit = self.fit(owned.iter(), block_bytes);
        Some(Tiles {
            shares,
            block_bytes,
            fit,
        })
    }

    /// Skill of equal shares of the pages for consecutive members, whichever page of its share a member uses.
    fn skill_of_rows(&self, count: usize, end_page: f64) -> f64 {
        let columns = self.team.threads.len() / count;
        let (mut own, mut all) = (0.0, 0.0);
        for cell in self.cells {
            let samples = f64::from(cell.samples);
            let member = self.numbers.get(&cell.thread);
            // The page number is below `end_page`, so the cast rounds down to a number below `count`.
            let share = (f64::from(cell.page) * count as f64 / end_page) as usize;
            all += samples;
            if member.is_some_and(|member| member / columns == share) {
                own += samples;
            }
        }
        let fit = Fit {
            explained: own / all,
            chance: 1.0 / count as f64,
        };
        fit.skill()
    }

    fn cells_of(&self, pages: &Range<u32>) -> &[Cell] {
        let at = |page: u32| self.cells.partition_point(|cell| cell.page < page);
        &self.cells[at(pages.start)..at(pages.end)]
    }

    fn ownership_of(&self, share: &RowShare) -> Ownership {
        self.ownership(self.cells_of(&share.pages), &share.threads)
    }

    fn ownership(&self, cells: &[Cell], threads: &[ThreadIndex]) -> Ownership {
        let users = Team {
            threads: threads.to_vec(),
            ..self.team.clone()
        };
        Ownership::new(cells, &users, self.page_bytes, self.size_bytes)
    }

    fn best_block(&self, ownership: &Ownership) -> Option<f64> {
        let (page, size) = (self.page_bytes as f64, self.size_bytes as f64);
        best_cyclic(ownership, page, size, self.effort)
    }

    /// Fit of pieces of one size in all shares. Accesses by other threads than a share's have no owner.
    fn fit<'o>(&self, shares: impl Iterator<Item = &'o Ownership>, block_bytes: f64) -> Fit {
        let all: f64 = self.cells.iter().map(|cell| f64::from(cell.samples)).sum();
        let mut fit = Fit::default();
        for ownership in shares {
            let part = ownership.samples / all;
            let of_share = ownership.fit(block_bytes);
            fit.explained += part * of_share.explained;
            fit.chance += part * of_share.chance;
        }
        fit
    }
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
