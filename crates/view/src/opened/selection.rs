//! A part of the recording's time, and all that is found in it: at once from the sample, then exactly. What was read once
//! is put together of sums that were kept; only what lies at the two ends is read again.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nearpage_attribution::ObjectGroup;
use nearpage_recording::{AccessBatch, ColumnSelection, SampleCounts};

use super::pass::{Chosen, ChunkPass, Run};
use super::{Opened, Parts, Stage};
use crate::Error;
use crate::costs::Costs;

/// Selections that are remembered, so that views of one are not each read anew.
const REMEMBERED: usize = 4;

/// What was found in selections.
#[derive(Debug, Default)]
pub(super) struct Selections {
    /// The latest last.
    found: Mutex<Vec<Selected>>,
    /// Held by who reads one exactly: one at a time.
    reading: Mutex<()>,
    /// The one that was asked for last; held by who finds what is first shown of one.
    latest: Mutex<Range<u32>>,
}

/// What was found in a selection.
#[derive(Debug)]
struct Selected {
    ticks: Range<u32>,
    /// What was known of all of the recording then.
    whole: Arc<Stage>,
    stage: Arc<Stage>,
}

impl Stage {
    /// What instructions cost on objects.
    pub(crate) fn costs(&self, opened: &Opened) -> &Costs {
        self.found.costs.get_or_init(|| Costs::new(opened, self))
    }

    /// Position of the object that has this number in all of the recording.
    pub(crate) fn position(&self, number: usize) -> Option<usize> {
        match &self.numbers {
            None => (number < self.attribution.objects.len()).then_some(number),
            Some(numbers) => numbers.iter().position(|&one| one == Some(number)),
        }
    }

    /// Number in all of the recording of the object at a position.
    pub(crate) fn number(&self, position: usize) -> Option<usize> {
        match &self.numbers {
            None => Some(position),
            Some(numbers) => *numbers.get(position)?,
        }
    }
}

/// The number that each of these objects has among all. Objects of one call site may be several rows, by size or by
/// pattern: an instance that both have tells them apart.
fn numbers(groups: &[ObjectGroup], all: &[ObjectGroup]) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..all.len()).collect();
    let key = |number: usize| (all[number].kind, &all[number].name);
    order.sort_by(|&a, &b| key(a).cmp(&key(b)).then(a.cmp(&b)));
    let number = |group: &ObjectGroup| {
        let wanted = (group.kind, &group.name);
        let from = order.partition_point(|&at| key(at) < wanted);
        let same = order[from..].iter().take_while(|&&at| key(at) == wanted);
        let shares = |&&at: &&usize| {
            let samples = &all[at].samples;
            group.samples.iter().any(|one| samples.contains(one))
        };
        same.clone()
            .find(shares)
            .or_else(|| same.clone().next())
            .copied()
    };
    groups.iter().map(number).collect()
}

/// Do some ticks lie inside of others? None lie inside of any.
fn is_within(ticks: &Range<u32>, others: &Range<u32>) -> bool {
    ticks.is_empty() || others.start <= ticks.start && ticks.end <= others.end
}

/// What was found in a part of the time.
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
    /// What was found in some ticks of `whole`.
    fn find(&self, whole: &Arc<Stage>, ticks: &Range<u32>) -> Option<Arc<Stage>> {
        let mut found = self.found.lock().expect("nobody panics holding it");
        found.retain(|one| Arc::ptr_eq(&one.whole, whole));
        let one = found.iter().find(|one| one.ticks == *ticks);
        one.map(|one| one.stage.clone())
    }

    /// Remembers it, in place of what was known of these ticks.
    fn remember(&self, whole: Arc<Stage>, ticks: Range<u32>, stage: Arc<Stage>) {
        let mut found = self.found.lock().expect("nobody panics holding it");
        found.retain(|one| one.ticks != ticks);
        if found.len() >= REMEMBERED {
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
    /// The accesses of a time range, in nanoseconds since the recording began; `None` means all of the time. The range is
    /// extended to whole ticks. Of a large recording it is of a sample until [`Opened::read_exactly`] has been called.
    /// Samples that were no accesses are counted for the whole recording only, as their times are not recorded.
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
        // Whoever asks for what is being found waits for it.
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
        // Before all is read, the sample is of what the page was opened from.
        let found = stage(&whole, pass, share * whole.share);
        selections.remember(whole, ticks, found.clone());
        Ok(found)
    }

    /// Reads a selection exactly, so that [`Opened::stage_of`] has it. False where it has not: another was asked for since,
    /// or the recording is still being read.
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

    /// Chunks that have accesses of some ticks.
    fn chunks_of(&self, whole: &Stage, ticks: &Range<u32>) -> Vec<usize> {
        let known = whole.parts.read.chunks.iter().enumerate();
        let has = |of: &Range<u32>| of.start < ticks.end && ticks.start < of.end;
        known
            .filter(|(_, chunk)| has(&chunk.ticks))
            .map(|(number, _)| number)
            .collect()
    }

    /// What is in some ticks, of a recording all of which is known: sums of the runs that lie inside, and what is read of
    /// the other chunks.
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

    /// Hands over the accesses of a stage, which is of a selection or of all of the time, in several threads: each adds up
    /// its own. Returns what they found, in no order, and the share of the accesses that it is of, 0 to 1. Of a sample's
    /// stage and of large recordings as a whole it is the sample; chunks that can't be read have none, as everywhere.
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
                // Times are needed only where they decide.
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
