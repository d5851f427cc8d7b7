//! The bytes of a row group, in the form that the decoder reads.

use bytes::Bytes;
use bytes::buf::Reader;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use super::page_header;

/// A section of a file, which readers address by positions in the whole file.
pub(super) struct Section {
    pub offset: u64,
    pub bytes: Bytes,
    /// Most bytes that a page of the section may decompress to.
    pub page_bytes_max: u64,
}

impl Length for Section {
    fn len(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

impl ChunkReader for Section {
    type T = Reader<Bytes>;

    /// The decoder calls this method for headers of pages only.
    fn get_read(&self, position: u64) -> Result<Self::T, ParquetError> {
        let within = self.within(position)?;
        let header = self.bytes.get(within as usize..).unwrap_or_default();
        match page_header::uncompressed_bytes(header) {
            Some(bytes) if bytes <= self.page_bytes_max => self.bytes.get_read(within),
            _ => Err(ParquetError::General(format!(
                "the page at byte {position} claims no size or more than its rows can have"
            ))),
        }
    }

    fn get_bytes(&self, position: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.bytes.get_bytes(self.within(position)?, length)
    }
}

impl Section {
    fn within(&self, position: u64) -> Result<u64, ParquetError> {
        let within = position.checked_sub(self.offset);
        within.ok_or_else(|| ParquetError::EOF(format!("byte {position} is of another row group")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_claims_more_than_its_rows_can_have_is_not_decompressed() {
        let section = |page_bytes_max| Section {
            offset: 100,
            bytes: Bytes::from_static(&[0x15, 0, 0x15, 0x80, 0x80, 0x80, 0x80, 8, 0x15, 2, 0]),
            page_bytes_max,
        };
        assert!(section(1 << 30).get_read(100).is_ok());
        let error = section((1 << 30) - 1).get_read(100).map(drop).unwrap_err();
        assert!(error.to_string().contains("byte 100 claims"), "{error}");
        assert!(section(1 << 30).get_read(101).is_err());
    }
}
