//! Index of one trace file: its frames, and its events. [`nearpage_wire::trace`] specifies the layout.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nearpage_perf_abi::FileId;
use nearpage_wire::trace::{
    COUNTERS, DEPENDENCES_MAGIC, Event, Events, FILE_HEADER_BYTES, FILE_MAGIC, FRAME_HEADER_BYTES,
    FRAME_MAGIC, FileHeader, FrameHeader, FrameKind,
};

use super::moved;
use crate::Error;
use crate::error::IoContext;

/// `MAP_SHARED`.
const SHARED: u32 = 1;

/// Bytes searched at a time for the next frame.
const SEARCH_BYTES: usize = 1 << 16;

/// A frame of records, as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Offset of the frame's header.
    pub offset: u64,
    /// Bytes of the frame, header included.
    pub bytes: u32,
    pub records: u32,
    /// Virtual time from which the frame's records count instructions.
    pub virtual_time: u64,
    /// CLOCK_MONOTONIC at `virtual_time`.
    pub time_ns: u64,
}

/// A thread of the process, as the file describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FileThread {
    pub tid: u32,
    /// Position of the thread's first CPU among the setup's CPUs.
    pub cpu: u32,
    pub started_by: u64,
    pub start_instructions: u64,
    /// Virtual time of the thread's end, if the end was seen.
    pub end_instructions: Option<u64>,
    /// Whether the file has the thread's start. Creations that failed leave gaps in the numbers.
    pub started: bool,
    /// Frames of the thread, in order.
    pub frames: Vec<Frame>,
}

/// A change of the address space.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mapped {
    pub virtual_time: u64,
    /// CLOCK_MONOTONIC at or before the change.
    pub time_ns: u64,
    pub range: (u64, u64),
    /// The new mapping; `None` if the range was unmapped.
    pub by: Option<Mapping>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Mapping {
    pub protection: u32,
    pub flags: u32,
    pub offset: u64,
    pub device: u64,
    pub inode: u64,
    pub path: String,
}

impl Mapping {
    /// The file whose pages other processes may share.
    pub fn shared_file(&self) -> Option<FileId> {
        let file = FileId {
            device: ((self.device >> 32) as u32, self.device as u32),
            inode: self.inode,
        };
        let is_file = (self.device, self.inode) != (0, 0);
        file.if_shared(self.flags & SHARED != 0, self.protection)
            .filter(|_| is_file)
    }
}

/// A fork of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fork {
    /// Number of the thread that called `fork`.
    pub thread: u32,
    pub virtual_time: u64,
    /// Process id of the child.
    pub child: u32,
}

/// The index of a trace file.
#[derive(Debug)]
pub(super) struct TraceFile {
    pub path: PathBuf,
    file: File,
    pub header: FileHeader,
    /// Threads, by order of creation.
    pub threads: Vec<FileThread>,
    /// Changes of the address space, by virtual time.
    pub mapped: Vec<Mapped>,
    pub forks: Vec<Fork>,
    /// Whether the process was about to run another program.
    executed_program: bool,
    /// Totals, by [`nearpage_wire::trace::Counter`]; `None` if the file was cut short.
    pub counters: Option<[u64; COUNTERS]>,
    /// Number of places without a valid frame, and of frames of events with a wrong checksum.
    pub damaged: u64,
}

/// Greater thread numbers are damage: no process creates so many threads.
const THREADS_MAX: u32 = 1 << 20;

impl TraceFile {
    /// Reads the headers of all frames, and the events.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Version`], or [`Error::Damaged`] if the file is no trace at all.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let file = nearpage_files::open(path).at(path, "open")?;
        let size = file.metadata().at(path, "read")?.len();
        let mut bytes = [0; FILE_HEADER_BYTES];
        if size < FILE_HEADER_BYTES as u64 {
            return Err(Error::damaged(path, "cut short before its first frame"));
        }
        file.read_exact_at(&mut bytes, 0).at(path, "read")?;
        let Some(header) = FileHeader::from_bytes(&bytes) else {
            if bytes[..7] == FILE_MAGIC[..7] && bytes[7] != FILE_MAGIC[7] {
                return Err(Error::Version {
                    file: path.to_owned(),
                    found: u32::from(bytes[7]),
                    expected: u32::from(DEPENDENCES_MAGIC[7]),
                });
            }
            return Err(Error::damaged(
                path,
                "expected a trace, found something else",
            ));
        };
        let mut trace = Self {
            path: path.to_owned(),
            file,
            header,
            threads: Vec::new(),
            mapped: Vec::new(),
            forks: Vec::new(),
            executed_program: false,
            counters: None,
            damaged: 0,
        };
        trace.index(size)?;
        trace.mapped.sort_by_key(|mapped| mapped.virtual_time);
        moved::follow(&mut trace.mapped);
        for thread in &mut trace.threads {
            thread.frames.sort_by_key(|frame| frame.virtual_time);
        }
        Ok(trace)
    }

    fn index(&mut self, size: u64) -> Result<(), Error> {
        let mut offset = FILE_HEADER_BYTES as u64;
        let mut bytes = [0; FRAME_HEADER_BYTES];
        while offset < size {
            let mut next = None;
            if size - offset >= FRAME_HEADER_BYTES as u64 {
                self.file
                    .read_exact_at(&mut bytes, offset)
                    .at(&self.path, "read")?;
                next = FrameHeader::from_bytes(&bytes).filter(|header| {
                    size - offset >= FRAME_HEADER_BYTES as u64 + u64::from(header.payload_bytes)
                });
            }
            // A damaged length does not lead to another frame. The frame's own checksum then decides.
            let end = |header: &FrameHeader| {
                offset + FRAME_HEADER_BYTES as u64 + u64::from(header.payload_bytes)
            };
            if let Some(header) = next
                && end(&header) < size
                && !self.is_magic(end(&header), size)?
                && self.read(offset, end(&header) - offset)?.is_none()
            {
                next = None;
            }
            let Some(header) = next else {
                self.damaged += 1;
                match self.next_frame(offset + 1, size)? {
                    Some(next) => offset = next,
                    None => break,
                }
                continue;
            };
            let end = end(&header);
            self.note(&header, offset, end)?;
            offset = end;
        }
        Ok(())
    }

    fn is_magic(&self, offset: u64, size: u64) -> Result<bool, Error> {
        let mut magic = [0; FRAME_MAGIC.len()];
        if size - offset < magic.len() as u64 {
            return Ok(false);
        }
        self.file
            .read_exact_at(&mut magic, offset)
            .at(&self.path, "read")?;
        Ok(magic == FRAME_MAGIC)
    }

    /// Offset of the next frame at or after `offset` whose header is sane.
    fn next_frame(&self, mut offset: u64, size: u64) -> Result<Option<u64>, Error> {
        let mut window = vec![0; SEARCH_BYTES];
        while size.saturating_sub(offset) >= FRAME_HEADER_BYTES as u64 {
            let length = (size - offset).min(SEARCH_BYTES as u64) as usize;
            self.file
                .read_exact_at(&mut window[..length], offset)
                .at(&self.path, "read")?;
            let found = window[..length]
                .windows(FRAME_HEADER_BYTES)
                .position(|bytes| FrameHeader::from_bytes(bytes).is_some());
            if let Some(at) = found {
                return Ok(Some(offset + at as u64));
            }
            offset += (length - FRAME_HEADER_BYTES + 1) as u64;
        }
        Ok(None)
    }

    fn note(&mut self, header: &FrameHeader, offset: u64, end: u64) -> Result<(), Error> {
        match header.kind {
            FrameKind::Records => {
                let Some(thread) = self.thread(header.thread) else {
                    self.damaged += 1;
                    return Ok(());
                };
                thread.frames.push(Frame {
                    offset,
                    bytes: (end - offset) as u32,
                    records: header.records,
                    virtual_time: header.virtual_time,
                    time_ns: header.time_ns,
                });
            }
            FrameKind::Events => {
                let Some(frame) = self.read(offset, end - offset)? else {
                    self.damaged += 1;
                    return Ok(());
                };
                let payload = &frame[FRAME_HEADER_BYTES..];
                let is_intact = Events::new(payload).all(|event| {
                    event.is_ok_and(|event| self.note_event(&event, header).is_some())
                });
                self.damaged += u64::from(!is_intact);
            }
        }
        Ok(())
    }

    /// Returns `None` for an impossible thread.
    fn note_event(&mut self, event: &Event, frame: &FrameHeader) -> Option<()> {
        let time_ns = frame.time_ns;
        match *event {
            Event::ThreadStart {
                thread,
                tid,
                cpu,
                started_by,
                virtual_time,
                start_routine: _,
            } => {
                let thread = self.thread(thread)?;
                (thread.tid, thread.cpu, thread.started) = (tid, cpu, true);
                (thread.started_by, thread.start_instructions) = (started_by, virtual_time);
            }
            Event::ThreadEnd {
                thread,
                virtual_time,
                ..
            } => self.thread(thread)?.end_instructions = Some(virtual_time),
            Event::Map {
                protection,
                flags,
                virtual_time,
                address,
                length,
                offset,
                device,
                inode,
                path,
            } => self.mapped.push(Mapped {
                virtual_time,
                time_ns,
                range: (address, address.saturating_add(length)),
                by: Some(Mapping {
                    protection,
                    flags,
                    offset,
                    device,
                    inode,
                    path: nearpage_files::path_to_text(path),
                }),
            }),
            Event::Unmap {
                virtual_time,
                address,
                length,
            } => self.mapped.push(Mapped {
                virtual_time,
                time_ns,
                range: (address, address.saturating_add(length)),
                by: None,
            }),
            // If the new program runs, it begins a file of its own.
            Event::Exec { .. } => self.executed_program = true,
            Event::Fork {
                child,
                virtual_time,
            } => self.forks.push(Fork {
                thread: frame.thread,
                virtual_time,
                child,
            }),
            Event::Counters(counters) => self.counters = Some(counters),
        }
        Some(())
    }

    fn thread(&mut self, number: u32) -> Option<&mut FileThread> {
        if number >= THREADS_MAX {
            return None;
        }
        let number = number as usize;
        if number >= self.threads.len() {
            self.threads.resize_with(number + 1, FileThread::default);
        }
        self.threads.get_mut(number)
    }

    fn read(&self, offset: u64, bytes: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut frame = vec![0; bytes as usize];
        self.file
            .read_exact_at(&mut frame, offset)
            .at(&self.path, "read")?;
        Ok(intact(&frame).then_some(frame))
    }

    /// Reads a frame of records into `buffer`. Returns the payload, or `None` if the checksum is wrong.
    pub(super) fn payload<'a>(
        &self,
        frame: &Frame,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<&'a [u8]>, Error> {
        buffer.resize(frame.bytes as usize, 0);
        self.file
            .read_exact_at(buffer, frame.offset)
            .at(&self.path, "read")?;
        Ok(intact(buffer).then(|| &buffer[FRAME_HEADER_BYTES..]))
    }

    /// Number of threads that were killed: they neither ended nor ran another program.
    pub(super) fn killed(&self) -> usize {
        let killed = |thread: &&FileThread| thread.started && thread.end_instructions.is_none();
        if self.executed_program || self.cut_short() {
            return 0;
        }
        self.threads.iter().filter(killed).count()
    }

    /// Whether the file was cut short, so that its threads' last actions are missing.
    pub(super) fn cut_short(&self) -> bool {
        self.counters.is_none()
    }
}

/// Like [`FrameHeader::intact`], with a faster CRC-32.
fn intact(frame: &[u8]) -> bool {
    frame
        .split_at_checked(8)
        .is_some_and(|(head, rest)| head[4..] == crc32fast::hash(rest).to_le_bytes())
}
