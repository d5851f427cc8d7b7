//! Ring bytes to records: a pure function, total on any input.
//!
//! A record is `type: u32, misc: u16, size: u16` and a body of `size - 8` bytes, native byte order
//! (`perf_event_open(2)`, "MMAP layout"). The sampler's events are opened with these fields, so
//! that bodies are:
//!
//! ```text
//! clock sample  id:u64 ip:u64 pid:u32 tid:u32 time:u64 cpu:u32 -:u32 period:u64 abi:u64 registers:[u64; n]
//! fault sample  id:u64 ip:u64 pid:u32 tid:u32 time:u64 address:u64 cpu:u32 -:u32
//! PMU sample    id:u64 ip:u64 pid:u32 tid:u32 time:u64 … (`pmu::sample`)
//! others        what their type has, then pid:u32 tid:u32 time:u64 cpu:u32 -:u32 id:u64
//! ```

use nearpage_machine::CpuId;

use crate::perf_event::sample_type as st;
use crate::pmu::{Form, MemorySample, decode};

/// What clock samples carry.
pub(crate) const CLOCK_SAMPLE: u64 =
    st::IDENTIFIER | st::IP | st::TID | st::TIME | st::CPU | st::PERIOD | st::REGS_USER;
/// What fault samples carry.
pub(crate) const FAULT_SAMPLE: u64 =
    st::IDENTIFIER | st::IP | st::TID | st::TIME | st::ADDR | st::CPU;

const HEADER_BYTES: usize = 8;
/// A header has 16 bits for it.
pub(crate) const BYTES_MAX: usize = u16::MAX as usize;
/// Trailer of records that are not samples (`sample_id_all`).
const TRAILER_BYTES: usize = 32;
const TIME_IN_SAMPLE: usize = 24;
/// What a clock sample has before its registers; that of a fault has eight bytes less in all.
const CLOCK_LEAST: usize = 56;

const RECORD_MMAP2: u32 = 10;
const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_THROTTLE: u32 = 5;
const RECORD_FORK: u32 = 7;
const RECORD_SAMPLE: u32 = 9;
pub(crate) const RECORD_AUX: u32 = 11;
const RECORD_LOST_SAMPLES: u32 = 13;

const MISC_CPUMODE_MASK: u16 = 7;
const MISC_USER: u16 = 2;
const MISC_COMM_EXEC: u16 = 1 << 13;
const MISC_MMAP_BUILD_ID: u16 = 1 << 14;

/// Who and when, as every record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub pid: u32,
    pub tid: u32,
    pub time_ns: u64,
    pub cpu: CpuId,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    pub origin: Origin,
    pub body: Body<'a>,
}

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Body<'a> {
    Sample(Sample<'a>),
    Fault {
        address: u64,
    },
    /// A hardware sample.
    Memory(MemorySample),
    /// New data in the AUX area.
    Aux(AuxStretch),
    Map(Map<'a>),
    Name {
        pid: u32,
        tid: u32,
        name: &'a [u8],
        exec: bool,
    },
    Fork {
        pid: u32,
        tid: u32,
        parent_pid: u32,
    },
    Exit {
        pid: u32,
        tid: u32,
    },
    /// Records that found no room in the ring.
    Lost {
        records: u64,
    },
    /// The kernel stopped an event for the rest of a tick because it came too often.
    Throttle,
    Other,
}

/// A clock sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample<'a> {
    pub ip: u64,
    pub user: bool,
    /// 32-bit code.
    pub compatible: bool,
    /// Time that it stands for.
    pub period_ns: u64,
    /// User registers in the kernel's order, 8 bytes each; empty where there are none.
    registers: &'a [u8],
}

impl Sample<'_> {
    /// The register after the `N` general ones, which only samples of the signal source have: the
    /// thread pointer.
    pub fn thread_pointer<const N: usize>(&self) -> Option<u64> {
        u64_at(self.registers, 8 * N).ok()
    }

    /// The first `N` registers; `None` where the sample has fewer.
    #[inline]
    pub fn first_registers<const N: usize>(&self) -> Option<&[[u8; 8]; N]> {
        self.registers.as_chunks().0.first_chunk()
    }
}

/// A stretch of the AUX area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AuxStretch {
    /// Counted from the area's first use; the area is a ring.
    pub offset: u64,
    pub bytes: u64,
    /// Samples were lost: the area was full, or one came before the last was written.
    pub incomplete: bool,
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Map<'a> {
    pub pid: u32,
    pub address: u64,
    pub length: u64,
    pub file_offset: u64,
    pub protection: u32,
    pub path: &'a [u8],
    /// Empty where the kernel gave none.
    pub build_id: &'a [u8],
}

/// Bytes that are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Which of the sampler's events have which numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identifiers {
    /// Numbers of the page-fault events, ascending.
    pub faults: Vec<u64>,
    /// Those of hardware events, ascending, and how their samples are written.
    pub memory: Vec<(u64, Form)>,
}

impl Identifiers {
    /// Is it the page faults'?
    fn is_fault(&self, id: u64) -> bool {
        self.faults.binary_search(&id).is_ok()
    }

    /// The form of the hardware event `id`.
    fn form(&self, id: u64) -> Option<Form> {
        let at = self.memory.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        Some(self.memory[at].1)
    }
}

/// The length of the record at the beginning of `bytes`.
pub(crate) fn length(bytes: &[u8]) -> Result<usize, Malformed> {
    let size = usize::from(u16_at(bytes, 6)?);
    if size < HEADER_BYTES || size > bytes.len() {
        Err(Malformed)
    } else {
        Ok(size)
    }
}

/// When a record was made; `record` is exactly one.
pub(crate) fn time_ns(record: &[u8]) -> Result<u64, Malformed> {
    let offset = match u32_at(record, 0)? {
        RECORD_SAMPLE => HEADER_BYTES + TIME_IN_SAMPLE,
        _ => record
            .len()
            .checked_sub(TRAILER_BYTES - 8)
            .ok_or(Malformed)?,
    };
    u64_at(record, offset)
}

/// The length of the sample at the beginning of `bytes`, and when it was taken; `None` where there is
/// none, or not all of it.
#[inline]
pub(crate) fn sample_head(bytes: &[u8]) -> Option<(usize, u64)> {
    const LEAST: usize = HEADER_BYTES + TIME_IN_SAMPLE + 8;
    let head = bytes.first_chunk::<LEAST>()?;
    let length = usize::from(u16_at(head, 6).ok()?);
    let is_whole = u32_at(head, 0) == Ok(RECORD_SAMPLE) && (LEAST..=bytes.len()).contains(&length);
    let time_ns = u64_at(head, HEADER_BYTES + TIME_IN_SAMPLE).ok()?;
    is_whole.then_some((length, time_ns))
}

/// Parses exactly one record.
pub(crate) fn parse<'a>(
    record: &'a [u8],
    identifiers: &Identifiers,
) -> Result<Record<'a>, Malformed> {
    let kind = u32_at(record, 0)?;
    let misc = u16_at(record, 4)?;
    let body = record.get(HEADER_BYTES..).ok_or(Malformed)?;
    if kind == RECORD_SAMPLE {
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
    let body = match kind {
        RECORD_MMAP2 => Body::Map(parse_map(body, misc)?),
        RECORD_COMM => Body::Name {
            pid: u32_at(body, 0)?,
            tid: u32_at(body, 4)?,
            name: text(body, 8)?,
            exec: misc & MISC_COMM_EXEC != 0,
        },
        RECORD_FORK => Body::Fork {
            pid: u32_at(body, 0)?,
            parent_pid: u32_at(body, 4)?,
            tid: u32_at(body, 8)?,
        },
        RECORD_EXIT => Body::Exit {
            pid: u32_at(body, 0)?,
            tid: u32_at(body, 8)?,
        },
        RECORD_LOST => Body::Lost {
            records: u64_at(body, 8)?,
        },
        RECORD_LOST_SAMPLES => Body::Lost {
            records: u64_at(body, 0)?,
        },
        RECORD_THROTTLE => Body::Throttle,
        RECORD_AUX => {
            const TRUNCATED: u64 = 1;
            const COLLISION: u64 = 8;
            Body::Aux(AuxStretch {
                offset: u64_at(body, 0)?,
                bytes: u64_at(body, 8)?,
                incomplete: u64_at(body, 16)? & (TRUNCATED | COLLISION) != 0,
            })
        }
        _ => Body::Other,
    };
    Ok(Record { origin, body })
}

fn parse_sample<'a>(
    body: &'a [u8],
    misc: u16,
    identifiers: &Identifiers,
) -> Result<Record<'a>, Malformed> {
    if let Some((origin, sample)) = clock_sample(body, misc, identifiers) {
        let body = Body::Sample(sample);
        return Ok(Record { origin, body });
    }
    let id = u64_at(body, 0)?;
    parse_other_sample(body, misc & MISC_CPUMODE_MASK == MISC_USER, id, identifiers)
}

/// The clock sample that a record is, if it is one: what nearly all of them are, found without a look
/// at the others.
#[inline]
pub(crate) fn parse_clock_sample<'a>(
    record: &'a [u8],
    identifiers: &Identifiers,
) -> Option<(Origin, Sample<'a>)> {
    let (header, body) = record.split_first_chunk::<HEADER_BYTES>()?;
    if u32_at(header, 0) != Ok(RECORD_SAMPLE) {
        return None;
    }
    clock_sample(body, u16_at(header, 4).ok()?, identifiers)
}

#[inline]
fn clock_sample<'a>(
    body: &'a [u8],
    misc: u16,
    identifiers: &Identifiers,
) -> Option<(Origin, Sample<'a>)> {
    const ABI_32: u64 = 1;
    // A fixed length is looked at once. Samples of faults are shorter.
    let (fixed, registers) = body.split_first_chunk::<CLOCK_LEAST>()?;
    if !identifiers.memory.is_empty() && identifiers.form(u64_at(fixed, 0).ok()?).is_some() {
        return None;
    }
    let origin = Origin {
        pid: u32_at(fixed, 16).ok()?,
        tid: u32_at(fixed, 20).ok()?,
        time_ns: u64_at(fixed, TIME_IN_SAMPLE).ok()?,
        cpu: CpuId(u32_at(fixed, 32).ok()?),
    };
    let sample = Sample {
        ip: u64_at(fixed, 8).ok()?,
        user: misc & MISC_CPUMODE_MASK == MISC_USER,
        compatible: u64_at(fixed, 48).ok()? == ABI_32,
        period_ns: u64_at(fixed, 40).ok()?,
        registers,
    };
    Some((origin, sample))
}

/// A sample that is none of the clock's.
fn parse_other_sample<'a>(
    body: &'a [u8],
    user: bool,
    id: u64,
    identifiers: &Identifiers,
) -> Result<Record<'a>, Malformed> {
    let mut origin = Origin {
        pid: u32_at(body, 16)?,
        tid: u32_at(body, 20)?,
        time_ns: u64_at(body, TIME_IN_SAMPLE)?,
        cpu: CpuId(0),
    };
    let body = match identifiers.form(id) {
        Some(form) => {
            let sample = decode(form, body, user)?;
            origin.cpu = sample.cpu;
            Body::Memory(sample)
        }
        // Too short for a clock sample.
        None if !identifiers.is_fault(id) => return Err(Malformed),
        None => {
            origin.cpu = CpuId(u32_at(body, 40)?);
            Body::Fault {
                address: u64_at(body, 32)?,
            }
        }
    };
    Ok(Record { origin, body })
}

/// Appends a sample in user mode, as the kernel would have written it.
pub(crate) fn append_user_sample(records: &mut Vec<u8>, body: &[u8]) {
    append(records, RECORD_SAMPLE, MISC_USER, body);
}

/// What a record that is not the kernel's says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecordOf<'a> {
    /// A thread began, in a process of its own if the parent is another.
    Fork {
        parent_pid: u32,
    },
    /// The process began another program.
    Exec {
        name: &'a [u8],
    },
    Exit,
    Lost {
        records: u64,
    },
    Map {
        address: u64,
        length: u64,
        file_offset: u64,
        protection: u32,
        path: &'a [u8],
    },
}

/// Appends a record about thread `tid` of process `pid`, as the kernel would have written it.
pub(crate) fn append_of(
    records: &mut Vec<u8>,
    pid: u32,
    tid: u32,
    time_ns: u64,
    what: RecordOf<'_>,
) {
    let mut body = Vec::new();
    let mut halves = |halves: &[u32]| {
        body.extend(halves.iter().flat_map(|half| half.to_ne_bytes()));
    };
    let split = |word: u64| [word as u32, (word >> 32) as u32];
    let mut misc = 0;
    let (kind, text) = match what {
        RecordOf::Fork { parent_pid } => {
            halves(&[pid, parent_pid, tid, parent_pid, 0, 0]);
            (RECORD_FORK, None)
        }
        RecordOf::Exec { name } => {
            misc = MISC_COMM_EXEC;
            halves(&[pid, tid]);
            (RECORD_COMM, Some(name))
        }
        RecordOf::Exit => {
            halves(&[pid, pid, tid, pid, 0, 0]);
            (RECORD_EXIT, None)
        }
        RecordOf::Lost { records } => {
            halves(&[0, 0]);
            halves(&split(records));
            (RECORD_LOST, None)
        }
        RecordOf::Map {
            address,
            length,
            file_offset,
            protection,
            path,
        } => {
            halves(&[pid, tid]);
            for word in [address, length, file_offset] {
                halves(&split(word));
            }
            // Device, inode and generation, and the flags after the protection.
            halves(&[0, 0, 0, 0, 0, 0, protection, 0]);
            (RECORD_MMAP2, Some(path))
        }
    };
    if let Some(text) = text {
        body.extend(text.iter().take(TEXT_BYTES_MAX));
        // At least one zero ends it.
        body.resize((body.len() + 8) & !7, 0);
    }
    body.extend([pid, tid].into_iter().flat_map(u32::to_ne_bytes));
    body.extend([time_ns, 0, 0].into_iter().flat_map(u64::to_ne_bytes));
    append(records, kind, misc, &body);
}

/// The kernel's paths are no longer.
const TEXT_BYTES_MAX: usize = 4096;

/// Appends a record.
pub(crate) fn append(records: &mut Vec<u8>, kind: u32, misc: u16, body: &[u8]) {
    records.extend(kind.to_ne_bytes());
    records.extend(misc.to_ne_bytes());
    records.extend(((HEADER_BYTES + body.len()) as u16).to_ne_bytes());
    records.extend(body);
}

fn parse_map(body: &[u8], misc: u16) -> Result<Map<'_>, Malformed> {
    let build_id = if misc & MISC_MMAP_BUILD_ID != 0 {
        let length = usize::from(*body.get(32).ok_or(Malformed)?);
        body.get(36..36 + length.min(20)).ok_or(Malformed)?
    } else {
        &[]
    };
    Ok(Map {
        pid: u32_at(body, 0)?,
        address: u64_at(body, 8)?,
        length: u64_at(body, 16)?,
        file_offset: u64_at(body, 24)?,
        protection: u32_at(body, 56)?,
        path: text(body, 64)?,
        build_id,
    })
}

/// Bytes from `offset` up to the first zero.
fn text(body: &[u8], offset: usize) -> Result<&[u8], Malformed> {
    let text = body.get(offset..).ok_or(Malformed)?;
    Ok(text.split(|byte| *byte == 0).next().unwrap_or_default())
}

#[inline]
fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, Malformed> {
    array_at(bytes, offset).map(u16::from_ne_bytes)
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, Malformed> {
    array_at(bytes, offset).map(u32::from_ne_bytes)
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> Result<u64, Malformed> {
    array_at(bytes, offset).map(u64::from_ne_bytes)
}

#[inline]
fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let bytes = bytes.get(offset..).and_then(|bytes| bytes.first_chunk());
    bytes.copied().ok_or(Malformed)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record as the kernel would write it.
    pub(crate) fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        append(&mut bytes, kind, misc, body);
        bytes
    }

    pub(crate) fn trailer(pid: u32, tid: u32, time_ns: u64, cpu: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(pid.to_ne_bytes());
        bytes.extend(tid.to_ne_bytes());
        bytes.extend(time_ns.to_ne_bytes());
        bytes.extend(u64::from(cpu).to_ne_bytes());
        bytes.extend(77u64.to_ne_bytes());
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn reads_a_clock_sample() {
        let tids = 12 | 13 << 32;
        let bytes = record(
            RECORD_SAMPLE,
            MISC_USER,
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
        let Body::Sample(sample) = read.body else {
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
    fn what_is_written_in_the_kernels_place_is_read_as_the_kernels() {
        let read = |what| {
            let mut bytes = Vec::new();
            append_of(&mut bytes, 12, 13, 99, what);
            assert_eq!(length(&bytes), Ok(bytes.len()));
            assert_eq!(time_ns(&bytes), Ok(99));
            let record = parse(&bytes, &Identifiers::default()).unwrap();
            assert_eq!((record.origin.pid, record.origin.tid), (12, 13));
            format!("{:?}", record.body)
        };
        let expected = |body: Body<'_>| format!("{body:?}");
        assert_eq!(
            read(RecordOf::Fork { parent_pid: 9 }),
            expected(Body::Fork {
                pid: 12,
                tid: 13,
                parent_pid: 9
            })
        );
        assert_eq!(
            read(RecordOf::Exit),
            expected(Body::Exit { pid: 12, tid: 13 })
        );
        assert_eq!(
            read(RecordOf::Lost { records: 1 << 40 }),
            expected(Body::Lost { records: 1 << 40 })
        );
        for name in ["a", "seven b", "eight by"] {
            let name = name.as_bytes();
            assert_eq!(
                read(RecordOf::Exec { name }),
                expected(Body::Name {
                    pid: 12,
                    tid: 13,
                    name,
                    exec: true
                })
            );
        }
        let path = &b"/usr/lib/libx.so"[..];
        assert_eq!(
            read(RecordOf::Map {
                address: 1 << 40,
                length: 2,
                file_offset: 3,
                protection: 5,
                path
            }),
            expected(Body::Map(Map {
                pid: 12,
                address: 1 << 40,
                length: 2,
                file_offset: 3,
                protection: 5,
                path,
                build_id: &[],
            }))
        );
    }

    #[test]
    fn reads_a_fault() {
        let bytes = record(
            RECORD_SAMPLE,
            MISC_USER,
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
        assert_eq!(read.body, Body::Fault { address: 0x7000 });
    }

    #[test]
    fn reads_a_map_with_its_build_id() {
        let mut body = words(&[12 | 13 << 32, 0x1000, 0x2000, 0x3000]);
        body.extend([4, 0, 0, 0, 0xde, 0xad, 0xbe, 0xef]);
        body.extend([0; 16]);
        body.extend(words(&[5]));
        body.extend(b"/lib/x.so\0\0\0\0\0\0\0");
        body.extend(trailer(12, 13, 55, 0));
        let bytes = record(RECORD_MMAP2, MISC_USER | MISC_MMAP_BUILD_ID, &body);
        assert_eq!(time_ns(&bytes), Ok(55));
        let Body::Map(map) = parse(&bytes, &Identifiers::default()).unwrap().body else {
            panic!()
        };
        assert_eq!(
            (map.pid, map.address, map.length, map.file_offset),
            (12, 0x1000, 0x2000, 0x3000)
        );
        assert_eq!((map.protection, map.path), (5, &b"/lib/x.so"[..]));
        assert_eq!(map.build_id, [0xde, 0xad, 0xbe, 0xef]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_malformed(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u32..16) {
            let identifiers = Identifiers {
            faults: vec![8],
            ..Identifiers::default()
        };
            let _ = (length(&bytes), time_ns(&bytes), parse(&bytes, &identifiers));
            let bytes = record(kind, 0xffff, &bytes);
            prop_assert_eq!(length(&bytes), Ok(bytes.len()));
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
            let head = length(&bytes).ok().filter(|_| kind == RECORD_SAMPLE).and_then(|length| {
                Some((length, time_ns(&bytes[..length]).ok()?))
            });
            prop_assert_eq!(sample_head(&bytes), head);
        }

        #[test]
        fn every_truncation_is_told(cut in 0usize..80) {
            let bytes = record(RECORD_SAMPLE, MISC_USER, &words(&[7, 1, 2, 99, 3, 2, 10, 11, 12]));
            prop_assert_eq!(length(&bytes[..cut]), Err(Malformed));
        }
    }
}
