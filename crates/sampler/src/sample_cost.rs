//! What a sample costs the program, in nanoseconds: the same work timed in short windows, without
//! samples and with, in turn.
//!
//! The *cost of a sample* is the CPU time that is lost to it: inside the program (the interrupt or
//! signal, and what it threw out of the CPU's cache), which is measured here, and in the recorder,
//! which [`crate::overhead`] adds. `benches/signal_source` measures the same two in programs.
//!
//! Windows are timed by the wall clock, since a kernel that accounts for interrupts by themselves
//! leaves them out of a thread's CPU time. So those in which the thread was switched out do not count,
//! and of the others the median does, slice by slice: on a busy machine single windows are longer
//! by anything, and all windows of a millisecond by much the same.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::calibrate::{LINE_BYTES, PERIOD_NS, Samples};
use crate::error::Error;

/// Pairs of slices that are compared, about a millisecond each.
pub(crate) const SLICES: usize = 21;
/// … and while recording.
pub(crate) const SLICES_AGAIN: usize = 9;
/// Fewer than these say nothing.
const SLICES_MIN: usize = 3;
const TIME_MAX: Duration = Duration::from_millis(70);
/// In a slice.
const WINDOWS: usize = 32;
/// A signal or an interrupt takes longer than the one, and samples that took longer than the other
/// would leave the loop no time at all.
const PLAUSIBLE_COST_NS: RangeInclusive<f64> = 200.0..=PERIOD_NS as f64;

/// What a sample costs the calling thread; `None` where that could not be told.
pub(crate) fn cost_ns(samples: &mut dyn Samples, slices: usize) -> Option<f64> {
    let mut windows = Real {
        samples,
        work: Work::new(),
        switches: 0,
        began: Instant::now(),
    };
    // Fills the cache.
    slice(&mut windows);
    of_windows(&mut windows, slices)
}

/// Windows of work, and the time that they take.
trait Windows {
    /// With samples from here on, or without.
    fn switch(&mut self, on: bool) -> Result<(), Error>;
    /// Works for a window.
    fn next(&mut self) -> Window;
    /// Has it taken long enough?
    fn over(&self) -> bool;
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Window {
    ns: f64,
    /// A sample was taken in it.
    sampled: bool,
    /// Something else had its turn on the CPU.
    switched_out: bool,
}

/// The median over pairs of slices, one without and one with samples.
fn of_windows(windows: &mut dyn Windows, slices: usize) -> Option<f64> {
    let mut costs_ns = Vec::new();
    for _ in 0..slices {
        if windows.over() {
            break;
        }
        let bare = slice(windows);
        windows.switch(true).ok()?;
        let with = slice(windows);
        windows.switch(false).ok()?;
        costs_ns.extend(cost_of_pair(&bare, &with));
    }
    let enough = costs_ns.len() >= SLICES_MIN;
    median(costs_ns).filter(|cost_ns| enough && PLAUSIBLE_COST_NS.contains(cost_ns))
}

fn slice(windows: &mut dyn Windows) -> Vec<Window> {
    let all = (0..WINDOWS).map(|_| windows.next());
    all.filter(|window| !window.switched_out).collect()
}

/// By how much windows with a sample were longer than those of the slice without any, and those after
/// them, which may have to fetch again what the sample threw out.
fn cost_of_pair(bare: &[Window], with: &[Window]) -> Option<f64> {
    let of = |sampled: bool| {
        let times = with.iter().filter(|window| window.sampled == sampled);
        times.map(|window| window.ns).collect::<Vec<_>>()
    };
    let (sampled, others) = (of(true), of(false));
    let bare_ns = median(bare.iter().map(|window| window.ns).collect())?;
    let others_each = others.len() as f64 / sampled.len() as f64;
    let others_ns = median(others).map_or(0.0, |ns| (ns - bare_ns) * others_each);
    Some(median(sampled)? - bare_ns + others_ns)
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Windows of this thread.
struct Real<'a> {
    samples: &'a mut dyn Samples,
    work: Work,
    /// How often the thread had been switched out.
    switches: i64,
    began: Instant,
}

impl Windows for Real<'_> {
    fn switch(&mut self, on: bool) -> Result<(), Error> {
        self.samples.switch(on)?;
        self.samples.take();
        Ok(())
    }

    fn next(&mut self) -> Window {
        let before = self.samples.count();
        let began = Instant::now();
        self.samples.begin_window();
        self.work.window();
        let ns = began.elapsed().as_nanos() as f64;
        let sampled = self.samples.count() != before;
        let switches = std::mem::replace(&mut self.switches, switches());
        Window {
            ns,
            sampled,
            switched_out: self.switches != switches,
        }
    }

    fn over(&self) -> bool {
        self.began.elapsed() >= TIME_MAX
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
struct Work {
    table: Vec<[u64; LINE_BYTES / 8]>,
    state: u64,
}

impl Work {
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

    /// A machine with a clock of its own: windows of 30 µs, of which every `every`th has a sample.
    struct Fake {
        random: u64,
        on: bool,
        windows: usize,
        every: usize,
        cost_ns: f64,
        /// How much longer the window after one with a sample is.
        after_ns: f64,
        /// Of 100 windows: so many in which others had their turn, and so many in which the
        /// hypervisor did, which no kernel tells.
        switched: u64,
        stolen: u64,
        /// The machine is so many times as slow in every other 16 windows, or half of them.
        slow: f64,
    }

    impl Fake {
        fn quiet(cost_ns: f64) -> Self {
            Self {
                random: 88_172_645_463_325_252,
                on: false,
                windows: 0,
                every: 3,
                cost_ns,
                after_ns: 0.0,
                switched: 0,
                stolen: 0,
                slow: 1.0,
            }
        }

        fn below(&mut self, limit: u64) -> u64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            self.random % limit
        }
    }

    impl Windows for Fake {
        fn switch(&mut self, on: bool) -> Result<(), Error> {
            self.on = on;
            Ok(())
        }

        fn next(&mut self) -> Window {
            self.windows += 1;
            let sampled = self.on && self.windows.is_multiple_of(self.every);
            let after = self.on && self.windows % self.every == 1 % self.every;
            let mut ns = BARE_NS + self.below(600) as f64;
            // For 40 slices at a time, as when another program runs on the core's other thread.
            if self.windows / (40 * WINDOWS) % 2 == 1 {
                ns *= self.slow;
            }
            ns += if sampled { self.cost_ns } else { 0.0 };
            ns += if after { self.after_ns } else { 0.0 };
            let switched_out = self.below(100) < self.switched;
            if switched_out {
                ns += 4e6;
            }
            if self.below(100) < self.stolen {
                ns += self.below(90_000) as f64;
            }
            Window {
                ns,
                sampled,
                switched_out,
            }
        }

        fn over(&self) -> bool {
            false
        }
    }

    fn close(cost_ns: Option<f64>, expected_ns: f64, within: f64) -> bool {
        cost_ns.is_some_and(|cost_ns| (cost_ns / expected_ns - 1.0).abs() < within)
    }

    #[test]
    fn a_cost_is_what_windows_took_longer() {
        for every in [1, 2, 3, 5] {
            let mut fake = Fake {
                every,
                ..Fake::quiet(8_000.0)
            };
            assert!(close(of_windows(&mut fake, SLICES), 8_000.0, 0.05));
        }
        // What it threw out is fetched again later.
        let mut fake = Fake {
            after_ns: 2_000.0,
            every: 2,
            ..Fake::quiet(8_000.0)
        };
        assert!(close(of_windows(&mut fake, SLICES), 10_000.0, 0.05));
    }

    #[test]
    fn others_on_the_machine_do_not_change_it() {
        for slices in [SLICES_AGAIN, SLICES] {
            let mut busy = Fake {
                switched: 30,
                stolen: 20,
                slow: 1.7,
                ..Fake::quiet(20_000.0)
            };
            for _ in 0..20 {
                let cost_ns = of_windows(&mut busy, slices);
                assert!(close(cost_ns, 20_000.0, 0.2), "{cost_ns:?}");
            }
        }
    }

    #[test]
    fn a_cost_is_plausible_or_none() {
        let cost_ns = |change: fn(&mut Fake), slices| {
            let mut fake = Fake::quiet(5_000.0);
            change(&mut fake);
            of_windows(&mut fake, slices)
        };
        assert!(cost_ns(|_| (), SLICES).is_some());
        assert_eq!(cost_ns(|_| (), SLICES_MIN - 1), None);
        // No samples, none that cost anything, and more than there is time for.
        assert_eq!(cost_ns(|fake| fake.every = usize::MAX, SLICES), None);
        assert_eq!(cost_ns(|fake| fake.cost_ns = 0.0, SLICES), None);
        assert_eq!(cost_ns(|fake| fake.cost_ns = 1e6, SLICES), None);
        // Always switched out.
        assert_eq!(cost_ns(|fake| fake.switched = 100, SLICES), None);
    }

    proptest! {
        #[test]
        fn any_windows_have_a_cost_or_none(
            times in prop::collection::vec((any::<f64>(), any::<bool>()), 0..40),
        ) {
            let windows: Vec<Window> = times
                .iter()
                .map(|&(ns, sampled)| Window { ns, sampled, switched_out: false })
                .collect();
            let cost_ns = cost_of_pair(&windows, &windows);
            prop_assert_eq!(cost_ns.is_some(), times.iter().any(|(_, sampled)| *sampled));
        }
    }

    #[test]
    fn work_touches_all_of_its_data() {
        let mut work = Work::new();
        let mut seen = vec![false; Work::LINES];
        (0..32 * Work::LOOKUPS).for_each(|_| seen[work.next_line()] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
