//! `struct perf_event_header`, with which every record begins: `type: u32, misc: u16, size: u16`. The size includes
//! these eight bytes.

use crate::{Malformed, u16_at, u32_at};

/// Length of a header.
pub const BYTES: usize = 8;
/// Length of the longest record, as a header has 16 bits for the size.
pub const RECORD_BYTES_MAX: usize = u16::MAX as usize;

/// Record types (`PERF_RECORD_…`).
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod kind {
    pub const MMAP: u32 = 1;
    pub const LOST: u32 = 2;
    pub const COMM: u32 = 3;
    pub const EXIT: u32 = 4;
    pub const THROTTLE: u32 = 5;
    pub const FORK: u32 = 7;
    pub const SAMPLE: u32 = 9;
    pub const MMAP2: u32 = 10;
    pub const AUX: u32 = 11;
    pub const LOST_SAMPLES: u32 = 13;
}

/// Bits of `misc` (`PERF_RECORD_MISC_…`). The upper bits have another meaning in each record type.
#[expect(missing_docs, reason = "names of the kernel's header")]
pub mod misc {
    pub const CPUMODE_MASK: u16 = 7;
    pub const USER: u16 = 2;
    pub const MMAP_DATA: u16 = 1 << 13;
    pub const COMM_EXEC: u16 = 1 << 13;
    pub const MMAP_BUILD_ID: u16 = 1 << 14;
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u32,
    /// Bits of [`misc`].
    pub misc: u16,
}

/// Whether the CPU was in user mode.
#[inline]
pub fn is_user(misc: u16) -> bool {
    misc & misc::CPUMODE_MASK == misc::USER
}

/// Length of the record at the beginning of `bytes`, header included; an error if the record is incomplete.
#[inline]
pub fn record_bytes(bytes: &[u8]) -> Result<usize, Malformed> {
    let size = usize::from(u16_at(bytes, 6)?);
    match (BYTES..=bytes.len()).contains(&size) {
        true => Ok(size),
        false => Err(Malformed),
    }
}

/// Header and body of the record at the beginning of `bytes`.
pub fn split(bytes: &[u8]) -> Result<(Header, &[u8]), Malformed> {
    let header = Header {
        kind: u32_at(bytes, 0)?,
        misc: u16_at(bytes, 4)?,
    };
    Ok((header, &bytes[BYTES..record_bytes(bytes)?]))
}

/// Appends a record; `body` appends the record's body.
pub fn append_with(records: &mut Vec<u8>, header: Header, body: impl FnOnce(&mut Vec<u8>)) {
    let begin = records.len();
    records.extend(header.kind.to_le_bytes());
    records.extend(header.misc.to_le_bytes());
    records.extend([0; 2]);
    body(records);
    let size = (records.len() - begin) as u16;
    records[begin + 6..begin + BYTES].copy_from_slice(&size.to_le_bytes());
}

/// Appends a sample in user mode with the given body.
pub fn append_user_sample(records: &mut Vec<u8>, body: &[u8]) {
    let header = Header {
        kind: kind::SAMPLE,
        misc: misc::USER,
    };
    append_with(records, header, |records| records.extend(body));
}
