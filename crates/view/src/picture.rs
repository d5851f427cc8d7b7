//! A window of time × address space, binned: in each bin the colour with the most accesses, and
//! their number.

use std::io;
use std::ops::Range;

use serde::Serialize;

use crate::point::{By, Scale};
use crate::pyramid::Pyramid;
use crate::store::{Store, Window};

/// Points that are read one by one for a picture, at most, where there are sums to fall back on.
const POINTS_MAX: u64 = 8_000_000;
/// Bins of a picture in each direction, at most.
pub const BINS_MAX: usize = 2048;
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

/// Accesses of each colour in each bin.
struct Binned {
    frame: Frame,
    slots: usize,
    /// `[row][column][slot]`
    sums: Vec<f32>,
    coarse: bool,
}

impl Binned {
    fn new(sources: Sources, by: By, asked: &Frame) -> io::Result<Self> {
        let Sources {
            scale,
            store,
            pyramid,
        } = sources;
        let lines = bounded(
            asked.place_from,
            asked.place_to,
            scale.line_bytes,
            scale.lines,
        );
        let ticks = bounded(asked.from_ns, asked.to_ns, scale.tick_ns, scale.ticks);
        let window = Window { lines, ticks };
        let slots = scale.slots(by);
        if let Some(pyramid) = pyramid.filter(|_| store.to_read(&window) > POINTS_MAX) {
            let found = pyramid.sums(scale, by, &window)?;
            return Ok(Self {
                frame: frame(scale, &found.window, found.columns, found.rows),
                slots,
                sums: found.sums,
                coarse: true,
            });
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
        let mut sums = vec![0f32; rows * columns * slots];
        store.scan(&window, |point| {
            let row = ((point.line - window.lines.start) / row_lines) as usize;
            let column = ((point.tick - window.ticks.start) / column_ticks) as usize;
            sums[(row * columns + column) * slots + scale.slot(by, point)] += point.weight;
        })?;
        Ok(Self {
            frame: frame(scale, &Window { lines, ticks }, columns, rows),
            slots,
            sums,
            coarse: false,
        })
    }
}

impl Picture {
    /// What `asked` frames. Bins are whole lines and ticks, so there may be fewer than asked for.
    ///
    /// # Errors
    /// Of the files behind the sources.
    pub fn new(sources: Sources, by: By, asked: &Frame) -> io::Result<Self> {
        let Binned {
            frame,
            slots,
            sums,
            coarse,
        } = Binned::new(sources, by, asked)?;
        let mut totals = vec![0f64; slots];
        let (mut colours, mut accesses) = (Vec::new(), Vec::new());
        for bin in sums.chunks_exact(slots) {
            let mut most = (EMPTY, 0f32);
            let mut all = 0f32;
            for (slot, &count) in bin.iter().enumerate() {
                all += count;
                totals[slot] += f64::from(count);
                if count > most.1 {
                    most = (slot as u8, count);
                }
            }
            colours.push(most.0);
            accesses.push(all);
        }
        Ok(Self {
            frame,
            colours,
            accesses,
            totals,
            coarse,
        })
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
    /// Of what `asked` frames, over all of its time.
    ///
    /// # Errors
    /// Of the files behind the sources.
    pub fn new(sources: Sources, by: By, asked: &Frame) -> io::Result<Self> {
        let binned = Binned::new(
            sources,
            by,
            &Frame {
                columns: 1,
                ..asked.clone()
            },
        )?;
        let slots = binned.slots;
        let mut sums = vec![0f64; binned.frame.rows * slots];
        for (bin, counts) in binned.sums.chunks_exact(slots).enumerate() {
            let row = bin / binned.frame.columns;
            for (slot, &count) in counts.iter().enumerate() {
                sums[row * slots + slot] += f64::from(count);
            }
        }
        Ok(Self {
            frame: Frame {
                columns: 1,
                ..binned.frame
            },
            slots,
            sums,
            coarse: binned.coarse,
        })
    }
}

/// Units that a range of bytes or nanoseconds touches: at least one.
fn bounded(from: u64, to: u64, unit: u64, end: u32) -> Range<u32> {
    let end = u64::from(end.max(1));
    let first = (from / unit).min(end - 1);
    let last = to.div_ceil(unit).clamp(first + 1, end);
    first as u32..last as u32
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
    /// Of the files behind the sources.
    pub fn new(sources: Sources, asked: &Frame) -> io::Result<Self> {
        let Sources { scale, store, .. } = sources;
        let window = Window {
            lines: bounded(
                asked.place_from,
                asked.place_to,
                scale.line_bytes,
                scale.lines,
            ),
            ticks: bounded(asked.from_ns, asked.to_ns, scale.tick_ns, scale.ticks),
        };
        let mut value = Self::default();
        let mut sums = By::ALL.map(|by| vec![0f64; scale.slots(by)]);
        store.scan(&window, |point| {
            value.samples += 1;
            value.accesses += f64::from(point.weight);
            value.cost_ns += f64::from(point.cost_ns);
            for (by, sums) in By::ALL.into_iter().zip(&mut sums) {
                sums[scale.slot(by, point)] += f64::from(point.weight);
            }
        })?;
        value.by = By::ALL
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::point::Point;
    use crate::point::tests::{point, scale};
    use crate::store::Builder;

    proptest! {
        /// Against brute force: every access of the window is in the bin that it belongs to.
        #[test]
        fn bins_against_brute_force(
            points in prop::collection::vec((0..5000u32, 0..3000u32, 0..4u16), 1..200),
            place in (0..320_000u64, 1..320_000u64),
            time in (0..3000u64, 1..3000u64),
            columns in 1..50usize,
            rows in 1..50usize,
        ) {
            let scale = scale(5000, 3000, 4, 1);
            let mut points: Vec<Point> = points
                .into_iter()
                .map(|(line, tick, thread)| point(line, tick, thread, 0, 1.0))
                .collect();
            let builder = Builder::new(&scale, None);
            builder.add(0, &mut points).expect("in memory");
            let store = builder.finish();
            let asked = Frame {
                place_from: place.0,
                place_to: place.0 + place.1,
                from_ns: time.0,
                to_ns: time.0 + time.1,
                columns,
                rows,
            };
            let sources = Sources { scale: &scale, store: &store, pyramid: None };
            let picture = Picture::new(sources, By::Thread, &asked).expect("in memory");
            let frame = &picture.frame;
            prop_assert!(frame.columns <= columns && frame.rows <= rows);
            prop_assert!(frame.place_from <= asked.place_from.min(5000 * 64));
            let row_bytes = (frame.place_to - frame.place_from) / frame.rows as u64;
            let column_ns = (frame.to_ns - frame.from_ns) / frame.columns as u64;
            let end = (asked.place_to.div_ceil(64).min(5000), asked.to_ns.min(3000));
            let mut expected = vec![[0f32; 4]; frame.rows * frame.columns];
            for point in &points {
                let (place, time) = (u64::from(point.line) * 64, u64::from(point.tick));
                if place >= frame.place_from && u64::from(point.line) < end.0
                    && time >= frame.from_ns && time < end.1
                {
                    let row = ((place - frame.place_from) / row_bytes) as usize;
                    let column = ((time - frame.from_ns) / column_ns) as usize;
                    expected[row * frame.columns + column][usize::from(point.thread)] += 1.0;
                }
            }
            for (bin, counts) in expected.iter().enumerate() {
                let all: f32 = counts.iter().sum();
                prop_assert_eq!(picture.accesses[bin], all);
                let most = counts.iter().copied().fold(0.0, f32::max);
                match picture.colours[bin] {
                    EMPTY => prop_assert_eq!(all, 0.0),
                    colour => prop_assert_eq!(counts[usize::from(colour)], most),
                }
            }
            let value = Value::new(sources, &asked).expect("in memory");
            let sum: f64 = picture.totals.iter().sum();
            prop_assert_eq!(value.accesses, sum);
            prop_assert_eq!(value.samples as f64, sum);
        }
    }
}
