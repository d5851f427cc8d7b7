//! The arithmetic of placement: which pages of an object go to which node. Nothing here has side effects.
//!
//! # Which pages belong to an object
//! Boundaries of the object, and between its pieces, move to the nearest page boundary; exactly half-way they move
//! down. A page thus goes with the piece that covers its larger part, and a neighbour that has most of a page keeps the
//! page. Boundaries between pieces move to the nearest boundary of the placement unit instead, which is the huge page
//! where huge pages are in use. The object's ends stay at ordinary pages, so that less of its neighbours is touched.
//!
//! An object of less than two pages is left alone, as at best one page would be its own.

mod node_set;
mod tiles;

pub use node_set::{NODES_MAX, NodeSet};
pub use tiles::Tiles;

use crate::compact_plan::{Rule, Run, Weight, placement};

/// Where the pages of an object go, with tables resolved; see [`crate::compact_plan::placement`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern<'plan> {
    /// Round-robin by page over all nodes of the set.
    Interleave(&'plan [u16]),
    /// Share k of the object to the k-th node.
    Block(&'plan [u16]),
    /// Pieces of a fixed size that go to the nodes in turn.
    BlockCyclic(&'plan [u16], u64),
    /// Tiles of an array of rows.
    Tiles(Tiles<'plan>),
    /// The whole object on one node.
    Node(u32),
    /// Runs in ascending order, and the size of their pages in bytes; pages count from that of the first byte.
    Runs(&'plan [Run], u64),
    /// Rows of pages round the nodes, in which each node has a part by its weight.
    ///
    /// A row begins with pages round all nodes, as many for each as the least weight says. Then come pages round the
    /// nodes with a larger weight, and so on: each of these layers takes one memory policy. Runs for single nodes would
    /// take one for every few pages. A row has at least as many pages as all weights together, and 256 placement units
    /// (a MiB of small pages) in an object of 16 such rows.
    Weighted(&'plan [Weight]),
    /// The object is left alone.
    Leave,
}

/// Tables of a compact plan that patterns refer to.
#[derive(Clone, Copy, Debug)]
pub struct PatternTables<'plan> {
    /// Node sequences.
    pub nodes: &'plan [u16],
    /// Page runs.
    pub runs: &'plan [Run],
    /// Weights.
    pub weights: &'plan [Weight],
    /// Unit of page runs, in bytes.
    pub page_bytes: u64,
}

/// The part `[first, count]` of a table; `None` if it reaches beyond the table.
pub fn part<T>(table: &[T], [first, count]: [u32; 2]) -> Option<&[T]> {
    table.get(first as usize..(first as usize).checked_add(count as usize)?)
}

impl<'plan> Pattern<'plan> {
    /// Pattern of a rule's objects; `None` if the rule is invalid.
    pub fn of(rule: &Rule, tables: &PatternTables<'plan>) -> Option<Self> {
        let nodes = || part(tables.nodes, rule.nodes).filter(|nodes| !nodes.is_empty());
        Some(match rule.placement {
            placement::INTERLEAVE => Self::Interleave(nodes()?),
            placement::BLOCK => Self::Block(nodes()?),
            placement::BLOCK_CYCLIC if rule.block_bytes > 0 => {
                Self::BlockCyclic(nodes()?, rule.block_bytes)
            }
            placement::TILES if rule.block_bytes > 0 && rule.columns > 0 => {
                let nodes = nodes()?;
                if nodes.len() % rule.columns as usize != 0 {
                    return None;
                }
                Self::Tiles(Tiles {
                    nodes,
                    columns: rule.columns,
                    row_bytes: rule.block_bytes,
                })
            }
            placement::NODE => Self::Node((*nodes()?.first()?).into()),
            placement::RUNS => {
                let runs = part(tables.runs, rule.runs).filter(|runs| !runs.is_empty())?;
                if !runs
                    .windows(2)
                    .all(|pair| pair[0].first_page < pair[1].first_page)
                {
                    return None;
                }
                Self::Runs(runs, tables.page_bytes)
            }
            placement::WEIGHTED_INTERLEAVE => Self::Weighted(
                part(tables.weights, rule.weights).filter(|weights| !weights.is_empty())?,
            ),
            placement::LEAVE => Self::Leave,
            _ => return None,
        })
    }
}

impl Pattern<'_> {
    /// All nodes that the pattern names.
    pub fn nodes(&self) -> NodeSet {
        let mut set = NodeSet::EMPTY;
        match self {
            Self::Interleave(nodes)
            | Self::Block(nodes)
            | Self::BlockCyclic(nodes, _)
            | Self::Tiles(Tiles { nodes, .. }) => {
                nodes.iter().for_each(|node| set.insert((*node).into()));
            }
            Self::Node(node) => set.insert(*node),
            Self::Runs(runs, _) => runs.iter().for_each(|run| set.insert(run.node)),
            Self::Weighted(weights) => weights.iter().for_each(|weight| set.insert(weight.node)),
            Self::Leave => {}
        }
        set
    }

    /// The only node of a pattern that names no other node.
    fn single(&self) -> Option<u32> {
        let (first, alike) = match self {
            Self::Interleave(nodes)
            | Self::Block(nodes)
            | Self::BlockCyclic(nodes, _)
            | Self::Tiles(Tiles { nodes, .. }) => {
                let first = u32::from(*nodes.first()?);
                (first, nodes.iter().all(|node| u32::from(*node) == first))
            }
            Self::Node(node) => (*node, true),
            Self::Runs(runs, _) => (
                runs.first()?.node,
                runs.iter().all(|run| run.node == runs[0].node),
            ),
            Self::Weighted(weights) => (
                weights.first()?.node,
                weights.iter().all(|weight| weight.node == weights[0].node),
            ),
            Self::Leave => return None,
        };
        // MPOL_INTERLEAVE over one node has the effect of MPOL_PREFERRED on it, but shows the plan.
        (alike && !matches!(self, Self::Interleave(_))).then_some(first)
    }
}

/// An object in memory, and the units in which its pages are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub address: usize,
    /// Bytes.
    pub size_bytes: usize,
    /// The system's page, a power of two, in bytes.
    pub page_bytes: usize,
    /// Unit of boundaries between pieces, a power of two of at least a page, in bytes.
    pub unit_bytes: usize,
}

impl Extent {
    /// First address, and address after the last, of the pages that belong to the object; `None` if the object is
    /// smaller than two pages.
    pub fn pages(&self) -> Option<(usize, usize)> {
        if self.size_bytes < 2 * self.page_bytes {
            return None;
        }
        let end = self.address.checked_add(self.size_bytes)?;
        let pages = (
            nearest(self.address, self.page_bytes)?,
            nearest(end, self.page_bytes)?,
        );
        (pages.0 < pages.1).then_some(pages)
    }
}

/// The multiple of `unit` (a power of two) nearest to `address`; the lower multiple half-way.
fn nearest(address: usize, unit: usize) -> Option<usize> {
    let low = address & !(unit - 1);
    if address - low <= unit / 2 {
        Some(low)
    } else {
        low.checked_add(unit)
    }
}

/// Target of the pages of one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One node.
    Node(u32),
    /// Round-robin by page over these nodes.
    Interleave(NodeSet),
}

/// Consecutive whole pages that go to the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte.
    pub start: usize,
    /// Address after the last byte.
    pub end: usize,
    /// Target of the pages.
    pub target: Target,
}

/// The pieces of an object in ascending order, without gaps or overlap; neighbours have different targets.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'plan> {
    extent: Extent,
    pattern: Pattern<'plan>,
    /// Address of the next piece, and end of the last piece.
    cursor: usize,
    end: usize,
    /// Number of the next raw piece, before rounding and merging.
    index: u64,
    /// Number of pieces that may still be exact; the remainder of the object is one interleaved piece.
    exact: u64,
    /// Raw runs shorter than this join the run before them.
    run_bytes_min: u64,
    /// Weighted patterns use rows this many times as long as their weights, in pages.
    scale: u64,
    /// Number of layers in a row of a weighted pattern.
    layers: u64,
}

/// Length of a weighted pattern's rows in placement units, if the object has enough: a MiB of small pages.
const ROW_UNITS: u64 = 256;
/// Rows that an object of a weighted pattern has at least, if it has that many times its weights' sum.
const ROWS_MIN: u64 = 16;

impl<'plan> Pieces<'plan> {
    /// The exact pieces of an object; none for [`Pattern::Leave`], for an object of less than two
    /// pages, and for a pattern without nodes.
    pub fn new(extent: Extent, pattern: Pattern<'plan>) -> Self {
        let pattern = match (pattern.single(), pattern) {
            (Some(node), _) => Pattern::Node(node),
            (None, Pattern::BlockCyclic(nodes, block)) => {
                Pattern::BlockCyclic(nodes, block.max(extent.unit_bytes as u64))
            }
            (None, Pattern::Tiles(tiles)) => Pattern::Tiles(Tiles {
                row_bytes: (extent.unit_bytes as u64)
                    .saturating_mul(tiles.columns.into())
                    .max(tiles.row_bytes),
                ..tiles
            }),
            (None, other) => other,
        };
        let unit_pages = (extent.unit_bytes / extent.page_bytes) as u64;
        let (mut cursor, end) = extent.pages().unwrap_or((0, 0));
        if pattern.nodes().is_empty() {
            cursor = end;
        }
        let (mut scale, mut layers) = (unit_pages, 1);
        if let Pattern::Weighted(weights) = pattern {
            let least_units = pages_in_row(weights, u32::MAX).max(1);
            let units = ((end - cursor) / extent.unit_bytes) as u64;
            scale *= (ROW_UNITS / least_units)
                .min(units / least_units / ROWS_MIN)
                .max(1);
            layers = layers_of(weights).count() as u64;
        }
        Self {
            extent,
            pattern,
            cursor,
            end,
            index: 0,
            exact: u64::MAX,
            run_bytes_min: 0,
            scale,
            layers,
        }
    }

    /// The pieces between two addresses, which are page boundaries.
    pub fn within(self, start: usize, end: usize) -> Self {
        Self {
            cursor: self.cursor.max(start),
            end: self.end.min(end),
            ..self
        }
    }

    /// Begin of the next piece, and end of the last piece.
    pub fn range(&self) -> (usize, usize) {
        (self.cursor, self.end)
    }

    /// The object in at most `pieces_max` pieces (at least 1), and the number of exact pieces given up for this.
    ///
    /// Short runs join the run before them, and weighted patterns use longer rows. In every other pattern, the first
    /// pieces stay exact, and the remainder is interleaved over the pattern's nodes: larger blocks would be just as
    /// wrong for every thread but the first.
    pub fn at_most(self, pieces_max: u64) -> (Self, u64) {
        let pieces_max = pieces_max.max(1);
        let exact = self.count_up_to(pieces_max.saturating_add(1));
        if exact <= pieces_max {
            return (self, 0);
        }
        let mut fitted = self;
        match self.pattern {
            Pattern::Runs(runs, _) => {
                let all = self.count_up_to(runs.len() as u64 + 1);
                fitted.run_bytes_min = 2 * self.extent.page_bytes as u64;
                while fitted.count_up_to(pieces_max.saturating_add(1)) > pieces_max {
                    fitted.run_bytes_min *= 2;
                }
                (fitted, all - fitted.count_up_to(pieces_max))
            }
            Pattern::Weighted(_) => {
                while fitted.count_up_to(pieces_max.saturating_add(1)) > pieces_max {
                    fitted.scale *= 2;
                }
                (fitted, 0)
            }
            _ => {
                fitted.exact = pieces_max - 1;
                // Every exact piece except the kept ones; a block-cyclic pattern has one piece per block.
                let all = match self.pattern {
                    Pattern::BlockCyclic(_, block) => {
                        ((self.end - self.cursor) as u64).div_ceil(block)
                    }
                    _ => self.count_up_to(u64::MAX),
                };
                (fitted, all.saturating_sub(fitted.exact))
            }
        }
    }

    /// Number of pieces, counted no further than `limit`.
    pub fn count_up_to(self, limit: u64) -> u64 {
        self.take(usize::try_from(limit).unwrap_or(usize::MAX))
            .count() as u64
    }

    /// The rounded end of raw piece `index`; `None` if no further piece follows.
    fn raw_end(&self, index: u64) -> Option<usize> {
        let Extent {
            address,
            size_bytes,
            page_bytes,
            unit_bytes,
        } = self.extent;
        let offset = match self.pattern {
            Pattern::Block(nodes) if index + 1 < nodes.len() as u64 => {
                size_bytes as u128 * u128::from(index + 1) / nodes.len() as u128
            }
            Pattern::BlockCyclic(_, block) => u128::from(index + 1) * u128::from(block),
            Pattern::Tiles(tiles) => tiles.end(index),
            Pattern::Runs(runs, run_page_bytes) => {
                let next = runs.get(usize::try_from(index + 1).ok()?)?;
                let head = (address & (page_bytes - 1)) as u128;
                (u128::from(next.first_page) * u128::from(run_page_bytes)).saturating_sub(head)
            }
            Pattern::Weighted(weights) => {
                let row = pages_in_row(weights, u32::MAX);
                let in_row = pages_in_row(weights, self.layer(weights, index));
                let pages = u128::from(index / self.layers) * u128::from(row) + u128::from(in_row);
                pages * u128::from(self.scale) * page_bytes as u128
            }
            _ => return None,
        };
        let boundary = usize::try_from(address as u128 + offset).ok()?;
        let boundary = nearest(boundary, unit_bytes)?;
        (boundary < self.end).then_some(boundary)
    }

    fn raw_target(&self, index: u64) -> Target {
        let dealt = |count: usize| usize::try_from(index % count as u64).unwrap_or(0);
        match self.pattern {
            Pattern::Interleave(_) | Pattern::Leave => Target::Interleave(self.pattern.nodes()),
            Pattern::Node(node) => Target::Node(node),
            Pattern::Block(nodes) | Pattern::BlockCyclic(nodes, _) => {
                Target::Node(nodes[dealt(nodes.len())].into())
            }
            Pattern::Tiles(tiles) => Target::Node(tiles.node(index, self.extent.size_bytes).into()),
            Pattern::Runs(runs, _) => Target::Node(runs[dealt(runs.len())].node),
            Pattern::Weighted(weights) => {
                let layer = self.layer(weights, index);
                let mut nodes = NodeSet::EMPTY;
                let of_layer = weights.iter().filter(|weight| pages(weight) >= layer);
                of_layer.for_each(|weight| nodes.insert(weight.node));
                match (nodes.nth(0), nodes.len()) {
                    (Some(node), 1) => Target::Node(node),
                    _ => Target::Interleave(nodes),
                }
            }
        }
    }

    /// The weight of which the layer of raw piece `index` is.
    fn layer(&self, weights: &[Weight], index: u64) -> u32 {
        let number = usize::try_from(index % self.layers).unwrap_or(0);
        layers_of(weights).nth(number).unwrap_or(u32::MAX)
    }
}

/// Pages of a weight, at least one.
fn pages(weight: &Weight) -> u32 {
    weight.pages.max(1)
}

/// The weights in ascending order, each once.
fn layers_of(weights: &[Weight]) -> impl Iterator<Item = u32> + '_ {
    let after = |before: u32| {
        let larger = weights
            .iter()
            .map(pages)
            .filter(move |pages| *pages > before);
        larger.min()
    };
    core::iter::successors(after(0), move |before| after(*before))
}

/// Pages of a row up to the layer of weight `layer`, with that layer.
fn pages_in_row(weights: &[Weight], layer: u32) -> u64 {
    weights
        .iter()
        .map(|weight| u64::from(pages(weight).min(layer)))
        .sum()
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.cursor >= self.end {
            return None;
        }
        let start = self.cursor;
        if self.exact == 0 {
            self.cursor = self.end;
            return Some(Piece {
                start,
                end: self.end,
                target: Target::Interleave(self.pattern.nodes()),
            });
        }
        let mut target = None;
        loop {
            let raw_end = self.raw_end(self.index);
            let end = raw_end.unwrap_or(self.end);
            if end > self.cursor {
                let next = self.raw_target(self.index);
                let long_enough = (end - self.cursor) as u64 >= self.run_bytes_min;
                if target.is_some_and(|target| target != next && long_enough) {
                    break;
                }
                target = target.or(Some(next));
                self.cursor = end;
            }
            if raw_end.is_none() {
                break;
            }
            self.index += 1;
        }
        self.exact -= 1;
        Some(Piece {
            start,
            end: self.cursor,
            target: target?,
        })
    }
}

#[cfg(test)]
mod tests;
