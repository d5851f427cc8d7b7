use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nearpage_machine::CpuId;
use rustc_hash::FxHashMap;

use super::accesses::{self, ACCESS_BYTES};
use super::{
    ACCESSES, EVENTS, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader, MAGIC,
    VERSION, events,
};
use crate::error::IoContext;
use crate::folder::{LOG_FOLDER, RECORDER_LOG_FILE};
use crate::{AccessBatch, ColumnSelection, Error, Event, FirstTouch, SampleCounts, ThreadIndex};

/// Fewest accesses of a chunk; only the last chunk may have less.
const CHUNK_ACCESSES: u64 = 64 * 1024;
/// Bytes searched at a time for the next valid header.
const SEARCH_BYTES: usize = 64 * 1024;

/// The recorder's log, read once from end to end. Events are in memory, accesses are read by chunk.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    file: File,
    frames: Vec<AccessFrame>,
    chunks: Vec<Range<usize>>,
    /// Events except counts, first touches and losses, in the order of the log.
    pub events: Vec<Event>,
    /// First touches, in the order of the log.
    pub first_touches: Vec<FirstTouch>,
    /// Last counts of each thread.
    pub counts: BTreeMap<ThreadIndex, SampleCounts>,
    /// Records that the kernel dropped.
    pub lost: u64,
    /// Number of accesses by thread and CPU.
    pub accesses_by_cpu: FxHashMap<(ThreadIndex, CpuId), u64>,
    /// Number of accesses.
    pub access_count: u64,
    /// Frames that failed their checksum.
    pub damaged_blocks: u64,
    /// Whether the last frame is torn: the recorder was killed while it wrote.
    pub torn: bool,
    /// Number of known threads.
    threads: usize,
}

/// Place of the payload of a frame of accesses.
#[derive(Clone, Copy, Debug)]
struct AccessFrame {
    offset: u64,
    length: u32,
}

impl LogReader {
    /// Reads the log of the recording in `folder`.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Version`], or [`Error::Damaged`] if the file is no log at all. Damage inside is counted.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(LOG_FOLDER).join(RECORDER_LOG_FILE);
        let file = nearpage_files::open(&path).at(&path, "open")?;
        let size = file.metadata().at(&path, "read")?.len();
        let mut log = Self {
            path,
            file,
            frames: Vec::new(),
            chunks: Vec::new(),
            events: Vec::new(),
            first_touches: Vec::new(),
            counts: BTreeMap::new(),
            lost: 0,
            accesses_by_cpu: FxHashMap::default(),
            access_count: 0,
            damaged_blocks: 0,
            torn: size < FILE_HEADER_BYTES as u64,
            threads: usize::MAX,
        };
        if !log.torn {
            log.check_header()?;
            log.scan(size)?;
        }
        log.group();
        Ok(log)
    }

    /// Leaves out accesses of threads beyond the first `threads`: the frame that began such a thread is damaged, or the
    /// frame of accesses names a wrong thread. Returns the number of accesses left out.
    pub(crate) fn keep_threads(&mut self, threads: usize) -> u64 {
        self.threads = threads;
        let mut unknown = 0;
        self.accesses_by_cpu.retain(|(thread, _), count| {
            let known = (thread.0 as usize) < threads;
            unknown += if known { 0 } else { *count };
            known
        });
        self.access_count -= unknown;
        unknown
    }

    /// Number of chunks of accesses.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Replaces the contents of `batch` by the accesses of chunk `number`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Damaged`] if the file changed since it was opened.
    pub fn read_chunk(&self, number: usize, batch: &mut AccessBatch) -> Result<(), Error> {
        batch.clear();
        let mut payload = Vec::new();
        for frame in &self.frames[self.chunks[number].clone()] {
            payload.resize(frame.length as usize, 0);
            self.file
                .read_exact_at(&mut payload, frame.offset)
                .at(&self.path, "read")?;
            accesses::decode(&payload, batch)
                .ok_or_else(|| Error::damaged(&self.path, "it changed while it was read"))?;
        }
        let known = |thread: &ThreadIndex| (thread.0 as usize) < self.threads;
        if !batch.thread.iter().all(known) {
            let rows = (0..).zip(&batch.thread);
            let rows: Vec<u32> = rows.filter(|row| known(row.1)).map(|row| row.0).collect();
            let all = std::mem::take(batch);
            batch.gather(&all, &rows, ColumnSelection::ALL);
        }
        Ok(())
    }

    fn check_header(&self) -> Result<(), Error> {
        let mut header = [0; FILE_HEADER_BYTES];
        self.file
            .read_exact_at(&mut header, 0)
            .at(&self.path, "read")?;
        if header[..8] != MAGIC {
            return Err(Error::damaged(
                &self.path,
                "expected a recorder's log, found another kind of file",
            ));
        }
        let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
        if !(1..=VERSION).contains(&found) {
            return Err(Error::Version {
                file: self.path.clone(),
                found,
                expected: VERSION,
            });
        }
        Ok(())
    }

    fn scan(&mut self, size: u64) -> Result<(), Error> {
        let mut offset = FILE_HEADER_BYTES as u64;
        let (mut payload, mut decoded) = (Vec::new(), AccessBatch::default());
        while offset < size {
            let Some(header) = self.header_at(offset, size)? else {
                match self.next_header(offset + 1, size)? {
                    Some(next) => {
                        self.damaged_blocks += 1;
                        offset = next;
                        continue;
                    }
                    None => {
                        self.torn = true;
                        break;
                    }
                }
            };
            offset += FRAME_HEADER_BYTES as u64;
            if size - offset < u64::from(header.length) {
                self.torn = true;
                break;
            }
            payload.resize(header.length as usize, 0);
            self.file
                .read_exact_at(&mut payload, offset)
                .at(&self.path, "read")?;
            decoded.clear();
            let is_intact = crc32fast::hash(&payload) == header.checksum
                && match header.kind {
                    ACCESSES => self.note_accesses(offset, &payload, &mut decoded).is_some(),
                    EVENTS => self.note_events(&payload).is_some(),
                    _ => true,
                };
            self.damaged_blocks += u64::from(!is_intact);
            offset += u64::from(header.length);
        }
        Ok(())
    }

    fn header_at(&self, offset: u64, size: u64) -> Result<Option<FrameHeader>, Error> {
        if size - offset < FRAME_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        self.file
            .read_exact_at(&mut bytes, offset)
            .at(&self.path, "read")?;
        Ok(FrameHeader::from_bytes(&bytes))
    }

    /// Offset of the next intact header at or after `offset`.
    fn next_header(&self, mut offset: u64, size: u64) -> Result<Option<u64>, Error> {
        let mut window = vec![0; SEARCH_BYTES];
        while size.saturating_sub(offset) >= FRAME_HEADER_BYTES as u64 {
            let length = (size - offset).min(SEARCH_BYTES as u64) as usize;
            self.file
                .read_exact_at(&mut window[..length], offset)
                .at(&self.path, "read")?;
            for (at, bytes) in window[..length].windows(FRAME_HEADER_BYTES).enumerate() {
                let header = bytes
                    .starts_with(&FRAME_MAGIC)
                    .then(|| bytes.try_into().ok())
                    .flatten();
                if header.and_then(FrameHeader::from_bytes).is_some() {
                    return Ok(Some(offset + at as u64));
                }
            }
            offset += (length - FRAME_HEADER_BYTES + 1) as u64;
        }
        Ok(None)
    }

    fn note_accesses(
        &mut self,
        offset: u64,
        payload: &[u8],
        decoded: &mut AccessBatch,
    ) -> Option<()> {
        accesses::decode(payload, decoded)?;
        accesses::threads_and_cpus(payload, |thread, cpu| {
            *self.accesses_by_cpu.entry((thread, cpu)).or_default() += 1;
        });
        self.access_count += decoded.len() as u64;
        self.frames.push(AccessFrame {
            offset,
            length: payload.len() as u32,
        });
        Some(())
    }

    fn note_events(&mut self, payload: &[u8]) -> Option<()> {
        events::decode(payload, |event| match event {
            Event::FirstTouch {
                time_ns,
                thread,
                cpu,
                address,
            } => {
                self.first_touches.push(FirstTouch {
                    time_ns,
                    thread,
                    cpu,
                    address,
                });
            }
            Event::Counts { thread, counts } => {
                self.counts.insert(thread, counts);
            }
            Event::Lost { records, .. } => self.lost = self.lost.saturating_add(records),
            event => self.events.push(event),
        })
    }

    fn group(&mut self) {
        let (mut begin, mut accesses) = (0, 0);
        for (number, frame) in self.frames.iter().enumerate() {
            accesses += u64::from(frame.length) / ACCESS_BYTES as u64;
            if accesses >= CHUNK_ACCESSES || number + 1 == self.frames.len() {
                self.chunks.push(begin..number + 1);
                (begin, accesses) = (number + 1, 0);
            }
        }
    }
}
