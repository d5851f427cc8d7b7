//! Reproducible random numbers: the same sequence after the same seed.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): good from the first number on, for any seed.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    #[cfg(test)]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from 0 to 1, without 1.
    #[cfg(test)]
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Number of heads in `count` tosses of a coin.
    pub fn half_of(&mut self, count: u64) -> u64 {
        let whole = (0..count / 64).map(|_| self.next().count_ones());
        let whole: u64 = whole.map(u64::from).sum();
        let mask = (1 << (count % 64)) - 1;
        whole + u64::from((self.next() & mask).count_ones())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_have_the_mean_and_variance_of_coins() {
        for count in [0, 1, 5, 63, 64, 65, 1_000] {
            let mut random = Random(1);
            let draws: Vec<f64> = (0..20_000).map(|_| random.half_of(count) as f64).collect();
            let mean = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 20_000.0;
            let (expected, error) = (count as f64 / 2.0, (count as f64 / 20_000.0).sqrt());
            assert!((mean - expected).abs() <= 3.0 * error, "{count}: {mean}");
            assert!(
                (variance - expected / 2.0).abs() <= 0.05 * expected,
                "{count}: {variance}"
            );
        }
    }
}
