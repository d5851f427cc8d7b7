//! Captures a bundle's records from a test loop, without data beyond the loop.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use nearpage_perf_abi::header::{self, kind};
use nearpage_perf_abi::{Sideband, event, fixed_offset, flag, sample_type as st, u32_at, u64_at};

use super::{
    CODE, CODE_BYTES, DATA, DATA_BYTES, PerfBundle, RECORDS, SampleLayout, SourceRecords, VERSION,
    hexadecimal,
};
use crate::architecture::REGISTER_MASK;
use crate::calibrate::{LINE_BYTES, SkidSide, calibrate, page_bytes};
use crate::perf_event::{PerfEvent, Scope, software_attributes};
use crate::pmu::{MemoryEvent, spe};
use crate::record::{self, CLOCK_SAMPLE, Identifiers, RecordBody};
use crate::ring::Ring;
use crate::sampler::Options;

/// Registers below this value are numbers, not addresses.
const SMALL: u64 = 1 << 16;
/// Room for SPE packets in bytes.
const AUX_BYTES: usize = 256 << 10;
/// Longest wait for the records of one source.
const TIME_MAX: Duration = Duration::from_millis(1500);
/// Time between two clock samples.
const PERIOD_NS: u64 = 500_000;
/// Hardware samples per second.
const RATE_HZ: f64 = 2000.0;

/// Tests what the kernel allows here, and takes records of each source.
///
/// # Errors
/// An error if this machine's CPUs cannot be read.
pub fn capture(options: &Options) -> Result<PerfBundle, crate::Error> {
    let facts = crate::sampler::facts_of(options)?;
    let test = TestLoop::new();
    let events = options
        .pmu
        .events(RATE_HZ, &options.sys_root, &options.proc_root)
        .unwrap_or_default();
    let mut sources = vec![test.clock()];
    sources.extend(events.iter().map(|event| test.hardware(event)));
    Ok(PerfBundle {
        version: VERSION,
        architecture: std::env::consts::ARCH.to_owned(),
        facts,
        side: calibrate()
            .map_or(SkidSide::Before, |found| found.side)
            .to_string(),
        code: hexadecimal(&test.code),
        sources,
    })
}

/// The sampled loop, with its data and code.
struct TestLoop {
    lines: Vec<[u64; LINE_BYTES / 8]>,
    /// The loop's code, as far as it could be read.
    code: Vec<u8>,
}

impl TestLoop {
    fn new() -> Self {
        let mut code = vec![0; CODE_BYTES];
        let begin = test_loop as *const () as u64;
        let read = File::open("/proc/self/mem").and_then(|file| file.read_at(&mut code, begin));
        code.truncate(read.unwrap_or(0));
        Self {
            lines: vec![[1; LINE_BYTES / 8]; DATA_BYTES / LINE_BYTES],
            code,
        }
    }

    /// The bundle's address for an address of the loop; none for other addresses.
    fn moved(&self, address: u64) -> Option<u64> {
        let within = |begin: u64, bytes: u64| {
            let offset = address.wrapping_sub(begin);
            (offset < bytes).then_some(offset)
        };
        let in_code = within(test_loop as *const () as u64, CODE_BYTES as u64);
        let in_data = || within(self.lines.as_ptr() as u64, DATA_BYTES as u64);
        in_code
            .map(|offset| CODE + offset)
            .or_else(|| in_data().map(|offset| DATA + offset))
    }

    fn clock(&self) -> SourceRecords {
        let mut attributes = software_attributes(event::CPU_CLOCK);
        attributes.sample_period = PERIOD_NS;
        attributes.sample_type = CLOCK_SAMPLE;
        attributes.sample_regs_user = REGISTER_MASK;
        attributes.flags |= flag::EXCLUDE_KERNEL | flag::SAMPLE_ID_ALL;
        let opened = PerfEvent::open(&attributes, Scope::ThisThread).map(|event| vec![event]);
        self.source("clock".to_owned(), SampleLayout::Clock, opened)
    }

    fn hardware(&self, event: &MemoryEvent) -> SourceRecords {
        let opened = event.open(Scope::ThisThread, 0);
        self.source(event.name.clone(), SampleLayout::of(event), opened)
    }

    /// Runs the loop under an event, which may follow a group leader in `opened`.
    fn source(
        &self,
        name: String,
        written: SampleLayout,
        opened: std::io::Result<Vec<PerfEvent>>,
    ) -> SourceRecords {
        let found = opened.and_then(|events| match written {
            SampleLayout::Spe => self.packets(&events),
            _ => self.records(written, &events),
        });
        let (records, missing) = match found {
            Ok(records) if records.is_empty() => (
                records,
                "no sample came in one and a half seconds".to_owned(),
            ),
            Ok(records) => (records, String::new()),
            Err(error) => (Vec::new(), error.to_string()),
        };
        SourceRecords {
            name,
            written,
            missing,
            records: hexadecimal(&records),
        }
    }

    fn records(&self, written: SampleLayout, events: &[PerfEvent]) -> std::io::Result<Vec<u8>> {
        let sampled = events.last().ok_or(std::io::ErrorKind::NotFound)?;
        let page_bytes = page_bytes();
        let mut ring = Ring::map(sampled, page_bytes, (64 << 10).max(page_bytes))?;
        for event in events {
            event.enable()?;
        }
        let (mut found, mut count, mut raw) = (Vec::new(), 0, Vec::new());
        let (mut at, begun) = (0, Instant::now());
        let mut first_ns = None;
        while count < RECORDS && begun.elapsed() < TIME_MAX {
            at = test_loop(&self.lines, at, 50_000);
            raw.clear();
            ring.drain(&mut raw);
            let mut rest = raw.as_mut_slice();
            while let Ok(bytes) = header::record_bytes(rest)
                && count < RECORDS
            {
                let (record, later) = rest.split_at_mut(bytes);
                rest = later;
                if self.anonymise(written, record, &mut first_ns).is_some() {
                    found.extend_from_slice(record);
                    count += 1;
                }
            }
        }
        for event in events {
            event.disable()?;
        }
        Ok(found)
    }

    /// Takes packets from an AUX area. The kernel tells their position when the event stops.
    fn packets(&self, events: &[PerfEvent]) -> std::io::Result<Vec<u8>> {
        let sampled = events.last().ok_or(std::io::ErrorKind::NotFound)?;
        let page_bytes = page_bytes();
        let mut ring = Ring::map(sampled, page_bytes, (64 << 10).max(page_bytes))?;
        ring.map_aux(sampled, AUX_BYTES.max(2 * page_bytes))?;
        let (mut found, mut count, mut raw, mut packets) = (Vec::new(), 0, Vec::new(), Vec::new());
        let (mut at, begun) = (0, Instant::now());
        while count < RECORDS && begun.elapsed() < TIME_MAX {
            sampled.enable()?;
            at = test_loop(&self.lines, at, 50_000);
            sampled.disable()?;
            raw.clear();
            ring.drain(&mut raw);
            let mut rest = raw.as_slice();
            while let Ok(bytes) = header::record_bytes(rest) {
                let (record, later) = rest.split_at(bytes);
                rest = later;
                let Ok(record) = record::parse(record, &Identifiers::default()) else {
                    continue;
                };
                if let RecordBody::Sideband(Sideband::Aux(stretch)) = record.body {
                    packets.clear();
                    ring.read_aux(stretch.offset, stretch.bytes, &mut packets);
                    ring.release_aux(stretch.offset.wrapping_add(stretch.bytes));
                    let moved = spe::rebased(&packets, |address| self.moved(address));
                    let taken = moved.len().min(RECORDS - count);
                    found.extend(moved.into_iter().take(taken).flatten());
                    count += taken;
                }
            }
        }
        Ok(found)
    }

    /// Removes data beyond the loop from a sample; none if the record is no sample in the loop's code.
    fn anonymise(
        &self,
        written: SampleLayout,
        record: &mut [u8],
        first_ns: &mut Option<u64>,
    ) -> Option<()> {
        const fn clock(field: u64) -> usize {
            header::BYTES + fixed_offset(CLOCK_SAMPLE, field)
        }
        const IP: usize = clock(st::IP);
        const TIME: usize = clock(st::TIME);
        if u32_at(record, 0) != Ok(kind::SAMPLE)
            || !header::is_user(u16::from_le_bytes([record[4], record[5]]))
        {
            return None;
        }
        let ip = self
            .moved(u64_at(record, IP).ok()?)
            .filter(|&ip| ip < DATA)?;
        let time_ns = u64_at(record, TIME).ok()?;
        let since_ns = time_ns.saturating_sub(*first_ns.get_or_insert(time_ns));
        let one = (1u64 << 32) | 1;
        for (offset, word) in [
            (header::BYTES, one & 1),
            (IP, ip),
            (clock(st::TID), one),
            (TIME, since_ns),
        ] {
            set(record, offset, word);
        }
        match written {
            // The registers follow their ABI word, to the end of the record.
            SampleLayout::Clock => self.move_words(record, clock(st::REGS_USER) + 8),
            SampleLayout::PreciseLoads | SampleLayout::PreciseStores => {
                // Hardware samples have the data address where clock samples have the CPU.
                let address = u64_at(record, clock(st::CPU)).ok()?;
                set(record, clock(st::CPU), self.moved(address).unwrap_or(0));
            }
            SampleLayout::Ibs => self.anonymise_ibs(record)?,
            SampleLayout::Spe => return None,
        }
        Some(())
    }

    /// Moves the code address and the linear address among the IBS registers. The registers after the linear address,
    /// the physical address among them, become 0.
    fn anonymise_ibs(&self, record: &mut [u8]) -> Option<()> {
        // The registers follow size and capabilities of four bytes each.
        let registers = header::BYTES + fixed_offset(crate::pmu::IBS_SAMPLE, st::RAW) + 8;
        for number in [1, 5] {
            let offset = registers + 8 * number;
            let address = u64_at(record, offset).ok()?;
            set(record, offset, self.moved(address).unwrap_or(0));
        }
        let rest = record.get_mut(registers + 8 * 6..)?;
        rest.fill(0);
        Some(())
    }

    fn move_words(&self, record: &mut [u8], from: usize) {
        let mut offset = from;
        while let Ok(word) = u64_at(record, offset) {
            let small = (word < SMALL).then_some(word);
            set(record, offset, self.moved(word).or(small).unwrap_or(0));
            offset += 8;
        }
    }
}

fn set(record: &mut [u8], offset: usize, word: u64) {
    if let Some(bytes) = record.get_mut(offset..offset + 8) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
}

/// Loads one word of each visited line, in an order that no prefetcher follows.
#[inline(never)]
fn test_loop(lines: &[[u64; LINE_BYTES / 8]], from: usize, steps: usize) -> usize {
    let mut at = from;
    let mut sum = 0u64;
    for _ in 0..steps {
        let line = at % lines.len();
        sum = sum.wrapping_add(lines[line][0]);
        // Visits all lines, as their number is a power of two (Hull and Dobell, 1962).
        at = line.wrapping_mul(5).wrapping_add(12_345);
    }
    black_box(sum);
    at % lines.len()
}
