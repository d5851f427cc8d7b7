//! The file that takes what the library has to say, as the recorder makes it.

use nearpage_wire::messages::{FILE_BYTES, Line, MAGIC, lines};

/// The file, with no line yet.
pub fn messages_file() -> Vec<u8> {
    let mut file = vec![0; FILE_BYTES];
    file[..MAGIC.len()].copy_from_slice(&MAGIC);
    file
}

/// Its lines, each with a newline.
pub fn messages_in(file: &[u8]) -> String {
    let text = |line: Line<'_>| format!("{}\n", String::from_utf8_lossy(line.text));
    lines(file).map(text).collect()
}
