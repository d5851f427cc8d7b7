//! Unequal shares of a team's threads: the generalised block distribution of High Performance Fortran (`GEN_BLOCK`),
//! with sizes in proportion to the object.

use std::fmt;

/// Most threads with proportions of their own.
const COUNT_MAX: usize = 4096;
/// Written behind proportions that repeat.
const REPEAT: &str = "...";

/// Proportions of the shares of a team's threads, in the order of the threads. Written `2:3:1`, or `2:3:1:...` if they
/// repeat.
///
/// In a team of another size, proportions that repeat are those of its first threads: thread 3 has that of thread 0.
/// Other proportions are taken for those of the object's parts, as where rows differ in length: each thread of the
/// larger or smaller team gets an equal share of what the planned threads had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proportions {
    of_threads: Vec<u16>,
    repeat: bool,
}

impl Proportions {
    /// Proportions from 1 on; none if there is none, or too many.
    pub fn new(of_threads: Vec<u16>, repeat: bool) -> Option<Self> {
        let fits = (1..=COUNT_MAX).contains(&of_threads.len()) && !of_threads.contains(&0);
        fits.then_some(Self { of_threads, repeat })
    }

    /// Number of proportions.
    pub fn count(&self) -> usize {
        self.of_threads.len()
    }

    /// First byte of a thread's share of `bytes`, for a thread's number in a team of `threads`.
    pub(crate) fn begin(&self, bytes: u64, thread: usize, threads: usize) -> u64 {
        let count = self.of_threads.len();
        // Threads have 32-bit numbers, and proportions have 16 bits: no product is too large.
        let (before, all) = match self.repeat || threads == count {
            true => (self.before(thread), self.before(threads)),
            false => {
                let (whole, rest) = (thread * count / threads, thread * count % threads);
                let part = self.of_threads.get(whole).copied().map_or(0, u128::from);
                let before = self.before(whole) * threads as u128 + part * rest as u128;
                (before, self.before(count) * threads as u128)
            }
        };
        (u128::from(bytes) * before / all.max(1)) as u64
    }

    /// Sum of the proportions of the first `threads` threads.
    fn before(&self, threads: usize) -> u128 {
        let sum = |of: &[u16]| of.iter().copied().map(u128::from).sum::<u128>();
        let count = self.of_threads.len();
        (threads / count) as u128 * sum(&self.of_threads) + sum(&self.of_threads[..threads % count])
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "`{text}`: expected proportions of shares, from 1 to {}, as in `2:3:1`, or `2:3:1:...` if they repeat",
                u16::MAX
            )
        };
        let mut numbers: Vec<&str> = text.split(':').collect();
        let repeat = numbers.last() == Some(&REPEAT);
        if repeat {
            numbers.pop();
        }
        let of_threads: Result<Vec<u16>, _> = numbers.into_iter().map(str::parse).collect();
        let of_threads = of_threads.map_err(|_| expected())?;
        Self::new(of_threads, repeat).ok_or_else(expected)
    }
}

impl fmt::Display for Proportions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, proportion) in self.of_threads.iter().enumerate() {
            let colon = if number > 0 { ":" } else { "" };
            write!(f, "{colon}{proportion}")?;
        }
        match self.repeat {
            true => write!(f, ":{REPEAT}"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn proportions() -> impl Strategy<Value = Proportions> {
        let of_threads = prop::collection::vec(1u16.., 1..20);
        (of_threads, any::<bool>()).prop_map(|(of_threads, repeat)| {
            Proportions::new(of_threads, repeat).expect("in bounds")
        })
    }

    fn begins(text: &str, bytes: u64, threads: usize) -> Vec<u64> {
        let proportions = Proportions::read(text).expect(text);
        let begin = |thread| proportions.begin(bytes, thread, threads);
        (0..threads).map(begin).collect()
    }

    #[test]
    fn another_team_has_the_same_parts_or_the_first_proportions() {
        assert_eq!(begins("2:3:1", 600, 3), [0, 200, 500]);
        // Thread k of six has half of what thread k / 2 had.
        assert_eq!(begins("2:3:1", 600, 6), [0, 100, 200, 350, 500, 550]);
        assert_eq!(begins("2:3:1", 600, 2), [0, 350]);
        assert_eq!(begins("2:3:1:...", 1200, 6), [0, 200, 500, 600, 800, 1100]);
        assert_eq!(begins("2:3:1:...", 1000, 2), [0, 400]);
    }

    #[test]
    fn what_is_no_proportion_is_refused() {
        for text in [
            "", "...", "2:0:1", "2::1", "2:3:1:", "70000", "2:...:1", "-1", "2.5",
        ] {
            let error = Proportions::read(text).expect_err(text);
            assert!(error.contains("expected proportions"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn shares_ascend_within_the_bytes(
            proportions in proportions(),
            bytes in any::<u64>(),
            threads in 1usize..100,
        ) {
            let begins: Vec<u64> = (0..threads).map(|one| proportions.begin(bytes, one, threads)).collect();
            prop_assert_eq!(begins[0], 0);
            prop_assert!(begins.windows(2).all(|pair| pair[0] <= pair[1]));
            prop_assert!(begins[threads - 1] <= bytes);
            prop_assert_eq!(Proportions::read(&proportions.to_string()), Ok(proportions));
        }
    }
}
