//! Draws that repeat: the same numbers after the same seed.

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): good from the first number on, whatever the seed.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below a bound.
    #[cfg(test)]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// 0 to 1, without 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A Poisson-distributed number of this mean.
    pub fn poisson(&mut self, mean: f64) -> f64 {
        if mean > NORMAL_FROM {
            // The sum of twelve is nearly normal, with a variance of 1.
            let normal: f64 = (0..12).map(|_| self.share()).sum::<f64>() - 6.0;
            return (mean + mean.sqrt() * normal).round().max(0.0);
        }
        let (mut number, mut probability) = (0.0, (-mean).exp());
        let mut left = self.share() - probability;
        // Rounding may leave a little that belongs to no number.
        while left > 0.0 && probability > 0.0 {
            number += 1.0;
            probability *= mean / number;
            left -= probability;
        }
        number
    }
}

/// Means from which on a Poisson distribution is taken for a normal one.
const NORMAL_FROM: f64 = 32.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_draws_have_their_mean_and_variance() {
        for mean in [0.3, 1.0, 5.0, 31.0, 33.0, 1_000.0] {
            let mut random = Random(1);
            let draws: Vec<f64> = (0..20_000).map(|_| random.poisson(mean)).collect();
            let average = draws.iter().sum::<f64>() / 20_000.0;
            let variance = draws.iter().map(|x| (x - average).powi(2)).sum::<f64>() / 20_000.0;
            let error = 5.0 * (mean / 20_000.0f64).sqrt();
            assert!((average - mean).abs() < error, "{mean}: {average}");
            assert!((variance / mean - 1.0).abs() < 0.1, "{mean}: {variance}");
        }
    }
}
