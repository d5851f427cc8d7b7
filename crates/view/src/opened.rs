//! A recording that the page shows: first from a sample of its chunks, later from all chunks.

mod pass;
mod sample;
mod selection;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use nearpage_attribution::{Attributed, Attribution, CodeUse, ObjectIndex};
use nearpage_recording::{AccessBatch, ColumnSelection, Recording};

use self::pass::{Chosen, ChunkPass, PartsRead, PointSinks, Task};
use self::sample::Sample;
use self::selection::Selections;
use crate::Error;
use crate::cache::Cache;
use crate::costs::Costs;
use crate::functions::Functions;
use crate::picture::Sources;
use crate::plans::ShownPlan;
use crate::point::Scale;
use crate::pyramid::{self, Pyramid};
use crate::shared_lines::SharedLines;
use crate::space::Space;
use crate::store::{Builder, Store};
use crate::timeline::Timeline;

/// Recordings with at most this many accesses are read completely before the page shows anything.
const ACCESSES_AT_ONCE: u64 = 3_000_000;
/// Number of accesses in the sample that larger recordings are first shown from.
const ACCESSES_SAMPLED: u64 = 500_000;
/// Selections of time are first shown from a smaller sample, which has one in so many of the first sample's accesses.
const SELECTIONS_ONE_IN: u32 = 4;
/// Number of runs of chunks whose sums are kept. With these sums, a selection only reads the chunks at its two ends.
const RUNS: usize = 24;
/// Maximum number of cells in the sums of all runs, 64 bytes each. Runs are merged to stay below the limit.
const RUN_CELLS_MAX: usize = 5_000_000;
/// Maximum number of chunks in a sample, evenly spread over time.
const STRATA: usize = 16;
/// Functions are chosen from one in so many of the sample's chunks.
const STRATA_A_FUNCTION_STRATUM: usize = 4;

/// The part of a recording that has been read so far.
#[derive(Debug)]
pub struct Stage {
    /// Objects, threads, affinities.
    pub attribution: Attribution,
    /// Instructions that access each object, the costliest first.
    pub(crate) code: Vec<Vec<CodeUse>>,
    /// Share of the accesses that the attribution represents, 0 to 1.
    pub share: f64,
    /// Points of the accesses.
    pub store: Arc<Store>,
    /// Share of the accesses that the points represent, 0 to 1.
    pub store_share: f64,
    /// Sums of the points, if there are many points.
    pub pyramid: Option<Arc<Pyramid>>,
    /// Timeline of the threads' CPUs and the nodes' memory.
    pub timeline: Timeline,
    /// Accesses to addresses where no object or module ever was. Pictures leave them out.
    pub elsewhere: f64,
    /// Errors of reading and keeping data, as text.
    pub missing: Vec<String>,
    /// For a selection of time: number of each object in the whole recording, if the object is found there.
    pub(crate) numbers: Option<Vec<Option<usize>>>,
    pub(crate) found: StageResults,
    /// Data from which selections are computed; empty for the stage of a selection.
    parts: Parts,
}

/// Points, the share of the accesses that they represent, and sums of the points.
type Pictures = (Arc<Store>, f64, Option<Arc<Pyramid>>);

impl Stage {
    /// Stage of a pass over a share of the accesses.
    fn new(pass: ChunkPass, share: f64, (store, store_share, pyramid): Pictures) -> Self {
        let Attributed { attribution, code } = pass.attributed;
        Self {
            attribution,
            code,
            share,
            store,
            store_share,
            pyramid,
            timeline: pass.timeline,
            elsewhere: pass.elsewhere,
            missing: pass.missing,
            numbers: None,
            found: StageResults::default(),
            parts: Parts {
                read: pass.parts,
                sample: pass.sample,
            },
        }
    }
}

/// Results that are computed from a stage on request.
#[derive(Debug, Default)]
pub(crate) struct StageResults {
    /// The report as JSON.
    pub report: OnceLock<String>,
    /// The plan before edits.
    pub plan: OnceLock<ShownPlan>,
    /// A plan that was decided anew.
    pub decided: OnceLock<ShownPlan>,
    /// Costs by object and instruction.
    pub costs: OnceLock<Costs>,
    /// Cache lines that several threads write.
    pub lines: OnceLock<SharedLines>,
}

/// A recording that the page shows.
#[derive(Debug)]
pub struct Opened {
    /// Tables and metadata of the recording.
    pub recording: Recording,
    /// Places of objects and modules.
    pub space: Space,
    /// Functions with a colour.
    pub functions: Functions,
    /// Units of points.
    pub scale: Scale,
    /// Objects by address and time.
    index: ObjectIndex,
    /// Number of accesses in a sample.
    sample: u64,
    stage: RwLock<Arc<Stage>>,
    selections: Selections,
    chunks_read: AtomicUsize,
}

/// Data that a reading keeps, from which parts of the time are computed without another reading.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    read: PartsRead,
    /// `None`: the recording is small enough to be read again.
    sample: Option<Sample>,
}

impl Opened {
    /// Opens a recording. Large recordings are shown from a sample of their chunks, evenly spread over time, until
    /// [`Opened::read_all`] has read all chunks.
    ///
    /// # Errors
    /// [`Error::Recording`], [`Error::Attribution`].
    pub fn new(folder: &Path) -> Result<Self, Error> {
        Self::sampled(folder, ACCESSES_AT_ONCE, ACCESSES_SAMPLED)
    }

    /// Opens a recording; with more than `at_once` accesses, from a sample of about `sample` accesses.
    fn sampled(folder: &Path, at_once: u64, sample: u64) -> Result<Self, Error> {
        let recording = Recording::open(folder)?;
        let chunks = recording.access_chunks();
        let whole = recording.access_count() <= at_once || chunks < 4;
        let wanted = if whole { chunks } else { chunks.min(STRATA) };
        let all: Vec<usize> = (0..chunks).collect();
        let sampled = strata(&all, wanted);
        let page_bytes = recording.machine.page_bytes;
        let space = Space::new(&recording.tables, page_bytes);
        let in_strata = recording.access_count() as f64 * wanted as f64 / chunks.max(1) as f64;
        let one_in = match whole {
            true => 1,
            false => ((in_strata / sample.max(1) as f64) as u32).max(1),
        };
        let step = if whole { 1 } else { STRATA_A_FUNCTION_STRATUM };
        let few: Vec<usize> = sampled.iter().copied().step_by(step).collect();
        let functions = Functions::new(&recording, &few);
        let scale = Scale::new(
            &space,
            &recording.tables,
            &recording.machine,
            functions.names.len(),
            times(&recording),
        );
        let index = ObjectIndex::for_attribution(&recording.tables.objects);
        let read = AtomicUsize::new(0);
        let task = Task {
            recording: &recording,
            index: &index,
            space: &space,
            scale: &scale,
            functions: &functions,
            chosen: Chosen {
                chunks: &sampled,
                one_in,
                ticks: 0..scale.ticks,
            },
            keeps_runs: false,
            sample_one_in: (!whole).then_some(SELECTIONS_ONE_IN),
        };
        let kept = PointSinks {
            builder: Builder::new(&scale, None),
            sums: None,
        };
        let mut pass = task.run(Some(kept), &[], &read)?;
        let share = if whole {
            1.0
        } else {
            pass.rows as f64 / recording.access_count().max(1) as f64
        };
        let cached = match whole {
            true => None,
            false => Cache::new(&recording, &scale, &functions).open(&scale),
        };
        let pictures = match cached {
            Some((store, sums)) => (Arc::new(store), 1.0, Some(Arc::new(sums))),
            None => (Arc::new(pass.store.take().unwrap_or_default()), share, None),
        };
        let stage = Stage::new(pass, share, pictures);
        Ok(Self {
            recording,
            space,
            functions,
            scale,
            index,
            sample: sample.max(1),
            stage: RwLock::new(Arc::new(stage)),
            selections: Selections::default(),
            chunks_read: AtomicUsize::new(if whole { chunks } else { 0 }),
        })
    }

    /// The part of the recording that has been read so far.
    pub fn stage(&self) -> Arc<Stage> {
        self.stage.read().expect("nobody panics holding it").clone()
    }

    /// Sources of pictures.
    pub fn sources<'a>(&'a self, stage: &'a Stage) -> Sources<'a> {
        Sources {
            scale: &self.scale,
            store: &stage.store,
            pyramid: stage.pyramid.as_deref(),
        }
    }

    /// Number of chunks that the pass over all chunks has read, and number of all chunks.
    pub fn progress(&self) -> (usize, usize) {
        (
            self.chunks_read.load(Ordering::Relaxed),
            self.recording.access_chunks(),
        )
    }

    /// Reads all accesses, and shows them from then on. Returns at once if all accesses have been read.
    ///
    /// # Errors
    /// [`Error::Attribution`]; [`Error::Write`] if there is no room for points.
    pub fn read_all(&self) -> Result<(), Error> {
        let sample = self.stage();
        if sample.share >= 1.0 {
            return Ok(());
        }
        let all: Vec<usize> = (0..self.recording.access_chunks()).collect();
        let recording = &self.recording;
        let task = Task {
            keeps_runs: true,
            sample_one_in: Some(
                (recording.access_count().div_ceil(self.sample) as u32)
                    .saturating_mul(SELECTIONS_ONE_IN),
            ),
            ..self.task(Chosen {
                chunks: &all,
                one_in: 1,
                ticks: 0..self.scale.ticks,
            })
        };
        let read = |kept| task.run(kept, &[], &self.chunks_read);
        let mut pass;
        let (store, pyramid) = if sample.store_share >= 1.0 {
            pass = read(None)?;
            (sample.store.clone(), sample.pyramid.clone())
        } else {
            let mut cache = Cache::new(recording, &self.scale, &self.functions);
            let (points, sums) = cache.create().map_err(Error::Write)?;
            let kept = PointSinks {
                builder: Builder::new(&self.scale, Some(points)),
                sums: Some((pyramid::Builder::new(&self.scale), sums)),
            };
            pass = match read(Some(kept)) {
                Ok(pass) => pass,
                Err(error) => {
                    cache.abandon();
                    return Err(error);
                }
            };
            let store = Arc::new(pass.store.take().unwrap_or_default());
            let folder = recording.folder.display();
            match (cache.kept(), cache.finish(&store)) {
                (None, _) => pass.missing.push(format!(
                    "{folder}/view can't be written to by this user alone: its pictures are made anew at the next opening"
                )),
                (_, Err(error)) => pass.missing.push(format!(
                    "{folder}/view: {error}: its pictures are made anew at the next opening"
                )),
                _ => {}
            }
            (store, pass.pyramid.take().map(Arc::new))
        };
        let stage = Stage::new(pass, 1.0, (store, 1.0, pyramid));
        *self.stage.write().expect("nobody panics holding it") = Arc::new(stage);
        Ok(())
    }

    /// Task of reading chosen accesses.
    fn task<'a>(&'a self, chosen: Chosen<'a>) -> Task<'a> {
        Task {
            recording: &self.recording,
            index: &self.index,
            space: &self.space,
            scale: &self.scale,
            functions: &self.functions,
            chosen,
            keeps_runs: false,
            sample_one_in: None,
        }
    }
}

/// Chooses `wanted` of the chunks, each in the middle of one of `wanted` equal parts.
fn strata(chunks: &[usize], wanted: usize) -> Vec<usize> {
    (0..wanted)
        .filter_map(|part| {
            let at = (2 * part + 1) * chunks.len() / (2 * wanted);
            chunks.get(at).copied()
        })
        .collect()
}

/// CLOCK_MONOTONIC of the first and the last access, from the metadata or the chunks.
fn times(recording: &Recording) -> (u64, u64) {
    let metadata = &recording.metadata;
    let columns = ColumnSelection {
        time_ns: true,
        ..ColumnSelection::NONE
    };
    let mut batch = AccessBatch::default();
    let mut times = |chunk: usize| match recording.read_chunk(chunk, columns, &mut batch) {
        Ok(()) => (
            batch.time_ns.iter().min().copied(),
            batch.time_ns.iter().max().copied(),
        ),
        Err(_) => (None, None),
    };
    let chunks = recording.access_chunks();
    let (first, last) = match chunks {
        0 => (None, None),
        _ => (times(0).0, times(chunks - 1).1),
    };
    let begin_ns = first.map_or(metadata.begin_ns, |first| match metadata.begin_ns {
        0 => first,
        begin => begin.min(first),
    });
    let end_ns = metadata.end_ns.max(last.unwrap_or(begin_ns)).max(begin_ns);
    (begin_ns, end_ns)
}

#[cfg(test)]
mod tests;
