//! The search for the selection that a judge finds best. It begins with rules that treat all objects alike, goes on
//! object by object, and drops decisions that another size of input, or chance, speaks against.

use super::Judge;
use super::alternatives::{Alternatives, Selection};
use super::margins::{least, trusted};
use super::preference::{Ground, Preference};

/// Judged times by selection, so that no selection is judged twice.
pub(super) struct Judged<'a, 'i, J> {
    pub judge: &'a mut J,
    pub alternatives: &'a Alternatives<'i>,
    pub known: Vec<(Selection, f64)>,
}

impl<J: Judge> Judged<'_, '_, J> {
    /// Times plus the savings that are expected by chance.
    pub fn times_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
        let times = self.judged_ns(selections)?;
        let by_chance = |selection| self.alternatives.chance_ns(selection);
        let by_chance = selections.iter().map(by_chance);
        Ok(times
            .into_iter()
            .zip(by_chance)
            .map(|(time, chance)| time + chance)
            .collect())
    }

    /// Times with an input of another size, where it changes the effect of placements.
    fn resized_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
        let resized = selections.iter().map(|one| self.alternatives.resized(one));
        let resized: Vec<Selection> = resized.collect();
        self.times_ns(&resized)
    }

    /// The longer of the times with the recorded input and with another size. Selections that are slower than another
    /// one in any case have only the former.
    fn longest_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
        let mut times = self.times_ns(selections)?;
        if times.is_empty() {
            return Ok(times);
        }
        let first = least(&times, 0.0);
        let resized_ns = self.resized_ns(std::slice::from_ref(&selections[first]))?[0];
        times[first] = times[first].max(resized_ns);
        let quicker = |&at: &usize| at != first && times[at] <= times[first];
        let quicker: Vec<usize> = (0..times.len()).filter(quicker).collect();
        let asked: Vec<Selection> = quicker.iter().map(|&at| selections[at].clone()).collect();
        for (&at, resized_ns) in quicker.iter().zip(self.resized_ns(&asked)?) {
            times[at] = times[at].max(resized_ns);
        }
        Ok(times)
    }

    /// Times of selections that differ in one object, which the first selection leaves alone; infinite for selections
    /// that are not trusted ([`super::Margins::resized`]). The addresses of the heap's pages depend on all allocations.
    /// So choices for the heap that have a size are also compared with choices without a size.
    fn trusted_ns(
        &mut self,
        object: usize,
        selections: &[Selection],
    ) -> Result<Vec<f64>, J::Error> {
        let (times, resized) = (self.times_ns(selections)?, self.resized_ns(selections)?);
        let share = self.judge.margins().resized;
        let times = times.into_iter().zip(resized);
        let after_ns: Vec<[f64; 2]> = times.map(<[f64; 2]>::from).collect();
        let has_size = |at: usize| {
            let choice = selections[at].choice(object);
            self.alternatives.has_size(object, choice)
        };
        let is_heap = self.alternatives.is_brk_heap(object);
        let time_ns = |at: usize| {
            let by_pattern = self
                .alternatives
                .is_by_pattern(object, selections[at].choice(object));
            let share = match (is_heap, by_pattern) {
                (true, _) => share.min(RESIZED_HEAP),
                (false, true) => share.max(RESIZED_PATTERN),
                (false, false) => share,
            };
            let is_compared = |&other: &usize| {
                let is_slower = after_ns[other][0] > after_ns[at][0];
                other == 0 || is_heap && is_slower && has_size(at) && !has_size(other)
            };
            let mut others = (0..selections.len()).filter(is_compared);
            match others.all(|other| trusted(share, after_ns[other], after_ns[at])) {
                true => after_ns[at][0],
                false => f64::INFINITY,
            }
        };
        Ok((0..selections.len()).map(time_ns).collect())
    }

    pub fn judged_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
        let is_known = |known: &[(Selection, f64)], selection: &Selection| {
            known
                .iter()
                .find(|(other, _)| other == selection)
                .map(|known| known.1)
        };
        let mut new: Vec<Selection> = Vec::new();
        for selection in selections {
            if is_known(&self.known, selection).is_none() && !new.contains(selection) {
                new.push(selection.clone());
            }
        }
        let times = self.judge.times_ns(self.alternatives, &new)?;
        self.known.extend(new.into_iter().zip(times));
        Ok(selections
            .iter()
            .map(|selection| is_known(&self.known, selection).expect("it was judged"))
            .collect())
    }

    /// Decides object by object, until nothing changes.
    pub fn one_by_one(
        &mut self,
        mut selection: Selection,
        objects: &[usize],
    ) -> Result<Selection, J::Error> {
        let (margins, alternatives) = (self.judge.margins(), self.alternatives);
        for round in 0..ROUNDS_MAX {
            let before = selection.clone();
            for (number, &object) in objects.iter().enumerate() {
                if let Some(progress) = self.judge.progress() {
                    progress.is_at(round * objects.len() + number, ROUNDS_MAX * objects.len());
                }
                let with = |choice: &usize| selection.with(object, *choice);
                let mut choices: Vec<usize> = (0..alternatives.at_once(object)).collect();
                let all: Vec<Selection> = choices.iter().map(with).collect();
                let times = self.trusted_ns(object, &all)?;
                // The best choice may be better with another start, and so may pages near their next users, which only
                // differ by start.
                let placed = 1 + least(&times[1..], 0.0);
                let now = selection.choice(object);
                choices.extend(alternatives.later(object, placed));
                if let Some(next_touch) = alternatives.next_touch(object)
                    && next_touch != placed
                {
                    choices.extend(alternatives.later(object, next_touch));
                }
                if !choices.contains(&now) {
                    choices.push(now);
                }
                let all: Vec<Selection> = choices.iter().map(with).collect();
                let times = self.trusted_ns(object, &all)?;
                let at = least(&times, 0.0);
                if let Some((preference, chosen_ns)) = self.preferred_ns(object, &all, &times)? {
                    let error = alternatives.sampling_error_ns(object, choices[at]);
                    let margin = PREFERRED_MARGIN * times[0] + error;
                    // A preference that needs no time to be decided is better than leaving the object alone.
                    let keeps = chosen_ns <= times[at] + margin
                        || choices[at] == 0 && preference.ground != Ground::Local;
                    selection = all[if keeps { preference.choice } else { at }].clone();
                    continue;
                }
                let (best, best_ns) = (choices[at], times[at]);
                let error = alternatives.sampling_error_ns(object, best);
                let error = match margins.of_samples {
                    true => error.max(alternatives.sampling_error(object) * (times[0] - best_ns)),
                    false => error,
                };
                let share = match margins.of_samples {
                    true => SAMPLED_MARGIN,
                    false => margins.object,
                };
                let margin = share * times[0] + error;
                let quickest = least(&times, margin);
                selection = all[self.more_local(object, &choices, &times, quickest)].clone();
            }
            if selection == before {
                break;
            }
        }
        Ok(selection)
    }

    /// The choice that an object's structure speaks for, and its time, if the choice is to be trusted. `all` are the
    /// selections with the object's choices; the first selection leaves the object alone.
    fn preferred_ns(
        &mut self,
        object: usize,
        all: &[Selection],
        trusted_ns: &[f64],
    ) -> Result<Option<(Preference, f64)>, J::Error> {
        let Some(preference) = self.alternatives.preference(object) else {
            return Ok(None);
        };
        // Choices that differ in more than their start come first in `all`.
        let chosen = &all[preference.choice];
        let time_ns = self.times_ns(std::slice::from_ref(chosen))?[0];
        let has_size = self.alternatives.has_size(object, preference.choice);
        let is_trusted = !has_size || trusted_ns[preference.choice].is_finite();
        let is_close = |loss: f64| is_trusted && time_ns <= trusted_ns[0] * (1.0 + loss);
        let is_kept = match preference.ground {
            Ground::HardlySlower => true,
            Ground::Relief => is_close(RELIEF_LOSS),
            Ground::Local => is_close(PREFERRED_LOSS),
        };
        Ok(is_kept.then_some((preference, time_ns)))
    }

    /// Position of the choice by a pattern that makes most accesses local, if it takes about as long as the quickest
    /// and no longer than the first choice, which leaves the object alone; else `otherwise`.
    fn more_local(
        &self,
        object: usize,
        choices: &[usize],
        times: &[f64],
        otherwise: usize,
    ) -> usize {
        let local = |at: usize| self.alternatives.local_share(object, choices[at]);
        let Some(local_otherwise) = local(otherwise) else {
            return otherwise;
        };
        let fastest_ns = times.iter().copied().fold(f64::INFINITY, f64::min);
        let limit_ns = (fastest_ns + LOCAL_TIME * times[0]).min(times[0]);
        let candidates = (0..choices.len())
            .filter(|&at| self.alternatives.is_by_pattern(object, choices[at]))
            .filter(|&at| times[at] <= limit_ns)
            .filter_map(|at| Some((at, local(at)?)));
        let most = candidates.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        match most {
            Some((at, share)) if share > local_otherwise + LOCAL_SHARE => at,
            _ => otherwise,
        }
    }

    /// The quickest of the selections that treat all objects by one rule, with each start that they may have; none if
    /// all of them take longer than `limit_ns`.
    pub fn best_alike(
        &mut self,
        first_touch_ns: f64,
        limit_ns: f64,
    ) -> Result<Option<Selection>, J::Error> {
        let alternatives = self.alternatives;
        let starts: Vec<Selection> = std::iter::once(alternatives.nothing())
            .chain(alternatives.alike())
            .collect();
        let mut times = vec![first_touch_ns];
        times.extend(self.longest_ns(&starts[1..])?);
        let selection = starts[least(&times, 0.0)].clone();
        let placed = starts[1 + least(&times[1..], 0.0)].clone();
        let placed: Vec<Selection> = std::iter::once(selection)
            .chain(alternatives.all_later(&placed))
            .chain(alternatives.all_later(&alternatives.all_next_touch()))
            .collect();
        let times = self.longest_ns(&placed)?;
        let is_within = times.iter().any(|&time| time <= limit_ns);
        Ok(is_within.then(|| placed[least(&times, 0.0)].clone()))
    }

    /// Tries to place unmatched memory, too, and keeps it placed if that saves as much as a decision about an object
    /// has to: otherwise the selection stays as it is.
    pub fn with_unmatched(
        &mut self,
        selection: Selection,
        costliest: &[usize],
        first_touch_ns: f64,
    ) -> Result<Selection, J::Error> {
        let (margins, alternatives) = (self.judge.margins(), self.alternatives);
        let Some(unmatched) = alternatives.unmatched() else {
            return Ok(selection);
        };
        let alone_ns = self.longest_ns(std::slice::from_ref(&selection))?[0];
        let mut starts = alternatives.alike_with_unmatched();
        starts.extend(
            (1..alternatives.choices(unmatched)).map(|choice| selection.with(unmatched, choice)),
        );
        let times = self.longest_ns(&starts)?;
        let at = least(&times, 0.0);
        if times[at] >= alone_ns - margins.object * first_touch_ns {
            return Ok(selection);
        }
        let all: Vec<usize> = std::iter::once(unmatched)
            .chain(costliest.iter().copied())
            .collect();
        let with_unmatched = self.one_by_one(starts[at].clone(), &all)?;
        let time = self.longest_ns(std::slice::from_ref(&with_unmatched))?[0];
        Ok(
            match with_unmatched.choice(unmatched) != 0 && time < alone_ns {
                true => with_unmatched,
                false => selection,
            },
        )
    }

    /// Drops decisions until the plan costs nothing with an input of another size, and saves enough for what it makes
    /// slower. If the plan does not save enough, only decisions that are safe by structure remain.
    pub fn without_losses(
        &mut self,
        mut selection: Selection,
        decided: &[usize],
        first_touch_ns: f64,
    ) -> Result<Selection, J::Error> {
        let (margins, alternatives) = (self.judge.margins(), self.alternatives);
        let slower_ns = |selection: &Selection| margins.slower * alternatives.slower_ns(selection);
        loop {
            let planned_ns = self.times_ns(std::slice::from_ref(&selection))?[0];
            let resized_ns = self.resized_ns(std::slice::from_ref(&selection))?[0];
            let saved_ns = first_touch_ns - planned_ns;
            let safe =
                alternatives.restricted_to(&selection, &[Ground::HardlySlower, Ground::Relief]);
            if selection == safe {
                return Ok(selection);
            }
            if saved_ns <= margins.plan * first_touch_ns {
                return Ok(safe);
            }
            let fits_other_sizes = resized_ns <= first_touch_ns;
            if fits_other_sizes && saved_ns > slower_ns(&selection) {
                return Ok(selection);
            }
            // Drop the decision that costs most with another size, or that saves least for what it makes slower.
            let mut least = (f64::INFINITY, safe.clone());
            for &object in decided
                .iter()
                .filter(|&&object| selection.choice(object) != safe.choice(object))
            {
                let without = selection.with(object, 0);
                let left_ns = if fits_other_sizes {
                    let saved_ns = self.times_ns(std::slice::from_ref(&without))?[0] - planned_ns;
                    saved_ns - (slower_ns(&selection) - slower_ns(&without))
                } else {
                    self.resized_ns(std::slice::from_ref(&without))?[0]
                };
                if left_ns < least.0 {
                    least = (left_ns, without);
                }
            }
            selection = least.1;
        }
    }

    /// By object: time that its decision saves, given the others; not a number if the object was not looked at alone.
    pub fn worth_ns(
        &mut self,
        selection: &Selection,
        decided: &[usize],
        planned_ns: f64,
    ) -> Result<Vec<f64>, J::Error> {
        let objects = 0..self.alternatives.objects();
        let worth = objects.map(|object| match selection.choice(object) {
            0 => Ok(0.0),
            _ if !decided.contains(&object) => Ok(f64::NAN),
            _ => Ok(self.judged_ns(&[selection.with(object, 0)])?[0] - planned_ns),
        });
        worth.collect()
    }
}

/// Share of its saving that a placement by a pattern with enough samples may cost with an input of another size, if
/// [`super::Margins::resized`] is less: patterns mostly go with the input.
const RESIZED_PATTERN: f64 = 2.0;

/// A placement by a pattern that makes more accesses local, by [`LOCAL_SHARE`], may take longer than the quickest
/// choice by [`LOCAL_TIME`], as shares of the program's time: the cost of queues is less certain than that of distance.
const LOCAL_TIME: f64 = 0.003;
const LOCAL_SHARE: f64 = 0.02;

/// Another choice than the preferred one has to be quicker by [`PREFERRED_MARGIN`]. A preferred choice that may lose
/// must not be slower than leaving the object alone by more than [`PREFERRED_LOSS`]. Both are shares of the program's
/// time.
const PREFERRED_MARGIN: f64 = 0.03;
const PREFERRED_LOSS: f64 = 0.02;

/// The same limit for choices that relieve one node: their effect depends on which thread the program waits for, which
/// chance changes most.
const RELIEF_LOSS: f64 = 0.05;

/// Share of the program's time that a choice from samples has to save, for objects whose structure speaks for no
/// choice.
const SAMPLED_MARGIN: f64 = 0.01;

/// Share of its saving that a decision about the heap that `brk` extends may cost with an input of another size: most
/// inputs change the heap's size.
const RESIZED_HEAP: f64 = 1.0 / 3.0;

/// Most rounds over the objects; each round looks at an object again after others have changed.
const ROUNDS_MAX: usize = 3;
