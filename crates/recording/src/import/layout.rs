//! Layout of a `perf.data` file. A file has a header that names its sections:
//!
//! ```text
//!      0    8  magic "PERFILE2"
//!      8    8  length of this header
//!     16    8  length of an entry of the attributes section
//!     24   16  attributes: offset and length of the section; an entry is a perf_event_attr, then
//!              offset and length of a section of the event's numbers (u64 each)
//!     40   16  data: offset and length
//!     56   16  event types; not used
//!     72   32  bitmap of features; their sections' offsets and lengths follow the data
//! ```
//!
//! A file that went through a pipe (`perf record -o -`) has only the first 16 bytes of the header. Records follow, and
//! perf's own records ([`record`]) among them hold what the sections above hold.
//! Sources: tools/perf/Documentation/perf.data-file-format.txt, tools/perf/util/header.c.

use nearpage_perf_abi::header::{self, Header};
use nearpage_perf_abi::{BuildId, Bytes, Malformed};
use rustc_hash::FxHashMap;

use super::features::{self, feature};

const HEADER_BYTES: usize = 104;
/// Length of the header that `perf record -o -` writes.
const PIPE_HEADER_BYTES: u64 = 16;

/// Types of records that perf itself defines.
pub(super) mod record {
    /// A `perf_event_attr`, and the event's numbers; in pipes.
    pub const ATTRIBUTES: u32 = 64;
    /// The record begins with a length (u32) of data that follow the record and are not part of its own length; in
    /// pipes.
    pub const TRACING_DATA: u32 = 66;
    /// Laid out as an entry of the feature section with build-ids; in pipes.
    pub const BUILD_ID: u32 = 67;
    /// Data follow the record and are not part of its length.
    pub const AUXTRACE: u32 = 71;
    /// A feature's number (u64) and its section; in pipes.
    pub const FEATURE: u32 = 80;
    pub const COMPRESSED: u32 = 81;
    pub const COMPRESSED2: u32 = 83;
}

/// Attributes of a recorded event.
pub(super) struct EventAttributes<'a> {
    /// A `perf_event_attr`, as long as the perf version that wrote the file has it.
    pub attributes: &'a [u8],
    /// Numbers by which samples refer to the event, u64 each.
    pub numbers: &'a [u8],
    /// Byte offset in the file.
    pub at: usize,
}

/// Sections of a file.
pub(super) struct Sections<'a> {
    /// Byte offset of the data.
    pub begin: usize,
    /// Length of the data in bytes.
    pub length: usize,
    pub attributes: Vec<EventAttributes<'a>>,
    /// Feature sections by number.
    pub features: FxHashMap<usize, &'a [u8]>,
    /// Build-ids of files that contain samples, by path.
    pub build_ids: FxHashMap<&'a [u8], BuildId>,
}

impl<'a> Sections<'a> {
    pub fn of(bytes: &'a [u8]) -> Result<Self, String> {
        let field = |at: usize| Bytes(bytes.get(at..).unwrap_or_default()).u64();
        if field(8) == Ok(PIPE_HEADER_BYTES) {
            return Self::of_pipe(bytes);
        }
        if bytes.len() < HEADER_BYTES {
            return Err(cut_short(bytes, "the end of the header"));
        }
        if field(48) == Ok(0) {
            return Err("has no data: `perf record` was killed before it could finish the file; record it again".to_owned());
        }
        let data = section(bytes, 40, "data")?;
        let features = find_features(bytes)?;
        let build_ids = features.get(&feature::BUILD_ID);
        Ok(Self {
            begin: data.as_ptr() as usize - bytes.as_ptr() as usize,
            length: data.len(),
            attributes: find_attributes(bytes)?,
            build_ids: build_ids
                .into_iter()
                .flat_map(|section| features::build_ids(section))
                .collect(),
            features,
        })
    }

    fn of_pipe(bytes: &'a [u8]) -> Result<Self, String> {
        let begin = PIPE_HEADER_BYTES as usize;
        let mut found = Self {
            begin,
            length: bytes.len() - begin,
            attributes: Vec::new(),
            features: FxHashMap::default(),
            build_ids: FxHashMap::default(),
        };
        let mut at = begin;
        while at < bytes.len() {
            let FoundRecord { header, body, next } = FoundRecord::at(bytes, at, bytes.len())?;
            match header.kind {
                record::ATTRIBUTES => found.attributes.push(attributes(body, at)?),
                record::BUILD_ID => found
                    .build_ids
                    .extend(features::build_ids(&bytes[at..next])),
                record::FEATURE => {
                    let mut rest = Bytes(body);
                    let number = rest.u64().map_err(|_| damaged(at, "a record cut short"))?;
                    let number = usize::try_from(number).unwrap_or(usize::MAX);
                    found.features.insert(number, rest.0);
                }
                _ => {}
            }
            at = next;
        }
        if let Some(section) = found.features.get(&feature::BUILD_ID) {
            found.build_ids.extend(features::build_ids(section));
        }
        Ok(found)
    }
}

/// A record of the data.
pub(super) struct FoundRecord<'a> {
    pub header: Header,
    pub body: &'a [u8],
    /// Byte offset of the next record.
    pub next: usize,
}

impl<'a> FoundRecord<'a> {
    /// The record at `at`, including data that belong to the record, follow it and end before `end`.
    pub fn at(bytes: &'a [u8], at: usize, end: usize) -> Result<Self, String> {
        let (header, body) =
            header::split(&bytes[at..end]).map_err(|Malformed| damaged(at, "no record"))?;
        let next = at + header::BYTES + body.len();
        let behind = match header.kind {
            record::AUXTRACE => Bytes(body).u64(),
            // Padded to a multiple of eight bytes.
            record::TRACING_DATA => Bytes(body)
                .u32()
                .map(|data| u64::from(data).next_multiple_of(8)),
            _ => Ok(0),
        };
        let next = behind
            .ok()
            .and_then(|behind| next.checked_add(usize::try_from(behind).ok()?));
        match next.filter(|next| *next <= end) {
            Some(next) => Ok(Self { header, body, next }),
            None => Err(damaged(at, "a record cut short")),
        }
    }
}

/// Parses an attributes record. A `perf_event_attr` states its length behind its type.
fn attributes(body: &[u8], at: usize) -> Result<EventAttributes<'_>, String> {
    let length = Bytes(body.get(4..).unwrap_or_default()).u32();
    let split = length
        .ok()
        .and_then(|length| body.split_at_checked(length as usize));
    let (attributes, numbers) = split.ok_or_else(|| damaged(at, "an event's attributes"))?;
    Ok(EventAttributes {
        attributes,
        numbers,
        at,
    })
}

/// The section of `bytes` whose offset and length stand at byte `at`.
fn section<'a>(bytes: &'a [u8], at: usize, what: &str) -> Result<&'a [u8], String> {
    let mut place = Bytes(bytes.get(at..).unwrap_or_default());
    let (Ok(offset), Ok(length)) = (place.u64(), place.u64()) else {
        return Err(cut_short(bytes, what));
    };
    let end = offset
        .checked_add(length)
        .and_then(|end| usize::try_from(end).ok());
    end.and_then(|end| bytes.get(offset as usize..end)).ok_or_else(|| {
        format!(
            "cut short: {what} should be {length} bytes from {offset} on, and the file has {}; copy or record it again",
            bytes.len()
        )
    })
}

fn cut_short(bytes: &[u8], what: &str) -> String {
    format!(
        "cut short: {} bytes end before {what}; copy or record it again",
        bytes.len()
    )
}

pub(super) fn damaged(at: usize, what: &str) -> String {
    format!("damaged: {what} at byte {at}; copy or record it again")
}

/// Feature sections by number.
fn find_features(bytes: &[u8]) -> Result<FxHashMap<usize, &[u8]>, String> {
    let word = |at: usize| Bytes(&bytes[at..]).u64().unwrap_or(0);
    // No overflow: the caller has found the data section within the file.
    let mut at = (word(40) + word(48)) as usize;
    let mut found = FxHashMap::default();
    for number in (0..256).filter(|number| word(72 + number / 64 * 8) >> (number % 64) & 1 != 0) {
        found.insert(number, section(bytes, at, "a feature section")?);
        at += 16;
    }
    Ok(found)
}

/// The entries of the attributes section.
fn find_attributes(bytes: &[u8]) -> Result<Vec<EventAttributes<'_>>, String> {
    let entry_bytes = Bytes(&bytes[16..]).u64().unwrap_or(0);
    let entry_bytes = usize::try_from(entry_bytes).unwrap_or(usize::MAX);
    let entries = section(bytes, 24, "attributes")?;
    if entry_bytes <= 16 {
        return Err(damaged(16, "a length of attributes"));
    }
    let mut found = Vec::new();
    for entry in entries.chunks_exact(entry_bytes) {
        let (attributes, _) = entry.split_at(entry_bytes - 16);
        let at = entry.as_ptr() as usize - bytes.as_ptr() as usize;
        let numbers = section(bytes, at + entry_bytes - 16, "an event's numbers")?;
        found.push(EventAttributes {
            attributes,
            numbers,
            at,
        });
    }
    Ok(found)
}
