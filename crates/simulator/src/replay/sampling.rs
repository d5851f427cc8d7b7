//! Sampling of the references that a policy is shown.

use nearpage_online::Draws;

use crate::figures::Figures;
use crate::options::Options;

/// Selects one in `every` references, at random distances.
pub(crate) struct Distances {
    every: u32,
    /// By node: number of references until the next selected one.
    left: Vec<u32>,
    draws: Draws,
}

/// State of the sampling.
pub(super) struct SamplingState {
    pub distances: Distances,
    /// Least latency of shown loads, in femtoseconds.
    pub latency_min: u64,
    /// Stall time that one clock sample stands for, in femtoseconds.
    period: u64,
    /// By thread: stall time since the last sample, in femtoseconds.
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

    /// Distance to the next selected reference: from 1 to twice the mean less 1. Even distances could select only one
    /// of two arrays that a loop accesses in turn; sampling hardware randomises its distances, too.
    fn draw(&mut self) -> u32 {
        let distances = 2 * u64::from(self.every.max(1)) - 1;
        1 + (self.draws.share() * distances as f64) as u32
    }

    /// Counts a reference from `node`; is the reference selected?
    #[inline]
    pub fn is_selected(&mut self, node: u16) -> bool {
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

impl SamplingState {
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

    /// Number of clock samples that fall into a thread's stall of `latency`.
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
    fn the_mean_share_of_selected_references_is_one_in_every() {
        let mut distances = Distances::new(10, 1, 0);
        let shown = (0..10_000).filter(|_| distances.is_selected(0)).count();
        // The bound is five standard deviations of a thousand distances between 1 and 19, in tenths.
        assert!(shown.abs_diff(1000) < 87, "{shown}");
    }
}
