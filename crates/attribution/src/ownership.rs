//! A team's accesses to an object, in a form that quickly tests rules of the kind "pieces of one size, dealt to the
//! threads in order".

use nearpage_recording::ThreadIndex;
use rustc_hash::FxHashMap;

use crate::{Cell, Team};

pub(crate) struct Ownership {
    page_bytes: f64,
    /// End of the object or of its last accessed page, in bytes, whichever comes first.
    end: f64,
    /// Number of each thread in the team.
    numbers: FxHashMap<ThreadIndex, usize>,
    /// Cumulative accesses by page, per member.
    members: Vec<Sums>,
    /// Cumulative accesses by page, of all members.
    all: Sums,
    /// Share of each member in the accesses.
    shares: Vec<f64>,
    /// Number of samples of all members.
    pub samples: f64,
}

#[derive(Default)]
struct Sums {
    pages: Vec<u32>,
    sums: Vec<f64>,
    /// By page: sum before the page. Empty if few pages have accesses.
    dense: Vec<f64>,
}

/// Sums are kept for all pages if at least one of so many pairs of page and member has accesses. Rules are tried a
/// thousand times, and a look-up is several times as fast as a search.
const DENSE: u64 = 32;
/// Largest number of sums kept for an object: 8 MiB.
const DENSE_MAX: u64 = 1 << 20;

impl Sums {
    fn push(&mut self, page: u32, samples: f64) {
        let sum = self.sums.last().copied().unwrap_or(0.0) + samples;
        if self.pages.last() == Some(&page) {
            *self.sums.last_mut().expect("as many as pages") = sum;
        } else {
            self.pages.push(page);
            self.sums.push(sum);
        }
    }

    /// Sum before `page`, and the position of the page. `from` is the position of an earlier page, or 0.
    #[inline]
    fn before(&self, page: u64, from: usize) -> (f64, usize) {
        if let Some(&last) = self.dense.last() {
            return (*self.dense.get(page as usize).unwrap_or(&last), 0);
        }
        self.search(page, from)
    }

    fn search(&self, page: u64, from: usize) -> (f64, usize) {
        let less = |&other: &u32| u64::from(other) < page;
        // Pieces are visited in order, so the next page is near the last one.
        let (mut low, mut step) = (from, 1);
        while low + step < self.pages.len() && less(&self.pages[low + step]) {
            low += step;
            step *= 2;
        }
        let high = (low + step + 1).min(self.pages.len());
        let at = low + self.pages[low..high].partition_point(less);
        (if at == 0 { 0.0 } else { self.sums[at - 1] }, at)
    }

    /// Keeps a sum for each page up to `end`.
    fn make_dense(&mut self, end: usize) {
        let mut dense = Vec::with_capacity(end + 1);
        let mut before = 0.0;
        for (&page, &sum) in self.pages.iter().zip(&self.sums) {
            dense.resize(page as usize + 1, before);
            before = sum;
        }
        dense.resize(end + 1, before);
        self.dense = dense;
    }

    fn total(&self) -> f64 {
        self.sums.last().copied().unwrap_or(0.0)
    }
}

/// A piece that covers less than this share of a page does not own it. Few of the page's accesses can be the owner's,
/// but counting them all would double the share explained by chance.
const TOUCHED: f64 = 1.0 / 16.0;

/// How well a rule explains the accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Fit {
    /// Share of the accesses that are made by the page's owner, or by either owner of a page where two pieces meet.
    pub explained: f64,
    /// The same share if threads chose pages at random, each thread as often as it accesses the object.
    pub chance: f64,
}

impl Fit {
    /// 0: no better than chance. 1: all accesses are explained.
    pub fn skill(&self) -> f64 {
        if self.chance >= 1.0 {
            0.0
        } else {
            (self.explained - self.chance) / (1.0 - self.chance)
        }
    }

    /// Evidence against chance, in nats per sample.
    pub fn divergence(&self) -> f64 {
        if self.explained <= self.chance {
            0.0
        } else {
            divergence(self.explained, self.chance)
        }
    }
}

/// Kullback–Leibler divergence between two Bernoulli distributions, in nats.
pub(crate) fn divergence(p: f64, q: f64) -> f64 {
    let term = |p: f64, q: f64| {
        if p <= 0.0 {
            0.0
        } else {
            p * (p / q.max(1e-12)).ln()
        }
    };
    term(p, q) + term(1.0 - p, 1.0 - q)
}

impl Ownership {
    /// Adds up the samples of `cells` by page and member, for an object of `size_bytes`.
    pub fn new(cells: &[Cell], team: &Team, page_bytes: u64, size_bytes: u64) -> Ownership {
        let numbers: FxHashMap<ThreadIndex, usize> = team
            .threads
            .iter()
            .enumerate()
            .map(|(n, &t)| (t, n))
            .collect();
        let mut members: Vec<Sums> = team.threads.iter().map(|_| Sums::default()).collect();
        let mut all = Sums::default();
        for cell in cells {
            if let Some(&member) = numbers.get(&cell.thread) {
                let samples = f64::from(cell.samples);
                members[member].push(cell.page, samples);
                all.push(cell.page, samples);
            }
        }
        let samples = all.total();
        let shares = members
            .iter()
            .map(|sums| {
                if samples > 0.0 {
                    sums.total() / samples
                } else {
                    0.0
                }
            })
            .collect();
        let past_last = all.pages.last().map_or(0, |&page| u64::from(page) + 1);
        let sums = past_last * (members.len() as u64 + 1);
        if sums <= DENSE_MAX.min(DENSE * cells.len() as u64) {
            let every = members.iter_mut().chain([&mut all]);
            every.for_each(|sums| sums.make_dense(past_last as usize));
        }
        Ownership {
            page_bytes: page_bytes as f64,
            end: (past_last * page_bytes).min(size_bytes) as f64,
            numbers,
            members,
            all,
            shares,
            samples,
        }
    }

    /// Number of members with accesses.
    pub fn active(&self) -> usize {
        self.shares.iter().filter(|&&share| share > 0.0).count()
    }

    /// Number of a thread in the team.
    pub fn member(&self, thread: ThreadIndex) -> Option<usize> {
        self.numbers.get(&thread).copied()
    }

    pub fn team(&self) -> usize {
        self.members.len()
    }

    /// Number of the page after the last accessed one.
    pub fn end_page(&self) -> u64 {
        self.all.pages.last().map_or(0, |&page| u64::from(page) + 1)
    }

    /// Fit of a rule: pieces of `block_bytes`, dealt to the members in order.
    pub fn fit(&self, block_bytes: f64) -> Fit {
        self.fit_from(0.0, block_bytes)
    }

    /// Fit of pieces that begin at an offset; accesses before the offset have no owner.
    pub fn fit_from(&self, start_bytes: f64, block_bytes: f64) -> Fit {
        let mut fit = Fit::default();
        self.each_piece(start_bytes, block_bytes, |mine, any, share| {
            fit.explained += mine;
            fit.chance += any * share;
        });
        if self.samples > 0.0 {
            fit.explained = (fit.explained / self.samples).min(1.0);
            fit.chance = (fit.chance / self.samples).min(1.0);
        }
        fit
    }

    /// Number of pieces with accesses, and number of those in which the owner makes more than half of the accesses.
    pub fn pieces(&self, block_bytes: f64) -> (f64, f64) {
        let (mut accessed, mut owned) = (0.0, 0.0);
        self.each_piece(0.0, block_bytes, |mine, any, _| {
            if any > 0.0 {
                accessed += 1.0;
                owned += f64::from(u8::from(mine > 0.5 * any));
            }
        });
        (accessed, owned)
    }

    /// Calls `piece` for each piece from an offset on, with the owner's accesses, all accesses, and the owner's share
    /// of all accesses to the object. A page where two pieces meet counts for both, unless a piece covers too little
    /// of it ([`TOUCHED`]).
    fn each_piece(&self, start_bytes: f64, block_bytes: f64, mut piece: impl FnMut(f64, f64, f64)) {
        let pieces = ((self.end - start_bytes) / block_bytes - 1e-6).ceil() as u64;
        let (mut at, mut at_of_member) = (0, vec![0; self.members.len()]);
        let touched = (self.page_bytes * TOUCHED).min(block_bytes / 4.0);
        let mut next = 0;
        while next < pieces {
            let number = next;
            next += 1;
            let member = (number % self.members.len() as u64) as usize;
            let (start, end) = (
                start_bytes + number as f64 * block_bytes,
                start_bytes + (number + 1) as f64 * block_bytes,
            );
            // The numbers are positive, so the cast rounds down.
            let first = ((start + touched) / self.page_bytes) as u64;
            let end = (end - touched) / self.page_bytes;
            let past = end as u64 + u64::from((end as u64 as f64) < end);
            let (before, here) = self.all.before(first, at);
            let any = self.all.before(past, here).0 - before;
            at = here;
            if any > 0.0 {
                let sums = &self.members[member];
                let (before, here) = sums.before(first, at_of_member[member]);
                let mine = sums.before(past, here).0 - before;
                at_of_member[member] = here;
                piece(mine, any, self.shares[member]);
            } else if self.all.dense.is_empty() {
                // Continues one piece before the next page with accesses.
                let Some(&page) = self.all.pages.get(here) else {
                    break;
                };
                let at_bytes = f64::from(page) * self.page_bytes;
                let number = ((at_bytes - start_bytes) / block_bytes) as u64;
                next = next.max(number.saturating_sub(1));
            }
        }
    }

    /// Calls `visit(page, member, samples)` for each page and member with accesses.
    pub fn each_cell(&self, mut visit: impl FnMut(u32, usize, f64)) {
        for (member, sums) in self.members.iter().enumerate() {
            let mut before = 0.0;
            for (&page, &sum) in sums.pages.iter().zip(&sums.sums) {
                visit(page, member, sum - before);
                before = sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn dense_sums_are_the_sparse_ones(
            entries in prop::collection::vec((0u32..3, 0u32..60, 1u32..9), 1..80),
            block_bytes in 1000.0f64..100_000.0,
        ) {
            let threads: Vec<ThreadIndex> = (0..3).map(ThreadIndex).collect();
            let mut cells: Vec<Cell> = entries.iter().map(|&(thread, page, loads)| Cell {
                page,
                thread: ThreadIndex(thread),
                loads: loads as f32,
                stores: 0.0,
                cost_ns: 0.0,
                samples: loads as f32,
            }).collect();
            cells.sort_by_key(|cell| cell.page);
            let team = Team { name: "openmp".to_owned(), pid: 1, threads, is_joined: false };
            let mut ownership = Ownership::new(&cells, &team, 4096, 60 * 4096);
            let dense = (ownership.fit(block_bytes), ownership.pieces(block_bytes));
            let sums = ownership.members.iter_mut().chain([&mut ownership.all]);
            sums.for_each(|sums| sums.dense.clear());
            prop_assert_eq!(dense, (ownership.fit(block_bytes), ownership.pieces(block_bytes)));
        }
    }
}
