//! The recorder's log: what a run leaves on disk while it lasts.
//!
//! A file that is only ever appended to, `log/recorder.log` in the folder of the recording. All
//! integers are little-endian.
//!
//! # File (version 2; version 1 had no Unmap)
//! ```text
//! offset size
//!      0    8  magic "NPRECLOG"
//!      8    4  version
//!     12    4  zero
//!     16       frames, one after the other
//! ```
//!
//! # Frame
//! ```text
//!      0    4  magic "NPFR"
//!      4    4  kind: 1 accesses, 2 events; readers skip others
//!      8    4  length of the payload in bytes
//!     12    4  CRC-32 (IEEE) of the payload
//!     16    4  CRC-32 of the 16 bytes above
//!     20       payload
//! ```
//! A frame is one `write`. The last one of a killed recorder may be torn: readers ignore it and say
//! so. A frame in the middle whose checksum differs is skipped and counted; where a frame's header
//! itself is damaged, readers go on at the next header that checks.
//!
//! # Accesses
//! Column after column, each as long as the payload has accesses (46 bytes each): time_ns `u64`,
//! address `u64`, instruction `u64`, thread `u32`, cpu `u32`, weight `f32`, cost_ns `f32`, page_node
//! `u16` (65535: not known), kind `u8`, level `u8`, resolution `u8`, distance_bytes `i8`. Meaning and
//! codes: [`crate::Access`].
//!
//! # Events
//! Each a tag byte, then its fields in the order of [`crate::Event`]: integers at their width, a
//! boolean a byte, a string a `u32` length and UTF-8 bytes. Tags: 1 Map, 2 Name (its boolean before
//! the string), 3 Fork, 4 Exit, 5 FirstTouch, 6 Counts, 7 Lost, 8 Unmap.

mod accesses;
mod events;
mod reader;
mod writer;

pub use reader::LogReader;
pub use writer::{Finished, LogWriter};

/// First eight bytes of the file.
pub(crate) const MAGIC: [u8; 8] = *b"NPRECLOG";
/// Version of the layout above.
const VERSION: u32 = 2;
/// Bytes before the first frame.
pub(crate) const FILE_HEADER_BYTES: usize = 16;
/// First four bytes of a frame.
const FRAME_MAGIC: [u8; 4] = *b"NPFR";
/// Bytes before a frame's payload.
pub(crate) const FRAME_HEADER_BYTES: usize = 20;
/// Kind of a frame of accesses.
const ACCESSES: u32 = 1;
/// Kind of a frame of events.
const EVENTS: u32 = 2;

/// What a frame's header says.
struct FrameHeader {
    kind: u32,
    length: u32,
    checksum: u32,
}

impl FrameHeader {
    fn to_bytes(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        bytes[4..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32fast::hash(&bytes[..16]);
        bytes[16..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; FRAME_HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let sound = bytes[..4] == FRAME_MAGIC && crc32fast::hash(&bytes[..16]) == word(16);
        sound.then(|| Self {
            kind: word(4),
            length: word(8),
            checksum: word(12),
        })
    }
}
