//! Statistics of a whole system: misses of the kernel and of programs (Verghese Tables 3 and 4), and the kernel's
//! misses by region of its address space (Table 6).

use nearpage_wire::trace::Segment;

use super::super::ordered::OrderedReference;
use super::read_mostly::{ReadMostly, WordCounters};
use crate::AccessKind;

/// Misses of the kernel, or of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModeMisses {
    /// Loads that missed all caches.
    pub reads: u64,
    /// Stores that missed all caches, or had to take the line from other caches.
    pub writes: u64,
    /// Instruction fetches that missed.
    pub fetches: u64,
    /// References that missed the TLB.
    pub tlb_misses: u64,
    /// Pages whose code missed.
    pub code_pages: u64,
    /// Pages whose data missed.
    pub data_pages: u64,
}

/// The kernel's misses to one region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SegmentMisses {
    /// The region.
    pub segment: Segment,
    /// Loads that missed.
    pub reads: u64,
    /// Stores that missed.
    pub writes: u64,
    /// Instruction fetches that missed.
    pub fetches: u64,
    /// Share of the loads and stores to memory in the region that the kernel rarely writes.
    pub read_mostly: ReadMostly,
}

/// Results of one pass over the trace of a whole system.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SystemStatistics {
    /// Misses of the kernel.
    pub kernel: ModeMisses,
    /// Misses of programs.
    pub user: ModeMisses,
    /// Misses of the kernel by region, including regions without a miss.
    pub segments: Vec<SegmentMisses>,
}

/// Counts misses of the kernel and of programs.
pub(super) struct SystemCounters {
    /// By page: code and data of programs, code and data of the kernel.
    pages: Vec<[bool; 4]>,
    user: ModeMisses,
    kernel: ModeMisses,
    segments: [[u64; 3]; Segment::ALL.len()],
    words: [WordCounters; Segment::ALL.len()],
}

impl SystemCounters {
    pub fn new(pages: usize) -> Self {
        Self {
            pages: vec![[false; 4]; pages],
            user: ModeMisses::default(),
            kernel: ModeMisses::default(),
            segments: Default::default(),
            words: Default::default(),
        }
    }

    pub fn count(&mut self, reference: &OrderedReference) {
        let mode = if reference.kernel {
            &mut self.kernel
        } else {
            &mut self.user
        };
        mode.tlb_misses += u64::from(reference.tlb_miss);
        if !reference.cache_miss {
            return;
        }
        let (counter, what) = match reference.kind {
            AccessKind::Fetch => (&mut mode.fetches, 2),
            AccessKind::Store => (&mut mode.writes, 1),
            _ => (&mut mode.reads, 0),
        };
        *counter += 1;
        let page = reference.page.0;
        let of_page = &mut self.pages[page as usize];
        of_page[2 * usize::from(reference.kernel) + usize::from(what < 2)] = true;
        if reference.kernel {
            let segment = reference.segment as usize;
            self.segments[segment][what] += 1;
            if what < 2 {
                self.words[segment].count(page, reference.offset, what == 1);
            }
        }
    }

    pub fn finish(mut self) -> SystemStatistics {
        let pages = |what: usize| self.pages.iter().filter(|page| page[what]).count() as u64;
        (self.user.code_pages, self.user.data_pages) = (pages(0), pages(1));
        (self.kernel.code_pages, self.kernel.data_pages) = (pages(2), pages(3));
        let counted = Segment::ALL.into_iter().zip(self.segments).zip(self.words);
        SystemStatistics {
            kernel: self.kernel,
            user: self.user,
            segments: counted
                .map(
                    |((segment, [reads, writes, fetches]), words)| SegmentMisses {
                        segment,
                        reads,
                        writes,
                        fetches,
                        read_mostly: words.finish(),
                    },
                )
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::PageIndex;

    #[test]
    fn misses_are_whose_they_are() {
        let mut counters = SystemCounters::new(3);
        let mut miss = |page, kind, kernel, segment| {
            counters.count(&OrderedReference {
                page: PageIndex(page),
                offset: 8,
                cpu: 0,
                kind,
                cache_miss: true,
                tlb_miss: page == 2,
                kernel,
                segment,
            });
        };
        miss(0, AccessKind::Load, false, Segment::User);
        // The kernel copies from a program's page.
        miss(0, AccessKind::Load, true, Segment::User);
        miss(1, AccessKind::Fetch, true, Segment::KernelImage);
        miss(2, AccessKind::Load, true, Segment::DirectMap);
        miss(2, AccessKind::Store, true, Segment::DirectMap);
        let found = counters.finish();
        let user = ModeMisses {
            reads: 1,
            data_pages: 1,
            ..ModeMisses::default()
        };
        let kernel = ModeMisses {
            reads: 2,
            writes: 1,
            fetches: 1,
            tlb_misses: 2,
            code_pages: 1,
            data_pages: 2,
        };
        assert_eq!((found.user, found.kernel), (user, kernel));
        let of = |segment: Segment| found.segments[segment as usize];
        let counts = |segment| {
            let SegmentMisses {
                reads,
                writes,
                fetches,
                read_mostly,
                ..
            } = of(segment);
            (reads, writes, fetches, read_mostly.page)
        };
        assert_eq!(counts(Segment::User), (1, 0, 0, 1.0));
        assert_eq!(counts(Segment::KernelImage), (0, 0, 1, 0.0));
        assert_eq!(counts(Segment::DirectMap), (1, 1, 0, 0.0));
    }
}
