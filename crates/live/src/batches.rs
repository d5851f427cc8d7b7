//! Number and time of pages that may be moved in one call: no call may stall the program for longer than allowed, and
//! pages move no faster than the rate limit.
//!
//! While `move_pages` moves a page, threads that touch the page wait; while it flushes translations, every CPU of the
//! program waits. The time per page is unknown at first, so it is measured. A batch has as many pages as fit into half
//! of the longest allowed stall, at the highest recent cost of a page. The first batch is one page.
//!
//! Some calls take longer than that even for one page: the kernel first asks all CPUs for their lists of pages, and an
//! emulated CPU answers late. Small batches save nothing there, so a batch may take twice as long as the fastest recent
//! call with few pages.
//!
//! A huge page cannot be split, and one that would take too long does not move. The measured cost of huge pages decays,
//! so that another huge page is tried after some intervals.

/// Limits on the cost of moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Longest time of one call, in nanoseconds.
    pub stall_ns: u64,
    /// Maximum number of bytes moved per second.
    pub bytes_per_second: u64,
}

/// Planned share of the allowed stall per batch, so that a page may cost twice the highest recent cost.
const PLANNED_SHARE: f64 = 0.5;
/// Maximum growth of a batch relative to the one before.
const GROWTH: usize = 2;
/// Maximum number of pages per batch: the kernel takes the list page by page, and other work waits.
const PAGES_MAX: usize = 4096;
/// Factor by which the highest cost decays with each cheaper batch: one slow batch is forgotten after about thirty.
const MEMORY: f64 = 0.9;
/// A call of fewer pages shows the fixed cost of a call.
const FEW_PAGES: usize = 64;
/// Factor by which the time of the fastest call grows with each further call, so that one lucky call is forgotten.
const QUICKEST_GROWTH: f64 = 1.05;

/// Sizes of batches. The caller passes the time.
#[derive(Clone, Debug)]
pub struct Batches {
    limits: Limits,
    /// Highest recent cost of a page; `None`: nothing has moved yet.
    page_ns: Option<f64>,
    /// Highest recent cost of a huge page; 0: none has moved. Small pages are no basis for it, because most of their
    /// time is the call's fixed cost.
    huge_page_ns: f64,
    /// Time of the fastest recent call with few pages; infinite: there was none.
    quickest_ns: f64,
    /// Maximum number of pages per call where even the fastest call takes too long.
    slow_most: usize,
    last: usize,
    /// Bytes that may move at `at_ns`; negative after a large batch.
    allowance: f64,
    at_ns: u64,
}

impl Batches {
    /// Nothing has moved yet.
    pub fn new(limits: Limits, now_ns: u64) -> Self {
        Self {
            limits,
            page_ns: None,
            huge_page_ns: 0.0,
            quickest_ns: f64::INFINITY,
            slow_most: 1,
            last: 0,
            allowance: 0.0,
            at_ns: now_ns,
        }
    }

    /// Number of pages of `page_bytes` that the next call may move, and the time to wait before the call, in
    /// nanoseconds.
    pub fn next(&mut self, page_bytes: u64, now_ns: u64) -> (usize, u64) {
        let rate = self.limits.bytes_per_second as f64;
        let elapsed = now_ns.saturating_sub(self.at_ns) as f64 / 1e9;
        // The unused allowance is capped at a tenth of a second, to avoid bursts.
        self.allowance = (self.allowance + elapsed * rate).min(rate / 10.0);
        self.at_ns = now_ns;
        let by_stall = match self.page_ns {
            None => 1,
            Some(_) if self.are_calls_slow() => self.slow_most,
            Some(page_ns) => {
                (PLANNED_SHARE * self.limits.stall_ns as f64 / page_ns.max(1.0)) as usize
            }
        };
        let by_rate = (rate / 10.0 / page_bytes as f64) as usize;
        let pages = by_stall
            .min(by_rate)
            .min((self.last * GROWTH).max(1))
            .clamp(1, PAGES_MAX);
        let missing = pages as f64 * page_bytes as f64 - self.allowance;
        let wait_ns = match missing > 0.0 {
            true => (missing / rate * 1e9).ceil() as u64,
            false => 0,
        };
        (pages, wait_ns)
    }

    /// Do all calls take longer than allowed?
    fn are_calls_slow(&self) -> bool {
        self.quickest_ns.is_finite() && self.quickest_ns > self.limits.stall_ns as f64
    }

    /// Would one page with the size of `pages` usual pages take longer than allowed?
    pub fn is_too_long(&self, pages: usize) -> bool {
        pages > 1 && !self.are_calls_slow() && self.huge_page_ns > self.limits.stall_ns as f64
    }

    /// Begins an interval.
    pub fn begin_round(&mut self) {
        self.huge_page_ns *= MEMORY;
    }

    /// Notes a call that moved `moved` pages, with the size of `pages` usual pages, in `elapsed_ns`.
    pub fn done_moves(&mut self, moved: usize, pages: usize, page_bytes: u64, elapsed_ns: u64) {
        if moved > 0 && pages / moved >= FEW_PAGES {
            let page_ns = elapsed_ns as f64 / moved as f64;
            self.huge_page_ns = page_ns.max(self.huge_page_ns * MEMORY);
        }
        self.done(pages, page_bytes, elapsed_ns);
    }

    /// Notes a call that took `elapsed_ns` for the size of `pages` usual pages.
    fn done(&mut self, pages: usize, page_bytes: u64, elapsed_ns: u64) {
        if pages == 0 {
            return;
        }
        self.last = pages;
        self.allowance -= pages as f64 * page_bytes as f64;
        self.quickest_ns *= QUICKEST_GROWTH;
        if pages < FEW_PAGES || self.quickest_ns.is_finite() {
            self.quickest_ns = self.quickest_ns.min(elapsed_ns as f64);
        }
        self.slow_most = match elapsed_ns as f64 <= 2.0 * self.quickest_ns {
            true => self.slow_most.max(pages * GROWTH),
            false => (pages / GROWTH).max(1),
        };
        let page_ns = elapsed_ns as f64 / pages as f64;
        self.page_ns = Some(match self.page_ns {
            Some(dearest) => page_ns.max(dearest * MEMORY),
            None => page_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn limits(stall_ns: u64) -> Limits {
        Limits {
            stall_ns,
            bytes_per_second: 1 << 30,
        }
    }

    #[test]
    fn the_first_batch_is_one_page_and_the_next_at_most_twice_the_last() {
        let mut batches = Batches::new(limits(20_000_000), 0);
        let mut now_ns = 1_000_000_000;
        let mut sizes = Vec::new();
        for _ in 0..14 {
            let (pages, wait_ns) = batches.next(PAGE, now_ns);
            now_ns += wait_ns + 5_000 * pages as u64;
            batches.done(pages, PAGE, 5_000 * pages as u64);
            sizes.push(pages);
        }
        // At 5 µs per page, 2,000 pages fit into half of 20 ms.
        assert_eq!(
            sizes,
            [
                1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2000, 2000, 2000
            ]
        );
    }

    #[test]
    fn dear_pages_move_one_by_one() {
        let mut batches = Batches::new(limits(1_000_000), 0);
        batches.done(1, PAGE, 800_000);
        assert_eq!(batches.next(PAGE, 1_000_000_000).0, 1);
    }

    #[test]
    fn what_small_pages_take_says_nothing_of_a_huge_one() {
        let mut batches = Batches::new(limits(20_000_000), 0);
        // A page in a call of its own takes as long as the call.
        batches.done_moves(1, 1, PAGE, 1_000_000);
        batches.done_moves(3, 3, PAGE, 1_000_000);
        assert!(!batches.is_too_long(512));
    }

    #[test]
    fn a_huge_page_that_takes_too_long_is_tried_again_after_some_intervals() {
        const HUGE: usize = 512;
        let mut batches = Batches::new(limits(20_000_000), 0);
        assert!(!batches.is_too_long(HUGE), "nothing is known");
        batches.done_moves(1, HUGE, PAGE, 30_000_000);
        assert!(batches.is_too_long(HUGE) && !batches.is_too_long(1));
        let rounds = (1..100).find(|_| {
            batches.begin_round();
            !batches.is_too_long(HUGE)
        });
        assert_eq!(rounds, Some(4));
        batches.done_moves(1, HUGE, PAGE, 500_000);
        assert!(!batches.is_too_long(HUGE));
        // If one small page takes as long, the size of the huge page is not the reason.
        batches.done_moves(1, HUGE, PAGE, 60_000_000);
        batches.done_moves(1, 1, PAGE, 30_000_000);
        assert!(!batches.is_too_long(HUGE));
    }

    #[test]
    fn calls_that_are_slow_whatever_they_move_get_larger_all_the_same() {
        let mut batches = Batches::new(limits(20_000_000), 0);
        let (mut now_ns, mut sizes) = (1_000_000_000, Vec::new());
        for round in 0..20u64 {
            let (pages, wait_ns) = batches.next(PAGE, now_ns);
            // A call takes 60 to 100 ms, and 100 µs per page.
            let elapsed_ns = 60_000_000 + round % 5 * 10_000_000 + 100_000 * pages as u64;
            now_ns += wait_ns + elapsed_ns;
            batches.done(pages, PAGE, elapsed_ns);
            sizes.push(pages);
        }
        assert!(sizes.iter().any(|&pages| pages >= 128), "{sizes:?}");
        // A call with 2,048 pages takes some three times as long as an empty one.
        assert!(sizes.iter().all(|&pages| pages <= 2048), "{sizes:?}");
    }

    #[test]
    fn pages_move_no_faster_than_they_may() {
        let mut batches = Batches::new(
            Limits {
                stall_ns: 20_000_000,
                bytes_per_second: 100 * PAGE,
            },
            0,
        );
        let (mut now_ns, mut moved) = (0, 0);
        while now_ns < 10_000_000_000 {
            let (pages, wait_ns) = batches.next(PAGE, now_ns);
            now_ns += wait_ns + 1000;
            batches.done(pages, PAGE, 1000);
            moved += pages;
        }
        assert!((990..=1020).contains(&moved), "{moved}");
    }

    proptest! {
        /// The bound holds if no page costs more than twice the highest cost in the batch before.
        #[test]
        fn no_call_takes_longer_than_the_stall_that_is_allowed(
            stall_us in 200u64..50_000,
            costs in prop::collection::vec(1_000u64..100_000, 1..200),
        ) {
            let stall_ns = stall_us * 1000;
            let mut batches = Batches::new(limits(stall_ns), 0);
            let mut now_ns = 0;
            let mut dearest = 0;
            for cost in costs {
                let (pages, wait_ns) = batches.next(PAGE, now_ns);
                let cost = if dearest == 0 { cost } else { cost.min(2 * dearest) };
                let elapsed_ns = cost * pages as u64;
                // A single page cannot be split.
                prop_assert!(elapsed_ns <= stall_ns || pages == 1, "{} pages, {} ns", pages, elapsed_ns);
                batches.done(pages, PAGE, elapsed_ns);
                dearest = cost;
                now_ns += wait_ns + elapsed_ns;
            }
        }
    }
}
