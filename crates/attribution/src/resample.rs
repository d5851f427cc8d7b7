//! Estimates what other recordings of the same run would find.
//!
//! A recording samples a few of a program's accesses. A resample keeps each sample with probability 1/2. Figures of
//! such halves scatter around those of the recording as much as other recordings' figures would: the variance of half
//! a sample drawn without replacement is that of a whole sample (Politis and Romano, 1994). A bootstrap draws samples
//! twice, which would look like a page's users where pages have one sample each. A finding in most resamples is due to
//! the program; a finding in few resamples is due to chance. The samples determine the generator's seed, so a
//! recording always has the same resamples.
//!
//! Half of the samples carry half of the evidence, so half of the evidence is enough ([`Effort`]); weights are
//! doubled. A resample keeps: first touches (page faults are no samples), the initialisation of objects with later
//! accesses, an object's totals, and the choice of call-site objects with rows of their own.

use nearpage_recording::ObjectKind;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::{
    Attribution, Cell, Confidence, InstanceUse, ObjectGroup,
    pattern::{Effort, may_repeat},
    random::Random,
    summary::pattern_of,
};

/// Smallest share of the cost of an object that is resampled.
const COST_SHARE_MIN: f64 = 0.01;
/// Largest number of resamples of a recording.
const RESAMPLES: usize = 20;
/// Number of resamples after which an object is settled if all of them agree.
const UNANIMOUS: usize = 8;
/// Largest number of cells drawn in total, so that resampling takes no longer than reading. More cells mean fewer
/// resamples.
const CELLS_MAX: usize = 1 << 19;

/// Share of the samples in a resample; thresholds on numbers of samples are scaled by this share.
pub const RESAMPLE_SHARE: f64 = 0.5;

impl Attribution {
    /// Confidence in findings about objects, by position: the share of resamples that confirm a finding. `confirms`
    /// gets a resample with its patterns and the positions in question, and returns whether the resample confirms each
    /// finding. None for unwanted objects, objects below 1 % of the cost, stacks and thread-local storage.
    ///
    /// Twenty resamples are drawn, fewer if there are many cells. An object is settled after eight resamples that
    /// agree.
    pub fn confidences(
        &self,
        is_wanted: impl Fn(&ObjectGroup) -> bool,
        mut confirms: impl FnMut(&Attribution, &[usize]) -> Vec<bool>,
    ) -> Vec<Option<Confidence>> {
        let cost_ns: f64 = self.objects.iter().map(ObjectGroup::cost_ns).sum();
        let is_drawn = |&position: &usize| {
            let group = &self.objects[position];
            !matches!(group.kind, ObjectKind::Stack | ObjectKind::Tls)
                && group.cost_ns() >= COST_SHARE_MIN * cost_ns
                && is_wanted(group)
        };
        let mut open: Vec<usize> = (0..self.objects.len()).filter(is_drawn).collect();
        let mut found = vec![None; self.objects.len()];
        if open.is_empty() {
            return found;
        }
        let drawn = || open.iter().map(|&position| &self.objects[position]);
        let cells: usize = drawn()
            .map(|group| group.affinity.pattern_cells().len())
            .sum();
        let seed = drawn().fold(0, |seed, group| Random(seed ^ group.sample_count()).next());
        let mut random = Random(seed);
        let effort = |&position: &usize| {
            let repeats = may_repeat(&self.objects[position], &self.teams);
            (position, Effort::Resample { repeats })
        };
        let efforts: FxHashMap<usize, Effort> = open.iter().map(effort).collect();
        let mut resample = self.clone();
        let mut confirmed = vec![0; self.objects.len()];
        let rounds = (CELLS_MAX / cells.max(1)).clamp(UNANIMOUS, RESAMPLES);
        let mut round = 0;
        while round < rounds && !open.is_empty() {
            // No object can be settled before round 8, so the first rounds run in parallel.
            let at_once = match UNANIMOUS.checked_sub(round) {
                Some(left @ 1..) => rayon::current_num_threads().clamp(1, left),
                _ => 1,
            };
            let again = open.repeat(at_once);
            let draw = |position: usize| {
                let mut group = self.objects[position].clone();
                redraw(&self.objects[position], &mut group, &mut random);
                (position, group)
            };
            let mut drawn: Vec<(usize, ObjectGroup)> = again.into_iter().map(draw).collect();
            drawn
                .par_iter_mut()
                .with_max_len(1)
                .for_each(|(position, group)| {
                    group.pattern = pattern_of(group, &self.teams, efforts[position]);
                });
            for of_round in drawn.chunks_mut(open.len()) {
                round += 1;
                for (position, group) in of_round {
                    std::mem::swap(&mut resample.objects[*position], group);
                }
                for (&position, is_confirmed) in open.iter().zip(confirms(&resample, &open)) {
                    confirmed[position] += usize::from(is_confirmed);
                    found[position] = Some(Confidence {
                        samples: self.objects[position].sample_count(),
                        share: confirmed[position] as f64 / round as f64,
                    });
                }
            }
            let is_unanimous = |position: &usize| [0, round].contains(&confirmed[*position]);
            if round >= UNANIMOUS {
                let (settled, left) = open.into_iter().partition(is_unanimous);
                open = left;
                // Later resamples contain settled objects as recorded.
                let settled: Vec<usize> = settled;
                for position in settled {
                    resample.objects[position].clone_from(&self.objects[position]);
                }
            }
        }
        found
    }
}

impl Attribution {
    /// Results of `measure` on resamples, which keep the recorded patterns: figures that other recordings of the same
    /// length might give. Initialisations are resampled, too. There are 99 resamples, or 19 if there are many cells.
    /// The fifth from either end of 99, or the first of 19, bounds 90 % of the figures.
    pub fn resampled<T>(&self, mut measure: impl FnMut(&Attribution) -> T) -> Vec<T> {
        let cells = |group: &ObjectGroup| {
            let affinity = &group.affinity;
            affinity.cells.len() + affinity.initialisation.len() + group.uses.len()
        };
        let all: usize = self.objects.iter().map(cells).sum();
        let rounds = match all.saturating_mul(MEASURED_MOST) > MEASURED_CELLS_MAX {
            true => MEASURED_LEAST,
            false => MEASURED_MOST,
        };
        let samples = |seed, group: &ObjectGroup| Random(seed ^ group.sample_count()).next();
        let mut random = Random(self.objects.iter().fold(0, samples));
        let mut resample = self.clone();
        let mut measured = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            for (recorded, group) in self.objects.iter().zip(&mut resample.objects) {
                redraw(recorded, group, &mut random);
                if !recorded.affinity.cells.is_empty() {
                    let drawn = drawn(&recorded.affinity.initialisation, &mut random);
                    group.affinity.initialisation = drawn;
                }
            }
            measured.push(measure(&resample));
        }
        measured
    }
}

impl Attribution {
    /// The samples that are missing from a resample ([`Self::resampled`]), scaled to stand for all accesses, too.
    pub fn other_half(&self, half: &Attribution) -> Attribution {
        let mut other = self.clone();
        for (group, drawn) in other.objects.iter_mut().zip(&half.objects) {
            let of_half = &drawn.affinity;
            let affinity = &mut group.affinity;
            leave_out(&mut affinity.cells, &of_half.cells);
            leave_out(&mut affinity.initialisation, &of_half.initialisation);
            let mut drawn = drawn.uses.iter().peekable();
            group.uses.retain_mut(|one| {
                let is_same =
                    |it: &&InstanceUse| (it.object, it.thread) == (one.object, one.thread);
                let taken = drawn.next_if(is_same);
                one.samples -= taken.map_or(0.0, |taken| taken.samples);
                one.accesses = 2.0 * one.accesses - taken.map_or(0.0, |taken| taken.accesses);
                one.cost_ns = 2.0 * one.cost_ns - taken.map_or(0.0, |taken| taken.cost_ns);
                one.samples > 0.0
            });
        }
        other
    }
}

/// Keeps the samples of cells that were not drawn. `drawn` is in the same order.
fn leave_out(cells: &mut Vec<Cell>, drawn: &[Cell]) {
    let mut drawn = drawn.iter().peekable();
    cells.retain_mut(|cell| {
        let is_same = |it: &&Cell| (it.page, it.thread) == (cell.page, cell.thread);
        let taken = drawn.next_if(is_same).copied();
        let taken = taken.unwrap_or(Cell {
            loads: 0.0,
            stores: 0.0,
            cost_ns: 0.0,
            samples: 0.0,
            ..*cell
        });
        cell.samples -= taken.samples;
        cell.loads = 2.0 * cell.loads - taken.loads;
        cell.stores = 2.0 * cell.stores - taken.stores;
        cell.cost_ns = 2.0 * cell.cost_ns - taken.cost_ns;
        cell.samples > 0.0
    });
}

/// Number of resamples for `resampled`, with few and with many cells.
const MEASURED_MOST: usize = 99;
const MEASURED_LEAST: usize = 19;
/// Largest number of cells that `resampled` draws with `MEASURED_MOST` resamples.
const MEASURED_CELLS_MAX: usize = 1 << 22;

fn drawn(cells: &[Cell], random: &mut Random) -> Vec<Cell> {
    let of_cell = |cell: &Cell| {
        let (samples, times) = half(f64::from(cell.samples), random)?;
        Some(Cell {
            loads: cell.loads * times as f32,
            stores: cell.stores * times as f32,
            cost_ns: cell.cost_ns * times as f32,
            samples: samples as f32,
            ..*cell
        })
    };
    cells.iter().filter_map(of_cell).collect()
}

fn redraw(recorded: &ObjectGroup, group: &mut ObjectGroup, random: &mut Random) {
    let cells = drawn(recorded.affinity.pattern_cells(), random);
    match recorded.affinity.cells.is_empty() {
        true => group.affinity.initialisation = cells,
        false => group.affinity.cells = cells,
    }
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
}

/// Draws half of some samples. Returns their number and the factor for their weights; none if no sample is left.
fn half(samples: f64, random: &mut Random) -> Option<(f64, f64)> {
    let left = random.half_of(samples.round() as u64) as f64;
    (left > 0.0).then(|| (left, left / samples / RESAMPLE_SHARE))
}

#[cfg(test)]
mod tests {
    use nearpage_recording::ThreadIndex;

    use super::*;

    #[test]
    fn both_halves_have_all_samples_and_each_stands_for_all_accesses() {
        let cell = |page: u32| Cell {
            page,
            thread: ThreadIndex(page % 3),
            loads: 40.0,
            stores: 8.0,
            cost_ns: 100.0,
            samples: 4.0,
        };
        let cells: Vec<Cell> = (0..500).map(cell).collect();
        let half = drawn(&cells, &mut Random(7));
        let mut rest = cells.clone();
        leave_out(&mut rest, &half);
        let sum = |cells: &[Cell], of: fn(&Cell) -> f32| cells.iter().map(of).sum::<f32>();
        let samples = |cells: &[Cell]| sum(cells, |cell| cell.samples);
        assert_eq!(samples(&half) + samples(&rest), samples(&cells));
        assert!(half.len() < cells.len() && rest.len() < cells.len());
        let of_all =
            |of: fn(&Cell) -> f32| (sum(&half, of) + sum(&rest, of)) / 2.0 / sum(&cells, of);
        for share in [
            of_all(|cell| cell.loads),
            of_all(|cell| cell.stores),
            of_all(|cell| cell.cost_ns),
        ] {
            assert!((share - 1.0).abs() < 1e-4, "{share}");
        }
    }
}
