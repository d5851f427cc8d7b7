//! Keeps a recording within its [budget](crate::budget): accounts for the cost of sampling, and chooses the events to
//! switch on and for how long.

use std::time::Duration;

use nearpage_recording::Source;

use crate::budget::{Budget, Progress};
use crate::calibrate::Calibration;
use crate::levels::{Levels, Setting};
use crate::overhead::{RateChange, UNMEASURED_COST_NS, keep_change, own_time_ns};
use crate::random::Random;
use crate::sample_cost::GAPS_NS;
use crate::sampler::MAX_RATE_HZ;

/// Time between two choices while the rate is above the steady rate, and the longest below and at it. There the time is
/// a part of the phase's length, as more busy threads must be noticed within a part of it.
const FAST_NS: f64 = 25e6;
const SLOW_NS: f64 = 500e6;
const SLOW_PART: f64 = 0.07;
const STEADY_NS: f64 = 200e6;
/// Time until more busy threads are looked at once more, before they begin a phase.
const SECOND_LOOK_NS: f64 = 2.0 * FAST_NS;
/// Largest factor by which times are stretched while other programs take the CPUs from the program's threads: each
/// round costs the recorder a tenth of a millisecond.
const STRETCH_MAX: f64 = 4.0;
/// Growth of the time until the next choice by each round without a sample. So rounds of an idle program get rarer, and
/// threads that begin to run are noticed within a fifth of the idle time.
const IDLE_GROWTH: f64 = 1.2;
/// Number of CPUs above which `FAST_MANY_NS` replaces `FAST_NS`, as many threads may start to run at once there.
const FEW_CPUS: usize = 16;
const FAST_MANY_NS: f64 = 5e6;
/// Least time that a setting stays, as a multiple of the duration of the switch: a switch interrupts the CPU of each
/// copy of an event.
const SWITCH_SHARE: u64 = 100;
/// CPU time that the recorder needs per sample, besides its rounds.
const RECORDER_SAMPLE_NS: f64 = 1_000.0;
/// Number of samples from which the newest estimate of busy CPUs replaces earlier ones.
const ESTIMATE_SAMPLES: f64 = 32.0;
/// Lowest rate of the signal source, whose timers take a new period only with their next sample.
const SIGNAL_MIN_HZ: f64 = 10.0;
/// Relative distance within which a rate is set to the steady rate.
const STEADY_WITHIN: f64 = 0.1;
/// Smallest relative change of the rate that is stored.
const CHANGE_MIN: f64 = 0.2;

/// Totals of the samples that were read so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SampleTotals {
    /// Number of samples, including kernel samples, and the time that they stand for.
    pub samples: u64,
    pub taken_ns: f64,
    /// Time up to which the totals count.
    pub until_ns: u64,
    /// Number of busy threads, if there were enough samples.
    pub threads: Option<f64>,
}

#[derive(Debug)]
pub(crate) struct BudgetedRate {
    budget: Budget,
    levels: Levels,
    source: Source,
    steady_hz: f64,
    cpus: usize,
    /// Cost of a sample inside the program, for close and for distant samples.
    close_ns: f64,
    apart_ns: f64,
    totals: SampleTotals,
    running: f64,
    threads: f64,
    last_busy: f64,
    /// Cost of samples and switches inside the program.
    inside_ns: f64,
    rounds: f64,
    /// Number of consecutive rounds without a sample.
    idle_rounds: i32,
    /// Time at which the present phase of the budget began.
    phase_began_ns: u64,
    /// CPU time of the recorder at the beginning of the command.
    recorder_begin_ns: u64,
    target_hz: f64,
    setting: Setting,
    next_ns: u64,
    random: Random,
    pub changes: Vec<RateChange>,
}

impl BudgetedRate {
    /// A rate for events of these rates, the slowest first, and the rate of long runs. The signal source uses only
    /// the latter.
    pub fn new(
        steady_hz: f64,
        rates_hz: &[f64],
        source: Source,
        calibration: &Calibration,
        cpus: usize,
        now_ns: u64,
    ) -> Self {
        let levels = Levels::new(rates_hz, now_ns);
        let most_hz = match source {
            // Kernel ticks limit the rate of timers.
            Source::Signal => steady_hz.max(1_000.0),
            _ => levels.full_hz(),
        };
        let apart_ns = calibration.sample_cost_ns.unwrap_or(UNMEASURED_COST_NS);
        let mut budgeted = Self {
            budget: Budget::new(steady_hz, most_hz.min(MAX_RATE_HZ), cpus),
            setting: levels.nearest(steady_hz),
            levels,
            source,
            steady_hz,
            cpus,
            close_ns: calibration.close_cost_ns.unwrap_or(apart_ns),
            apart_ns,
            totals: SampleTotals {
                until_ns: now_ns,
                ..SampleTotals::default()
            },
            running: 1.0,
            threads: 1.0,
            last_busy: 1.0,
            inside_ns: 0.0,
            rounds: 0.0,
            idle_rounds: 0,
            phase_began_ns: now_ns,
            recorder_begin_ns: own_time_ns(),
            target_hz: most_hz,
            next_ns: now_ns,
            random: Random::new(now_ns),
            changes: Vec::new(),
        };
        budgeted.choose(now_ns);
        budgeted
    }

    /// Rate at which samples have weight 1.
    pub fn full_hz(&self) -> f64 {
        match self.source {
            Source::Signal => self.changes[0].rate_hz,
            _ => self.levels.full_hz(),
        }
    }

    pub fn setting(&self) -> Setting {
        self.setting
    }

    /// Notes that the command begins now: earlier CPU time does not count as sampling.
    pub fn begin(&mut self, now_ns: u64) {
        self.recorder_begin_ns = own_time_ns();
        self.totals.until_ns = now_ns;
        self.next_ns = now_ns + FAST_NS as u64;
    }

    /// Notes that the program marks the beginning of its stable part.
    pub fn mark(&mut self) {
        self.budget.mark();
        self.next_ns = 0;
    }

    /// Cost of sampling so far: processor time of the program and of the recorder.
    pub fn spent_ns(&self) -> f64 {
        self.inside_ns + self.recorder_ns()
    }

    fn recorder_ns(&self) -> f64 {
        own_time_ns().saturating_sub(self.recorder_begin_ns) as f64
    }

    /// Mean cost of a sample, including the recorder's part; `None` without samples.
    pub fn sample_ns(&self) -> Option<f64> {
        (self.totals.samples > 0).then(|| self.spent_ns() / self.totals.samples as f64)
    }

    /// Enters the samples that were read.
    pub fn take_in(&mut self, totals: SampleTotals) {
        let new = totals.samples.saturating_sub(self.totals.samples) as f64;
        let passed_ns = totals.until_ns.saturating_sub(self.totals.until_ns) as f64;
        self.inside_ns += new * self.inside_at(self.target_hz);
        self.rounds += 1.0;
        self.idle_rounds = if new > 0.0 {
            0
        } else {
            self.idle_rounds.saturating_add(1)
        };
        if passed_ns > 0.0 {
            let newest = (totals.taken_ns - self.totals.taken_ns) / passed_ns;
            self.running += (newest - self.running) * (new / ESTIMATE_SAMPLES).min(1.0);
        }
        if let Some(busy) = totals.threads {
            // In the round in which one program follows another, both look busy.
            self.threads = busy.min(self.last_busy);
            self.last_busy = busy;
        }
        self.totals = SampleTotals {
            until_ns: totals.until_ns.max(self.totals.until_ns),
            ..totals
        };
    }

    /// The setting to switch to, if a choice is due.
    pub fn due(&mut self, now_ns: u64) -> Option<Setting> {
        (now_ns >= self.next_ns).then(|| self.choose(now_ns))
    }

    /// Enters the duration of a switch.
    pub fn switched(&mut self, now_ns: u64, took_ns: u64) {
        // The recorder's part is in its CPU time; the program loses as much again.
        self.inside_ns += took_ns as f64;
        self.next_ns = self.next_ns.max(now_ns + SWITCH_SHARE * took_ns);
    }

    /// Time until the next choice.
    pub fn timeout(&self, now_ns: u64) -> Duration {
        Duration::from_nanos(self.next_ns.saturating_sub(now_ns))
    }

    fn choose(&mut self, now_ns: u64) -> Setting {
        let at_once = self.threads.min(self.cpus as f64);
        let stretch = (at_once / self.running.max(0.01)).clamp(1.0, STRETCH_MAX);
        // By the clock, as rounds cost the same while the program waits.
        let phase_ns = now_ns.saturating_sub(self.phase_began_ns) as f64;
        let at_most = |limit_ns: f64| (SLOW_PART * phase_ns).clamp(FAST_NS, limit_ns) * stretch;
        let ahead_ns = match () {
            () if self.budget.would_begin(self.last_busy) => SECOND_LOOK_NS,
            () if self.target_hz == self.steady_hz => at_most(STEADY_NS),
            () if self.target_hz < self.steady_hz => at_most(SLOW_NS),
            () if self.cpus > FEW_CPUS => FAST_MANY_NS,
            () => FAST_NS * stretch,
        };
        let ahead_ns = (ahead_ns * IDLE_GROWTH.powi(self.idle_rounds)).min(ahead_ns.max(SLOW_NS));
        let unread_ns = now_ns.saturating_sub(self.totals.until_ns) as f64;
        let unread = self.setting.rate_hz * self.running * unread_ns / 1e9;
        let inside_ns = self.inside_at(self.target_hz);
        let is_first = self.changes.is_empty();
        let spent_ns = match is_first {
            true => 0.0,
            false => self.spent_ns() + unread * inside_ns,
        };
        let rate_hz = self.budget.rate_hz(&Progress {
            program_ns: self.totals.taken_ns,
            spent_ns,
            round_ns: self.recorder_ns() / self.rounds.max(1.0),
            slow_ns: SLOW_NS * stretch,
            sample_ns: inside_ns + RECORDER_SAMPLE_NS,
            running: self.running,
            threads: self.threads,
            ahead_ns,
        });
        if self.budget.is_phase_new() {
            self.phase_began_ns = now_ns;
        }
        // Near the steady rate, switching between levels costs more than it gains.
        let is_steady = (rate_hz / self.steady_hz - 1.0).abs() < STEADY_WITHIN;
        let rate_hz = if is_steady { self.steady_hz } else { rate_hz };
        self.target_hz = rate_hz;
        self.setting = match self.source {
            Source::Signal => Setting {
                events: 0,
                rate_hz: rate_hz.max(SIGNAL_MIN_HZ),
                weight: 1.0,
            },
            _ => self.levels.choose(rate_hz),
        };
        let known_hz = self.changes.last().map_or(0.0, |change| change.rate_hz);
        let rate_hz = rate_hz.max(1.0);
        if (rate_hz / known_hz - 1.0).abs() > CHANGE_MIN {
            keep_change(
                &mut self.changes,
                RateChange {
                    time_ns: now_ns,
                    rate_hz,
                },
            );
        }
        self.next_ns = now_ns + (ahead_ns * self.jitter()) as u64;
        self.setting
    }

    /// Cost of a sample inside the program at this rate: lower for close samples.
    fn inside_at(&self, rate_hz: f64) -> f64 {
        if self.source == Source::Signal {
            return self.apart_ns;
        }
        let (close, apart) = (GAPS_NS.start().ln(), GAPS_NS.end().ln());
        let gap = (1e9 / rate_hz.max(1.0)).ln().clamp(close, apart);
        let part = (gap - close) / (apart - close);
        self.close_ns + part * (self.apart_ns - self.close_ns)
    }

    /// A factor from 0.5 to 1.5, to avoid lockstep with the program.
    fn jitter(&mut self) -> f64 {
        0.5 + (self.random.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES_HZ: [f64; 3] = [37.9, 213.1, 4_001.0];

    fn calibration() -> Calibration {
        Calibration {
            sample_cost_ns: Some(18_000.0),
            close_cost_ns: Some(12_000.0),
            ..Calibration::default()
        }
    }

    /// Simulates two threads for some seconds and a round. Returns the chosen rates, and the share of the time that the
    /// samples' weights stand for.
    fn recorded(seconds: f64) -> (BudgetedRate, f64) {
        let mut budgeted = BudgetedRate::new(251.0, &RATES_HZ, Source::Clock, &calibration(), 2, 1);
        let (mut now_ns, mut written, mut weights) = (1, SampleTotals::default(), 0.0);
        let mut rest = 0.0;
        while (now_ns as f64) < seconds * 1e9 {
            let setting = budgeted.setting();
            let step_ns = budgeted.timeout(now_ns).as_nanos() as u64 + 100_000;
            rest += setting.rate_hz * 2.0 * step_ns as f64 / 1e9;
            let samples = f64::floor(rest);
            rest -= samples;
            now_ns += step_ns;
            // Samples are read one round after they were written.
            budgeted.take_in(written);
            written.samples += samples as u64;
            written.taken_ns += samples * f64::from(setting.weight) * 1e9 / budgeted.full_hz();
            written.until_ns = now_ns;
            written.threads = Some(2.0);
            weights += samples * f64::from(setting.weight);
            budgeted.due(now_ns);
        }
        let stood_for = weights / budgeted.full_hz() / (2.0 * now_ns as f64 / 1e9);
        (budgeted, stood_for)
    }

    #[test]
    fn a_second_has_thousands_of_samples_for_at_most_80_ms() {
        let (budgeted, _) = recorded(1.0);
        assert!(
            budgeted.totals.samples >= 4_000,
            "{}",
            budgeted.totals.samples
        );
        assert!(budgeted.inside_ns < 80e6, "{}", budgeted.inside_ns);
        assert!(budgeted.changes[0].rate_hz > 2_000.0);
    }

    #[test]
    fn weights_stand_for_the_time_whatever_the_length() {
        for seconds in [0.3, 1.0, 5.0, 60.0] {
            let (budgeted, stood_for) = recorded(seconds);
            assert!((stood_for - 1.0).abs() < 0.1, "{stood_for} of {seconds} s");
            assert!(budgeted.changes.is_sorted_by_key(|change| change.time_ns));
        }
    }

    #[test]
    fn close_samples_cost_less() {
        let budgeted = BudgetedRate::new(251.0, &RATES_HZ, Source::Clock, &calibration(), 2, 1);
        assert_eq!(budgeted.inside_at(9_000.0), 12_000.0);
        assert_eq!(budgeted.inside_at(100.0), 18_000.0);
        assert!((12_000.0..18_000.0).contains(&budgeted.inside_at(1_000.0)));
        let signal = BudgetedRate::new(200.0, &[200.0], Source::Signal, &calibration(), 2, 1);
        assert_eq!(signal.inside_at(9_000.0), 18_000.0);
        assert!(signal.setting().rate_hz > 200.0 && signal.setting().rate_hz <= 1_000.0);
    }

    #[test]
    fn a_switch_that_takes_long_is_not_soon_followed_by_another() {
        let mut budgeted = BudgetedRate::new(251.0, &RATES_HZ, Source::Clock, &calibration(), 2, 1);
        budgeted.begin(1_000);
        budgeted.switched(2_000, 5_000_000);
        assert!(budgeted.timeout(2_000) >= Duration::from_millis(500));
    }

    /// A main thread that fills arrays for some time, and then a team.
    #[test]
    fn a_team_is_noticed_within_a_fifth_of_what_one_thread_took() {
        for (serial_s, team) in [(0.6, 4.0), (1.0, 2.0), (3.0, 8.0)] {
            let cpus = 8;
            let mut budgeted =
                BudgetedRate::new(113.0, &RATES_HZ, Source::Clock, &calibration(), cpus, 1);
            let (mut now_ns, mut totals) = (1, SampleTotals::default());
            let noticed_ns = loop {
                let setting = budgeted.setting();
                let step_ns = budgeted.timeout(now_ns).as_nanos() as u64 + 100_000;
                let is_parallel = now_ns as f64 > serial_s * 1e9;
                let threads = if is_parallel { team } else { 1.0 };
                now_ns += step_ns;
                totals.samples += (setting.rate_hz * threads * step_ns as f64 / 1e9) as u64;
                totals.taken_ns += threads * step_ns as f64;
                totals.until_ns = now_ns;
                totals.threads = Some(threads);
                let before_hz = budgeted.target_hz;
                budgeted.take_in(totals);
                budgeted.due(now_ns);
                if is_parallel && budgeted.target_hz > 2.0 * before_hz {
                    break now_ns;
                }
                assert!((now_ns as f64) < 10.0 * serial_s * 1e9, "never noticed");
            };
            let late_s = noticed_ns as f64 / 1e9 - serial_s;
            assert!(late_s < 0.2 * serial_s, "{late_s} s after {serial_s} s");
        }
    }

    /// A server that starts, waits for clients, and then serves them with four threads.
    #[test]
    fn rounds_of_an_idle_program_are_few_and_its_next_work_is_noticed() {
        const WAITS_S: f64 = 10.0;
        let mut budgeted = BudgetedRate::new(113.0, &RATES_HZ, Source::Clock, &calibration(), 4, 1);
        let (mut now_ns, mut totals) = (1, SampleTotals::default());
        let (mut idle_rounds, mut busy_rounds) = (0, 0);
        let noticed_ns = loop {
            let hz = budgeted.setting().rate_hz;
            let step_ns = budgeted.timeout(now_ns).as_nanos() as u64 + 100_000;
            now_ns += step_ns;
            let threads = match now_ns as f64 / 1e9 {
                0.0..0.3 => 1.0,
                at_s if at_s < 0.3 + WAITS_S => 0.0,
                _ => 4.0,
            };
            totals.samples += (hz * threads * step_ns as f64 / 1e9) as u64;
            totals.taken_ns += threads * step_ns as f64;
            totals.until_ns = now_ns;
            totals.threads = (threads > 0.0).then_some(threads);
            match threads {
                0.0 => idle_rounds += 1,
                _ => busy_rounds += 1,
            }
            let phase_ns = budgeted.phase_began_ns;
            budgeted.take_in(totals);
            budgeted.due(now_ns);
            if threads == 4.0 && budgeted.phase_began_ns > phase_ns {
                break now_ns;
            }
            assert!(now_ns < 60_000_000_000, "never noticed");
        };
        assert!(idle_rounds < 50, "{idle_rounds} rounds");
        assert!(busy_rounds > 5);
        let late_s = noticed_ns as f64 / 1e9 - 0.3 - WAITS_S;
        assert!(late_s < 1.0, "{late_s} s");
    }

    #[test]
    fn one_program_after_the_other_is_no_second_thread() {
        let mut budgeted = BudgetedRate::new(251.0, &RATES_HZ, Source::Clock, &calibration(), 2, 1);
        let mut busy = |threads| {
            budgeted.take_in(SampleTotals {
                threads: Some(threads),
                ..SampleTotals::default()
            });
            budgeted.threads
        };
        assert_eq!([busy(1.0), busy(1.9), busy(1.0)], [1.0, 1.0, 1.0]);
        assert_eq!([busy(1.6), busy(2.0), busy(2.0)], [1.0, 1.6, 2.0]);
    }
}
