//! How far a judge is trusted.

/// How far a judge's predictions are trusted, as shares of the program's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// A plan has to be faster than first touch by more than this.
    pub plan: f64,
    /// A choice for one object has to be faster than first touch of the object by more than this.
    pub object: f64,
    /// A plan has to save more than this share of the time that it makes slower: another input may have relatively more
    /// of the slower accesses.
    pub slower: f64,
    /// A decision about an object may cost this share of its saving if its pages or blocks do not fit an input of
    /// another size.
    pub resized: f64,
    /// True for a judge by samples: an object's saving is as uncertain as the number of its samples.
    pub of_samples: bool,
}

/// True if at most a share of the saving is lost with an input of another size. Times are with the recorded input and
/// with the other one, before and after a decision.
pub(super) fn trusted(share: f64, before_ns: [f64; 2], after_ns: [f64; 2]) -> bool {
    let saved_ns = before_ns[0] - after_ns[0];
    after_ns[1] - before_ns[1] <= share * saved_ns.max(0.0)
}

/// Position of the first time that is within `margin` of the least time.
pub(super) fn least(times: &[f64], margin: f64) -> usize {
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    times
        .iter()
        .position(|&time| time <= best + margin)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::least;

    #[test]
    fn the_first_within_the_margin_is_taken() {
        assert_eq!(least(&[10.0, 9.0, 8.0, 8.5], 0.0), 2);
        assert_eq!(least(&[10.0, 9.0, 8.0, 8.5], 1.0), 1);
        assert_eq!(least(&[10.0, 9.0, 8.0, 8.5], 2.0), 0);
        assert_eq!(least(&[10.0, 11.0], 0.0), 0);
    }
}
