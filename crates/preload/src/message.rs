//! The library's messages: lines that the recorder prints ([`nearpage_wire::messages`]).

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use nearpage_wire::messages::{FILE_BYTES, FILE_WORDS, TEXT_BYTES_MAX};

use crate::{environment, sys};

/// Text in a fixed buffer, cut when it is full.
pub struct Text<const BYTES: usize> {
    bytes: [u8; BYTES],
    length: usize,
}

impl<const BYTES: usize> Text<BYTES> {
    /// An empty text.
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

    /// Appends the bytes that fit; false if some do not.
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

/// Address of the mapped file of lines; 0: no recorder reads messages.
static FILE: AtomicUsize = AtomicUsize::new(0);

/// Number of the process.
static PID: AtomicU32 = AtomicU32::new(0);

/// Sets the number under which this process's lines are written: at start, and in a forked child.
pub fn is_of(pid: u32) {
    PID.store(pid, Ordering::Relaxed);
}

/// Maps the file of lines, if the environment names one.
pub fn start() {
    if let Some(path) = environment::path(nearpage_wire::MESSAGES_VARIABLE)
        && let Ok(fd) = sys::open(path, sys::O_RDWR)
    {
        // A shorter file would be a SIGBUS for the program.
        let is_whole = |status: sys::FileStatus| status.size >= FILE_BYTES as u64;
        if sys::file_status(fd).is_ok_and(is_whole) {
            let access = sys::PROT_READ | sys::PROT_WRITE;
            let mapped = sys::mmap(FILE_BYTES, access, sys::MAP_SHARED, Some(fd), 0);
            FILE.store(mapped.unwrap_or(0), Ordering::Release);
        }
        sys::close(fd);
    }
}

/// Writes a line for the recorder into shared memory: the program's standard error may be a pipe that nobody reads.
///
/// Use it as `message::line(format_args!("…", …))`; nothing is allocated.
pub fn line(text: fmt::Arguments<'_>) {
    leave(text, false);
}

/// Writes a line that says why this process has no allocation log, or none from now on.
pub fn ends_log(text: fmt::Arguments<'_>) {
    leave(text, true);
}

fn leave(text: fmt::Arguments<'_>, ends_log: bool) {
    let file = FILE.load(Ordering::Acquire);
    if file == 0 {
        return;
    }
    let mut line = Text::<TEXT_BYTES_MAX>::new();
    let _ = line.write_fmt(text);
    // SAFETY: the file is mapped, from a page's begin, as long as the process lives.
    let file = unsafe { &*(file as *const [AtomicU32; FILE_WORDS]) };
    let pid = PID.load(Ordering::Relaxed);
    nearpage_wire::messages::leave(file, pid, line.as_bytes(), ends_log);
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
