//! `auto`: of all that may be done with each object, what makes the program take least time.
//!
//! For each object there are several choices (`alternatives`): leave it to first touch, the placement
//! of its pattern, blocks by thread, all of it near one thread, interleaving (evenly, or as its users
//! are spread), pages by Eq. 1 and 2, and, where the machine can, copies for all readers. A [`Judge`]
//! says how long the program takes under a selection of them: [`Model`] predicts it from affinities on
//! the machine's contention model, whatever kind of recording they are of; a replay of a full
//! recording is another judge (the simulator's, in the command).
//!
//! [`choose`] starts from the best of the selections that treat all objects by one rule, and then
//! takes objects one by one, the costliest first, until nothing changes. It prefers, in this order:
//! leaving an object alone, placements that fit other inputs and machines (patterns), and page runs;
//! each is passed over only for one that is faster by more than what is uncertain about the
//! prediction (but a pattern's placement that makes more local is preferred to one about as quick): two standard errors of the samples that it makes faster or slower, all of the object's
//! together (where the judge goes by samples, at least of their number, by which relief of queues grows
//! too), and a share of the time that says how far the judge is trusted ([`Margins`]). Page runs are chosen by the very accesses that they are
//! judged by: each page is taken to owe one sample to chance, so that pages with a sample each, which
//! runs would suit perfectly, are left alone.
//!
//! Where samples alone tell of accesses, an object's structure comes first (`preference`): a placement by its pattern that makes
//! hardly an access slower is kept whatever part of the time the object is, and gives way only to what is quicker by more than
//! times of samples are known. Two recordings of one program then give the same plan, though their times differ.
//!
//! Another input has another size, and a plan is judged as if it were there, too (`inputs`): placements
//! that have a size of their own (page runs, block-cyclic) are passed over where they would cost more than a
//! share of what they save if the object's pattern did not grow as they do, compared with leaving it alone and, of
//! the heap, with each placement that has no size. A plan as a whole must not cost anything then, and has to save more than
//! a share of what it makes slower, as the difference of two large sums is the first that changes with the
//! input. Even interleaving is exempt: it has no size, and relieves queues.
//!
//! Plans are for runs whose parallel part is half as long again as the recorded one's ([`Parameters::runtime_scale`]), as a
//! recording is of few steps, and a run of many. What one thread does alone before and after, which is slower where the
//! master thread initialises what others use, is taken to be as long as recorded. For an object that one thread fills, placements that
//! begin when a second thread runs are choices too, and each page near the thread that uses it first then
//! ([`Parameters::phases`]): the one phase change that is looked for, since any run of the program shows
//! it, whatever its input. What it saves is weighed against a move of every page. Where the judge knows in
//! which order accesses were made, they may hold only while several threads run; it judges copies of code,
//! too. A stable phase that is marked (`nearpage_begin`) counts alone.
//!
//! What another input asks for, and what changes as a program goes on, no placement has. A plan may say that online `auto`
//! moves its pages from there ([`Parameters::online_migration`]): the command's replay tells whether that pays.
//!
//! A phase of a run that is known otherwise ([`Parameters::of_phase`]: the command looks for functions with which
//! long ones begin) is decided about in the same way, from its own accesses: what is to change when it begins, given
//! what came before and what comes after.
//!
//! A replay is not asked about an object that could not save what is asked of a decision, if all that it misses were on
//! the farthest node, and then on the nearest: it is part of unmatched memory.
//!
//! What is in none of the objects worth deciding about, small objects, data without a name, is decided about
//! together (`rest`): rows and atoms of a few hundred bytes share pages, so that nothing can be said of them one by
//! one, but much is won where they are spread over the nodes, or each of their pages goes to the thread that is the
//! next to use it. That is tried last, and nothing else of a plan changes where it saves no more than an object has
//! to. An object that is left alone would be part of unmatched memory, and is kept apart by a decision then. Where it is
//! not known who touched most of it first, as many instances lie over each other in what samples say, a judge by samples
//! is not asked.
//!
//! A machine of one memory node, or one whose network cannot be modelled, has nothing to predict:
//! there the object's pattern decides, as under `object`, so that the plan serves other machines.

mod alternatives;
mod choice;
mod contention;
mod inputs;
mod margins;
mod model;
mod object_alternatives;
mod preference;
mod unmatched;

pub use alternatives::{Alternatives, Selection};
pub use margins::Margins;
pub use model::Model;
pub(crate) use preference::{loses_nothing, relieves_one_node};
pub(crate) use unmatched::may_be_unmatched;

use margins::{least, trusted};
use nearpage_plan::Plan;

use crate::context::{Context, Input};
use crate::parameters::Parameters;

/// Says how long a program takes under a plan.
pub trait Judge {
    /// Why it can't.
    type Error;

    /// The time under each of some selections, in nanoseconds, of a run whose parallel part is
    /// [`Parameters::runtime_scale`] times as long as recorded.
    ///
    /// # Errors
    /// Whatever keeps it from saying so.
    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Self::Error>;

    /// How far it is trusted.
    fn margins(&self) -> Margins;

    /// Objects that are looked at one by one, the costliest first.
    fn objects_max(&self) -> usize;
}

/// A plan, and the times that decided for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The plan.
    pub plan: Plan,
    /// Of runs that it was decided for ([`Parameters::runtime_scale`]).
    pub time: Times,
}

/// What a plan does to a run, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// If everything is left to first touch.
    pub first_touch_ns: f64,
    /// Under the plan.
    pub planned_ns: f64,
}

/// Times by selection: no selection is judged twice.
struct Judged<'a, 'i, J> {
    judge: &'a mut J,
    alternatives: &'a Alternatives<'i>,
    known: Vec<(Selection, f64)>,
}

impl<J: Judge> Judged<'_, '_, J> {
    /// Times, with what choices owe to chance added.
    fn times_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
        let times = self.judged_ns(selections)?;
        let by_chance = |selection| self.alternatives.chance_ns(selection);
        let by_chance = selections.iter().map(by_chance);
        Ok(times
            .into_iter()
            .zip(by_chance)
            .map(|(time, chance)| time + chance)
            .collect())
    }

    /// The same with an input of another size, where that changes what the placements come to.
    fn resized_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
        let resized = selections.iter().map(|one| self.alternatives.resized(one));
        let resized: Vec<Selection> = resized.collect();
        self.times_ns(&resized)
    }

    /// Times, or those with an input of another size where they are longer; of selections that another one is
    /// quicker than whatever these are, the times alone.
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

    /// Times of selections that differ in one object, which the first leaves alone; none of those that are not
    /// to be trusted ([`Margins::resized`]). Where the heap's pages lie depends on all that is allocated: what has a
    /// size there is compared with what has none, too.
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

    fn judged_ns(&mut self, selections: &[Selection]) -> Result<Vec<f64>, J::Error> {
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

    /// Takes objects one by one, until nothing changes.
    fn one_by_one(
        &mut self,
        mut selection: Selection,
        objects: &[usize],
    ) -> Result<Selection, J::Error> {
        let (margins, alternatives) = (self.judge.margins(), self.alternatives);
        for _ in 0..ROUNDS_MAX {
            let before = selection.clone();
            for &object in objects {
                let with = |choice: &usize| selection.with(object, *choice);
                let mut choices: Vec<usize> = (0..alternatives.at_once(object)).collect();
                let all: Vec<Selection> = choices.iter().map(with).collect();
                let times = self.trusted_ns(object, &all)?;
                // The best may be better with another start, and so may what depends on starts alone.
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
                if let Some(preferred) = self.preferred_ns(object, &all, &times)? {
                    let (chosen, chosen_ns) = preferred;
                    let error = alternatives.sampling_error_ns(object, choices[at]);
                    let margin = PREFERRED_MARGIN * times[0] + error;
                    let keeps = chosen_ns <= times[at] + margin;
                    selection = if keeps { chosen } else { all[at].clone() };
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

    /// The selection with what an object's structure speaks for, where that is to be trusted, and its time; `all` are the
    /// selections with its other choices, the first of which leaves it alone.
    fn preferred_ns(
        &mut self,
        object: usize,
        all: &[Selection],
        trusted_ns: &[f64],
    ) -> Result<Option<(Selection, f64)>, J::Error> {
        let Some(preference) = self.alternatives.preference(object) else {
            return Ok(None);
        };
        let chosen = all[0].with(object, preference.choice);
        let time_ns = self.times_ns(std::slice::from_ref(&chosen))?[0];
        let has_size = self.alternatives.has_size(object, preference.choice);
        let at = all.iter().position(|one| *one == chosen);
        let is_trusted = !has_size || at.is_some_and(|at| trusted_ns[at].is_finite());
        let is_close = is_trusted && time_ns <= trusted_ns[0] * (1.0 + PREFERRED_LOSS);
        Ok((preference.loses_nothing || is_close).then_some((chosen, time_ns)))
    }

    /// Of an object's choices the one that a pattern makes most local, where it takes about as long as the quickest and
    /// no longer than leaving the object alone, which is the first; else the position that is given.
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

    /// Proposes to treat all objects by one rule, from each start that they may have, and keeps the quickest; none
    /// where every one takes longer than `limit_ns`.
    fn best_alike(
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

    /// Proposes to place unmatched memory, too, and keeps that if it saves as much as a decision about an object has to:
    /// otherwise nothing is to change for what is not worth a decision.
    fn with_rest(
        &mut self,
        selection: Selection,
        costliest: &[usize],
        first_touch_ns: f64,
    ) -> Result<Selection, J::Error> {
        let (margins, alternatives) = (self.judge.margins(), self.alternatives);
        let Some(rest) = alternatives.rest() else {
            return Ok(selection);
        };
        let alone_ns = self.longest_ns(std::slice::from_ref(&selection))?[0];
        let mut starts = alternatives.alike_with_rest();
        starts.extend((1..alternatives.choices(rest)).map(|choice| selection.with(rest, choice)));
        let times = self.longest_ns(&starts)?;
        let at = least(&times, 0.0);
        if times[at] >= alone_ns - margins.object * first_touch_ns {
            return Ok(selection);
        }
        let all: Vec<usize> = std::iter::once(rest)
            .chain(costliest.iter().copied())
            .collect();
        let with_rest = self.one_by_one(starts[at].clone(), &all)?;
        let time = self.longest_ns(std::slice::from_ref(&with_rest))?[0];
        Ok(match with_rest.choice(rest) != 0 && time < alone_ns {
            true => with_rest,
            false => selection,
        })
    }

    /// Drops decisions until the plan costs nothing with an input of another size, and saves enough for what it makes
    /// slower; nothing is left of one that does not save enough.
    fn without_losses(
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
            let safe = alternatives.without_risk(&selection);
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
            // Without the decision that costs most with another size, or that has least to show for what it makes slower.
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

    /// By object: what its decision is worth, given the others; not a number where it was not looked at alone.
    fn worth_ns(
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

/// The same of a placement by a pattern that its samples are enough for: patterns mostly go with the input.
const RESIZED_PATTERN: f64 = 2.0;

/// Placements by a pattern that make more accesses local, by more than this share, may take longer than the quickest
/// choice by this share of the program's time: what queues cost is known less surely than what distance does.
const LOCAL_TIME: f64 = 0.003;
const LOCAL_SHARE: f64 = 0.02;

/// Another choice than what an object's structure speaks for has to be quicker by so much of the program's time, and what
/// may lose something may not be slower than leaving the object alone by more.
const PREFERRED_MARGIN: f64 = 0.03;
const PREFERRED_LOSS: f64 = 0.02;

/// What samples say of an object whose structure speaks for nothing has to save so much of the program's time.
const SAMPLED_MARGIN: f64 = 0.01;

/// What a decision about the heap that `brk` extends may cost of what it saves, with an input of another size: it is
/// another size with most.
const RESIZED_HEAP: f64 = 1.0 / 3.0;

/// Rounds over the objects; each is a new look at an object after others have changed.
const ROUNDS_MAX: usize = 3;

/// Makes the plan that a judge finds best; see the module.
///
/// # Errors
/// The judge's.
pub fn choose<J: Judge>(
    input: &Input,
    parameters: &Parameters,
    judge: &mut J,
) -> Result<Chosen, J::Error> {
    let chosen = choose_within(f64::INFINITY, input, parameters, judge)?;
    Ok(chosen.expect("no time is as long"))
}

/// The same, unless under all rules that treat objects alike the program takes longer than `limit_ns`.
///
/// # Errors
/// The judge's.
pub fn choose_within<J: Judge>(
    limit_ns: f64,
    input: &Input,
    parameters: &Parameters,
    judge: &mut J,
) -> Result<Option<Chosen>, J::Error> {
    let context = Context::new(input);
    let (margins, objects_max) = (judge.margins(), judge.objects_max());
    let alternatives = Alternatives::new(&context, input, parameters, &margins);
    let mut judged = Judged {
        judge,
        alternatives: &alternatives,
        known: Vec::new(),
    };
    let nothing = alternatives.nothing();
    let first_touch_ns = judged.times_ns(std::slice::from_ref(&nothing))?[0];
    let Some(alike) = judged.best_alike(first_touch_ns, limit_ns)? else {
        return Ok(None);
    };
    let mut decided: Vec<usize> = alternatives.costliest().take(objects_max).collect();
    let preferred = alternatives.preferred();
    let start = if preferred == nothing {
        alike
    } else {
        preferred
    };
    let one_by_one = judged.one_by_one(start, &decided)?;
    let with_rest = judged.with_rest(one_by_one, &decided, first_touch_ns)?;
    decided.extend(alternatives.rest());
    let selection = judged.without_losses(with_rest, &decided, first_touch_ns)?;
    let planned_ns = judged.judged_ns(std::slice::from_ref(&selection))?[0];
    let worth = judged.worth_ns(&selection, &decided, planned_ns)?;
    Ok(Some(Chosen {
        plan: alternatives.plan(&selection, |object| {
            (!worth[object].is_nan()).then(|| worth[object] / first_touch_ns.max(1.0))
        }),
        time: Times {
            first_touch_ns,
            planned_ns,
        },
    }))
}
