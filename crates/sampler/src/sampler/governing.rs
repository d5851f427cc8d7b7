//! Keeps the cost of sampling within its bound by switching events on and off.

use std::time::Duration;

use super::{ObservedTarget, Sampler, now_ns};
use crate::budgeted_rate::{BudgetedRate, SampleTotals};
use crate::cpu_ring::{ALL_EVENTS, CpuRing};
use crate::overhead::{Overhead, RateChange};

/// The control of the rate.
pub(super) enum RateControl {
    /// A constant rate.
    Fixed,
    /// The governor, which limits sampling to a share of the program's time.
    Share(Overhead),
    /// The budget, which allows short runs a higher rate.
    Budget(Box<BudgetedRate>),
}

impl RateControl {
    /// Events that are on while sampling is on.
    pub fn events(&self) -> u32 {
        match self {
            Self::Fixed | Self::Share(_) => ALL_EVENTS,
            Self::Budget(budgeted) => budgeted.setting().events,
        }
    }

    pub fn full_hz(&self) -> Option<f64> {
        match self {
            Self::Fixed | Self::Share(_) => None,
            Self::Budget(budgeted) => Some(budgeted.full_hz()),
        }
    }

    pub fn timeout(&self, now_ns: u64) -> Duration {
        match self {
            Self::Fixed | Self::Share(_) => Duration::MAX,
            Self::Budget(budgeted) => budgeted.timeout(now_ns),
        }
    }

    pub fn take_changes(&mut self) -> Vec<RateChange> {
        match self {
            Self::Fixed => Vec::new(),
            Self::Share(overhead) => std::mem::take(&mut overhead.changes),
            Self::Budget(budgeted) => std::mem::take(&mut budgeted.changes),
        }
    }

    pub fn sample_ns(&self) -> Option<f64> {
        match self {
            Self::Fixed => None,
            Self::Share(overhead) => overhead.sample_ns(),
            Self::Budget(budgeted) => budgeted.sample_ns(),
        }
    }

    pub fn spent_ns(&self) -> Option<f64> {
        match self {
            Self::Fixed | Self::Share(_) => None,
            Self::Budget(budgeted) => Some(budgeted.spent_ns()),
        }
    }
}

impl Sampler {
    /// Switches sampling on and off at the set times. Returns whether sampling is over.
    pub(super) fn switch_clock(&mut self) -> bool {
        let now_ns = now_ns();
        let due = |at: &mut Option<u64>| at.take_if(|at| *at <= now_ns).is_some();
        if due(&mut self.enable_at_ns) {
            self.in_window = true;
        }
        let over = due(&mut self.disable_at_ns);
        if over {
            self.in_window = false;
        }
        self.duty_cycle.switch(now_ns);
        self.switch_events();
        over
    }

    fn switch_events(&mut self) {
        let on = match self.in_window && self.duty_cycle.is_on() {
            true => self.rate.events(),
            false => 0,
        };
        if on == std::mem::replace(&mut self.on, on) {
            return;
        }
        let began_ns = now_ns();
        // Errors only occur if the process has ended.
        self.rings.iter_mut().for_each(|ring| ring.switch(on));
        let now_ns = now_ns();
        if let RateControl::Budget(budgeted) = &mut self.rate {
            budgeted.switched(now_ns, now_ns - began_ns);
            if let ObservedTarget::Attached(attached) = &mut self.observed {
                attached.switch(on);
            }
        }
    }

    /// Requests another rate. With [`Options::max_overhead`](super::Options::max_overhead), the rate stays within the
    /// bound.
    pub fn ask_rate(&mut self, rate_hz: f64) {
        if let RateControl::Share(overhead) = &mut self.rate {
            overhead.set_target_hz(rate_hz);
        }
    }

    /// Passes observations to the control of the rate, and applies its decisions.
    pub(super) fn govern(&mut self, now_ns: u64) {
        match &mut self.rate {
            RateControl::Fixed => {}
            RateControl::Share(_) => self.govern_by_share(now_ns),
            RateControl::Budget(budgeted) => {
                let seen = SampleTotals {
                    samples: self.follower.taken,
                    taken_ns: self.follower.taken_ns,
                    until_ns: self.followed_ns,
                    threads: self.follower.busy,
                };
                budgeted.take_in(seen);
                if self
                    .marks
                    .as_mut()
                    .is_some_and(|marks| marks.new_ones(now_ns))
                {
                    budgeted.mark();
                }
                let due = match self.in_window {
                    true => budgeted.due(now_ns),
                    false => None,
                };
                let Some(setting) = due else {
                    return;
                };
                if let Some(signals) = &mut self.signals {
                    signals.set_period((1e9 / setting.rate_hz).round() as u64);
                    return;
                }
                self.switch_events();
                let weight = (super::now_ns(), setting.weight);
                self.follower.periods_each.push(weight);
            }
        }
    }

    fn govern_by_share(&mut self, now_ns: u64) {
        let RateControl::Share(overhead) = &mut self.rate else {
            return;
        };
        let program_ns = match (&self.signals, &self.observed) {
            (None, ObservedTarget::Command(_)) => {
                self.rings.iter().map(CpuRing::running_ns).sum::<u64>() as f64
            }
            // Reading the events of thousands of threads takes longer than sampling them.
            _ => self.follower.taken_ns,
        };
        let Some(rate_hz) = overhead.round(now_ns, program_ns, self.follower.taken) else {
            return;
        };
        if let Some(signals) = &mut self.signals {
            signals.set_period((1e9 / rate_hz).round() as u64);
        } else {
            let share = rate_hz * self.period_ns as f64 / 1e9;
            self.duty_cycle.set_share(share, now_ns);
            let periods_each = (now_ns, self.duty_cycle.periods_each());
            self.follower.periods_each.push(periods_each);
        }
    }
}
