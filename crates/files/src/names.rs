//! Paths as text, without loss. Linux paths are bytes; tables, plans and JSON hold text.
//!
//! Text that is UTF-8 stays as it is. A byte that is no part of valid UTF-8 becomes the private-use character
//! U+10FE00 + byte, from U+10FE80 to U+10FEFF. If a path contains one of these characters itself, each of the character's
//! four bytes is encoded that way, so that two paths never share a text.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

const ESCAPE: u32 = 0x10_fe00;

/// The byte that a character encodes; `None` if the character stands for itself.
fn escaped_byte(c: char) -> Option<u8> {
    let byte = u8::try_from((c as u32).checked_sub(ESCAPE)?).ok()?;
    (byte >= 0x80).then_some(byte)
}

/// Encodes a path as text.
pub fn path_to_text(bytes: &[u8]) -> String {
    bytes_to_text(bytes).into_owned()
}

/// Encodes bytes that contain paths, such as a file with a path in each line.
pub fn bytes_to_text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes)
        && !text.chars().any(|c| escaped_byte(c).is_some())
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len() * 2);
    let escape = |text: &mut String, bytes: &[u8]| {
        let escapes = bytes
            .iter()
            .map(|byte| char::from_u32(ESCAPE + u32::from(*byte)));
        text.extend(escapes.flatten());
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match escaped_byte(c) {
                None => text.push(c),
                Some(_) => escape(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        escape(&mut text, chunk.invalid());
    }
    Cow::Owned(text)
}

/// Decodes the bytes of a path.
pub fn bytes_of_text(text: &str) -> Cow<'_, [u8]> {
    if !text.chars().any(|c| escaped_byte(c).is_some()) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match escaped_byte(c) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    Cow::Owned(bytes)
}

/// Decodes a path.
pub fn path_from_text(text: &str) -> Cow<'_, Path> {
    match bytes_of_text(text) {
        Cow::Borrowed(_) => Cow::Borrowed(Path::new(text)),
        Cow::Owned(bytes) => Cow::Owned(PathBuf::from(OsString::from_vec(bytes))),
    }
}

/// The text for people to read: bytes that are not UTF-8 become U+FFFD.
pub fn readable(text: &str) -> Cow<'_, str> {
    match bytes_of_text(text) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn any_path_comes_back_from_its_text() {
        let private = "\u{10fee9}".as_bytes();
        for bytes in [
            &b"/usr/bin/plain"[..],
            "/home/müller/x \\x".as_bytes(),
            b"/tmp/caf\xe9/basic",
            b"\xff\xfe\x80",
            b"cut \xe2\x82",
            private,
            &[b"\xe9", private].concat(),
        ] {
            let text = path_to_text(bytes);
            assert_eq!(
                path_from_text(&text).as_os_str().as_bytes(),
                bytes,
                "{text:?}"
            );
        }
        assert_ne!(path_to_text(private), path_to_text(b"\xe9"));
    }

    #[test]
    fn utf8_stays_and_other_bytes_are_shown_as_replaced() {
        assert_eq!(path_to_text("/a/é".as_bytes()), "/a/é");
        assert_eq!(readable("/a/é"), "/a/é");
        assert_eq!(readable(&path_to_text(b"/caf\xe9/x")), "/caf\u{fffd}/x");
    }
}
