//! Measures the cost of samples while recording, as input of the governor, and changes the rate as the governor
//! decides.
//!
//! Timers of the signal source take a new period with their next sample. Perf events keep the period that each thread
//! inherited, so sampling pauses for random times instead, and a sample then stands for the pause, too.

use std::time::Duration;

use nearpage_recording::Source;

use crate::calibrate::{CALIBRATED_HZ, Calibration, measure_cost_ns};
use crate::governor::{Governor, Interval};
use crate::random::Random;
use crate::sample_cost::{TIME_MAX_AGAIN, gap_ns};

/// Time after which the cost of a sample is measured again. A measurement takes 40 ms at most.
const MEASURE_EVERY_NS: u64 = 20_000_000_000;
/// Number of samples required as well: for an idle program, measuring would be the only activity.
const MEASURE_EVERY_SAMPLES: u64 = 100;
/// Weight of a new measurement.
const NEWEST: f64 = 0.2;
/// Time over which the recorder's cost is spread.
const SPREAD_NS: f64 = 10e9;
/// Mean length of a turn of sampling and pausing.
const TURN_NS: u64 = 100_000_000;
/// Share of the time from which sampling does not pause.
const ALWAYS: f64 = 0.97;
/// Largest number of stored changes of the rate; beyond, every second one is dropped.
const CHANGES_MAX: usize = 1024;

/// A change of the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateChange {
    /// Time of the change, CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// New rate, in samples per second of a thread's time.
    pub rate_hz: f64,
}

#[derive(Debug)]
pub(crate) struct Overhead {
    governor: Governor,
    source: Source,
    /// Cost of a sample inside the program.
    inside_ns: f64,
    /// Rate while sampling is on: perf events keep the rate with which they were opened.
    opened_hz: f64,
    /// Time of the measurement of `inside_ns`; `None` if the calibration measured at another rate.
    measured_at_ns: Option<u64>,
    /// Number of samples at this time.
    measured_at_samples: u64,
    round_ns: u64,
    /// CPU time of the recorder up to the last round, and the part spent on samples.
    recorder_ns: u64,
    spent_ns: f64,
    /// CPU time of the recorder that is not accounted for yet. The recorder decodes every sampled place in the program
    /// once, mostly early; a rate that followed this cost at once would drop needlessly.
    owed_ns: f64,
    program_ns: f64,
    samples: u64,
    pub changes: Vec<RateChange>,
}

impl Overhead {
    pub fn new(governor: Governor, source: Source, calibration: &Calibration, now_ns: u64) -> Self {
        let opened_hz = governor.rate_hz();
        // Kernel ticks serve the timers of the signal source, at a rate of their own.
        let known = source == Source::Signal || gap_ns(opened_hz) == gap_ns(CALIBRATED_HZ);
        Self {
            changes: vec![RateChange {
                time_ns: now_ns,
                rate_hz: governor.rate_hz(),
            }],
            opened_hz,
            governor,
            source,
            inside_ns: calibration.sample_cost_ns.unwrap_or(UNMEASURED_COST_NS),
            measured_at_ns: known.then_some(now_ns),
            measured_at_samples: 0,
            round_ns: now_ns,
            recorder_ns: own_time_ns(),
            spent_ns: 0.0,
            owed_ns: 0.0,
            program_ns: 0.0,
            samples: 0,
        }
    }

    pub fn set_target_hz(&mut self, rate_hz: f64) {
        self.governor.set_target_hz(rate_hz);
    }

    /// Cost of a sample: [inside the program](crate::sample_cost), and in CPU time of the recorder; `None` while there
    /// are too few samples.
    pub fn sample_ns(&self) -> Option<f64> {
        self.governor.sample_ns()?;
        Some(self.inside_ns + self.spent_ns / self.samples as f64)
    }

    /// Enters the program's time and samples so far. Returns the new rate if it changes.
    pub fn round(&mut self, now_ns: u64, program_ns: f64, samples: u64) -> Option<f64> {
        let rate_hz = self.take(now_ns, own_time_ns(), program_ns, samples);
        if let Some(weight) = self.measurement_due(now_ns) {
            if let Some(newest_ns) = measure_cost_ns(self.source, self.opened_hz, TIME_MAX_AGAIN) {
                self.inside_ns += weight * (newest_ns - self.inside_ns);
            }
            // Measuring is not part of the cost of samples.
            self.recorder_ns = own_time_ns();
        }
        rate_hz
    }

    /// Whether to measure the cost of a sample again now, and the weight of the result relative to earlier
    /// measurements.
    fn measurement_due(&mut self, now_ns: u64) -> Option<f64> {
        let passed = |at_ns| now_ns.saturating_sub(at_ns) >= MEASURE_EVERY_NS;
        let due = self.measured_at_ns.is_none_or(passed)
            && self.samples.saturating_sub(self.measured_at_samples) >= MEASURE_EVERY_SAMPLES;
        if !due {
            return None;
        }
        self.measured_at_samples = self.samples;
        let before = self.measured_at_ns.replace(now_ns);
        Some(before.map_or(1.0, |_| NEWEST))
    }

    /// [`round`](Self::round) without a clock: `recorder_ns` is the recorder's CPU time so far.
    fn take(
        &mut self,
        now_ns: u64,
        recorder_ns: u64,
        program_ns: f64,
        samples: u64,
    ) -> Option<f64> {
        let new = samples.saturating_sub(self.samples);
        // Rounds without samples cost the same at any rate. If they counted, the few samples of a program that hardly
        // runs would look expensive.
        if new > 0 {
            let spent_ns = recorder_ns.saturating_sub(self.recorder_ns) as f64;
            self.owed_ns += spent_ns;
            self.spent_ns += spent_ns;
        }
        let passed_ns = now_ns.saturating_sub(self.round_ns) as f64;
        let spent_ns = self.owed_ns * (passed_ns / SPREAD_NS).min(1.0);
        self.owed_ns -= spent_ns;
        self.round_ns = now_ns;
        let interval = Interval {
            program_ns: (program_ns - self.program_ns).max(0.0),
            samples: new,
            cost_ns: new as f64 * self.inside_ns + spent_ns,
        };
        (self.recorder_ns, self.program_ns, self.samples) = (recorder_ns, program_ns, samples);
        let rate_hz = self.governor.observe(interval)?;
        let change = RateChange {
            time_ns: now_ns,
            rate_hz,
        };
        keep_change(&mut self.changes, change);
        Some(rate_hz)
    }
}

/// Adds a change of the rate. If there are too many, every second one is dropped.
pub(crate) fn keep_change(changes: &mut Vec<RateChange>, change: RateChange) {
    changes.push(change);
    if changes.len() > CHANGES_MAX {
        let mut keep = false;
        changes.retain(|_| {
            keep = !keep;
            keep
        });
    }
}

/// Cost of a sample if it could not be measured: the highest cost seen in a virtual machine.
pub(crate) const UNMEASURED_COST_NS: f64 = 36_000.0;

pub(crate) fn own_time_ns() -> u64 {
    // SAFETY: zero is a valid timespec, which the call fills in.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Switches sampling on for a share of the time.
#[derive(Clone, Debug)]
pub(crate) struct DutyCycle {
    share: f64,
    on: bool,
    next_ns: u64,
    random: Random,
}

impl DutyCycle {
    /// Sampling all of the time.
    pub fn new(seed: u64) -> Self {
        Self {
            share: 1.0,
            on: true,
            next_ns: u64::MAX,
            random: Random::new(seed),
        }
    }

    /// Sets the share of the time.
    pub fn set_share(&mut self, share: f64, now_ns: u64) {
        self.share = if share > ALWAYS { 1.0 } else { share.max(0.01) };
        self.next_ns = self.next_ns.min(now_ns);
    }

    /// Number of periods that a sample stands for.
    pub fn periods_each(&self) -> f32 {
        (1.0 / self.share) as f32
    }

    /// The new state of sampling, if it changes now.
    pub fn switch(&mut self, now_ns: u64) -> Option<bool> {
        if now_ns < self.next_ns {
            return None;
        }
        let was = self.on;
        if self.share == 1.0 {
            (self.on, self.next_ns) = (true, u64::MAX);
        } else {
            self.on = !was;
            let share = if self.on {
                self.share
            } else {
                1.0 - self.share
            };
            self.next_ns = now_ns + (self.turn_ns() as f64 * share) as u64;
        }
        (self.on != was).then_some(self.on)
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Time until the next switch.
    pub fn timeout(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.next_ns.saturating_sub(now_ns))
    }

    /// From half to one and a half times the mean, to avoid lockstep with the program.
    fn turn_ns(&mut self) -> u64 {
        TURN_NS / 2 + self.random.next() % TURN_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_take_their_share_of_the_time() {
        for share in [0.05, 0.3, 0.9, 1.0] {
            let mut turns = DutyCycle::new(7);
            turns.set_share(share, 0);
            let (mut on_ns, mut now_ns, mut switches) = (0.0, 0, 0);
            while now_ns < 400 * TURN_NS {
                switches += u32::from(turns.switch(now_ns).is_some());
                let step = turns
                    .timeout(now_ns)
                    .min(Duration::from_millis(200))
                    .as_nanos() as u64;
                let step = step.max(1);
                on_ns += if turns.is_on() { step as f64 } else { 0.0 };
                now_ns += step;
            }
            let part = on_ns / now_ns as f64;
            assert!((part / share - 1.0).abs() < 0.15, "{part} of {share}");
            assert_eq!(switches > 100, share < 1.0);
            assert!((f64::from(turns.periods_each()) * share - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_rate_that_becomes_affordable_again_ends_the_pauses() {
        let mut turns = DutyCycle::new(3);
        turns.set_share(0.5, 10);
        assert_eq!(turns.switch(10), Some(false));
        turns.set_share(0.99, 11);
        assert_eq!(turns.switch(11), Some(true));
        assert_eq!(turns.switch(u64::MAX - 1), None);
        assert_eq!(turns.periods_each(), 1.0);
    }

    /// A daemon that watched a sleeping program once took 0.2 % of a CPU for measurements of a cost that nobody paid.
    #[test]
    fn the_cost_is_measured_again_where_there_were_samples() {
        let governor = Governor::new(0.01, CALIBRATED_HZ, 1.0..=1e6);
        let mut overhead = Overhead::new(governor, Source::Clock, &Calibration::default(), 0);
        assert_eq!(overhead.measurement_due(100 * MEASURE_EVERY_NS), None);
        overhead.take(1, 0, 1e9, MEASURE_EVERY_SAMPLES);
        assert_eq!(overhead.measurement_due(MEASURE_EVERY_NS - 1), None);
        assert_eq!(overhead.measurement_due(MEASURE_EVERY_NS), Some(NEWEST));
        assert_eq!(overhead.measurement_due(2 * MEASURE_EVERY_NS), None);
        overhead.take(2, 0, 2e9, 2 * MEASURE_EVERY_SAMPLES);
        assert_eq!(overhead.measurement_due(2 * MEASURE_EVERY_NS), Some(NEWEST));
    }

    /// Samples that are close together cost less.
    #[test]
    fn the_cost_is_measured_soon_at_a_rate_it_was_not_measured_at() {
        let due = |rate_hz, source| {
            let governor = Governor::new(0.01, rate_hz, 1.0..=1e6);
            let mut overhead = Overhead::new(governor, source, &Calibration::default(), 0);
            assert_eq!(overhead.measurement_due(1), None);
            overhead.take(1, 0, 1e9, MEASURE_EVERY_SAMPLES);
            let first = overhead.measurement_due(2);
            overhead.take(3, 0, 2e9, 2 * MEASURE_EVERY_SAMPLES);
            assert_eq!(overhead.measurement_due(4), None);
            first
        };
        assert_eq!(due(10_000.0, Source::Clock), Some(1.0));
        assert_eq!(due(97.0, Source::Clock), None);
        // The ticks of the signal source have a fixed distance.
        assert_eq!(due(10_000.0, Source::Signal), None);
    }

    #[test]
    fn changes_are_kept_and_bounded() {
        let governor = Governor::new(0.01, 300.0, 1.0..=1e6);
        let calibration = Calibration {
            sample_cost_ns: Some(5_000.0),
            ..Calibration::default()
        };
        let mut overhead = Overhead::new(governor, Source::Clock, &calibration, 1);
        overhead.set_target_hz(f64::INFINITY);
        let (mut program_ns, mut samples) = (0.0, 0);
        for round in 2..4_000 {
            // The program gets ten times too many and too few samples, alternately.
            program_ns += if round % 2 == 0 { 1e7 } else { 1e9 };
            samples += 200;
            overhead.take(round, 0, program_ns, samples);
        }
        let changes = &overhead.changes;
        assert!(changes.len() > 100 && changes.len() <= CHANGES_MAX);
        assert!(changes.is_sorted_by_key(|change| change.time_ns));
        assert_eq!(
            changes[0],
            RateChange {
                time_ns: 1,
                rate_hz: 300.0
            }
        );
        assert_eq!(overhead.sample_ns(), Some(5_000.0));
    }

    /// A program that gets `share` of a CPU, sampled at `rate_hz` of its time. The recorder reads every 200 ms, and
    /// needs 50 µs per round and 3 µs per sample.
    fn recorded(share: f64, rate_hz: f64) -> Overhead {
        let governor = Governor::new(0.01, rate_hz, 10.0..=rate_hz);
        let calibration = Calibration {
            sample_cost_ns: Some(20_000.0),
            ..Calibration::default()
        };
        let mut overhead = Overhead::new(governor, Source::Clock, &calibration, 0);
        let begin_ns = overhead.recorder_ns;
        let (mut program_ns, mut recorder_ns, mut samples) = (0.0, 0.0, 0.0);
        for round in 1..1500 {
            program_ns += 200e6 * share;
            samples += 0.2 * share * overhead.governor.rate_hz();
            let new = samples as u64 - overhead.samples;
            recorder_ns += 50e3 + 3e3 * new as f64;
            overhead.take(
                round * 200_000_000,
                begin_ns + recorder_ns as u64,
                program_ns,
                samples as u64,
            );
        }
        overhead
    }

    #[test]
    fn a_cost_is_inside_and_in_the_recorder() {
        // 80 samples per round.
        let cost_ns = recorded(1.0, 400.0).sample_ns().unwrap();
        assert!((cost_ns / 23_625.0 - 1.0).abs() < 0.01, "{cost_ns}");
    }

    #[test]
    fn a_program_that_hardly_runs_is_sampled_as_often_as_any() {
        for share in [1.0, 0.2, 0.05, 0.01] {
            let overhead = recorded(share, 97.0);
            assert_eq!(overhead.governor.rate_hz(), 97.0, "{share}");
            // One sample per round bears the round's whole cost.
            assert!(overhead.sample_ns().unwrap() < 75_000.0);
        }
    }
}
