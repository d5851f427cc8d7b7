//! The overhead governor keeps the cost of sampling below a share of the program's time.
//!
//! For each interval, it gets the program's time, the number of samples and their cost, and returns the new rate. The
//! governor only caps the rate that the sampler asks for. It reads no clock: [`Interval`]s have all of its inputs.

use std::ops::RangeInclusive;

/// Default of `record --max-overhead`, as a share.
pub const DEFAULT_MAX_OVERHEAD: f64 = 0.01;

/// Smallest number of samples from which the cost of a sample, and their rate, are estimated.
const SAMPLES_MIN: u64 = 32;
/// Smallest relative change of the rate that is worth a switch.
const CHANGE_MIN: f64 = 0.05;
/// Largest factor of one change, up or down: a wrong measurement must not switch sampling off.
const STEP_MAX: f64 = 2.0;
/// Weight of the newest interval in the cost of a sample.
const NEWEST: f64 = 0.3;

/// Observations since the previous interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Interval {
    /// Time of the program on CPUs.
    pub program_ns: f64,
    /// Number of samples in the interval.
    pub samples: u64,
    /// Cost of the samples, inside the program and in the recorder.
    pub cost_ns: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Governor {
    share_max: f64,
    target_hz: f64,
    bounds_hz: RangeInclusive<f64>,
    /// Highest rate within the share, as far as is known.
    affordable_hz: f64,
    sample_ns: Option<f64>,
    pending: Interval,
}

impl Governor {
    /// A governor that samples at `target_hz` while the cost is at most `share_max` of the program's time, and always
    /// within `bounds_hz`.
    pub fn new(share_max: f64, target_hz: f64, bounds_hz: RangeInclusive<f64>) -> Self {
        Self {
            share_max,
            target_hz,
            bounds_hz,
            affordable_hz: target_hz,
            sample_ns: None,
            pending: Interval::default(),
        }
    }

    /// Present rate, in samples per second of a thread's time.
    pub fn rate_hz(&self) -> f64 {
        let rate_hz = self.target_hz.min(self.affordable_hz);
        rate_hz.clamp(*self.bounds_hz.start(), *self.bounds_hz.end())
    }

    /// Sets another target rate, which is still capped.
    pub fn set_target_hz(&mut self, target_hz: f64) {
        self.target_hz = target_hz;
    }

    /// Cost of a sample, including the recorder's part; `None` while there are too few samples.
    pub fn sample_ns(&self) -> Option<f64> {
        self.sample_ns
    }

    /// Enters an interval. Returns the new rate if it changes.
    pub fn observe(&mut self, interval: Interval) -> Option<f64> {
        self.pending.program_ns += interval.program_ns;
        self.pending.samples += interval.samples;
        self.pending.cost_ns += interval.cost_ns;
        let Interval {
            program_ns,
            samples,
            cost_ns,
        } = self.pending;
        if samples < SAMPLES_MIN || program_ns <= 0.0 {
            return None;
        }
        self.pending = Interval::default();
        let newest_ns = (cost_ns / samples as f64).max(1.0);
        let sample_ns = self
            .sample_ns
            .map_or(newest_ns, |old| old + NEWEST * (newest_ns - old));
        self.sample_ns = Some(sample_ns);
        let before_hz = self.rate_hz();
        // Uses the observed rate, not the requested one: timers are coarse, and programs block signals.
        let came_hz = samples as f64 * 1e9 / program_ns;
        let answers = (before_hz / came_hz).clamp(1.0 / STEP_MAX, STEP_MAX);
        let affordable_hz = self.share_max * 1e9 / sample_ns * answers;
        self.affordable_hz = affordable_hz.clamp(before_hz / STEP_MAX, before_hz * STEP_MAX);
        let rate_hz = self.rate_hz();
        if (rate_hz / before_hz - 1.0).abs() < CHANGE_MIN {
            self.affordable_hz = before_hz.max(*self.bounds_hz.start());
            return None;
        }
        Some(rate_hz)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Result of simulating a program on two CPUs for `seconds`. The true cost is `cost_ns(second)` per sample, and
    /// `recorder_ns` per second.
    struct Simulated {
        share: f64,
        rate_hz: f64,
        estimate_ns: f64,
    }

    fn simulate(
        governor: &mut Governor,
        seconds: u32,
        noise: impl Fn(u32) -> f64,
        cost_ns: impl Fn(f64) -> f64,
        recorder_ns: f64,
    ) -> Simulated {
        const STEP_S: f64 = 0.2;
        const CPUS: f64 = 2.0;
        let (mut rate_hz, mut carried) = (governor.rate_hz(), 0.0);
        let (mut spent_ns, mut program_ns) = (0.0, 0.0);
        for step in 0..seconds * 5 {
            let wanted = rate_hz * STEP_S * CPUS + carried;
            let samples = wanted.floor();
            carried = wanted - samples;
            let true_ns = samples * cost_ns(f64::from(step) * STEP_S) + recorder_ns * STEP_S;
            let interval = Interval {
                program_ns: STEP_S * CPUS * 1e9,
                samples: samples as u64,
                // The measured cost has random errors.
                cost_ns: true_ns * noise(step),
            };
            spent_ns += true_ns;
            program_ns += interval.program_ns;
            rate_hz = governor.observe(interval).unwrap_or(rate_hz);
        }
        Simulated {
            share: spent_ns / program_ns,
            rate_hz,
            estimate_ns: governor.sample_ns().unwrap(),
        }
    }

    fn eager(share: f64) -> Governor {
        let mut governor = Governor::new(share, 300.0, 10.0..=100_000.0);
        governor.set_target_hz(f64::INFINITY);
        governor
    }

    #[test]
    fn the_share_is_held_when_samples_become_dearer_and_cheaper() {
        for share in [0.002, 0.01, 0.05] {
            let cost_ns = |second: f64| match second {
                ..20.0 => 5_000.0,
                ..50.0 => 20_000.0,
                _ => 3_000.0,
            };
            let noise = |step: u32| [0.8, 1.3, 0.9, 1.1, 0.9][step as usize % 5];
            let run = simulate(&mut eager(share), 120, noise, cost_ns, 200_000.0);
            assert!(
                (0.75..=1.25).contains(&(run.share / share)),
                "{}",
                run.share
            );
        }
    }

    proptest! {
        #[test]
        fn the_share_is_held_within_a_quarter(
            share in 0.002f64..0.05,
            base_ns in 1_000.0f64..30_000.0,
            swing in 0.0f64..0.8,
            turns in 1.0f64..6.0,
            errors in prop::collection::vec(0.7f64..1.3, 31),
        ) {
            let mut governor = eager(share);
            let cost_ns = |second: f64| base_ns * (1.0 + swing * (second / 120.0 * turns * std::f64::consts::TAU).sin());
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            // Errors of the measurement, without bias.
            let noise = |step: u32| errors[step as usize % errors.len()] / mean;
            let run = simulate(&mut governor, 120, noise, cost_ns, 0.0);
            prop_assert!((0.75..=1.25).contains(&(run.share / share)), "{} of {share}", run.share);
        }

        #[test]
        fn any_intervals_leave_the_rate_in_its_bounds(
            intervals in prop::collection::vec((any::<f64>(), any::<u64>(), any::<f64>()), 0..20),
        ) {
            let mut governor = Governor::new(0.01, 300.0, 10.0..=1_000.0);
            for (program_ns, samples, cost_ns) in intervals {
                governor.observe(Interval { program_ns, samples: samples >> 8, cost_ns });
                prop_assert!((10.0..=1_000.0).contains(&governor.rate_hz()));
            }
        }
    }

    #[test]
    fn requested_rate_is_capped_by_the_affordable_rate() {
        let mut governor = Governor::new(0.01, 300.0, 10.0..=1_000.0);
        let run = simulate(&mut governor, 20, |_| 1.0, |_| 5_000.0, 0.0);
        // A cost of 0.15 % needs no lower rate, and nobody asked for a higher one.
        assert_eq!(run.rate_hz, 300.0);
        governor.set_target_hz(5_000.0);
        let run = simulate(&mut governor, 20, |_| 1.0, |_| 5_000.0, 0.0);
        assert_eq!(run.rate_hz, 1_000.0);
        let run = simulate(&mut governor, 20, |_| 1.0, |_| 50_000.0, 0.0);
        assert!((180.0..=220.0).contains(&run.rate_hz), "{}", run.rate_hz);
        assert!((45_000.0..=55_000.0).contains(&run.estimate_ns));
        governor.set_target_hz(20.0);
        let run = simulate(&mut governor, 20, |_| 1.0, |_| 5_000.0, 0.0);
        assert_eq!(run.rate_hz, 20.0);
    }

    #[test]
    fn too_few_samples_change_nothing() {
        let mut governor = eager(0.01);
        let interval = Interval {
            program_ns: 1e9,
            samples: 1,
            cost_ns: 1e9,
        };
        for _ in 0..SAMPLES_MIN - 1 {
            assert_eq!(governor.observe(interval), None);
        }
        assert_eq!(governor.observe(interval), Some(governor.rate_hz()));
    }
}
