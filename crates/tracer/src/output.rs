//! The trace's file: one per process, to which every thread appends whole frames.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use nearpage_wire::trace::{
    COUNTERS, ENDED_FILE, EVENT_BYTES_MAX, Encoder, Event, FRAME_COUNTS_OFFSET, FRAME_HEADER_BYTES,
    FileHeader, FrameHeader, FrameKind, OPEN_COUNTERS_BYTES, RECORD_BYTES_MAX, Record, Reference,
    open_counters_words,
};

use crate::messages;
use crate::system::{self, Memory};

/// Bytes of a thread's buffer: a frame with its header, and the thread's counters.
pub const FRAME_BYTES: usize = 128 << 10;

/// The trace's file.
pub struct Output {
    path: PathBuf,
    file: Mutex<Option<Open>>,
    stopped: AtomicBool,
    /// Records that could not be written.
    pub dropped: AtomicU64,
}

struct Open {
    file: File,
    device: u64,
    inode: u64,
}

/// Has the recording in this file's folder ended?
fn is_over(path: &Path) -> bool {
    path.with_file_name(ENDED_FILE).exists()
}

/// Makes a file of the trace, unless the recording has ended. That is asked again after the file was made: either the
/// recorder, which marks the end, sees the file, or this does not leave one behind.
fn make(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    if is_over(path) {
        return Err(ErrorKind::NotFound.into());
    }
    let file = options.create_new(true).open(path)?;
    if is_over(path) {
        let _ = std::fs::remove_file(path);
        return Err(ErrorKind::NotFound.into());
    }
    Ok(file)
}

impl Output {
    /// Makes the file.
    ///
    /// # Errors
    /// The folder can't be written to.
    pub fn create(folder: &Path, header: &FileHeader) -> std::io::Result<Self> {
        let name = format!("trace-{}-{}.trace", header.pid, header.start_ns);
        let path = folder.join(name);
        let mut file = make(&path, OpenOptions::new().append(true))?;
        let header = header.to_bytes();
        system::refuse_beyond_limit(header.len() as u64)?;
        file.write_all(&header)?;
        let open = Open::new(file)?;
        Ok(Self {
            path,
            file: Mutex::new(Some(open)),
            stopped: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
        })
    }

    /// Has writing ended?
    pub fn stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }

    fn append(&self, frame: &[u8], records: u64) {
        if !self.stopped() {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            match self.write(&mut file, frame) {
                Ok(()) => return,
                Err(_) if self.stopped() => {}
                Err(error) => {
                    self.stopped.store(true, Relaxed);
                    let path = self.path.display();
                    messages::say(format_args!(
                        "no more of the trace is written: {path}: {error}"
                    ));
                }
            }
        }
        self.dropped.fetch_add(records, Relaxed);
    }

    fn write(&self, open: &mut Option<Open>, frame: &[u8]) -> std::io::Result<()> {
        if is_over(&self.path) {
            return Err(ErrorKind::NotFound.into());
        }
        // Some programs close every descriptor, and other files may get this number then.
        let mut current = match open.take() {
            Some(open) if open.is_ours() => open,
            other => {
                // The descriptor is now the program's, which closes it.
                other.map(|open| std::mem::ManuallyDrop::new(open.file));
                Open::new(OpenOptions::new().append(true).open(&self.path)?)?
            }
        };
        let written = current.file.metadata()?.len();
        system::refuse_beyond_limit(written + frame.len() as u64)?;
        let mut rest = frame;
        while !rest.is_empty() {
            match current.file.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        *open = Some(current);
        Ok(())
    }

    /// Writes an event in a frame of its own.
    pub fn event(&self, thread: u32, virtual_time: u64, event: &Event) {
        let mut frame = vec![0; FRAME_HEADER_BYTES + EVENT_BYTES_MAX];
        let room = frame.get_mut(FRAME_HEADER_BYTES..).unwrap_or_default();
        let bytes = event.encode(room);
        frame.truncate(FRAME_HEADER_BYTES + bytes);
        let header = FrameHeader {
            kind: FrameKind::Events,
            thread,
            records: 1,
            payload_bytes: bytes as u32,
            virtual_time,
            time_ns: system::now_ns(),
        };
        header.seal(&mut frame);
        self.append(&frame, 0);
    }
}

impl Open {
    fn new(file: File) -> std::io::Result<Self> {
        let file = system::out_of_the_way(file);
        let metadata = file.metadata()?;
        Ok(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            file,
        })
    }

    fn is_ours(&self) -> bool {
        let metadata = self.file.metadata();
        metadata.is_ok_and(|now| (now.dev(), now.ino()) == (self.device, self.inode))
    }
}

/// Maps a new file. `None` if the disk has no room, or the recording has ended.
fn mapped(path: &Path, bytes: usize) -> Option<Memory> {
    let file = make(path, OpenOptions::new().read(true).write(true)).ok()?;
    let memory = Memory::new(Some(&file), bytes);
    if memory.is_none() {
        // On a full disk the rest of the trace has no room either.
        let _ = std::fs::remove_file(path);
    }
    memory
}

/// Keeps the counters at the end of an `.open` file.
fn write_counters(memory: &mut Memory, counters: &[u64; COUNTERS]) {
    let Some(at) = memory.len().checked_sub(OPEN_COUNTERS_BYTES) else {
        return;
    };
    // The magic is written last: a reader that finds it has all other words.
    for (number, word) in open_counters_words(counters).iter().enumerate().rev() {
        memory.publish(at + 8 * number, *word);
    }
}

/// The counters of threads that have ended, kept in a file as well, in case the process is killed.
pub struct Totals {
    /// The sums.
    pub counters: [u64; COUNTERS],
    open: Option<(PathBuf, Memory)>,
}

impl Totals {
    /// Totals of which nothing is counted yet.
    pub fn new(output: &Output) -> Self {
        let path = output.path.with_extension("open");
        let mut totals = Self {
            counters: [0; COUNTERS],
            open: mapped(&path, OPEN_COUNTERS_BYTES).map(|memory| (path, memory)),
        };
        totals.add(&mut [0; COUNTERS]);
        totals
    }

    /// Adds a thread's counters, and sets those to 0.
    pub fn add(&mut self, counters: &mut [u64; COUNTERS]) {
        for (total, counter) in self.counters.iter_mut().zip(counters) {
            *total += std::mem::take(counter);
        }
        if let Some((_, memory)) = &mut self.open {
            write_counters(memory, &self.counters);
        }
    }

    /// Removes the file: the process has ended, or the totals are incomplete.
    pub fn close(&mut self) {
        if let Some((path, _)) = self.open.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// One thread's stream of records.
pub struct Stream {
    thread: u32,
    encoder: Box<Encoder>,
    frame: Memory,
    /// The path of the frame's file, if it has one.
    open: Option<PathBuf>,
    filled: usize,
    records: u32,
    /// Virtual time and CLOCK_MONOTONIC at which the frame began.
    began: (u64, u64),
    /// Instructions of the thread at its previous record.
    last: u64,
    /// Records in the frames written.
    total: u64,
}

impl Stream {
    /// The stream of a thread that begins at this virtual time. `None` if no memory is left.
    pub fn new(output: &Output, thread: u32, virtual_time: u64) -> Option<Self> {
        let path = output.path.with_extension(format!("{thread}.open"));
        let own = mapped(&path, FRAME_BYTES);
        let open = own.is_some().then_some(path);
        let mut stream = Self {
            thread,
            encoder: Box::new(Encoder::new()),
            frame: own.or_else(|| Memory::new(None, FRAME_BYTES))?,
            open,
            filled: 0,
            records: 0,
            began: (0, 0),
            last: 0,
            total: 0,
        };
        stream.begin(virtual_time);
        Some(stream)
    }

    fn begin(&mut self, virtual_time: u64) {
        self.filled = FRAME_HEADER_BYTES;
        self.records = 0;
        self.began = (virtual_time, system::now_ns());
        let header = self.header();
        header.begin(&mut self.frame);
    }

    fn header(&self) -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Records,
            thread: self.thread,
            records: self.records,
            payload_bytes: (self.filled - FRAME_HEADER_BYTES) as u32,
            virtual_time: self.began.0,
            time_ns: self.began.1,
        }
    }

    /// Is the frame kept in a file?
    pub fn has_file(&self) -> bool {
        self.open.is_some()
    }

    /// Instructions of the thread at its latest record.
    #[inline]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Records so far.
    pub fn count(&self) -> u64 {
        self.total + u64::from(self.records)
    }

    /// Writes the thread's counters into the file, in case the process is killed.
    pub fn keep_counters(&mut self, counters: &[u64; COUNTERS]) {
        write_counters(&mut self.frame, counters);
    }

    /// Removes the file: the thread ends, and everything is in the trace.
    pub fn end(&mut self) {
        if let Some(path) = self.open.take() {
            let _ = std::fs::remove_file(path);
        }
    }

    /// Adds a record at `instructions` of the thread, which is at `virtual_time` then.
    pub fn add(&mut self, output: &Output, instructions: u64, virtual_time: u64, record: &Record) {
        let since = instructions.wrapping_sub(self.last);
        let room = self.frame.get_mut(self.filled..).unwrap_or_default();
        let bytes = self.encoder.encode(room, since, record);
        self.added(bytes, output, instructions, virtual_time);
    }

    /// Adds the record of a reference in the same way.
    #[inline]
    pub fn reference(
        &mut self,
        output: &Output,
        instructions: u64,
        virtual_time: u64,
        reference: &Reference,
    ) {
        let since = instructions.wrapping_sub(self.last);
        let room = self.frame.get_mut(self.filled..).unwrap_or_default();
        let bytes = self.encoder.encode_reference(room, since, reference);
        self.added(bytes, output, instructions, virtual_time);
    }

    #[inline]
    fn added(&mut self, bytes: usize, output: &Output, instructions: u64, virtual_time: u64) {
        self.last = instructions;
        self.filled += bytes;
        self.records += 1;
        let payload_bytes = (self.filled - FRAME_HEADER_BYTES) as u64;
        let counts = payload_bytes << 32 | u64::from(self.records);
        self.frame.publish(FRAME_COUNTS_OFFSET, counts);
        if self.filled + RECORD_BYTES_MAX > FRAME_BYTES - OPEN_COUNTERS_BYTES {
            self.flush(output, virtual_time);
        }
    }

    /// Writes the frame, and begins the next one at the previous record.
    #[cold]
    pub fn flush(&mut self, output: &Output, virtual_time: u64) {
        if self.records > 0 {
            let header = self.header();
            if let Some(frame) = self.frame.get_mut(..self.filled) {
                header.seal(frame);
                output.append(frame, u64::from(self.records));
            }
        }
        self.total += u64::from(self.records);
        self.encoder.restart();
        self.begin(virtual_time);
    }
}
