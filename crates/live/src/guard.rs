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
                // The program may have begun to lose more by itself as the trial began: a few moved pages are no cause
                // of what the guard has just called no harm, and must not become one when the noise falls. What follows
                // is compared with what the program loses now.
                if self.since.share() > self.before.share() {
                    self.before = self.since;
                }
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
mod tests;
