//! `--ranks`: selection of the ranks that are recorded.

use std::str::FromStr;

/// Ranks that are recorded, such as `0,8-15,every:16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankSelection(Vec<Part>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// From the first rank to the last, both included.
    Range(u32, u32),
    /// Ranks that are multiples of the number.
    Every(u32),
}

/// A mistake in a list of ranks.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected ranks, such as 0,8-15 or every:16")]
pub struct RankSelectionError(String);

impl RankSelection {
    /// Is this rank recorded?
    pub fn contains(&self, rank: u32) -> bool {
        self.0.iter().any(|part| match *part {
            Part::Range(first, last) => (first..=last).contains(&rank),
            Part::Every(step) => rank.is_multiple_of(step),
        })
    }
}

impl FromStr for RankSelection {
    type Err = RankSelectionError;

    fn from_str(text: &str) -> Result<Self, RankSelectionError> {
        let part = |word: &str| {
            let number = |text: &str| {
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                text.parse::<u32>().ok().filter(|_| digits)
            };
            if let Some(step) = word.strip_prefix("every:") {
                return number(step).filter(|step| *step > 0).map(Part::Every);
            }
            match word.split_once('-') {
                None => number(word).map(|rank| Part::Range(rank, rank)),
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    (first <= last).then_some(Part::Range(first, last))
                }
            }
        };
        let parts = text
            .split(',')
            .map(|word| part(word).ok_or_else(|| RankSelectionError(word.to_owned())));
        parts.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_selected_by_number_range_and_step() {
        let selection: RankSelection = "0,8-15,every:16".parse().unwrap();
        let selected: Vec<u32> = (0..40).filter(|rank| selection.contains(*rank)).collect();
        assert_eq!(selected, [0, 8, 9, 10, 11, 12, 13, 14, 15, 16, 32]);
        assert!(
            "4294967295"
                .parse::<RankSelection>()
                .unwrap()
                .contains(u32::MAX)
        );
    }

    #[test]
    fn invalid_lists_of_ranks_are_named() {
        for text in [
            "",
            "0,",
            "every:0",
            "every:",
            "3-1",
            "-1",
            "+1",
            "1-",
            "a",
            "1 ",
            "4294967296",
        ] {
            let error = text.parse::<RankSelection>().unwrap_err();
            assert!(error.to_string().contains("every:16"), "{text:?}: {error}");
        }
        assert_eq!(
            "0,x".parse::<RankSelection>().unwrap_err().to_string(),
            "\"x\": expected ranks, such as 0,8-15 or every:16"
        );
    }
}
