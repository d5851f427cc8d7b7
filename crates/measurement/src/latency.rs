//! Latency measurement: time of a load that waits for the one before.

use std::time::Instant;

use super::{CHASE_STEPS, Measurement, kernels, median};

/// Result of a pointer chase.
pub(super) struct Latency {
    /// Median over stretches of 1024 loads.
    pub median_ns: f64,
    /// Standard deviation of the rounds' medians.
    pub deviation_ns: f64,
}

impl Measurement {
    /// Follows a chain and drops the first round. Stretches are short compared to the kernel's time slices, so
    /// preemption of the thread affects few of them.
    pub(super) fn latency(&self, chain: &[u64]) -> Latency {
        let mut at = 0;
        let (mut stretches, mut of_rounds) = (Vec::new(), Vec::new());
        for round in 0..=self.effort.rounds {
            let start = Instant::now();
            let mut before = start;
            let mut of_round = Vec::new();
            loop {
                at = kernels::chase(chain, at, CHASE_STEPS);
                let now = Instant::now();
                of_round.push((now - before).as_nanos() as f64 / CHASE_STEPS as f64);
                before = now;
                if now - start >= self.effort.round {
                    break;
                }
            }
            if round > 0 {
                stretches.extend_from_slice(&of_round);
                of_rounds.push(median(of_round));
            }
        }
        Latency {
            median_ns: median(stretches),
            deviation_ns: deviation(&of_rounds),
        }
    }
}

/// Sample standard deviation; 0 for fewer than two values.
fn deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0).max(1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::deviation;

    #[test]
    fn deviation_is_the_samples() {
        assert_eq!(
            deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]),
            (32.0_f64 / 7.0).sqrt()
        );
        assert_eq!(deviation(&[3.0]), 0.0);
        assert_eq!(deviation(&[]), 0.0);
    }
}
