//! Sums of all accesses, for windows with too many accesses to read them individually. The sums cover the whole address
//! space and the whole time in at most 1024 × 512 bins, each with its accesses by every colour of every [`ColourBy`].
//! Finer pictures are made from the points.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use crate::point::{ColourBy, Point, Scale};
use crate::store::{Window, bucket_shift};

const ROWS_MAX: u32 = 1024;
const COLUMNS_MAX: u32 = 512;

/// Bins of lines and ticks, and the number of colours of each bin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of lines in a row.
    pub row_lines: u32,
    pub rows: usize,
    /// Number of ticks in a column.
    pub column_ticks: u32,
    pub columns: usize,
    /// Number of colours of each [`ColourBy`].
    slots: [usize; ColourBy::ALL.len()],
}

impl Shape {
    pub fn new(scale: &Scale) -> Self {
        // Rows consist of whole buckets, so that points that are ordered by bucket are ordered by row.
        let bucket = 1 << bucket_shift(scale.lines);
        let row_lines = bucket * scale.lines.div_ceil(bucket).div_ceil(ROWS_MAX);
        let column_ticks = scale.ticks.div_ceil(COLUMNS_MAX);
        Self {
            row_lines,
            rows: scale.lines.div_ceil(row_lines) as usize,
            column_ticks,
            columns: scale.ticks.div_ceil(column_ticks) as usize,
            slots: ColourBy::ALL.map(|by| scale.slots(by)),
        }
    }

    fn row(&self) -> usize {
        self.slots.iter().sum::<usize>() * self.columns
    }

    pub fn bytes(&self) -> u64 {
        (self.row() * self.rows * 4) as u64
    }

    /// Position in a row at which the sums of `by` begin.
    fn plane(&self, by: ColourBy) -> usize {
        self.slots[..position(by)].iter().sum::<usize>() * self.columns
    }

    fn slots_of(&self, by: ColourBy) -> usize {
        self.slots[position(by)]
    }
}

fn position(by: ColourBy) -> usize {
    ColourBy::ALL
        .iter()
        .position(|&other| other == by)
        .unwrap_or(0)
}

/// Sums that several threads compute at once.
pub(crate) struct Builder<'a> {
    scale: &'a Scale,
    shape: Shape,
    rows: Vec<Mutex<Vec<f32>>>,
}

impl<'a> Builder<'a> {
    pub fn new(scale: &'a Scale) -> Self {
        let shape = Shape::new(scale);
        let rows = (0..shape.rows).map(|_| Mutex::default()).collect();
        Self { scale, shape, rows }
    }

    /// Adds points that are ordered by bucket, so that consecutive points mostly belong to one row.
    pub fn add(&self, points: &[Point]) {
        let row_of = |point: &Point| (point.line / self.shape.row_lines) as usize;
        for points in points.chunk_by(|a, b| row_of(a) == row_of(b)) {
            let mut row = self.rows[row_of(&points[0])]
                .lock()
                .expect("nobody panics holding it");
            if row.is_empty() {
                row.resize(self.shape.row(), 0.0);
            }
            for point in points {
                let column = (point.tick / self.shape.column_ticks) as usize;
                let mut plane = 0;
                let found = self.scale.every_slot(point);
                for (slot, slots) in found.into_iter().zip(self.shape.slots) {
                    row[plane + column * slots + slot] += point.weight;
                    plane += slots * self.shape.columns;
                }
            }
        }
    }

    /// Writes the sums.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn finish(self, file: File) -> io::Result<Pyramid> {
        file.set_len(self.shape.bytes())?;
        let mut bytes = Vec::with_capacity(self.shape.row() * 4);
        for (number, row) in self.rows.into_iter().enumerate() {
            let row = row.into_inner().expect("nobody panics holding it");
            // Rows without accesses stay holes in the file.
            if row.is_empty() {
                continue;
            }
            bytes.clear();
            bytes.extend(row.iter().flat_map(|sum| sum.to_le_bytes()));
            file.write_all_at(&bytes, (number * self.shape.row() * 4) as u64)?;
        }
        Ok(Pyramid {
            shape: self.shape,
            file,
        })
    }
}

/// Sums in a file.
#[derive(Debug)]
pub struct Pyramid {
    pub(crate) shape: Shape,
    file: File,
}

impl Pyramid {
    /// Opens a file that was written for this scale; `None` if the size does not fit.
    pub(crate) fn open(scale: &Scale, file: File) -> Option<Self> {
        let shape = Shape::new(scale);
        (file.metadata().ok()?.len() == shape.bytes()).then_some(Self { shape, file })
    }

    /// Rows and columns of the bins that overlap a window.
    pub(crate) fn bins(&self, window: &Window) -> (Range<usize>, Range<usize>) {
        let shape = &self.shape;
        let bins = |range: &Range<u32>, unit: u32, most: usize| {
            let last = (range.end.max(range.start + 1) - 1) / unit;
            (range.start / unit).min(most as u32 - 1) as usize..(last as usize + 1).min(most)
        };
        (
            bins(&window.lines, shape.row_lines, shape.rows),
            bins(&window.ticks, shape.column_ticks, shape.columns),
        )
    }

    /// Window that the bins cover.
    pub(crate) fn window(
        &self,
        scale: &Scale,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Window {
        let edges = |bins: &Range<usize>, unit: u32, end: u32| {
            let edge = |bin: usize| (bin as u64 * u64::from(unit)).min(u64::from(end)) as u32;
            edge(bins.start)..edge(bins.end)
        };
        Window {
            lines: edges(rows, self.shape.row_lines, scale.lines),
            ticks: edges(columns, self.shape.column_ticks, scale.ticks),
        }
    }

    /// Reads the sums of the bins, `[row][column][slot]`.
    pub(crate) fn read(
        &self,
        by: ColourBy,
        rows: Range<usize>,
        columns: Range<usize>,
        sums: &mut Vec<f32>,
    ) -> io::Result<()> {
        let shape = &self.shape;
        let slots = shape.slots_of(by);
        let mut bytes = vec![0; columns.len() * slots * 4];
        sums.clear();
        for row in rows {
            let at = row * shape.row() + shape.plane(by) + columns.start * slots;
            self.file.read_exact_at(&mut bytes, at as u64 * 4)?;
            let (words, _) = bytes.as_chunks::<4>();
            sums.extend(words.iter().map(|word| f32::from_le_bytes(*word)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::point::tests::{point, scale};

    proptest! {
        /// Every bin is the sum of its points, for every colouring.
        #[test]
        fn bins_are_sums(
            points in prop::collection::vec((0..5000u32, 0..3000u32, 0..4u16, any::<u16>()), 0..200),
            lines in (0..5000u32, 1..5000u32),
            ticks in (0..3000u32, 1..3000u32),
            by in prop::sample::select(&ColourBy::ALL[..]),
        ) {
            let scale = scale(5000, 3000, 4, 2);
            let mut points: Vec<Point> = points
                .into_iter()
                .map(|(line, tick, thread, tags)| point(line, tick, thread, tags, 7.0))
                .collect();
            points.sort_by_key(|point| point.line);
            let builder = Builder::new(&scale);
            let (first, second) = points.split_at(points.len() / 2);
            builder.add(first);
            builder.add(second);
            let pyramid = builder.finish(tempfile::tempfile().expect("a file")).expect("written");
            let window = Window {
                lines: lines.0..(lines.0 + lines.1).min(5000),
                ticks: ticks.0..(ticks.0 + ticks.1).min(3000),
            };
            let (rows, columns) = pyramid.bins(&window);
            let shown = pyramid.window(&scale, &rows, &columns);
            prop_assert!(shown.lines.start <= window.lines.start);
            prop_assert!(shown.lines.end >= window.lines.end);
            let slots = scale.slots(by);
            let mut expected = vec![0f32; rows.len() * columns.len() * slots];
            for point in &points {
                if shown.lines.contains(&point.line) && shown.ticks.contains(&point.tick) {
                    let row = (point.line - shown.lines.start) / pyramid.shape.row_lines;
                    let column = (point.tick - shown.ticks.start) / pyramid.shape.column_ticks;
                    let bin = row as usize * columns.len() + column as usize;
                    expected[bin * slots + scale.slot(by, point)] += 1.0;
                }
            }
            let mut found = Vec::new();
            pyramid.read(by, rows, columns, &mut found).expect("read");
            prop_assert_eq!(found, expected);
        }
    }
}
