//! Checksums of the tables' files. The Parquet decoder panics on some kinds of damage, so it only gets bytes that match
//! their checksum.
//!
//! Each row group and the footer have a checksum of their own, so that a large table is checked while it is read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use bytes::Bytes;
use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::IoContext;

/// Most bytes of a section: four times a row group of the longest texts. A sparse file can have any size at no cost.
const SECTION_BYTES_MAX: u64 = 512 << 20;

/// Checksums by file name.
pub(crate) type TableChecksums = BTreeMap<String, Checksums>;

/// Sections of one file. `recording.json` has them as `LENGTH:CRC32 …`, the CRC-32 in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Checksums(Vec<Section>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Section {
    offset: u64,
    length: u64,
    crc32: u32,
}

impl Checksums {
    fn push(&mut self, length: u64, crc32: u32) -> Option<()> {
        let offset = self.file_bytes();
        offset.checked_add(length)?;
        self.0.push(Section {
            offset,
            length,
            crc32,
        });
        Some(())
    }

    /// Length of the whole file in bytes.
    pub(super) fn file_bytes(&self) -> u64 {
        self.0.last().map_or(0, |last| last.offset + last.length)
    }

    /// Number of the last section.
    pub(super) fn last(&self) -> usize {
        self.0.len().saturating_sub(1)
    }

    /// Reads a section and checks it. Returns the section's offset in the file, too.
    pub(super) fn read(
        &self,
        file: &File,
        path: &Path,
        number: usize,
    ) -> Result<(u64, Bytes), Error> {
        let Some(section) = self.0.get(number) else {
            return Err(Error::damaged(
                path,
                "recording.json has too few checksums of it",
            ));
        };
        let size = file.metadata().at(path, "read")?.len();
        if size != self.file_bytes() {
            let cause = format!("expected {} bytes, found {size}", self.file_bytes());
            return Err(Error::damaged(path, cause));
        }
        if section.length > SECTION_BYTES_MAX {
            let most = SECTION_BYTES_MAX >> 20;
            let cause = format!("a row group of it has more than {most} MiB");
            return Err(Error::damaged(path, cause));
        }
        let mut bytes = vec![0; section.length as usize];
        file.read_exact_at(&mut bytes, section.offset)
            .at(path, "read")?;
        let found = crc32fast::hash(&bytes);
        if found != section.crc32 {
            let (from, to) = (section.offset, section.offset + section.length);
            let expected = section.crc32;
            return Err(Error::damaged(
                path,
                format!(
                    "expected checksum {expected:08x} of bytes {from} to {to}, found {found:08x}"
                ),
            ));
        }
        Ok((section.offset, bytes.into()))
    }
}

impl fmt::Display for Checksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, section) in self.0.iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            write!(f, "{space}{}:{:08x}", section.length, section.crc32)?;
        }
        Ok(())
    }
}

impl FromStr for Checksums {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut sums = Self::default();
        for section in text.split_whitespace() {
            let parsed = section.split_once(':').and_then(|(length, crc32)| {
                sums.push(length.parse().ok()?, u32::from_str_radix(crc32, 16).ok()?)
            });
            parsed.ok_or_else(|| format!("expected LENGTH:CRC32, found {section:?}"))?;
        }
        Ok(sums)
    }
}

impl TryFrom<String> for Checksums {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Checksums> for String {
    fn from(sums: Checksums) -> Self {
        sums.to_string()
    }
}

/// A file whose checksums are computed while it is written.
#[derive(Debug)]
pub(super) struct SummedFile {
    file: File,
    section: Hasher,
    length: u64,
    checksums: Checksums,
}

impl SummedFile {
    pub(super) fn new(file: File) -> Self {
        Self {
            file,
            section: Hasher::new(),
            length: 0,
            checksums: Checksums::default(),
        }
    }

    /// Ends the current section.
    pub(super) fn end_section(&mut self) {
        let crc32 = std::mem::take(&mut self.section).finalize();
        // No file is so long that the sum of lengths could overflow.
        let _ = self.checksums.push(std::mem::take(&mut self.length), crc32);
    }

    /// Takes the checksums, and leaves none.
    pub(super) fn take(&mut self) -> Checksums {
        std::mem::take(&mut self.checksums)
    }
}

impl Write for SummedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.section.update(&bytes[..count]);
        self.length += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksummed_bytes_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = SummedFile::new(File::create(&path).unwrap());
        for part in [&b"row group"[..], b"", b"footer"] {
            file.write_all(part).unwrap();
            file.end_section();
        }
        let sums = file.take();
        let text = sums.to_string();
        assert!(
            text.starts_with("9:") && text.contains(" 0:00000000 6:"),
            "{text}"
        );
        assert_eq!(text.parse::<Checksums>().unwrap(), sums);
        let file = File::open(&path).unwrap();
        let (offset, bytes) = sums.read(&file, &path, sums.last()).unwrap();
        assert_eq!((offset, &bytes[..]), (9, &b"footer"[..]));
    }

    #[test]
    fn a_text_that_is_no_checksum_is_refused() {
        for text in ["12", "x:00000000", "1:xyz", "18446744073709551615:0 1:0"] {
            assert!(text.parse::<Checksums>().is_err(), "{text}");
        }
    }
}
