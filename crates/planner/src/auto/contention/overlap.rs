//! Misses of a CPU that overlap with each other and with computation.

use nearpage_machine::Timing;

/// How far a CPU runs ahead of its misses, as in the simulator.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    /// Most misses of a CPU that are under way at a time.
    pub misses_max: u32,
    /// Time in which a CPU executes a window of instructions; 0 if it waits for each miss.
    window_ns: f64,
    /// Lines that the prefetcher requests ahead of a stream's miss; 0: there is none. All misses are taken to be of
    /// streams, as samples do not tell which misses follow each other.
    lines_ahead: f64,
}

/// Largest mean of a distribution whose probability of 0 is not rounded to 0, or nearly so.
const MISSES_A_WINDOW_MAX: f64 = 700.0;

impl Overlap {
    pub const NONE: Self = Self {
        misses_max: 1,
        window_ns: 0.0,
        lines_ahead: 0.0,
    };

    pub fn new(timing: &Timing) -> Self {
        Self {
            misses_max: timing.outstanding_misses.max(1),
            window_ns: timing.run_ahead_instructions() as f64 * timing.instruction_ns(),
            lines_ahead: timing
                .prefetcher
                .map_or(0.0, |one| f64::from(one.steps_ahead)),
        }
    }

    /// What a CPU does while a miss is under way, if the mean time of computation between misses is `gap_ns`. The number
    /// of other misses in the window after it is Poisson's, and their addresses are taken to be known in time: samples
    /// tell neither when a thread's misses follow each other, nor which of them need the data of others.
    pub fn under_way(&self, gap_ns: f64) -> UnderWay {
        if self.window_ns <= 0.0 {
            return UnderWay::ONE;
        }
        let mean = (self.window_ns / gap_ns.max(f64::MIN_POSITIVE)).min(MISSES_A_WINDOW_MAX);
        // Probability that exactly, and that at most, so many misses follow the first.
        let mut exactly = (-mean).exp();
        let mut at_most = 0.0;
        let mut count = 1.0;
        for following in 1..self.misses_max {
            at_most += exactly;
            count += 1.0 - at_most;
            exactly *= mean / f64::from(following);
        }
        at_most += exactly;
        // If no more may be under way, the CPU stops at the next miss. Otherwise it stops at the window's end.
        let computed_ns = gap_ns * (count - at_most).max(0.0);
        let ahead = self.lines_ahead.min(f64::from(self.misses_max) - count);
        UnderWay {
            count: count + ahead,
            computed_ns: computed_ns + ahead * gap_ns,
        }
    }

    /// Time of a thread's misses, given as numbers and latencies, and of its computation. `gap_ns`: mean time of
    /// computation between its misses.
    ///
    /// Misses under way at a time stop the CPU once. Of latencies from 0 to the shortest, each moment passes for all
    /// misses; of those up to the next one, it passes for all but the shortest misses, of which fewer are under way at
    /// a time; and so on.
    pub fn time_ns(&self, misses: impl Iterator<Item = (f64, f64)>, pace: Pace) -> f64 {
        let Pace { compute_ns, gap_ns } = pace;
        if self.window_ns <= 0.0 {
            let latencies = misses.map(|(count, latency_ns)| count * latency_ns);
            return compute_ns + latencies.sum::<f64>();
        }
        let mut misses: Vec<(f64, f64)> = misses.collect();
        let all: f64 = misses.iter().map(|(count, _)| count).sum();
        misses.sort_unstable_by(|one, other| one.1.total_cmp(&other.1));
        let mut longer = all;
        let (mut stopped_ns, mut passed_ns) = (0.0, 0.0_f64);
        for (count, latency_ns) in misses {
            let under_way = self.under_way(gap_ns * all / longer.max(f64::MIN_POSITIVE));
            let from_ns = passed_ns.max(under_way.computed_ns);
            stopped_ns += (latency_ns - from_ns).max(0.0) * longer / under_way.count;
            passed_ns = latency_ns;
            longer = (longer - count).max(0.0);
        }
        compute_ns + stopped_ns
    }
}

/// How a thread computes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Computation while several threads run.
    pub compute_ns: f64,
    /// Mean time of computation between two of its misses, whenever they are.
    pub gap_ns: f64,
}

impl Pace {
    /// The pace of a part of the work.
    pub fn part(self, share: f64) -> Self {
        Self {
            compute_ns: share * self.compute_ns,
            ..self
        }
    }
}

/// What a CPU does while a miss is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnderWay {
    /// Number of misses under way, this one included.
    pub count: f64,
    /// Computation.
    computed_ns: f64,
}

impl UnderWay {
    const ONE: Self = Self {
        count: 1.0,
        computed_ns: 0.0,
    };
}
