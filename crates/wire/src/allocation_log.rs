//! The allocation log: what the preload library writes while the program runs.
//!
//! # Segment (version 1)
//! A segment is a file `alloc-PID-START-SEQUENCE.log` in the log folder: PID in decimal, START the
//! CLOCK_MONOTONIC nanoseconds at which this program image began (an `exec` begins a new one, a
//! `fork` too), SEQUENCE from 0. PID, and every thread's id in the log, are those that the kernel shows where `/proc`
//! was mounted: the recorder's, too, where a process has a PID namespace of its own and no `/proc` for it. Its space is allocated on disk before it is mapped, so that a
//! store never meets a full disk. All integers are little-endian.
//!
//! ```text
//! offset size
//!      0    8  magic "NPALLOC\x01"
//!      8    4  pid
//!     12    4  sequence
//!     16    8  start_ns        CLOCK_MONOTONIC, as in the name
//!     24    8  segment_bytes   whole file
//!     32    8  block_bytes     BLOCK_BYTES of the writer
//!     40    8  marks           times that the process called nearpage_begin, in sequence 0 alone: its recorder looks here
//!     48   16  zero
//!   4096       blocks of block_bytes each, up to segment_bytes
//! ```
//!
//! # Block
//! One thread fills a block; no lock, no other writer.
//!
//! ```text
//!      0    4  magic "NPBK"; anything else: the block was never claimed
//!      4    4  tid of the thread that fills it
//!      8    4  committed: bytes of whole records after this header, stored with release order
//!     12    4  checksum: CRC-32 (IEEE) of those bytes once the block is closed, 0 while it is open
//!     16       records
//! ```
//! A closed block whose checksum differs is damaged: readers skip it and count it. Of an open
//! block, `committed` bytes are valid: its writer was killed or is still running.
//!
//! # Record
//! A record is whole 64-bit words. Word 0: bits 0–7 [`Kind`], bits 8–15 number of words of the
//! record, bits 16–31 flags, bits 32–63 `argument`. The remaining words by kind:
//!
//! | kind | argument | words 1… |
//! | --- | --- | --- |
//! | Allocate | call site | time_ns, address, size_bytes, weight (how many allocations of its kind it stands for, in 1/1000) |
//! | Free | 0 | time_ns, address |
//! | Map | call site | time_ns, address, length_bytes, protection (low 32) and mmap flags (high 32), file descriptor or −1 |
//! | Unmap | 0 | time_ns, address, length_bytes |
//! | Break | call site | time_ns, old end, new end |
//! | CallSite | call site | frames: return addresses, innermost first, nearpage's own left out |
//! | Thread | tid | time_ns, start routine address (0: the main thread), creation order in the process from 0, stack low, stack high, thread-local storage low, high, creator's tid |
//! | ThreadExit | tid | time_ns |
//! | Mark | 1 begin, 2 end | time_ns |
//! | Counters | tid | time_ns, allocations, frees, small allocations passed without a record (estimated from the samples' weights), stacks unwound, stacks taken from the cache, allocations whose stack was left out for cost, records dropped because the log was off or full, samples and other objects for which there was no room, allocations of [`crate::LARGE_ALLOCATION_BYTES`] and more passed without a record (estimated likewise; 0 in older logs) |
//!
//! Counters are totals of the process so far; the latest one counts. Time is CLOCK_MONOTONIC, stamped
//! after an allocation returned and before a free starts. Call sites are numbered per process from
//! 1; 0 is unknown. Site numbers may be used by a thread before the block with their definition is
//! read: resolve them after the whole log is read. A site is never redefined: after a `dlclose` or
//! in a forked child, the same addresses get a new number.
//!
//! A Free without its Allocate is of an object that was not logged: ignore it. A `realloc` is a Free and an Allocate, both with
//! [`FLAG_REALLOCATED`], even when the object stayed where it was; either is left out when that
//! object is not logged. The Free is written before the call: one that fails is followed by an
//! Allocate of the old object. An `mremap` is an Unmap and a Map with that flag; protection and flags
//! of that Map are all ones, its descriptor −1. A thread that no hook announced (a bare `clone`)
//! has start routine 0 like the main thread, and an order above 0; its stack is 0, 0.
//! A forked child's first thread has order 0 and start routine 0, and the stack of the thread that
//! forked.

/// First eight bytes of a segment; the last is the version.
pub const SEGMENT_MAGIC: [u8; 8] = *b"NPALLOC\x01";
/// First four bytes of a claimed block.
pub const BLOCK_MAGIC: [u8; 4] = *b"NPBK";
/// Offset of the number of marks in the first segment's header.
pub const MARKS_OFFSET: usize = 40;
/// Offset of the first block.
pub const SEGMENT_HEADER_BYTES: usize = 4096;
/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 16;
/// Bytes of a block, header included.
pub const BLOCK_BYTES: usize = 16 * 1024;

/// The allocation is a sample: its weight says of how many. A small one lives in nearpage's own
/// address range, a large one where the allocator put it.
pub const FLAG_SAMPLED: u16 = 1;
/// The record is one half of a `realloc` or `mremap`.
pub const FLAG_REALLOCATED: u16 = 2;
/// The memory was zeroed by the allocator (`calloc`).
pub const FLAG_ZEROED: u16 = 4;
/// The stack was left out because the unwinding budget was spent: the call site, if there is one, is
/// the innermost frame alone.
pub const FLAG_NO_STACK: u16 = 8;

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A heap allocation.
    Allocate = 1,
    /// Its end.
    Free = 2,
    /// An `mmap` of the program's own.
    Map = 3,
    /// A `munmap`.
    Unmap = 4,
    /// The program moved the break itself.
    Break = 5,
    /// The definition of a call site.
    CallSite = 6,
    /// A thread began.
    Thread = 7,
    /// A thread ended.
    ThreadExit = 8,
    /// `nearpage_begin` or `nearpage_end`.
    Mark = 9,
    /// Totals.
    Counters = 10,
}

impl Kind {
    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        use Kind::*;
        [
            Allocate, Free, Map, Unmap, Break, CallSite, Thread, ThreadExit, Mark, Counters,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// Builds word 0 of a record.
pub const fn head(kind: Kind, words: u8, flags: u16, argument: u32) -> u64 {
    kind as u64 | (words as u64) << 8 | (flags as u64) << 16 | (argument as u64) << 32
}

/// One record, still in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'log> {
    /// What it says.
    pub kind: Kind,
    /// `FLAG_…` bits.
    pub flags: u16,
    /// By kind, see the table above.
    pub argument: u32,
    words: &'log [u8],
}

impl Record<'_> {
    /// Word `index` after word 0, or 0 where the record is shorter (an older writer).
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index * 8..index * 8 + 8).map_or(0, |bytes| {
            u64::from_le_bytes(bytes.try_into().unwrap_or_default())
        })
    }

    /// Number of words after word 0.
    pub fn len(&self) -> usize {
        self.words.len() / 8
    }

    /// Has the record no word but word 0?
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// The records of one block's committed bytes. Ends at the first malformed one.
#[derive(Clone, Debug)]
pub struct Records<'log> {
    bytes: &'log [u8],
}

impl<'log> Records<'log> {
    /// `committed` is what follows a block's header, cut to its committed length.
    pub fn new(committed: &'log [u8]) -> Self {
        Self { bytes: committed }
    }

    /// Bytes not read, either because they come next or because they are malformed.
    pub fn rest(&self) -> usize {
        self.bytes.len()
    }
}

impl<'log> Iterator for Records<'log> {
    type Item = Record<'log>;

    fn next(&mut self) -> Option<Record<'log>> {
        let head = u64::from_le_bytes(self.bytes.get(..8)?.try_into().ok()?);
        let words = (head >> 8 & 0xff) as usize;
        let kind = Kind::from_number(head as u8)?;
        let body = self.bytes.get(8..words * 8)?;
        self.bytes = &self.bytes[words * 8..];
        Some(Record {
            kind,
            flags: (head >> 16) as u16,
            argument: (head >> 32) as u32,
            words: body,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_written_and_stop_at_damage() {
        let words = [
            head(Kind::Allocate, 5, FLAG_SAMPLED, 7),
            100,
            0x1000,
            64,
            1000,
            head(Kind::Free, 3, 0, 0),
            200,
            0x1000,
        ];
        let mut bytes = [0u8; 8 * 8];
        for (chunk, word) in bytes.chunks_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        let mut records = Records::new(&bytes);
        let first = records.next().unwrap();
        assert_eq!(
            (first.kind, first.flags, first.argument, first.len()),
            (Kind::Allocate, FLAG_SAMPLED, 7, 4)
        );
        assert_eq!(
            (first.word(0), first.word(1), first.word(2), first.word(9)),
            (100, 0x1000, 64, 0)
        );
        assert_eq!(records.next().unwrap().kind, Kind::Free);
        assert!(records.next().is_none());
        assert_eq!(Records::new(&bytes[..20]).next(), None);
        assert_eq!(Records::new(&[0xff; 32]).next(), None);
        assert_eq!(
            Records::new(&[1, 0, 0, 0, 0, 0, 0, 0]).next(),
            None,
            "a record of no words must not loop"
        );
    }

    #[test]
    fn arbitrary_bytes_neither_panic_nor_loop() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for length in 0..2000usize {
            let mut bytes = [0u8; 2000];
            for (index, byte) in bytes.iter_mut().enumerate() {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(index as u64);
                // Small numbers are frequent, so that heads are often valid.
                *byte = (state >> 40) as u8 & if state >> 60 == 0 { 0xff } else { 7 };
            }
            let mut records = Records::new(&bytes[..length]);
            let mut words = 0;
            for record in &mut records {
                words += 1 + record.len();
                assert_eq!(record.word(record.len()), 0);
            }
            assert_eq!(words * 8 + records.rest(), length);
        }
    }
}
