//! A window of time × address space, binned: in each bin the colour with the most accesses, and
//! their number.

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

/// Points that are read one by one for a picture, at most, where there are sums to fall back on.
const POINTS_MAX: u64 = 8_000_000;
/// Bins of a picture in each direction, at most.
pub const BINS_MAX: usize = 2048;
/// Bytes of sums that a thread works on at once, about.
const PART_BYTES: usize = 4 << 20;
/// A bin with no access.
const EMPTY: u8 = u8::MAX;

/// A picture's frame, in bytes of the address space and nanoseconds since the recording began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Frame {
    /// Place of the first byte.
    pub place_from: u64,
    /// And behind the last.
    pub place_to: u64,
    /// Begin.
    pub from_ns: u64,
    /// End.
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
    /// What it shows, which may be a little more than was asked for.
    pub frame: Frame,
    /// Colour with the most accesses, `[row][column]`; 255: none.
    pub colours: Vec<u8>,
    /// Accesses of all colours, by weight.
    pub accesses: Vec<f32>,
    /// Accesses of each colour.
    pub totals: Vec<f64>,
    /// From the sums, whose bins are coarser than the points.
    pub coarse: bool,
}

/// What pictures are made from.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// Units.
    pub scale: &'a Scale,
    /// All points.
    pub store: &'a Store,
    /// Sums, where there are enough points to need them.
    pub pyramid: Option<&'a Pyramid>,
}

/// Accesses of each colour in each bin, made a few rows at a time.
struct Grid<'a> {
    sources: Sources<'a>,
    by: ColourBy,
    frame: Frame,
    slots: usize,
    bins: Bins<'a>,
}

/// What bins are made from.
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

    /// Rows, in parts for several threads, small enough for their caches.
    fn parts(&self) -> Vec<Range<usize>> {
        let rows = self.frame.rows;
        let bytes = rows * self.frame.columns * self.slots * 4;
        let count = bytes.div_ceil(PART_BYTES).max(workers()).clamp(1, rows);
        (0..count)
            .map(|part| rows * part / count..rows * (part + 1) / count)
            .collect()
    }

    /// The points of each part, read once whatever the number of parts: where they come from sums,
    /// none. One list for each thread that read, in the order of what it read.
    fn dealt(&self, parts: &[Range<usize>]) -> io::Result<Vec<Vec<Vec<BinnedPoint>>>> {
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
            let mut dealt = vec![Vec::new(); parts.len()];
            let own = pieces.len() * worker / workers..pieces.len() * (worker + 1) / workers;
            store.scan(window, &pieces[own], |point| {
                let row = ((point.line - window.lines.start) / row_lines) as usize;
                let column = ((point.tick - window.ticks.start) / column_ticks) as usize;
                let part = part_of_row[row];
                let bin = (row - parts[part].start) * self.frame.columns + column;
                dealt[part].push(BinnedPoint {
                    sum: (bin * self.slots + scale.slot(self.by, point)) as u32,
                    weight: point.weight,
                });
            })?;
            Ok(dealt)
        })
    }

    /// What `each` makes of the sums of every part, `[row][column][slot]`, in order of rows. It is told
    /// of each bin whether it may have any: of points mostly few do, and there may be 64 slots.
    fn reduce<R: Send>(&self, each: impl Fn(&[f32], &[bool]) -> R + Sync) -> io::Result<Vec<R>> {
        let parts = self.parts();
        let dealt = self.dealt(&parts)?;
        let next = AtomicUsize::new(0);
        let made = together(workers().min(parts.len()), |_| {
            let (mut sums, mut touched, mut made) = (Vec::new(), Vec::new(), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(number) else {
                    return Ok(made);
                };
                let bins = part.len() * self.frame.columns;
                let points = || dealt.iter().flat_map(|of| &of[number]);
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

/// A point on its way to the sums of its part.
#[derive(Clone, Copy, Debug)]
struct BinnedPoint {
    /// Position in them.
    sum: u32,
    weight: f32,
}

/// What so many threads make, by their numbers.
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
    /// The picture of the window `asked`. Bins are whole lines and ticks, so there may be fewer bins than requested. A bin with
    /// any access of colour `first` has that colour.
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
    /// What it shows; one column.
    pub frame: Frame,
    /// Number of colours.
    pub slots: usize,
    /// Accesses, `[row][slot]`.
    pub sums: Vec<f64>,
    /// From the sums, whose bins are coarser than the points.
    pub coarse: bool,
}

impl Histogram {
    /// The addresses of the window `asked`, over all of its time.
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

/// What lies in a small window, by every colouring: the exact value under the pointer.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Value {
    /// Observed accesses.
    pub samples: u64,
    /// By weight.
    pub accesses: f64,
    /// Time lost, in nanoseconds.
    pub cost_ns: f64,
    /// By colouring: colour and accesses, the most first.
    pub by: Vec<(&'static str, Vec<(usize, f64)>)>,
}

impl Value {
    /// All of `asked`.
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
