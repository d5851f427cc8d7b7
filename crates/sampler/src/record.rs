//! Parses records from ring bytes: a pure function that accepts any input.
//!
//! A record is `type: u32, misc: u16, size: u16` and a body of `size - 8` bytes, little-endian
//! ([`nearpage_perf_abi`]). The fields with which the sampler opens its events lead to these bodies:
//!
//! ```text
//! clock sample  id:u64 ip:u64 pid:u32 tid:u32 time:u64 cpu:u32 -:u32 period:u64 abi:u64 registers:[u64; n]
//! fault sample  id:u64 ip:u64 pid:u32 tid:u32 time:u64 address:u64 cpu:u32 -:u32
//! PMU sample    id:u64 ip:u64 pid:u32 tid:u32 time:u64 … (`pmu::sample`)
//! others        what their type has, then pid:u32 tid:u32 time:u64 cpu:u32 -:u32 id:u64
//! ```

use nearpage_machine::CpuId;
use nearpage_perf_abi::header::{self, kind};
use nearpage_perf_abi::{
    Malformed, Sideband, fixed_offset, sample_type as st, trailer_bytes, u16_at, u32_at, u64_at,
};

use crate::pmu::{Form, MemorySample, decode};

/// Fields of clock samples.
pub(crate) const CLOCK_SAMPLE: u64 =
    st::IDENTIFIER | st::IP | st::TID | st::TIME | st::CPU | st::PERIOD | st::REGS_USER;
/// Fields of fault samples.
pub(crate) const FAULT_SAMPLE: u64 =
    st::IDENTIFIER | st::IP | st::TID | st::TIME | st::ADDR | st::CPU;

/// Trailer of records that are no samples; it has the same fields for all events.
const TRAILER_BYTES: usize = trailer_bytes(CLOCK_SAMPLE);
/// Offsets of fields that all samples have.
const IP: usize = fixed_offset(CLOCK_SAMPLE, st::IP);
const TID: usize = fixed_offset(CLOCK_SAMPLE, st::TID);
const TIME: usize = fixed_offset(CLOCK_SAMPLE, st::TIME);
/// Offsets of a clock sample's CPU, period and register ABI.
const CLOCK_CPU: usize = fixed_offset(CLOCK_SAMPLE, st::CPU);
const CLOCK_PERIOD: usize = fixed_offset(CLOCK_SAMPLE, st::PERIOD);
const CLOCK_ABI: usize = fixed_offset(CLOCK_SAMPLE, st::REGS_USER);
/// Bytes of a clock sample before its registers. Fault samples have eight bytes less in total.
const CLOCK_LEAST: usize = CLOCK_ABI + 8;
const FAULT_ADDRESS: usize = fixed_offset(FAULT_SAMPLE, st::ADDR);
const FAULT_CPU: usize = fixed_offset(FAULT_SAMPLE, st::CPU);

/// Thread, time and CPU of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub pid: u32,
    pub tid: u32,
    pub time_ns: u64,
    pub cpu: CpuId,
}

impl Origin {
    /// An origin with an unknown CPU.
    pub fn new(pid: u32, tid: u32, time_ns: u64) -> Self {
        Self {
            pid,
            tid,
            time_ns,
            cpu: CpuId(0),
        }
    }

    /// Appends a record in the kernel's layout.
    pub fn append(&self, sideband: Sideband<'_>, records: &mut Vec<u8>) {
        let mut trailer = [0; TRAILER_BYTES];
        trailer[..4].copy_from_slice(&self.pid.to_le_bytes());
        trailer[4..8].copy_from_slice(&self.tid.to_le_bytes());
        trailer[8..16].copy_from_slice(&self.time_ns.to_le_bytes());
        trailer[16..20].copy_from_slice(&self.cpu.0.to_le_bytes());
        sideband.append(records, &trailer);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub origin: Origin,
    pub body: RecordBody<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordBody<'a> {
    Sample(Sample<'a>),
    Fault {
        address: u64,
    },
    /// A hardware sample.
    Memory(MemorySample),
    Sideband(Sideband<'a>),
    Other,
}

/// A clock sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample<'a> {
    pub ip: u64,
    pub user: bool,
    /// Whether the code is 32-bit.
    pub compatible: bool,
    /// Time that the sample stands for.
    pub period_ns: u64,
    /// User registers in the kernel's order, 8 bytes each; empty if there are none.
    registers: &'a [u8],
}

impl Sample<'_> {
    /// The register after the `N` general ones, the thread pointer, which only samples of the signal source have.
    pub fn thread_pointer<const N: usize>(&self) -> Option<u64> {
        u64_at(self.registers, 8 * N).ok()
    }

    /// All registers in the sample.
    pub fn all_registers(&self) -> &[[u8; 8]] {
        self.registers.as_chunks().0
    }

    /// The first `N` registers; `None` if the sample has fewer.
    #[inline]
    pub fn first_registers<const N: usize>(&self) -> Option<&[[u8; 8]; N]> {
        self.registers.as_chunks().0.first_chunk()
    }
}

/// Identifiers of the sampler's events.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identifiers {
    /// Identifiers of the page-fault events, ascending.
    pub faults: Vec<u64>,
    /// Identifiers of the hardware events, ascending, with the layouts of their samples.
    pub memory: Vec<(u64, Form)>,
}

impl Identifiers {
    /// Whether `id` is a page-fault event.
    fn is_fault(&self, id: u64) -> bool {
        self.faults.binary_search(&id).is_ok()
    }

    /// The sample layout of the hardware event `id`.
    fn form(&self, id: u64) -> Option<Form> {
        let at = self.memory.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.memory[at].1)
    }
}

/// Time of a record; `record` is exactly one.
pub(crate) fn time_ns(record: &[u8]) -> Result<u64, Malformed> {
    let offset = match u32_at(record, 0)? {
        kind::SAMPLE => header::BYTES + TIME,
        _ => record
            .len()
            .checked_sub(TRAILER_BYTES - 8)
            .ok_or(Malformed)?,
    };
    u64_at(record, offset)
}

/// Length and time of the sample at the beginning of `bytes`; `None` if there is no sample, or not all of it.
#[inline]
pub(crate) fn sample_head(bytes: &[u8]) -> Option<(usize, u64)> {
    const LEAST: usize = header::BYTES + TIME + 8;
    let head = bytes.first_chunk::<LEAST>()?;
    let length = usize::from(u16_at(head, 6).ok()?);
    let is_whole = u32_at(head, 0) == Ok(kind::SAMPLE) && (LEAST..=bytes.len()).contains(&length);
    let time_ns = u64_at(head, header::BYTES + TIME).ok()?;
    is_whole.then_some((length, time_ns))
}

/// Parses exactly one record.
pub(crate) fn parse<'a>(
    record: &'a [u8],
    identifiers: &Identifiers,
) -> Result<Record<'a>, Malformed> {
    let kind = u32_at(record, 0)?;
    let misc = u16_at(record, 4)?;
    let body = record.get(header::BYTES..).ok_or(Malformed)?;
    if kind == kind::SAMPLE {
        return parse_sample(body, misc, identifiers);
    }
    let (body, trailer) = body
        .split_at_checked(body.len().wrapping_sub(TRAILER_BYTES))
        .ok_or(Malformed)?;
    let origin = Origin {
        pid: u32_at(trailer, 0)?,
        tid: u32_at(trailer, 4)?,
        time_ns: u64_at(trailer, 8)?,
        cpu: CpuId(u32_at(trailer, 16)?),
    };
    let body = match Sideband::parse(kind, misc, body)? {
        Some(sideband) => RecordBody::Sideband(sideband),
        None => RecordBody::Other,
    };
    Ok(Record { origin, body })
}

fn parse_sample<'a>(
    body: &'a [u8],
    misc: u16,
    identifiers: &Identifiers,
) -> Result<Record<'a>, Malformed> {
    if let Some((origin, sample)) = clock_sample(body, misc, identifiers) {
        let body = RecordBody::Sample(sample);
        return Ok(Record { origin, body });
    }
    let id = u64_at(body, 0)?;
    parse_other_sample(body, header::is_user(misc), id, identifiers)
}

/// Fast path: the clock sample in a record, if it is one, as nearly all records are.
#[inline]
pub(crate) fn parse_clock_sample<'a>(
    record: &'a [u8],
    identifiers: &Identifiers,
) -> Option<(Origin, Sample<'a>)> {
    let (head, body) = record.split_first_chunk::<{ header::BYTES }>()?;
    if u32_at(head, 0) != Ok(kind::SAMPLE) {
        return None;
    }
    clock_sample(body, u16_at(head, 4).ok()?, identifiers)
}

#[inline]
fn clock_sample<'a>(
    body: &'a [u8],
    misc: u16,
    identifiers: &Identifiers,
) -> Option<(Origin, Sample<'a>)> {
    const ABI_32: u64 = 1;
    // Checks the length only once. Fault samples are shorter.
    let (fixed, registers) = body.split_first_chunk::<CLOCK_LEAST>()?;
    if !identifiers.memory.is_empty() && identifiers.form(u64_at(fixed, 0).ok()?).is_some() {
        return None;
    }
    let origin = Origin {
        pid: u32_at(fixed, TID).ok()?,
        tid: u32_at(fixed, TID + 4).ok()?,
        time_ns: u64_at(fixed, TIME).ok()?,
        cpu: CpuId(u32_at(fixed, CLOCK_CPU).ok()?),
    };
    let sample = Sample {
        ip: u64_at(fixed, IP).ok()?,
        user: header::is_user(misc),
        compatible: u64_at(fixed, CLOCK_ABI).ok()? == ABI_32,
        period_ns: u64_at(fixed, CLOCK_PERIOD).ok()?,
        registers,
    };
    Some((origin, sample))
}

/// Parses a sample that is no clock sample.
fn parse_other_sample<'a>(
    body: &'a [u8],
    user: bool,
    id: u64,
    identifiers: &Identifiers,
) -> Result<Record<'a>, Malformed> {
    let mut origin = Origin::new(
        u32_at(body, TID)?,
        u32_at(body, TID + 4)?,
        u64_at(body, TIME)?,
    );
    let body = match identifiers.form(id) {
        Some(form) => {
            let sample = decode(form, body, user)?;
            origin.cpu = sample.cpu;
            RecordBody::Memory(sample)
        }
        // The sample is too short for a clock sample.
        None if !identifiers.is_fault(id) => return Err(Malformed),
        None => {
            origin.cpu = CpuId(u32_at(body, FAULT_CPU)?);
            RecordBody::Fault {
                address: u64_at(body, FAULT_ADDRESS)?,
            }
        }
    };
    Ok(Record { origin, body })
}

#[cfg(test)]
pub(crate) mod tests {
    use nearpage_perf_abi::header::{Header, misc, record_bytes};
    use proptest::prelude::*;

    use super::*;

    /// A record in the kernel's layout.
    pub(crate) fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        header::append_with(&mut bytes, Header { kind, misc }, |bytes| {
            bytes.extend(body);
        });
        bytes
    }

    /// A record of a thread that is no sample.
    pub(crate) fn sideband(pid: u32, tid: u32, time_ns: u64, sideband: Sideband<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        Origin::new(pid, tid, time_ns).append(sideband, &mut bytes);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn reads_a_clock_sample() {
        let tids = 12 | 13 << 32;
        let bytes = record(
            kind::SAMPLE,
            misc::USER,
            &words(&[7, 0x401000, tids, 99, 3, 1000, 2, 10, 11, 12]),
        );
        assert_eq!(time_ns(&bytes), Ok(99));
        let read = parse(
            &bytes,
            &Identifiers {
                faults: vec![8],
                ..Identifiers::default()
            },
        )
        .unwrap();
        assert_eq!(
            read.origin,
            Origin {
                pid: 12,
                tid: 13,
                time_ns: 99,
                cpu: CpuId(3)
            }
        );
        let RecordBody::Sample(sample) = read.body else {
            panic!("{read:?}")
        };
        assert!(sample.user && !sample.compatible && sample.ip == 0x401000);
        let registers = sample.first_registers::<3>();
        let registers = registers.map(|bytes| bytes.map(u64::from_ne_bytes));
        assert_eq!(registers, Some([10, 11, 12]));
        assert!(sample.first_registers::<4>().is_none());
        assert_eq!(
            (sample.period_ns, sample.thread_pointer::<2>()),
            (1000, Some(12))
        );
        assert_eq!(sample.thread_pointer::<3>(), None);
    }

    #[test]
    fn appended_records_are_read_as_the_kernels() {
        let lost = Sideband::Lost { records: 1 << 40 };
        let bytes = sideband(12, 13, 99, lost);
        assert_eq!(time_ns(&bytes), Ok(99));
        let read = parse(&bytes, &Identifiers::default()).unwrap();
        assert_eq!(read.origin, Origin::new(12, 13, 99));
        assert_eq!(read.body, RecordBody::Sideband(lost));
    }

    #[test]
    fn reads_a_fault() {
        let bytes = record(
            kind::SAMPLE,
            misc::USER,
            &words(&[8, 0x401000, 12 | 13 << 32, 99, 0x7000, 1]),
        );
        let read = parse(
            &bytes,
            &Identifiers {
                faults: vec![8],
                ..Identifiers::default()
            },
        )
        .unwrap();
        assert_eq!(read.origin.cpu, CpuId(1));
        assert_eq!(read.body, RecordBody::Fault { address: 0x7000 });
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_malformed(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u32..16) {
            let identifiers = Identifiers {
            faults: vec![8],
            ..Identifiers::default()
        };
            let _ = (record_bytes(&bytes), time_ns(&bytes), parse(&bytes, &identifiers));
            let bytes = record(kind, 0xffff, &bytes);
            prop_assert_eq!(record_bytes(&bytes), Ok(bytes.len()));
            let _ = (time_ns(&bytes), parse(&bytes, &identifiers));
        }

        #[test]
        fn a_samples_head_is_its_length_and_its_time(
            body in prop::collection::vec(any::<u8>(), 0..100),
            kind in 8u32..11,
            after in prop::collection::vec(any::<u8>(), 0..50),
            cut in 0usize..150,
        ) {
            let mut bytes = [record(kind, 0, &body), after].concat();
            bytes.truncate(cut);
            let head = record_bytes(&bytes).ok().filter(|_| kind == kind::SAMPLE).and_then(|length| {
                Some((length, time_ns(&bytes[..length]).ok()?))
            });
            prop_assert_eq!(sample_head(&bytes), head);
        }

        #[test]
        fn every_truncation_is_reported(cut in 0usize..80) {
            let bytes = record(kind::SAMPLE, misc::USER, &words(&[7, 1, 2, 99, 3, 2, 10, 11, 12]));
            prop_assert_eq!(record_bytes(&bytes[..cut]), Err(Malformed));
        }
    }
}
