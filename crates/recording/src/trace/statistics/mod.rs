//! Statistics of all misses of a program that concern replication and hot pages, in one pass over a trace: read chains,
//! the hot-page curve and read-mostly shares (Verghese, Devine, Gupta and Rosenblum 1996: Figures 6.2 and 7.2, Table
//! 6).
//!
//! A miss is a reference that a recording hands out as an access: it missed all caches, or is an upgrade, which is a
//! write. Kept hits are no misses. If a program marked a stable phase, only this phase counts.
//!
//! Memory use does not depend on the trace's length: 14 bytes per page; 20 to 40 per page and CPU that read the page (a
//! hash table); at most 3.5 million counted words, 71 MiB and 54 more at the end; and a frame, about 3 MiB, of each
//! thread that has begun and not ended.

mod chains;
mod hot_pages;
mod read_mostly;
mod system;

pub use chains::{ChainShare, ReadChains};
pub use hot_pages::HotPages;
pub use read_mostly::{READ_MOSTLY_WRITES_MAX, ReadMostly};
pub use system::{ModeMisses, SegmentMisses, SystemStatistics};

use self::chains::ChainCounter;
use self::hot_pages::PageCounters;
use self::read_mostly::WordCounters;
use self::system::SystemCounters;
use crate::{AccessKind, Error, Recording};

/// Results of one pass over a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceStatistics {
    /// Loads and stores that missed.
    pub data_misses: u64,
    /// Instruction fetches that missed.
    pub fetch_misses: u64,
    /// References that missed the TLB.
    pub tlb_misses: u64,
    /// Pages whose code missed.
    pub code_pages: u64,
    /// Pages whose data missed; a page may have both code and data.
    pub data_pages: u64,
    /// Data misses by the length of the read chains that contain them.
    pub chains: ReadChains,
    /// Share of the misses to the hottest pages.
    pub hot_pages: HotPages,
    /// Misses to rarely written memory.
    pub read_mostly: ReadMostly,
    /// For a whole system: misses of kernel and programs, and the kernel's misses by region.
    pub system: Option<SystemStatistics>,
}

impl Recording {
    /// Goes through all misses of a trace, in order.
    ///
    /// # Errors
    /// [`Error::SamplesOnly`], [`Error::Damaged`], [`Error::Io`].
    pub fn trace_statistics(&self) -> Result<TraceStatistics, Error> {
        let traced = self.shared_trace()?;
        let marked = traced.images.files.iter().map(|file| {
            let marks = &self.metadata.marks;
            marks.iter().any(|mark| mark.pid == file.header.pid)
        });
        let marked: Vec<bool> = marked.collect();
        let mut statistics = TraceStatistics::default();
        let mut chains = ChainCounter::new(traced.pages.len());
        let mut pages = PageCounters::new(traced.pages.len());
        let mut words = WordCounters::default();
        let mut system = traced
            .is_of_whole_system()
            .then(|| SystemCounters::new(traced.pages.len()));
        let mut of_code_or_data = vec![[false; 2]; traced.pages.len()];
        traced.in_order(&marked, |reference| {
            let page = reference.page.0;
            if reference.tlb_miss {
                statistics.tlb_misses += 1;
                pages.tlb_miss(page);
            }
            if let Some(system) = &mut system {
                system.count(reference);
            }
            if !reference.cache_miss {
                return;
            }
            pages.cache_miss(page);
            let write = match reference.kind {
                AccessKind::Fetch => {
                    statistics.fetch_misses += 1;
                    of_code_or_data[page as usize][0] = true;
                    return;
                }
                kind => kind == AccessKind::Store,
            };
            statistics.data_misses += 1;
            of_code_or_data[page as usize][1] = true;
            match write {
                true => chains.write(page),
                false => chains.read(page, reference.cpu),
            }
            words.count(page, reference.offset, write);
        })?;
        let pages_of = |what: usize| of_code_or_data.iter().filter(|page| page[what]).count();
        statistics.code_pages = pages_of(0) as u64;
        statistics.data_pages = pages_of(1) as u64;
        statistics.chains = chains.finish();
        statistics.hot_pages = pages.finish();
        statistics.read_mostly = words.finish();
        statistics.system = system.map(SystemCounters::finish);
        Ok(statistics)
    }
}
