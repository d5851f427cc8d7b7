//! Matrix of an object's pages and the threads that accessed them (NumaMMA §3.4).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use nearpage_attribution::{Cell, ObjectGroup};
use nearpage_recording::Tables;

use crate::emphasis::{HEADING, painted};
use crate::printable::{shorten, width};
use crate::text::{Count, TextOptions};
use nearpage_amount::{bytes, count, counted};

/// Cell of a thread without accesses.
const NOTHING: &str = "·";
const GAP: usize = 2;

/// Matrix of one object in at most `top` rows; for more pages, a row covers several pages. Threads that do not fit
/// beside each other continue below. `None` for an object without accesses.
pub(crate) fn matrix(
    tables: &Tables,
    group: &ObjectGroup,
    name: &str,
    options: &TextOptions,
) -> Option<String> {
    let affinity = &group.affinity;
    let cells = || affinity.cells.iter().chain(&affinity.initialisation);
    let accessed = || cells().filter(|cell| shown(cell, options.count) > 0.0);
    let pages = accessed().map(|cell| cell.page);
    let (first, last) = (pages.clone().min()?, pages.max()?);
    let rows_max = u64::try_from(options.top.max(1)).unwrap_or(u64::MAX);
    let pages = u64::from(last - first) + 1;
    // A power of two of pages, so that rows begin at round offsets.
    let together = pages.div_ceil(rows_max).next_power_of_two();
    let mut rows: BTreeMap<u64, BTreeMap<u32, f64>> = BTreeMap::new();
    for cell in accessed() {
        let row = rows.entry(u64::from(cell.page) / together).or_default();
        *row.entry(cell.thread.0).or_default() += shown(cell, options.count);
    }
    let threads: BTreeSet<u32> = rows.values().flat_map(BTreeMap::keys).copied().collect();
    let what = match options.count {
        Count::Both => "accesses",
        Count::Loads => "loads",
        Count::Stores => "stores",
    };
    let each = match together {
        1 => "page".to_owned(),
        _ => counted(together, "page"),
    };
    let size = bytes(affinity.page_bytes);
    let head = format!(": {what} by {each} of {size} and thread");
    let room = options.width.saturating_sub(width(&head));
    let head = shorten(name, room) + &head;
    let mut out = painted(&head, HEADING, options.colour) + "\n";
    let offset = |row: u64| bytes((row * together).saturating_mul(affinity.page_bytes));
    let offsets: Vec<String> = rows.keys().map(|&row| offset(row)).collect();
    let columns = threads.into_iter().map(|thread| {
        let tid = tables.threads.get(thread as usize);
        let tid = tid.map_or_else(|| "?".to_owned(), |thread| thread.tid.to_string());
        let cell =
            |row: &BTreeMap<u32, f64>| row.get(&thread).map_or(NOTHING.into(), |&n| count(n));
        std::iter::once(tid)
            .chain(rows.values().map(cell))
            .collect::<Vec<String>>()
    });
    let offsets: Vec<String> = std::iter::once("at".to_owned()).chain(offsets).collect();
    write_columns(&mut out, &offsets, columns.collect(), options.width);
    Some(out)
}

/// Number of accesses in a cell that the option selects.
fn shown(cell: &Cell, count: Count) -> f64 {
    f64::from(match count {
        Count::Both => cell.loads + cell.stores,
        Count::Loads => cell.loads,
        Count::Stores => cell.stores,
    })
}

/// Writes labels and as many columns as fit into the width; further columns follow below, with the labels repeated.
fn write_columns(out: &mut String, labels: &[String], columns: Vec<Vec<String>>, width_max: usize) {
    let breadth = |column: &[String]| column.iter().map(|cell| width(cell)).max().unwrap_or(0);
    let of_labels = breadth(labels);
    let mut rest = columns.as_slice();
    while !rest.is_empty() {
        let mut used = of_labels;
        let fitting = rest.iter().take_while(|column| {
            used += GAP + breadth(column);
            used <= width_max
        });
        let (here, below) = rest.split_at(fitting.count().max(1));
        for (row, label) in labels.iter().enumerate() {
            let mut line = " ".repeat(of_labels - width(label)) + label;
            for column in here {
                let cell = &column[row];
                let pad = GAP + breadth(column) - width(cell);
                let _ = write!(line, "{}{cell}", " ".repeat(pad));
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        rest = below;
    }
}
