//! On which side of the sampled place the stalling instruction is, and what a sample costs: measured
//! here, not assumed.

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

/// Where the instruction that a sample stands for is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkidSide {
    /// Just before the sampled place: interrupts wait for the stalling instruction to finish.
    Before,
    /// At the sampled place.
    At,
    /// Anywhere in the straight-line run that begins at the sampled place: emulators look for
    /// interrupts between translation blocks only.
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

/// Addresses of the chase's code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// First instruction of the loop.
    pub begin: u64,
    /// The load.
    pub load: u64,
    /// The instruction after the load.
    pub after: u64,
}

/// What calibration found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// The side; [`SkidSide::Before`] where too few samples came to tell.
    pub side: SkidSide,
    /// Samples in the loop that was run for it.
    pub samples: u32,
    /// Share of them that agree with `side`, 0 to 1.
    pub share: f32,
    /// What a sample cost a loop that keeps its CPU's cache busy, in nanoseconds, where they are some
    /// milliseconds apart; `None` where that could not be told.
    pub sample_cost_ns: Option<f64>,
    /// The same where they are half a millisecond apart: less, as the kernel's code for them is still
    /// in the CPU's cache.
    pub close_cost_ns: Option<f64>,
}

/// The share of a CPU's time that samples may take by default.
pub const DEFAULT_COST_SHARE: f64 = 0.005;

/// The default rate where the cost of a sample could not be measured, in samples a second: within
/// [`DEFAULT_COST_SHARE`] at 36 µs a sample, the dearest that a virtual machine was seen to take.
pub const UNMEASURED_RATE_HZ: f64 = 137.0;

/// What a sample costs is measured at this rate: default rates are not much higher where it is dear.
pub(crate) const CALIBRATED_HZ: f64 = UNMEASURED_RATE_HZ;

/// Close samples are measured at this rate, so many times for so long at most, of which the least
/// counts.
const CLOSE_HZ: f64 = 2_000.0;
const CLOSE_MEASUREMENTS: usize = 3;
const TIME_MAX_CLOSE: Duration = Duration::from_millis(30);
/// Samples that are some milliseconds apart cost at most so many times those that are close: 26 µs
/// beside 17 on the machine where it was seen to be most.
const APART_OVER_CLOSE: f64 = 1.6;

/// Samples of a program cost up to so many times those of the loop here: its prefetched streams
/// begin anew, its threads are scheduled, and other CPUs are sampled at the same time.
const PROGRAM_OVER_LOOP: f64 = 1.5;

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

/// Does the kernel let the calling thread be sampled by the clock?
pub fn clock_opens() -> bool {
    Clock::open(PERIOD_NS).is_ok()
}

/// Can samples be decoded here?
pub(crate) fn supported() -> Result<(), Error> {
    match cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        true => Ok(()),
        false => Err(Error::Architecture {
            architecture: std::env::consts::ARCH,
        }),
    }
}

/// Can the preload library sample here? It knows the layout of x86-64's signal frames only.
pub(crate) fn signal_supported() -> Result<(), String> {
    match cfg!(target_arch = "x86_64") {
        true => Ok(()),
        false => Err(format!(
            "it is for x86-64, and this machine is {}",
            std::env::consts::ARCH
        )),
    }
}

/// Samples wanted before the side is believed.
const SAMPLES_WANTED: u32 = 60;
/// Longest wait for them; emulators need it.
const SIDE_TIME_MAX: Duration = Duration::from_millis(100);
const PERIOD_NS: u64 = 100_000;
const CHAIN_BYTES: usize = 4 << 20;
pub(crate) const LINE_BYTES: usize = 64;

/// Measures for the source that is asked for; where the kernel refuses the clock, what it would not refuse.
///
/// # Errors
/// The clock is refused, and so are timers; or timers, where they are asked for.
pub fn calibrate_for(requested: RequestedSource) -> Result<Calibration, Error> {
    match requested {
        RequestedSource::Signal => calibrate_signal(),
        _ => calibrate().or_else(|refused| calibrate_signal().map_err(|_| refused)),
    }
}

/// Runs two loops in the calling thread: a chain of pointers, to see where its samples stand, and
/// one that works in its CPU's cache, to see what samples cost it that are as close as in a run's
/// beginning, and as far apart as in a long one. Takes about 90 ms, on a busy or emulated machine up to
/// 300.
pub fn calibrate() -> Result<Calibration, Error> {
    supported()?;
    let side = side(&mut Clock::open(PERIOD_NS)?)?;
    Ok(side.with_cost(Source::Clock))
}

/// The same for the signal source: the side with timers that interrupt by themselves; the cost with
/// those of the source, which ticks serve that come anyway.
fn calibrate_signal() -> Result<Calibration, Error> {
    signal_supported().map_err(|why| Error::NoSource(format!("source signal: {why}")))?;
    let side = side(&mut OwnTimer::new(libc::CLOCK_MONOTONIC, PERIOD_NS).map_err(no_timer)?)?;
    Ok(side.with_cost(Source::Signal))
}

impl Calibration {
    /// Optional, so what the kernel has against it is no matter.
    fn with_cost(self, source: Source) -> Self {
        if source == Source::Signal {
            // Ticks serve it, which come at a rate of their own.
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

    /// Both costs, of which each bounds the other: those of samples that are far apart are few, and
    /// on a busy machine mostly come just after something else had the CPU, and its cache.
    fn with_costs(self, sample_cost_ns: Option<f64>, close_cost_ns: Option<f64>) -> Self {
        let sample_cost_ns = match (sample_cost_ns, close_cost_ns) {
            (Some(apart_ns), Some(close_ns)) => {
                Some(apart_ns.clamp(close_ns, APART_OVER_CLOSE * close_ns))
            }
            (None, Some(close_ns)) => Some(APART_OVER_CLOSE * close_ns),
            (apart_ns, None) => apart_ns,
        };
        Self {
            sample_cost_ns,
            close_cost_ns: close_cost_ns.or(sample_cost_ns),
            ..self
        }
    }

    /// The less of each cost, and the side that is more certain: what else a machine does makes
    /// samples more expensive, never less.
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

/// What a sample of the signal source, or of the clock, costs now at this rate:
/// [`Calibration::sample_cost_ns`]. `None` where that could not be told in `time_max`.
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

/// Samples of the calling thread.
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

/// Those of the kernel's software clock.
struct Clock {
    event: PerfEvent,
    ring: Ring,
    bytes: Vec<u8>,
    /// Bytes, when it was last looked.
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
    fn came(&mut self, _: u64) -> Interruption {
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

    /// The samples since the last call.
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

/// Runs a chain of pointers and sees where its samples stand.
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
mod tests;
