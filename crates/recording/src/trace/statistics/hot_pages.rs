//! Share of the misses to the hottest pages, with pages ranked by cache misses or by TLB misses (Verghese Figure 7.2).
//! Where the curves are close, TLB misses find the hot pages, too.

use std::cmp::Reverse;

/// Number of steps of a curve, from no page to all pages.
const STEPS: usize = 100;

/// Share of all cache misses (code included) to the hottest pages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HotPages {
    /// Number of pages with a miss of either kind.
    pub pages: u64,
    /// At each percent of these pages, from 0 to 100, rounded down to whole pages: the share of
    /// cache misses (0 to 1) that are to the pages with the most cache misses.
    pub by_cache_misses: Vec<f64>,
    /// Like `by_cache_misses`, for the pages with the most TLB misses.
    pub by_tlb_misses: Vec<f64>,
    /// At the same percentages, the share of all TLB misses that are to the pages with the most TLB misses; used to
    /// combine the curves of several programs.
    pub tlb_misses: Vec<f64>,
}

/// Counts by page.
#[derive(Clone, Debug)]
pub(super) struct PageCounters {
    /// Cache and TLB misses.
    pages: Vec<(u32, u32)>,
}

impl PageCounters {
    pub fn new(pages: usize) -> Self {
        Self {
            pages: vec![(0, 0); pages],
        }
    }

    #[inline]
    pub fn cache_miss(&mut self, page: u32) {
        let (cache, _) = &mut self.pages[page as usize];
        *cache = cache.saturating_add(1);
    }

    #[inline]
    pub fn tlb_miss(&mut self, page: u32) {
        let (_, tlb) = &mut self.pages[page as usize];
        *tlb = tlb.saturating_add(1);
    }

    pub fn finish(mut self) -> HotPages {
        self.pages.retain(|counts| *counts != (0, 0));
        // Ties go to the page with fewer cache misses, so that the curve shows what TLB misses alone tell.
        self.pages
            .sort_unstable_by_key(|(cache, _)| Reverse(*cache));
        let cache = |&(cache, _): &(u32, u32)| cache;
        let by_cache_misses = curve(&self.pages, cache);
        self.pages
            .sort_unstable_by_key(|(cache, tlb)| (Reverse(*tlb), *cache));
        HotPages {
            pages: self.pages.len() as u64,
            by_cache_misses,
            by_tlb_misses: curve(&self.pages, cache),
            tlb_misses: curve(&self.pages, |&(_, tlb)| tlb),
        }
    }
}

/// Share of the counted misses to the first pages, at each step.
fn curve(pages: &[(u32, u32)], counted: impl Fn(&(u32, u32)) -> u32) -> Vec<f64> {
    let sum =
        |pages: &[(u32, u32)]| -> u64 { pages.iter().map(|page| u64::from(counted(page))).sum() };
    let all = sum(pages);
    let (mut taken, mut misses) = (0, 0);
    let point = |step: usize| {
        let upto = pages.len() * step / STEPS;
        misses += sum(&pages[taken..upto]);
        taken = upto;
        misses as f64 / all.max(1) as f64
    };
    (0..=STEPS).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_hottest_tenth() {
        let mut counters = PageCounters::new(30);
        // Ten of thirty pages are used; the first has 91 of 100 cache misses and no TLB miss.
        for page in 0..10 {
            for _ in 0..if page == 0 { 91 } else { 1 } {
                counters.cache_miss(page);
            }
            if page > 0 {
                counters.tlb_miss(page);
            }
        }
        let found = counters.finish();
        assert_eq!(found.pages, 10);
        assert_eq!(found.by_cache_misses[9..=11], [0.0, 0.91, 0.91]);
        assert_eq!(found.by_cache_misses[20], 0.92);
        assert_eq!(found.by_tlb_misses[90], 0.09);
        assert_eq!(found.by_tlb_misses[100], 1.0);
        assert_eq!(found.tlb_misses[9..=10], [0.0, 1.0 / 9.0]);
        assert_eq!(found.tlb_misses[90], 1.0);
    }

    proptest! {
        /// No order of the pages has a higher curve than the order by cache misses, and both curves end with all
        /// misses.
        #[test]
        fn cache_misses_find_the_hottest(counts in prop::collection::vec((0u32..50, 0u32..50), 1..300)) {
            let mut counters = PageCounters::new(counts.len());
            for (page, (cache, tlb)) in counts.iter().enumerate() {
                (0..*cache).for_each(|_| counters.cache_miss(page as u32));
                (0..*tlb).for_each(|_| counters.tlb_miss(page as u32));
            }
            let HotPages { by_cache_misses, by_tlb_misses, .. } = counters.finish();
            for (best, other) in by_cache_misses.iter().zip(&by_tlb_misses) {
                prop_assert!(other <= best);
            }
            prop_assert!(by_cache_misses.windows(2).all(|pair| pair[0] <= pair[1]));
            let all = f64::from(u8::from(counts.iter().any(|(cache, _)| *cache > 0)));
            prop_assert_eq!((by_cache_misses[100], by_tlb_misses[100]), (all, all));
        }
    }
}
