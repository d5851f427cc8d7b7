//! Objects that one thread fills, or goes through, while the others work on parts of their own.
//!
//! The one thread is everywhere, so that no rule explains much of all accesses. It does of the others': each page is
//! nearest to most of its accesses if it goes to the thread that works on it, as long as the one has fewer.

use nearpage_recording::ThreadIndex;

use crate::{
    Affinity, Cell, Team,
    effort::Effort,
    pattern::{Cut, Pattern, SAMPLES_MIN, best_rule},
};

/// The one thread has so many times the accesses of the next.
const TIMES_MIN: f64 = 1.5;
/// Parts of an object in which the one thread is, and its share of its own accesses in each at least: a quarter of an equal
/// share.
const PARTS: usize = 8;
const PART_SHARE_MIN: f64 = 0.25 / PARTS as f64;

/// The block distribution of all threads but the most active one; `threads` have their samples, the most active first.
pub(crate) fn beside_one(
    affinity: &Affinity,
    cells: &[Cell],
    threads: &[(ThreadIndex, f64)],
    size_bytes: u64,
    teams: &[Team],
    effort: Effort,
) -> Option<Pattern> {
    let [(one, samples), (_, next), ..] = *threads else {
        return None;
    };
    if samples < TIMES_MIN * next || !is_everywhere(affinity, cells, one, samples) {
        return None;
    }
    let others: Vec<Cell> = cells
        .iter()
        .filter(|cell| cell.thread != one)
        .copied()
        .collect();
    let of_others: f64 = others.iter().map(|cell| f64::from(cell.samples)).sum();
    if of_others < effort.enough(SAMPLES_MIN) {
        return None;
    }
    let cut = Cut::new(&others, effort);
    let (pattern, _) = best_rule(affinity, &cut, size_bytes, teams, of_others)?;
    let Pattern::Block { team, block_bytes } = pattern else {
        return None;
    };
    // Where the one thread has a share of its own, all of its accesses there are to its own pages.
    let is_own = |cell: &&Cell| {
        let share = u64::from(cell.page) * affinity.page_bytes / block_bytes.max(1);
        let owner = usize::try_from(share)
            .ok()
            .and_then(|share| teams[team].threads.get(share));
        cell.thread == one && owner != Some(&one)
    };
    let elsewhere = cells.iter().filter(is_own);
    let elsewhere: f64 = elsewhere.map(|cell| f64::from(cell.samples)).sum();
    (of_others > elsewhere).then_some(pattern)
}

/// Does a thread with so many samples use all parts of an object?
fn is_everywhere(affinity: &Affinity, cells: &[Cell], one: ThreadIndex, samples: f64) -> bool {
    let pages = (affinity.pages as usize).max(1);
    let mut parts = [0.0; PARTS];
    for cell in cells.iter().filter(|cell| cell.thread == one) {
        let part = (cell.page as usize * PARTS / pages).min(PARTS - 1);
        parts[part] += f64::from(cell.samples);
    }
    parts.iter().all(|part| *part >= PART_SHARE_MIN * samples)
}
