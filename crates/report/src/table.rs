//! Tables with right-aligned numbers and, last, a name that gets the remaining width.

use crate::printable::{shorten, width};

/// A column of numbers.
pub struct Column {
    /// Heading of the column.
    pub title: &'static str,
    /// Priority of the column. On a narrow terminal, columns with the lowest rank are left out first.
    pub rank: u8,
    /// A cell for each row.
    pub cells: Vec<String>,
}

/// Minimum width of the name.
const NAME_COLUMNS_MIN: usize = 22;
const GAP: &str = "  ";

/// The heading and a line for each name, at most `columns_max` wide.
pub(crate) fn lines(
    mut columns: Vec<Column>,
    title: &str,
    names: &[String],
    columns_max: usize,
) -> (String, Vec<String>) {
    let breadth = |column: &Column| {
        column
            .cells
            .iter()
            .map(|cell| width(cell))
            .chain([width(column.title)])
            .max()
            .unwrap_or(0)
    };
    let used = |columns: &[Column]| {
        columns
            .iter()
            .map(|column| breadth(column) + GAP.len())
            .sum::<usize>()
    };
    while used(&columns) + NAME_COLUMNS_MIN > columns_max
        && let Some((least, _)) = columns
            .iter()
            .enumerate()
            .min_by_key(|(_, column)| column.rank)
    {
        columns.remove(least);
    }
    let rest = columns_max.saturating_sub(used(&columns));
    let line = |cell: &dyn Fn(&Column) -> String, name: &str| {
        let mut line = String::new();
        for column in &columns {
            let cell = cell(column);
            line.push_str(&" ".repeat(breadth(column) - width(&cell)));
            line.push_str(&cell);
            line.push_str(GAP);
        }
        line + &shorten(name, rest)
    };
    let heading = line(&|column| column.title.to_owned(), title);
    let rows = names
        .iter()
        .enumerate()
        .map(|(row, name)| line(&|column| column.cells[row].clone(), name))
        .collect();
    (heading, rows)
}

/// Writes a heading and a line for each name, at most `columns_max` wide.
pub fn write_lines(
    columns: Vec<Column>,
    title: &str,
    names: &[String],
    columns_max: usize,
    text: &mut String,
) {
    let (heading, rows) = lines(columns, title, names, columns_max);
    for line in std::iter::once(heading).chain(rows) {
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Wraps a sentence at `columns_max`.
pub fn wrapped(text: &str, columns_max: usize) -> String {
    wrap(&words(text), " ", columns_max, 2)
}

/// Words of a sentence. A number with its unit (`19.4 %`) is one word.
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match words.last_mut() {
            Some(number) if is_unit(word) && number.ends_with(|end: char| end.is_ascii_digit()) => {
                *number += &format!(" {word}");
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

/// Is the word a unit that [`nearpage_amount`] prints? Punctuation after the unit is ignored.
fn is_unit(word: &str) -> bool {
    const UNITS: [&str; 13] = [
        "%", "ns", "µs", "ms", "s", "min", "h", "B", "KiB", "MiB", "GiB", "TiB", "Hz",
    ];
    UNITS.contains(&word.trim_end_matches([',', '.', ';', ':', ')']))
}

/// Wraps words at `columns_max`. Later lines are indented by `indent` spaces.
pub(crate) fn wrap(parts: &[String], separator: &str, columns_max: usize, indent: usize) -> String {
    let mut text = String::new();
    let mut used = 0;
    for part in parts {
        let part = shorten(part, columns_max.saturating_sub(indent));
        if used > 0 && used + width(separator) + width(&part) > columns_max {
            text.push('\n');
            used = 0;
        } else if used > 0 {
            text.push_str(separator);
            used += width(separator);
        }
        if used == 0 && !text.is_empty() {
            text.push_str(&" ".repeat(indent));
            used = indent;
        }
        text.push_str(&part);
        used += width(&part);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_units() {
        let text = "time: 109 ms instead of 135 ms (19.4 % less); 2 h";
        assert_eq!(
            wrapped(text, 20),
            "time: 109 ms instead\n  of 135 ms (19.4 %\n  less); 2 h"
        );
        assert_eq!(wrapped("of 135 ms", 8), "of\n  135 ms");
    }
}
