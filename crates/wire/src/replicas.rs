//! Copies of files on every node: the table that `nearpage run --replicate` passes to the preload library.
//!
//! The table is in memory that command and library share (a memfd); [`VARIABLE`] has its path in `/proc`. All numbers
//! have the machine's byte order.
//!
//! | bytes | header |
//! | --- | --- |
//! | 0–7 | [`MAGIC`] |
//! | 8–11 | [`VERSION`] |
//! | 12–15 | number of entries |
//! | 16–19 | process that has the copies open |
//! | 20–23 | 0 |
//! | 24–31 | number of processes that use copies; the processes count themselves |
//! | 32–39 | number of mappings that were made of copies instead of files |
//! | 40–47 | bytes of these mappings |
//!
//! | bytes | entry: one file on one node |
//! | --- | --- |
//! | 0–7 | device of the file as `/proc/PID/maps` has it: major << 32, minor |
//! | 8–15 | inode of the file there |
//! | 16–23 | device as stat(2) has it (not the same on btrfs and overlays) |
//! | 24–31 | inode of the file there |
//! | 32–39 | size in bytes |
//! | 40–47 | last change, seconds since 1970 |
//! | 48–55 | last change, nanoseconds beyond the seconds |
//! | 56–63 | device of the copy as `/proc/PID/maps` has it |
//! | 64–71 | inode of the copy there |
//! | 72–75 | node |
//! | 76–79 | descriptor of the copy in the process that has it open |

/// Environment variable with the path of the table.
pub const VARIABLE: &str = "NEARPAGE_REPLICAS";
/// First bytes of a table.
pub const MAGIC: [u8; 8] = *b"NPREPLIC";
/// Version of the layout above.
pub const VERSION: u32 = 2;
/// Size of the header.
pub const HEADER_BYTES: usize = 48;
/// Size of an entry.
pub const ENTRY_BYTES: usize = 80;
/// Offsets of the counters: processes, mappings, bytes.
pub const COUNTERS_AT: [usize; 3] = [24, 32, 40];
/// Most entries of a table.
pub const ENTRIES_MAX: usize = 1 << 16;

/// The copy of a file on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Device and inode of the file, as in `/proc/PID/maps`.
    pub mapped: [u64; 2],
    /// Device and inode of the file, as of stat(2).
    pub file: [u64; 2],
    /// Size in bytes.
    pub size: u64,
    /// Last change: seconds, nanoseconds.
    pub changed: [u64; 2],
    /// Device and inode of the copy, as in `/proc/PID/maps`.
    pub copy: [u64; 2],
    /// Node of the copy.
    pub node: u32,
    /// Descriptor of the copy, in the process that has it open.
    pub fd: u32,
}

/// A device in the form of [`Entry::mapped`].
pub fn device(major: u64, minor: u64) -> u64 {
    major << 32 | minor
}

/// Header of a table, with counters of 0.
pub fn header(pid: u32, entries: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[12..16].copy_from_slice(&entries.to_ne_bytes());
    bytes[16..20].copy_from_slice(&pid.to_ne_bytes());
    bytes
}

/// The process that has the copies open, and the number of entries; `None` if `table` is no table, or is cut short.
pub fn read_header(table: &[u8]) -> Option<(u32, usize)> {
    let number = |at: usize| {
        let bytes = table.get(at..at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let entries = number(12)? as usize;
    let known = table.get(..8)? == MAGIC && number(8)? == VERSION && entries <= ENTRIES_MAX;
    let whole = table.len() >= HEADER_BYTES + entries * ENTRY_BYTES;
    (known && whole).then_some((number(16)?, entries))
}

impl Entry {
    /// Encodes the entry as in a table.
    pub fn to_bytes(&self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let words = [
            self.mapped[0],
            self.mapped[1],
            self.file[0],
            self.file[1],
            self.size,
            self.changed[0],
            self.changed[1],
            self.copy[0],
            self.copy[1],
        ];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[72..76].copy_from_slice(&self.node.to_ne_bytes());
        bytes[76..].copy_from_slice(&self.fd.to_ne_bytes());
        bytes
    }

    /// Entry `index` of a table.
    pub fn read(table: &[u8], index: usize) -> Option<Self> {
        let start = HEADER_BYTES + index.checked_mul(ENTRY_BYTES)?;
        let bytes = table.get(start..start.checked_add(ENTRY_BYTES)?)?;
        let mut words = [0u64; 9];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(from.try_into().ok()?);
        }
        let last = |at: usize| -> Option<u32> {
            Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
        };
        Some(Self {
            mapped: [words[0], words[1]],
            file: [words[2], words[3]],
            size: words[4],
            changed: [words[5], words[6]],
            copy: [words[7], words[8]],
            node: last(72)?,
            fd: last(76)?,
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_table_of_copies_is_read_as_written() {
        let entry = |number: u64| Entry {
            mapped: [device(8, 1), number],
            file: [0x801, number],
            size: 4097 * number,
            changed: [1_700_000_000, 999_999_999],
            copy: [device(0, 1), 1000 + number],
            node: 3,
            fd: 7 + number as u32,
        };
        let mut table = Vec::from(header(42, 2));
        table.extend(entry(1).to_bytes());
        table.extend(entry(2).to_bytes());
        assert_eq!(read_header(&table), Some((42, 2)));
        assert_eq!(Entry::read(&table, 0), Some(entry(1)));
        assert_eq!(Entry::read(&table, 1), Some(entry(2)));
        assert_eq!(Entry::read(&table, 2), None);
        for (at, _) in table.iter().enumerate() {
            assert_eq!(read_header(&table[..at]), None, "cut at {at}");
        }
        table[3] = b'x';
        assert_eq!(read_header(&table), None);
    }
}
