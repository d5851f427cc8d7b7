//! A recording that is being looked at: at once from a sample of its chunks, a while later from all.

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

/// Recordings of no more accesses are read whole before anything is shown.
const ACCESSES_AT_ONCE: u64 = 3_000_000;
/// Accesses of the sample that others are first shown from.
const ACCESSES_SAMPLED: u64 = 500_000;
/// Of that of all chunks, which selections of time are first shown from, there are as many divided by this.
const SELECTIONS_ONE_IN: u32 = 4;
/// Runs of chunks whose sums are kept, so that a selection reads only the chunks at its two ends.
const RUNS: usize = 24;
/// Cells of all runs' sums: 64 bytes each. Where there are more, there are fewer runs.
const RUN_CELLS_MAX: usize = 5_000_000;
/// Chunks that a sample is from, at most: strata of time.
const STRATA: usize = 16;
/// Strata that functions are chosen from, one in so many.
const STRATA_A_FUNCTION_STRATUM: usize = 4;

/// What has been read of a recording so far.
#[derive(Debug)]
pub struct Stage {
    /// Objects, threads, affinities.
    pub attribution: Attribution,
    /// Instructions that access each object, the costliest first.
    pub(crate) code: Vec<Vec<CodeUse>>,
    /// Share of the chunks that the attribution is from, 0 to 1.
    pub share: f64,
    /// Points.
    pub store: Arc<Store>,
    /// Share of the chunks that the points are from, 0 to 1.
    pub store_share: f64,
    /// Sums of the points, where there are many.
    pub pyramid: Option<Arc<Pyramid>>,
    /// Where threads ran, and which node's memory they went to.
    pub timeline: Timeline,
    /// Accesses where no object or module ever was: they are in no picture.
    pub elsewhere: f64,
    /// What could not be read or kept, in words.
    pub missing: Vec<String>,
    /// Of a selection of time, each object's number in all of the recording, as far as it is found there.
    pub(crate) numbers: Option<Vec<Option<usize>>>,
    pub(crate) found: StageResults,
    /// What selections are found from; nothing in that of a selection.
    parts: Parts,
}

/// Points, the share of the chunks that they are from, and sums of them.
type Pictures = (Arc<Store>, f64, Option<Arc<Pyramid>>);

impl Stage {
    /// What a pass found in a share of the accesses.
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

/// What was found in a stage, once it was asked for.
#[derive(Debug, Default)]
pub(crate) struct StageResults {
    /// The report as JSON.
    pub report: OnceLock<String>,
    /// The plan as it was before anybody changed it.
    pub plan: OnceLock<ShownPlan>,
    /// The one that was decided afresh.
    pub decided: OnceLock<ShownPlan>,
    /// What instructions cost on objects.
    pub costs: OnceLock<Costs>,
    /// Lines that several threads write.
    pub lines: OnceLock<SharedLines>,
}

/// A recording.
#[derive(Debug)]
pub struct Opened {
    /// Its tables.
    pub recording: Recording,
    /// Where objects and modules were.
    pub space: Space,
    /// Functions that points are coloured by.
    pub functions: Functions,
    /// Units of points.
    pub scale: Scale,
    /// Its objects by address and time.
    index: ObjectIndex,
    /// Accesses of a sample.
    sample: u64,
    stage: RwLock<Arc<Stage>>,
    selections: Selections,
    chunks_read: AtomicUsize,
}

/// What is kept of a reading so that parts of the time are found without another.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    read: PartsRead,
    /// None: the recording is small enough to be read again.
    sample: Option<Sample>,
}

impl Opened {
    /// Opens a recording; large ones from a sample of their chunks, evenly spread over time, until
    /// [`Opened::read_all`].
    ///
    /// # Errors
    /// [`Error::Recording`], [`Error::Attribution`].
    pub fn new(folder: &Path) -> Result<Self, Error> {
        Self::sampled(folder, ACCESSES_AT_ONCE, ACCESSES_SAMPLED)
    }

    /// Recordings of more than `at_once` accesses from a sample of about so many.
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

    /// What has been read so far.
    pub fn stage(&self) -> Arc<Stage> {
        self.stage.read().expect("nobody panics holding it").clone()
    }

    /// What pictures are made from.
    pub fn sources<'a>(&'a self, stage: &'a Stage) -> Sources<'a> {
        Sources {
            scale: &self.scale,
            store: &stage.store,
            pyramid: stage.pyramid.as_deref(),
        }
    }

    /// Chunks read in the pass over all, and chunks in all.
    pub fn progress(&self) -> (usize, usize) {
        (
            self.chunks_read.load(Ordering::Relaxed),
            self.recording.access_chunks(),
        )
    }

    /// Reads all accesses, once, and shows them from then on. Returns at once where that has
    /// happened.
    ///
    /// # Errors
    /// [`Error::Attribution`], [`Error::Write`] where there is no room for points.
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

    /// Reads chosen accesses, as one run.
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

/// So many of these chunks, in the middle of equal parts.
fn strata(chunks: &[usize], wanted: usize) -> Vec<usize> {
    (0..wanted)
        .filter_map(|part| {
            let at = (2 * part + 1) * chunks.len() / (2 * wanted);
            chunks.get(at).copied()
        })
        .collect()
}

/// CLOCK_MONOTONIC of the first and the last access, as far as the recording says.
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
