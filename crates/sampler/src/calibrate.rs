//! On which side of the sampled place the stalling instruction is, and what a sample costs: measured
//! here, not assumed.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use nearpage_recording::Source;

use crate::architecture::chase::{self, Places};
use crate::architecture::{REGISTER_MASK, supported};
use crate::error::{Error, Refusal};
use crate::perf_event::{Attributes, Counted, PerfEvent, Scope, flag};
use crate::record::{self, Body, CLOCK_SAMPLE, Identifiers, Record, Sample};
use crate::ring::Ring;
use crate::signal::own::OwnTimer;

/// Where the instruction that a sample stands for is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Just before the sampled place: interrupts wait for the stalling instruction to finish.
    Before,
    /// At the sampled place.
    At,
    /// Anywhere in the straight-line run that begins at the sampled place: emulators look for
    /// interrupts between translation blocks only.
    Block,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Before => "before",
            Side::At => "at",
            Side::Block => "block",
        })
    }
}

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "before" => Ok(Side::Before),
            "at" => Ok(Side::At),
            "block" => Ok(Side::Block),
            _ => Err(format!("{text}: expected `before`, `at` or `block`")),
        }
    }
}

/// What calibration found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// The side; [`Side::Before`] where too few samples came to tell.
    pub side: Side,
    /// Samples in the loop that was run for it.
    pub samples: u32,
    /// Share of them that agree with `side`, 0 to 1.
    pub share: f32,
    /// What a sample cost a loop that keeps its CPU's cache busy, in nanoseconds; `None` where that
    /// could not be told.
    pub sample_cost_ns: Option<f64>,
}

/// The share of a CPU's time that samples may take by default.
pub const DEFAULT_COST_SHARE: f64 = 0.005;

/// The default rate where the cost of a sample could not be measured, in samples a second: within
/// [`DEFAULT_COST_SHARE`] at 36 µs a sample, the dearest that a virtual machine was seen to take.
pub const UNMEASURED_RATE_HZ: f64 = 137.0;

/// Samples of a program cost up to so many times those of the loop here: its prefetched streams
/// begin anew, its threads are scheduled, and other CPUs are sampled at the same time
/// (`benches/sampler_cost` prints both).
const PROGRAM_OVER_LOOP: f64 = 2.0;

/// Default rates to choose from, in samples a second. Primes: not in step with timers, which like
/// round numbers. Steps of about a fifth, since the measurement is no finer, so that most runs on
/// one machine have the same rate.
const DEFAULT_RATES_HZ: [f64; 14] = [
    97.0, 113.0, 137.0, 167.0, 199.0, 241.0, 293.0, 347.0, 419.0, 503.0, 601.0, 719.0, 863.0, 997.0,
];

impl Default for Calibration {
    /// Nothing was measured.
    fn default() -> Self {
        Tally::default().calibration()
    }
}

impl Calibration {
    /// Samples per second of a thread's time that take at most [`DEFAULT_COST_SHARE`] of it here,
    /// within 97 to 997; [`UNMEASURED_RATE_HZ`] where what a sample costs is not known.
    pub fn default_rate_hz(&self) -> f64 {
        let Some(cost_ns) = self.sample_cost_ns else {
            return UNMEASURED_RATE_HZ;
        };
        let rate_max_hz = DEFAULT_COST_SHARE * 1e9 / (cost_ns * PROGRAM_OVER_LOOP);
        let affordable = DEFAULT_RATES_HZ
            .iter()
            .rev()
            .find(|rate| **rate <= rate_max_hz);
        *affordable.unwrap_or(&DEFAULT_RATES_HZ[0])
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.samples {
            0 => write!(f, "{} (assumed: no samples)", self.side)?,
            samples => write!(
                f,
                "{} ({:.0} % of {samples} samples)",
                self.side,
                self.share * 100.0
            )?,
        }
        match self.sample_cost_ns {
            Some(cost_ns) => write!(f, ", {:.1} µs a sample", cost_ns / 1e3),
            None => f.write_str(", cost of a sample not measured"),
        }
    }
}

/// Samples wanted before the side is believed.
const SAMPLES_WANTED: u32 = 60;
/// Longest wait for them; emulators need it.
const SIDE_TIME_MAX: Duration = Duration::from_millis(100);
const PERIOD_NS: u64 = 100_000;
const CHAIN_BYTES: usize = 4 << 20;
const LINE_BYTES: usize = 64;

/// Runs two loops in the calling thread: a chain of pointers, to see where its samples stand, and
/// one that works in its CPU's cache, without and with samples in turn. Takes about 60 ms, on a
/// busy or emulated machine up to 150.
pub fn calibrate() -> Result<Calibration, Error> {
    supported()?;
    calibrate_with(&mut Clock::open()?)
}

/// The same with timer signals instead of perf events, for the signal source. Its timers expire
/// with a tick that comes anyway; these interrupt by themselves, so the cost is an upper bound.
pub fn calibrate_signal() -> Result<Calibration, Error> {
    supported()?;
    calibrate_with(&mut OwnTimer::new(PERIOD_NS).map_err(no_timer)?)
}

fn calibrate_with(samples: &mut dyn Samples) -> Result<Calibration, Error> {
    let mut sampled = Sampled(samples);
    let side = sampled.side()?;
    Ok(Calibration {
        // Optional, so what the kernel has against it is no matter.
        sample_cost_ns: sampled.cost_ns(SLICES).ok().flatten(),
        ..side
    })
}

/// What a sample costs now, as [`Calibration::sample_cost_ns`] was measured, in about 8 ms; of the
/// signal source, or of the clock. `None` where that could not be told.
pub(crate) fn measure_cost_ns(source: Source) -> Option<f64> {
    match source {
        Source::Signal => Sampled(&mut OwnTimer::new(PERIOD_NS).ok()?).median_cost_ns(),
        _ => Sampled(&mut Clock::open().ok()?).median_cost_ns(),
    }
}

fn no_timer(error: io::Error) -> Error {
    Error::NoSource(format!("source signal: timer_create: {error}"))
}

/// Samples of the calling thread.
trait Samples {
    fn switch(&mut self, on: bool) -> Result<(), Error>;
    /// Instruction pointers of the samples since the last call.
    fn take(&mut self) -> Vec<u64>;
}

impl Samples for OwnTimer {
    fn switch(&mut self, on: bool) -> Result<(), Error> {
        let switched = if on { self.enable() } else { self.disable() };
        switched.map_err(no_timer)
    }

    fn take(&mut self) -> Vec<u64> {
        OwnTimer::take(self)
    }
}

/// Those of the kernel's software clock.
struct Clock {
    event: PerfEvent,
    ring: Ring,
    bytes: Vec<u8>,
}

impl Samples for Clock {
    fn switch(&mut self, on: bool) -> Result<(), Error> {
        let switched = match on {
            true => self.event.enable(),
            false => self.event.disable(),
        };
        switched.map_err(refused)
    }

    fn take(&mut self) -> Vec<u64> {
        self.drain().map(|sample| sample.ip).collect()
    }
}

impl Clock {
    fn open() -> Result<Self, Error> {
        let mut attributes = Attributes::new(Counted::CpuClock);
        attributes.sample_period = PERIOD_NS;
        attributes.sample_type = CLOCK_SAMPLE;
        attributes.sample_regs_user = REGISTER_MASK;
        attributes.flags |= flag::EXCLUDE_KERNEL | flag::SAMPLE_ID_ALL;
        let event = PerfEvent::open(&attributes, Scope::ThisThread).map_err(refused)?;
        let page_bytes = page_bytes();
        let data_bytes = (64 << 10).max(page_bytes);
        let ring =
            Ring::map(&event, page_bytes, data_bytes).map_err(|source| Error::RingRefused {
                bytes: data_bytes,
                source,
            })?;
        Ok(Self {
            event,
            ring,
            bytes: Vec::new(),
        })
    }

    /// The samples since the last call.
    fn drain(&mut self) -> impl Iterator<Item = Sample<'_>> {
        self.bytes.clear();
        self.ring.drain(&mut self.bytes);
        let mut rest = self.bytes.as_slice();
        let records = std::iter::from_fn(move || {
            let (record, later) = rest.split_at(record::length(rest).ok()?);
            rest = later;
            Some(record)
        });
        records.filter_map(
            |bytes| match record::parse(bytes, &Identifiers::default()) {
                Ok(Record {
                    body: Body::Sample(sample),
                    ..
                }) => Some(sample),
                _ => None,
            },
        )
    }
}

/// The loops, and what samples them.
struct Sampled<'a>(&'a mut dyn Samples);

impl Sampled<'_> {
    fn side(&mut self) -> Result<Calibration, Error> {
        let chain = chain();
        let mut pointer = chain.as_ptr().cast();
        let mut tally = Tally::default();
        let began = Instant::now();
        self.0.switch(true)?;
        while tally.total() < SAMPLES_WANTED && began.elapsed() < SIDE_TIME_MAX {
            let places;
            (pointer, places) = chase::run(pointer, 20_000);
            self.0
                .take()
                .into_iter()
                .for_each(|ip| tally.add(ip, places));
        }
        self.0.switch(false)?;
        Ok(tally.calibration())
    }

    fn cost_ns(&mut self, slices: usize) -> Result<Option<f64>, Error> {
        self.costs_ns(slices).map(cost_ns)
    }

    fn median_cost_ns(&mut self) -> Option<f64> {
        let mut costs_ns = self.costs_ns(SLICES_AGAIN).ok()?;
        costs_ns.sort_by(f64::total_cmp);
        let median_ns = *costs_ns.get(costs_ns.len() / 2)?;
        PLAUSIBLE_COST_NS.contains(&median_ns).then_some(median_ns)
    }

    /// What a sample costs, in nanoseconds: the same work timed without samples and with, in turn.
    fn costs_ns(&mut self, slices: usize) -> Result<Vec<f64>, Error> {
        let mut work = Work::new();
        work.slice();
        self.0.take();
        let mut costs_ns = Vec::new();
        let began = Instant::now();
        while costs_ns.len() < slices && began.elapsed() < COST_TIME_MAX {
            let bare = work.slice();
            self.0.switch(true)?;
            let with_samples = work.slice();
            self.0.switch(false)?;
            let samples = self.0.take().len();
            if samples > 0 {
                let gained_ns = with_samples.as_nanos() as f64 - bare.as_nanos() as f64;
                costs_ns.push(gained_ns / samples as f64);
            }
        }
        Ok(costs_ns)
    }
}

/// Pairs of slices that are compared. About a millisecond each, so that what else the machine does
/// spoils few, and as often one as the other.
const SLICES: usize = 21;
/// … and while recording.
const SLICES_AGAIN: usize = 3;
/// Fewer than these say nothing.
const SLICES_MIN: usize = 7;
const COST_TIME_MAX: Duration = Duration::from_millis(50);
/// An interrupt takes longer than the one, and samples that took longer than the other would leave
/// the loop no time at all.
const PLAUSIBLE_COST_NS: RangeInclusive<f64> = 200.0..=PERIOD_NS as f64;

/// What two thirds of the slices found at most, if there are enough and it can be true. On a quiet
/// machine that is close to the median; on a busy one rather too few samples than too many.
fn cost_ns(mut costs_ns: Vec<f64>) -> Option<f64> {
    if costs_ns.len() < SLICES_MIN {
        return None;
    }
    costs_ns.sort_by(f64::total_cmp);
    Some(costs_ns[costs_ns.len() * 2 / 3]).filter(|cost_ns| PLAUSIBLE_COST_NS.contains(cost_ns))
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
    const LOOKUPS: u32 = 500_000;

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

    fn slice(&mut self) -> Duration {
        let began = Instant::now();
        let mut sum = 0u64;
        for _ in 0..Self::LOOKUPS {
            let line = self.next_line();
            sum = sum.wrapping_add(self.table[line][0]);
        }
        black_box(sum);
        began.elapsed()
    }
}

fn refused(error: io::Error) -> Error {
    Error::Refused(Refusal::explain(error, Path::new("/proc")))
}

/// Samples by place.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    begin: u32,
    load: u32,
    after: u32,
}

impl Tally {
    fn add(&mut self, ip: u64, places: Places) {
        self.begin += u32::from(ip == places.begin);
        self.load += u32::from(ip == places.load);
        self.after += u32::from(ip == places.after);
    }

    fn total(&self) -> u32 {
        self.begin + self.load + self.after
    }

    fn calibration(&self) -> Calibration {
        // `Before` first: it wins where nothing was seen.
        let mut side = (Side::Before, self.after);
        for other in [(Side::At, self.load), (Side::Block, self.begin)] {
            if other.1 > side.1 {
                side = other;
            }
        }
        let samples = self.total();
        Calibration {
            side: side.0,
            samples,
            share: side.1 as f32 / samples.max(1) as f32,
            sample_cost_ns: None,
        }
    }
}

/// Pointers, a cache line apart, each to the next of one cycle through all lines, with strides that
/// no prefetcher follows.
fn chain() -> Vec<[usize; LINE_BYTES / 8]> {
    let lines = CHAIN_BYTES / LINE_BYTES;
    let mut chain = vec![[0; LINE_BYTES / 8]; lines];
    let base = chain.as_ptr() as usize;
    // x → 5x + odd is a full cycle modulo a power of two (Hull and Dobell, 1962).
    let mut line = 0;
    for _ in 0..lines {
        let next = (line * 5 + 12_345) % lines;
        chain[line][0] = base + next * LINE_BYTES;
        line = next;
    }
    chain
}

/// Bytes of a page.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: no pointers; the name is a valid one.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_one_cycle() {
        let chain = chain();
        let base = chain.as_ptr() as usize;
        let (mut line, mut steps) = (0, 0);
        loop {
            line = (chain[line][0] - base) / LINE_BYTES;
            steps += 1;
            if line == 0 {
                break;
            }
        }
        assert_eq!(steps, chain.len());
    }

    #[test]
    fn the_majority_decides() {
        let side = |begin, load, after| Tally { begin, load, after }.calibration().side;
        assert_eq!(side(1, 2, 90), Side::Before);
        assert_eq!(side(1, 90, 2), Side::At);
        assert_eq!(side(90, 1, 2), Side::Block);
        assert_eq!(side(0, 0, 0), Side::Before);
        assert_eq!("block".parse(), Ok(Side::Block));
    }

    fn at_cost(sample_cost_ns: Option<f64>) -> Calibration {
        Calibration {
            sample_cost_ns,
            ..Tally::default().calibration()
        }
    }

    #[test]
    fn the_default_rate_is_the_largest_within_the_share() {
        let rate = |cost_ns| at_cost(Some(cost_ns)).default_rate_hz();
        let share = |rate, cost_ns| rate * cost_ns * PROGRAM_OVER_LOOP / 1e9;
        // Bounded where samples are very cheap or very dear.
        assert_eq!(rate(200.0), 997.0);
        assert_eq!(rate(1e6), 97.0);
        for cost_ns in (3_000..=25_000).map(f64::from) {
            let chosen = rate(cost_ns);
            assert!(share(chosen, cost_ns) <= DEFAULT_COST_SHARE);
            let dearer = DEFAULT_RATES_HZ.iter().find(|rate| **rate > chosen);
            assert!(dearer.is_none_or(|rate| share(*rate, cost_ns) > DEFAULT_COST_SHARE));
        }
        assert_eq!(at_cost(None).default_rate_hz(), UNMEASURED_RATE_HZ);
        const { assert!(UNMEASURED_RATE_HZ * 36_000.0 / 1e9 <= DEFAULT_COST_SHARE) };
        assert!(DEFAULT_RATES_HZ.is_sorted() && DEFAULT_RATES_HZ.contains(&UNMEASURED_RATE_HZ));
        for rate in DEFAULT_RATES_HZ.map(|rate| rate as u32) {
            assert!((2..rate).all(|divisor| rate % divisor != 0), "{rate}");
        }
    }

    #[test]
    fn a_cost_is_plausible_or_none() {
        let of = |values: &[f64]| cost_ns(values.to_vec());
        // Slices in which the machine did something else.
        let spoilt = [9e3, 8e3, -4e6, 7e3, 9e6, 8e3, 8e3];
        assert_eq!(of(&spoilt), Some(8e3));
        assert_eq!(of(&spoilt[..SLICES_MIN - 1]), None);
        assert_eq!(of(&[]), None);
        for absurd in [-5e3, 0.0, 100.0, 2e5, f64::NAN, f64::INFINITY] {
            assert_eq!(of(&[absurd; SLICES]), None, "{absurd}");
        }
    }

    #[test]
    fn a_calibration_reads_well() {
        let mut calibration = Tally {
            begin: 0,
            load: 2,
            after: 62,
        }
        .calibration();
        let unmeasured = "before (97 % of 64 samples), cost of a sample not measured";
        assert_eq!(calibration.to_string(), unmeasured);
        calibration.sample_cost_ns = Some(8_340.0);
        assert_eq!(
            calibration.to_string(),
            "before (97 % of 64 samples), 8.3 µs a sample"
        );
    }

    #[test]
    fn work_touches_all_of_its_data() {
        let mut work = Work::new();
        let mut seen = vec![false; Work::LINES];
        (0..Work::LOOKUPS).for_each(|_| seen[work.next_line()] = true);
        assert!(seen.iter().all(|seen| *seen));
    }
}
