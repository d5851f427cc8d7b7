//! Share of the data misses to pages, lines and words that are rarely written (Verghese Table 6): the possible gain of
//! replicating pages, and the further gain if data were laid out by use.

use rustc_hash::FxHashMap;

/// A block is read-mostly if writes are less than this share of its misses (Table 6).
pub const READ_MOSTLY_WRITES_MAX: f64 = 0.01;
/// Sizes of Verghese's lines and words, in bytes.
const LINE_BYTES: u32 = 64;
const WORD_BYTES: u32 = 4;
/// Most words that are counted at a time. Beyond, half of the pages are dropped.
const WORDS_MAX: usize = 3_500_000;

/// Shares of the data misses (0 to 1) that are to read-mostly blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ReadMostly {
    /// Share with pages as blocks.
    pub page: f64,
    /// Share with lines of 64 bytes as blocks.
    pub line: f64,
    /// Share with words of 4 bytes as blocks.
    pub word: f64,
    /// Share of writes among all misses.
    pub writes: f64,
    /// One in this many pages was counted, chosen by a hash of the page number: 1 unless more than 3.5 million words
    /// have misses.
    pub one_page_in: u32,
}

/// Reads and writes.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    reads: u64,
    writes: u64,
}

impl Counts {
    fn all(self) -> u64 {
        self.reads + self.writes
    }

    /// All misses of a read-mostly block; 0 for other blocks.
    fn read_mostly(self) -> u64 {
        match (self.writes as f64) < READ_MOSTLY_WRITES_MAX * self.all() as f64 {
            true => self.all(),
            false => 0,
        }
    }
}

/// Page and word in the page; reads and writes of the word.
type Word = ((u32, u32), (u32, u32));

/// Counts by word.
#[derive(Clone, Debug, Default)]
pub(super) struct WordCounters {
    words: FxHashMap<(u32, u32), (u32, u32)>,
    /// Only pages whose hash ends in this many zero bits are counted.
    zeros: u32,
    words_max: Option<usize>,
}

/// Hash of a page number, by which the counted pages lie everywhere in memory.
fn spread(page: u32) -> u32 {
    let product = u64::from(page).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (product >> 32) as u32
}

impl WordCounters {
    #[inline]
    pub fn count(&mut self, page: u32, offset: u32, write: bool) {
        if self.zeros > 0 && spread(page).trailing_zeros() < self.zeros {
            return;
        }
        let (reads, writes) = self
            .words
            .entry((page, offset / WORD_BYTES))
            .or_insert((0, 0));
        let count = if write { writes } else { reads };
        *count = count.saturating_add(1);
        if self.words.len() > self.words_max.unwrap_or(WORDS_MAX) {
            self.give_up_half();
        }
    }

    #[cold]
    fn give_up_half(&mut self) {
        self.zeros += 1;
        let zeros = self.zeros;
        self.words
            .retain(|(page, _), _| spread(*page).trailing_zeros() >= zeros);
    }

    pub fn finish(self) -> ReadMostly {
        let mut words: Vec<Word> = self.words.into_iter().collect();
        words.sort_unstable_by_key(|(at, _)| *at);
        let sum = |words: &[Word]| {
            words
                .iter()
                .fold(Counts::default(), |sum, (_, (reads, writes))| Counts {
                    reads: sum.reads + u64::from(*reads),
                    writes: sum.writes + u64::from(*writes),
                })
        };
        let all = sum(&words);
        let share = |misses: u64| misses as f64 / all.all().max(1) as f64;
        let blocks = |words_in_block: u32| {
            let block = |&((page, word), _): &Word| (page, word / words_in_block);
            let blocks = words.chunk_by(|a, b| block(a) == block(b));
            share(blocks.map(|block| sum(block).read_mostly()).sum())
        };
        ReadMostly {
            page: blocks(u32::MAX),
            line: blocks(LINE_BYTES / WORD_BYTES),
            word: blocks(1),
            writes: share(all.writes),
            one_page_in: 1 << self.zeros,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_written_word_spoils_its_line_and_its_page() {
        let mut words = WordCounters::default();
        // Page 0: words 0 and 1 of line 0 read, word 2 written; line 1 read. Page 1 read.
        for (page, offset, reads) in [(0, 0, 10), (0, 4, 20), (0, 64, 30), (1, 0, 39)] {
            (0..reads).for_each(|_| words.count(page, offset, false));
        }
        words.count(0, 8, true);
        let expected = ReadMostly {
            page: 0.39,
            line: 0.69,
            word: 0.99,
            writes: 0.01,
            one_page_in: 1,
        };
        assert_eq!(words.finish(), expected);
    }

    /// Less than one in a hundred, not one in a hundred.
    #[test]
    fn the_threshold_from_both_sides() {
        for (reads, share) in [(99, 0.0), (100, 1.0)] {
            let mut words = WordCounters::default();
            words.count(7, 12, true);
            (0..reads).for_each(|_| words.count(7, 12, false));
            let found = words.finish();
            assert_eq!((found.page, found.line, found.word), (share, share, share));
        }
    }

    #[test]
    fn a_sample_of_the_pages_says_the_same() {
        let mut words = WordCounters {
            words_max: Some(2_000),
            ..WordCounters::default()
        };
        // Every fourth page is written.
        for page in 0..40_000 {
            (0..3).for_each(|word| words.count(page, 4 * word, page % 4 == 0));
        }
        let found = words.finish();
        assert!(found.one_page_in >= 64, "{found:?}");
        assert!((found.page - 0.75).abs() < 0.1, "{found:?}");
    }

    proptest! {
        /// Shares are fractions of all misses; without writes, all misses are to read-mostly blocks.
        #[test]
        fn reads_alone_are_all(references in prop::collection::vec((0u32..4, 0u32..4096, any::<bool>()), 1..500)) {
            let mut words = WordCounters::default();
            for &(page, offset, write) in &references {
                words.count(page, offset, write);
            }
            let found = words.finish();
            let writes = references.iter().filter(|(.., write)| *write).count();
            prop_assert_eq!(found.writes, writes as f64 / references.len() as f64);
            for share in [found.page, found.line, found.word] {
                prop_assert!((0.0..=1.0).contains(&share));
                // So few misses to a block allow no write in a read-mostly block.
                prop_assert!(share <= 1.0 - found.writes + 0.01);
                prop_assert!(writes > 0 || share == 1.0);
            }
        }
    }
}
