//! Which of the references a policy is shown.

use nearpage_online::Draws;

use crate::figures::Figures;
use crate::options::Options;

/// Shows one reference in so many, at distances that are drawn.
pub(crate) struct Distances {
    every: u32,
    /// By node, references until one is shown.
    left: Vec<u32>,
    draws: Draws,
}

/// What has passed since the policy was shown something.
pub(super) struct Sampled {
    pub distances: Distances,
    /// Least latency of loads that are shown.
    pub latency_min: u64,
    /// Time lost that one sample of a clock stands for.
    period: u64,
    /// By thread, time lost since its last sample.
    lost: Vec<u64>,
}

impl Distances {
    pub fn new(every: u32, nodes: usize, seed: u64) -> Self {
        let mut distances = Self {
            every,
            left: Vec::new(),
            draws: Draws::new(seed),
        };
        distances.left = (0..nodes).map(|_| distances.draw()).collect();
        distances
    }

    /// References to the next one that is shown: from 1 to twice the mean, less 1. At even distances a loop that takes
    /// turns at two arrays would show one of them alone; processors draw theirs, too.
    fn draw(&mut self) -> u32 {
        let distances = 2 * u64::from(self.every.max(1)) - 1;
        1 + (self.draws.share() * distances as f64) as u32
    }

    /// Counts a reference from `node` that qualifies; is it the one to be shown?
    #[inline]
    pub fn one_in_so_many(&mut self, node: u16) -> bool {
        if self.every == 1 {
            return true;
        }
        let left = &mut self.left[usize::from(node)];
        *left -= 1;
        if *left > 0 {
            return false;
        }
        self.left[usize::from(node)] = self.draw();
        true
    }
}

impl Sampled {
    pub fn new(figures: &Figures, options: &Options, threads: usize) -> Self {
        Self {
            distances: Distances::new(options.every, figures.nodes, options.seed),
            latency_min: figures.cycle.saturating_mul(options.latency_cycles_min),
            period: figures
                .remote_latency()
                .saturating_mul(options.every.into())
                .max(1),
            lost: vec![0; threads],
        }
    }

    /// Samples of a clock that fall into a thread's wait of `latency`.
    #[inline]
    pub fn clock_samples(&mut self, thread: usize, latency: u64) -> u64 {
        let lost = &mut self.lost[thread];
        *lost = lost.saturating_add(latency);
        if *lost < self.period {
            return 0;
        }
        let samples = *lost / self.period;
        *lost %= self.period;
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_so_many_is_shown_in_the_mean() {
        let mut distances = Distances::new(10, 1, 0);
        let shown = (0..10_000).filter(|_| distances.one_in_so_many(0)).count();
        // Five standard deviations of a thousand distances from 1 to 19, in tenths.
        assert!(shown.abs_diff(1000) < 87, "{shown}");
    }
}
