//! Selections of a part of the recording's time. The first result is from the sample, the second is exact. The exact
//! result is the sum of kept sums; only chunks at the two ends are read again.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nearpage_attribution::ObjectGroup;
use nearpage_recording::{AccessBatch, ColumnSelection, SampleCounts};

use super::pass::{Chosen, ChunkPass, Run};
use super::{Opened, Parts, Stage};
use crate::Error;
use crate::costs::Costs;

/// Number of remembered selections. Several views of one selection then share one result.
const CACHED_SELECTIONS: usize = 4;

/// Results of selections.
#[derive(Debug, Default)]
pub(super) struct Selections {
    /// Results, the latest last.
    found: Mutex<Vec<Selected>>,
    /// Held during an exact reading, so that one selection is read at a time.
    reading: Mutex<()>,
    /// The selection of the latest request; held while the first result of a selection is computed.
    latest: Mutex<Range<u32>>,
}

/// Result of a selection.
#[derive(Debug)]
struct Selected {
    ticks: Range<u32>,
    /// The whole recording's stage when the selection was computed.
    whole: Arc<Stage>,
    stage: Arc<Stage>,
}

impl Stage {
    /// Costs by object and instruction.
    pub(crate) fn costs(&self, opened: &Opened) -> &Costs {
        self.found.costs.get_or_init(|| Costs::new(opened, self))
    }

    /// Position in this stage of the object with this number in the whole recording.
    pub(crate) fn position(&self, number: usize) -> Option<usize> {
        match &self.numbers {
            None => (number < self.attribution.objects.len()).then_some(number),
            Some(numbers) => numbers.iter().position(|&one| one == Some(number)),
        }
    }

    /// Number in the whole recording of the object at this position.
    pub(crate) fn number(&self, position: usize) -> Option<usize> {
        match &self.numbers {
            None => Some(position),
            Some(numbers) => *numbers.get(position)?,
        }
    }
}

/// Numbers of these objects among all objects. A call site may have several objects, distinguished by size or pattern;
/// a common instance identifies the right object.
fn numbers(groups: &[ObjectGroup], all: &[ObjectGroup]) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    let key = |number: usize| (all[number].kind, &all[number].name);
    order.sort_by(|&a, &b| key(a).cmp(&key(b)).then(a.cmp(&b)));
    let number = |group: &ObjectGroup| {
        let wanted = (group.kind, &group.name);
        let from = order.partition_point(|&at| key(at) < wanted);
        let same = order[from..].iter().take_while(|&&at| key(at) == wanted);
        let shares = |&&at: &&usize| {
            let samples = &all[at].listed_instances;
            group
                .listed_instances
                .iter()
                .any(|one| samples.contains(one))
        };
        same.clone()
            .find(shares)
            .or_else(|| same.clone().next())
            .copied()
    };
    groups.iter().map(number).collect()
}

/// Do all ticks lie within the others? True for empty ticks.
fn is_within(ticks: &Range<u32>, others: &Range<u32>) -> bool {
    ticks.is_empty() || others.start <= ticks.start && ticks.end <= others.end
}

/// Stage of a pass over a part of the time.
fn stage(whole: &Stage, pass: ChunkPass, share: f64) -> Arc<Stage> {
    let rows = pass.rows;
    let pictures = (
        whole.store.clone(),
        whole.store_share,
        whole.pyramid.clone(),
    );
    let mut stage = Stage::new(pass, share, pictures);
    stage.parts = Parts::default();
    stage.attribution.counts = SampleCounts {
        samples: rows,
        accesses: rows,
        ..SampleCounts::default()
    };
    stage.numbers = Some(numbers(
        &stage.attribution.objects,
        &whole.attribution.objects,
    ));
    Arc::new(stage)
}

impl Selections {
    /// The remembered result for these ticks and this stage of the whole recording.
    fn find(&self, whole: &Arc<Stage>, ticks: &Range<u32>) -> Option<Arc<Stage>> {
        let mut found = self.found.lock().expect("nobody panics holding it");
        found.retain(|one| Arc::ptr_eq(&one.whole, whole));
        let one = found.iter().find(|one| one.ticks == *ticks);
        one.map(|one| one.stage.clone())
    }

    /// Remembers a result, which replaces an earlier result for the same ticks.
    fn remember(&self, whole: Arc<Stage>, ticks: Range<u32>, stage: Arc<Stage>) {
        let mut found = self.found.lock().expect("nobody panics holding it");
        found.retain(|one| one.ticks != ticks);
        if found.len() >= CACHED_SELECTIONS {
            found.remove(0);
        }
        found.push(Selected {
            ticks,
            whole,
            stage,
        });
    }
}

impl Opened {
    /// Result for a time range in nanoseconds since the recording began, or for all of the time (`None`). The range is
    /// extended to whole ticks. For a large recording, the result is from a sample until [`Opened::read_exactly`] has
    /// been called. Samples without an access are counted for the whole recording only, because their times are not
    /// recorded.
    ///
    /// # Errors
    /// [`Error::Attribution`].
    pub fn stage_of(&self, selection: Option<(u64, u64)>) -> Result<Arc<Stage>, Error> {
        let whole = self.stage();
        let Some((from_ns, to_ns)) = selection else {
            return Ok(whole);
        };
        let ticks = self.scale.ticks_of(from_ns, to_ns);
        let selections = &self.selections;
        // A request for a result that is being computed waits for the computation.
        let mut latest = selections.latest.lock().expect("nobody panics holding it");
        *latest = ticks.clone();
        if let Some(found) = selections.find(&whole, &ticks) {
            return Ok(found);
        }
        let (pass, share) = match &whole.parts.sample {
            Some(sample) => sample.pass(&self.task(Chosen {
                chunks: &[],
                one_in: 1,
                ticks: ticks.clone(),
            }))?,
            None => (self.exact_pass(&whole, &ticks)?, 1.0),
        };
        // Until all chunks have been read, the sample was taken from only a share of the accesses.
        let found = stage(&whole, pass, share * whole.share);
        selections.remember(whole, ticks, found.clone());
        Ok(found)
    }

    /// Computes the exact result of a selection for [`Opened::stage_of`]. `false`: there is no exact result, because
    /// another selection has been requested since, or the recording is still being read.
    ///
    /// # Errors
    /// [`Error::Attribution`].
    pub fn read_exactly(&self, (from_ns, to_ns): (u64, u64)) -> Result<bool, Error> {
        let ticks = self.scale.ticks_of(from_ns, to_ns);
        let selections = &self.selections;
        let _one = selections.reading.lock().expect("nobody panics holding it");
        let whole = self.stage();
        let known = selections.find(&whole, &ticks);
        if known.is_some_and(|stage| stage.share >= 1.0) {
            return Ok(true);
        }
        let latest = selections.latest.lock().expect("nobody panics holding it");
        let is_wanted = *latest == ticks && whole.share >= 1.0;
        drop(latest);
        if is_wanted {
            let pass = self.exact_pass(&whole, &ticks)?;
            let found = stage(&whole, pass, 1.0);
            selections.remember(whole, ticks, found);
        }
        Ok(is_wanted)
    }

    /// Chunks with accesses in some ticks.
    fn chunks_of(&self, whole: &Stage, ticks: &Range<u32>) -> Vec<usize> {
        let known = whole.parts.read.chunks.iter().enumerate();
        let has = |of: &Range<u32>| of.start < ticks.end && ticks.start < of.end;
        known
            .filter(|(_, chunk)| has(&chunk.ticks))
            .map(|(number, _)| number)
            .collect()
    }

    /// Exact result for some ticks of a completely read recording: the sums of the runs within the ticks, and the other
    /// chunks, which are read.
    fn exact_pass(&self, whole: &Stage, ticks: &Range<u32>) -> Result<ChunkPass, Error> {
        let known = &whole.parts.read;
        let is_inside = |chunk: usize| is_within(&known.chunks[chunk].ticks, ticks);
        let runs = known.runs.iter();
        let inside: Vec<&Run> = runs
            .filter(|run| run.chunks.clone().all(is_inside))
            .collect();
        let mut others = self.chunks_of(whole, ticks);
        others.retain(|chunk| !inside.iter().any(|run| run.chunks.contains(chunk)));
        let task = self.task(Chosen {
            chunks: &others,
            one_in: 1,
            ticks: ticks.clone(),
        });
        let mut pass = task.run(None, &inside, &AtomicUsize::new(0))?;
        for chunk in inside.iter().flat_map(|run| run.chunks.clone()) {
            let chunk = &known.chunks[chunk];
            if let Some(timeline) = &chunk.timeline {
                pass.timeline.append(timeline);
            }
            pass.rows += chunk.rows;
            pass.elsewhere += chunk.elsewhere;
        }
        Ok(pass)
    }

    /// Passes the accesses of a stage, for a selection or for all of the time, to `add` in several threads; each thread
    /// has a result of its own. Returns the results in no particular order, and the share of the accesses that they
    /// represent, 0 to 1. The accesses are from the sample if the stage is from the sample, and for all of the time of
    /// a large recording. Chunks that can't be read are skipped.
    pub(crate) fn add_up<T: Default + Send>(
        &self,
        stage: &Stage,
        selection: Option<(u64, u64)>,
        columns: ColumnSelection,
        add: impl Fn(&mut T, &AccessBatch) + Sync,
    ) -> (Vec<T>, f64) {
        let ticks = match selection {
            Some((from_ns, to_ns)) => self.scale.ticks_of(from_ns, to_ns),
            None => 0..self.scale.ticks,
        };
        let whole = self.stage();
        if let Some(sample) = &whole.parts.sample
            && (stage.share < 1.0 || selection.is_none())
        {
            let (batch, share) = sample.batch(&self.scale, &ticks);
            let mut found = T::default();
            add(&mut found, &batch);
            return (vec![found], share * whole.share);
        }
        let chosen = Chosen {
            chunks: &self.chunks_of(&whole, &ticks),
            one_in: 1,
            ticks,
        };
        let next = AtomicUsize::new(0);
        let work = || {
            let mut found = T::default();
            let mut reader = self.recording.chunk_reader();
            let mut batch = AccessBatch::default();
            while let Some(&chunk) = chosen.chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
                let known = whole.parts.read.chunks.get(chunk);
                let is_inside = known.is_some_and(|known| is_within(&known.ticks, &chosen.ticks));
                // Chunks at the ends need times, because only some of their accesses lie within the ticks.
                let columns = ColumnSelection {
                    time_ns: columns.time_ns || !is_inside,
                    ..columns
                };
                if reader.read(chunk, columns, &mut batch).is_ok() {
                    if !is_inside {
                        chosen.keep(&self.scale, &mut batch);
                    }
                    add(&mut found, &batch);
                }
            }
            found
        };
        let found = rayon::broadcast(|_| work());
        (found, 1.0)
    }
}
