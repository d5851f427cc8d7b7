//! Read chains, hot pages and read-mostly shares of a trace.

use nearpage_recording::trace::{
    ModeMisses, READ_MOSTLY_WRITES_MAX, SystemStatistics, TraceStatistics,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::table::wrap;
use nearpage_amount::{count, percent};

/// Lengths of read chains, and percents of the pages, in the text: those of Verghese's Figures 6.2 and 7.2.
const LENGTHS: [u64; 4] = [2, 8, 64, 512];
const PERCENTS: [usize; 5] = [1, 5, 10, 20, 50];

/// Text of the statistics, in lines of at most `columns_max`.
pub(crate) fn lines(statistics: &TraceStatistics, columns_max: usize) -> String {
    let TraceStatistics {
        data_misses,
        fetch_misses,
        chains,
        hot_pages,
        read_mostly,
        system,
        ..
    } = statistics;
    let mut parts = vec![vec![
        format!("{} data misses", count(*data_misses as f64)),
        format!("{} of code", count(*fetch_misses as f64)),
    ]];
    parts.extend(system.iter().flat_map(system_lines));
    if *data_misses > 0 {
        let share = |length: u64| {
            let found = chains.shares.iter().find(|share| share.length == length);
            percent(found.map_or(0.0, |found| found.share))
        };
        let mut words = vec![format!(
            "in read chains of {} and more {}",
            LENGTHS[0],
            share(LENGTHS[0])
        )];
        words.extend(
            LENGTHS[1..]
                .iter()
                .map(|&length| format!("of {length} {}", share(length))),
        );
        words.push(format!("longest {}", chains.longest));
        parts.push(words);
        let mut words = vec![format!(
            "to read-mostly pages {}",
            percent(read_mostly.page)
        )];
        words.push(format!("lines {}", percent(read_mostly.line)));
        words.push(format!("words {}", percent(read_mostly.word)));
        words.push(format!("writes {}", percent(read_mostly.writes)));
        if read_mostly.one_page_in > 1 {
            words.push(format!(
                "estimated from one page in {}",
                read_mostly.one_page_in
            ));
        }
        parts.push(words);
    }
    if data_misses + fetch_misses > 0 {
        for (name, curve) in [
            ("cache misses", &hot_pages.by_cache_misses),
            ("TLB misses", &hot_pages.by_tlb_misses),
        ] {
            let mut words = PERCENTS
                .iter()
                .map(|&at| format!("{at} % {}", percent(curve.get(at).copied().unwrap_or(0.0))));
            let first = format!(
                "to the hottest of {} pages, by {name}: {}",
                hot_pages.pages,
                words.next().unwrap_or_default()
            );
            parts.push(std::iter::once(first).chain(words).collect());
        }
    }
    parts
        .iter()
        .map(|words| wrap(words, ", ", columns_max, 2) + "\n")
        .collect()
}

/// Text about a whole system: misses of kernel and programs, and misses by region of the kernel's memory.
fn system_lines(system: &SystemStatistics) -> Vec<Vec<String>> {
    let of = |name: &str, misses: &ModeMisses| {
        format!(
            "{name}: {} reads, {} writes, {} of code",
            count(misses.reads as f64),
            count(misses.writes as f64),
            count(misses.fetches as f64)
        )
    };
    let kernel = &system.kernel;
    let mut parts = vec![
        vec![of("kernel", kernel)],
        vec![of("programs", &system.user)],
    ];
    let data = kernel.reads + kernel.writes;
    if data > 0 {
        let mut found: Vec<_> = system.segments.iter().collect();
        found.sort_by_key(|own| std::cmp::Reverse(own.reads + own.writes));
        let mut words = found
            .iter()
            .filter(|own| own.reads + own.writes > 0)
            .map(|own| {
                let share = (own.reads + own.writes) as f64 / data as f64;
                format!("{} {}", own.segment.name(), percent(share))
            });
        let first = format!("of the kernel's data: {}", words.next().unwrap_or_default());
        parts.push(std::iter::once(first).chain(words).collect());
    }
    parts
}

/// Statistics of all misses of a trace, or of its stable phase if the program marked one. Shares are from 0 to 1.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TraceForm<'a> {
    /// Loads and stores that missed all caches, upgrades included.
    data_misses: u64,
    /// Instruction fetches that missed all caches.
    fetch_misses: u64,
    /// References of either kind that missed the TLB.
    tlb_misses: u64,
    /// Pages whose code missed all caches.
    code_pages: u64,
    /// Pages whose data missed all caches.
    data_pages: u64,
    /// Chains of reads to a page from one CPU, up to a write to the page from any CPU.
    read_chains: Chains,
    /// Misses to the hottest pages.
    hot_pages: HotPages<'a>,
    /// Misses to memory that is rarely written.
    read_mostly: ReadMostly,
    /// For a whole guest: misses of its kernel and its programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<System>,
}

#[derive(Serialize, JsonSchema)]
struct Chains {
    /// Reads of the longest chain.
    longest: u64,
    /// Shares by length of the chains, in powers of two.
    shares: Vec<Chain>,
}

#[derive(Serialize, JsonSchema)]
struct Chain {
    /// Number of reads.
    length: u64,
    /// Share of data misses in chains of this length and more.
    share: f64,
}

#[derive(Serialize, JsonSchema)]
struct HotPages<'a> {
    /// Pages with a miss.
    pages: u64,
    /// Share of cache misses to the pages with the most cache misses, at 0, 1, … 100 percent of the pages.
    by_cache_misses: &'a [f64],
    /// Share of cache misses to the pages with the most TLB misses, at 0, 1, … 100 percent of the pages.
    by_tlb_misses: &'a [f64],
    /// Share of TLB misses to the pages with the most TLB misses, at 0, 1, … 100 percent of the pages.
    tlb_misses: &'a [f64],
}

#[derive(Serialize, JsonSchema)]
struct ReadMostly {
    /// Memory counts as read mostly if less than this share of its misses are writes.
    writes_below: f64,
    /// Share of data misses to pages that are read mostly.
    page: f64,
    /// Share of data misses to lines of 64 bytes that are read mostly.
    line: f64,
    /// Share of data misses to words of 4 bytes that are read mostly.
    word: f64,
    /// Share of data misses that are writes.
    writes: f64,
    /// Lines and words were examined in one of this many pages.
    one_page_in: u32,
}

#[derive(Serialize, JsonSchema)]
struct System {
    /// Misses of the kernel.
    kernel: Mode,
    /// Misses of programs.
    user: Mode,
    /// Misses of the kernel by region of its memory.
    segments: Vec<SegmentRow>,
}

#[derive(Serialize, JsonSchema)]
struct Mode {
    /// Loads that missed all caches.
    reads: u64,
    /// Stores that missed all caches.
    writes: u64,
    /// Instruction fetches that missed all caches.
    fetches: u64,
    /// References that missed the TLB.
    tlb_misses: u64,
    /// Pages whose code missed all caches.
    code_pages: u64,
    /// Pages whose data missed all caches.
    data_pages: u64,
}

#[derive(Serialize, JsonSchema)]
struct SegmentRow {
    /// The region.
    segment: &'static str,
    /// Loads that missed all caches.
    reads: u64,
    /// Stores that missed all caches.
    writes: u64,
    /// Instruction fetches that missed all caches.
    fetches: u64,
    /// Misses to memory that is rarely written.
    read_mostly: ReadMostly,
}

impl From<&ModeMisses> for Mode {
    fn from(misses: &ModeMisses) -> Self {
        let ModeMisses {
            reads,
            writes,
            fetches,
            tlb_misses,
            code_pages,
            data_pages,
        } = *misses;
        Self {
            reads,
            writes,
            fetches,
            tlb_misses,
            code_pages,
            data_pages,
        }
    }
}

impl From<&SystemStatistics> for System {
    fn from(system: &SystemStatistics) -> Self {
        let segments = system.segments.iter().map(|own| SegmentRow {
            segment: own.segment.name(),
            reads: own.reads,
            writes: own.writes,
            fetches: own.fetches,
            read_mostly: (&own.read_mostly).into(),
        });
        Self {
            kernel: (&system.kernel).into(),
            user: (&system.user).into(),
            segments: segments.collect(),
        }
    }
}

impl From<&nearpage_recording::trace::ReadMostly> for ReadMostly {
    fn from(found: &nearpage_recording::trace::ReadMostly) -> Self {
        Self {
            writes_below: READ_MOSTLY_WRITES_MAX,
            page: found.page,
            line: found.line,
            word: found.word,
            writes: found.writes,
            one_page_in: found.one_page_in,
        }
    }
}

impl<'a> From<&'a TraceStatistics> for TraceForm<'a> {
    fn from(statistics: &'a TraceStatistics) -> Self {
        let TraceStatistics {
            chains,
            hot_pages,
            read_mostly,
            ..
        } = statistics;
        let shares = chains.shares.iter().map(|own| Chain {
            length: own.length,
            share: own.share,
        });
        Self {
            data_misses: statistics.data_misses,
            fetch_misses: statistics.fetch_misses,
            tlb_misses: statistics.tlb_misses,
            code_pages: statistics.code_pages,
            data_pages: statistics.data_pages,
            read_chains: Chains {
                longest: chains.longest,
                shares: shares.collect(),
            },
            hot_pages: HotPages {
                pages: hot_pages.pages,
                by_cache_misses: &hot_pages.by_cache_misses,
                by_tlb_misses: &hot_pages.by_tlb_misses,
                tlb_misses: &hot_pages.tlb_misses,
            },
            read_mostly: read_mostly.into(),
            system: statistics.system.as_ref().map(System::from),
        }
    }
}
