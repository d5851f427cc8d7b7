//! Finds the pages at which an object's users change: the cuts that explain its samples best.
//!
//! Each segment's samples are drawn from threads with unknown shares. A cut is rated by its marginal likelihood: per
//! segment, a Dirichlet–multinomial with parameters 1 ÷ threads, which expects few users, times 1 ÷ places for its
//! beginning. Dynamic programming finds the best of all cuts (the segment-neighbourhood method of Auger and Lawrence,
//! 1989, with a cost per segment in place of their number). A segment therefore needs some twenty samples' worth of
//! evidence, and noise is not cut at all.

use nearpage_recording::ThreadIndex;
use rustc_hash::FxHashMap;

use crate::pieces::segments_of_pieces;
use crate::{Affinity, Cell, pattern::Effort};

/// Largest number of places for a cut; objects with more pages are searched coarsely first. The search takes quadratic
/// time in this number.
const PLACES_MAX: usize = 512;
/// Largest number of places in a resample.
const PLACES_RESAMPLE: usize = 128;
/// Largest number of distinct threads; further, less active threads count as one.
const THREADS_MAX: usize = 64;
/// Number of samples to which counts are scaled down: cuts are certain by then, and tables stay small.
const SAMPLES_MAX: f64 = 16_384.0;

/// Consecutive pages with the same users.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// First page that certainly belongs to the segment, in units of [`Affinity::page_bytes`].
    pub first_page: u32,
    /// Last page that certainly belongs to the segment.
    pub last_page: u32,
    /// The thread with most samples, the lowest of several.
    pub user: ThreadIndex,
    /// Share of `user` in the segment's samples, 0 to 1.
    pub share: f64,
    /// Number of samples of all threads.
    pub samples: f64,
}

impl Segment {
    /// Offsets of the segment's first byte and of the byte after its last one. `affinity` is the object's.
    pub fn part_bytes(&self, affinity: &Affinity) -> [u64; 2] {
        let offset = |page: u64| page.saturating_mul(affinity.page_bytes);
        [
            offset(self.first_page.into()),
            offset(u64::from(self.last_page) + 1),
        ]
    }
}

/// Cuts an object into segments, ascending; empty without samples. Segments that are whole pieces of one size include
/// pages without samples.
pub fn find_segments(affinity: &Affinity) -> Vec<Segment> {
    segments_of(&affinity.cells, affinity.pages, Effort::Recording)
}

/// [`find_segments`] for the cells of an object with `pages` pages.
pub(crate) fn segments_of(cells: &[Cell], pages: u32, effort: Effort) -> Vec<Segment> {
    let Some(counts) = Counts::new(cells) else {
        return Vec::new();
    };
    let found = anywhere(&counts, effort);
    segments_of_pieces(&counts, pages, found.evidence, effort).unwrap_or(found.segments)
}

pub(crate) fn segments(cells: &[Cell], effort: Effort) -> Vec<Segment> {
    let counts = Counts::new(cells);
    counts.map_or(Vec::new(), |counts| anywhere(&counts, effort).segments)
}

/// Segments that may begin at any page.
pub(crate) struct Anywhere {
    pub segments: Vec<Segment>,
    /// Log-likelihood of the samples in nats, less the cost of each segment's beginning.
    pub evidence: f64,
}

pub(crate) fn anywhere(counts: &Counts, effort: Effort) -> Anywhere {
    let coarse = counts.places(match effort {
        Effort::Recording => PLACES_MAX,
        Effort::Resample { .. } => PLACES_RESAMPLE,
    });
    let each = effort.enough((coarse.len() as f64).ln());
    let mut cuts = best_cuts(counts, &coarse, each);
    if coarse.len() < counts.pages.len() {
        refine(counts, &coarse, &mut cuts);
        drop_needless(counts, each, &mut cuts);
    }
    let ends = cuts.iter().skip(1).copied().chain([counts.pages.len()]);
    let found = cuts.iter().copied().zip(ends);
    let evidence = found
        .clone()
        .map(|(first, end)| counts.evidence(first, end) - each);
    Anywhere {
        evidence: evidence.sum(),
        segments: found
            .map(|(first, end)| counts.segment(first, end))
            .collect(),
    }
}

/// Cumulative samples by page and thread.
pub(crate) struct Counts<'a> {
    cells: &'a [Cell],
    /// Pages with samples, and the positions of their first cells.
    pub pages: Vec<(u32, usize)>,
    threads: usize,
    /// By page, then thread: number of samples before the page, rounded.
    before: Vec<u32>,
    /// ln Γ(n + 1 ÷ threads) − ln Γ(1 ÷ threads), by n.
    of_thread: Vec<f64>,
    /// ln Γ(n + 1), by n.
    of_all: Vec<f64>,
}

impl<'a> Counts<'a> {
    pub fn new(cells: &'a [Cell]) -> Option<Self> {
        let mut activity: Vec<(ThreadIndex, f64)> = Vec::new();
        let mut sorted: Vec<&Cell> = cells.iter().collect();
        sorted.sort_by_key(|cell| cell.thread);
        for of_thread in sorted.chunk_by(|a, b| a.thread == b.thread) {
            let sum = of_thread.iter().map(|cell| f64::from(cell.samples)).sum();
            activity.push((of_thread[0].thread, sum));
        }
        let all: f64 = activity.iter().map(|one| one.1).sum();
        if all <= 0.0 {
            return None;
        }
        activity.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let threads = activity.len().min(THREADS_MAX);
        let mut numbers: Vec<(ThreadIndex, usize)> = activity
            .iter()
            .enumerate()
            .map(|(number, one)| (one.0, number.min(threads - 1)))
            .collect();
        numbers.sort_unstable();
        let scale = (SAMPLES_MAX / all).min(1.0);
        let mut pages: Vec<(u32, usize)> = Vec::new();
        let mut sums = vec![0.0; threads];
        let mut before: Vec<u32> = Vec::new();
        for (at, cell) in cells.iter().enumerate() {
            if pages.last().is_none_or(|page| page.0 != cell.page) {
                pages.push((cell.page, at));
                before.extend(sums.iter().map(|sum: &f64| sum.round() as u32));
            }
            let found = numbers.binary_search_by_key(&cell.thread, |number| number.0);
            sums[numbers[found.ok()?].1] += f64::from(cell.samples) * scale;
        }
        before.extend(sums.iter().map(|sum| sum.round() as u32));
        let most = (all * scale).ceil() as usize + threads + 1;
        let alpha = 1.0 / threads as f64;
        Some(Self {
            cells,
            pages,
            threads,
            before,
            of_thread: rising(alpha, most),
            of_all: rising(1.0, most),
        })
    }

    /// Positions of pages at which cuts are tried, at most `most`, beginning with the first page. The numbers of
    /// samples between them are about equal.
    fn places(&self, most: usize) -> Vec<usize> {
        let pages = self.pages.len();
        if pages <= most {
            return (0..pages).collect();
        }
        let sum = |at: usize| -> u64 {
            let row = &self.before[at * self.threads..(at + 1) * self.threads];
            row.iter().map(|&count| u64::from(count)).sum()
        };
        let each = (sum(pages) / most as u64).max(1);
        let mut places = vec![0];
        let mut begun = 0;
        for at in 1..pages {
            let sum = sum(at);
            if sum >= begun + each {
                places.push(at);
                begun = sum;
            }
        }
        places
    }

    /// Log of the marginal likelihood of the samples between two positions.
    pub fn evidence(&self, first: usize, end: usize) -> f64 {
        let row = |at: usize| &self.before[at * self.threads..(at + 1) * self.threads];
        let (mut all, mut sum) = (0, 0.0);
        for (&before, &after) in row(first).iter().zip(row(end)) {
            let count = (after - before) as usize;
            all += count;
            sum += self.of_thread[count];
        }
        sum - self.of_all[all]
    }

    /// The cells of the pages between two positions.
    fn cells_of(&self, first: usize, end: usize) -> &'a [Cell] {
        let of = |at: usize| self.pages.get(at).map_or(self.cells.len(), |page| page.1);
        &self.cells[of(first)..of(end)]
    }

    /// Share of each thread in the accesses between two positions.
    fn shares(&self, first: usize, end: usize) -> FxHashMap<ThreadIndex, f64> {
        let mut shares: FxHashMap<ThreadIndex, f64> = FxHashMap::default();
        let mut all = 0.0;
        for cell in self.cells_of(first, end) {
            *shares.entry(cell.thread).or_default() += f64::from(cell.samples);
            all += f64::from(cell.samples);
        }
        shares
            .values_mut()
            .for_each(|share| *share /= f64::max(all, f64::MIN_POSITIVE));
        shares
    }

    /// Position of the first page with samples at `page` or later; `from` is an earlier position.
    pub fn position(&self, page: u32, from: usize) -> usize {
        from + self.pages[from..].partition_point(|one| one.0 < page)
    }

    /// The segment between two positions.
    pub fn segment(&self, first: usize, end: usize) -> Segment {
        let mut cells: Vec<&Cell> = self.cells_of(first, end).iter().collect();
        cells.sort_by_key(|cell| cell.thread);
        let (mut user, mut most, mut all) = (cells[0].thread, 0.0, 0.0);
        for of_thread in cells.chunk_by(|a, b| a.thread == b.thread) {
            let sum: f64 = of_thread.iter().map(|cell| f64::from(cell.samples)).sum();
            all += sum;
            if sum > most {
                (user, most) = (of_thread[0].thread, sum);
            }
        }
        Segment {
            first_page: self.pages[first].0,
            last_page: self.pages[end - 1].0,
            user,
            share: if all > 0.0 { most / all } else { 0.0 },
            samples: all,
        }
    }
}

/// ln Γ(n + a) − ln Γ(a) for n up to and including `most`.
fn rising(a: f64, most: usize) -> Vec<f64> {
    let mut sums = Vec::with_capacity(most + 1);
    let mut sum = 0.0;
    for n in 0..=most {
        sums.push(sum);
        sum += (n as f64 + a).ln();
    }
    sums
}

/// The best cuts among `places`, including the first. Each cut costs `each` nats.
fn best_cuts(counts: &Counts, places: &[usize], each: f64) -> Vec<usize> {
    let end = counts.pages.len();
    // By number of places passed: the best log-likelihood, and the place where the last segment begins.
    let mut best: Vec<(f64, usize)> = vec![(0.0, 0)];
    for to in 1..=places.len() {
        let to_page = places.get(to).copied().unwrap_or(end);
        let from = (0..to).map(|from| {
            let evidence = counts.evidence(places[from], to_page);
            (best[from].0 + evidence - each, from)
        });
        let found = from.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        best.push(found.unwrap_or((0.0, 0)));
    }
    let mut cuts = Vec::new();
    let mut at = places.len();
    while at > 0 {
        at = best[at].1;
        cuts.push(places[at]);
    }
    cuts.reverse();
    cuts
}

/// Removes cuts that cost more than they explain, the worst first.
fn drop_needless(counts: &Counts, each: f64, cuts: &mut Vec<usize>) {
    loop {
        let saved = |number: usize| {
            let (low, cut) = (cuts[number - 1], cuts[number]);
            let high = cuts.get(number + 1).copied().unwrap_or(counts.pages.len());
            let apart = counts.evidence(low, cut) + counts.evidence(cut, high) - each;
            counts.evidence(low, high) - apart
        };
        let most = (1..cuts.len())
            .map(|number| (number, saved(number)))
            .max_by(|a, b| a.1.total_cmp(&b.1));
        match most {
            Some((number, saved)) if saved >= 0.0 => drop(cuts.remove(number)),
            _ => return,
        }
    }
}

/// Moves each cut to the page, between the neighbouring coarse places, that best separates the users on both sides.
fn refine(counts: &Counts, places: &[usize], cuts: &mut [usize]) {
    let end = counts.pages.len();
    for number in 1..cuts.len() {
        let low = cuts[number - 1];
        let high = cuts.get(number + 1).copied().unwrap_or(end);
        let place = places.partition_point(|&place| place < cuts[number]);
        let from = places[place.saturating_sub(1)].max(low + 1);
        let to = places.get(place + 1).copied().unwrap_or(end).min(high - 1);
        // Each access favours the side where its thread has the larger share.
        let [left, right] = [(low, cuts[number]), (cuts[number], high)]
            .map(|(first, end)| counts.shares(first, end));
        let (mut sum, mut best) = (0.0, (0.0, from));
        for cut in from..to {
            for cell in counts.cells_of(cut, cut + 1) {
                let share = |shares: &FxHashMap<ThreadIndex, f64>| {
                    shares.get(&cell.thread).copied().unwrap_or(0.0) + SHARE_MIN
                };
                sum += f64::from(cell.samples) * (share(&left) / share(&right)).ln();
            }
            if sum > best.0 {
                best = (sum, cut + 1);
            }
        }
        cuts[number] = best.1;
    }
}

/// Added to each thread's share, so that one stray access does not decide.
const SHARE_MIN: f64 = 0.01;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn cell(page: u32, thread: u32, loads: f32) -> Cell {
        Cell {
            page,
            thread: ThreadIndex(thread),
            loads,
            stores: 0.0,
            cost_ns: 0.0,
            samples: loads,
        }
    }

    /// One access to each page by the thread that `user` returns.
    pub(crate) fn each_page(pages: u32, user: impl Fn(u32) -> u32) -> Vec<Cell> {
        (0..pages).map(|page| cell(page, user(page), 1.0)).collect()
    }

    fn bounds(cells: &[Cell]) -> Vec<(u32, u32, u32)> {
        segments(cells, Effort::Recording)
            .iter()
            .map(|one| (one.first_page, one.last_page, one.user.0))
            .collect()
    }

    #[test]
    fn users_in_a_row_are_cut_where_they_change() {
        let cells = each_page(400, |page| [3, 1, 0, 2][page as usize / 100]);
        assert_eq!(
            bounds(&cells),
            [(0, 99, 3), (100, 199, 1), (200, 299, 0), (300, 399, 2)]
        );
    }

    #[test]
    fn cuts_are_exact_to_a_page_however_many_there_are() {
        let cells = each_page(100_000, |page| u32::from(page >= 33_333));
        assert_eq!(bounds(&cells), [(0, 33_332, 0), (33_333, 99_999, 1)]);
    }

    #[test]
    fn strays_are_no_segments() {
        let cells = each_page(400, |page| match page {
            57 | 58 | 301 => 2,
            _ => page / 200,
        });
        let found = segments(&cells, Effort::Recording);
        assert_eq!(found.len(), 2);
        assert!((found[0].share - 0.99).abs() < 1e-6);
        assert_eq!(found[1].samples, 200.0);
    }

    #[test]
    fn no_samples_have_no_segments() {
        assert_eq!(segments(&[], Effort::Recording), []);
        assert_eq!(segments(&[cell(3, 0, 0.0)], Effort::Recording), []);
    }

    proptest! {
        /// If threads take pages at random, the object stays whole, except for one in a hundred objects.
        #[test]
        fn chance_is_not_cut(seed in any::<u64>(), threads in 2u64..9, pages in 20u32..3_000) {
            let mut state = seed | 1;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state >> 33
            };
            let users: Vec<u32> = (0..pages).map(|_| (next() % threads) as u32).collect();
            let cells = each_page(pages, |page| users[page as usize]);
            prop_assert!(segments(&cells, Effort::Recording).len() <= 2);
        }

        #[test]
        fn segments_have_all_samples_once(
            entries in prop::collection::btree_map((0u32..500, 0u32..80), 0.1f32..9.0, 1..300),
        ) {
            let cells: Vec<Cell> = entries.iter().map(|(&(page, thread), &loads)| cell(page, thread, loads)).collect();
            let found = segments(&cells, Effort::Recording);
            let all: f64 = cells.iter().map(|cell| f64::from(cell.samples)).sum();
            let sum: f64 = found.iter().map(|one| one.samples).sum();
            prop_assert!((sum - all).abs() < 1e-6 * all);
            prop_assert_eq!(found[0].first_page, cells[0].page);
            prop_assert_eq!(found[found.len() - 1].last_page, cells[cells.len() - 1].page);
            for pair in found.windows(2) {
                prop_assert!(pair[0].last_page < pair[1].first_page);
            }
        }
    }
}
