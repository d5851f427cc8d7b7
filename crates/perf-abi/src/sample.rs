//! Bodies of samples, and the trailers of all other records (`struct sample_id`).
//!
//! [`Attributes::sample_type`] says which fields are present. Their order is that of perf_event_open(2),
//! "PERF_RECORD_SAMPLE", not that of the bits.

use crate::{Attributes, Bytes, DataSource, Malformed, branch, flag, read_format, u64_at};

/// Bits of [`Attributes::sample_type`] (`PERF_SAMPLE_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod sample_type {
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

/// Fields in a sample's order. The first nine and the last two have eight bytes each.
const ORDER: [u64; 17] = [
    st::IDENTIFIER,
    st::IP,
    st::TID,
    st::TIME,
    st::ADDR,
    st::ID,
    st::STREAM_ID,
    st::CPU,
    st::PERIOD,
    st::READ,
    st::CALLCHAIN,
    st::RAW,
    st::BRANCH_STACK,
    st::REGS_USER,
    st::STACK_USER,
    st::WEIGHT | st::WEIGHT_STRUCT,
    st::DATA_SRC,
];
const VARIABLE: u64 =
    st::READ | st::CALLCHAIN | st::RAW | st::BRANCH_STACK | st::REGS_USER | st::STACK_USER;

/// Bytes from a sample's beginning to `field`, a bit of [`sample_type`].
///
/// # Panics
/// If a field of variable length comes before `field`, which is never so up to [`PERIOD`](sample_type::PERIOD).
pub const fn fixed_offset(sample_type: u64, field: u64) -> usize {
    let (mut at, mut bytes) = (0, 0);
    while ORDER[at] & field == 0 {
        if sample_type & ORDER[at] != 0 {
            assert!(ORDER[at] & VARIABLE == 0, "no fixed offset");
            bytes += 8;
        }
        at += 1;
    }
    bytes
}

/// Length of the trailer of records other than samples, with [`flag::SAMPLE_ID_ALL`]: thread, time, id, stream, CPU and
/// identifier, eight bytes each, if samples have these fields.
pub const fn trailer_bytes(sample_type: u64) -> usize {
    let fields = st::TID | st::TIME | st::ID | st::STREAM_ID | st::CPU | st::IDENTIFIER;
    8 * (sample_type & fields).count_ones() as usize
}

/// The fields of a sample that nearpage uses. A field that the sample lacks is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in `sample_type`")]
pub struct Sample {
    pub ip: u64,
    pub pid: u32,
    pub tid: u32,
    pub address: u64,
    pub cpu: Option<u32>,
    pub period: Option<u64>,
    /// The lower half of the weight, whether it is one number or `WEIGHT_STRUCT`.
    pub latency_cycles: u32,
    pub data_src: DataSource,
}

impl Attributes {
    /// Whether samples have one of these fields.
    fn has(&self, fields: u64) -> bool {
        self.sample_type & fields != 0
    }

    /// Offset of the event's number in a sample's body.
    fn id_offset(&self) -> Option<usize> {
        let field = match self.has(st::IDENTIFIER) {
            true => st::IDENTIFIER,
            false => st::ID,
        };
        self.has(field)
            .then(|| fixed_offset(self.sample_type, field))
    }

    /// The event's number in a sample's body.
    pub fn sample_id(&self, body: &[u8]) -> Option<u64> {
        u64_at(body, self.id_offset()?).ok()
    }

    /// Time of a sample, from its body.
    pub fn sample_time_ns(&self, body: &[u8]) -> Option<u64> {
        let time = || u64_at(body, fixed_offset(self.sample_type, st::TIME)).ok();
        self.has(st::TIME).then(time).flatten()
    }

    /// Time of a record other than a sample, from the trailer in its body.
    pub fn trailer_time_ns(&self, body: &[u8]) -> Option<u64> {
        if self.flags & flag::SAMPLE_ID_ALL == 0 || !self.has(st::TIME) {
            return None;
        }
        let begin = body.len().checked_sub(trailer_bytes(self.sample_type))?;
        let time_at = begin + if self.has(st::TID) { 8 } else { 0 };
        u64_at(body, time_at).ok()
    }

    /// Whether records of both events can be told apart.
    pub fn is_distinguishable_from(&self, other: &Self) -> bool {
        self.sample_type == other.sample_type
            && (self.flags ^ other.flags) & flag::SAMPLE_ID_ALL == 0
            || self.id_offset() == Some(0) && other.id_offset() == Some(0)
    }

    /// Reads a sample's body.
    pub fn sample(&self, body: &[u8]) -> Result<Sample, Malformed> {
        let mut sample = Sample::default();
        let mut bytes = Bytes(body);
        for field in ORDER.into_iter().filter(|field| self.has(*field)) {
            match field {
                st::IP => sample.ip = bytes.u64()?,
                st::TID => (sample.pid, sample.tid) = (bytes.u32()?, bytes.u32()?),
                st::ADDR => sample.address = bytes.u64()?,
                st::CPU => {
                    sample.cpu = Some(bytes.u32()?);
                    bytes.u32()?;
                }
                st::PERIOD => sample.period = Some(bytes.u64()?),
                st::DATA_SRC => sample.data_src = DataSource(bytes.u64()?),
                st::READ => self.skip_read(&mut bytes)?,
                st::CALLCHAIN => {
                    let frames = bytes.u64()?;
                    bytes.skip(frames, 8)?;
                }
                st::RAW => {
                    let length = bytes.u32()?;
                    bytes.skip(u64::from(length), 1)?;
                }
                st::BRANCH_STACK => self.skip_branches(&mut bytes)?,
                st::REGS_USER => {
                    if bytes.u64()? != 0 {
                        bytes.skip(u64::from(self.sample_regs_user.count_ones()), 8)?;
                    }
                }
                st::STACK_USER => {
                    let length = bytes.u64()?;
                    bytes.skip(length, 1)?;
                    if length != 0 {
                        bytes.u64()?;
                    }
                }
                field if field & st::WEIGHT != 0 => sample.latency_cycles = bytes.u64()? as u32,
                _ => drop(bytes.u64()?),
            }
        }
        Ok(sample)
    }

    fn skip_read(&self, bytes: &mut Bytes<'_>) -> Result<(), Malformed> {
        use read_format::{GROUP, ID, LOST, TOTAL_TIME_ENABLED, TOTAL_TIME_RUNNING};
        let count = |bits: u64| u64::from((self.read_format & bits).count_ones());
        let times = count(TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING);
        let per_value = 1 + count(ID | LOST);
        if self.read_format & GROUP != 0 {
            let values = bytes.u64()?;
            bytes.skip(times, 8)?;
            bytes.skip(values, 8 * per_value)
        } else {
            bytes.skip(times + per_value, 8)
        }
    }

    fn skip_branches(&self, bytes: &mut Bytes<'_>) -> Result<(), Malformed> {
        let branches = bytes.u64()?;
        if self.branch_sample_type & branch::HW_INDEX != 0 {
            bytes.u64()?;
        }
        bytes.skip(branches, 24)?;
        match self.branch_sample_type & branch::COUNTERS {
            0 => Ok(()),
            _ => bytes.skip(branches, 8),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn fields_stand_in_the_manuals_order() {
        let clock = st::IDENTIFIER | st::IP | st::TID | st::TIME | st::CPU | st::PERIOD;
        for (field, offset) in [
            (st::IDENTIFIER, 0),
            (st::IP, 8),
            (st::TID, 16),
            (st::TIME, 24),
            (st::CPU, 32),
            (st::PERIOD, 40),
            (st::RAW, 48),
        ] {
            assert_eq!(fixed_offset(clock | st::RAW, field), offset, "{field:#x}");
        }
        let precise = clock | st::ADDR | st::WEIGHT | st::DATA_SRC;
        assert_eq!(fixed_offset(precise, st::WEIGHT), 56);
        assert_eq!(fixed_offset(precise, st::DATA_SRC), 64);
        assert_eq!(trailer_bytes(precise), 32);
    }

    #[test]
    fn fields_after_those_of_variable_length_are_found() {
        let attributes = Attributes {
            sample_type: st::IP | st::TIME | st::CALLCHAIN | st::READ | st::WEIGHT | st::DATA_SRC,
            read_format: read_format::GROUP | read_format::ID,
            ..Attributes::default()
        };
        let body = words(&[1, 99, 2, 0, 0, 0, 0, 3, 0, 0, 0, 9 << 32 | 310, 0x42]);
        let sample = attributes.sample(&body).unwrap();
        assert_eq!((sample.ip, sample.latency_cycles), (1, 310));
        assert_eq!(sample.data_src, DataSource(0x42));
        assert_eq!(attributes.sample_time_ns(&body), Some(99));
        for cut in 0..body.len() {
            assert_eq!(attributes.sample(&body[..cut]), Err(Malformed));
        }
    }

    #[test]
    fn counts_that_overflow_are_malformed() {
        for field in [st::READ, st::CALLCHAIN, st::BRANCH_STACK, st::STACK_USER] {
            let attributes = Attributes {
                sample_type: field,
                read_format: read_format::GROUP,
                ..Attributes::default()
            };
            let body = words(&[u64::MAX, 0, 0]);
            assert_eq!(attributes.sample(&body), Err(Malformed), "{field:#x}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_sample_or_malformed(
            body in prop::collection::vec(any::<u8>(), 0..300),
            (sample_type, read_format, branch_sample_type, sample_regs_user, flags) in any::<(u64, u64, u64, u64, u64)>(),
        ) {
            let attributes = Attributes {
                sample_type, read_format, branch_sample_type, sample_regs_user, flags,
                ..Attributes::default()
            };
            let _ = (attributes.sample(&body), attributes.sample_id(&body));
            let _ = (attributes.sample_time_ns(&body), attributes.trailer_time_ns(&body));
        }
    }
}
