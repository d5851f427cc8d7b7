//! Mutates text: changes numbers, and removes or repeats lines.

use std::ops::Range;

use super::Choices;

/// Changes a number, a word or a line of `text`. Returns a description of the change.
pub fn mutate_words(text: &mut String, choices: &mut dyn Choices) -> String {
    let numbers = numbers(text);
    match choices.below(8) {
        0 => {
            let lines: Vec<&str> = text.split_inclusive('\n').collect();
            let line = choices.position(lines.len());
            let times = [0, 2, 2, 1000][choices.position(4)];
            let kept = |(number, part): (usize, &&str)| {
                part.repeat(if number == line { times } else { 1 })
            };
            *text = lines.iter().enumerate().map(kept).collect();
            format!("line {line} stands there {times} times")
        }
        1 => {
            let at = choices.position(text.len());
            let at = text.floor_char_boundary(at);
            let long = long_text(choices);
            text.insert_str(at, &long);
            format!("{} bytes more at byte {at}", long.len())
        }
        _ if numbers.is_empty() => {
            *text = long_text(choices);
            "another text".to_owned()
        }
        _ => {
            let range = numbers[choices.position(numbers.len())].clone();
            let own = text[range.clone()].parse().unwrap_or(0);
            let other = match choices.below(12) {
                0 => "-1".to_owned(),
                1 => "1e308".to_owned(),
                2 => "0.000001".to_owned(),
                3 => "nan".to_owned(),
                4 => "inf".to_owned(),
                _ => choices.extreme(own).to_string(),
            };
            let said = format!(
                "byte {}: {} becomes {other}",
                range.start,
                &text[range.clone()]
            );
            text.replace_range(range, &other);
            said
        }
    }
}

/// Ranges of the numbers in a text.
fn numbers(text: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match found.last_mut() {
            _ if !byte.is_ascii_digit() => {}
            Some(last) if last.end == at => last.end = at + 1,
            _ => found.push(at..at + 1),
        }
    }
    found
}

/// An unusual text: empty, very long, a path, or with control characters.
pub(super) fn long_text(choices: &mut dyn Choices) -> String {
    match choices.below(6) {
        0 => String::new(),
        1 => "\u{1b}[2J\0\n\"\\<script>".to_owned(),
        2 => "../../../../dev/zero".to_owned(),
        3 => "n".repeat(1 << 10),
        4 => "\u{1f40c}".repeat(1 << 14),
        _ => "name ".repeat(1 << 18),
    }
}
