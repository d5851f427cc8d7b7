#![doc = include_str!("../../../docs/reference/layouts/recorder-log.md")]

mod accesses;
mod events;
mod reader;
mod writer;

pub use reader::LogReader;
pub use writer::{Finished, LogWriter};

/// First eight bytes of the file.
pub(crate) const MAGIC: [u8; 8] = *b"NPRECLOG";
/// Version of the layout above.
const VERSION: u32 = 3;
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
