//! Limits how much a few heavy samples outweigh all others.
//!
//! A sampler that starts fast and slows down takes most samples early, and each later sample weighs much more. Of an
//! object's two hundred samples, ten may stand for nine tenths of its accesses. Sums by weight are unbiased but as
//! uncertain as ten samples. Sums by number are as certain as two hundred samples but wrong where a program behaves
//! differently later. This module divides an object's accesses over pages and threads by the geometric mean of weight
//! and number. An object's total accesses, and those of its initialisation, stay the same.

use std::collections::BTreeMap;

use nearpage_recording::ThreadIndex;

use crate::affinity::{Attribution, Cell, ObjectGroup};

impl Attribution {
    /// A copy in which the geometric mean of weight and number of samples divides each object's accesses over pages,
    /// threads and instances. None if each object's samples weigh the same already, as in a trace.
    #[must_use]
    pub fn evened(&self) -> Option<Self> {
        if !self.objects.iter().any(is_uneven) {
            return None;
        }
        let mut evened = self.clone();
        for group in evened.objects.iter_mut().filter(|group| is_uneven(group)) {
            even(group);
        }
        Some(evened)
    }
}

/// Relative difference up to which weights count as equal.
const ROUNDING: f64 = 0.01;

fn is_uneven(group: &ObjectGroup) -> bool {
    let affinity = &group.affinity;
    let of_cells = |cells: &[Cell]| {
        let weights = cells.iter().filter(|cell| cell.samples > 0.0);
        let weights = weights.map(|cell| cell.accesses() / f64::from(cell.samples));
        let [least, most] = weights.fold([f64::INFINITY, 0.0], |[least, most], weight| {
            [weight.min(least), weight.max(most)]
        });
        most > least * (1.0 + ROUNDING)
    };
    of_cells(&affinity.cells) || of_cells(&affinity.initialisation)
}

fn even(group: &mut ObjectGroup) {
    let mut before: BTreeMap<ThreadIndex, f64> = BTreeMap::new();
    let mut after: BTreeMap<ThreadIndex, f64> = BTreeMap::new();
    let affinity = &mut group.affinity;
    for cells in [&mut affinity.cells, &mut affinity.initialisation] {
        for cell in cells.iter() {
            *before.entry(cell.thread).or_default() += cell.accesses();
        }
        even_cells(cells);
        for cell in cells.iter() {
            *after.entry(cell.thread).or_default() += cell.accesses();
        }
    }
    for (thread, loads, stores, _) in &mut group.threads {
        if let (Some(&before), Some(&after)) = (before.get(thread), after.get(thread))
            && before > 0.0
        {
            *loads *= after / before;
            *stores *= after / before;
        }
    }
    let uses = group.uses.iter().map(|one| (one.accesses, one.samples));
    let factors = factors(&uses.collect::<Vec<_>>());
    for (one, factor) in group.uses.iter_mut().zip(factors) {
        one.accesses *= factor;
        one.cost_ns *= factor;
    }
    let cells = affinity.cells.iter().chain(&affinity.initialisation);
    let (mut squares, mut sum) = (0.0, 0.0);
    for cell in cells.filter(|cell| cell.samples > 0.0) {
        squares += cell.accesses() * cell.accesses() / f64::from(cell.samples);
        sum += cell.accesses();
    }
    if sum > 0.0 {
        affinity.sample_weight = squares / sum;
    }
}

fn even_cells(cells: &mut [Cell]) {
    let counted = cells.iter();
    let counted = counted.map(|cell| (cell.accesses(), f64::from(cell.samples)));
    let factors = factors(&counted.collect::<Vec<_>>());
    for (cell, factor) in cells.iter_mut().zip(factors) {
        cell.loads *= factor as f32;
        cell.stores *= factor as f32;
        cell.cost_ns *= factor as f32;
    }
}

/// Factors for accesses, from pairs of accesses and samples. The scaled accesses have the same sum.
fn factors(counted: &[(f64, f64)]) -> Vec<f64> {
    let mean = |&(accesses, samples): &(f64, f64)| (accesses * samples).sqrt();
    let all: f64 = counted.iter().map(|one| one.0).sum();
    let means: f64 = counted.iter().map(mean).sum();
    let factor = |one: &(f64, f64)| match one.0 > 0.0 && means > 0.0 {
        true => mean(one) / one.0 * all / means,
        false => 1.0,
    };
    counted.iter().map(factor).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::factors;

    #[test]
    fn a_heavy_sample_counts_by_the_root_of_its_weight() {
        // A hundred samples of weight 1, and one sample of weight 100.
        let found = factors(&[(100.0, 100.0), (100.0, 1.0)]);
        let [light, heavy] = [100.0 * found[0], 100.0 * found[1]];
        assert!((heavy / light - 0.1).abs() < 1e-9, "{heavy} {light}");
        assert!((heavy + light - 200.0).abs() < 1e-9);
    }

    #[test]
    fn samples_of_one_weight_stay_as_they_are() {
        assert_eq!(factors(&[(10.0, 2.0), (5.0, 1.0), (20.0, 4.0)]), [1.0; 3]);
        assert_eq!(factors(&[(0.0, 0.0)]), [1.0]);
    }

    proptest! {
        #[test]
        fn the_sum_stays(counted in prop::collection::vec((0.0f64..1e9, 1.0f64..100.0), 1..20)) {
            let factors = factors(&counted);
            let sum = |all: &mut dyn Iterator<Item = f64>| all.sum::<f64>();
            let before = sum(&mut counted.iter().map(|one| one.0));
            let after = sum(&mut counted.iter().zip(&factors).map(|(one, factor)| one.0 * factor));
            prop_assert!((after - before).abs() <= 1e-9 * before.max(1.0), "{before} {after}");
        }
    }
}
