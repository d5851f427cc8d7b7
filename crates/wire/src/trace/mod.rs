#![doc = include_str!("../../../../docs/reference/layouts/trace.md")]

mod bytes;
mod encoding;
mod events;
mod frames;
mod records;
mod segments;
#[cfg(test)]
mod tests;

pub use self::encoding::{Decoder, Encoder};
pub use self::events::{COUNTERS, Counter, EVENT_BYTES_MAX, Event, Events, PATH_BYTES_MAX};
pub use self::frames::{
    DEPENDENCES_MAGIC, FILE_HEADER_BYTES, FILE_MAGIC, FRAME_COUNTS_OFFSET, FRAME_HEADER_BYTES,
    FRAME_MAGIC, FileHeader, FrameHeader, FrameKind, OPEN_COUNTERS_BYTES, PAYLOAD_BYTES_MAX,
    RECORD_BYTES_MAX, SYSTEM_MAGIC, finish_frame, open_counters, open_counters_words,
};
pub use self::records::{
    CHILD_ENDED, ENDED_FILE, MARK_OPTION, PIPE_SIGNAL, Record, Reference, ReferenceKind,
    SIGNALS_FILE, Served,
};
pub use self::segments::{
    BEGIN_MARK, BOOTED_MARK, COUNT_AGAIN_MARK, END_MARK, LEAVE_OUT_MARK, Segment,
};

/// Error for a payload that no writer made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;
