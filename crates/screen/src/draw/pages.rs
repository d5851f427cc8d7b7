//! Pages of an object: who accesses them and where they are, as blocks.

use std::collections::BTreeMap;

use nearpage_amount::{bytes, count, counted};
use nearpage_report::mappings::Mapping;
use nearpage_report::shade;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::{bold, dim};
use crate::model::Model;

/// Samples and homes of the pages in a line.
#[derive(Clone, Debug)]
struct Bin {
    by_node: Vec<f32>,
    homes: Vec<u64>,
}

/// Width of a node's cell: blocks and a number if there is room, else up to four blocks.
fn cell_columns(nodes: usize, columns_max: usize) -> usize {
    let room = columns_max.saturating_sub(OFFSET + HOMES) / nodes.max(1);
    match room.saturating_sub(1) {
        room if room >= CELL => CELL,
        room => room.clamp(1, BLOCKS),
    }
}

const CELL: usize = 9;
const BLOCKS: usize = 4;
const OFFSET: usize = 9;
const HOMES: usize = 7;

/// Lines for all sampled pages. Each line covers as many pages as are needed to fit all lines.
pub fn lines(model: &Model, process: u16, mapping: &Mapping, body: Rect) -> Vec<Line<'static>> {
    let nodes = model.subject.nodes.len();
    let page_bytes = model.subject.page_bytes.max(1);
    let pages = model.pages_of(process);
    let inside = pages
        .iter()
        .filter(|(address, _)| (mapping.start..mapping.end).contains(address));
    let Some(last) = inside.clone().map(|(address, _)| *address).max() else {
        return vec![Line::raw("No page of it was sampled lately.")];
    };
    let first = inside.clone().map(|(address, _)| *address).min();
    let room = u64::from(body.height).saturating_sub(2).max(1);
    let spread = (last - first.unwrap_or(last)) / page_bytes + 1;
    let together = spread.div_ceil(room).next_power_of_two();
    let mut bins: BTreeMap<u64, Bin> = BTreeMap::new();
    for (address, page) in inside {
        let row = (address - mapping.start) / page_bytes / together;
        let bin = bins.entry(row).or_insert_with(|| Bin {
            by_node: vec![0.0; nodes],
            homes: vec![0; nodes],
        });
        for (sum, samples) in bin.by_node.iter_mut().zip(&page.by_node) {
            *sum += samples;
        }
        if let Some(pages) = bin.homes.get_mut(usize::from(page.home)) {
            *pages += 1;
        }
    }
    let each = match together {
        1 => "page".to_owned(),
        _ => counted(together, "page"),
    };
    let caption = format!("samples by {each} and node of the CPU");
    let numbers = model.subject.nodes.iter();
    let cell = cell_columns(nodes, body.width.into());
    let head = |node: &u16| match cell {
        CELL => format!("by {node}"),
        _ => node.to_string(),
    };
    let heads = numbers.map(|node| format!(" {:<cell$.cell$}", head(node)));
    let heads: String = heads.collect();
    let mut lines = vec![
        Line::styled(caption, dim()),
        Line::styled(format!("{:>OFFSET$}{heads} ON NODE", "AT"), bold()),
    ];
    let most = bins.values().flat_map(|bin| &bin.by_node);
    let most = most.copied().fold(0.0, f32::max).max(1e-6);
    // Rows begin at multiples of a power of two, so there may be one row more than fits.
    for (row, bin) in bins {
        let cells: String = bin
            .by_node
            .iter()
            .map(|&samples| {
                let block = shade(f64::from(samples / most));
                let blocks = block.to_string().repeat(cell.min(BLOCKS));
                let amount = match samples {
                    samples if cell == CELL && samples > 0.0 => count(f64::from(samples.max(1.0))),
                    _ => String::new(),
                };
                format!(" {:<cell$}", format!("{blocks} {amount}").trim_end())
            })
            .collect();
        let at = bytes(row.saturating_mul(together).saturating_mul(page_bytes));
        lines.push(Line::raw(format!(
            "{at:>OFFSET$}{cells} {}",
            homes(model, &bin.homes)
        )));
    }
    lines
}

/// Node of the pages, `3`, or number of pages on each node, `0: 12  3: 4`.
fn homes(model: &Model, pages: &[u64]) -> String {
    let some: Vec<(u16, u64)> = pages
        .iter()
        .enumerate()
        .filter(|(_, pages)| **pages > 0)
        .map(|(at, pages)| (model.node(at as u16), *pages))
        .collect();
    match some.as_slice() {
        [(node, _)] => node.to_string(),
        some => {
            let parts = some.iter().map(|(node, pages)| format!("{node}: {pages}"));
            parts.collect::<Vec<String>>().join("  ")
        }
    }
}
