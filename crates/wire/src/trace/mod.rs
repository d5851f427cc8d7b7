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
//! # A whole system
//! The trace of a guest under QEMU's system emulator is a file of version 2: its threads are the
//! guest's CPUs, addresses of data and of first touches are places in the guest's memory, and each
//! reference that the guest's kernel makes, or that is to memory of the kernel's, says to which
//! region ([`Segment`]). Instructions have their virtual addresses. A place is the guest-physical
//! address, without the hole that a PC has below 4 GiB: memory is counted through, in the order of
//! its nodes. Map events give the emulator's blocks of memory, by places and names. Version 1 is
//! the same without the records of extension 8.
//!
//! # Dependences
//! Version 3 is version 1 with records of extension 9: which misses wait for data of earlier ones.
//!
//! # File (versions 1 to 3)
//! All integers are little-endian; a *varint* is the usual base-128 number, low bits first.
//!
//! ```text
//! offset size
//!      0    8  magic "NPTRACE\x01", or "NPTRACE\x02" for a whole system, "NPTRACE\x03" with dependences
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
//! | 8 Reference | the number of a [`Segment`] other than User; then as 0 |
//! | 9 Depends | instructions since the miss that the next reference's address comes from |
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
    CHILD_ENDED, MARK_OPTION, PIPE_SIGNAL, Record, Reference, ReferenceKind, SIGNALS_FILE, Served,
};
pub use self::segments::{BEGIN_MARK, COUNT_AGAIN_MARK, END_MARK, LEAVE_OUT_MARK, Segment};

/// A payload that no writer made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;
