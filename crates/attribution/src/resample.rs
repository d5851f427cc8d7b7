//! What another recording of the same length might have found.
//!
//! The samples of a recording are a few of the accesses that the program made. A resample has half of them: each sample
//! with probability 1/2. Figures of such halves are as far from those of the recording as figures of other recordings
//! are (the variance of half a sample drawn without replacement is that of a whole sample: Politis and Romano, 1994). Samples
//! that are drawn twice, as a bootstrap does, would look like a page's users where pages have a sample each. What is found in
//! most resamples is due to the program; what is found in few is due to chance. The generator's seed comes from the
//! samples, so that a recording always has the same resamples.
//!
//! Half of the samples have half of the evidence, so that half is enough ([`Effort`]); their weights are doubled.
//! What is not drawn anew: who touched which page first (page faults are no samples), the initialisation of objects that
//! know anything else, an object's sums, and which objects of a call site are rows of their own.

use nearpage_recording::ObjectKind;

use crate::{
    Attribution, Cell, InstanceUse, ObjectGroup, Team, pattern::Effort, random::Random,
    summary::pattern_of,
};

/// Objects of a smaller share of the cost are not resampled.
const COST_SHARE_MIN: f64 = 0.01;
/// Resamples of a recording.
const RESAMPLES: usize = 20;
/// Fewer where there are many cells, so that resampling takes no longer than reading the recording did.
const RESAMPLES_MIN: usize = 5;
const CELLS_MAX: usize = 1 << 19;

/// An attribution, resampled again and again.
pub struct Resamples<'a> {
    recorded: &'a Attribution,
    /// Positions of the objects that are drawn anew.
    objects: Vec<usize>,
    resample: Attribution,
    random: Random,
    left: usize,
}

impl<'a> Resamples<'a> {
    /// Share of the samples that a resample has: thresholds on their number go down with it.
    pub const KEPT: f64 = 0.5;

    /// Of the objects that matter, but for stacks and thread-local storage: their patterns come from no sample.
    pub fn new(recorded: &'a Attribution) -> Self {
        let cost_ns: f64 = recorded.objects.iter().map(ObjectGroup::cost_ns).sum();
        let matters = |group: &ObjectGroup| {
            !matches!(group.kind, ObjectKind::Stack | ObjectKind::Tls)
                && group.cost_ns() >= COST_SHARE_MIN * cost_ns
        };
        let objects = || {
            let all = recorded.objects.iter().enumerate();
            all.filter(|(_, group)| matters(group))
        };
        let cells: usize = objects().map(|(_, group)| drawn_from(group).len()).sum();
        let samples = objects().map(|(_, group)| group.sample_count());
        let seed = samples.fold(cells as u64, |seed, samples| Random(seed ^ samples).next());
        Self {
            recorded,
            objects: objects().map(|(position, _)| position).collect(),
            resample: recorded.clone(),
            random: Random(seed),
            left: (CELLS_MAX / cells.max(1)).clamp(RESAMPLES_MIN, RESAMPLES),
        }
    }

    /// Positions of the objects that are drawn anew in the attribution's objects.
    pub fn objects(&self) -> &[usize] {
        &self.objects
    }

    /// How many resamples are to come.
    pub fn left(&self) -> usize {
        self.left
    }

    /// The next resample, with the patterns that are found in it; none after the last.
    pub fn draw(&mut self) -> Option<&Attribution> {
        self.left = self.left.checked_sub(1)?;
        for &position in &self.objects {
            let recorded = &self.recorded.objects[position];
            let group = &mut self.resample.objects[position];
            redraw(recorded, group, &self.recorded.teams, &mut self.random);
        }
        Some(&self.resample)
    }
}

/// The cells that an object's pattern is told from.
pub(crate) fn drawn_from(group: &ObjectGroup) -> &[Cell] {
    match group.affinity.cells.is_empty() {
        true => &group.affinity.initialisation,
        false => &group.affinity.cells,
    }
}

fn redraw(recorded: &ObjectGroup, group: &mut ObjectGroup, teams: &[Team], random: &mut Random) {
    let is_initialised_only = recorded.affinity.cells.is_empty();
    let drawn = match is_initialised_only {
        true => &mut group.affinity.initialisation,
        false => &mut group.affinity.cells,
    };
    drawn.clear();
    drawn.extend(drawn_from(recorded).iter().filter_map(|cell| {
        let (samples, times) = half(f64::from(cell.samples), random)?;
        Some(Cell {
            loads: cell.loads * times as f32,
            stores: cell.stores * times as f32,
            cost_ns: cell.cost_ns * times as f32,
            samples: samples as f32,
            ..*cell
        })
    }));
    group.uses.clear();
    group.uses.extend(recorded.uses.iter().filter_map(|one| {
        let (samples, times) = half(one.samples, random)?;
        Some(InstanceUse {
            accesses: one.accesses * times,
            cost_ns: one.cost_ns * times,
            samples,
            ..*one
        })
    }));
    group.pattern = pattern_of(group, teams, Effort::Resample);
}

/// Half of some samples, and how much more of the accesses they stand for; none where none is left.
fn half(samples: f64, random: &mut Random) -> Option<(f64, f64)> {
    let left = random.half_of(samples.round() as u64) as f64;
    (left > 0.0).then(|| (left, left / samples / Resamples::KEPT))
}
