//! Random draws from a seed.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), which mixes a counter.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// Draws that depend on the seed only.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number that is at least 0 and below 1.
    pub fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_even_and_repeat() {
        let sequence = |seed| {
            let mut draws = Draws::new(seed);
            (0..10_000).map(|_| draws.share()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(7), sequence(7));
        assert_ne!(sequence(7), sequence(8));
        let below = sequence(7).iter().filter(|&&share| share < 0.25).count();
        // The bound is five standard deviations of a binomial distribution of 10,000 at a quarter.
        assert!(below.abs_diff(2500) < 217, "{below}");
        assert!(sequence(0).iter().all(|share| (0.0..1.0).contains(share)));
    }
}
