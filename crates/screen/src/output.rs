//! Output of a command while the screen is shown: it goes into a file, whose last lines the screen shows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use nearpage_report::printable;

/// Size of the end of the output that is read.
const TAIL_BYTES: u64 = 64 << 10;

/// The last lines of a file, at most `lines_max`, without control sequences.
///
/// # Errors
/// The file cannot be read.
pub fn last_lines(file: &File, lines_max: usize) -> io::Result<Vec<String>> {
    let length = file.metadata()?.len();
    let from = length.saturating_sub(TAIL_BYTES);
    let mut bytes = vec![0; (length - from) as usize];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], from + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    bytes.truncate(filled);
    let text = String::from_utf8_lossy(&bytes);
    let mut lines: Vec<&str> = text.lines().collect();
    if from > 0 && lines.len() > 1 {
        // The first line began before the part that was read.
        lines.remove(0);
    }
    let first = lines.len().saturating_sub(lines_max);
    Ok(lines[first..].iter().map(|line| plain(line)).collect())
}

/// A line as a terminal finally shows it: text before a carriage return is overwritten, and sequences that set colours
/// or move the cursor are removed (ECMA-48: ESC [, parameters, a letter).
fn plain(line: &str) -> String {
    let line = line.trim_end_matches('\r');
    let line = line.rsplit('\r').next().unwrap_or(line);
    let mut text = String::new();
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => {
                if rest.next_if_eq(&'[').is_some() {
                    while rest.next_if(|c| !('@'..='~').contains(c)).is_some() {}
                }
                rest.next();
            }
            '\t' => text.push_str("    "),
            c => text.push(c),
        }
    }
    printable(&text)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn the_last_lines_stand_as_on_a_terminal() {
        let mut file = tempfile::tempfile().expect("a file");
        write!(
            file,
            "one\n\x1b[1;31mtwo\x1b[0m\tred\n 1 %\r 50 %\rdone\r\nlast\x07"
        )
        .expect("written");
        assert_eq!(
            last_lines(&file, 3).expect("read"),
            ["two    red", "done", "last\u{fffd}"]
        );
        assert_eq!(last_lines(&file, 9).expect("read").len(), 4);
        assert_eq!(last_lines(&file, 0).expect("read").len(), 0);
    }

    #[test]
    fn of_much_output_only_the_end_is_read() {
        let mut file = tempfile::tempfile().expect("a file");
        for line in 0..50_000 {
            writeln!(file, "line {line}").expect("written");
        }
        let lines = last_lines(&file, usize::MAX).expect("read");
        assert_eq!(lines.last().map(String::as_str), Some("line 49999"));
        assert!(lines.iter().all(|line| line.starts_with("line ")));
    }
}
