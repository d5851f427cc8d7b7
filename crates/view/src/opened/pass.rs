//! Reads chunks of a recording once, for attribution, points, and data from which selections of time are computed
//! later.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use nearpage_attribution::{
    AccessChunks, Attributed, Attributor, Input, ObjectIndex, Options, ReadError, RunSums, Search,
};
use nearpage_recording::{AccessBatch, ChunkReader, ColumnSelection, Recording};

use super::sample::{Kept, Sample};
use super::{RUN_CELLS_MAX, RUNS};
use crate::Error;
use crate::functions::Functions;
use crate::point::{Points, Scale};
use crate::pyramid::{self, Pyramid};
use crate::space::Space;
use crate::store::{Builder, Store};
use crate::timeline::{PARTS, Timeline};

/// All chunks' timelines together have at least this number of parts for each part of a selection's timeline.
const FINER: usize = 16;

/// Number of runs per processor if no sums are kept. With several runs, a slow run delays the other processors less.
const RUNS_A_WORKER: usize = 2;

/// Selection of accesses to read: some chunks, one in `one_in` of their accesses, within some ticks.
#[derive(Clone, Debug)]
pub(super) struct Chosen<'a> {
    pub chunks: &'a [usize],
    pub one_in: u32,
    pub ticks: Range<u32>,
}

/// Does the row belong to a sample of one in `one_in` rows? The sample is evenly spread, even if the rows' order is
/// periodic.
pub(super) fn is_one_in(row: usize, one_in: u32) -> bool {
    // Multiplies by the golden ratio, modulo 1 (Weyl sequence).
    one_in < 2 || (row as u32).wrapping_mul(0x9e37_79b9) < u32::MAX / one_in
}

impl Chosen<'_> {
    /// Removes accesses from a batch that the selection does not contain.
    pub fn keep(&self, scale: &Scale, batch: &mut AccessBatch) {
        let is_all = self.ticks == (0..scale.ticks);
        if self.one_in < 2 && is_all {
            return;
        }
        batch.retain(|batch, row| {
            is_one_in(row, self.one_in)
                && (is_all || self.ticks.contains(&scale.tick(batch.time_ns[row])))
        });
    }
}

/// Data that is kept of the chunks that were read.
#[derive(Debug, Default)]
pub(super) struct PartsRead {
    /// Runs in the order of their chunks.
    pub runs: Vec<Run>,
    /// Data of each chunk.
    pub chunks: Vec<ChunkRead>,
}

/// A run of consecutive chunks, and the sums of their accesses.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub chunks: Range<usize>,
    pub sums: RunSums,
}

/// Data of a chunk.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkRead {
    /// Ticks from the first access to the end of the last.
    pub ticks: Range<u32>,
    pub rows: u64,
    /// Accesses to addresses where no object or module ever was.
    pub elsewhere: f64,
    /// Timeline of the chunk's own time; `None` in the pass of a selection.
    pub timeline: Option<Timeline>,
}

/// Destinations of a pass's points.
pub(super) struct PointSinks<'a> {
    pub builder: Builder,
    pub sums: Option<(pyramid::Builder<'a>, File)>,
}

/// Result of a pass over chunks.
pub(super) struct ChunkPass {
    pub attributed: Attributed,
    pub timeline: Timeline,
    pub elsewhere: f64,
    pub rows: u64,
    pub missing: Vec<String>,
    pub store: Option<Store>,
    pub pyramid: Option<Pyramid>,
    pub parts: PartsRead,
    pub sample: Option<Sample>,
}

/// A reading task, with the data that it uses.
#[derive(Clone)]
pub(super) struct Task<'a> {
    pub recording: &'a Recording,
    pub index: &'a ObjectIndex,
    pub space: &'a Space,
    pub scale: &'a Scale,
    pub functions: &'a Functions,
    pub chosen: Chosen<'a>,
    /// Are sums of runs of chunks kept, and data of each chunk?
    pub keeps_runs: bool,
    /// One in so many of the accesses read goes into the sample; `None`: no sample is kept.
    pub sample_one_in: Option<u32>,
}

/// Reads chunks with all columns in several threads. Attribution takes the accesses, and each batch is turned into
/// points on the way.
pub(super) struct Chunks<'a> {
    task: &'a Task<'a>,
    points: Points<'a>,
    kept: Option<PointSinks<'a>>,
    done: &'a AtomicUsize,
    seen: Mutex<PassTotals>,
    sampled: Mutex<Vec<(usize, Kept)>>,
}

/// Data that the threads gather on the way.
struct PassTotals {
    timeline: Timeline,
    missing: Vec<String>,
    /// Data by position among the chosen chunks.
    chunks: Vec<ChunkRead>,
}

impl<'a> Chunks<'a> {
    fn new(task: &'a Task<'a>, kept: Option<PointSinks<'a>>, done: &'a AtomicUsize) -> Self {
        Self {
            points: task.points(),
            kept,
            done,
            seen: Mutex::new(PassTotals {
                timeline: Timeline::new(task.scale, &task.chosen.ticks, PARTS),
                missing: Vec::new(),
                chunks: vec![ChunkRead::default(); task.chosen.chunks.len()],
            }),
            sampled: Mutex::default(),
            task,
        }
    }

    /// Reads a chunk. A chunk that can't be read is treated as empty, and reported.
    fn read(
        &self,
        reader: &mut ChunkReader,
        search: &mut Option<Search<'_>>,
        chunk: usize,
        batch: &mut AccessBatch,
    ) -> Result<(), ReadError> {
        let Task {
            recording,
            scale,
            chosen,
            ..
        } = self.task;
        let number = chosen.chunks[chunk];
        if let Err(error) = reader.read(number, ColumnSelection::ALL, batch) {
            batch.clear();
            let chunks = recording.access_chunks();
            let mut seen = self.seen.lock().expect("nobody panics holding it");
            seen.missing.push(format!(
                "part {} of {chunks} is left out: {error}",
                number + 1
            ));
        }
        chosen.keep(scale, batch);
        let ticks = ticks(scale, batch);
        let is_kept = self.task.keeps_runs;
        let mut timeline = match is_kept {
            true => Timeline::new(scale, &ticks, self.task.chunk_parts()),
            false => Timeline::new(scale, &chosen.ticks, PARTS),
        };
        let mut points = Vec::new();
        let elsewhere = self.points.of(batch, &mut points);
        timeline.add(scale, batch, &points);
        if let Some(kept) = &self.kept {
            kept.builder.add(number, &mut points)?;
            if let Some((sums, _)) = &kept.sums {
                sums.add(&points);
            }
        }
        if let (Some(one_in), Some(search)) = (self.task.sample_one_in, search) {
            let kept = Kept::of(recording, batch, one_in, search);
            let mut sampled = self.sampled.lock().expect("nobody panics holding it");
            sampled.push((chunk, kept));
        }
        let mut seen = self.seen.lock().expect("nobody panics holding it");
        seen.timeline.append(&timeline);
        seen.chunks[chunk] = ChunkRead {
            ticks,
            rows: batch.len() as u64,
            elsewhere,
            timeline: is_kept.then_some(timeline),
        };
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Ticks from the first access of a batch to the end of its last.
fn ticks(scale: &Scale, batch: &AccessBatch) -> Range<u32> {
    let times = &batch.time_ns;
    match (times.iter().min(), times.iter().max()) {
        (Some(&first), Some(&last)) => scale.tick(first)..scale.tick(last).saturating_add(1),
        _ => 0..0,
    }
}

impl AccessChunks for Chunks<'_> {
    fn chunks(&self) -> usize {
        self.task.chosen.chunks.len()
    }

    fn reader(&self) -> impl FnMut(usize, &mut AccessBatch) -> Result<(), ReadError> {
        let mut reader = self.task.recording.chunk_reader();
        let is_sampled = self.task.sample_one_in.is_some();
        let mut search = is_sampled.then(|| self.task.index.search());
        move |chunk, batch| self.read(&mut reader, &mut search, chunk, batch)
    }
}

impl<'a> Task<'a> {
    /// Options of attribution, equal for all passes.
    pub fn options(&self) -> Options {
        Options {
            page_bytes: self.recording.machine.page_bytes,
            ..Options::default()
        }
    }

    pub fn points(&self) -> Points<'a> {
        Points::new(
            self.scale,
            self.functions,
            self.space,
            &self.recording.tables,
            &self.recording.machine,
        )
    }

    /// Number of parts in a chunk's timeline.
    fn chunk_parts(&self) -> usize {
        (FINER * PARTS / self.chosen.chunks.len().max(1)).clamp(8, PARTS)
    }

    /// Reads the chosen chunks, and adds the known sums of other chunks.
    pub fn run(
        &self,
        kept: Option<PointSinks<'_>>,
        known: &[&Run],
        done: &AtomicUsize,
    ) -> Result<ChunkPass, Error> {
        let chunks = Chunks::new(self, kept, done);
        let input = Input::new(self.recording).through(&chunks);
        let options = self.options();
        let attributor = Attributor::new(&input, &options, self.index)?;
        // Each run has tables of its own, so without kept sums there are only enough runs to keep all processors busy.
        let count = match self.keeps_runs {
            true => RUNS,
            false => RUNS_A_WORKER * rayon::current_num_threads(),
        };
        // Sums must be added in the order of time, so a run must not span the chunks of a known run.
        let is_between = |before: usize, after: usize| {
            let is_there = |run: &&Run| before < run.chunks.start && run.chunks.end <= after;
            known.iter().any(is_there)
        };
        let is_joined = |before: usize, after: usize| match self.keeps_runs {
            true => before + 1 == after,
            false => !is_between(before, after),
        };
        let positions = runs(self.chosen.chunks, count, is_joined);
        let sums = attributor.sums(&positions)?;
        let number = |position: usize| self.chosen.chunks.get(position).copied().unwrap_or(0);
        let found: Vec<Run> = positions
            .iter()
            .zip(sums)
            .map(|(run, sums)| Run {
                chunks: number(run.start)..number(run.end - 1) + 1,
                sums,
            })
            .collect();
        let (kept_runs, passing) = match self.keeps_runs {
            true => (found, Vec::new()),
            false => (Vec::new(), found),
        };
        let lasting = kept_runs.iter().chain(known.iter().copied());
        let mut all: Vec<(usize, Cow<'_, RunSums>)> = lasting
            .map(|run| (run.chunks.start, Cow::Borrowed(&run.sums)))
            .collect();
        let passing = passing.into_iter();
        all.extend(passing.map(|run| (run.chunks.start, Cow::Owned(run.sums))));
        all.sort_by_key(|(first_chunk, _)| *first_chunk);
        let attributed = attributor.finish(all.into_iter().map(|(_, sums)| sums));
        let mut parts = PartsRead {
            runs: bounded(kept_runs),
            ..PartsRead::default()
        };
        let Chunks {
            kept,
            seen,
            sampled,
            ..
        } = chunks;
        let seen = seen.into_inner().expect("nobody panics holding it");
        let sampled = sampled.into_inner().expect("nobody panics holding it");
        let (store, pyramid) = match kept {
            None => (None, None),
            Some(PointSinks { builder, sums }) => {
                let sums = sums.map(|(builder, file)| builder.finish(file));
                (
                    Some(builder.finish()),
                    sums.transpose().map_err(Error::Write)?,
                )
            }
        };
        parts.chunks = seen.chunks;
        let sum = |of: fn(&ChunkRead) -> f64| parts.chunks.iter().map(of).sum();
        Ok(ChunkPass {
            attributed,
            timeline: seen.timeline,
            elsewhere: sum(|chunk| chunk.elsewhere),
            rows: parts.chunks.iter().map(|chunk| chunk.rows).sum(),
            missing: seen.missing,
            store,
            pyramid,
            sample: self.sample_one_in.map(|_| Sample::new(sampled)),
            parts,
        })
    }
}

/// Divides the chunks into about `count` runs of neighbours, by position. `is_joined` tells whether neighbours may be
/// in one run.
fn runs(
    chunks: &[usize],
    count: usize,
    is_joined: impl Fn(usize, usize) -> bool,
) -> Vec<Range<usize>> {
    let most = chunks.len().div_ceil(count).max(1);
    let mut runs: Vec<Range<usize>> = Vec::new();
    for position in 0..chunks.len() {
        match runs.last_mut() {
            Some(run) if run.len() < most && is_joined(chunks[position - 1], chunks[position]) => {
                run.end = position + 1;
            }
            _ => runs.push(position..position + 1),
        }
    }
    runs
}

/// Merges neighbouring runs until the runs have few enough cells in total.
fn bounded(mut runs: Vec<Run>) -> Vec<Run> {
    while runs.len() > 1 && runs.iter().map(|run| run.sums.cells()).sum::<usize>() > RUN_CELLS_MAX {
        let mut fewer: Vec<Run> = Vec::new();
        for (number, run) in runs.into_iter().enumerate() {
            match fewer.last_mut() {
                Some(before) if number % 2 == 1 => {
                    before.chunks.end = run.chunks.end;
                    before.sums.append(&run.sums);
                }
                _ => fewer.push(run),
            }
        }
        runs = fewer;
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_chunks_may_not_be_joined() {
        let consecutive = |before: usize, after: usize| before + 1 == after;
        assert_eq!(runs(&[], 4, consecutive), []);
        assert_eq!(runs(&[0, 1, 2, 3, 4], 2, consecutive), [0..3, 3..5]);
        assert_eq!(runs(&[3, 4, 5, 20, 21], 1, consecutive), [0..3, 3..5]);
        assert_eq!(runs(&[1, 5, 9], 16, consecutive), [0..1, 1..2, 2..3]);
        assert_eq!(runs(&[1, 5, 9, 10], 2, |_, _| true), [0..2, 2..4]);
        assert_eq!(runs(&[1, 5, 9], 1, |before, _| before != 5), [0..2, 2..3]);
    }
}
