//! Bounds-checked reading of little-endian numbers.

use crate::Malformed;

/// The number at `offset`.
#[inline]
pub fn u16_at(bytes: &[u8], offset: usize) -> Result<u16, Malformed> {
    array_at(bytes, offset).map(u16::from_le_bytes)
}

/// The number at `offset`.
#[inline]
pub fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, Malformed> {
    array_at(bytes, offset).map(u32::from_le_bytes)
}

/// The number at `offset`.
#[inline]
pub fn u64_at(bytes: &[u8], offset: usize) -> Result<u64, Malformed> {
    array_at(bytes, offset).map(u64::from_le_bytes)
}

#[inline]
fn array_at<const N: usize>(bytes: &[u8], offset: usize) -> Result<[u8; N], Malformed> {
    let bytes = bytes.get(offset..).and_then(|bytes| bytes.first_chunk());
    bytes.copied().ok_or(Malformed)
}

/// Reads fields one after the other; holds the remaining bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next `length` bytes.
    pub fn take(&mut self, length: u64) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    /// The next number of 16 bits.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        u16_at(self.take(2)?, 0)
    }

    /// The next number of 32 bits.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        u32_at(self.take(4)?, 0)
    }

    /// The next number of 64 bits.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        u64_at(self.take(8)?, 0)
    }

    /// Skips `count` items of `bytes` bytes each.
    pub fn skip(&mut self, count: u64, bytes: u64) -> Result<(), Malformed> {
        self.take(count.checked_mul(bytes).ok_or(Malformed)?)?;
        Ok(())
    }
}
