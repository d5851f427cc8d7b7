//! Accesses over time, by colour.

use std::io;

use serde::Serialize;

use super::{Frame, Grid, Sources};
use crate::point::ColourBy;

/// Accesses over time, by colour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OverTime {
    /// Frame of the series, with one row.
    pub frame: Frame,
    /// Number of colours.
    pub slots: usize,
    /// Accesses, `[column][slot]`.
    pub sums: Vec<f64>,
    /// Was the series made from the sums, whose bins are coarser than the points?
    pub coarse: bool,
}

impl OverTime {
    /// Series over the time of the window `asked`, for all of its addresses.
    ///
    /// # Errors
    /// Errors of the files behind the sources.
    pub fn new(sources: Sources, by: ColourBy, asked: &Frame) -> io::Result<Self> {
        let one = Frame {
            rows: 1,
            ..asked.clone()
        };
        let grid = Grid::new(sources, by, &one);
        let (slots, columns) = (grid.slots, grid.frame.columns);
        let parts = grid.reduce(|sums, _| {
            let mut over_time = vec![0f64; columns * slots];
            for row in sums.chunks_exact(columns * slots) {
                for (sum, &count) in over_time.iter_mut().zip(row) {
                    *sum += f64::from(count);
                }
            }
            over_time
        })?;
        let mut sums = vec![0f64; columns * slots];
        for part in parts {
            for (sum, count) in sums.iter_mut().zip(part) {
                *sum += count;
            }
        }
        Ok(Self {
            coarse: grid.coarse(),
            frame: Frame {
                rows: 1,
                ..grid.frame
            },
            slots,
            sums,
        })
    }
}
