//! The one line on standard error that the library may write.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::sys;

/// Longest line, in bytes; the rest is cut.
const LINE_BYTES_MAX: usize = 512;

/// Text in a fixed buffer, cut when it is full.
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    length: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    /// No text.
    pub const fn new() -> Self {
        Self {
            bytes: [0; BYTES],
            length: 0,
        }
    }

    /// Forgets what was written.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }

    /// Appends bytes, as many as fit; false when some did not.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let room = BYTES - self.length;
        let taken = bytes.len().min(room);
        for (to, from) in self.bytes.iter_mut().skip(self.length).zip(bytes) {
            *to = *from;
        }
        self.length += taken;
        taken == bytes.len()
    }

    /// Appends a number in decimal; false when it did not fit.
    pub fn push_number(&mut self, mut number: u64) -> bool {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
            first -= 1;
            if number == 0 {
                break;
            }
        }
        self.push(digits.get(first..).unwrap_or_default())
    }
}

impl<const BYTES: usize> Default for Text<BYTES> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const BYTES: usize> Write for Text<BYTES> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// What standard error was when the process began; 0: unknown.
static STANDARD_ERROR: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Remembers which file standard error is. A daemon closes it, and the number may then be a file
/// of the program's, into which nothing must be written.
pub fn remember_standard_error() {
    let identity = sys::identity(2).unwrap_or([u64::MAX; 2]);
    for (slot, value) in STANDARD_ERROR.iter().zip(identity) {
        slot.store(value, Ordering::Relaxed);
    }
}

/// Writes `nearpage: TEXT` and a newline to standard error in one system call.
///
/// Use it as `message::line(format_args!("…", …))`; nothing is allocated.
pub fn line(text: fmt::Arguments<'_>) {
    let known = [
        STANDARD_ERROR[0].load(Ordering::Relaxed),
        STANDARD_ERROR[1].load(Ordering::Relaxed),
    ];
    if known != [0; 2] && sys::identity(2) != Ok(known) {
        return;
    }
    let mut line = Text::<LINE_BYTES_MAX>::new();
    line.push(b"nearpage: ");
    let _ = line.write_fmt(text);
    line.length = line.length.min(LINE_BYTES_MAX - 1);
    line.push(b"\n");
    let _ = sys::write(2, line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_and_numbers_are_decimal() {
        let mut text = Text::<8>::new();
        assert!(text.push_number(0) && text.push_number(1203));
        assert_eq!(text.as_bytes(), b"01203");
        assert!(!text.push(b"abcdef"));
        assert_eq!(text.as_bytes(), b"01203abc");
        let mut largest = Text::<32>::new();
        largest.push_number(u64::MAX);
        assert_eq!(largest.as_bytes(), b"18446744073709551615");
    }
}
