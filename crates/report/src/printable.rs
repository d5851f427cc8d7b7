//! Names from other programs, made safe for a terminal and cut to a width.

use std::borrow::Cow;

use nearpage_attribution::without_arguments;
use nearpage_files::readable;

/// Replaces everything in `text` that could move a cursor, change a colour or reverse a line.
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

/// Width of `text` on a terminal: two columns for East Asian wide characters and emoji, none for combining marks, and
/// none for styles of [`crate::emphasis`].
pub fn width(text: &str) -> usize {
    let mut parts = text.split('\x1b');
    let before: usize = parts.next().unwrap_or("").chars().map(columns).sum();
    let after = parts.map(|part| {
        let visible = part.split_once('m').map_or("", |(_, visible)| visible);
        visible.chars().map(columns).sum::<usize>()
    });
    before + after.sum::<usize>()
}

/// Only ranges that matter in names are listed. A terminal with other widths shifts a column at most.
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

/// Cuts `text` to at most `columns_max` columns. Parameters of functions are left out first, then arguments of
/// templates (`ns::f(…)`, `vector<…>`), then an addition in brackets at the end (`main cg.c:112 (allocate)`), then
/// words before the last word, which gives the place. A word is cut only if nothing else helps.
pub fn shorten(text: &str, columns_max: usize) -> String {
    let mut text = Cow::Borrowed(text);
    for brackets in [['(', ')'], ['<', '>']] {
        if width(&text) <= columns_max {
            break;
        }
        text = without_arguments(&text, brackets).into();
    }
    if width(&text) > columns_max {
        text = without_addition(&text).into();
    }
    match width(&text) <= columns_max {
        true => text.into_owned(),
        false => without_middle(&text, columns_max),
    }
}

/// Removes an addition in brackets at the end, except for the number that distinguishes equal names: `main cg.c:5
/// (2nd)` of `main cg.c:5 (malloc, 2nd of 3)`.
fn without_addition(text: &str) -> String {
    let split = text
        .strip_suffix(')')
        .and_then(|text| text.rsplit_once(" ("));
    let Some((name, addition)) = split else {
        return text.to_owned();
    };
    let last = addition.rsplit_once(", ");
    match last.and_then(|(_, number)| number.split_once(" of ")) {
        Some((number, _)) => format!("{name} ({number})"),
        None => name.to_owned(),
    }
}

/// The last word with the space before it. A number and its unit are one word.
fn last_word(text: &str) -> &str {
    let is_number = |text: &str| {
        let word = text.rsplit(' ').next().unwrap_or("");
        word.parse::<f64>().is_ok()
    };
    let mut spaces = text.rmatch_indices(' ').map(|(at, _)| at);
    let begin = spaces.find(|&at| !is_number(&text[..at]));
    begin.map_or("", |at| &text[at..])
}

fn without_middle(text: &str, columns_max: usize) -> String {
    let Some(left) = columns_max.checked_sub(1) else {
        return String::new();
    };
    let half: String = take(text.chars().rev(), left / 2).chars().rev().collect();
    let last = last_word(text);
    let tail = match is_within_a_word(text, text.len() - half.len()) {
        // The last word may take three quarters of the width.
        _ if !last.is_empty() && 4 * width(last) <= 3 * left => last,
        true => without_first_word(&half),
        false => &half,
    };
    // A combining mark without its letter would combine with the ellipsis.
    let tail = tail.trim_start_matches(|c| columns(c) == 0);
    let head = take(text.chars(), left - width(tail));
    let head = match is_within_a_word(text, head.len()) {
        true => without_last_word(&head),
        false => &head,
    };
    let head = without_last_number(head, text);
    format!("{head}…{tail}")
}

/// Removes a number at the end whose unit was cut off.
fn without_last_number<'a>(head: &'a str, text: &str) -> &'a str {
    let words = head.trim_end();
    match words.rsplit_once(' ') {
        Some((before, word))
            if word.parse::<f64>().is_ok() && text[words.len()..].starts_with(' ') =>
        {
            &head[..before.len() + 1]
        }
        _ => head,
    }
}

/// Would a cut at this position leave a part of a word? Numbers and addresses may be cut, because their ends
/// distinguish them.
fn is_within_a_word(text: &str, at: usize) -> bool {
    let (before, after) = text.split_at(at);
    let word = before.len() - before.trim_end_matches(is_word).len();
    let begins_with_digit = before[before.len() - word..].starts_with(|c: char| c.is_ascii_digit());
    word > 0 && after.starts_with(is_word) && !begins_with_digit
}

/// Removes a partial word at the begin, unless nothing else would be left.
fn without_first_word(text: &str) -> &str {
    match text.trim_start_matches(is_word) {
        "" => text,
        rest => rest,
    }
}

fn without_last_word(text: &str) -> &str {
    match text.trim_end_matches(is_word) {
        "" => text,
        rest => rest,
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || columns(c) == 0
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
        assert_eq!(shorten("std::vector<double>", 9), "std::…<…>");
        assert_eq!(shorten("unbreakable", 7), "unb…ble");
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

    #[test]
    fn parameters_of_functions_give_way_before_words() {
        let name = "ns::grid<double, 3>::step(std::vector<int> const&, void (*)(int)) const grid.cc:12 (allocate)";
        for (columns_max, short) in [
            (100, name),
            (
                90,
                "ns::grid<double, 3>::step(…) const grid.cc:12 (allocate)",
            ),
            (54, "ns::grid<…>::step(…) const grid.cc:12 (allocate)"),
            (40, "ns::grid<…>::step(…) const grid.cc:12"),
            (30, "ns::grid<…>::step(… grid.cc:12"),
        ] {
            assert_eq!(shorten(name, columns_max), short);
        }
    }

    #[test]
    fn distinguishing_parts_of_names_stay() {
        let numbered = "main join.cpp:57 (Join::Join(…), 1st of 2)";
        assert_eq!(shorten(numbered, 22), "main join.cpp:57 (1st)");
        assert_eq!(
            shorten("Table::Table join.cpp:13 (malloc)", 22),
            "Table::… join.cpp:13"
        );
        assert_eq!(
            shorten("libstdc++.so.6.0.30 .dynsym", 20),
            "libstdc++.… .dynsym"
        );
        assert_eq!(
            shorten("anonymous 7f0000000000, 80 KiB", 22),
            "anonymous 7f00… 80 KiB"
        );
        assert_eq!(
            shorten("anonymous 7f0000000000, 80 KiB: 80 KiB at 7effffff8000", 49),
            "anonymous 7f0000000000, 80 KiB: … 7effffff8000"
        );
    }

    #[test]
    fn words_stay_whole_where_one_fits() {
        let name = "simulation::particle_grid::advance the whole 行列 of fields_3 grid.cc:120";
        let words = |text: &str| -> Vec<String> {
            let words = text.split(|c: char| !is_word(c));
            words
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        for columns_max in 30..80 {
            let short = shorten(name, columns_max);
            assert!(width(&short) <= columns_max);
            for word in words(&short) {
                assert!(words(name).contains(&word), "{word:?} of {short:?}");
            }
        }
    }
}
