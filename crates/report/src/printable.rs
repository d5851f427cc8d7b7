//! Names from other people's programs, made safe for a terminal and cut to a width.

use nearpage_files::readable;

/// `text` with everything that could move a cursor, change a colour or reverse a line replaced.
pub fn printable(text: &str) -> String {
    readable(text)
        .chars()
        .map(|c| if harmless(c) { c } else { '\u{fffd}' })
        .collect()
}

fn harmless(c: char) -> bool {
    let invisible = matches!(c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' | '\u{ad}' | '\u{61c}' | '\u{180e}');
    !c.is_control() && !invisible
}

/// Columns that a terminal gives to `text`: two for East Asian wide characters and emoji, none for
/// combining marks, and none for [`crate::emphasis`].
pub fn width(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let before: usize = parts.next().unwrap_or("").chars().map(columns).sum();
    let after = parts.map(|part| {
        let visible = part.split_once('m').map_or("", |(_, visible)| visible);
        visible.chars().map(columns).sum::<usize>()
    });
    before + after.sum::<usize>()
}

/// The ranges that matter in names; a terminal that differs shifts a column, no more.
fn columns(c: char) -> usize {
    match c as u32 {
        0x0300..=0x036f
        | 0x1ab0..=0x1aff
        | 0x1dc0..=0x1dff
        | 0x20d0..=0x20ff
        | 0xfe00..=0xfe0f
        | 0xfe20..=0xfe2f => 0,
        0x1100..=0x115f
        | 0x2e80..=0x303e
        | 0x3041..=0x33ff
        | 0x3400..=0x4dbf
        | 0x4e00..=0x9fff
        | 0xa000..=0xa4cf
        | 0xac00..=0xd7a3
        | 0xf900..=0xfaff
        | 0xfe30..=0xfe6f
        | 0xff00..=0xff60
        | 0xffe0..=0xffe6
        | 0x1f300..=0x1f64f
        | 0x1f900..=0x1f9ff
        | 0x20000..=0x3fffd => 2,
        _ => 1,
    }
}

/// `text` in at most `columns_max` columns; what is left out of the middle is an ellipsis, as names
/// tell themselves apart at both ends.
pub fn shorten(text: &str, columns_max: usize) -> String {
    if width(text) <= columns_max {
        return text.to_owned();
    }
    let Some(left) = columns_max.checked_sub(1) else {
        return String::new();
    };
    let tail: String = take(text.chars().rev(), left / 2).chars().rev().collect();
    // A combining mark that lost its letter would change the ellipsis.
    let tail = tail.trim_start_matches(|c| columns(c) == 0);
    format!("{}…{tail}", take(text.chars(), left - width(tail)))
}

fn take(characters: impl Iterator<Item = char>, columns_max: usize) -> String {
    let mut used = 0;
    characters
        .take_while(|&c| {
            used += columns(c);
            used <= columns_max
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_defused() {
        assert_eq!(
            printable("a\x1b[31mb\r\n\u{202e}c\u{9b}"),
            "a\u{fffd}[31mb\u{fffd}\u{fffd}\u{fffd}c\u{fffd}"
        );
        assert_eq!(printable("größe 行列"), "größe 行列");
    }

    #[test]
    fn names_are_cut_by_width() {
        assert_eq!(shorten("matrix", 6), "matrix");
        assert_eq!(shorten("std::vector<double>", 9), "std:…ble>");
        assert_eq!(width("行列"), 4);
        assert_eq!(width("\x1b[1;31m50 %\x1b[0m of"), 7);
        for columns_max in 0..12 {
            assert!(width(&shorten("行列行列行列", columns_max)) <= columns_max);
            assert!(
                width(&shorten(
                    "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}xxxxxxxxx",
                    columns_max
                )) <= columns_max
            );
        }
    }
}
