//! What a sample costs the program, in nanoseconds: work timed in short windows, of which some have a
//! sample in them.
//!
//! The *cost of a sample* is the CPU time that is lost to it: inside the program (the interrupt or
//! signal, and what it threw out of the CPU's cache), which is measured here, and in the recorder,
//! which [`crate::overhead`] adds. `benches/signal_source` measures the same two in a program.
//!
//! Samples have to be as far apart as they are in programs. The kernel's code that takes one has been
//! thrown out of the cache since the last, and to fetch it again is much of the cost: of the clock's
//! on a virtual machine, 17 µs where they are half a millisecond apart, 20 µs at 2 ms, 26 µs at 4 ms.
//! For the same reason a signal that the thread sends itself costs a quarter of what a timer's does.
//!
//! Windows are timed by the wall clock, since a kernel that accounts for interrupts by themselves
//! leaves them out of a thread's CPU time. So those in which the thread was switched out do not count,
//! and of the others the lower quartile does: what else a machine does makes windows longer, by
//! anything, and never shorter.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::calibrate::LINE_BYTES;
use crate::sampler::now_ns;

/// Samples after which measuring ends.
const SAMPLES: usize = 12;
/// … and how long it may take.
pub(crate) const TIME_MAX: Duration = Duration::from_millis(110);
/// … while recording.
pub(crate) const TIME_MAX_AGAIN: Duration = Duration::from_millis(40);
/// Fewer than these say nothing.
const SAMPLES_MIN: usize = 3;
/// A signal or an interrupt takes longer than the one, and nothing that takes longer than the other
/// was only that.
const PLAUSIBLE_COST_NS: RangeInclusive<f64> = 200.0..=100_000.0;
/// Time between two samples that are measured: the windows around them must not meet, and many have
/// to come while there is time.
pub(crate) const GAPS_NS: RangeInclusive<f64> = 500_000.0..=4_000_000.0;

/// Time between two samples at `rate_hz`, as near to it as can be measured.
pub(crate) fn gap_ns(rate_hz: f64) -> u64 {
    (1e9 / rate_hz).clamp(*GAPS_NS.start(), *GAPS_NS.end()) as u64
}

/// Something that comes while the calling thread works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interruption {
    Nothing,
    /// A tick of the kernel's, which would have come anyway, without a sample.
    Tick,
    Sample,
}

/// Samples of the calling thread, some milliseconds apart.
pub(crate) trait Interruptions {
    /// What came since this was last called; `now_ns` is the time.
    fn came(&mut self, now_ns: u64) -> Interruption;
    /// What comes where there is no sample.
    fn otherwise(&self) -> Interruption;
}

/// What a sample costs the calling thread; `None` where that could not be told in `time_max`.
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

/// Windows of work, one after the other, and the time that they take.
trait Windows {
    /// Works for a window; `None`: it has taken long enough.
    fn next(&mut self) -> Option<Window>;
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Window {
    ns: f64,
    came: Interruption,
    /// Something else had its turn on the CPU.
    switched_out: bool,
}

fn of_windows(windows: &mut dyn Windows, otherwise: Interruption) -> Option<f64> {
    let (mut all, mut samples) = (Vec::new(), 0);
    while samples <= SAMPLES
        && let Some(window) = windows.next()
    {
        samples += usize::from(window.came == Interruption::Sample && !window.switched_out);
        all.push(window);
    }
    let cost_ns = cost_of(&all, otherwise)?;
    PLAUSIBLE_COST_NS.contains(&cost_ns).then_some(cost_ns)
}

/// By how much the windows around a sample, the one before it to the one after it, take longer than
/// those around what comes `otherwise`. Before: a tick begins earlier than anybody hears of it; after:
/// what was thrown out has to be fetched again.
fn cost_of(windows: &[Window], otherwise: Interruption) -> Option<f64> {
    let around = |came: Interruption| {
        let near = windows
            .windows(3)
            .filter(|near| near[1].came == came && near.iter().all(|window| !window.switched_out));
        near.map(|near| near.iter().map(|window| window.ns).sum())
            .collect::<Vec<f64>>()
    };
    let (samples, others) = (around(Interruption::Sample), around(otherwise));
    let enough = samples.len() >= SAMPLES_MIN && others.len() >= SAMPLES_MIN;
    Some(lower_quartile(samples)? - lower_quartile(others)?).filter(|_| enough)
}

fn lower_quartile(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 4).copied()
}

/// Windows of this thread.
struct ThreadWindows<'a> {
    coming: &'a mut dyn Interruptions,
    work: RandomLookups,
    /// How often the thread had been switched out.
    switches: i64,
    /// Of the last window: no time is between two.
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
            came: self.coming.came(self.end_ns),
            switched_out: self.switches != switches,
        })
    }
}

/// How often this thread was switched out.
fn switches() -> i64 {
    // SAFETY: zero is a valid rusage, which the call fills in.
    let used = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut used);
        used
    };
    used.ru_nivcsw + used.ru_nvcsw
}

/// Work whose data fill most of a CPU's own cache, looked up at random, several at a time: what
/// the interrupt and whoever handles it threw out has to be fetched again, as in the gathers of a
/// sparse matrix.
struct RandomLookups {
    table: Vec<[u64; LINE_BYTES / 8]>,
    state: u64,
}

impl RandomLookups {
    /// A mebibyte of them. A power of two.
    const LINES: usize = (1 << 20) / LINE_BYTES;
    /// In a window.
    const LOOKUPS: u32 = 16_384;

    fn new() -> Self {
        Self {
            // Not zero, so that each page is memory of its own.
            table: vec![[1; LINE_BYTES / 8]; Self::LINES],
            state: 1,
        }
    }

    /// A line at random: the upper bits of Knuth's MMIX generator.
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
    const TICK_NS: f64 = 19_000.0;

    /// A machine with a clock of its own: windows of 30 µs, of which every `every`th has a sample, or
    /// a tick, every second one with a sample.
    struct Fake {
        random: u64,
        windows: usize,
        every: usize,
        by_ticks: bool,
        cost_ns: f64,
        /// How much longer the window after one with a sample is.
        after_ns: f64,
        /// Of 100 windows: so many in which others had their turn, and so many in which the
        /// hypervisor did, which no kernel tells.
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

        fn came(&self, window: usize) -> Interruption {
            match (window.is_multiple_of(self.every), self.by_ticks) {
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
            let came = self.came(self.windows);
            ns += if came == Interruption::Sample {
                self.cost_ns
            } else {
                0.0
            };
            // A tick is heard of late.
            let tick = self.by_ticks && self.came(self.windows + 1) != Interruption::Nothing;
            ns += if tick { TICK_NS } else { 0.0 };
            let after = self.came(self.windows - 1) == Interruption::Sample;
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
                came,
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
            // What it threw out is fetched again later.
            fake.after_ns = 2_000.0;
            let cost_ns = fake.measured_ns();
            assert!(close(cost_ns, 22_000.0, 0.05), "{cost_ns:?}");
        }
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
        // Two samples; none; none that cost anything; more than a sample does.
        assert_eq!(cost_ns(|fake| fake.every = 1_200), None);
        assert_eq!(cost_ns(|fake| fake.every = usize::MAX), None);
        assert_eq!(cost_ns(|fake| fake.cost_ns = 0.0), None);
        assert_eq!(cost_ns(|fake| fake.cost_ns = 1e6), None);
        // Always switched out.
        assert_eq!(cost_ns(|fake| fake.switched = 100), None);
    }

    proptest! {
        #[test]
        fn any_windows_have_a_cost_or_none(
            times in prop::collection::vec((any::<f64>(), 0..3u8), 0..40),
        ) {
            let windows: Vec<Window> = times
                .iter()
                .map(|&(ns, came)| Window {
                    ns,
                    came: [Interruption::Nothing, Interruption::Tick, Interruption::Sample][usize::from(came)],
                    switched_out: false,
                })
                .collect();
            let inner = windows.get(1..windows.len().saturating_sub(1)).unwrap_or_default();
            for otherwise in [Interruption::Nothing, Interruption::Tick] {
                let many = |came| inner.iter().filter(|window| window.came == came).count() >= SAMPLES_MIN;
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
        (0..32 * RandomLookups::LOOKUPS).for_each(|_| seen[work.next_line()] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
