//! Measures, on this machine, on which side of the sampled address the stalling instruction lies, and the cost of a
//! sample.

use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use nearpage_amount::{percent, time};
use nearpage_perf_abi::{event, flag, header};
use nearpage_recording::Source;

use crate::architecture::{REGISTER_MASK, chase};
use crate::error::{Error, Refusal, UnknownSkidSide};
use crate::perf_event::{PerfEvent, Scope, software_attributes};
use crate::record::{self, CLOCK_SAMPLE, Identifiers, Record, RecordBody, Sample};
use crate::ring::Ring;
use crate::sample_cost::{Interruption, Interruptions, TIME_MAX, cost_ns, gap_ns};
use crate::signal::own::{OwnTimer, Ticks};
use crate::source::RequestedSource;

/// Position of the instruction that a sample stands for, relative to the sampled address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkidSide {
    /// Just before the sampled address, as interrupts wait until the stalling instruction finishes.
    Before,
    /// At the sampled address.
    At,
    /// Anywhere in the straight-line code that begins at the sampled address, as emulators check for interrupts only
    /// between translation blocks.
    Block,
}

impl fmt::Display for SkidSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkidSide::Before => "before",
            SkidSide::At => "at",
            SkidSide::Block => "block",
        })
    }
}

impl FromStr for SkidSide {
    type Err = UnknownSkidSide;

    fn from_str(text: &str) -> Result<Self, UnknownSkidSide> {
        match text {
            "before" => Ok(SkidSide::Before),
            "at" => Ok(SkidSide::At),
            "block" => Ok(SkidSide::Block),
            _ => Err(UnknownSkidSide(text.to_owned())),
        }
    }
}

/// Addresses in the code of the pointer chase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// First instruction of the loop.
    pub begin: u64,
    /// The load.
    pub load: u64,
    /// The instruction after the load.
    pub after: u64,
}

/// Results of the calibration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// The side; [`SkidSide::Before`] if there were too few samples.
    pub side: SkidSide,
    /// Number of samples in the calibration loop.
    pub samples: u32,
    /// Share of the samples that agree with `side`, 0 to 1.
    pub share: f32,
    /// Cost, in nanoseconds, of a sample to a loop that keeps its CPU's cache busy, where samples are some
    /// milliseconds apart; `None` if it could not be measured.
    pub sample_cost_ns: Option<f64>,
    /// Cost of samples that are half a millisecond apart. It is lower, as the kernel's sampling code is still in the
    /// CPU's cache.
    pub close_cost_ns: Option<f64>,
}

/// Share of a CPU's time that samples may take by default.
pub const DEFAULT_COST_SHARE: f64 = 0.005;

/// Default rate, in samples per second, if the cost of a sample could not be measured. It stays within
/// [`DEFAULT_COST_SHARE`] up to 36 µs per sample, the highest cost seen in a virtual machine.
pub const UNMEASURED_RATE_HZ: f64 = 137.0;

/// Rate at which the cost of a sample is measured; default rates are not much higher where samples are expensive.
pub(crate) const CALIBRATED_HZ: f64 = UNMEASURED_RATE_HZ;

/// Rate, number and longest duration of measurements with close samples. The least result counts.
const CLOSE_HZ: f64 = 2_000.0;
const CLOSE_MEASUREMENTS: usize = 3;
const TIME_MAX_CLOSE: Duration = Duration::from_millis(30);
/// Upper bound on the ratio of a sample's cost at some milliseconds' distance to that of close samples. The largest
/// observed ratio was 26 µs to 17 µs.
const DISTANT_OVER_CLOSE_MAX: f64 = 1.6;

/// Upper bound on the ratio of a sample's cost in a program to that in the calibration loop: prefetch streams start
/// anew, threads are scheduled, and other CPUs are sampled at the same time.
const PROGRAM_OVER_LOOP: f64 = 1.5;

/// Default rates to choose from, in samples per second. They are primes to avoid lockstep with timers, which have
/// round periods. They differ by about a fifth, the precision of the measurement, so that most runs on one machine
/// have the same rate.
const DEFAULT_RATES_HZ: [f64; 14] = [
    97.0, 113.0, 137.0, 167.0, 199.0, 241.0, 293.0, 347.0, 419.0, 503.0, 601.0, 719.0, 863.0, 997.0,
];

impl Default for Calibration {
    /// A calibration without measurements.
    fn default() -> Self {
        Tally::default().calibration()
    }
}

impl Calibration {
    /// The largest default rate, 97 to 997 samples per second of a thread's time, whose samples take at most
    /// [`DEFAULT_COST_SHARE`] of this time; [`UNMEASURED_RATE_HZ`] if the cost of a sample is unknown.
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
                "{} ({} of {samples} samples)",
                self.side,
                percent(self.share.into())
            )?,
        }
        match self.sample_cost_ns {
            Some(cost_ns) => write!(f, ", {} a sample", time(cost_ns)),
            None => f.write_str(", cost of a sample not measured"),
        }
    }
}

/// Whether the kernel allows clock samples of the calling thread.
pub fn clock_opens() -> bool {
    Clock::open(PERIOD_NS).is_ok()
}

/// An error if samples cannot be decoded on this architecture.
pub(crate) fn supported() -> Result<(), Error> {
    match cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        true => Ok(()),
        false => Err(Error::Architecture {
            architecture: std::env::consts::ARCH,
        }),
    }
}

/// A message if the preload library cannot sample here: it only knows the layout of x86-64's signal frames.
pub(crate) fn signal_supported() -> Result<(), String> {
    match cfg!(target_arch = "x86_64") {
        true => Ok(()),
        false => Err(format!(
            "it is for x86-64, and this machine is {}",
            std::env::consts::ARCH
        )),
    }
}

/// Number of samples from which the side is trusted.
const SAMPLES_WANTED: u32 = 60;
/// Longest wait for these samples, as emulators are slow.
const SIDE_TIME_MAX: Duration = Duration::from_millis(100);
const PERIOD_NS: u64 = 100_000;
const CHAIN_BYTES: usize = 4 << 20;
pub(crate) const LINE_BYTES: usize = 64;

/// Calibrates for the requested source. Where the kernel refuses the clock, timers are used instead.
///
/// # Errors
/// An error if the kernel refuses the clock and timers, or the timers alone if the signal source is requested.
pub fn calibrate_for(requested: RequestedSource) -> Result<Calibration, Error> {
    match requested {
        RequestedSource::Signal => calibrate_signal(),
        _ => calibrate().or_else(|refused| calibrate_signal().map_err(|_| refused)),
    }
}

/// Runs two loops in the calling thread. A pointer chase shows where samples stand. A loop in the CPU's cache shows
/// the cost of close samples, as at the beginning of a run, and of distant samples, as in a long run. Takes about 90
/// ms, on busy or emulated machines up to 300 ms.
pub fn calibrate() -> Result<Calibration, Error> {
    supported()?;
    let side = side(&mut Clock::open(PERIOD_NS)?)?;
    Ok(side.with_cost(Source::Clock))
}

/// Calibrates for the signal source: the side with timers that raise their own interrupts, the cost with the source's
/// timers, which expire at ticks.
fn calibrate_signal() -> Result<Calibration, Error> {
    signal_supported().map_err(|why| Error::NoSource(format!("source signal: {why}")))?;
    let side = side(&mut OwnTimer::new(libc::CLOCK_MONOTONIC, PERIOD_NS).map_err(no_timer)?)?;
    Ok(side.with_cost(Source::Signal))
}

impl Calibration {
    /// Adds the cost of a sample, if it can be measured. Failures are ignored, as the cost is optional.
    fn with_cost(self, source: Source) -> Self {
        if source == Source::Signal {
            // The timers expire at the kernel's ticks, so there are no close samples.
            return Self {
                sample_cost_ns: measure_cost_ns(source, CALIBRATED_HZ, TIME_MAX),
                ..self
            };
        }
        let close = || measure_cost_ns(source, CLOSE_HZ, TIME_MAX_CLOSE);
        let close_cost_ns = (0..CLOSE_MEASUREMENTS)
            .filter_map(|_| close())
            .min_by(f64::total_cmp);
        let sample_cost_ns = measure_cost_ns(source, CALIBRATED_HZ, TIME_MAX);
        self.with_costs(sample_cost_ns, close_cost_ns)
    }

    /// Sets both costs, each bounded by the other. There are few samples at a distance, and on a busy machine most of
    /// them come just after another task used the CPU and its cache.
    fn with_costs(self, sample_cost_ns: Option<f64>, close_cost_ns: Option<f64>) -> Self {
        let sample_cost_ns = match (sample_cost_ns, close_cost_ns) {
            (Some(apart_ns), Some(close_ns)) => {
                Some(apart_ns.clamp(close_ns, DISTANT_OVER_CLOSE_MAX * close_ns))
            }
            (None, Some(close_ns)) => Some(DISTANT_OVER_CLOSE_MAX * close_ns),
            (apart_ns, None) => apart_ns,
        };
        Self {
            sample_cost_ns,
            close_cost_ns: close_cost_ns.or(sample_cost_ns),
            ..self
        }
    }

    /// The lower of each cost, and the more certain side. Other load makes samples more expensive, never cheaper.
    #[must_use]
    pub fn or_less(self, other: Self) -> Self {
        let least = |one: Option<f64>, other: Option<f64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let surer = match other.samples > 0 && other.share > self.share {
            true => other,
            false => self,
        };
        Self {
            sample_cost_ns: least(self.sample_cost_ns, other.sample_cost_ns),
            close_cost_ns: least(self.close_cost_ns, other.close_cost_ns),
            ..surer
        }
    }
}

/// Measures the cost of a sample of the signal source, or of the clock, at this rate: see
/// [`Calibration::sample_cost_ns`]. `None` if `time_max` did not suffice.
pub(crate) fn measure_cost_ns(source: Source, rate_hz: f64, time_max: Duration) -> Option<f64> {
    match source {
        Source::Signal => cost_ns(&mut Ticks::new().ok()?, time_max),
        _ => {
            let mut clock = Clock::open(gap_ns(rate_hz)).ok()?;
            clock.event.enable().ok()?;
            cost_ns(&mut clock, time_max)
        }
    }
}

fn no_timer(error: io::Error) -> Error {
    Error::NoSource(format!("source signal: timer_create: {error}"))
}

/// A source of samples of the calling thread.
pub(crate) trait Samples {
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

/// Samples of the kernel's software clock.
struct Clock {
    event: PerfEvent,
    ring: Ring,
    bytes: Vec<u8>,
    /// Bytes in the ring at the last look.
    written: u64,
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

impl Interruptions for Clock {
    fn interruption(&mut self, _: u64) -> Interruption {
        let written = self.ring.written();
        match written == std::mem::replace(&mut self.written, written) {
            true => Interruption::Nothing,
            false => Interruption::Sample,
        }
    }

    fn otherwise(&self) -> Interruption {
        Interruption::Nothing
    }
}

impl Clock {
    fn open(period_ns: u64) -> Result<Self, Error> {
        let mut attributes = software_attributes(event::CPU_CLOCK);
        attributes.sample_period = period_ns;
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
            written: 0,
        })
    }

    fn drain(&mut self) -> impl Iterator<Item = Sample<'_>> {
        self.bytes.clear();
        self.ring.drain(&mut self.bytes);
        let mut rest = self.bytes.as_slice();
        let records = std::iter::from_fn(move || {
            let (record, later) = rest.split_at(header::record_bytes(rest).ok()?);
            rest = later;
            Some(record)
        });
        records.filter_map(
            |bytes| match record::parse(bytes, &Identifiers::default()) {
                Ok(Record {
                    body: RecordBody::Sample(sample),
                    ..
                }) => Some(sample),
                _ => None,
            },
        )
    }
}

/// Runs a chain of pointers and finds the side on which samples stand.
fn side(samples: &mut dyn Samples) -> Result<Calibration, Error> {
    let chain = chain();
    let mut pointer = chain.as_ptr().cast();
    let mut tally = Tally::default();
    let began = Instant::now();
    samples.switch(true)?;
    while tally.total() < SAMPLES_WANTED && began.elapsed() < SIDE_TIME_MAX {
        let places;
        (pointer, places) = chase::run(pointer, 20_000);
        samples
            .take()
            .into_iter()
            .for_each(|ip| tally.add(ip, places));
    }
    samples.switch(false)?;
    Ok(tally.calibration())
}

fn refused(error: io::Error) -> Error {
    Error::Refused(Refusal::explain(error, Path::new("/proc")))
}

/// Samples by place in the loop.
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
        // `Before` comes first, so that it wins without samples.
        let mut side = (SkidSide::Before, self.after);
        for other in [(SkidSide::At, self.load), (SkidSide::Block, self.begin)] {
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
            close_cost_ns: None,
        }
    }
}

/// A cycle of pointers through all cache lines, with strides that no prefetcher follows.
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

/// Size of a page in bytes.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: the call takes no pointers, and the name is valid.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

#[cfg(test)]
mod tests;
