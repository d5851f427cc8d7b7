//! On which side of the sampled place the stalling instruction is: measured, not assumed.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::architecture::chase::{self, Places};
use crate::architecture::{REGISTER_MASK, supported};
use crate::error::{Error, Refusal};
use crate::perf_event::{Attributes, Counted, PerfEvent, Scope, flag};
use crate::record::{self, Body, CLOCK_SAMPLE, Identifiers};
use crate::ring::Ring;

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
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.samples == 0 {
            return write!(f, "{} (assumed: no samples)", self.side);
        }
        write!(
            f,
            "{} ({:.0} % of {} samples)",
            self.side,
            self.share * 100.0,
            self.samples
        )
    }
}

/// Samples wanted before the answer is believed.
const SAMPLES_WANTED: u32 = 60;
const PERIOD_NS: u64 = 100_000;
const CHAIN_BYTES: usize = 4 << 20;
const LINE_BYTES: usize = 64;

/// Runs a chain of pointers in the calling thread and looks where its samples stand. Takes about
/// 10 ms, on a busy machine at most `time_max`.
pub fn calibrate(time_max: Duration) -> Result<Calibration, Error> {
    supported()?;
    let refused = |error| Error::Refused(Refusal::explain(error, Path::new("/proc")));
    let mut attributes = Attributes::new(Counted::CpuClock);
    attributes.sample_period = PERIOD_NS;
    attributes.sample_type = CLOCK_SAMPLE;
    attributes.sample_regs_user = REGISTER_MASK;
    attributes.flags |= flag::EXCLUDE_KERNEL | flag::SAMPLE_ID_ALL;
    let event = PerfEvent::open(&attributes, Scope::ThisThread).map_err(refused)?;
    let page_bytes = page_bytes();
    let data_bytes = (64 << 10).max(page_bytes);
    let mut ring =
        Ring::map(&event, page_bytes, data_bytes).map_err(|source| Error::RingRefused {
            bytes: data_bytes,
            source,
        })?;
    let chain = chain();
    let mut pointer = chain.as_ptr().cast();
    let mut tally = Tally::default();
    let mut bytes = Vec::new();
    let began = Instant::now();
    event.enable().map_err(refused)?;
    while tally.total() < SAMPLES_WANTED && began.elapsed() < time_max {
        let places;
        (pointer, places) = chase::run(pointer, 20_000);
        bytes.clear();
        ring.drain(&mut bytes);
        tally.add(&bytes, places);
    }
    event.disable().map_err(refused)?;
    Ok(tally.calibration())
}

/// Samples by place.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    begin: u32,
    load: u32,
    after: u32,
}

impl Tally {
    fn add(&mut self, mut bytes: &[u8], places: Places) {
        while let Ok(length) = record::length(bytes) {
            let (record, rest) = bytes.split_at(length);
            bytes = rest;
            let Ok(record) = record::parse(record, &Identifiers::default()) else {
                continue;
            };
            let Body::Sample(sample) = record.body else {
                continue;
            };
            self.begin += u32::from(sample.ip == places.begin);
            self.load += u32::from(sample.ip == places.load);
            self.after += u32::from(sample.ip == places.after);
        }
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
}
