//! Quoting for shells, so that commands that nearpage prints can be pasted.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nearpage_files::bytes_of_text;
use nearpage_report::printable;

/// A word of a command line, quoted if a shell needs quotes.
pub fn word(word: impl AsRef<OsStr>) -> String {
    let bytes = word.as_ref().as_bytes();
    let is_plain = |character: char| character.is_alphanumeric() || "/._-+:,@".contains(character);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Ok(text) if printable(text) == text => in_quotes(text),
        _ => escaped(bytes),
    }
}

/// A text in single quotes, valid for any shell, on a terminal or in a script.
pub fn in_quotes(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path as a word. A leading dash gets `./` before it, so that the path is no option.
pub fn path(path: &Path) -> String {
    match path.as_os_str().as_bytes().starts_with(b"-") {
        true => word(Path::new(".").join(path)),
        false => word(path),
    }
}

/// A recorded command; `COMMAND` without one.
pub fn command(words: &[String]) -> String {
    let typed = words.iter();
    let typed = typed.map(|text| word(OsStr::from_bytes(&bytes_of_text(text))));
    match words {
        [] => "COMMAND".to_owned(),
        _ => typed.collect::<Vec<_>>().join(" "),
    }
}

/// Escapes bytes that a terminal does not show unchanged: `$'caf\xe9'`, part of POSIX since 2024.
fn escaped(bytes: &[u8]) -> String {
    let mut quoted = "$'".to_owned();
    let by_number = |quoted: &mut String, bytes: &[u8]| {
        for byte in bytes {
            *quoted += &format!("\\x{byte:02x}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            let text = character.to_string();
            match character {
                '\'' | '\\' => quoted.extend(['\\', character]),
                _ if printable(&text) == text => quoted.push(character),
                _ => by_number(&mut quoted, text.as_bytes()),
            }
        }
        by_number(&mut quoted, chunk.invalid());
    }
    quoted + "'"
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_are_quoted_where_a_shell_needs_it() {
        assert_eq!(word("cg.nearpage"), "cg.nearpage");
        assert_eq!(word("my run"), "'my run'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word(""), "''");
        assert_eq!(path(Path::new("-o")), "./-o");
        assert_eq!(command(&[]), "COMMAND");
        assert_eq!(
            command(&["./a b".to_owned(), "-n".to_owned()]),
            "'./a b' -n"
        );
    }

    #[test]
    fn a_shell_reads_what_was_written() {
        let odd: [&[u8]; 7] = [
            b"plain",
            b"$HOME `id` \"x\" !1 ~ *",
            b"caf\xe9 it's\\",
            b"two\nlines\t\x1b[2J",
            "größe \u{202e} 行列".as_bytes(),
            b"\xe9a",
            b"-n",
        ];
        for bytes in odd {
            let typed = word(OsStr::from_bytes(bytes));
            assert_eq!(printable(&typed), typed, "it is shown as it is");
            let mut shell = Command::new("bash");
            shell.args(["-c", &format!("printf %s {typed}")]);
            // A word such as `-n` after the format is no option of `printf`.
            let read = shell.output().expect("bash").stdout;
            assert_eq!(read, bytes, "{typed}");
        }
    }
}
