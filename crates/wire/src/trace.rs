//! The trace: what the tracer, a plugin inside the emulator, writes while the program runs.
//!
//! One file per program image, `trace-PID-START.trace` in the trace folder: PID in decimal, START the
//! CLOCK_MONOTONIC nanoseconds at which the image began (a `fork` begins a new one). Each thread's
//! records are a stream of their own, cut into frames; a frame is decoded without the ones before it.
//!
//! Time inside a thread is counted in its own instructions. *Virtual time* is common to the threads
//! of a process: they advance together, a quantum of instructions at a time, and a thread that was
//! blocked goes on at the virtual time at which it was woken.
//!
//! # File (version 1)
//! All integers are little-endian; a *varint* is the usual base-128 number, low bits first.
//!
//! ```text
//! offset size
//!      0    8  magic "NPTRACE\x01"
//!      8    4  pid
//!     12    4  page_bytes
//!     16    4  line_bytes
//!     20    4  sample_period     mean references between two samples; 0: none are taken
//!     24    8  start_ns          CLOCK_MONOTONIC, as in the name
//!     32    4  quantum           instructions
//!     36    4  parent_pid        of a forked child; 0 otherwise
//!     40   24  zero
//!     64       frames, back to back
//! ```
//!
//! # Frame
//! ```text
//!      0    4  magic "NPFT"
//!      4    4  checksum          CRC-32 (IEEE) of everything after this field, payload included
//!      8    4  kind              1 records of one thread, 2 events
//!     12    4  thread            order of creation in the process; of events, the thread that caused them
//!     16    4  records           or events
//!     20    4  payload_bytes
//!     24    8  virtual_time      in instructions: what the first record counts its instructions from
//!     32    8  time_ns           CLOCK_MONOTONIC of that moment
//!     40       payload
//! ```
//! A thread's frames are in its order. An event stands in the file before any frame written later by
//! its own thread only: order events by their virtual time.
//!
//! # Unfinished frames
//! While a thread fills a frame of records, that is in a file of its own beside the trace,
//! `trace-PID-START.THREAD.open`, mapped, so that it outlives a process that is killed or runs
//! another program. It is a frame with the checksum 0 whose `records` and `payload_bytes` say what is
//! there so far (bytes beyond that may be anything). The thread removes it when it ends. Whoever
//! started the program appends those that are left to their traces ([`finish_frame`]).
//!
//! The file's last 512 bytes are what the thread has counted so far, as of some references before
//! the last record: magic "NPCT", `u32` how many, values in the order of [`Counter`]. The same of all threads
//! that ended is, alone, in `trace-PID-START.open`, which is removed when the process ends; it is
//! not there where some thread has no file. So a process that is killed has its totals, too.
//!
//! # Records
//! Predictors start afresh, all zero, in each frame: `successor`, by the instruction before, the
//! instruction that came next; and by instruction, its last address, stride and
//! instructions-since. Both are tables without tags, indexed by [`Encoder`]'s hash. A write-back
//! has entries of its own beside its instruction's.
//!
//! Header byte: bits 0–2 [`Served`], 3–4 [`ReferenceKind`], 5 TLB miss, 6 the instruction is as
//! predicted, 7 the instructions since are. Then what is not predicted:
//!
//! 1. the instruction: varint of zigzag(instruction − the instruction before);
//! 2. instructions since the thread's previous record (or the frame's start): varint;
//! 3. always, the address: difference d to the prediction, which is the instruction for a fetch and
//!    (last address + stride) otherwise; the value is zigzag(d ÷ 8) and the tag 1 where 8
//!    divides d, zigzag(d) and tag 0 elsewhere. First byte: bit 0 the tag, bits 1–6 the value's low
//!    six, bit 7 whether a varint with the rest follows.
//!
//! Low bits 7 announce an extension, bits 3–7 its kind. Then instructions since: varint. Then:
//!
//! | extension | fields (varints; addresses as zigzag of the difference to the instruction before) |
//! | --- | --- |
//! | 0 Reference | one byte: bits 0–2 served, 3–4 kind, 5 TLB miss, 6 sampled, 7 kernel; instruction; address as in 3 above |
//! | 1 FirstTouch | instruction; zigzag(address − instruction) |
//! | 2 Signal | sequence (from 2^47 on of all processes together: a pipe was written to or closed); futex address |
//! | 3 Resume | after (a signal; 2^48 + pid for the end of a child process); futex address; waited instructions |
//! | 4 Clock | time_ns |
//! | 5 Move | CPU position |
//! | 6 Mark | 1 begin, 2 end |
//! | 7 Preempted | waited instructions |
//!
//! # Events
//! One byte kind, then fields: `u32` for thread, tid, CPU and protection, flags, `u64` for the rest.
//!
//! | kind | fields |
//! | --- | --- |
//! | 1 ThreadStart | thread, tid, CPU position, started_by, virtual_time, start_routine |
//! | 2 ThreadEnd | thread, virtual_time, instructions |
//! | 3 Map | protection, flags, virtual_time, address, length, offset, device, inode, `u16` length of the path, path |
//! | 4 Unmap | virtual_time, address, length |
//! | 5 Exec | virtual_time |
//! | 6 Fork | child's pid (`u32`), virtual_time |
//! | 7 Counters | `u16` how many, values in the order of [`Counter`] |
//!
//! Counters are written at the program's end, and before `exec` (should that fail, again at the end), and,
//! of a process that was killed, by whoever started it: the last ones count, and a file without
//! them was cut short.

use crate::checksum::crc32;

/// What a reference does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReferenceKind {
    /// Reads.
    Load = 0,
    /// Writes, or reads and writes.
    Store = 1,
    /// An instruction fetch.
    Fetch = 2,
}

/// What served a reference, or what else the caches had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Served {
    /// First-level cache: a sample of all references, or a TLB miss alone.
    L1 = 0,
    /// Second-level cache.
    L2 = 1,
    /// Last-level cache that the CPUs of a node share.
    L3 = 2,
    /// Memory, wherever the page is.
    Memory = 3,
    /// Another CPU's cache held the line modified.
    OtherCache = 4,
    /// A store to a line held shared: no data moves, the other copies are invalidated.
    Upgrade = 5,
    /// A modified line was evicted: nobody waits for it. Its address is the line's.
    WriteBack = 6,
}

/// One reference that the caches let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Virtual address.
    pub address: u64,
    /// Address of the instruction; of a write-back, the one whose reference evicted the line.
    pub instruction: u64,
    /// Load, store or fetch.
    pub kind: ReferenceKind,
    /// What served it.
    pub served: Served,
    /// It missed the TLB.
    pub tlb_miss: bool,
    /// It is one of the periodic sample of all references (and may be a miss as well).
    pub sampled: bool,
    /// Made by the kernel.
    pub kernel: bool,
}

/// One record of a thread's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A reference.
    Reference(Reference),
    /// The process touches this page for the first time since it was mapped. Comes before the
    /// reference, and before the begin marker too.
    FirstTouch {
        /// Some address in the page.
        address: u64,
        /// The instruction.
        instruction: u64,
    },
    /// From here on other threads may go on (`futex` wake, a new thread, the end of a thread; a write
    /// to a pipe or its closing, in any process).
    Signal {
        /// Number of the signal in the process, from 1; of a pipe, above [`PIPE_SIGNAL`].
        sequence: u64,
        /// The futex's address; 0 where it is none.
        address: u64,
    },
    /// The thread was blocked and goes on.
    Resume {
        /// The signal that let it; from [`CHILD_ENDED`] on, the end of a child process; 0: something
        /// outside (a timer, a file, a socket).
        after: u64,
        /// The futex's address; 0 where it was none.
        address: u64,
        /// Virtual time spent blocked, in instructions.
        waited_instructions: u64,
    },
    /// The clock was read: ties virtual time to CLOCK_MONOTONIC.
    Clock {
        /// CLOCK_MONOTONIC.
        time_ns: u64,
    },
    /// The thread goes on on another CPU of the machine (position among the setup's CPUs).
    Move {
        /// Position of the CPU.
        cpu: u32,
    },
    /// `nearpage_begin` (true) or `nearpage_end`.
    Mark {
        /// Begin or end.
        begin: bool,
    },
    /// Another thread had the CPU meanwhile.
    Preempted {
        /// Virtual time without the CPU, in instructions.
        waited_instructions: u64,
    },
}

/// Signals that threads of other processes may wait for are numbered from here on, for all processes
/// of the recording together; a process's own have lower numbers.
pub const PIPE_SIGNAL: u64 = 1 << 47;

/// Beside the traces, while the program runs: what its processes tell each other of pipes.
pub const SIGNALS_FILE: &str = "signals.shared";

/// What a thread goes on after, where that is the end of a child process: this + its pid. Signals have
/// lower numbers.
pub const CHILD_ENDED: u64 = 1 << 48;

/// `prctl` option, of no meaning to any kernel, by which the preload library tells the tracer of
/// `nearpage_begin` (second argument 1) and `nearpage_end` (2).
pub const MARK_OPTION: u64 = 0x4e50_4d4b;
/// First eight bytes of a trace; the last is the version.
pub const FILE_MAGIC: [u8; 8] = *b"NPTRACE\x01";
/// Bytes of the file's header.
pub const FILE_HEADER_BYTES: usize = 64;
/// First four bytes of a frame.
pub const FRAME_MAGIC: [u8; 4] = *b"NPFT";
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 40;
/// Where, in a frame, `records` and `payload_bytes` are: the low and the high half of one word.
pub const FRAME_COUNTS_OFFSET: usize = 16;
/// Largest payload that a writer makes; a header that claims more is damaged.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// No record takes more bytes.
pub const RECORD_BYTES_MAX: usize = 64;

/// The file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Process.
    pub pid: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of a cache line.
    pub line_bytes: u32,
    /// Mean number of references between two samples; 0: none are taken.
    pub sample_period: u32,
    /// CLOCK_MONOTONIC at which the image began.
    pub start_ns: u64,
    /// Instructions that threads advance together.
    pub quantum: u32,
    /// Process that forked this one; 0: none that was traced.
    pub parent_pid: u32,
}

impl FileHeader {
    /// The bytes.
    pub fn to_bytes(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = [0; FILE_HEADER_BYTES];
        let mut out = Output::new(&mut bytes);
        out.put(&FILE_MAGIC);
        out.u32(self.pid);
        out.u32(self.page_bytes);
        out.u32(self.line_bytes);
        out.u32(self.sample_period);
        out.u64(self.start_ns);
        out.u32(self.quantum);
        out.u32(self.parent_pid);
        bytes
    }

    /// Reads the header that `bytes` begin with; `None`: it is no trace of this version.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut input = Input { bytes };
        if input.take(8)? != FILE_MAGIC {
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
        };
        input.take(24)?;
        let sane = header.page_bytes.is_power_of_two() && header.line_bytes.is_power_of_two();
        sane.then_some(header)
    }
}

/// What a frame's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FrameKind {
    /// [`Record`]s of one thread.
    Records = 1,
    /// [`Event`]s.
    Events = 2,
}

/// A frame's header, without magic and checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// What follows.
    pub kind: FrameKind,
    /// Thread, by order of creation in the process.
    pub thread: u32,
    /// Records or events in the payload.
    pub records: u32,
    /// Bytes after the header.
    pub payload_bytes: u32,
    /// Virtual time, in instructions, that the first record counts its instructions from.
    pub virtual_time: u64,
    /// CLOCK_MONOTONIC of that moment.
    pub time_ns: u64,
}

impl FrameHeader {
    /// Writes header and checksum in front of the payload: `frame` is the header's room and the
    /// payload, of which `payload_bytes` is taken from its length. A frame too short for a header
    /// is left alone.
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

    /// Writes the header, its checksum 0, over the beginning of an unfinished frame.
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

    /// Reads the frame's header that `bytes` begin with; `None`: there is none, whole and sane.
    /// The checksum is [`Self::intact`]'s.
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
        // A record or an event takes a byte at least.
        let sane = header.payload_bytes as usize <= PAYLOAD_BYTES_MAX
            && header.records <= header.payload_bytes;
        sane.then_some(header)
    }

    /// Are header and payload of `frame` (both, nothing else) as they were written?
    pub fn intact(frame: &[u8]) -> bool {
        match frame.split_at_checked(8) {
            Some((head, rest)) => head[4..] == crc32(rest).to_le_bytes(),
            None => false,
        }
    }
}

/// Finishes a frame that its thread did not: seals what `file`, an `.open` file, says is there, and
/// returns it; `None`: no record is.
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

/// The words that [`open_counters`] reads, to be written in this order to zeros, but for the first, which
/// comes last.
pub fn open_counters_words(counters: &[u64; COUNTERS]) -> [u64; 1 + COUNTERS] {
    let mut words = [0; 1 + COUNTERS];
    words[0] = (COUNTERS as u64) << 32 | u64::from(OPEN_COUNTERS_MAGIC);
    words[1..].copy_from_slice(counters);
    words
}

/// The counters in `file`, an `.open` file; `None`: there are none.
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

/// Rows of each predictor table.
const ROWS: usize = 512;

#[derive(Clone, Copy)]
struct Row {
    last_address: u64,
    /// Of the last two references; it predicts once it has come twice.
    stride: i32,
    /// Instructions since the record before, and in bit 31 whether the stride has come twice.
    since: u32,
}

const TWICE: u32 = 1 << 31;

/// What writer and reader both know of a frame so far.
struct Predictors {
    successor: [u64; ROWS],
    rows: [Row; ROWS],
    /// Instruction of the record before.
    instruction: u64,
    /// Where its successor is kept.
    place: usize,
}

/// A row for an instruction; a write-back has one beside it.
fn row_of(instruction: u64, served: u8) -> usize {
    let write_back = u64::from(served == Served::WriteBack as u8);
    ((instruction << 1 | write_back).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % ROWS
}

impl Predictors {
    const fn new() -> Self {
        Self {
            successor: [0; ROWS],
            rows: [Row {
                last_address: 0,
                stride: 0,
                since: 0,
            }; ROWS],
            instruction: 0,
            place: 0,
        }
    }

    fn address(row: &Row, instruction: u64, kind: u8) -> u64 {
        if kind == ReferenceKind::Fetch as u8 {
            return instruction;
        }
        let stride = if row.since & TWICE != 0 {
            i64::from(row.stride)
        } else {
            0
        };
        row.last_address.wrapping_add_signed(stride)
    }

    fn learn(&mut self, row: usize, instruction: u64, address: u64, since: u64) {
        self.successor[self.place % ROWS] = instruction;
        self.place = row;
        self.instruction = instruction;
        let row = &mut self.rows[row];
        let stride = address.wrapping_sub(row.last_address) as i64;
        let known = stride == i64::from(row.stride);
        row.stride = i32::try_from(stride).unwrap_or(0);
        row.last_address = address;
        row.since = since as u32 & !TWICE | if known { TWICE } else { 0 };
    }
}

fn zigzag(difference: u64) -> u64 {
    let difference = difference as i64;
    (difference << 1 ^ difference >> 63) as u64
}

fn unzigzag(value: u64) -> u64 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

/// Turns a thread's records into bytes: one per frame.
///
/// ```
/// use nearpage_wire::trace::{Decoder, Encoder, RECORD_BYTES_MAX, Record};
///
/// let mut payload = [0; 2 * RECORD_BYTES_MAX];
/// let mut encoder = Encoder::new();
/// let bytes = encoder.encode(&mut payload, 12, &Record::Mark { begin: true });
///
/// let mut decoder = Decoder::new(&payload[..bytes]);
/// assert_eq!(decoder.next(), Some(Ok((12, Record::Mark { begin: true }))));
/// assert_eq!(decoder.next(), None);
/// ```
pub struct Encoder {
    predictors: Predictors,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Of a new frame.
    pub const fn new() -> Self {
        Self {
            predictors: Predictors::new(),
        }
    }

    /// Forgets everything: a new frame begins.
    pub fn restart(&mut self) {
        self.predictors = Predictors::new();
    }

    /// Puts a record, `since` instructions after the thread's previous one, at the beginning of
    /// `out`. Returns its bytes; 0, and nothing is learnt, if `out` is shorter than
    /// [`RECORD_BYTES_MAX`].
    #[inline]
    pub fn encode(&mut self, out: &mut [u8], since: u64, record: &Record) -> usize {
        if let Record::Reference(reference) = record {
            return self.encode_reference(out, since, reference);
        }
        let Some(out) = out.first_chunk_mut() else {
            return 0;
        };
        let mut out = Room { bytes: out, at: 0 };
        self.extension(&mut out, since, record);
        out.at
    }

    /// The same for a reference.
    #[inline]
    pub fn encode_reference(&mut self, out: &mut [u8], since: u64, reference: &Reference) -> usize {
        let Some(out) = out.first_chunk_mut() else {
            return 0;
        };
        let mut out = Room { bytes: out, at: 0 };
        if reference.sampled || reference.kernel {
            self.extension(&mut out, since, &Record::Reference(*reference));
            return out.at;
        }
        let predictors = &mut self.predictors;
        let (kind, served) = (reference.kind as u8, reference.served as u8);
        let row_number = row_of(reference.instruction, served);
        let row = &predictors.rows[row_number];
        let instruction_known =
            predictors.successor[predictors.place % ROWS] == reference.instruction;
        let since_known = u64::from(row.since & !TWICE) == since;
        out.byte(
            served
                | kind << 3
                | u8::from(reference.tlb_miss) << 5
                | u8::from(instruction_known) << 6
                | u8::from(since_known) << 7,
        );
        if !instruction_known {
            let difference = reference.instruction.wrapping_sub(predictors.instruction);
            out.varint(zigzag(difference));
        }
        if !since_known {
            out.varint(since);
        }
        out.address(
            reference.address,
            Predictors::address(row, reference.instruction, kind),
        );
        predictors.learn(row_number, reference.instruction, reference.address, since);
        out.at
    }

    #[cold]
    fn extension(&mut self, out: &mut Room, since: u64, record: &Record) {
        let before = self.predictors.instruction;
        let mut fields = |number: u8, fields: &[u64]| {
            out.byte(7 | number << 3);
            out.varint(since);
            fields.iter().for_each(|field| out.varint(*field));
        };
        match *record {
            Record::Reference(reference) => {
                let (kind, served) = (reference.kind as u8, reference.served as u8);
                fields(0, &[]);
                out.byte(
                    served
                        | kind << 3
                        | u8::from(reference.tlb_miss) << 5
                        | u8::from(reference.sampled) << 6
                        | u8::from(reference.kernel) << 7,
                );
                out.varint(zigzag(reference.instruction.wrapping_sub(before)));
                let row = row_of(reference.instruction, served);
                let prediction =
                    Predictors::address(&self.predictors.rows[row], reference.instruction, kind);
                out.address(reference.address, prediction);
                self.predictors
                    .learn(row, reference.instruction, reference.address, since);
            }
            Record::FirstTouch {
                address,
                instruction,
            } => fields(
                1,
                &[
                    zigzag(instruction.wrapping_sub(before)),
                    zigzag(address.wrapping_sub(instruction)),
                ],
            ),
            Record::Signal { sequence, address } => fields(2, &[sequence, address]),
            Record::Resume {
                after,
                address,
                waited_instructions,
            } => fields(3, &[after, address, waited_instructions]),
            Record::Clock { time_ns } => fields(4, &[time_ns]),
            Record::Move { cpu } => fields(5, &[u64::from(cpu)]),
            Record::Mark { begin } => fields(6, &[if begin { 1 } else { 2 }]),
            Record::Preempted {
                waited_instructions,
            } => fields(7, &[waited_instructions]),
        }
    }
}

/// A payload that no writer made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

/// The records of a frame, each with the instructions since the one before it. Ends at damage.
pub struct Decoder<'a> {
    input: Input<'a>,
    predictors: Predictors,
}

impl<'a> Decoder<'a> {
    /// Of a frame's payload.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            input: Input { bytes: payload },
            predictors: Predictors::new(),
        }
    }

    /// Bytes not decoded yet.
    pub const fn rest(&self) -> usize {
        self.input.bytes.len()
    }

    #[inline]
    fn record(&mut self, head: u8) -> Option<(u64, Record)> {
        if head & 7 == 7 {
            return self.extension(head >> 3);
        }
        let (input, predictors) = (&mut self.input, &mut self.predictors);
        let served = served(head & 7)?;
        let kind = reference_kind(head >> 3 & 3)?;
        let instruction = if head & 1 << 6 != 0 {
            predictors.successor[predictors.place]
        } else {
            let difference = unzigzag(input.varint()?);
            predictors.instruction.wrapping_add(difference)
        };
        let row_number = row_of(instruction, served as u8);
        let row = &predictors.rows[row_number];
        let since = if head & 1 << 7 != 0 {
            u64::from(row.since & !TWICE)
        } else {
            input.varint()?
        };
        let address = input.address(Predictors::address(row, instruction, kind as u8))?;
        predictors.learn(row_number, instruction, address, since);
        let reference = Reference {
            address,
            instruction,
            kind,
            served,
            tlb_miss: head & 1 << 5 != 0,
            sampled: false,
            kernel: false,
        };
        Some((since, Record::Reference(reference)))
    }

    #[cold]
    fn extension(&mut self, number: u8) -> Option<(u64, Record)> {
        let (input, predictors) = (&mut self.input, &mut self.predictors);
        let before = predictors.instruction;
        let since = input.varint()?;
        let record = match number {
            0 => {
                let head = *input.take(1)?.first()?;
                let (served, kind) = (served(head & 7)?, reference_kind(head >> 3 & 3)?);
                let instruction = before.wrapping_add(unzigzag(input.varint()?));
                let row = row_of(instruction, served as u8);
                let prediction =
                    Predictors::address(&predictors.rows[row], instruction, kind as u8);
                let address = input.address(prediction)?;
                predictors.learn(row, instruction, address, since);
                Record::Reference(Reference {
                    address,
                    instruction,
                    kind,
                    served,
                    tlb_miss: head & 1 << 5 != 0,
                    sampled: head & 1 << 6 != 0,
                    kernel: head & 1 << 7 != 0,
                })
            }
            1 => {
                let instruction = before.wrapping_add(unzigzag(input.varint()?));
                Record::FirstTouch {
                    address: instruction.wrapping_add(unzigzag(input.varint()?)),
                    instruction,
                }
            }
            2 => Record::Signal {
                sequence: input.varint()?,
                address: input.varint()?,
            },
            3 => Record::Resume {
                after: input.varint()?,
                address: input.varint()?,
                waited_instructions: input.varint()?,
            },
            4 => Record::Clock {
                time_ns: input.varint()?,
            },
            5 => Record::Move {
                cpu: u32::try_from(input.varint()?).ok()?,
            },
            6 => Record::Mark {
                begin: match input.varint()? {
                    1 => true,
                    2 => false,
                    _ => return None,
                },
            },
            7 => Record::Preempted {
                waited_instructions: input.varint()?,
            },
            _ => return None,
        };
        Some((since, record))
    }
}

impl Iterator for Decoder<'_> {
    type Item = Result<(u64, Record), Damaged>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (head, rest) = self.input.bytes.split_first()?;
        self.input.bytes = rest;
        let record = self.record(*head);
        if record.is_none() {
            self.input.bytes = &[];
        }
        Some(record.ok_or(Damaged))
    }
}

fn served(number: u8) -> Option<Served> {
    Some(match number {
        0 => Served::L1,
        1 => Served::L2,
        2 => Served::L3,
        3 => Served::Memory,
        4 => Served::OtherCache,
        5 => Served::Upgrade,
        6 => Served::WriteBack,
        _ => return None,
    })
}

fn reference_kind(number: u8) -> Option<ReferenceKind> {
    Some(match number {
        0 => ReferenceKind::Load,
        1 => ReferenceKind::Store,
        2 => ReferenceKind::Fetch,
        _ => return None,
    })
}

/// What is counted over a process; the order in a Counters event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
#[allow(missing_docs)]
pub enum Counter {
    Instructions = 0,
    Loads,
    Stores,
    /// Cache lines of the translation blocks that ran.
    FetchedLines,
    DataL1Misses,
    FetchL1Misses,
    L2Hits,
    L3Hits,
    MemoryServed,
    OtherCacheServed,
    Upgrades,
    WriteBacks,
    /// Copies in other CPUs' caches that a store took away.
    Invalidations,
    DataTlbMisses,
    FetchTlbMisses,
    /// First-level TLB misses that the second level served: no record says so.
    SecondTlbHits,
    FirstTouches,
    Samples,
    Records,
    /// Records that could not be written (a full disk).
    RecordsDropped,
    /// Times that a thread was left out of the lockstep because it slept where nobody knew why.
    LeftLockstep,
    /// Quanta in which a thread ran one small loop without a store to the end: it spun.
    SpunQuanta,
    /// Programs started by `exec`: attempts, failed ones too.
    Execs,
    Forks,
    /// Programs that `exec` was to begin and that could not be traced.
    UntracedPrograms,
}

/// How many [`Counter`]s there are.
pub const COUNTERS: usize = Counter::UntracedPrograms as usize + 1;

/// Something outside a thread's stream of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A thread made its first step.
    ThreadStart {
        /// Order of creation in the process, from 0. A creation that failed leaves a gap.
        thread: u32,
        /// Its thread id.
        tid: u32,
        /// Position of its CPU among the setup's.
        cpu: u32,
        /// Signal that let it start; 0 for a process's first.
        started_by: u64,
        /// In instructions.
        virtual_time: u64,
        /// Address at which its code began; 0: unknown.
        start_routine: u64,
    },
    /// A thread ended.
    ThreadEnd {
        /// Which.
        thread: u32,
        /// In instructions.
        virtual_time: u64,
        /// Instructions that it ran.
        instructions: u64,
    },
    /// Memory was mapped; over what was there before.
    Map {
        /// `PROT_…`.
        protection: u32,
        /// `MAP_…` of the call; of initial mappings `MAP_SHARED` or `MAP_PRIVATE` alone.
        flags: u32,
        /// In instructions.
        virtual_time: u64,
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
        /// Offset in the file.
        offset: u64,
        /// Device of the file (`st_dev`); 0, with the inode: no file.
        device: u64,
        /// Inode of the file.
        inode: u64,
        /// Path of the file, or as in a maps file.
        path: &'a [u8],
    },
    /// Memory was unmapped.
    Unmap {
        /// In instructions.
        virtual_time: u64,
        /// First byte.
        address: u64,
        /// Bytes.
        length: u64,
    },
    /// The thread asked to run another program; if nothing follows it did.
    Exec {
        /// In instructions.
        virtual_time: u64,
    },
    /// The process forked.
    Fork {
        /// The child.
        child: u32,
        /// In instructions.
        virtual_time: u64,
    },
    /// Totals at the end; those that the writer did not know yet are 0.
    Counters([u64; COUNTERS]),
}

/// Longest path kept of a mapping, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// No event takes more bytes.
pub const EVENT_BYTES_MAX: usize = PATH_BYTES_MAX + 128;

impl<'a> Event<'a> {
    /// Puts the event at the beginning of `out`; returns its bytes, 0 if there is no room. Of a
    /// path, [`PATH_BYTES_MAX`] bytes are kept.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        let mut out = Output::new(out);
        match *self {
            Self::ThreadStart {
                thread,
                tid,
                cpu,
                started_by,
                virtual_time,
                start_routine,
            } => out.event(
                1,
                &[thread, tid, cpu],
                &[started_by, virtual_time, start_routine],
            ),
            Self::ThreadEnd {
                thread,
                virtual_time,
                instructions,
            } => out.event(2, &[thread], &[virtual_time, instructions]),
            Self::Map {
                protection,
                flags,
                virtual_time,
                address,
                length,
                offset,
                device,
                inode,
                path,
            } => {
                out.event(
                    3,
                    &[protection, flags],
                    &[virtual_time, address, length, offset, device, inode],
                );
                let path = &path[..path.len().min(PATH_BYTES_MAX)];
                out.put(&(path.len() as u16).to_le_bytes());
                out.put(path);
            }
            Self::Unmap {
                virtual_time,
                address,
                length,
            } => out.event(4, &[], &[virtual_time, address, length]),
            Self::Exec { virtual_time } => out.event(5, &[], &[virtual_time]),
            Self::Fork {
                child,
                virtual_time,
            } => out.event(6, &[child], &[virtual_time]),
            Self::Counters(counters) => {
                out.put(&[7]);
                out.put(&(COUNTERS as u16).to_le_bytes());
                counters.iter().for_each(|counter| out.u64(*counter));
            }
        }
        if out.at > out.bytes.len() { 0 } else { out.at }
    }

    fn decode(input: &mut Input<'a>) -> Option<Self> {
        Some(match *input.take(1)?.first()? {
            1 => Self::ThreadStart {
                thread: input.u32()?,
                tid: input.u32()?,
                cpu: input.u32()?,
                started_by: input.u64()?,
                virtual_time: input.u64()?,
                start_routine: input.u64()?,
            },
            2 => Self::ThreadEnd {
                thread: input.u32()?,
                virtual_time: input.u64()?,
                instructions: input.u64()?,
            },
            3 => Self::Map {
                protection: input.u32()?,
                flags: input.u32()?,
                virtual_time: input.u64()?,
                address: input.u64()?,
                length: input.u64()?,
                offset: input.u64()?,
                device: input.u64()?,
                inode: input.u64()?,
                path: {
                    let length = input.u16()?;
                    input.take(usize::from(length))?
                },
            },
            4 => Self::Unmap {
                virtual_time: input.u64()?,
                address: input.u64()?,
                length: input.u64()?,
            },
            5 => Self::Exec {
                virtual_time: input.u64()?,
            },
            6 => Self::Fork {
                child: input.u32()?,
                virtual_time: input.u64()?,
            },
            7 => {
                // More than this version knows are skipped.
                let mut counters = [0; COUNTERS];
                for index in 0..usize::from(input.u16()?) {
                    let value = input.u64()?;
                    if let Some(counter) = counters.get_mut(index) {
                        *counter = value;
                    }
                }
                Self::Counters(counters)
            }
            _ => return None,
        })
    }
}

/// The events of a frame. Ends at damage.
pub struct Events<'a> {
    input: Input<'a>,
}

impl<'a> Events<'a> {
    /// Of a frame's payload.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self {
            input: Input { bytes: payload },
        }
    }
}

impl<'a> Iterator for Events<'a> {
    type Item = Result<Event<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.input.bytes.is_empty() {
            return None;
        }
        let event = Event::decode(&mut self.input);
        if event.is_none() {
            self.input.bytes = &[];
        }
        Some(event.ok_or(Damaged))
    }
}

/// Room for one record, whose length keeps indices in it.
struct Room<'a> {
    bytes: &'a mut [u8; RECORD_BYTES_MAX],
    at: usize,
}

impl Room<'_> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.bytes[self.at % RECORD_BYTES_MAX] = byte;
        self.at += 1;
    }

    /// The lowest `count` bytes.
    #[inline]
    fn bytes(&mut self, bytes: u64, count: usize) {
        // Never so far: it keeps the index in the room.
        let at = self.at.min(RECORD_BYTES_MAX - 8);
        if let Some(room) = self.bytes[at..].first_chunk_mut() {
            *room = bytes.to_le_bytes();
        }
        self.at += count;
    }

    #[inline]
    fn varint(&mut self, mut value: u64) {
        if value < 0x80 {
            return self.byte(value as u8);
        }
        if value < SHORT {
            return self.short(value, false);
        }
        while value > 0x7f {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// A varint below [`SHORT`], or nothing.
    #[inline]
    fn short(&mut self, value: u64, nothing: bool) {
        // Up to four groups of seven bits, each moved to a byte of its own at once.
        let groups = value & 0x7f
            | (value & 0x3f80) << 1
            | (value & 0x1f_c000) << 2
            | (value & 0xfe0_0000) << 3;
        let last = (groups | 1).ilog2() / 8;
        let more = 0x80_8080 & ((1 << (8 * last)) - 1);
        let count = if nothing { 0 } else { last as usize + 1 };
        self.bytes(groups | more, count);
    }

    #[inline]
    fn address(&mut self, address: u64, prediction: u64) {
        let difference = address.wrapping_sub(prediction);
        let tag = u64::from(difference.is_multiple_of(8));
        let value = zigzag((difference as i64 >> (3 * tag)) as u64);
        let rest = value >> 6;
        self.byte((value as u8 & 0x3f) << 1 | tag as u8 | u8::from(rest != 0) << 7);
        if rest < SHORT {
            // No branch on what nobody can foresee.
            self.short(rest, rest == 0);
        } else {
            self.varint(rest);
        }
    }
}

/// A varint of at most four bytes is below this.
const SHORT: u64 = 1 << 28;

/// Writes as long as there is room; `at` goes on counting.
struct Output<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Output<'a> {
    fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.at..self.at + bytes.len());
        if let Some(room) = room {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn event(&mut self, kind: u8, halves: &[u32], words: &[u64]) {
        self.put(&[kind]);
        halves.iter().for_each(|half| self.u32(*half));
        words.iter().for_each(|word| self.u64(*word));
    }
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    #[inline]
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    #[inline]
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    #[inline]
    fn address(&mut self, prediction: u64) -> Option<u64> {
        let first = self.byte()?;
        let mut value = u64::from(first >> 1 & 0x3f);
        if first & 0x80 != 0 {
            value |= self.varint()? << 6;
        }
        let difference = if first & 1 == 1 {
            unzigzag(value) << 3
        } else {
            unzigzag(value)
        };
        Some(prediction.wrapping_add(difference))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    /// splitmix64: every seed is as good as any other.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut value = self.0;
            value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            value ^ value >> 31
        }

        fn below(&mut self, end: u64) -> u64 {
            self.next() % end
        }

        /// Of any magnitude.
        fn word(&mut self) -> u64 {
            let bits = self.below(64);
            self.next() >> bits
        }

        fn record(&mut self) -> Record {
            match self.below(12) {
                0 => Record::FirstTouch {
                    address: self.word(),
                    instruction: self.word(),
                },
                1 => Record::Signal {
                    sequence: self.word(),
                    address: self.word(),
                },
                2 => Record::Resume {
                    after: self.word(),
                    address: self.word(),
                    waited_instructions: self.word(),
                },
                3 => match self.below(4) {
                    0 => Record::Clock {
                        time_ns: self.word(),
                    },
                    1 => Record::Move {
                        cpu: self.word() as u32,
                    },
                    2 => Record::Mark {
                        begin: self.below(2) == 0,
                    },
                    _ => Record::Preempted {
                        waited_instructions: self.word(),
                    },
                },
                kind => Record::Reference(Reference {
                    address: if kind < 6 { self.next() } else { self.word() },
                    instruction: if kind < 5 {
                        self.word()
                    } else {
                        0x40_1000 + self.below(40)
                    },
                    kind: reference_kind(self.below(3) as u8).unwrap(),
                    served: served(self.below(7) as u8).unwrap(),
                    tlb_miss: self.below(2) == 0,
                    sampled: self.below(8) == 0,
                    kernel: self.below(8) == 0,
                }),
            }
        }
    }

    fn encoded(records: &[(u64, Record)]) -> Vec<u8> {
        let mut encoder = Encoder::new();
        let mut bytes = Vec::new();
        for (since, record) in records {
            let mut room = [0; RECORD_BYTES_MAX];
            let length = encoder.encode(&mut room, *since, record);
            assert!((1..RECORD_BYTES_MAX).contains(&length));
            bytes.extend(&room[..length]);
        }
        bytes
    }

    #[test]
    fn records_come_back_as_written() {
        for seed in 0..200 {
            let random = &mut Random(seed);
            let records: Vec<_> = (0..random.below(400))
                .map(|_| (random.word(), random.record()))
                .collect();
            let bytes = encoded(&records);
            let back: Result<Vec<_>, _> = Decoder::new(&bytes).collect();
            assert_eq!(back, Ok(records));
        }
    }

    #[test]
    fn damage_ends_the_records_and_nothing_else() {
        for seed in 0..2000 {
            let random = &mut Random(seed);
            let bytes: Vec<u8> = (0..300).map(|_| random.next() as u8).collect();
            let records: Vec<_> = Decoder::new(&bytes).map_while(Result::ok).collect();
            let again: Result<Vec<_>, _> = Decoder::new(&encoded(&records)).collect();
            assert_eq!(again, Ok(records));
            let damaged = Decoder::new(&bytes).filter(Result::is_err).count();
            assert!(damaged <= 1);
            let damaged = Events::new(&bytes).filter(|event| event.is_err()).count();
            assert!(damaged <= 1);
        }
        let cut = encoded(&[(
            3,
            Record::Signal {
                sequence: 1,
                address: 1 << 40,
            },
        )]);
        let mut decoder = Decoder::new(&cut[..cut.len() - 1]);
        assert_eq!(decoder.next(), Some(Err(Damaged)));
        assert_eq!(decoder.next(), None);
    }

    #[test]
    fn a_stream_with_a_gather_takes_less_than_five_bytes_a_record() {
        // What triad and gather let through: three streams that miss once a line, one of them
        // written back, and a table read at random.
        let random = &mut Random(7);
        let mut records = Vec::new();
        let mut miss = |since, instruction, address, kind, served| {
            records.push((
                since,
                Record::Reference(Reference {
                    address,
                    instruction,
                    kind,
                    served,
                    tlb_miss: false,
                    sampled: false,
                    kernel: false,
                }),
            ));
        };
        for element in 0..20_000 {
            let line = element % 8 == 0;
            if line {
                for (stream, at) in [(1_u64, 0x4011a0), (2, 0x4011a6)] {
                    let address = (stream << 28) + element * 8;
                    miss(3, at, address, ReferenceKind::Load, Served::Memory);
                }
            }
            let address = (5 << 28) + random.below(1 << 25) * 8;
            miss(10, 0x4011b0, address, ReferenceKind::Load, Served::Memory);
            if line {
                let address = (3 << 28) + element * 8;
                miss(2, 0x4011b8, address, ReferenceKind::Store, Served::Memory);
                let evicted = address - (1 << 19);
                miss(
                    0,
                    0x4011b8,
                    evicted,
                    ReferenceKind::Store,
                    Served::WriteBack,
                );
            }
        }
        let bytes = encoded(&records).len() as f64 / records.len() as f64;
        assert!(bytes < 5.0, "{bytes} bytes a record");
    }

    #[test]
    fn no_room_writes_nothing() {
        let mut room = [0; RECORD_BYTES_MAX - 1];
        let record = Record::Mark { begin: true };
        assert_eq!(Encoder::new().encode(&mut room, 1, &record), 0);
        assert_eq!(room, [0; RECORD_BYTES_MAX - 1]);
        assert_eq!(Event::Exec { virtual_time: 1 }.encode(&mut [0; 8]), 0);
    }

    #[test]
    fn events_come_back_as_written() {
        let mut counters = [0; COUNTERS];
        counters[Counter::Forks as usize] = 9;
        let events = [
            Event::ThreadStart {
                thread: 1,
                tid: 2,
                cpu: 3,
                started_by: 4,
                virtual_time: 5,
                start_routine: 6,
            },
            Event::Map {
                protection: 1,
                flags: 2,
                virtual_time: 3,
                address: 4,
                length: 5,
                offset: 6,
                device: 7,
                inode: 8,
                path: b"/usr/lib/libc.so.6",
            },
            Event::Unmap {
                virtual_time: 1,
                address: 2,
                length: 3,
            },
            Event::Exec { virtual_time: 8 },
            Event::Fork {
                child: 7,
                virtual_time: 8,
            },
            Event::Counters(counters),
            Event::ThreadEnd {
                thread: 1,
                virtual_time: 2,
                instructions: 3,
            },
        ];
        let mut bytes = vec![];
        for event in &events {
            let mut room = [0; EVENT_BYTES_MAX];
            let length = event.encode(&mut room);
            bytes.extend(&room[..length]);
        }
        let back: Result<Vec<_>, _> = Events::new(&bytes).collect();
        assert_eq!(back.as_deref(), Ok(&events[..]));
        bytes.pop();
        assert_eq!(Events::new(&bytes).last(), Some(Err(Damaged)));
    }

    #[test]
    fn an_unfinished_frame_is_finished_with_what_is_there() {
        let records = [
            (3, Record::Mark { begin: true }),
            (4, Record::Move { cpu: 1 }),
        ];
        let payload = encoded(&records);
        let header = FrameHeader {
            kind: FrameKind::Records,
            thread: 1,
            records: 2,
            payload_bytes: payload.len() as u32,
            virtual_time: 7,
            time_ns: 8,
        };
        // The room behind what counts holds something that does not.
        let mut file = vec![0x55; 200];
        header.begin(&mut file);
        file[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
        let counts = u64::from_le_bytes(file[FRAME_COUNTS_OFFSET..][..8].try_into().unwrap());
        assert_eq!(counts, (payload.len() as u64) << 32 | 2);

        let mut sealed = [&[0; FRAME_HEADER_BYTES][..], &payload].concat();
        header.seal(&mut sealed);
        assert_eq!(finish_frame(&mut file.clone()), Some(&sealed[..]));
        assert!(FrameHeader::intact(&sealed));

        assert_eq!(finish_frame(&mut file[..FRAME_HEADER_BYTES + 1]), None);
        assert_eq!(finish_frame(&mut [0; 100]), None);
        let nothing = FrameHeader {
            records: 0,
            payload_bytes: 0,
            ..header
        };
        nothing.begin(&mut file);
        assert_eq!(finish_frame(&mut file), None);
    }

    #[test]
    fn headers_come_back_and_notice_a_flipped_bit() {
        let file = FileHeader {
            pid: 1,
            page_bytes: 4096,
            line_bytes: 64,
            sample_period: 997,
            start_ns: 5,
            quantum: 10_000,
            parent_pid: 7,
        };
        assert_eq!(FileHeader::from_bytes(&file.to_bytes()), Some(file));
        assert_eq!(FileHeader::from_bytes(&file.to_bytes()[..63]), None);

        let header = FrameHeader {
            kind: FrameKind::Events,
            thread: 3,
            records: 2,
            payload_bytes: 5,
            virtual_time: 1 << 40,
            time_ns: 1 << 50,
        };
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame.extend(b"12345");
        header.seal(&mut frame);
        assert_eq!(FrameHeader::from_bytes(&frame), Some(header));
        assert!(FrameHeader::intact(&frame));
        for bit in 32..8 * frame.len() {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(!FrameHeader::intact(&frame));
            frame[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
