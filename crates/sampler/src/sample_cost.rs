//! What a sample costs the program, in nanoseconds: the same work timed in short windows, without
//! samples and with, in turn.

use std::hint::black_box;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::calibrate::{LINE_BYTES, PERIOD_NS, Samples};
use crate::error::Error;

/// Pairs of slices that are compared, about a millisecond each.
pub(crate) const SLICES: usize = 21;
/// … and while recording.
pub(crate) const SLICES_AGAIN: usize = 5;
/// Fewer than these say nothing.
const SLICES_MIN: usize = 3;
const TIME_MAX: Duration = Duration::from_millis(70);
/// In a slice.
const WINDOWS: usize = 32;
/// A window that took longer than the usual one by more than this does not count: something else
/// had its turn on the CPU.
const WINDOW_OVER_MAX_NS: f64 = PERIOD_NS as f64;
/// A signal or an interrupt takes longer than the one, and samples that took longer than the other
/// would leave the loop no time at all.
const PLAUSIBLE_COST_NS: RangeInclusive<f64> = 200.0..=PERIOD_NS as f64;

/// Windows and samples so far.
#[derive(Clone, Debug, Default)]
struct Timed {
    bare_ns: Vec<f64>,
    sampled_ns: Vec<f64>,
    samples: usize,
    slices: usize,
}

/// What a sample costs the calling thread; `None` where that could not be told.
pub(crate) fn cost_ns(samples: &mut dyn Samples, slices: usize) -> Option<f64> {
    timed(samples, slices).ok()?.cost_ns()
}

fn timed(samples: &mut dyn Samples, slices: usize) -> Result<Timed, Error> {
    let mut work = Work::new();
    let mut timed = Timed::default();
    // Fills the cache.
    work.slice(samples, &mut Vec::new());
    samples.take();
    let began = Instant::now();
    while timed.slices < slices && began.elapsed() < TIME_MAX {
        work.slice(samples, &mut timed.bare_ns);
        samples.switch(true)?;
        work.slice(samples, &mut timed.sampled_ns);
        samples.switch(false)?;
        timed.samples += samples.take().len();
        timed.slices += 1;
    }
    Ok(timed)
}

impl Timed {
    /// The mean of windows with samples over that of windows without, by sample.
    fn cost_ns(mut self) -> Option<f64> {
        if self.slices < SLICES_MIN || self.samples == 0 {
            return None;
        }
        self.bare_ns.sort_by(f64::total_cmp);
        let limit_ns = self.bare_ns.get(self.bare_ns.len() / 2)? + WINDOW_OVER_MAX_NS;
        let mean = |windows: &[f64]| {
            let kept = windows.iter().filter(|window| **window <= limit_ns);
            let (count, sum) = kept.fold((0.0, 0.0), |(n, sum), window| (n + 1.0, sum + window));
            sum / count
        };
        let windows_per_sample = self.sampled_ns.len() as f64 / self.samples as f64;
        let cost_ns = (mean(&self.sampled_ns) - mean(&self.bare_ns)) * windows_per_sample;
        PLAUSIBLE_COST_NS.contains(&cost_ns).then_some(cost_ns)
    }
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

    fn slice(&mut self, samples: &mut dyn Samples, windows_ns: &mut Vec<f64>) {
        for _ in 0..WINDOWS {
            let began = Instant::now();
            samples.begin_window();
            let mut sum = 0u64;
            for _ in 0..Self::LOOKUPS {
                let line = self.next_line();
                sum = sum.wrapping_add(self.table[line][0]);
            }
            black_box(sum);
            windows_ns.push(began.elapsed().as_nanos() as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of 30 µs, every third one with a sample of 5 µs.
    fn some() -> Timed {
        Timed {
            bare_ns: vec![30e3; 60],
            sampled_ns: [35e3, 30e3, 30e3].repeat(20),
            samples: 20,
            slices: 5,
        }
    }

    #[test]
    fn a_cost_is_what_windows_took_longer() {
        let close = |cost: Option<f64>| (cost.unwrap() - 5e3).abs() < 1.0;
        assert!(close(some().cost_ns()));
        // Others had their turns.
        let mut spoilt = some();
        spoilt.bare_ns.extend([4e6, 2e5]);
        assert!(close(spoilt.clone().cost_ns()));
        spoilt.sampled_ns.extend([9e6; 3]);
        spoilt.samples += 1;
        assert!(close(spoilt.clone().cost_ns()));
    }

    #[test]
    fn a_cost_is_plausible_or_none() {
        let changed = |change: fn(&mut Timed)| {
            let mut timed = some();
            change(&mut timed);
            timed.cost_ns()
        };
        assert_eq!(changed(|timed| timed.samples = 0), None);
        assert_eq!(changed(|timed| timed.slices = SLICES_MIN - 1), None);
        assert_eq!(changed(|timed| timed.samples = 20_000), None);
        assert_eq!(changed(|timed| timed.sampled_ns = vec![20e3; 60]), None);
        assert_eq!(changed(|timed| timed.sampled_ns = vec![9e6; 60]), None);
        assert_eq!(changed(|timed| timed.bare_ns.clear()), None);
        assert_eq!(changed(|timed| timed.bare_ns = vec![f64::NAN; 60]), None);
    }

    #[test]
    fn work_touches_all_of_its_data() {
        let mut work = Work::new();
        let mut seen = vec![false; Work::LINES];
        (0..32 * Work::LOOKUPS).for_each(|_| seen[work.next_line()] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
