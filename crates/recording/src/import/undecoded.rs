//! Counts `data_src` words that this version of nearpage cannot decode.

use std::collections::BTreeMap;

use nearpage_amount::counted;
use nearpage_perf_abi::DataSource;

/// Most different words that are kept; samples with other words are counted together.
const WORDS_MAX: usize = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct Undecoded {
    by_word: BTreeMap<u64, u64>,
    others: u64,
}

impl Undecoded {
    /// Counts the data source of a sample if it cannot be decoded.
    pub fn take(&mut self, source: DataSource) {
        if !source.is_undecoded() {
            return;
        }
        let is_full = self.by_word.len() >= WORDS_MAX && !self.by_word.contains_key(&source.0);
        match is_full {
            true => self.others += 1,
            false => *self.by_word.entry(source.0).or_default() += 1,
        }
    }

    /// Note for the user; `None` if all words were decoded.
    pub fn note(&self) -> Option<String> {
        let samples = self.by_word.values().sum::<u64>() + self.others;
        let words = self.by_word.iter();
        let mut words: Vec<String> = words
            .map(|(word, samples)| format!("{word:#x} ({samples})"))
            .collect();
        if self.others > 0 {
            words.push(format!("other words ({})", self.others));
        }
        let words = words.join(", ");
        (samples > 0).then(|| {
            format!(
                "{} with a data_src that this version of nearpage does not know; their level is unknown: {words}",
                counted(samples, "sample")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_counted_and_few_are_named() {
        let mut undecoded = Undecoded::default();
        undecoded.take(DataSource(0x6810_0142));
        assert_eq!(undecoded.note(), None);
        for word in 0..10 {
            for _ in 0..=word {
                undecoded.take(DataSource(1 << 63 | word));
            }
        }
        let note = undecoded.note().expect("a note");
        assert!(note.starts_with("55 samples with a data_src"), "{note}");
        assert!(
            note.contains("0x8000000000000007 (8), other words (19)"),
            "{note}"
        );
    }
}
