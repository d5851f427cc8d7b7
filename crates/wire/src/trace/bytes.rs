//! Reads and writes numbers as bytes.

/// Writes bytes as long as there is room; `at` counts all bytes, written or not.
pub struct Output<'a> {
    pub bytes: &'a mut [u8],
    pub at: usize,
}

impl<'a> Output<'a> {
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        let room = self.bytes.get_mut(self.at..self.at + bytes.len());
        if let Some(room) = room {
            room.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    pub fn event(&mut self, kind: u8, halves: &[u32], words: &[u64]) {
        self.put(&[kind]);
        halves.iter().for_each(|half| self.u32(*half));
        words.iter().for_each(|word| self.u64(*word));
    }
}

pub struct Input<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        Some(taken)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    #[inline]
    pub fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*byte)
    }

    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
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
    pub fn address(&mut self, prediction: u64) -> Option<u64> {
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

/// Maps small numbers of either sign to small unsigned numbers.
#[inline]
pub fn zigzag(difference: u64) -> u64 {
    let difference = difference as i64;
    (difference << 1 ^ difference >> 63) as u64
}

/// Inverse of [`zigzag`].
#[inline]
pub fn unzigzag(value: u64) -> u64 {
    value >> 1 ^ (value & 1).wrapping_neg()
}
