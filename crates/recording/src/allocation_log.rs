//! Reads the allocation logs that the preload library leaves beside the recorder's log.
//! [`nearpage_wire::allocation_log`] specifies the layout.

use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use nearpage_files::if_there;
use nearpage_wire::allocation_log::{
    BLOCK_HEADER_BYTES, BLOCK_MAGIC, Kind, Record, Records, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC,
};

use crate::Error;
use crate::error::IoContext;

/// Largest accepted block, so that a damaged header cannot make the reader allocate without bound.
const BLOCK_BYTES_MAX: u64 = 16 << 20;

/// Log files ("segments") of one program image: a process from its start, `exec` or `fork` to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLog {
    /// Process id.
    pub pid: u32,
    /// CLOCK_MONOTONIC when the image began.
    pub start_ns: u64,
    segments: Vec<PathBuf>,
}

/// Damage found while reading the logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Blocks that failed their checksum or hold malformed records.
    pub blocks: u64,
    /// Messages about segments that were left out: not a log, or of another version.
    pub notes: Vec<String>,
}

/// Finds the logs in `folder`, sorted by time. A missing folder counts as empty.
///
/// # Errors
/// [`Error::Io`].
pub fn find(folder: &Path) -> Result<Vec<ImageLog>, Error> {
    let mut images: BTreeMap<(u64, u32), BTreeMap<u32, PathBuf>> = BTreeMap::new();
    let entries = if_there(std::fs::read_dir(folder)).at(folder, "read the folder")?;
    for entry in entries.into_iter().flatten() {
        let path = entry.at(folder, "read the folder")?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if let Some((pid, start_ns, sequence)) = parse_name(name) {
            images
                .entry((start_ns, pid))
                .or_default()
                .insert(sequence, path);
        }
    }
    let image = |((start_ns, pid), segments): (_, BTreeMap<u32, PathBuf>)| ImageLog {
        pid,
        start_ns,
        segments: segments.into_values().collect(),
    };
    Ok(images.into_iter().map(image).collect())
}

/// Parses `alloc-PID-START-SEQUENCE.log`.
fn parse_name(name: &str) -> Option<(u32, u64, u32)> {
    let mut parts = name
        .strip_prefix("alloc-")?
        .strip_suffix(".log")?
        .split('-');
    let parsed = (
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
        parts.next()?.parse().ok()?,
    );
    parts.next().is_none().then_some(parsed)
}

impl ImageLog {
    /// Calls `each` with every record and the id of the thread that wrote the record. Records come in order within a
    /// thread, but in no order between threads.
    ///
    /// # Errors
    /// [`Error::Io`]; damage is noted in `damage`.
    pub fn read(
        &self,
        damage: &mut Damage,
        mut each: impl FnMut(u32, Record<'_>),
    ) -> Result<(), Error> {
        self.segments
            .iter()
            .try_for_each(|segment| read_segment(segment, damage, &mut each))
    }
}

fn read_segment(
    path: &Path,
    damage: &mut Damage,
    each: &mut impl FnMut(u32, Record<'_>),
) -> Result<(), Error> {
    let Some(file) = if_there(nearpage_files::open(path)).at(path, "open")? else {
        // A process that lives on had no room for the segment, and has removed it.
        return Ok(());
    };
    let mut file = BufReader::with_capacity(256 * 1024, file);
    let mut header = [0; SEGMENT_HEADER_BYTES];
    if !fill(&mut file, &mut header).at(path, "read")? || header[..7] != SEGMENT_MAGIC[..7] {
        // An all-zero header is a segment whose writer was killed before it began.
        if header.iter().any(|byte| *byte != 0) {
            damage.notes.push(format!(
                "{}: not an allocation log; left out",
                path.display()
            ));
        }
        return Ok(());
    }
    if header[7] != SEGMENT_MAGIC[7] {
        let (found, expected) = (header[7], SEGMENT_MAGIC[7]);
        damage.notes.push(format!(
            "{}: allocation log of version {found}, not {expected}; left out",
            path.display()
        ));
        return Ok(());
    }
    let block_bytes = u64::from_le_bytes(header[32..40].try_into().unwrap_or_default());
    if !(BLOCK_HEADER_BYTES as u64..=BLOCK_BYTES_MAX).contains(&block_bytes) {
        damage.notes.push(format!(
            "{}: blocks of {block_bytes} bytes; left out",
            path.display()
        ));
        return Ok(());
    }
    let mut block = vec![0; block_bytes as usize];
    while fill(&mut file, &mut block).at(path, "read")? {
        if block[..4] == BLOCK_MAGIC {
            damage.blocks += u64::from(read_block(&block, each).is_none());
        }
    }
    Ok(())
}

/// Returns `None` for a damaged block.
fn read_block(block: &[u8], each: &mut impl FnMut(u32, Record<'_>)) -> Option<()> {
    let word =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (mut tid, committed, checksum) = (word(4), word(8), word(12));
    let records =
        block.get(BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES.checked_add(committed as usize)?)?;
    if checksum != 0 && crc32fast::hash(records) != checksum {
        return None;
    }
    let mut records = Records::new(records);
    for record in &mut records {
        // A thread that ends hands its block on. The next thread's first record there is its Thread record.
        if record.kind == Kind::Thread {
            tid = record.argument;
        }
        each(tid, record);
    }
    (records.rest() == 0).then_some(())
}

/// Reads until `buffer` is full. Returns `false` at the end of the file; a partial block counts as the end.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
