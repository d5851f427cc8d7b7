#![doc = include_str!("../../../docs/reference/layouts/messages.md")]

use core::sync::atomic::{AtomicU32, Ordering};

/// Name of the file, in the folder that a recorder gives to the program.
pub const FILE_NAME: &str = "messages";
/// First eight bytes of the file; the last is the version.
pub const MAGIC: [u8; 8] = *b"NPLINES\x01";
/// Bytes of the file.
pub const FILE_BYTES: usize = 32 << 10;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 512;
/// Offset of the text in a slot.
pub const TEXT_OFFSET: usize = 12;
/// Bytes of text in a slot.
pub const TEXT_BYTES_MAX: usize = SLOT_BYTES - TEXT_OFFSET;
/// Most lines; the first slot is the header's.
pub const LINES_MAX: usize = FILE_BYTES / SLOT_BYTES - 1;
/// Offset of the number of lines.
pub const COUNT_OFFSET: usize = 8;

/// Number of 32-bit words in the file.
pub const FILE_WORDS: usize = FILE_BYTES / 4;

/// Writes a line of process `pid` with nothing but atomic operations; `ends_log` is [`Line::ends_log`].
pub fn leave(file: &[AtomicU32; FILE_WORDS], pid: u32, text: &[u8], ends_log: bool) {
    let text = text.get(..TEXT_BYTES_MAX).unwrap_or(text);
    let [header, slots @ ..] = file.as_chunks::<{ SLOT_BYTES / 4 }>().0 else {
        return;
    };
    let count = &header[COUNT_OFFSET / 4];
    // The writer that counts up to a slot owns the slot.
    let number = count.fetch_add(1, Ordering::Relaxed) as usize;
    let Some([length, process, ends, words @ ..]) = slots.get(number) else {
        return;
    };
    for (word, bytes) in words.iter().zip(text.chunks(4)) {
        let mut all = [0; 4];
        all.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        word.store(u32::from_ne_bytes(all), Ordering::Relaxed);
    }
    process.store(pid.to_le(), Ordering::Relaxed);
    ends.store(u32::from(ends_log).to_le(), Ordering::Relaxed);
    length.store((text.len() as u32).to_le(), Ordering::Release);
}

/// A line from a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'file> {
    /// Process id, as the process sees it.
    pub pid: u32,
    /// Whether the text says why the process has no allocation log, or none from then on.
    pub ends_log: bool,
    /// The line that people read.
    pub text: &'file [u8],
}

/// The complete lines of a file, in order.
pub fn lines(file: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let slots = match file.starts_with(&MAGIC) {
        true => file,
        false => &[],
    };
    slots
        .chunks_exact(SLOT_BYTES)
        .skip(1)
        .take(LINES_MAX)
        .filter_map(|slot| {
            let [length, pid, ends_log] = [0, 4, 8].map(|at| number(slot, at));
            let text = slot.get(TEXT_OFFSET..)?.get(..length as usize)?;
            (!text.is_empty()).then_some(Line {
                pid,
                ends_log: ends_log == 1,
                text,
            })
        })
}

/// Number of lines that found no slot.
pub fn lost(file: &[u8]) -> usize {
    (number(file, COUNT_OFFSET) as usize).saturating_sub(LINES_MAX)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..).and_then(<[u8]>::first_chunk);
    number.map_or(0, |number| u32::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_records_are_read_up_to_the_last_slot() {
        let file = [const { AtomicU32::new(0) }; FILE_WORDS];
        file[0].store(u32::from_ne_bytes(*b"NPLI"), Ordering::Relaxed);
        file[1].store(u32::from_ne_bytes(*b"NES\x01"), Ordering::Relaxed);
        leave(&file, 7, b"odd bytes", true);
        leave(&file, 8, &[b'l'; TEXT_BYTES_MAX + 1], false);
        for _ in 2..LINES_MAX + 3 {
            leave(&file, 9, b"more", false);
        }
        let mut bytes = [0; FILE_BYTES];
        for (to, from) in bytes.as_chunks_mut().0.iter_mut().zip(&file) {
            *to = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        let mut read = lines(&bytes);
        let (first, second) = (read.next().unwrap(), read.next().unwrap());
        let expected = Line {
            pid: 7,
            ends_log: true,
            text: b"odd bytes",
        };
        assert_eq!(first, expected);
        assert_eq!(
            (second.text.len(), second.ends_log),
            (TEXT_BYTES_MAX, false)
        );
        assert!(read.all(|line| line.text == b"more"));
        assert_eq!((lines(&bytes).count(), lost(&bytes)), (LINES_MAX, 3));
    }

    #[test]
    fn complete_lines_are_read_whatever_else_the_file_holds() {
        let mut file = [0u8; FILE_BYTES];
        file[..8].copy_from_slice(&MAGIC);
        file[COUNT_OFFSET] = 70;
        let mut line = |slot: usize, length: u32, text: &[u8]| {
            let at = slot * SLOT_BYTES;
            file[at..at + 4].copy_from_slice(&length.to_le_bytes());
            file[at + 4] = slot as u8;
            file[at + 8] = u8::from(text == b"last");
            file[at + TEXT_OFFSET..][..text.len()].copy_from_slice(text);
        };
        line(1, 5, b"first");
        line(2, 0, b"begun, not complete");
        line(3, u32::MAX, b"a length that lies");
        line(LINES_MAX, 4, b"last");
        let found = |file: &[u8]| {
            let mut sum = [0usize; 2];
            for line in lines(file) {
                let (pid, is_last) = match line.text {
                    b"first" => (1, false),
                    _ => (LINES_MAX as u32, true),
                };
                assert_eq!((line.pid, line.ends_log), (pid, is_last));
                sum = [sum[0] + 1, sum[1] + line.text.len()];
            }
            sum
        };
        assert_eq!(found(&file), [2, 9]);
        assert_eq!(lost(&file), 7);
        assert_eq!(found(&file[..SLOT_BYTES * 2 + 7]), [1, 5]);
        assert_eq!(found(&[]), [0, 0]);
        assert_eq!(lost(&[]), 0);
        file[7] = 2;
        assert_eq!(found(&file), [0, 0], "another version");
    }
}
