//! The bytes of a file, read block by block.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use object::ReadRef;

/// Bytes that are read at a time, so that the headers at a file's begin and end take one block each.
const BLOCK_BYTES: usize = 32 << 10;
/// Most bytes of one file that are read; symbol tables of the largest programs have half as many. Endless (sparse)
/// files cost their author nothing.
const READ_BYTES_MAX: usize = 1 << 30;
/// Longest name that is read. A table whose names never end would otherwise be searched for every symbol.
const NAME_BYTES_MAX: u64 = 64 << 10;

/// A regular file whose blocks are read at first use, each once, and kept.
#[derive(Debug)]
pub struct Contents {
    file: File,
    /// Memory as long as the file was when it was opened; zeros where nothing was read.
    memory: MmapRaw,
    read: Mutex<Blocks>,
}

#[derive(Debug)]
struct Blocks {
    is_read: Vec<bool>,
    /// Bytes that may still be read.
    left: usize,
}

impl Contents {
    /// Opens `path`.
    ///
    /// # Errors
    /// Errors of [`nearpage_files::open`]; [`io::ErrorKind::OutOfMemory`] if the file has more bytes than there are
    /// addresses.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(nearpage_files::open(path)?)
    }

    /// Reads a file that is already open.
    ///
    /// # Errors
    /// Errors of [`Contents::open`].
    pub fn of(file: File) -> io::Result<Self> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let memory: MmapMut = MmapOptions::new()
            // The kernel maps at least one byte. Pages of the map that are never read take no memory.
            .len(bytes.max(1))
            .no_reserve_swap()
            .map_anon()?;
        Ok(Self {
            file,
            memory: memory.into(),
            read: Mutex::new(Blocks {
                is_read: vec![false; bytes.div_ceil(BLOCK_BYTES)],
                left: READ_BYTES_MAX,
            }),
        })
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Size of the file in bytes.
    pub fn size(&self) -> usize {
        match self.blocks().is_read.len() {
            0 => 0,
            _ => self.memory.len(),
        }
    }

    fn blocks(&self) -> std::sync::MutexGuard<'_, Blocks> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the file; `None` if the file does not have them (any more), or if the limit of bytes is exceeded.
    fn bytes(&self, range: Range<u64>) -> Option<&[u8]> {
        let (begin, end) = (
            usize::try_from(range.start).ok()?,
            usize::try_from(range.end).ok()?,
        );
        if begin > end || end > self.size() {
            return None;
        }
        let mut blocks = self.blocks();
        let mut at = begin / BLOCK_BYTES;
        let last = end.div_ceil(BLOCK_BYTES);
        while at < last {
            let unread = (at..last).take_while(|&block| !blocks.is_read[block]);
            let next = at + unread.count();
            if next == at {
                at += 1;
                continue;
            }
            let (first, after) = (at * BLOCK_BYTES, self.memory.len().min(next * BLOCK_BYTES));
            blocks.left = blocks.left.checked_sub(after - first)?;
            // SAFETY: the range lies within the map. None of its blocks was handed out, as none is marked as read, and
            // the lock keeps other threads away.
            let into = unsafe {
                std::slice::from_raw_parts_mut(self.memory.as_mut_ptr().add(first), after - first)
            };
            self.file.read_exact_at(into, first as u64).ok()?;
            blocks.is_read[at..next].fill(true);
            at = next;
        }
        // SAFETY: the range lies within the map. All its blocks are read, and blocks are not written to again.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(begin), end - begin) })
    }
}

impl<'a> ReadRef<'a> for &'a Contents {
    fn len(self) -> Result<u64, ()> {
        Ok(self.size() as u64)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let end = offset.checked_add(size).ok_or(())?;
        self.bytes(offset..end).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        // The file's author chose its addresses, so the search ends at the end of the file.
        let limit = range.end.min(range.start.saturating_add(NAME_BYTES_MAX));
        let limit = limit.min(self.size() as u64);
        let mut searched = range.start;
        while searched < limit {
            let block_end = (searched / BLOCK_BYTES as u64 + 1) * BLOCK_BYTES as u64;
            let next = block_end.min(limit);
            let bytes = self.bytes(searched..next).ok_or(())?;
            if let Some(at) = bytes.iter().position(|&byte| byte == delimiter) {
                return self.bytes(range.start..searched + at as u64).ok_or(());
            }
            searched = next;
        }
        Err(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn contents(bytes: &[u8]) -> (tempfile::TempDir, Contents) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        let contents = Contents::open(&path).unwrap();
        (folder, contents)
    }

    #[test]
    fn a_name_at_the_end_of_all_addresses_is_none() {
        let (_folder, contents) = contents(b"a name\0and one without an end");
        let name = |begin: u64, end: u64| (&contents).read_bytes_at_until(begin..end, 0);
        assert_eq!(name(2, u64::MAX), Ok(&b"name"[..]));
        for begin in [7, 29, 30, u64::MAX - BLOCK_BYTES as u64, u64::MAX - 1] {
            assert_eq!(name(begin, u64::MAX), Err(()), "{begin}");
        }
    }

    #[test]
    fn every_range_of_a_file_reads_as_the_file_has_it() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 5)
            .map(|at| (at * 7 / 3) as u8)
            .collect();
        let (_folder, contents) = contents(&bytes);
        assert_eq!((&contents).len(), Ok(bytes.len() as u64));
        for (begin, end) in [
            (2 * BLOCK_BYTES, 2 * BLOCK_BYTES + 1),
            (BLOCK_BYTES - 3, 3 * BLOCK_BYTES + 5),
            (0, bytes.len()),
            (7, 7),
        ] {
            let read = (&contents).read_bytes_at(begin as u64, (end - begin) as u64);
            assert_eq!(read, Ok(&bytes[begin..end]));
        }
        let size = bytes.len() as u64;
        for (offset, bytes) in [(0, size + 1), (size, 1), (u64::MAX, 2), (size + 1, 0)] {
            assert_eq!((&contents).read_bytes_at(offset, bytes), Err(()));
        }
        assert_eq!(self::contents(b"").1.size(), 0);
    }

    #[test]
    fn names_end_where_they_do_in_whatever_block_and_are_bounded() {
        let mut bytes = vec![b'x'; 8 * BLOCK_BYTES];
        bytes[BLOCK_BYTES + 2] = 0;
        let (_folder, contents) = contents(&bytes);
        let size = bytes.len() as u64;
        let begin = BLOCK_BYTES as u64 - 3;
        assert_eq!(
            (&contents).read_bytes_at_until(begin..size, 0),
            Ok(&b"xxxxx"[..])
        );
        assert_eq!(
            (&contents).read_bytes_at_until(begin..begin + 4, 0),
            Err(())
        );
        let endless = BLOCK_BYTES as u64 + 3;
        assert_eq!((&contents).read_bytes_at_until(endless..size, 0), Err(()));
        assert!(!contents.blocks().is_read[4]);
    }

    #[test]
    fn a_file_that_is_cut_short_while_it_is_read_is_an_error() {
        let (folder, contents) = contents(&vec![1; 3 * BLOCK_BYTES]);
        assert_eq!((&contents).read_bytes_at(0, 2), Ok(&[1, 1][..]));
        fs::write(folder.path().join("file"), "").unwrap();
        // Blocks that were read are kept.
        assert_eq!((&contents).read_bytes_at(9, 1), Ok(&[1][..]));
        assert_eq!(
            (&contents).read_bytes_at(2 * BLOCK_BYTES as u64, 1),
            Err(())
        );
    }

    #[test]
    fn files_of_any_size_take_bounded_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 42).unwrap();
        let contents = Contents::open(&path).unwrap();
        assert_eq!((&contents).read_bytes_at(1 << 41, 4), Ok(&[0; 4][..]));
        assert_eq!((&contents).read_bytes_at(0, 1 << 42), Err(()));
    }
}
