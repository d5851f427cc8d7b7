//! Read chains, hot pages and read-mostly shares of a full recording.

use nearpage_recording::trace::{READ_MOSTLY_WRITES_MAX, TraceStatistics};
use serde::Serialize;

use crate::amount::{count, percent};
use crate::table::wrap;

/// Lengths of read chains, and percents of the pages, that the text has: of Verghese's Figures 6.2
/// and 7.2.
const LENGTHS: [u64; 4] = [2, 8, 64, 512];
const PERCENTS: [usize; 5] = [1, 5, 10, 20, 50];

/// In lines of at most `columns_max`.
pub(crate) fn lines(statistics: &TraceStatistics, columns_max: usize) -> String {
    let TraceStatistics {
        data_misses,
        fetch_misses,
        chains,
        hot_pages,
        read_mostly,
        ..
    } = statistics;
    let mut parts = vec![vec![
        format!("{} data misses", count(*data_misses as f64)),
        format!("{} of code", count(*fetch_misses as f64)),
    ]];
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

/// For programs: shares are from 0 to 1.
#[derive(Serialize)]
pub(crate) struct TraceForm<'a> {
    data_misses: u64,
    fetch_misses: u64,
    tlb_misses: u64,
    code_pages: u64,
    data_pages: u64,
    read_chains: Chains,
    hot_pages: HotPages<'a>,
    read_mostly: ReadMostly,
}

#[derive(Serialize)]
struct Chains {
    longest: u64,
    shares: Vec<Chain>,
}

#[derive(Serialize)]
struct Chain {
    length: u64,
    share: f64,
}

#[derive(Serialize)]
struct HotPages<'a> {
    pages: u64,
    by_cache_misses: &'a [f64],
    by_tlb_misses: &'a [f64],
}

#[derive(Serialize)]
struct ReadMostly {
    writes_below: f64,
    page: f64,
    line: f64,
    word: f64,
    writes: f64,
    one_page_in: u32,
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
            },
            read_mostly: ReadMostly {
                writes_below: READ_MOSTLY_WRITES_MAX,
                page: read_mostly.page,
                line: read_mostly.line,
                word: read_mostly.word,
                writes: read_mostly.writes,
                one_page_in: read_mostly.one_page_in,
            },
        }
    }
}
