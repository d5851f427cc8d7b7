//! Which of the references a policy is shown.

use crate::figures::Figures;
use crate::options::Options;

/// What has passed since the policy was shown something.
pub(super) struct Sampled {
    every: u32,
    /// By node, references since the last one that was shown.
    unseen: Vec<u32>,
    /// Least latency of loads that are shown.
    pub latency_min: u64,
    /// Time lost that one sample of a clock stands for.
    period: u64,
    /// By thread, time lost since its last sample.
    lost: Vec<u64>,
}

impl Sampled {
    pub fn new(figures: &Figures, options: &Options, threads: usize) -> Self {
        Self {
            every: options.every,
            unseen: vec![0; figures.nodes],
            latency_min: figures.cycle.saturating_mul(options.latency_cycles_min),
            period: figures
                .remote_latency()
                .saturating_mul(options.every.into())
                .max(1),
            lost: vec![0; threads],
        }
    }

    /// Counts a reference from `node` that qualifies; is it the one to be shown?
    #[inline]
    pub fn one_in_so_many(&mut self, node: u16) -> bool {
        if self.every == 1 {
            return true;
        }
        let unseen = &mut self.unseen[usize::from(node)];
        *unseen += 1;
        if *unseen < self.every {
            return false;
        }
        *unseen = 0;
        true
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
