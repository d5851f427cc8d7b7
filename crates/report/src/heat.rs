//! Heat map of the accesses to an object: a line for each thread, a block for each part of the pages.

use std::collections::BTreeMap;
use std::fmt::Write;

use nearpage_attribution::{Cell, ObjectGroup};
use nearpage_recording::Tables;

use crate::emphasis::{HEADING, painted};
use crate::printable::{printable, shorten, width};
use crate::text::{Count, TextOptions};
use nearpage_amount::{bytes, count, counted, percent};

/// Characters without colour, from no accesses to the most.
const PLAIN: [char; 6] = [' ', '.', ':', '+', '#', '@'];
/// Blocks, from no accesses to the most.
const BLOCKS: [char; 5] = [' ', '░', '▒', '▓', '█'];
/// Colours of a terminal with 256, dark to bright, from few accesses to the most.
const COLOURS: [u8; 8] = [17, 18, 54, 90, 126, 168, 209, 229];
/// Width of a thread's name.
const NAME_COLUMNS: usize = 16;
/// Width of a thread's share.
const SHARE_COLUMNS: usize = 7;
/// Minimum width of the heat map; on a narrower terminal, lines are too long.
const PARTS_MIN: usize = 16;

/// Block for a share of the maximum; higher shares have denser blocks.
pub fn shade(share: f64) -> char {
    BLOCKS[level(share, BLOCKS.len())]
}

/// Level of a share among `levels` levels: 0 for nothing, the last for the maximum, at least 1 for any other share.
fn level(share: f64, levels: usize) -> usize {
    match share {
        share if share <= 0.0 || share.is_nan() => 0,
        share => ((share * (levels - 1) as f64).ceil() as usize).min(levels - 1),
    }
}

/// Heat map of one object; `None` without accesses.
pub(crate) fn heatmap(
    tables: &Tables,
    group: &ObjectGroup,
    name: &str,
    options: &TextOptions,
) -> Option<String> {
    let shown = |cell: &Cell| {
        f64::from(match options.count {
            Count::Both => cell.loads + cell.stores,
            Count::Loads => cell.loads,
            Count::Stores => cell.stores,
        })
    };
    let room = options
        .width
        .saturating_sub(NAME_COLUMNS + SHARE_COLUMNS + 3)
        .max(PARTS_MIN);
    let Grid {
        pages,
        together,
        parts,
        mut rows,
    } = grid(group, room as u64, &shown)?;
    let all: f64 = rows.values().flatten().sum();
    let columns = (room as u64 / parts).max(1);
    let most = rows.values().flatten().copied().fold(0.0, f64::max);
    let left_out = leave_out(&mut rows, options.top.max(1));
    let what = match options.count {
        Count::Both => "accesses",
        Count::Loads => "loads",
        Count::Stores => "stores",
    };
    let page_bytes = group.affinity.page_bytes;
    let size = bytes(page_bytes);
    let head = format!(", {}", bytes(pages.saturating_mul(page_bytes)));
    let head = shorten(name, options.width.saturating_sub(width(&head))) + &head;
    let mut out = painted(&head, HEADING, options.colour) + "\n";
    for (&thread, row) in &rows {
        let share = percent(row.iter().sum::<f64>() / all);
        let mut line = label(tables, thread) + " |";
        for &part in row {
            // Logarithms make differences between small and large numbers visible.
            let share = (1.0 + part).ln() / (1.0 + most).ln();
            line += &block(share, columns as usize, options.colour);
        }
        let _ = writeln!(out, "{line}|{share:>SHARE_COLUMNS$}");
    }
    axis(
        &mut out,
        pages.saturating_mul(page_bytes),
        (parts * columns) as usize,
    );
    let each = match together {
        1 => format!("a page of {size}"),
        together => format!("{together} pages of {size}"),
    };
    let legend = format!("a block: {each}; the densest: {} {what}", count(most));
    out += &shorten(&legend, options.width);
    out.push('\n');
    if left_out > 0 {
        let _ = writeln!(out, "… and {} more", counted(left_out as u64, "thread"));
    }
    Some(out)
}

/// Accesses by thread and part of the pages.
struct Grid {
    pages: u64,
    /// Number of pages in a part.
    together: u64,
    parts: u64,
    /// Accesses to each part, by thread.
    rows: BTreeMap<u32, Vec<f64>>,
}

/// Divides the pages into parts of equal size, at most `room` parts; `None` without accesses.
fn grid(group: &ObjectGroup, room: u64, shown: &dyn Fn(&Cell) -> f64) -> Option<Grid> {
    let affinity = &group.affinity;
    let cells = || {
        let all = affinity.cells.iter().chain(&affinity.initialisation);
        all.filter(|cell| shown(cell) > 0.0)
    };
    let last = cells().map(|cell| cell.page).max()?;
    let pages = u64::from(affinity.pages.max(last.saturating_add(1)));
    let together = pages.div_ceil(room).max(1);
    let parts = pages.div_ceil(together);
    let mut rows: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for cell in cells() {
        let row = rows.entry(cell.thread.0).or_default();
        row.resize(parts as usize, 0.0);
        if let Some(part) = row.get_mut((u64::from(cell.page) / together) as usize) {
            *part += shown(cell);
        }
    }
    Some(Grid {
        pages,
        together,
        parts,
        rows,
    })
}

/// Keeps the threads with the most accesses, and returns the number of removed threads.
fn leave_out(rows: &mut BTreeMap<u32, Vec<f64>>, most: usize) -> usize {
    let mut sums: Vec<(f64, u32)> = rows
        .iter()
        .map(|(&thread, row)| (row.iter().sum(), thread))
        .collect();
    sums.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let gone = sums.split_off(most.min(sums.len()));
    gone.iter().for_each(|(_, thread)| {
        rows.remove(thread);
    });
    gone.len()
}

/// Number and name of a thread.
fn label(tables: &Tables, thread: u32) -> String {
    let text = match tables.threads.get(thread as usize) {
        Some(thread) => format!("{} {}", thread.tid, printable(&thread.name)),
        None => "?".to_owned(),
    };
    let text = shorten(&text, NAME_COLUMNS);
    let pad = " ".repeat(NAME_COLUMNS.saturating_sub(width(&text)));
    text + &pad
}

fn block(share: f64, columns: usize, colour: bool) -> String {
    if !colour {
        let character = PLAIN[level(share, PLAIN.len())];
        return character.to_string().repeat(columns);
    }
    match level(share, COLOURS.len() + 1) {
        0 => " ".repeat(columns),
        level => {
            let colour = COLOURS[level - 1];
            format!("\x1b[48;5;{colour}m{}\x1b[0m", " ".repeat(columns))
        }
    }
}

/// Writes offsets below the heat map: begin, middle and end.
fn axis(out: &mut String, size_bytes: u64, columns: usize) {
    let (middle, end) = (bytes(size_bytes / 2), bytes(size_bytes));
    let mut line = format!("{}0", " ".repeat(NAME_COLUMNS + 2));
    let begin = NAME_COLUMNS + 2;
    let centre = begin + (columns / 2).saturating_sub(width(&middle) / 2);
    if width(&line) < centre && centre + width(&middle) + width(&end) < begin + columns {
        line += &" ".repeat(centre - width(&line));
        line += &middle;
    }
    let at = (begin + columns).saturating_sub(width(&end));
    line += &" ".repeat(at.saturating_sub(width(&line)).max(1));
    line += &end;
    out.push_str(&line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_denser_for_more() {
        let shades: String = [0.0, 0.01, 0.3, 0.6, 1.0, f64::NAN]
            .map(shade)
            .iter()
            .collect();
        assert_eq!(shades, " ░▒▓█ ");
        assert_eq!(block(0.0, 2, false), "  ");
        assert_eq!(block(1.0, 2, false), "@@");
        assert_eq!(block(1.0, 1, true), "\x1b[48;5;229m \x1b[0m");
    }
}
