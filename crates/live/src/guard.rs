//! The guard of a process: it measures, moves a part of the pages, and measures again. If the program did not lose more
//! time to memory, migration continues. Otherwise the pages move back, and the process is left alone, longer each time.
//!
//! The guard compares the share of CPU time that the program lost to memory, from the same samples as decisions; it
//! needs no hardware counter. It cannot distinguish a bad migration from a program that changes its behaviour. So it
//! undoes moves only if the loss grows by more than the noise of the samples, by more than the program varies between
//! intervals, and by a relevant share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Losses of a process in an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IntervalLoss {
    /// Time lost to memory, estimated from samples.
    pub lost_ns: f64,
    /// CPU time used.
    pub cpu_ns: f64,
    /// Time that one sample stands for.
    pub period_ns: f64,
}

impl IntervalLoss {
    /// Lost share of the CPU time.
    pub fn share(self) -> f64 {
        if self.cpu_ns > 0.0 {
            (self.lost_ns / self.cpu_ns).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// Standard deviation of the share, for a number of independent samples.
    fn deviation(self) -> f64 {
        let samples = self.cpu_ns / self.period_ns.max(1.0);
        if samples < 1.0 {
            return 1.0;
        }
        // Adding one lost and one other sample avoids a deviation of 0 for a share of 0 or 1.
        let share = (self.share() * samples + 1.0) / (samples + 2.0);
        (share * (1.0 - share) / samples).sqrt()
    }

    fn plus(self, other: Self) -> Self {
        Self {
            lost_ns: self.lost_ns + other.lost_ns,
            cpu_ns: self.cpu_ns + other.cpu_ns,
            period_ns: self.period_ns.max(other.period_ns),
        }
    }
}

/// Stage of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// The usual loss is being measured; nothing is moved.
    Measuring,
    /// A part of the pages was moved; the effect is being measured.
    Trying,
    /// The moves did no harm; the policy's requests are carried out.
    Going,
    /// The moves did harm; everything is moved back.
    Holding,
}

/// Thresholds of `Guard`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GuardThresholds {
    /// Number of samples of a process before its loss counts as known.
    pub samples: f64,
    /// Number of intervals before the loss counts as known.
    pub intervals: u32,
    /// Share of the requested pages that is moved in a trial.
    pub part: f64,
    /// Minimum number of pages of the usual size in a trial.
    pub pages_min: usize,
    /// Increase of the lost share of CPU time that does not count as harm.
    pub worse_share: f64,
    /// Increase in standard deviations that does not count as harm.
    pub worse_deviations: f64,
    /// Number of intervals without moves after the first harm; it doubles each further time.
    pub hold_intervals: u32,
    /// Maximum of that number.
    pub hold_intervals_max: u32,
}

impl GuardThresholds {
    /// Thresholds chosen for nearpage, without a published source.
    const OURS: Self = Self {
        samples: 100.0,
        intervals: 3,
        part: 0.25,
        pages_min: 64,
        worse_share: 0.03,
        worse_deviations: 3.0,
        hold_intervals: 10,
        hold_intervals_max: 640,
    };
}

impl Default for GuardThresholds {
    fn default() -> Self {
        Self::OURS
    }
}

/// Verdict about the moves of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Move at most this many pages of the usual size.
    Move(usize),
    /// Move no further pages, and move back the pages moved since the process last did well.
    MoveBack,
}

/// Variation of the lost share between intervals without harm.
#[derive(Clone, Copy, Debug, Default)]
struct BaselineNoise {
    last: Option<f64>,
    /// Pages or threads may have moved since that share was measured.
    may_have_moved: bool,
    /// Variance of the share in an interval.
    variance: f64,
    intervals: u32,
}

/// Factor by which the past variance decays in each interval.
const NOISE_KEPT: f64 = 0.8;

impl BaselineNoise {
    fn take(&mut self, loss: IntervalLoss) {
        if loss.cpu_ns <= 0.0 {
            return;
        }
        let share = loss.share();
        // A smaller loss after moves is their effect. A larger one counts, because this is asked only after a verdict
        // that it is no harm: programs vary while their pages move, too, perhaps for minutes.
        let is_effect = |last: f64| self.may_have_moved && share < last;
        if let Some(last) = self.last.filter(|&last| !is_effect(last)) {
            // The difference of two values has twice the variance of one.
            let now = (share - last).powi(2) / 2.0;
            self.variance = match self.variance {
                0.0 => now,
                _ => NOISE_KEPT * self.variance + (1.0 - NOISE_KEPT) * now,
            };
        }
        self.last = Some(share);
        self.may_have_moved = false;
        self.intervals += 1;
    }
}

/// Guards one process against migration that does harm.
#[derive(Clone, Debug)]
pub struct Guard {
    thresholds: GuardThresholds,
    stage: Stage,
    noise: BaselineNoise,
    /// Loss before any moves.
    before: IntervalLoss,
    /// Loss since the last move.
    since: IntervalLoss,
    hold_left: u32,
    hold_next: u32,
    /// Number of consecutive intervals in which nothing moved.
    idle: u32,
}

/// Number of intervals without moves after which the usual loss is measured again.
const IDLE_INTERVALS: u32 = 5;
/// Factor by which earlier measurements decay in each interval.
const BASELINE_DECAY: f64 = 0.5;

impl Guard {
    /// A guard before the first measurement.
    pub fn new(thresholds: GuardThresholds) -> Self {
        Self {
            thresholds,
            stage: Stage::Measuring,
            noise: BaselineNoise::default(),
            before: IntervalLoss::default(),
            since: IntervalLoss::default(),
            hold_left: 0,
            hold_next: thresholds.hold_intervals,
            idle: 0,
        }
    }

    /// Current stage.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Judges an interval in which the process lost `loss`. The policy requests `requested` pages of the usual size.
    /// `displaced` pages still have to move back; the pause after harm begins when they have.
    pub fn judge(&mut self, loss: IntervalLoss, requested: usize, displaced: usize) -> Verdict {
        match self.stage {
            Stage::Measuring => {
                self.before = scaled(self.before, BASELINE_DECAY).plus(loss);
                self.noise.take(loss);
                let known =
                    self.known(self.before) && self.noise.intervals >= self.thresholds.intervals;
                if known && requested > 0 {
                    self.stage = Stage::Trying;
                    self.since = IntervalLoss::default();
                    let part = (self.thresholds.part * requested as f64).ceil() as usize;
                    return self.allow(part.max(self.thresholds.pages_min).min(requested));
                }
                Verdict::Move(0)
            }
            Stage::Trying => {
                self.since = self.since.plus(loss);
                if !self.known(self.since) {
                    return Verdict::Move(0);
                }
                if self.is_worse() {
                    return self.hold();
                }
                self.noise.take(loss);
                self.stage = Stage::Going;
                self.idle = 0;
                self.allow(requested)
            }
            Stage::Going => {
                self.since = scaled(self.since, BASELINE_DECAY).plus(loss);
                if self.known(self.since) && self.is_worse() {
                    return self.hold();
                }
                self.noise.take(loss);
                self.allow(requested)
            }
            Stage::Holding if displaced > 0 => Verdict::MoveBack,
            Stage::Holding => {
                self.hold_left = self.hold_left.saturating_sub(1);
                if self.hold_left == 0 {
                    self.stage = Stage::Measuring;
                    self.before = IntervalLoss::default();
                    self.noise = BaselineNoise::default();
                    return Verdict::Move(0);
                }
                // Pages that could not be moved back before may be movable now.
                Verdict::MoveBack
            }
        }
    }

    /// Notes whether anything moved after the verdict that at most `allowed` pages may move. What the program loses
    /// after a trial in which nothing moved, or long after the last move, is its own doing, and is measured.
    pub fn note(&mut self, allowed: usize, has_moved: bool) {
        match self.stage {
            Stage::Trying if allowed > 0 && !has_moved => {
                self.stage = Stage::Measuring;
                self.noise.may_have_moved = false;
            }
            Stage::Going => {
                self.idle = if has_moved { 0 } else { self.idle + 1 };
                if self.idle >= IDLE_INTERVALS {
                    // The moves did well, so the next harm counts as the first.
                    self.hold_next = self.thresholds.hold_intervals;
                    self.stage = Stage::Measuring;
                    self.before = self.since;
                }
            }
            _ => {}
        }
    }

    fn allow(&mut self, pages: usize) -> Verdict {
        self.noise.may_have_moved |= pages > 0;
        Verdict::Move(pages)
    }

    fn known(&self, loss: IntervalLoss) -> bool {
        loss.cpu_ns >= self.thresholds.samples * loss.period_ns && loss.cpu_ns > 0.0
    }

    fn is_worse(&self) -> bool {
        let more = self.since.share() - self.before.share();
        let samples = self.since.deviation().hypot(self.before.deviation());
        let deviation = samples.hypot((2.0 * self.noise.variance).sqrt());
        more > self.thresholds.worse_share && more > self.thresholds.worse_deviations * deviation
    }

    fn hold(&mut self) -> Verdict {
        self.stage = Stage::Holding;
        self.hold_left = self.hold_next;
        self.hold_next = (2 * self.hold_next).min(self.thresholds.hold_intervals_max);
        Verdict::MoveBack
    }
}

fn scaled(loss: IntervalLoss, by: f64) -> IntervalLoss {
    IntervalLoss {
        lost_ns: loss.lost_ns * by,
        cpu_ns: loss.cpu_ns * by,
        ..loss
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Thresholds with which one interval suffices.
    const PERMISSIVE: GuardThresholds = GuardThresholds {
        intervals: 1,
        ..GuardThresholds::OURS
    };

    fn loss(share: f64) -> IntervalLoss {
        IntervalLoss {
            lost_ns: share * 1e9,
            cpu_ns: 1e9,
            period_ns: 1e6,
        }
    }

    /// Number of intervals before the first move.
    fn until_it_is_tried(guard: &mut Guard) -> u32 {
        let mut intervals = 0;
        while !matches!(guard.judge(loss(0.3), 100, 0), Verdict::Move(1..)) {
            intervals += 1;
        }
        intervals
    }

    #[test]
    fn a_part_moves_first_and_all_of_it_when_that_did_no_harm() {
        let mut guard = Guard::new(PERMISSIVE);
        assert_eq!(guard.judge(loss(0.4), 0, 0), Verdict::Move(0));
        assert_eq!(guard.judge(loss(0.4), 1000, 0), Verdict::Move(250));
        assert_eq!(guard.stage(), Stage::Trying);
        assert_eq!(guard.judge(loss(0.4), 750, 0), Verdict::Move(750));
        assert_eq!(guard.stage(), Stage::Going);
        assert_eq!(guard.judge(loss(0.2), 20, 0), Verdict::Move(20));
    }

    #[test]
    fn few_samples_say_nothing() {
        let mut guard = Guard::new(PERMISSIVE);
        let few = IntervalLoss {
            lost_ns: 1e7,
            cpu_ns: 2e7,
            period_ns: 1e6,
        };
        for _ in 0..20 {
            assert_eq!(guard.judge(few, 100, 0), Verdict::Move(0));
        }
        assert_eq!(guard.stage(), Stage::Measuring);
    }

    #[test]
    fn harmful_moves_are_undone_and_pauses_double() {
        let mut guard = Guard::new(PERMISSIVE);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pauses.push(until_it_is_tried(&mut guard));
            assert_eq!(guard.judge(loss(0.5), 100, 0), Verdict::MoveBack);
            assert_eq!(guard.stage(), Stage::Holding);
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 320, 640]);
        assert_eq!(until_it_is_tried(&mut guard), 640);
    }

    #[test]
    fn a_process_is_left_alone_once_its_pages_are_back() {
        let mut guard = Guard::new(PERMISSIVE);
        guard.judge(loss(0.3), 100, 0);
        assert_eq!(guard.judge(loss(0.5), 100, 0), Verdict::MoveBack);
        for displaced in (1..30).rev() {
            assert_eq!(guard.judge(loss(0.5), 100, displaced), Verdict::MoveBack);
        }
        assert_eq!(until_it_is_tried(&mut guard), 10);
    }

    #[test]
    fn harm_exceeds_both_noise_and_threshold() {
        for (after, samples, harm) in [
            (0.329, 100_000.0, false),
            (0.331, 100_000.0, true),
            (0.331, 1000.0, false),
            (0.40, 1000.0, true),
        ] {
            let mut guard = Guard::new(PERMISSIVE);
            let of = |share: f64| IntervalLoss {
                lost_ns: share * 1e9,
                cpu_ns: 1e9,
                period_ns: 1e9 / samples,
            };
            guard.judge(of(0.3), 1000, 0);
            let verdict = guard.judge(of(after), 10, 0);
            assert_eq!(verdict == Verdict::MoveBack, harm, "{after} of {samples}");
        }
    }

    #[test]
    fn harm_that_comes_later_is_seen_too() {
        let mut guard = Guard::new(PERMISSIVE);
        guard.judge(loss(0.3), 1000, 0);
        guard.judge(loss(0.3), 750, 0);
        guard.judge(loss(0.3), 100, 0);
        let undone = (0..10).any(|_| guard.judge(loss(0.6), 1, 0) == Verdict::MoveBack);
        assert!(undone);
    }

    #[test]
    fn a_process_whose_pages_no_longer_move_is_measured_anew() {
        // Nothing is requested, or what is requested can't move.
        for requested in [0, 10] {
            let mut guard = Guard::new(PERMISSIVE);
            for share in [0.3, 0.1] {
                guard.judge(loss(share), 10, 0);
                guard.note(10, true);
            }
            for _ in 0..5 {
                assert_eq!(guard.stage(), Stage::Going);
                guard.judge(loss(0.1), requested, 10);
                guard.note(requested, false);
            }
            assert_eq!(guard.stage(), Stage::Measuring);
            assert_eq!(guard.judge(loss(0.1), 400, 0), Verdict::Move(100));
            guard.note(100, true);
            // The baseline is the loss of 0.1.
            assert_eq!(guard.judge(loss(0.3), 300, 0), Verdict::MoveBack);
        }
    }

    /// Shares of lost time that were measured in an emulator on a busy machine, without harmful moves.
    #[test]
    fn noise_of_an_irregular_program_is_no_harm() {
        let mut guard = Guard::new(GuardThresholds::default());
        let shares = [
            86, 64, 85, 48, 72, 69, 72, 75, 90, 76, 51, 61, 74, 93, 78, 76, 78, 60, 55, 58, 103,
            39, 40, 64, 87, 34, 74, 83, 53, 72, 27, 47, 55, 64, 60, 63, 63, 48, 47, 51,
        ];
        for share in shares {
            let of = IntervalLoss {
                period_ns: 3e5,
                ..loss(f64::from(share) / 1000.0)
            };
            assert_ne!(guard.judge(of, 100, 0), Verdict::MoveBack, "{share}");
        }
        assert_eq!(guard.stage(), Stage::Going);
        // A loss far beyond the variation is noticed all the same.
        assert_eq!(guard.judge(loss(0.5), 100, 0), Verdict::MoveBack);
    }

    /// Shares of lost time that were measured in an emulator on a busy machine, while threads and pages moved together
    /// and accesses became local.
    #[test]
    fn a_slow_change_while_pages_move_is_no_harm() {
        let mut guard = Guard::new(GuardThresholds::default());
        let shares = [
            727, 714, 705, 698, 713, 701, 700, 717, 695, 725, 751, 736, 717, 723, 762, 780,
        ];
        for share in shares {
            let of = IntervalLoss {
                period_ns: 4e5,
                ..loss(f64::from(share) / 1000.0)
            };
            assert_ne!(guard.judge(of, 100, 0), Verdict::MoveBack, "{share}");
            guard.note(100, true);
        }
        // Harm that grows with each interval is noticed before it is large.
        let undone = (1..=3).any(|step| {
            guard.judge(loss(0.78 + 0.05 * f64::from(step)), 100, 0) == Verdict::MoveBack
        });
        assert!(undone);
    }

    #[test]
    fn what_a_program_loses_after_a_trial_without_moves_is_its_own() {
        let mut guard = Guard::new(PERMISSIVE);
        assert_eq!(guard.judge(loss(0.1), 100, 0), Verdict::Move(64));
        guard.note(64, false);
        assert_eq!(guard.judge(loss(0.6), 0, 0), Verdict::Move(0));
        assert_eq!(guard.stage(), Stage::Measuring);
        assert_eq!(guard.judge(loss(0.6), 100, 0), Verdict::Move(64));
    }

    #[test]
    fn a_process_is_measured_before_pages_move() {
        let mut guard = Guard::new(GuardThresholds::default());
        for _ in 0..GuardThresholds::default().intervals - 1 {
            assert_eq!(guard.judge(loss(0.4), 100, 0), Verdict::Move(0));
        }
        assert_eq!(guard.judge(loss(0.4), 100, 0), Verdict::Move(64));
    }
}
