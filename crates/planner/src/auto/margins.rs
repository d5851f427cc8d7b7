//! How far a judge is trusted.

/// How far a judge's predictions are trusted, as shares of the program's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Margins {
    /// A plan has to be faster than none by more than this.
    pub plan: f64,
    /// A choice for one object has to be faster than leaving it alone by more than this.
    pub object: f64,
    /// A plan has to save more than this share of what it makes slower: another input may have so much more
    /// of it.
    pub slower: f64,
    /// Where the pages or blocks of a decision about an object do not fit an input of another size, it may cost this share
    /// of what it saves where they do.
    pub resized: f64,
    /// It goes by samples: what an object's accesses save is as uncertain as their number.
    pub of_samples: bool,
}

/// With an input of another size, is no more lost than a share of what is saved? Times of the recorded input and
/// of the other one, before and after.
pub(super) fn trusted(share: f64, before_ns: [f64; 2], after_ns: [f64; 2]) -> bool {
    let saved_ns = before_ns[0] - after_ns[0];
    after_ns[1] - before_ns[1] <= share * saved_ns.max(0.0)
}

/// The least time's position; the first that is within `margin` of it, and the very first unless
/// another is faster by more than `margin`.
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
