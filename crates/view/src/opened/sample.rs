//! A sample of the accesses of all chunks, kept in memory with the object of each access. The first result for a part
//! of the recording's time is computed from the sample, without reading or searching.

use std::borrow::Cow;
use std::ops::Range;

use nearpage_attribution::{Attributor, Input, RunSums, Search};
use nearpage_recording::{AccessBatch, ObjectId, Recording};
use rayon::prelude::*;

use super::pass::{ChunkPass, PartsRead, Task, is_one_in};
use crate::Error;
use crate::point::Scale;
use crate::timeline::{PARTS, Timeline};

/// Sampled accesses, and the object of each.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    batch: AccessBatch,
    objects: Vec<Option<ObjectId>>,
    /// Number of accesses that the sample was taken from.
    rows: u64,
}

impl Kept {
    /// Samples one in `one_in` of a chunk's accesses, in the order of time.
    pub fn of(
        recording: &Recording,
        batch: &AccessBatch,
        one_in: u32,
        search: &mut Search<'_>,
    ) -> Self {
        let mut rows: Vec<usize> = (0..batch.len())
            .filter(|&row| is_one_in(row, one_in))
            .collect();
        rows.sort_by_key(|&row| batch.time_ns[row]);
        let threads = &recording.tables.threads;
        let mut kept = Self {
            rows: batch.len() as u64,
            ..Self::default()
        };
        for row in rows {
            let thread = threads.get(batch.thread[row].0 as usize);
            let found = thread
                .and_then(|thread| search.find(thread.pid, batch.time_ns[row], batch.address[row]));
            kept.batch.push(batch.get(row));
            kept.objects.push(found.map(|found| found.object));
        }
        kept
    }
}

/// The sample, by chunk.
#[derive(Debug)]
pub(super) struct Sample {
    chunks: Vec<Kept>,
}

impl Sample {
    /// Makes the sample from chunks with their positions.
    pub fn new(mut chunks: Vec<(usize, Kept)>) -> Self {
        chunks.sort_by_key(|(position, _)| *position);
        Self {
            chunks: chunks.into_iter().map(|(_, kept)| kept).collect(),
        }
    }

    /// Share of the chunks' accesses that the sample contains, 0 to 1.
    fn share(&self) -> f64 {
        let (kept, all) = self.chunks.iter().fold((0, 0), |(kept, all), chunk| {
            (kept + chunk.batch.len() as u64, all + chunk.rows)
        });
        kept as f64 / all.max(1) as f64
    }

    /// Sampled accesses within some ticks, in `parts` parts of about the same size.
    fn of(&self, scale: &Scale, ticks: &Range<u32>, parts: usize) -> Vec<Kept> {
        let is_in = |time_ns: u64| ticks.contains(&scale.tick(time_ns));
        let mut found: Vec<Kept> = Vec::new();
        let in_part = self.chunks.len().div_ceil(parts.max(1)).max(1);
        for chunks in self.chunks.chunks(in_part) {
            let mut part = Kept::default();
            for chunk in chunks {
                for (row, object) in chunk.objects.iter().enumerate() {
                    if is_in(chunk.batch.time_ns[row]) {
                        part.batch.push(chunk.batch.get(row));
                        part.objects.push(*object);
                    }
                }
            }
            found.push(part);
        }
        found
    }

    /// Result of a pass over the task's ticks, computed from the sample alone, and the sample's share of the accesses.
    pub fn pass(&self, task: &Task<'_>) -> Result<(ChunkPass, f64), Error> {
        let ticks = &task.chosen.ticks;
        let kept = self.of(task.scale, ticks, rayon::current_num_threads());
        let input = Input::new(task.recording);
        let options = task.options();
        let attributor = Attributor::new(&input, &options, task.index)?;
        let points = task.points();
        let work = |kept: &Kept| -> (RunSums, Timeline, f64) {
            let mut timeline = Timeline::new(task.scale, ticks, PARTS);
            let mut found = Vec::new();
            let elsewhere = points.of(&kept.batch, &mut found);
            timeline.add(task.scale, &kept.batch, &found);
            (
                attributor.sums_of(&kept.batch, &kept.objects),
                timeline,
                elsewhere,
            )
        };
        let results: Vec<_> = kept.par_iter().map(work).collect();
        let (mut timeline, mut elsewhere) = (Timeline::new(task.scale, ticks, PARTS), 0.0);
        let mut sums = Vec::new();
        for (part, times, places) in results {
            sums.push(part);
            timeline.append(&times);
            elsewhere += places;
        }
        let pass = ChunkPass {
            attributed: attributor.finish(sums.into_iter().map(Cow::Owned)),
            timeline,
            elsewhere,
            rows: kept.iter().map(|kept| kept.batch.len() as u64).sum(),
            missing: Vec::new(),
            store: None,
            pyramid: None,
            parts: PartsRead::default(),
            sample: None,
        };
        Ok((pass, self.share()))
    }

    /// Sampled accesses within some ticks, and the sample's share of the accesses.
    pub fn batch(&self, scale: &Scale, ticks: &Range<u32>) -> (AccessBatch, f64) {
        let kept = self.of(scale, ticks, 1).pop().unwrap_or_default();
        (kept.batch, self.share())
    }
}
