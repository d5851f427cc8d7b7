//! Makes any sampling rate from a few clock events: which of them are on, for how long, and how much a sample then
//! stands for.
//!
//! Threads inherit a perf event with its period, and PERF_EVENT_IOC_PERIOD does not reach the inherited copies.
//! Switching events on and off does. So a few events with different rates are open. A rate between two sums of their
//! rates is made by alternating between the two sets. Below the lowest rate, the slowest event is on for part of the
//! time. Two events make up the rate of long runs, so one of them samples all of the time once a short run has spent
//! most of its budget. A further event between these and the fastest keeps the weights of samples alike: the less they
//! differ, the more a number of samples tells.
//!
//! A running sum of the shares, with a random start, picks the set of each interval. Each interval uses the upper set
//! with its share as probability, independent of earlier shares, so sums of weights are right on average.

use std::path::Path;

/// Rate of the fastest event, in samples per second. It is a prime, like the steady rates.
const FAST_HZ: f64 = 4_001.0;
/// The slowest event's part of the steady rate. The other event's rate is 4 + the golden ratio times as high. No
/// simple fraction is close to this number, so the two events hardly ever sample at once.
const SLOWEST_PART: f64 = 0.151_102_365_260_105;
/// Largest numbers of CPUs for a second steady event, and for an event between the steady ones and the fastest. Each
/// thread inherits every event once per CPU, so events are expensive on larger machines.
const CPUS_OF_THREE: usize = 64;
const CPUS_OF_FOUR: usize = 32;
/// Smallest share of the time for which sampling is on. With less, one interval would be a rough estimate of too many.
const SHARE_MIN: f64 = 0.25;
/// Share of the time from which sampling does not pause.
const ALWAYS: f64 = 0.97;

/// Highest rate per CPU that the kernel accepts; `None` if the kernel names no limit.
pub(crate) fn kernel_rate_limit_hz(proc_root: &Path) -> Option<f64> {
    let file = proc_root.join("sys/kernel/perf_event_max_sample_rate");
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Rates of the events to open, the slowest first, for `steady_hz` in long runs. The kernel allows `max_hz` samples
/// per second and CPU.
pub(crate) fn event_rates_hz(steady_hz: f64, cpus: usize, max_hz: f64) -> Vec<f64> {
    let mut rates = match cpus > CPUS_OF_THREE {
        true => vec![steady_hz],
        false => vec![SLOWEST_PART * steady_hz, (1.0 - SLOWEST_PART) * steady_hz],
    };
    // The kernel throttles by tick, as soon as samples exceed the limit's part of a tick.
    if FAST_HZ <= max_hz / 2.0 {
        // A sample at the steady rate would outweigh dozens of samples at the fastest rate, so that few samples decided
        // how much work a thread seems to do.
        if cpus <= CPUS_OF_FOUR {
            rates.push((steady_hz * FAST_HZ).sqrt());
        }
        rates.push(FAST_HZ);
    }
    rates
}

/// Events to switch on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Setting {
    /// Bit set of the events that are on.
    pub events: u32,
    /// Samples per second with this setting.
    pub rate_hz: f64,
    /// Number of samples at the full rate that one sample stands for.
    pub weight: f32,
}

/// The sets of events, with the sums of their rates.
#[derive(Clone, Debug)]
pub(crate) struct Levels {
    /// Sets of events with the sums of their rates, in order of rate.
    sums: Vec<(u32, f64)>,
    /// Fractional part of the running sum of shares.
    turn: f64,
}

impl Levels {
    /// Levels of events with these rates, the slowest first. The slowest event is on in every set.
    pub fn new(rates_hz: &[f64], seed: u64) -> Self {
        let sum = |events: u32| {
            let on = |(number, _): &(usize, &f64)| events >> number & 1 == 1;
            let rates = rates_hz.iter().enumerate().filter(on);
            rates.map(|(_, rate)| rate).sum::<f64>()
        };
        let subsets = (0..1u32 << rates_hz.len()).filter(|events| events & 1 == 1);
        let mut sums: Vec<(u32, f64)> = subsets.map(|events| (events, sum(events))).collect();
        sums.sort_by(|left, right| left.1.total_cmp(&right.1));
        // Uses the upper bits of Knuth's MMIX generator.
        let random = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1) >> 11;
        Self {
            sums,
            turn: random as f64 / (1u64 << 53) as f64,
        }
    }

    /// Rate with all events on.
    pub fn full_hz(&self) -> f64 {
        self.sums.last().expect("at least one").1
    }

    /// The set with the nearest rate.
    pub fn nearest(&self, rate_hz: f64) -> Setting {
        let off = |sum: &&(u32, f64)| (sum.1 - rate_hz).abs();
        let nearest = self
            .sums
            .iter()
            .min_by(|left, right| off(left).total_cmp(&off(right)));
        self.setting(*nearest.expect("at least one"))
    }

    fn setting(&self, (events, rate_hz): (u32, f64)) -> Setting {
        Setting {
            events,
            rate_hz,
            weight: (self.full_hz() / rate_hz) as f32,
        }
    }

    /// The setting for the next interval.
    pub fn choose(&mut self, rate_hz: f64) -> Setting {
        let above = self.sums.partition_point(|sum| sum.1 <= rate_hz);
        let Some(upper) = self.sums.get(above).copied() else {
            return self.setting(self.sums[above - 1]);
        };
        let lower_hz = above.checked_sub(1).map_or(0.0, |below| self.sums[below].1);
        let share = (rate_hz - lower_hz) / (upper.1 - lower_hz);
        if above > 0 {
            let is_upper = self.comes_up(share);
            return self.setting(self.sums[above - usize::from(!is_upper)]);
        }
        let share = if share > ALWAYS {
            1.0
        } else {
            share.max(SHARE_MIN)
        };
        let is_on = self.comes_up(share);
        Setting {
            events: u32::from(is_on),
            rate_hz: if is_on { upper.1 } else { 0.0 },
            weight: (self.full_hz() / upper.1 / share) as f32,
        }
    }

    fn comes_up(&mut self, share: f64) -> bool {
        self.turn += share;
        let comes_up = self.turn >= 1.0;
        self.turn -= f64::from(comes_up);
        comes_up
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATES_HZ: [f64; 3] = [38.0, 213.0, 4_001.0];

    #[test]
    fn levels_are_the_sums_of_events() {
        let levels = Levels::new(&RATES_HZ, 7);
        let sums: Vec<f64> = levels.sums.iter().map(|sum| sum.1).collect();
        assert_eq!(sums, [38.0, 251.0, 4_039.0, 4_252.0]);
        assert_eq!(levels.full_hz(), 4_252.0);
        let setting = levels.nearest(4_000.0);
        assert_eq!((setting.events, setting.rate_hz), (0b101, 4_039.0));
        let alone = Levels::new(&[251.0], 7);
        assert_eq!(alone.nearest(4_000.0).weight, 1.0);
    }

    #[test]
    fn wide_machines_and_low_limits_have_fewer_events() {
        let four = event_rates_hz(251.0, 2, 100_000.0);
        assert_eq!((four.len(), four[3]), (4, 4_001.0));
        // As many times the steady rate as the fastest is of it.
        assert!((four[2] / 251.0 - 4_001.0 / four[2]).abs() < 1e-9);
        let three = event_rates_hz(251.0, 64, 100_000.0);
        assert_eq!((three.len(), three[2]), (3, 4_001.0));
        assert!(((three[0] + three[1]) / 251.0 - 1.0).abs() < 1e-9);
        // No small multiple of one period is close to a multiple of the other.
        for times in 1..8 {
            let ratio = three[1] / three[0] * f64::from(times);
            assert!((ratio - ratio.round()).abs() > 0.05, "{ratio}");
        }
        assert_eq!(event_rates_hz(251.0, 128, 100_000.0), [251.0, 4_001.0]);
        assert_eq!(event_rates_hz(251.0, 128, 4_000.0), [251.0]);
    }

    #[test]
    fn a_rate_is_the_mean_of_what_is_on() {
        for rate_hz in [10.0, 60.0, 250.0, 251.0, 700.0, 3_000.0, 5_000.0, 9_000.0] {
            let mut levels = Levels::new(&RATES_HZ, 3);
            let settings: Vec<Setting> = (0..1_000).map(|_| levels.choose(rate_hz)).collect();
            let mean = settings.iter().map(|one| one.rate_hz).sum::<f64>() / 1e3;
            let expected = rate_hz.min(4_252.0);
            assert!((mean / expected - 1.0).abs() < 0.03, "{mean} of {rate_hz}");
        }
    }

    proptest! {
        /// Samples of a thread that is on a CPU for parts of the time, with many changes of the rate.
        #[test]
        fn weights_sum_to_the_time(
            seed: u64,
            steps in prop::collection::vec((0.0f64..6_000.0, 0.01f64..0.2, 0.0f64..1.0), 200..400),
        ) {
            let mut levels = Levels::new(&RATES_HZ, seed);
            // Each event continues where it stopped.
            let mut passed = RATES_HZ.map(|_| 0.5);
            let (mut weights, mut seconds) = (0.0, 0.0);
            for (rate_hz, interval, busy) in steps {
                // Rates below the smallest are rounded up.
                let setting = levels.choose(rate_hz.max(30.0));
                let time = interval * busy;
                seconds += time;
                for (number, rate) in RATES_HZ.iter().enumerate() {
                    if setting.events >> number & 1 == 1 {
                        passed[number] += rate * time;
                        weights += passed[number].floor() * f64::from(setting.weight);
                        passed[number] = passed[number].fract();
                    }
                }
            }
            let stood_for = weights / levels.full_hz();
            prop_assert!((stood_for / seconds - 1.0).abs() < 0.25, "{stood_for} of {seconds}");
        }
    }
}
