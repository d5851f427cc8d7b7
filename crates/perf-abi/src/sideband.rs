//! Records other than samples: mappings, names, beginnings and ends of threads, losses.

use std::fmt;

use crate::header::{self, Header, kind, misc};
use crate::{Malformed, u32_at, u64_at};

/// Flags of `PERF_RECORD_AUX`.
const AUX_TRUNCATED: u64 = 1;
const AUX_COLLISION: u64 = 1 << 3;

/// `PROT_READ | PROT_EXEC` and `PROT_READ | PROT_WRITE`, for records that have no protection.
const EXECUTABLE: u32 = 5;
const WRITABLE: u32 = 3;

/// `PROT_WRITE`.
const WRITE: u32 = 2;

/// `MAP_SHARED`.
const SHARED: u32 = 1;

/// Longest text of a record; the kernel's paths are no longer.
const TEXT_BYTES_MAX: usize = 4096;

/// A record other than a sample, with the fields that nearpage uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "process and thread ids")]
pub enum Sideband<'a> {
    /// Memory was mapped (`MMAP`, `MMAP2`).
    Map(Map<'a>),
    /// A thread's name (`COMM`).
    Name {
        pid: u32,
        tid: u32,
        name: &'a [u8],
        /// The process began another program.
        exec: bool,
    },
    /// A thread began. If the parent is another process, the thread began a process of its own.
    Fork { pid: u32, tid: u32, parent_pid: u32 },
    /// A thread ended.
    Exit { pid: u32, tid: u32 },
    /// The ring had no room for records (`LOST`, `LOST_SAMPLES`).
    Lost {
        /// Records that were lost.
        records: u64,
    },
    /// The kernel stopped an event for the remainder of a tick because the event came too often.
    Throttle,
    /// New data in the AUX area.
    Aux(AuxStretch),
}

/// A mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Map<'a> {
    /// Process id.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Offset of the mapping in the file.
    pub file_offset: u64,
    /// `PROT_…` bits.
    pub protection: u32,
    /// Whether stores reach the file, and every process that maps it (`MAP_SHARED`).
    pub is_shared: bool,
    /// The file; none for private memory, and for records with a build id in place of the file.
    pub file: Option<FileId>,
    /// The file's path, or a name such as `[heap]`.
    pub path: &'a [u8],
    /// Build id; empty if the record has none.
    pub build_id: BuildId,
}

/// A file of this machine, whatever its path. Anonymous memory that processes share is a file to the kernel, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Number on the device, not 0.
    pub inode: u64,
}

impl FileId {
    /// The file if a mapping of it, with these `PROT_…` bits, shares its pages with other processes: a shared mapping
    /// does, and so does a private one that cannot be written. Writing to a private mapping replaces its pages by copies.
    pub fn if_shared(self, is_shared: bool, protection: u32) -> Option<Self> {
        (is_shared || protection & WRITE == 0).then_some(self)
    }
}

/// A stretch of the AUX area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuxStretch {
    /// Offset, counted from the area's first use; the area is a ring.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Whether samples were lost: the area was full, or a sample came before the last one was written.
    pub incomplete: bool,
}

/// A module's build id of at most 20 bytes, as the kernel writes it. Displays in hexadecimal.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct BuildId {
    bytes: [u8; Self::BYTES_MAX],
    length: u8,
}

impl BuildId {
    const BYTES_MAX: usize = 20;

    /// A build id of the first 20 of `bytes`.
    pub fn new(bytes: &[u8]) -> Self {
        let mut id = Self::default();
        for (to, from) in id.bytes.iter_mut().zip(bytes) {
            *to = *from;
            id.length += 1;
        }
        id
    }

    /// Parses hexadecimal digits, two per byte; `None` for anything else.
    pub fn from_hexadecimal(text: &str) -> Option<Self> {
        let mut bytes = [0; Self::BYTES_MAX];
        let (digits, []) = text.as_bytes().as_chunks::<2>() else {
            return None;
        };
        let bytes = bytes.get_mut(..digits.len())?;
        for (byte, digits) in bytes.iter_mut().zip(digits) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = (digit(digits[0])? << 4 | digit(digits[1])?) as u8;
        }
        Some(Self::new(bytes))
    }

    /// The bytes of the build id.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Whether there is no build id.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Map<'_> {
    /// The file whose pages other processes may share ([`FileId::if_shared`]).
    pub fn shared_file(&self) -> Option<FileId> {
        self.file?.if_shared(self.is_shared, self.protection)
    }
}

impl<'a> Sideband<'a> {
    /// Parses a record's body, and ignores the trailer. `None` for a record of another type.
    pub fn parse(kind: u32, misc: u16, body: &'a [u8]) -> Result<Option<Self>, Malformed> {
        Ok(Some(match kind {
            kind::MMAP | kind::MMAP2 => Self::Map(parse_map(kind, misc, body)?),
            kind::COMM => Self::Name {
                pid: u32_at(body, 0)?,
                tid: u32_at(body, 4)?,
                name: text(body, 8)?,
                exec: misc & misc::COMM_EXEC != 0,
            },
            kind::FORK => Self::Fork {
                pid: u32_at(body, 0)?,
                parent_pid: u32_at(body, 4)?,
                tid: u32_at(body, 8)?,
            },
            kind::EXIT => Self::Exit {
                pid: u32_at(body, 0)?,
                tid: u32_at(body, 8)?,
            },
            kind::LOST => Self::Lost {
                records: u64_at(body, 8)?,
            },
            kind::LOST_SAMPLES => Self::Lost {
                records: u64_at(body, 0)?,
            },
            kind::THROTTLE => Self::Throttle,
            kind::AUX => Self::Aux(AuxStretch {
                offset: u64_at(body, 0)?,
                bytes: u64_at(body, 8)?,
                incomplete: u64_at(body, 16)? & (AUX_TRUNCATED | AUX_COLLISION) != 0,
            }),
            _ => return Ok(None),
        }))
    }

    /// Appends the record as the kernel would have written it, with `trailer` at its end.
    pub fn append(&self, records: &mut Vec<u8>, trailer: &[u8]) {
        let (kind, misc) = match self {
            Self::Map(map) if map.build_id.is_empty() => (kind::MMAP2, 0),
            Self::Map(_) => (kind::MMAP2, misc::MMAP_BUILD_ID),
            Self::Name { exec: true, .. } => (kind::COMM, misc::COMM_EXEC),
            Self::Name { .. } => (kind::COMM, 0),
            Self::Fork { .. } => (kind::FORK, 0),
            Self::Exit { .. } => (kind::EXIT, 0),
            Self::Lost { .. } => (kind::LOST, 0),
            Self::Throttle => (kind::THROTTLE, 0),
            Self::Aux(_) => (kind::AUX, 0),
        };
        header::append_with(records, Header { kind, misc }, |body| {
            self.append_body(body);
            body.extend(trailer);
        });
    }

    fn append_body(&self, body: &mut Vec<u8>) {
        match *self {
            Self::Map(map) => {
                append_halves(body, &[map.pid, map.pid]);
                append_words(body, &[map.address, map.length, map.file_offset]);
                // The build id takes the place of device, inode and generation.
                if let (Some(file), true) = (map.file, map.build_id.is_empty()) {
                    append_halves(body, &[file.device.0, file.device.1]);
                    append_words(body, &[file.inode, 0]);
                } else {
                    body.extend([map.build_id.length, 0, 0, 0]);
                    body.extend(map.build_id.bytes);
                }
                let flags = if map.is_shared { SHARED } else { 0 };
                append_halves(body, &[map.protection, flags]);
                append_text(body, map.path);
            }
            Self::Name { pid, tid, name, .. } => {
                append_halves(body, &[pid, tid]);
                append_text(body, name);
            }
            Self::Fork {
                pid,
                tid,
                parent_pid,
            } => append_halves(body, &[pid, parent_pid, tid, parent_pid, 0, 0]),
            Self::Exit { pid, tid } => append_halves(body, &[pid, pid, tid, pid, 0, 0]),
            Self::Lost { records } => append_words(body, &[0, records]),
            Self::Throttle => append_words(body, &[0; 3]),
            Self::Aux(stretch) => {
                let flags = if stretch.incomplete { AUX_TRUNCATED } else { 0 };
                append_words(body, &[stretch.offset, stretch.bytes, flags]);
            }
        }
    }
}

fn parse_map(kind: u32, misc: u16, body: &[u8]) -> Result<Map<'_>, Malformed> {
    let mut map = Map {
        pid: u32_at(body, 0)?,
        address: u64_at(body, 8)?,
        length: u64_at(body, 16)?,
        file_offset: u64_at(body, 24)?,
        ..Map::default()
    };
    if kind == kind::MMAP2 {
        let identity = body.get(32..56).ok_or(Malformed)?;
        if misc & misc::MMAP_BUILD_ID != 0 {
            let length = usize::from(identity[0]).min(BuildId::BYTES_MAX);
            map.build_id = BuildId::new(&identity[4..4 + length]);
        } else {
            let file = FileId {
                device: (u32_at(identity, 0)?, u32_at(identity, 4)?),
                inode: u64_at(identity, 8)?,
            };
            map.file = (file.inode != 0).then_some(file);
        }
        map.protection = u32_at(body, 56)?;
        map.is_shared = u32_at(body, 60)? & SHARED != 0;
        map.path = text(body, 64)?;
    } else {
        map.protection = match misc & misc::MMAP_DATA {
            0 => EXECUTABLE,
            _ => WRITABLE,
        };
        map.path = text(body, 32)?;
    }
    Ok(map)
}

/// Bytes from `offset` up to the first zero.
fn text(body: &[u8], offset: usize) -> Result<&[u8], Malformed> {
    let text = body.get(offset..).ok_or(Malformed)?;
    Ok(text.split(|byte| *byte == 0).next().unwrap_or_default())
}

fn append_halves(body: &mut Vec<u8>, halves: &[u32]) {
    body.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
}

fn append_words(body: &mut Vec<u8>, words: &[u64]) {
    body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

/// Appends text and at least one zero, up to a multiple of eight bytes.
fn append_text(body: &mut Vec<u8>, text: &[u8]) {
    let text = &text[..text.len().min(TEXT_BYTES_MAX)];
    body.extend(text);
    body.resize(body.len() + 8 - text.len() % 8, 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn appended_records_are_read_as_they_were() {
        let name = |name, exec| Sideband::Name {
            pid: 12,
            tid: 13,
            name,
            exec,
        };
        let map = Map {
            pid: 12,
            address: 1 << 40,
            length: 2,
            file_offset: 3,
            protection: 5,
            path: b"/usr/lib/libx.so",
            ..Map::default()
        };
        let shared = Map {
            is_shared: true,
            file: Some(FileId {
                device: (0, 1),
                inode: 1 << 33,
            }),
            path: b"/dev/zero (deleted)",
            ..map
        };
        for sideband in [
            Sideband::Fork {
                pid: 12,
                tid: 13,
                parent_pid: 9,
            },
            Sideband::Exit { pid: 12, tid: 13 },
            Sideband::Lost { records: 1 << 40 },
            Sideband::Throttle,
            Sideband::Aux(AuxStretch {
                offset: 1 << 33,
                bytes: 64,
                incomplete: true,
            }),
            name(b"a", true),
            name(b"seven b", false),
            name(b"eight by", true),
            Sideband::Map(map),
            Sideband::Map(Map {
                build_id: BuildId::new(&[0xde, 0xad]),
                ..map
            }),
            Sideband::Map(shared),
        ] {
            let mut record = Vec::new();
            sideband.append(&mut record, &[7; 16]);
            assert_eq!(record.len() % 8, 0);
            assert_eq!(header::record_bytes(&record), Ok(record.len()));
            let (header, body) = header::split(&record).unwrap();
            let read = Sideband::parse(header.kind, header.misc, body);
            assert_eq!(read, Ok(Some(sideband)));
        }
    }

    /// Records of kernels before 3.16, and of `perf record --no-buildid-mmap`.
    #[test]
    fn older_mappings_have_their_protection_from_misc() {
        let mut body = Vec::new();
        append_halves(&mut body, &[12, 13]);
        append_words(&mut body, &[0x1000, 0x2000, 0x3000]);
        append_text(&mut body, b"/bin/x");
        for (misc, protection) in [(0, EXECUTABLE), (misc::MMAP_DATA, WRITABLE)] {
            let Ok(Some(Sideband::Map(map))) = Sideband::parse(kind::MMAP, misc, &body) else {
                panic!("{misc}")
            };
            assert_eq!((map.path, map.protection), (&b"/bin/x"[..], protection));
        }
    }

    #[test]
    fn private_memory_that_can_be_written_is_not_shared() {
        let file = FileId {
            device: (0, 1),
            inode: 5,
        };
        let is_shared = |shared, protection| file.if_shared(shared, protection).is_some();
        assert_eq!([0, 1, 5].map(|bits| is_shared(false, bits)), [true; 3]);
        assert_eq!([2, 3, 7].map(|bits| is_shared(false, bits)), [false; 3]);
        assert!(is_shared(true, 3));
    }

    #[test]
    fn build_ids_are_hexadecimal() {
        let id = BuildId::from_hexadecimal("dEad00").unwrap();
        assert_eq!(id.as_bytes(), [0xde, 0xad, 0]);
        assert_eq!(id.to_string(), "dead00");
        for text in ["a", "zz", &"00".repeat(21)] {
            assert_eq!(BuildId::from_hexadecimal(text), None, "{text}");
        }
        assert_eq!(BuildId::new(&[1; 30]).as_bytes(), [1; 20]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_malformed(
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            kind in 0u32..16,
            misc in any::<u16>(),
        ) {
            let _ = (Sideband::parse(kind, misc, &bytes), header::split(&bytes));
        }
    }
}
