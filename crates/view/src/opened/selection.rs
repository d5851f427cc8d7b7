//! A part of the recording's time: which accesses are in it, and all that is found in them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nearpage_attribution::ObjectGroup;
use nearpage_recording::{AccessBatch, ChunkReader, SampleCounts};

use super::{
    ACCESSES_AT_ONCE, ACCESSES_SAMPLED, Opened, Places, STRATA, Stage, StageResults, pass, strata,
};
use crate::Error;
use crate::costs::Costs;
use crate::point::Scale;

/// Selections that are remembered, so that views of one are not each read anew.
const REMEMBERED: usize = 4;

/// Accesses to read: some chunks, one in so many of their accesses, of some ticks.
#[derive(Clone, Debug)]
pub(super) struct Chosen<'a> {
    pub chunks: &'a [usize],
    pub one_in: u32,
    pub ticks: Range<u32>,
}

impl Chosen<'_> {
    /// Leaves what was chosen of a chunk: one in so many accesses evenly spread, whatever their order repeats.
    pub fn keep(&self, scale: &Scale, batch: &mut AccessBatch) {
        let is_all = self.ticks == (0..scale.ticks);
        if self.one_in < 2 && is_all {
            return;
        }
        let mut kept = AccessBatch::default();
        for row in 0..batch.len() {
            // Multiples of the golden ratio, modulo 1.
            let place = (row as u32).wrapping_mul(0x9e37_79b9);
            let is_chosen = self.one_in < 2 || place < u32::MAX / self.one_in;
            if is_chosen && (is_all || self.ticks.contains(&scale.tick(batch.time_ns[row]))) {
                kept.push(batch.get(row));
            }
        }
        *batch = kept;
    }
}

/// Which chunks to read for some ticks, and how much of the accesses that is.
struct Reading {
    chunks: Vec<usize>,
    one_in: u32,
    share: f64,
}

/// What was found in a selection.
#[derive(Debug)]
pub(super) struct Selected {
    ticks: Range<u32>,
    /// What was known of all of the recording then.
    whole: Arc<Stage>,
    stage: Arc<Stage>,
}

impl Stage {
    /// What instructions cost on objects in this stage, which is of a selection of time or of all of it.
    pub(crate) fn costs(&self, opened: &Opened, selection: Option<(u64, u64)>) -> &Costs {
        let costs = &self.found.costs;
        costs.get_or_init(|| Costs::new(opened, self, selection))
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

/// Which of all objects this one is. Objects of one call site may be several rows, by size or by pattern: an instance
/// that both have tells them apart.
fn number(group: &ObjectGroup, all: &[ObjectGroup]) -> Option<usize> {
    let has_same = |other: &ObjectGroup| other.kind == group.kind && other.name == group.name;
    let mut same = (0..all.len()).filter(|&number| has_same(&all[number]));
    let shares = |&number: &usize| {
        let samples = &all[number].samples;
        group.samples.iter().any(|one| samples.contains(one))
    };
    same.clone().find(shares).or_else(|| same.next())
}

impl Opened {
    /// The accesses of a time range, in nanoseconds since the recording began; `None` means all of the time. The range is
    /// extended to whole ticks. Samples that were no accesses are counted for the whole recording only, as their times
    /// are not recorded.
    ///
    /// # Errors
    /// [`Error::Attribution`].
    pub fn stage_of(&self, selection: Option<(u64, u64)>) -> Result<Arc<Stage>, Error> {
        let whole = self.stage();
        let Some((from_ns, to_ns)) = selection else {
            return Ok(whole);
        };
        let ticks = self.scale.ticks_of(from_ns, to_ns);
        // Whoever asks for what is being read waits for it.
        let mut selected = self.selected.lock().expect("nobody panics holding it");
        selected.retain(|one| Arc::ptr_eq(&one.whole, &whole));
        if let Some(found) = selected.iter().find(|one| one.ticks == ticks) {
            return Ok(found.stage.clone());
        }
        let reading = self.reading(&whole, &ticks);
        let chosen = Chosen {
            chunks: &reading.chunks,
            one_in: reading.one_in,
            ticks: ticks.clone(),
        };
        let places = Places {
            space: &self.space,
            scale: &self.scale,
            functions: &self.functions,
        };
        let read = AtomicUsize::new(0);
        let mut pass = pass(&self.recording, places, chosen, None, &read)?;
        pass.attribution.counts = SampleCounts {
            samples: pass.rows,
            accesses: pass.rows,
            ..SampleCounts::default()
        };
        let groups = pass.attribution.objects.iter();
        let all = &whole.attribution.objects;
        let numbers = groups.map(|group| number(group, all)).collect();
        let stage = Arc::new(Stage {
            attribution: pass.attribution,
            share: reading.share,
            store: whole.store.clone(),
            store_share: whole.store_share,
            pyramid: whole.pyramid.clone(),
            timeline: pass.timeline,
            elsewhere: pass.elsewhere,
            missing: pass.missing,
            numbers: Some(numbers),
            found: StageResults::default(),
        });
        if selected.len() >= REMEMBERED {
            selected.remove(0);
        }
        selected.push(Selected {
            ticks,
            whole,
            stage: stage.clone(),
        });
        Ok(stage)
    }

    /// Chunks that may have accesses of these ticks; where there are many accesses, a sample evenly spread over them.
    fn reading(&self, whole: &Stage, ticks: &Range<u32>) -> Reading {
        let chunks = self.recording.access_chunks();
        let segments = &whole.store.segments;
        let is_whole = whole.store_share >= 1.0;
        // Chunks whose accesses are all where no object is known have no points, and so no known time.
        let mut may_have = vec![is_whole; chunks];
        for segment in segments {
            if let Some(may_have) = may_have.get_mut(segment.chunk) {
                *may_have = segment.ticks.start < ticks.end && ticks.start < segment.ticks.end;
            }
        }
        let candidates: Vec<usize> = (0..chunks).filter(|&chunk| may_have[chunk]).collect();
        let of_chunk = self.recording.access_count() as f64 / chunks.max(1) as f64;
        let is_few = of_chunk * candidates.len() as f64 <= ACCESSES_AT_ONCE as f64;
        let wanted = match is_few {
            true => candidates.len(),
            false => candidates.len().min(STRATA),
        };
        let one_in = match is_few {
            true => 1,
            false => ((of_chunk * wanted as f64 / ACCESSES_SAMPLED as f64) as u32).max(1),
        };
        let seen = match is_whole || chunks == 0 {
            true => 1.0,
            false => segments.len() as f64 / chunks as f64,
        };
        // Of nothing, all is read.
        let read = wanted.max(1) as f64 / candidates.len().max(1) as f64;
        Reading {
            share: seen * read / f64::from(one_in),
            chunks: strata(&candidates, wanted),
            one_in,
        }
    }

    /// Hands over the accesses of a selection, chunk by chunk; returns the share of them that it read, 0 to 1. Chunks
    /// that can't be read have none, as everywhere.
    pub(crate) fn for_each_batch(
        &self,
        selection: Option<(u64, u64)>,
        mut each: impl FnMut(&AccessBatch),
    ) -> f64 {
        let ticks = match selection {
            Some((from_ns, to_ns)) => self.scale.ticks_of(from_ns, to_ns),
            None => 0..self.scale.ticks,
        };
        let reading = self.reading(&self.stage(), &ticks);
        let chosen = Chosen {
            chunks: &reading.chunks,
            one_in: reading.one_in,
            ticks,
        };
        let mut reader: ChunkReader = self.recording.chunk_reader();
        let mut batch = AccessBatch::default();
        for &chunk in chosen.chunks {
            let columns = nearpage_recording::ColumnSelection::ALL;
            if reader.read(chunk, columns, &mut batch).is_ok() {
                chosen.keep(&self.scale, &mut batch);
                each(&batch);
            }
        }
        reading.share
    }
}
