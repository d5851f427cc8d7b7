//! The file's header, its frames, and the parts of them that outlive a process that is killed.

use super::COUNTERS;
use super::bytes::{Input, Output};
use crate::checksum::crc32;

/// First eight bytes of a trace; the last is the version. Other kinds of traces have the next versions.
pub const FILE_MAGIC: [u8; 8] = *b"NPTRACE\x01";
/// First eight bytes of a trace of a whole system.
pub const SYSTEM_MAGIC: [u8; 8] = *b"NPTRACE\x02";
/// First eight bytes of a trace of a program whose misses state on which misses they depend.
pub const DEPENDENCES_MAGIC: [u8; 8] = *b"NPTRACE\x03";
/// Bytes of the file's header.
pub const FILE_HEADER_BYTES: usize = 64;
/// First four bytes of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"NPFT";
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Offset in a frame of the word with `records` in the low half and `payload_bytes` in the high half.
pub const FRAME_COUNTS_OFFSET: usize = 16;
/// Largest payload that a writer makes; a header that claims more is damaged.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Upper bound of the bytes of a record.
pub const RECORD_BYTES_MAX: usize = 64;

/// The file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Process id.
    pub pid: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of a cache line.
    pub line_bytes: u32,
    /// Mean number of references between two samples; 0 for no samples.
    pub sample_period: u32,
    /// CLOCK_MONOTONIC at which the image began.
    pub start_ns: u64,
    /// Instructions of a quantum, in which threads advance together.
    pub quantum: u32,
    /// Process that forked this one; 0 if no traced process did.
    pub parent_pid: u32,
    /// Whether the trace is of a whole system rather than of a program.
    pub whole_system: bool,
    /// Whether misses state on which misses they depend; never in traces of a whole system.
    pub dependences: bool,
}

impl FileHeader {
    /// The bytes of the header in the file.
    pub fn to_bytes(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        let mut out = Output::new(&mut bytes);
        out.put(match (self.whole_system, self.dependences) {
            (true, _) => &SYSTEM_MAGIC,
            (_, true) => &DEPENDENCES_MAGIC,
            _ => &FILE_MAGIC,
        });
        out.u32(self.pid);
        out.u32(self.page_bytes);
        out.u32(self.line_bytes);
        out.u32(self.sample_period);
        out.u64(self.start_ns);
        out.u32(self.quantum);
        out.u32(self.parent_pid);
        bytes
    }

    /// Parses the header at the beginning of `bytes`; `None` if they are no trace of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut input = Input { bytes };
        let magic = input.take(8)?;
        let whole_system = magic == SYSTEM_MAGIC;
        let dependences = magic == DEPENDENCES_MAGIC;
        if magic != FILE_MAGIC && !whole_system && !dependences {
            return None;
        }
        let header = Self {
            pid: input.u32()?,
            page_bytes: input.u32()?,
            line_bytes: input.u32()?,
            sample_period: input.u32()?,
            start_ns: input.u64()?,
            quantum: input.u32()?,
            parent_pid: input.u32()?,
            whole_system,
            dependences,
        };
        input.take(24)?;
        let sane = header.page_bytes.is_power_of_two() && header.line_bytes.is_power_of_two();
        sane.then_some(header)
    }
}

/// Kind of a frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FrameKind {
    /// [`Record`](super::Record)s of one thread.
    Records = 1,
    /// [`Event`](super::Event)s.
    Events = 2,
}

/// A frame's header, without magic and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Kind of the payload.
    pub kind: FrameKind,
    /// Thread, by order of creation in the process.
    pub thread: u32,
    /// Records or events in the payload.
    pub records: u32,
    /// Bytes after the header.
    pub payload_bytes: u32,
    /// Virtual time from which the first record counts its instructions, in instructions.
    pub virtual_time: u64,
    /// CLOCK_MONOTONIC at `virtual_time`.
    pub time_ns: u64,
}

impl FrameHeader {
    /// Writes header and checksum in front of the payload. `frame` is room for the header, and the payload, whose
    /// length becomes `payload_bytes`. A frame too short for a header is left alone.
    pub fn seal(&self, frame: &mut [u8]) {
        let Some(payload_bytes) = frame.len().checked_sub(FRAME_HEADER_BYTES) else {
            return;
        };
        self.write(&mut Output::new(frame), payload_bytes as u32);
        let sum = crc32(frame.get(8..).unwrap_or_default());
        Output {
            bytes: frame,
            at: 4,
        }
        .u32(sum);
    }

    /// Writes the header, with a checksum of 0, over the beginning of an unfinished frame.
    pub fn begin(&self, frame: &mut [u8]) {
        self.write(&mut Output::new(frame), self.payload_bytes);
    }

    fn write(&self, out: &mut Output, payload_bytes: u32) {
        out.put(&FRAME_MAGIC);
        out.u32(0);
        out.u32(self.kind as u32);
        out.u32(self.thread);
        out.u32(self.records);
        out.u32(payload_bytes);
        out.u64(self.virtual_time);
        out.u64(self.time_ns);
    }

    /// Parses the frame's header at the beginning of `bytes`; `None` if there is no complete and valid header.
    /// [`Self::intact`] checks the checksum.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut input = Input { bytes };
        if input.take(4)? != FRAME_MAGIC {
            return None;
        }
        input.u32()?;
        let header = Self {
            kind: match input.u32()? {
                1 => FrameKind::Records,
                2 => FrameKind::Events,
                _ => return None,
            },
            thread: input.u32()?,
            records: input.u32()?,
            payload_bytes: input.u32()?,
            virtual_time: input.u64()?,
            time_ns: input.u64()?,
        };
        // A record or an event takes at least one byte.
        let sane = header.payload_bytes as usize <= PAYLOAD_BYTES_MAX
            && header.records <= header.payload_bytes;
        sane.then_some(header)
    }

    /// Whether header and payload of `frame` (both, nothing else) are as they were written.
    pub fn intact(frame: &[u8]) -> bool {
        match frame.split_at_checked(8) {
            Some((head, rest)) => head[4..] == crc32(rest).to_le_bytes(),
            None => false,
        }
    }
}

/// Finishes a frame that its thread left unfinished: seals the records that `file`, an `.open` file, states, and
/// returns the frame. `None` if there is no record.
pub fn finish_frame(file: &mut [u8]) -> Option<&[u8]> {
    let header = FrameHeader::from_bytes(file)?;
    let bytes = FRAME_HEADER_BYTES + header.payload_bytes as usize;
    let frame = file.get_mut(..bytes).filter(|_| header.records > 0)?;
    header.seal(frame);
    Some(frame)
}

/// Bytes of the counters in an `.open` file, at its end.
pub const OPEN_COUNTERS_BYTES: usize = 512;
const OPEN_COUNTERS_MAGIC: u32 = u32::from_le_bytes(*b"NPCT");

/// The words that [`open_counters`] reads. They are to be written to zeros in this order, except the first word, which
/// is written last.
pub fn open_counters_words(counters: &[u64; COUNTERS]) -> [u64; 1 + COUNTERS] {
    let mut words = [0; 1 + COUNTERS];
    words[0] = (COUNTERS as u64) << 32 | u64::from(OPEN_COUNTERS_MAGIC);
    words[1..].copy_from_slice(counters);
    words
}

/// The counters in `file`, an `.open` file; `None` if there are none.
pub fn open_counters(file: &[u8]) -> Option<[u64; COUNTERS]> {
    let at = file.len().checked_sub(OPEN_COUNTERS_BYTES)?;
    let mut input = Input { bytes: &file[at..] };
    if input.u32()? != OPEN_COUNTERS_MAGIC {
        return None;
    }
    let mut counters = [0; COUNTERS];
    for number in 0..input.u32()? {
        let value = input.u64()?;
        if let Some(counter) = counters.get_mut(number as usize) {
            *counter = value;
        }
    }
    Some(counters)
}
