//! An event's attributes (`struct perf_event_attr`, include/uapi/linux/perf_event.h), and how its
//! records are laid out because of them.

use nearpage_machine::CpuId;

use super::{EventKind, Sample};

/// Bits of `sample_type`.
mod sample_type {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}
use sample_type as st;

/// Bits of `read_format`: time enabled, time running, id, group, lost.
const READ_GROUP: u64 = 1 << 3;
const READ_TIMES: u64 = 0x3;
const READ_ID_AND_LOST: u64 = 0x14;

/// Bits of the flags.
const FLAG_FREQUENCY: u64 = 1 << 10;
const FLAG_SAMPLE_ID_ALL: u64 = 1 << 18;

/// Bits of `branch_sample_type`.
const BRANCH_HW_INDEX: u64 = 1 << 17;
const BRANCH_COUNTERS: u64 = 1 << 19;

const TYPE_SOFTWARE: u32 = 1;
/// Page faults of all kinds: all, minor, major.
const SOFTWARE_FAULTS: [u64; 3] = [2, 5, 6];

/// PERF_RECORD_MISC_CPUMODE_MASK and its value for user mode.
const CPU_MODE: u16 = 7;
const CPU_MODE_USER: u16 = 2;

/// Little-endian bytes, read one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes<'a>(pub &'a [u8]);

/// There was less than expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooShort;

impl<'a> Bytes<'a> {
    pub fn take(&mut self, length: u64) -> Result<&'a [u8], TooShort> {
        let length = usize::try_from(length).map_err(|_| TooShort)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(TooShort)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u16(&mut self) -> Result<u16, TooShort> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, TooShort> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, TooShort> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TooShort> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(TooShort)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Skips so many of so many bytes.
    fn skip(&mut self, count: u64, bytes: u64) -> Result<(), TooShort> {
        self.take(count.checked_mul(bytes).ok_or(TooShort)?)?;
        Ok(())
    }
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    type_: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
}

/// Where the sampled thread, time and event are in a record that is no sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trailer {
    pub time_ns: Option<u64>,
    pub bytes: usize,
}

impl Attributes {
    /// Of the bytes of a `perf_event_attr`, as long as the kernel of the recording had it.
    pub fn parse(bytes: &[u8]) -> Result<Self, TooShort> {
        let at = |offset: usize| Bytes(bytes.get(offset..).unwrap_or_default());
        Ok(Self {
            type_: at(0).u32()?,
            config: at(8).u64()?,
            sample_period: at(16).u64()?,
            sample_type: at(24).u64()?,
            read_format: at(32).u64()?,
            flags: at(40).u64()?,
            // Later versions of the structure.
            branch_sample_type: at(72).u64().unwrap_or(0),
            sample_regs_user: at(80).u64().unwrap_or(0),
        })
    }

    fn has(&self, bits: u64) -> bool {
        self.sample_type & bits != 0
    }

    /// Are samples such as are imported: threads, times and addresses?
    pub fn has_addresses(&self) -> bool {
        self.sample_type & (st::IP | st::TID | st::ADDR) == st::IP | st::TID | st::ADDR
    }

    /// Samples per second asked for; 0: by period.
    pub fn rate_hz(&self) -> f64 {
        if self.flags & FLAG_FREQUENCY != 0 {
            self.sample_period as f64
        } else {
            0.0
        }
    }

    /// What it samples, where `data_src` does not say.
    pub fn kind(&self, name: &str) -> EventKind {
        if self.type_ == TYPE_SOFTWARE && SOFTWARE_FAULTS.contains(&self.config) {
            EventKind::Faults
        } else {
            EventKind::named(name)
        }
    }

    /// Bytes from a sample's beginning to its event's number, in a file of several events.
    fn id_offset(&self) -> Option<usize> {
        if self.has(st::IDENTIFIER) {
            return Some(0);
        }
        let before = st::IP | st::TID | st::TIME | st::ADDR;
        self.has(st::ID)
            .then(|| 8 * (self.sample_type & before).count_ones() as usize)
    }

    /// The event's number in a sample's body.
    pub fn sample_id(&self, body: &[u8]) -> Option<u64> {
        Bytes(body.get(self.id_offset()?..)?).u64().ok()
    }

    /// When a sample was taken, from its body.
    pub fn sample_time_ns(&self, body: &[u8]) -> Option<u64> {
        let before = self.sample_type & (st::IDENTIFIER | st::IP | st::TID);
        let offset = 8 * before.count_ones() as usize;
        let time = || Bytes(body.get(offset..)?).u64().ok();
        self.has(st::TIME).then(time).flatten()
    }

    /// Can samples of both be told apart?
    pub fn is_laid_out_as(&self, other: &Self) -> bool {
        self.sample_type == other.sample_type
            && self.flags & FLAG_SAMPLE_ID_ALL == other.flags & FLAG_SAMPLE_ID_ALL
            || self.id_offset() == Some(0) && other.id_offset() == Some(0)
    }

    /// The trailer of a record that is no sample (`struct sample_id`): thread, time, id, stream,
    /// CPU, identifier, eight bytes each, as far as samples have them.
    pub fn trailer(&self, body: &[u8]) -> Trailer {
        if self.flags & FLAG_SAMPLE_ID_ALL == 0 {
            return Trailer::default();
        }
        let fields = st::TID | st::TIME | st::ID | st::STREAM_ID | st::CPU | st::IDENTIFIER;
        let bytes = 8 * (self.sample_type & fields).count_ones() as usize;
        let Some(begin) = body.len().checked_sub(bytes) else {
            return Trailer::default();
        };
        let time_at = begin + if self.has(st::TID) { 8 } else { 0 };
        let time = || Bytes(body.get(time_at..)?).u64().ok();
        Trailer {
            time_ns: self.has(st::TIME).then(time).flatten(),
            bytes,
        }
    }

    /// A sample's body, in the order of `perf_event_open(2)`.
    pub fn sample(&self, body: &[u8], misc: u16, event: EventKind) -> Result<Sample, TooShort> {
        let mut sample = Sample {
            pid: 0,
            tid: 0,
            cpu: None,
            user: misc & CPU_MODE == CPU_MODE_USER,
            ip: 0,
            address: 0,
            event,
            data_src: 0,
            latency_cycles: 0,
            period: self.sample_period.max(1),
        };
        let mut bytes = Bytes(body);
        if self.has(st::IDENTIFIER) {
            bytes.u64()?;
        }
        if self.has(st::IP) {
            sample.ip = bytes.u64()?;
        }
        if self.has(st::TID) {
            (sample.pid, sample.tid) = (bytes.u32()?, bytes.u32()?);
        }
        if self.has(st::TIME) {
            bytes.u64()?;
        }
        if self.has(st::ADDR) {
            sample.address = bytes.u64()?;
        }
        for unused in [st::ID, st::STREAM_ID] {
            if self.has(unused) {
                bytes.u64()?;
            }
        }
        if self.has(st::CPU) {
            sample.cpu = Some(CpuId(bytes.u32()?));
            bytes.u32()?;
        }
        if self.has(st::PERIOD) {
            sample.period = bytes.u64()?;
        } else if self.flags & FLAG_FREQUENCY != 0 {
            sample.period = 1;
        }
        if self.has(st::READ) {
            self.skip_read(&mut bytes)?;
        }
        if self.has(st::CALLCHAIN) {
            let frames = bytes.u64()?;
            bytes.skip(frames, 8)?;
        }
        if self.has(st::RAW) {
            let length = bytes.u32()?;
            bytes.skip(u64::from(length), 1)?;
        }
        if self.has(st::BRANCH_STACK) {
            let branches = bytes.u64()?;
            if self.branch_sample_type & BRANCH_HW_INDEX != 0 {
                bytes.u64()?;
            }
            bytes.skip(branches, 24)?;
            if self.branch_sample_type & BRANCH_COUNTERS != 0 {
                bytes.skip(branches, 8)?;
            }
        }
        if self.has(st::REGS_USER) && bytes.u64()? != 0 {
            bytes.skip(u64::from(self.sample_regs_user.count_ones()), 8)?;
        }
        if self.has(st::STACK_USER) {
            let length = bytes.u64()?;
            bytes.skip(length, 1)?;
            if length != 0 {
                bytes.u64()?;
            }
        }
        if self.has(st::WEIGHT | st::WEIGHT_STRUCT) {
            // The lower half is the latency, in the one form and in the other.
            sample.latency_cycles = bytes.u64()? as u32;
        }
        if self.has(st::DATA_SRC) {
            sample.data_src = bytes.u64()?;
        }
        Ok(sample)
    }

    fn skip_read(&self, bytes: &mut Bytes<'_>) -> Result<(), TooShort> {
        let times = u64::from((self.read_format & READ_TIMES).count_ones());
        let per_value = 1 + u64::from((self.read_format & READ_ID_AND_LOST).count_ones());
        if self.read_format & READ_GROUP != 0 {
            let values = bytes.u64()?;
            bytes.skip(times, 8)?;
            bytes.skip(values, 8 * per_value)
        } else {
            bytes.skip(times + per_value, 8)
        }
    }
}
