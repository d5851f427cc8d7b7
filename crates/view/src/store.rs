//! All points of a recording, ordered so that a window's points are found quickly: by chunk in the order of time, and
//! within a chunk by bucket of the address space. A window reads one stretch of each chunk that overlaps its time, in
//! [`Piece`]s that several threads share.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::point::{Point, Scale};

/// Maximum number of buckets of the address space.
const BUCKETS_MAX: u32 = 2048;
/// Maximum number of points in a piece.
const PIECE_POINTS: u32 = 1 << 16;

/// A part of a picture: lines by ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Lines of the address space.
    pub lines: Range<u32>,
    /// Ticks of time.
    pub ticks: Range<u32>,
}

/// A range of points in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    segment: usize,
    points: Range<u32>,
}

/// The points of a chunk, by bucket.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    /// Number of the chunk in the recording.
    pub chunk: usize,
    /// Ticks from the first point to after the last.
    pub ticks: Range<u32>,
    /// Number of the first point of each bucket, followed by the number of all points.
    pub starts: Vec<u32>,
    pub bytes: Bytes,
}

#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Memory(Vec<u8>),
    /// Position in the file.
    File(u64),
}

/// Points, in memory or in a file.
#[derive(Debug, Default)]
pub struct Store {
    bucket_shift: u32,
    pub(crate) segments: Vec<Segment>,
    file: Option<File>,
}

/// Number of low bits in a line's number that give the position in a bucket.
pub(crate) fn bucket_shift(lines: u32) -> u32 {
    (0..32)
        .find(|shift| lines.div_ceil(1 << shift) <= BUCKETS_MAX)
        .unwrap_or(31)
}

fn buckets(lines: u32) -> usize {
    lines.div_ceil(1 << bucket_shift(lines)) as usize
}

/// Collects points chunk by chunk, from several threads at once.
pub struct Builder {
    bucket_shift: u32,
    buckets: usize,
    file: Option<File>,
    end: AtomicU64,
    segments: Mutex<Vec<Segment>>,
}

impl Builder {
    /// Collects points in a file, or in memory without a file.
    pub fn new(scale: &Scale, file: Option<File>) -> Self {
        Self {
            bucket_shift: bucket_shift(scale.lines),
            buckets: buckets(scale.lines),
            file,
            end: AtomicU64::new(0),
            segments: Mutex::default(),
        }
    }

    /// Adds the points of a chunk, sorted by bucket. The sort is stable.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn add(&self, chunk: usize, points: &mut Vec<Point>) -> io::Result<()> {
        let Some(&first) = points.first() else {
            return Ok(());
        };
        let bucket = |point: &Point| (point.line >> self.bucket_shift) as usize;
        let mut starts = vec![0u32; self.buckets + 1];
        let mut ticks = first.tick..first.tick;
        for point in points.iter() {
            starts[bucket(point) + 1] += 1;
            ticks = ticks.start.min(point.tick)..ticks.end.max(point.tick);
        }
        for at in 0..self.buckets {
            starts[at + 1] += starts[at];
        }
        let mut next = starts.clone();
        let mut sorted = vec![first; points.len()];
        for point in points.iter() {
            let place = &mut next[bucket(point)];
            sorted[*place as usize] = *point;
            *place += 1;
        }
        *points = sorted;
        let mut bytes = Vec::with_capacity(points.len() * Point::BYTES);
        for point in points.iter() {
            bytes.extend_from_slice(&point.to_bytes());
        }
        let bytes = match &self.file {
            None => Bytes::Memory(bytes),
            Some(file) => {
                let at = self.end.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                file.write_all_at(&bytes, at)?;
                Bytes::File(at)
            }
        };
        let segment = Segment {
            chunk,
            ticks: ticks.start..ticks.end.saturating_add(1),
            starts,
            bytes,
        };
        self.segments
            .lock()
            .expect("nobody panics holding it")
            .push(segment);
        Ok(())
    }

    /// The store with all added points.
    pub fn finish(self) -> Store {
        let mut segments = self
            .segments
            .into_inner()
            .expect("nobody panics holding it");
        segments.sort_by_key(|segment| segment.chunk);
        Store {
            bucket_shift: self.bucket_shift,
            segments,
            file: self.file,
        }
    }
}

impl Store {
    /// A store of segments from an index; `None` if the segments do not fit the scale or the file.
    pub(crate) fn from_segments(scale: &Scale, segments: Vec<Segment>, file: File) -> Option<Self> {
        let length = file.metadata().ok()?.len();
        let fits = |segment: &Segment| {
            let Bytes::File(at) = segment.bytes else {
                return false;
            };
            let points = u64::from(*segment.starts.last().unwrap_or(&0));
            segment.starts.len() == buckets(scale.lines) + 1
                && segment.starts.is_sorted()
                && at
                    .checked_add(points * Point::BYTES as u64)
                    .is_some_and(|end| end <= length)
        };
        segments.iter().all(fits).then(|| Self {
            bucket_shift: bucket_shift(scale.lines),
            segments,
            file: Some(file),
        })
    }

    /// Number of points.
    pub fn len(&self) -> u64 {
        let of = |segment: &Segment| u64::from(*segment.starts.last().unwrap_or(&0));
        self.segments.iter().map(of).sum()
    }

    /// Does the store have no points?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Points of a segment in the buckets that overlap a window.
    fn stretch(&self, segment: &Segment, window: &Window) -> Range<u32> {
        let overlaps = segment.ticks.start < window.ticks.end
            && window.ticks.start < segment.ticks.end
            && !window.lines.is_empty();
        if !overlaps {
            return 0..0;
        }
        let last = segment.starts.len() - 1;
        let from = ((window.lines.start >> self.bucket_shift) as usize).min(last);
        let to = (((window.lines.end - 1) >> self.bucket_shift) as usize + 1).min(last);
        segment.starts[from]..segment.starts[to]
    }

    /// Approximate number of points that a scan of the window reads.
    pub fn to_read(&self, window: &Window) -> u64 {
        let of = |segment: &Segment| self.stretch(segment, window).len() as u64;
        self.segments.iter().map(of).sum()
    }

    /// The window's points in pieces of about equal work.
    pub fn pieces(&self, window: &Window) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for (segment, of) in self.segments.iter().enumerate() {
            let Range { mut start, end } = self.stretch(of, window);
            while start < end {
                let until = end.min(start.saturating_add(PIECE_POINTS));
                pieces.push(Piece {
                    segment,
                    points: start..until,
                });
                start = until;
            }
        }
        pieces
    }

    /// Calls `each` with every point of these pieces in the window.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn scan(
        &self,
        window: &Window,
        pieces: &[Piece],
        mut each: impl FnMut(&Point),
    ) -> io::Result<()> {
        let mut read = Vec::new();
        for piece in pieces {
            let from = piece.points.start as usize * Point::BYTES;
            let length = piece.points.len() * Point::BYTES;
            let bytes = match (&self.segments[piece.segment].bytes, &self.file) {
                (Bytes::Memory(bytes), _) => &bytes[from..from + length],
                (Bytes::File(at), Some(file)) => {
                    read.resize(length, 0);
                    file.read_exact_at(&mut read, at + from as u64)?;
                    &read[..]
                }
                (Bytes::File(_), None) => continue,
            };
            let (points, _) = bytes.as_chunks::<{ Point::BYTES }>();
            for bytes in points {
                let point = Point::from_bytes(bytes);
                if window.lines.contains(&point.line) && window.ticks.contains(&point.tick) {
                    each(&point);
                }
            }
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
        /// A window returns its points, for any chunks, in memory and in a file.
        #[test]
        fn a_window_has_its_points(
            chunks in prop::collection::vec(
                prop::collection::vec((0..5000u32, 0..1000u32, 0..4u16), 0..50), 0..6),
            lines in (0..5000u32, 0..5000u32),
            ticks in (0..1000u32, 0..1000u32),
            in_file: bool,
        ) {
            let scale = scale(5000, 1000, 4, 1);
            let file = in_file.then(|| tempfile::tempfile().expect("a temporary file"));
            let builder = Builder::new(&scale, file);
            let window = Window {
                lines: lines.0.min(lines.1)..lines.0.max(lines.1),
                ticks: ticks.0.min(ticks.1)..ticks.0.max(ticks.1),
            };
            let mut expected = Vec::new();
            for (chunk, points) in chunks.iter().enumerate() {
                let mut points: Vec<Point> = points
                    .iter()
                    .map(|&(line, tick, thread)| point(line, tick, thread, 0, 1.0))
                    .collect();
                expected.extend(points.iter().copied().filter(|point| {
                    window.lines.contains(&point.line) && window.ticks.contains(&point.tick)
                }));
                builder.add(chunk, &mut points).expect("written");
            }
            let store = builder.finish();
            prop_assert_eq!(store.len(), chunks.iter().map(|chunk| chunk.len() as u64).sum::<u64>());
            let mut found = Vec::new();
            let pieces = store.pieces(&window);
            store.scan(&window, &pieces, |point| found.push(*point)).expect("read");
            prop_assert!(store.to_read(&window) >= found.len() as u64);
            let key = |point: &Point| (point.line, point.tick, point.thread);
            found.sort_by_key(key);
            expected.sort_by_key(key);
            prop_assert_eq!(found, expected);
        }
    }
}
