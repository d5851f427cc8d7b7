//! The sample budget: chooses the rate, so that a short run has enough samples and a long run pays a small share of
//! its time.
//!
//! Sampling may take [`FIXED_NS`] of processor time, or [`SHARE`] of the program's time, whichever is more. A person notices
//! neither. Up to [`EQUAL_LIMITS_NS`] of program time (16 s), the fixed budget is larger, and is spent as follows:
//!
//! - Each *phase* gets a part of the remaining budget. For half a second its samples come at one rate; then each doubling of
//!   the phase's length gets about as many samples, up to `EQUAL_LIMITS_NS`. A few samples late in a run would each stand
//!   for many early ones, and outweigh them. A phase begins with the program, at a mark of the
//!   program's stable part, and when 1.5 times as many threads are busy as when the last phase began. A phase with a single
//!   thread gets at most 42 %, as a single thread mostly initialises what others use later.
//! - The rate stays high enough to notice newly busy threads within a fifth of the phase's length so far.
//! - Budget that no phase claims is spread evenly over the time up to `EQUAL_LIMITS_NS`.
//! - [`FLOOR_SHARE`] of the program's time is always spent on samples. On a busy machine everything takes longer than
//!   planned. Without this floor, the end of a run would have a handful of samples, each of which stands for thousands
//!   and outweighs all others.
//!
//! After `EQUAL_LIMITS_NS` samples come at the steady rate, and a new phase gets the part of the share that the steady
//! rate has not spent.
//!
//! The budget reads no clock: [`Progress`] has all of its inputs.

use crate::calibrate::DEFAULT_COST_SHARE;

pub(crate) const FIXED_NS: f64 = 80e6;
pub(crate) const SHARE: f64 = DEFAULT_COST_SHARE;
/// Program time at which both limits are equal.
const EQUAL_LIMITS_NS: f64 = FIXED_NS / SHARE;
/// Part of `FIXED_NS` that is planned. Late and unforeseen costs take the remainder.
const PLANNED: f64 = 0.95;

/// Largest part of `FIXED_NS` that is kept for the recorder's rounds.
const ROUNDS_PART: f64 = 0.05;

/// Share of the program's time that always goes to samples, so that they never cease; and the part of this floor that
/// is taken from the phases. The other part comes from the unplanned remainder.
const FLOOR_SHARE: f64 = 0.000_6;
const FLOOR_KEPT: f64 = 0.5;
/// Number of samples that a phase should have; with more, later phases gain more from them.
const SAMPLES_WANTED: f64 = 5_000.0;
/// Least and greatest part of the remaining budget for a phase of several threads.
const PARALLEL_PART: [f64; 2] = [0.6, 0.97];
/// Least and greatest part of the remaining budget for a phase of one thread.
const SERIAL_PART: [f64; 2] = [0.3, 0.42];
/// Mean number of busy threads from which a phase counts as one of several threads.
const SEVERAL: f64 = 1.5;
/// Growth of the number of busy threads that begins a new phase.
const GROWTH: f64 = 1.5;

/// Length of a phase's beginning in program time, and the part of the phase's allowance that is spent in it.
const BEGINNING_NS: f64 = 500e6;
const BEGINNING_PART: f64 = 0.72;

/// Least rate, relative to a phase's length: each doubling of the length gets `SAMPLES_PER_LENGTH` × ln 2 samples of
/// all threads.
const SAMPLES_PER_LENGTH: f64 = 120.0;

/// Largest part of the remaining budget that may be spent before the next choice, even if all CPUs become busy.
const BUDGET_PART_MAX: f64 = 0.5;

/// Inputs of a choice of the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Progress {
    /// Processor time of the program so far.
    pub program_ns: f64,
    /// Processor time that sampling took so far: in the program, including samples that are still unread, and in the
    /// recorder.
    pub spent_ns: f64,
    /// Processor time of one recorder round, and the interval of rounds while samples are few.
    pub round_ns: f64,
    pub slow_ns: f64,
    /// Present cost of a sample.
    pub sample_ns: f64,
    /// Number of CPUs that the program keeps busy.
    pub running: f64,
    /// Number of threads that the program keeps busy.
    pub threads: f64,
    pub ahead_ns: f64,
}

/// A part of the run with its own allowance.
#[derive(Clone, Copy, Debug)]
struct Phase {
    threads: f64,
    /// Time for which threads have been running in this phase.
    active_ns: f64,
    allowance_ns: f64,
    /// Time spent on sampling when the phase began.
    spent_ns: f64,
    /// Budget that was left for later phases when this phase began.
    later_ns: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Budget {
    steady_hz: f64,
    most_hz: f64,
    cpus: f64,
    phase: Option<Phase>,
    marked: bool,
    program_ns: f64,
}

impl Budget {
    /// A budget with at most `most_hz` on `cpus` CPUs, and `steady_hz` in long runs.
    pub fn new(steady_hz: f64, most_hz: f64, cpus: usize) -> Self {
        Self {
            steady_hz,
            most_hz,
            cpus: cpus.max(1) as f64,
            phase: None,
            marked: false,
            program_ns: 0.0,
        }
    }

    /// Whether no thread has been running in the present phase yet.
    pub fn is_phase_new(&self) -> bool {
        self.phase
            .as_ref()
            .is_none_or(|phase| phase.active_ns == 0.0)
    }

    /// Whether a phase would begin if so many threads were busy.
    pub fn would_begin(&self, threads: f64) -> bool {
        let phase = self.phase.as_ref();
        phase.is_some_and(|phase| threads >= GROWTH * phase.threads)
    }

    /// Begins a new phase at the next choice: the program marked the beginning of its stable part.
    pub fn mark(&mut self) {
        self.marked = true;
    }

    /// Rate until the next choice, in samples per second of a thread's time.
    pub fn rate_hz(&mut self, progress: &Progress) -> f64 {
        let Progress {
            program_ns,
            spent_ns,
            sample_ns,
            ahead_ns,
            ..
        } = *progress;
        let running = progress.running.max(1.0);
        let passed_ns = (program_ns - self.program_ns).max(0.0);
        self.program_ns = program_ns;
        let kept_ns = FLOOR_KEPT * FLOOR_SHARE * (EQUAL_LIMITS_NS - program_ns).max(0.0);
        let left_ns = limit_ns(program_ns) - spent_ns - rounds_ns(progress) - kept_ns;
        let phase = self.phase(progress, left_ns, passed_ns / running);

        let phase_ns =
            (phase.allowance_ns - (spent_ns - phase.spent_ns)).clamp(0.0, left_ns.max(0.0));
        let to_go_ns = (EQUAL_LIMITS_NS - program_ns).max(0.0) / running;
        let a_second = phase_ns * hazard(phase.active_ns, to_go_ns) * 1e9 / running;
        let even_ns = match EQUAL_LIMITS_NS - program_ns {
            to_go_ns if to_go_ns > 0.0 => {
                let later_ns = phase.later_ns * to_go_ns / EQUAL_LIMITS_NS;
                (left_ns - phase_ns - later_ns).max(0.0) / to_go_ns * 1e9
            }
            _ => f64::INFINITY,
        };
        let rate_hz = a_second / sample_ns + (even_ns / sample_ns).min(self.steady_hz);
        let telling_hz = SAMPLES_PER_LENGTH * 1e9 / phase.active_ns.max(BEGINNING_NS) / running;
        let rate_hz = rate_hz.max(telling_hz.min(self.steady_hz));
        let grown_ns =
            left_ns + SHARE * running * ahead_ns * f64::from(program_ns >= EQUAL_LIMITS_NS);
        let at_once_hz = BUDGET_PART_MAX * grown_ns * 1e9 / (sample_ns * self.cpus * ahead_ns);
        let floor_hz = FLOOR_SHARE * 1e9 / sample_ns;
        rate_hz.min(at_once_hz).max(floor_hz).min(self.most_hz)
    }

    /// The present phase, or a new one if it begins here.
    fn phase(&mut self, progress: &Progress, left_ns: f64, active_ns: f64) -> Phase {
        let begins = self.marked || self.would_begin(progress.threads);
        if let (false, Some(phase)) = (begins, &mut self.phase) {
            phase.active_ns += active_ns;
            return *phase;
        }
        self.marked = false;
        let threads = progress.threads.max(1.0);
        let there_ns = left_ns.clamp(0.0, FIXED_NS);
        let wanted = SAMPLES_WANTED * progress.sample_ns / there_ns.max(1.0);
        let part = match threads < SEVERAL {
            true => (wanted / 2.0).clamp(SERIAL_PART[0], SERIAL_PART[1]),
            false => wanted.clamp(PARALLEL_PART[0], PARALLEL_PART[1]),
        };
        let phase = Phase {
            threads,
            active_ns: 0.0,
            allowance_ns: part * there_ns,
            spent_ns: progress.spent_ns,
            later_ns: (1.0 - part) * there_ns,
        };
        *self.phase.insert(phase)
    }
}

/// Limit on the time spent on sampling after `program_ns` of program time.
fn limit_ns(program_ns: f64) -> f64 {
    PLANNED * FIXED_NS.max(SHARE * program_ns)
}

/// Estimated time of the recorder's rounds until both limits are equal, bounded by the part that is kept for them.
fn rounds_ns(progress: &Progress) -> f64 {
    let to_go_ns = (EQUAL_LIMITS_NS - progress.program_ns).max(0.0) / progress.running.max(0.1);
    (to_go_ns / progress.slow_ns * progress.round_ns).min(ROUNDS_PART * FIXED_NS)
}

/// Part of the remaining allowance to spend per nanosecond. The beginning spends evenly; afterwards, each doubling of
/// the phase's length spends as much, until both limits are equal after `to_go_ns`. From about a third of the way there
/// on, each doubling spends half of what is left.
fn hazard(active_ns: f64, to_go_ns: f64) -> f64 {
    match active_ns < BEGINNING_NS {
        true => 1.0 / (BEGINNING_NS / BEGINNING_PART - active_ns),
        false => 1.0 / (active_ns * (1.0 + to_go_ns / active_ns).ln().max(1.0)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parts of a program: seconds and number of threads.
    type Parts<'a> = &'a [(f64, f64)];

    const CPUS: usize = 64;

    #[derive(Default)]
    struct Run {
        samples_by_part: Vec<f64>,
        spent_ns: f64,
        program_ns: f64,
        /// Largest excess over the limit.
        beyond_ns: f64,
        rates_hz: Vec<f64>,
    }

    impl Run {
        fn samples(&self) -> f64 {
            self.samples_by_part.iter().sum()
        }
    }

    fn step_ns(rate_hz: f64, steady_hz: f64) -> f64 {
        match () {
            () if rate_hz > steady_hz => 20e6,
            () if rate_hz == steady_hz => 200e6,
            () => 100e6,
        }
    }

    /// Simulates a program. The budget sees each step one step late, as samples stay in the rings for a round.
    fn run(parts: Parts<'_>, cpus: usize, cost_ns: impl Fn(f64) -> f64, recorder_ns: f64) -> Run {
        let steady_hz = 300.0;
        let mut budget = Budget::new(steady_hz, 5_300.0, cpus);
        let mut run = Run::default();
        let (mut known_ns, mut running, mut threads) = (0.0, 1.0, 1.0);
        let mut rate_hz = steady_hz;
        for (seconds, team) in parts {
            let (mut part_ns, mut samples) = (0.0, 0.0);
            while part_ns < seconds * 1e9 {
                let ahead_ns = step_ns(rate_hz, steady_hz)
                    .min(seconds * 1e9 - part_ns)
                    .max(1e3);
                let sample_ns = cost_ns(run.program_ns / 1e9);
                rate_hz = budget.rate_hz(&Progress {
                    program_ns: known_ns,
                    spent_ns: run.spent_ns,
                    round_ns: recorder_ns,
                    slow_ns: 100e6,
                    sample_ns,
                    running,
                    threads,
                    ahead_ns,
                });
                run.rates_hz.push(rate_hz);
                (known_ns, running, threads) = (run.program_ns, *team, *team);
                let new = rate_hz * team * ahead_ns / 1e9;
                samples += new;
                run.spent_ns += new * sample_ns + recorder_ns;
                run.program_ns += team * ahead_ns;
                part_ns += ahead_ns;
                let limit_ns = FIXED_NS.max(SHARE * run.program_ns);
                run.beyond_ns = run.beyond_ns.max(run.spent_ns - limit_ns);
            }
            run.samples_by_part.push(samples);
        }
        run
    }

    #[test]
    fn a_second_of_two_threads_has_thousands_of_samples() {
        for cost_ns in [8e3, 10e3, 12e3] {
            let run = run(&[(1.0, 2.0)], 2, |_| cost_ns, 30e3);
            assert!(run.samples() >= 4_000.0, "{} at {cost_ns}", run.samples());
            assert!(run.beyond_ns <= 0.0);
        }
    }

    #[test]
    fn initialisation_by_one_thread_leaves_samples_for_the_parallel_part() {
        for cost_ns in [5e3, 12e3, 16e3, 40e3] {
            for seconds in [0.3, 0.5, 1.0, 3.0, 10.0, 60.0] {
                let run = run(&[(seconds, 1.0), (seconds, 2.0)], 2, |_| cost_ns, 30e3);
                let parallel = run.samples_by_part[1] / run.samples();
                assert!(parallel >= 0.4, "{parallel} of {seconds} s at {cost_ns} ns");
                assert!(run.beyond_ns <= 0.0);
            }
        }
    }

    #[test]
    fn an_hour_pays_the_steady_rate() {
        let run = run(&[(3600.0, 2.0)], 2, |_| 11e3, 30e3);
        let steady = 3600.0 * 2.0 * 300.0;
        assert!(
            (run.samples() / steady - 1.0).abs() < 0.02,
            "{}",
            run.samples()
        );
        assert!(run.spent_ns <= SHARE * run.program_ns);
        assert!(run.rates_hz[0] > 4_000.0 / 2.0);
        assert_eq!(*run.rates_hz.last().unwrap(), 300.0);
    }

    #[test]
    fn rates_fall_within_a_phase_and_never_cease() {
        let run = run(&[(8.0, 2.0)], 2, |_| 12e3, 30e3);
        let at = |second: f64| {
            let mut passed = 0.0;
            let then = run.rates_hz.iter().find(|rate| {
                passed += step_ns(**rate, 300.0) / 1e9;
                passed >= second
            });
            *then.unwrap()
        };
        assert!(at(0.2) > 2.0 * at(0.8) && at(0.8) > at(2.0));
        assert!(run.rates_hz.iter().all(|rate| *rate > 10.0));
    }

    /// Each sample stands for the time from one to the next. Samples of such weights tell as much as (Σ w)² ÷ Σ w²
    /// samples of one weight (L. Kish, Survey Sampling, 1965).
    #[test]
    fn late_samples_do_not_outweigh_early_ones() {
        for seconds in [1.0, 2.0, 3.9] {
            let run = run(&[(seconds, 2.0)], 2, |_| 12e3, 30e3);
            let (mut passed_s, mut squares) = (0.0, 0.0);
            for &rate_hz in &run.rates_hz {
                let step_s = step_ns(rate_hz, 300.0) / 1e9;
                passed_s += step_s;
                squares += step_s / rate_hz;
            }
            let equal = 2.0 * passed_s * passed_s / squares;
            assert!(
                equal > 0.15 * run.samples(),
                "{equal} of {} in {seconds} s",
                run.samples()
            );
        }
    }

    /// Other processes disturb the recorder's caches and time, so that more than planned was spent.
    #[test]
    fn samples_go_on_when_more_was_spent_than_planned() {
        let mut budget = Budget::new(300.0, 5_300.0, 2);
        let mut progress = beginning(2.0);
        budget.rate_hz(&progress);
        (progress.program_ns, progress.spent_ns) = (6e9, 85e6);
        let rate_hz = budget.rate_hz(&progress);
        assert_eq!(rate_hz, FLOOR_SHARE * 1e9 / progress.sample_ns);
        assert!(rate_hz > 40.0, "{rate_hz}");
    }

    /// The beginning of a program with this number of threads.
    fn beginning(threads: f64) -> Progress {
        Progress {
            program_ns: 0.0,
            spent_ns: 0.0,
            round_ns: 50e3,
            slow_ns: 300e6,
            sample_ns: 12e3,
            running: threads,
            threads,
            ahead_ns: 20e6,
        }
    }

    #[test]
    fn a_mark_begins_a_phase() {
        let mut budget = Budget::new(300.0, 5_300.0, 2);
        let mut progress = beginning(1.0);
        let first_hz = budget.rate_hz(&progress);
        (progress.program_ns, progress.spent_ns) = (3e9, 36e6);
        let later_hz = budget.rate_hz(&progress);
        assert!(later_hz < first_hz / 5.0, "{later_hz} of {first_hz}");
        budget.mark();
        let marked_hz = budget.rate_hz(&progress);
        assert!(marked_hz > first_hz / 3.0, "{marked_hz} of {first_hz}");
        progress.program_ns += 20e6;
        assert!(budget.rate_hz(&progress) > first_hz / 3.0);
    }

    #[test]
    fn threads_that_are_one_fewer_or_more_of_many_begin_no_phase() {
        let mut budget = Budget::new(300.0, 5_300.0, 64);
        let mut progress = beginning(8.0);
        budget.rate_hz(&progress);
        let begun = budget.phase.unwrap().spent_ns;
        for threads in [7.0, 9.0, 1.0, 8.0, 11.9] {
            progress.threads = threads;
            progress.spent_ns += 1e6;
            budget.rate_hz(&progress);
            assert_eq!(budget.phase.unwrap().spent_ns, begun);
        }
        progress.threads = 12.1;
        budget.rate_hz(&progress);
        assert_eq!(budget.phase.unwrap().spent_ns, progress.spent_ns);
    }

    proptest! {
        #[test]
        fn the_limit_is_never_exceeded(
            parts in prop::collection::vec((0.01f64..20.0, 1u32..CPUS as u32), 1..8),
            cost_ns in 2e3f64..60e3,
            swing in 0.0f64..0.5,
        ) {
            let parts: Vec<(f64, f64)> = parts.into_iter().map(|(seconds, team)| (seconds, f64::from(team))).collect();
            let cost = |second: f64| cost_ns * (1.0 + swing * (second * 3.0).sin());
            let run = run(&parts, CPUS, cost, 20e3);
            prop_assert!(run.beyond_ns <= 0.0, "{} ns beyond", run.beyond_ns);
        }

        #[test]
        fn any_progress_has_a_rate_within_bounds(
            steps in prop::collection::vec((any::<f64>(), any::<f64>(), 1.0f64..1e6, 0.0f64..1e3, any::<f64>(), 1e3f64..1e9), 0..20),
        ) {
            let mut budget = Budget::new(300.0, 5_300.0, 2);
            for (program_ns, spent_ns, sample_ns, running, threads, ahead_ns) in steps {
                let rate_hz = budget.rate_hz(&Progress { program_ns, spent_ns, round_ns: 50e3, slow_ns: 300e6, sample_ns, running, threads, ahead_ns });
                prop_assert!((0.0..=5_300.0).contains(&rate_hz) || !(program_ns.is_finite() && spent_ns.is_finite()), "{rate_hz}");
            }
        }
    }
}
