//! Text of a comparison of runs.

use std::fmt::Write;

use anstyle::Style;
use nearpage_amount::{percent, signed_change, time};

use super::{ChangedObject, RunComparison, Setting, Spread};
use crate::emphasis::{BAD, painted};
use crate::printable::printable;
use crate::table::{Column, wrapped, write_lines};

/// Maximum number of changed objects for each setting.
const OBJECTS_MAX: usize = 10;

/// Changes from the first setting to each other setting.
pub fn runs_text(comparison: &RunComparison, width: usize, colour: bool) -> String {
    let settings: Vec<&Setting> = std::iter::once(&comparison.before)
        .chain(comparison.after.iter().map(|after| &after.setting))
        .collect();
    let names: Vec<String> = settings
        .iter()
        .map(|setting| printable(&setting.recordings.join(", ")))
        .collect();
    let changes = |change: &dyn Fn(usize) -> String| -> Vec<String> {
        let after = (0..comparison.after.len()).map(change);
        std::iter::once(String::new()).chain(after).collect()
    };
    let local = |setting: &&Setting| {
        setting
            .local_share
            .map_or("?".to_owned(), |share| spread(&share, percent))
    };
    let columns = vec![
        column(
            "time",
            4,
            settings
                .iter()
                .map(|setting| spread(&setting.elapsed_ns, time))
                .collect(),
        ),
        column(
            "change",
            3,
            changes(&|at| {
                let after = &comparison.after[at];
                let is_slower = after.elapsed_change > 0.0 && after.elapsed_ranges_apart;
                let style = if is_slower { BAD } else { Style::new() };
                painted(&signed_change(after.elapsed_change), style, colour)
            }),
        ),
        column("local", 2, settings.iter().map(local).collect()),
        column(
            "change",
            1,
            changes(&|at| {
                comparison.after[at]
                    .local_change
                    .map_or(String::new(), |change| {
                        format!("{:+.1} points", 100.0 * change)
                    })
            }),
        ),
    ];
    let mut text = String::new();
    write_lines(columns, "recordings", &names, width, &mut text);
    if settings.iter().any(|setting| setting.local_share.is_none()) {
        text += "?: no node of any accessed page is known.\n";
    }
    let is_repeated = settings.iter().any(|setting| setting.recordings.len() > 1);
    if is_repeated {
        text += "Medians (least to most).\n";
    }
    for (after, name) in comparison.after.iter().zip(&names[1..]) {
        if is_repeated && !after.elapsed_ranges_apart {
            let words = format!("{name}: the times lie within the range of the times before.");
            text += &(wrapped(&words, width) + "\n");
        }
        text += &objects_text(&after.objects, name, width);
        for condition in &after.failed {
            let failed = format!("failed: {} in {name}", printable(condition));
            let _ = writeln!(text, "{}", painted(&failed, BAD, colour));
        }
    }
    text
}

fn objects_text(objects: &[ChangedObject], name: &str, width: usize) -> String {
    if objects.is_empty() {
        let words = format!(
            "{name}: no object's share of the cost or local share is known to have changed by 5 points."
        );
        return format!("\n{}\n", wrapped(&words, width));
    }
    let shown = &objects[..objects.len().min(OBJECTS_MAX)];
    let cells = |cell: &dyn Fn(&ChangedObject) -> Option<Spread>| {
        let text = |object| cell(object).map_or("-".to_owned(), |share| percent(share.median));
        shown.iter().map(text).collect()
    };
    let columns = vec![
        column("cost before", 4, cells(&|object| object.cost_share_before)),
        column("after", 3, cells(&|object| object.cost_share_after)),
        column(
            "local before",
            2,
            cells(&|object| object.local_share_before),
        ),
        column("after", 1, cells(&|object| object.local_share_after)),
    ];
    let names: Vec<String> = shown.iter().map(|object| printable(&object.name)).collect();
    let mut text = format!("\nchanged in {name}\n");
    write_lines(columns, "object", &names, width, &mut text);
    if objects.len() > shown.len() {
        let _ = writeln!(
            text,
            "and {} more, which --json has",
            objects.len() - shown.len()
        );
    }
    text
}

fn column(title: &'static str, rank: u8, cells: Vec<String>) -> Column {
    Column { title, rank, cells }
}

/// Median, with the range if the figures differ.
fn spread(figures: &Spread, words: fn(f64) -> String) -> String {
    match figures.minimum < figures.maximum {
        true => format!(
            "{} ({} to {})",
            words(figures.median),
            words(figures.minimum),
            words(figures.maximum)
        ),
        false => words(figures.median),
    }
}
