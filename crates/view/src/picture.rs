//! Pictures of a window of time × address space: each bin has the colour with the most accesses, and the number of
//! accesses.

mod over_time;

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde::Serialize;

use crate::point::{ColourBy, Scale};
use crate::pyramid::Pyramid;
use crate::store::{Store, Window};

pub use over_time::OverTime;

/// Limit of the number of points that are read for a picture if there are sums to use instead.
const POINTS_MAX: u64 = 8_000_000;
/// Maximum number of bins in each direction.
pub const BINS_MAX: usize = 2048;
/// Approximate number of bytes of sums that a thread works on at a time.
const PART_BYTES: usize = 4 << 20;
/// Colour of a bin without accesses.
const EMPTY: u8 = u8::MAX;

/// Frame of a picture, in bytes of the address space and nanoseconds since the recording began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Frame {
    /// Place of the first byte.
    pub place_from: u64,
    /// Place after the last byte.
    pub place_to: u64,
    /// Begin of the time.
    pub from_ns: u64,
    /// End of the time.
    pub to_ns: u64,
    /// Bins over time.
    pub columns: usize,
    /// Bins over the address space.
    pub rows: usize,
}

impl Frame {
    fn window(&self, scale: &Scale) -> Window {
        Window {
            lines: scale.lines_of(self.place_from, self.place_to),
            ticks: scale.ticks_of(self.from_ns, self.to_ns),
        }
    }
}

/// A picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Frame of the picture, which may be a little larger than requested.
    pub frame: Frame,
    /// Colour with the most accesses, `[row][column]`; 255: no accesses.
    pub colours: Vec<u8>,
    /// Accesses of all colours in each bin, by weight.
    pub accesses: Vec<f32>,
    /// Accesses of each colour.
    pub totals: Vec<f64>,
    /// Was the picture made from the sums, whose bins are coarser than the points?
    pub coarse: bool,
}

/// Sources of pictures.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Units of the points.
    pub scale: &'a Scale,
    /// All points.
    pub store: &'a Store,
    /// Sums of the points, if there are enough points to need sums.
    pub pyramid: Option<&'a Pyramid>,
}

/// Accesses by bin and colour, computed a few rows at a time.
struct Grid<'a> {
    sources: Sources<'a>,
    by: ColourBy,
    frame: Frame,
    slots: usize,
    bins: Bins<'a>,
}

/// Source of the bins.
enum Bins<'a> {
    Points {
        window: Window,
        row_lines: u32,
        column_ticks: u32,
    },
    Sums {
        pyramid: &'a Pyramid,
        rows: Range<usize>,
        columns: Range<usize>,
    },
}

impl<'a> Grid<'a> {
    fn new(sources: Sources<'a>, by: ColourBy, asked: &Frame) -> Self {
        let Sources {
            scale,
            store,
            pyramid,
        } = sources;
        let window = asked.window(scale);
        let slots = scale.slots(by);
        if let Some(pyramid) = pyramid.filter(|_| store.to_read(&window) > POINTS_MAX) {
            let (rows, columns) = pyramid.bins(&window);
            let shown = pyramid.window(scale, &rows, &columns);
            return Self {
                sources,
                by,
                frame: frame(scale, &shown, columns.len(), rows.len()),
                slots,
                bins: Bins::Sums {
                    pyramid,
                    rows,
                    columns,
                },
            };
        }
        let bins = |range: &Range<u32>, most: usize| {
            let length = range.end - range.start;
            let unit = length.div_ceil(most.clamp(1, BINS_MAX) as u32).max(1);
            let bins = length.div_ceil(unit);
            let end = range.start.saturating_add(bins.saturating_mul(unit));
            (unit, bins as usize, range.start..end)
        };
        let (row_lines, rows, lines) = bins(&window.lines, asked.rows);
        let (column_ticks, columns, ticks) = bins(&window.ticks, asked.columns);
        Self {
            sources,
            by,
            frame: frame(scale, &Window { lines, ticks }, columns, rows),
            slots,
            bins: Bins::Points {
                window,
                row_lines,
                column_ticks,
            },
        }
    }

    fn coarse(&self) -> bool {
        matches!(self.bins, Bins::Sums { .. })
    }

    /// Divides the rows into parts for several threads. The sums of a part fit into a processor's cache.
    fn parts(&self) -> Vec<Range<usize>> {
        let rows = self.frame.rows;
        let bytes = rows * self.frame.columns * self.slots * 4;
        let count = bytes.div_ceil(PART_BYTES).max(workers()).clamp(1, rows);
        (0..count)
            .map(|part| rows * part / count..rows * (part + 1) / count)
            .collect()
    }

    /// Points by part, for bins that are made from points. Each point is read once. The outer list has an entry for
    /// each reading thread, with points in reading order.
    fn points_by_part(&self, parts: &[Range<usize>]) -> io::Result<Vec<Vec<Vec<BinnedPoint>>>> {
        let Bins::Points {
            window,
            row_lines,
            column_ticks,
        } = &self.bins
        else {
            return Ok(Vec::new());
        };
        let Sources { scale, store, .. } = self.sources;
        let pieces = store.pieces(window);
        let mut part_of_row = vec![0; self.frame.rows];
        for (number, part) in parts.iter().enumerate() {
            part_of_row[part.clone()].fill(number);
        }
        let workers = workers().min(pieces.len().max(1));
        together(workers, |worker| {
            let mut by_part = vec![Vec::new(); parts.len()];
            let own = pieces.len() * worker / workers..pieces.len() * (worker + 1) / workers;
            store.scan(window, &pieces[own], |point| {
                let row = ((point.line - window.lines.start) / row_lines) as usize;
                let column = ((point.tick - window.ticks.start) / column_ticks) as usize;
                let part = part_of_row[row];
                let bin = (row - parts[part].start) * self.frame.columns + column;
                by_part[part].push(BinnedPoint {
                    sum: (bin * self.slots + scale.slot(self.by, point)) as u32,
                    weight: point.weight,
                });
            })?;
            Ok(by_part)
        })
    }

    /// Calls `each` with the sums of every part, `[row][column][slot]`, and returns the results in the order of rows.
    /// The second argument tells for each bin whether it may have accesses: most bins of points are empty, and a bin
    /// may have 64 slots to examine.
    fn reduce<R: Send>(&self, each: impl Fn(&[f32], &[bool]) -> R + Sync) -> io::Result<Vec<R>> {
        let parts = self.parts();
        let by_part = self.points_by_part(&parts)?;
        let next = AtomicUsize::new(0);
        let made = together(workers().min(parts.len()), |_| {
            let (mut sums, mut touched, mut made) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(number) else {
                    return Ok(made);
                };
                let bins = part.len() * self.frame.columns;
                let points = || by_part.iter().flat_map(|of| &of[number]);
                match &self.bins {
                    Bins::Sums {
                        pyramid,
                        rows,
                        columns,
                    } => {
                        let part = rows.start + part.start..rows.start + part.end;
                        pyramid.read(self.by, part, columns.clone(), &mut sums)?;
                        touched.resize(bins, true);
                    }
                    Bins::Points { .. } => {
                        sums.resize(bins * self.slots, 0.0);
                        touched.resize(bins, false);
                        for point in points() {
                            sums[point.sum as usize] += point.weight;
                            touched[point.sum as usize / self.slots] = true;
                        }
                    }
                }
                made.push((number, each(&sums, &touched)));
                for point in points() {
                    sums[point.sum as usize] = 0.0;
                    touched[point.sum as usize / self.slots] = false;
                }
            }
        })?;
        let mut made: Vec<(usize, R)> = made.into_iter().flatten().collect();
        made.sort_unstable_by_key(|(number, _)| *number);
        Ok(made.into_iter().map(|(_, result)| result).collect())
    }
}

/// A point with its position in the sums of its part.
#[derive(Clone, Copy, Debug)]
struct BinnedPoint {
    /// Position in the sums.
    sum: u32,
    weight: f32,
}

/// Runs `work` on `workers` threads, with the thread's number, and returns the results.
fn together<R: Send>(
    workers: usize,
    work: impl Fn(usize) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = (1..workers)
            .map(|worker| scope.spawn(move || work(worker)))
            .collect();
        let first = work(0);
        let others = others.into_iter().map(|other| {
            let result = other.join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        std::iter::once(first).chain(others).collect()
    })
}

fn workers() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(8)
}

impl Picture {
    /// Picture of the window `asked`. Bins consist of whole lines and ticks, so there may be fewer bins than requested.
    /// A bin with any access of colour `first` has that colour.
    ///
    /// # Errors
    /// Errors of the files behind the sources.
    pub fn new(
        sources: Sources,
        by: ColourBy,
        first: Option<usize>,
        asked: &Frame,
    ) -> io::Result<Self> {
        let grid = Grid::new(sources, by, asked);
        let slots = grid.slots;
        let parts = grid.reduce(|sums, touched| {
            let bins = sums.len() / slots;
            let mut totals = vec![0f64; slots];
            let (mut colours, mut accesses) = (Vec::with_capacity(bins), Vec::with_capacity(bins));
            for (bin, &touched) in sums.chunks_exact(slots).zip(touched) {
                let mut most = (EMPTY, 0f32);
                let mut all = 0f32;
                if !touched {
                    colours.push(most.0);
                    accesses.push(all);
                    continue;
                }
                for (slot, &count) in bin.iter().enumerate() {
                    if count > 0.0 {
                        all += count;
                        totals[slot] += f64::from(count);
                        if count > most.1 {
                            most = (slot as u8, count);
                        }
                    }
                }
                let first = first.filter(|&slot| bin.get(slot).is_some_and(|&count| count > 0.0));
                colours.push(first.map_or(most.0, |slot| slot as u8));
                accesses.push(all);
            }
            (colours, accesses, totals)
        })?;
        let mut picture = Self {
            coarse: grid.coarse(),
            frame: grid.frame,
            colours: Vec::new(),
            accesses: Vec::new(),
            totals: vec![0.0; slots],
        };
        for (colours, accesses, totals) in parts {
            picture.colours.extend(colours);
            picture.accesses.extend(accesses);
            for (sum, total) in picture.totals.iter_mut().zip(totals) {
                *sum += total;
            }
        }
        Ok(picture)
    }
}

/// Accesses over the address space, by colour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// Frame of the histogram, with one column.
    pub frame: Frame,
    /// Number of colours.
    pub slots: usize,
    /// Accesses, `[row][slot]`.
    pub sums: Vec<f64>,
    /// Was the histogram made from the sums, whose bins are coarser than the points?
    pub coarse: bool,
}

impl Histogram {
    /// Histogram over the addresses of the window `asked`, for all of its time.
    ///
    /// # Errors
    /// Errors of the files behind the sources.
    pub fn new(sources: Sources, by: ColourBy, asked: &Frame) -> io::Result<Self> {
        let one = Frame {
            columns: 1,
            ..asked.clone()
        };
        let grid = Grid::new(sources, by, &one);
        let (slots, columns) = (grid.slots, grid.frame.columns);
        let rows = grid.reduce(|sums, _| {
            let mut rows = vec![0f64; sums.len() / columns];
            for (bin, counts) in sums.chunks_exact(slots).enumerate() {
                let row = &mut rows[bin / columns * slots..][..slots];
                for (sum, &count) in row.iter_mut().zip(counts) {
                    *sum += f64::from(count);
                }
            }
            rows
        })?;
        Ok(Self {
            coarse: grid.coarse(),
            frame: Frame {
                columns: 1,
                ..grid.frame
            },
            slots,
            sums: rows.concat(),
        })
    }
}

fn frame(scale: &Scale, window: &Window, columns: usize, rows: usize) -> Frame {
    Frame {
        place_from: u64::from(window.lines.start) * scale.line_bytes,
        place_to: u64::from(window.lines.end) * scale.line_bytes,
        from_ns: u64::from(window.ticks.start) * scale.tick_ns,
        to_ns: u64::from(window.ticks.end) * scale.tick_ns,
        columns,
        rows,
    }
}

/// Content of a small window in every colouring: the exact value under the pointer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Value {
    /// Number of observed accesses.
    pub samples: u64,
    /// Accesses by weight.
    pub accesses: f64,
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// Colours and their accesses for each colouring, most accesses first.
    pub by: Vec<(&'static str, Vec<(usize, f64)>)>,
}

impl Value {
    /// Content of the window `asked`.
    ///
    /// # Errors
    /// Errors of the files behind the sources.
    pub fn new(sources: Sources, asked: &Frame) -> io::Result<Self> {
        let Sources { scale, store, .. } = sources;
        let window = asked.window(scale);
        let mut value = Self::default();
        let mut sums = ColourBy::ALL.map(|by| vec![0f64; scale.slots(by)]);
        store.scan(&window, &store.pieces(&window), |point| {
            value.samples += 1;
            value.accesses += f64::from(point.weight);
            value.cost_ns += f64::from(point.cost_ns);
            for (by, sums) in ColourBy::ALL.into_iter().zip(&mut sums) {
                sums[scale.slot(by, point)] += f64::from(point.weight);
            }
        })?;
        value.by = ColourBy::ALL
            .into_iter()
            .zip(sums)
            .map(|(by, sums)| {
                let seen = sums.into_iter().enumerate().filter(|&(_, sum)| sum > 0.0);
                let mut seen: Vec<(usize, f64)> = seen.collect();
                seen.sort_by(|a, b| b.1.total_cmp(&a.1));
                (by.as_str(), seen)
            })
            .collect();
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
