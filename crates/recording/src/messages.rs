//! Messages of the preload library and the tracer: lines in a file ([`nearpage_wire::messages`]) that the recorder
//! makes before the program runs.

use std::io::Read;
use std::path::Path;

use nearpage_amount::counted;
use nearpage_wire::messages::{FILE_BYTES, lines, lost};

/// Messages from inside the recorded programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Messages {
    /// Texts for people; equal lines appear once.
    pub lines: Vec<String>,
    /// Processes that reported why they have no allocation log, by the id that they see themselves.
    pub explained: Vec<u32>,
}

impl Messages {
    /// Name of the file, in the folder that the library writes to.
    pub const FILE: &str = nearpage_wire::messages::FILE_NAME;

    /// Reads the file in `folder`; a missing file has no messages.
    pub fn read(folder: &Path) -> Self {
        let mut file = Vec::new();
        // Best effort: the lines are no data of the recording.
        if let Ok(opened) = nearpage_files::open(&folder.join(Self::FILE)) {
            let _ = opened.take(FILE_BYTES as u64).read_to_end(&mut file);
        }
        Self::of(&file)
    }

    fn of(file: &[u8]) -> Self {
        let mut found: Vec<(String, u32)> = Vec::new();
        let mut explained = Vec::new();
        for line in lines(file) {
            if line.ends_log {
                explained.push(line.pid);
            }
            // The program can write into the file's memory, so a line may hold anything.
            let text = String::from_utf8_lossy(line.text).replace(char::is_control, "?");
            match found.iter_mut().find(|(known, _)| *known == text) {
                Some((_, count)) => *count += 1,
                None => found.push((text, 1)),
            }
        }
        let repeated = |(text, times)| match times {
            1 => text,
            _ => format!("{text} ({times} times)"),
        };
        let mut lines: Vec<String> = found.into_iter().map(repeated).collect();
        if lost(file) > 0 {
            let lost = counted(lost(file) as u64, "more line");
            lines.push(format!(
                "there were {lost} from inside the program than there is room for"
            ));
        }
        Self { lines, explained }
    }
}

#[cfg(test)]
mod tests {
    use nearpage_wire::messages::{COUNT_OFFSET, MAGIC, SLOT_BYTES, TEXT_OFFSET};

    use super::*;

    #[test]
    fn lines_are_told_once_whatever_they_hold() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Messages::read(folder.path()), Messages::default());
        let mut file = vec![0; FILE_BYTES];
        file[..8].copy_from_slice(&MAGIC);
        for (slot, pid, ends_log, text) in [
            (1, 7, 0, &b"a"[..]),
            (2, 8, 1, b"b\x1b[2J\xff\n"),
            (3, 9, 0, b"a"),
        ] {
            let at = slot * SLOT_BYTES;
            file[at] = text.len() as u8;
            file[at + 4] = pid;
            file[at + 8] = ends_log;
            file[at + TEXT_OFFSET..][..text.len()].copy_from_slice(text);
        }
        file[COUNT_OFFSET] = 66;
        std::fs::write(folder.path().join(Messages::FILE), file).unwrap();
        let found = Messages::read(folder.path());
        assert_eq!(found.lines[..2], ["a (2 times)", "b?[2J\u{fffd}?"]);
        assert!(found.lines[2].contains("3 more lines"), "{found:?}");
        assert_eq!(found.explained, [8]);
    }
}
