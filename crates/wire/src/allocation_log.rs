#![doc = include_str!("../../../docs/reference/layouts/allocation-log.md")]

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

/// The allocation is a sample; its weight is the number of allocations that it stands for. A small sample is in
/// nearpage's own address range, a large one where the allocator put it.
pub const FLAG_SAMPLED: u16 = 1;
/// The record is one half of a `realloc` or `mremap`.
pub const FLAG_REALLOCATED: u16 = 2;
/// The memory was zeroed by the allocator (`calloc`).
pub const FLAG_ZEROED: u16 = 4;
/// The stack was left out because the unwinding budget was spent. The call site, if any, is then the innermost frame
/// alone.
pub const FLAG_NO_STACK: u16 = 8;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A heap allocation.
    Allocate = 1,
    /// The end of a heap allocation.
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
    /// Totals of the process.
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

/// One record, as a view of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'log> {
    /// Kind of the record.
    pub kind: Kind,
    /// `FLAG_…` bits.
    pub flags: u16,
    /// Argument, whose meaning depends on the kind: see the table above.
    pub argument: u32,
    words: &'log [u8],
}

impl Record<'_> {
    /// Word `index` after word 0; 0 if the record is shorter (an older writer).
    pub fn word(&self, index: usize) -> u64 {
        self.words.get(index * 8..index * 8 + 8).map_or(0, |bytes| {
            u64::from_le_bytes(bytes.try_into().unwrap_or_default())
        })
    }

    /// Number of words after word 0.
    pub fn len(&self) -> usize {
        self.words.len() / 8
    }

    /// Whether the record has only word 0.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
}

/// The records of one block's committed bytes. Ends at the first malformed record.
#[derive(Clone, Debug)]
pub struct Records<'log> {
    bytes: &'log [u8],
}

impl<'log> Records<'log> {
    /// Reads `committed`: the bytes after a block's header, cut to the committed length.
    pub fn new(committed: &'log [u8]) -> Self {
        Self { bytes: committed }
    }

    /// Number of bytes that are not read yet, or are malformed.
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
                // Small numbers are drawn often, so that many heads are valid.
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
