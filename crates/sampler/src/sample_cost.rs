//! Measures the cost of a sample to the program, in nanoseconds: compares short windows of work with and without a
//! sample.
//!
//! The *cost of a sample* is the CPU time that is lost to the sample. This module measures the part inside the
//! program: the interrupt or signal, and refilling the CPU's cache. [`crate::overhead`] adds the recorder's part.
//! `benches/signal_source` measures both in a program.
//!
//! Samples must be as far apart as in programs. The kernel's sampling code leaves the cache between samples, and
//! fetching it again is much of the cost. For clock samples in a virtual machine, the cost was 17 µs at a distance of
//! half a millisecond, 20 µs at 2 ms and 26 µs at 4 ms. For the same reason, a signal that the thread sends itself
//! costs a quarter of a timer's signal.
//!
//! Windows are timed by the wall clock, as kernels with separate accounting of interrupts leave them out of a thread's
//! CPU time. Windows in which the thread was switched out do not count. Of the others, the lower quartile counts:
//! other load makes windows longer by any amount, but never shorter.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::calibrate::LINE_BYTES;
use crate::sampler::now_ns;

/// Number of samples after which a measurement ends.
const SAMPLES: usize = 12;
/// Longest duration of a measurement.
pub(crate) const TIME_MAX: Duration = Duration::from_millis(110);
/// Longest duration of a measurement while recording.
pub(crate) const TIME_MAX_AGAIN: Duration = Duration::from_millis(40);
/// Smallest number of samples for a result.
const SAMPLES_MIN: usize = 3;
/// Plausible costs of a sample. Signals and interrupts take longer than the lower bound; windows beyond the upper
/// bound had other causes, too.
const PLAUSIBLE_COST_NS: RangeInclusive<f64> = 200.0..=100_000.0;
/// Time between two measured samples: long enough for separate windows, and short enough for many samples.
pub(crate) const GAPS_NS: RangeInclusive<f64> = 500_000.0..=4_000_000.0;

/// Time between two samples at `rate_hz`, within the measurable range.
pub(crate) fn gap_ns(rate_hz: f64) -> u64 {
    (1e9 / rate_hz).clamp(*GAPS_NS.start(), *GAPS_NS.end()) as u64
}

/// What interrupted the calling thread during a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    Nothing,
    /// A kernel tick without a sample, which would have come anyway.
    Tick,
    Sample,
}

/// Samples of the calling thread at intervals of some milliseconds.
pub(crate) trait Interruptions {
    /// The interruption since the last call; `now_ns` is the time.
    fn interruption(&mut self, now_ns: u64) -> Interruption;
    /// The interruption with which samples are compared.
    fn otherwise(&self) -> Interruption;
}

/// Cost of a sample to the calling thread; `None` if `time_max` did not suffice.
pub(crate) fn cost_ns(coming: &mut dyn Interruptions, time_max: Duration) -> Option<f64> {
    let begin_ns = now_ns();
    let otherwise = coming.otherwise();
    let mut windows = ThreadWindows {
        coming,
        work: RandomLookups::new(),
        switches: 0,
        end_ns: begin_ns,
        over_ns: begin_ns + time_max.as_nanos() as u64,
    };
    of_windows(&mut windows, otherwise)
}

/// Consecutive windows of work, with their durations.
trait Windows {
    /// Works for one window; `None` once the time is over.
    fn next(&mut self) -> Option<Window>;
}

/// A window of work.
#[derive(Clone, Copy, Debug)]
struct Window {
    ns: f64,
    interruption: Interruption,
    /// Whether another task used the CPU during the window.
    switched_out: bool,
}

fn of_windows(windows: &mut dyn Windows, otherwise: Interruption) -> Option<f64> {
    let (mut all, mut samples) = (Vec::new(), 0);
    while samples <= SAMPLES
        && let Some(window) = windows.next()
    {
        samples += usize::from(window.interruption == Interruption::Sample && !window.switched_out);
        all.push(window);
    }
    let cost_ns = cost_of(&all, otherwise)?;
    PLAUSIBLE_COST_NS.contains(&cost_ns).then_some(cost_ns)
}

/// Difference in duration between the windows around a sample and those around `otherwise`. Both include the window
/// before, as a tick begins before it is noticed, and the window after, in which cached data are fetched again. Where
/// samples come after a few windows, neither may have another sample beside it.
fn cost_of(windows: &[Window], otherwise: Interruption) -> Option<f64> {
    let around = |interruption: Interruption| {
        let near = windows
            .windows(3)
            .filter(|near| is_alone(near, interruption));
        near.map(|near| near.iter().map(|window| window.ns).sum())
            .collect::<Vec<f64>>()
    };
    let (samples, others) = (around(Interruption::Sample), around(otherwise));
    let enough = samples.len() >= SAMPLES_MIN && others.len() >= SAMPLES_MIN;
    Some(lower_quartile(samples)? - lower_quartile(others)?).filter(|_| enough)
}

/// True if the middle one of three windows has this interruption, and nothing else disturbs the three.
fn is_alone(near: &[Window], interruption: Interruption) -> bool {
    near[1].interruption == interruption
        && near.iter().all(|window| !window.switched_out)
        && [near[0], near[2]]
            .iter()
            .all(|window| window.interruption != Interruption::Sample)
}

fn lower_quartile(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 4).copied()
}

/// Windows of the calling thread.
struct ThreadWindows<'a> {
    coming: &'a mut dyn Interruptions,
    work: RandomLookups,
    /// Number of context switches up to the last window.
    switches: i64,
    /// End of the last window; the next one begins at once.
    end_ns: u64,
    over_ns: u64,
}

impl Windows for ThreadWindows<'_> {
    fn next(&mut self) -> Option<Window> {
        let begin_ns = self.end_ns;
        if begin_ns >= self.over_ns {
            return None;
        }
        self.work.window();
        let switches = std::mem::replace(&mut self.switches, switches());
        self.end_ns = now_ns();
        Some(Window {
            ns: self.end_ns.saturating_sub(begin_ns) as f64,
            interruption: self.coming.interruption(self.end_ns),
            switched_out: self.switches != switches,
        })
    }
}

/// Number of context switches of this thread.
fn switches() -> i64 {
    // SAFETY: zero is a valid rusage, which the call fills in.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut used);
        used
    };
    used.ru_nivcsw + used.ru_nvcsw
}

/// Random look-ups in data that fill most of a CPU's own cache, several at a time. Data that the interrupt and its
/// handler evicted must be fetched again, as in the gathers of a sparse matrix.
struct RandomLookups {
    table: Vec<[u64; LINE_BYTES / 8]>,
    state: u64,
}

impl RandomLookups {
    /// Cache lines in a mebibyte: a power of two.
    const LINES: usize = (1 << 20) / LINE_BYTES;
    /// Number of look-ups in a window, which takes 65 µs in a virtual machine: several windows fit between samples.
    const LOOKUPS: u32 = 8_192;

    fn new() -> Self {
        Self {
            // Values other than zero, so that each page has its own memory.
            table: vec![[1; LINE_BYTES / 8]; Self::LINES],
            state: 1,
        }
    }

    /// A random line, from the upper bits of Knuth's MMIX generator.
    fn next_line(&mut self) -> usize {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 40) as usize % Self::LINES
    }

    fn window(&mut self) {
        let mut sum = 0u64;
        for _ in 0..Self::LOOKUPS {
            let line = self.next_line();
            sum = sum.wrapping_add(self.table[line][0]);
        }
        black_box(sum);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BARE_NS: f64 = 30_000.0;
    const KINDS: [Interruption; 3] = [
        Interruption::Nothing,
        Interruption::Tick,
        Interruption::Sample,
    ];
    const TICK_NS: f64 = 19_000.0;

    /// A machine with a simulated clock. Every `every`th of its windows of 30 µs has a sample; or it has a tick, and
    /// every second tick has a sample.
    struct Fake {
        random: u64,
        windows: usize,
        every: usize,
        /// Number of windows after which there is a further sample each time; 0: none.
        also: usize,
        by_ticks: bool,
        cost_ns: f64,
        /// Additional duration of the window after a sample.
        after_ns: f64,
        /// Percentage of windows with other tasks, and of windows with the hypervisor, which the kernel does not
        /// report.
        switched: u64,
        stolen: u64,
        left: usize,
    }

    impl Fake {
        fn quiet(cost_ns: f64) -> Self {
            Self {
                random: 88_172_645_463_325_252,
                windows: 0,
                every: 30,
                also: 0,
                by_ticks: false,
                cost_ns,
                after_ns: 0.0,
                switched: 0,
                stolen: 0,
                left: 3_000,
            }
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % limit
        }

        fn measured_ns(&mut self) -> Option<f64> {
            let otherwise = match self.by_ticks {
                true => Interruption::Tick,
                false => Interruption::Nothing,
            };
            self.left = 3_000;
            of_windows(self, otherwise)
        }

        fn interruption(&self, window: usize) -> Interruption {
            let at = window % self.every;
            match (at == 0 || at == self.also, self.by_ticks) {
                (false, _) => Interruption::Nothing,
                (true, true) if (window / self.every).is_multiple_of(2) => Interruption::Tick,
                (true, _) => Interruption::Sample,
            }
        }
    }

    impl Windows for Fake {
        fn next(&mut self) -> Option<Window> {
            self.left = self.left.checked_sub(1)?;
            self.windows += 1;
            let mut ns = BARE_NS + self.below(600) as f64;
            let interruption = self.interruption(self.windows);
            ns += if interruption == Interruption::Sample {
                self.cost_ns
            } else {
                0.0
            };
            // A tick takes time before it is noticed.
            let tick =
                self.by_ticks && self.interruption(self.windows + 1) != Interruption::Nothing;
            ns += if tick { TICK_NS } else { 0.0 };
            let after = self.interruption(self.windows - 1) == Interruption::Sample;
            ns += if after { self.after_ns } else { 0.0 };
            let switched_out = self.below(100) < self.switched;
            if switched_out {
                ns += 4e6;
            }
            if self.below(100) < self.stolen {
                ns += self.below(90_000) as f64;
            }
            Some(Window {
                ns,
                interruption,
                switched_out,
            })
        }
    }

    fn close(cost_ns: Option<f64>, expected_ns: f64, within: f64) -> bool {
        cost_ns.is_some_and(|cost_ns| (cost_ns / expected_ns - 1.0).abs() < within)
    }

    #[test]
    fn a_cost_is_what_windows_took_longer() {
        for (every, by_ticks) in [(20, false), (133, false), (133, true), (41, true)] {
            let mut fake = Fake {
                every,
                by_ticks,
                ..Fake::quiet(20_000.0)
            };
            let cost_ns = fake.measured_ns();
            assert!(close(cost_ns, 20_000.0, 0.05), "{cost_ns:?}");
            // Evicted data are fetched again in the next window.
            fake.after_ns = 2_000.0;
            let cost_ns = fake.measured_ns();
            assert!(close(cost_ns, 22_000.0, 0.05), "{cost_ns:?}");
        }
    }

    /// Most windows without a sample are beside one that has it.
    #[test]
    fn a_cost_is_the_same_where_samples_are_a_few_windows_apart() {
        let mut fake = Fake {
            every: 7,
            also: 3,
            ..Fake::quiet(20_000.0)
        };
        let cost_ns = fake.measured_ns();
        assert!(close(cost_ns, 20_000.0, 0.05), "{cost_ns:?}");
    }

    #[test]
    fn others_on_the_machine_do_not_change_it() {
        for by_ticks in [false, true] {
            let mut busy = Fake {
                by_ticks,
                switched: 10,
                stolen: 10,
                ..Fake::quiet(30_000.0)
            };
            for _ in 0..20 {
                let cost_ns = busy.measured_ns();
                assert!(close(cost_ns, 30_000.0, 0.5), "{cost_ns:?}");
            }
        }
    }

    #[test]
    fn a_cost_is_plausible_or_none() {
        let cost_ns = |change: fn(&mut Fake)| {
            let mut fake = Fake::quiet(5_000.0);
            change(&mut fake);
            fake.measured_ns()
        };
        assert!(cost_ns(|_| ()).is_some());
        // Two samples; no samples; samples without cost; implausible cost.
        assert_eq!(cost_ns(|fake| fake.every = 1_200), None);
        assert_eq!(cost_ns(|fake| fake.every = usize::MAX), None);
        assert_eq!(cost_ns(|fake| fake.cost_ns = 0.0), None);
        assert_eq!(cost_ns(|fake| fake.cost_ns = 1e6), None);
        // The thread is always switched out.
        assert_eq!(cost_ns(|fake| fake.switched = 100), None);
    }

    proptest! {
        #[test]
        fn any_windows_have_a_cost_or_none(
            times in prop::collection::vec((any::<f64>(), 0..3u8), 0..40),
        ) {
            let windows: Vec<Window> = times
                .iter()
                .map(|&(ns, interruption)| Window {
                    ns,
                    interruption: KINDS[usize::from(interruption)],
                    switched_out: false,
                })
                .collect();
            for otherwise in [Interruption::Nothing, Interruption::Tick] {
                let many = |kind| windows.windows(3).filter(|near| is_alone(near, kind)).count() >= SAMPLES_MIN;
                let expected = many(Interruption::Sample) && many(otherwise);
                prop_assert_eq!(cost_of(&windows, otherwise).is_some(), expected);
            }
        }

        #[test]
        fn gaps_are_those_of_the_rate_where_that_can_be_measured(rate_hz in 1.0f64..100_000.0) {
            let gap_ns = gap_ns(rate_hz) as f64;
            prop_assert!(GAPS_NS.contains(&gap_ns));
            prop_assert!(!(251.0..1_999.0).contains(&rate_hz) || (gap_ns * rate_hz / 1e9 - 1.0).abs() < 1e-3);
        }
    }

    #[test]
    fn work_touches_all_of_its_data() {
        let mut work = RandomLookups::new();
        let mut seen = vec![false; RandomLookups::LINES];
        (0..64 * RandomLookups::LOOKUPS).for_each(|_| seen[work.next_line()] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
