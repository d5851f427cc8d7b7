//! Objects with their choices, and selections of choices.

use nearpage_amount::percent;
use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Decision, Plan};
use nearpage_recording::ObjectKind;

use super::Margins;
use super::choice::{Kind, placements};
use super::object_alternatives::{
    Object, ObjectAlternatives, STARTS_LATER, may_save, unmatched_memory,
};
use super::preference::{Ground, Preference};
use crate::context::{Context, Input};
use crate::group::worth_deciding;
use crate::parameters::{Parameters, Policy};
use crate::subject;

/// A choice for each object, by number; 0 leaves the object alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection(Vec<usize>);

impl Selection {
    /// The choice for an object.
    pub fn choice(&self, object: usize) -> usize {
        self.0[object]
    }

    /// The same selection with another choice for one object.
    pub fn with(&self, object: usize, choice: usize) -> Self {
        let mut other = self.clone();
        other.0[object] = choice;
        other
    }
}

/// Objects worth deciding about, by cost, then unmatched memory; each with its choices.
pub struct Alternatives<'a> {
    plan: Plan,
    pub(crate) objects: Vec<Object>,
    /// [`Parameters::runtime_scale`], by which samples of the parallel part stand for more accesses.
    runtime_scale: f64,
    /// Position of unmatched memory among the objects.
    unmatched: Option<usize>,
    /// Position of the heap that `brk` extends among the objects.
    heap: Option<usize>,
    /// Decisions that leave objects to first touch whatever is chosen, and whether the objects are on the heap.
    kept_at_first_touch: Vec<(Decision, bool)>,
    machine: &'a nearpage_machine::Machine,
}

impl<'a> Alternatives<'a> {
    /// Alternatives for a judge with these margins; a judge by samples does not know in which order accesses were made.
    pub(crate) fn new(
        context: &Context<'a>,
        input: &Input<'a>,
        parameters: &Parameters,
        margins: &Margins,
    ) -> Self {
        let of_samples = margins.of_samples;
        let mut objects = Vec::new();
        let mut heap = None;
        let mut kept_at_first_touch = Vec::new();
        let mut others = Vec::new();
        // Latencies with which the machine's time is modelled; weights if it cannot be modelled.
        let timing = input.machine.timing();
        let latency_ns =
            timing.map_or_else(|_| context.weights.clone(), |timing| timing.latency_ns);
        // Least share of the time that an object has to save. Samples have no such bound: their uncertainty is greater.
        let least_saved = match of_samples {
            true => 0.0,
            false => margins.object,
        };
        let is_worth_it = |group: &ObjectGroup| {
            worth_deciding(context, group, parameters)
                && may_save(context, group, &latency_ns) >= least_saved
        };
        for (position, group) in input.attribution.objects.iter().enumerate() {
            let subject = subject::subject(context.tables, group).filter(|_| is_worth_it(group));
            // A phase's accesses say nothing about memory that belongs to no object.
            let subject = subject.filter(|one| !parameters.of_phase || !one.is_brk_heap());
            let Some(subject) = subject else {
                others.push((position, group));
                continue;
            };
            let is_brk_heap = subject.is_brk_heap();
            let found = ObjectAlternatives::of(
                context,
                (position, group),
                subject,
                parameters,
                &latency_ns,
                of_samples,
            );
            match found {
                ObjectAlternatives::Object(object) => {
                    heap = heap.or(is_brk_heap.then_some(objects.len()));
                    objects.push(object);
                }
                ObjectAlternatives::FirstTouchOnly(apart) => kept_at_first_touch.extend(apart),
                ObjectAlternatives::Nothing => {}
            }
        }
        // Heap objects too small for a place of their own lie on the heap's pages.
        if heap.is_some() {
            others.retain(|(_, group)| group.kind != ObjectKind::Heap);
        }
        let may_save = others
            .iter()
            .map(|(_, group)| may_save(context, group, &latency_ns));
        let unmatched = match parameters.of_phase || may_save.sum::<f64>() < least_saved {
            true => None,
            false => unmatched_memory(context, &others, parameters, &latency_ns, of_samples),
        };
        let number = unmatched.is_some().then_some(objects.len());
        objects.extend(unmatched);
        Self {
            plan: Plan {
                program: input.program.clone(),
                policy: Policy::Auto.as_str().to_owned(),
                machine: input.machine.name.clone(),
                page_bytes: context.page_bytes,
                threads: None,
                teams: context.plan_teams(),
                decisions: Vec::new(),
                predicted: None,
                online_migration: None,
                phases: Vec::new(),
            },
            objects,
            runtime_scale: parameters.runtime_scale,
            unmatched: number,
            heap,
            kept_at_first_touch,
            machine: input.machine,
        }
    }

    /// Objects except unmatched memory, the costliest first.
    pub fn costliest(&self) -> impl Iterator<Item = usize> {
        (0..self.objects.len()).filter(|&object| self.unmatched != Some(object))
    }

    /// The object that is unmatched memory, if there is something to decide about it.
    pub fn unmatched(&self) -> Option<usize> {
        self.unmatched
    }

    /// Number of objects.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// The machine that the plan is for.
    pub fn machine(&self) -> &'a nearpage_machine::Machine {
        self.machine
    }

    /// Number of choices for an object.
    pub fn choices(&self, object: usize) -> usize {
        self.objects[object].choices.len()
    }

    /// Number of choices that differ in more than their [`nearpage_plan::Start`]; they come first.
    pub fn at_once(&self, object: usize) -> usize {
        self.objects[object].at_once
    }

    /// Choices that differ from `choice` only in their [`nearpage_plan::Start`].
    pub fn later(&self, object: usize, choice: usize) -> impl Iterator<Item = usize> {
        let Object {
            choices,
            at_once,
            resized,
            ..
        } = &self.objects[object];
        let wanted = placements(&choices[choice].decisions);
        // What choices would be with an input of another size comes after them, and may place as another choice does.
        (*at_once..resized.len())
            .filter(move |&later| placements(&choices[later].decisions) == wanted)
    }

    /// The choice that puts each page near the thread that uses it next.
    pub fn next_touch(&self, object: usize) -> Option<usize> {
        let choices = &self.objects[object].choices;
        choices
            .iter()
            .position(|choice| choice.kind == Kind::NextTouch)
    }

    /// The selection that puts pages near the threads that use them next, for all objects with that choice.
    pub fn all_next_touch(&self) -> Selection {
        let of = |object| self.next_touch(object).unwrap_or(0);
        self.without_unmatched(&Selection((0..self.objects.len()).map(of).collect()))
    }

    /// The selection with unmatched memory left alone.
    fn without_unmatched(&self, selection: &Selection) -> Selection {
        match self.unmatched {
            Some(unmatched) => selection.with(unmatched, 0),
            None => selection.clone(),
        }
    }

    /// Selections that treat unmatched memory and all objects by one rule, with each start that they may have.
    pub fn alike_with_unmatched(&self) -> Vec<Selection> {
        let Some(unmatched) = self.unmatched else {
            return Vec::new();
        };
        let alike = KINDS.map(|kind| self.of_kind(kind));
        let mut selections: Vec<Selection> = alike.into();
        selections.retain(|selection| selection.choice(unmatched) != 0);
        let later = selections.iter().flat_map(|one| self.all_later(one));
        let later: Vec<Selection> = later.collect();
        selections.extend(later);
        selections
    }

    /// For each later [`nearpage_plan::Start`], the selection in which all objects that may have that start have it.
    pub fn all_later(&self, selection: &Selection) -> impl Iterator<Item = Selection> {
        STARTS_LATER.into_iter().map(|start| {
            let begins = |object: usize, choice: usize| {
                let decisions = self.decisions(object, choice);
                decisions.iter().all(|decision| decision.start == start)
            };
            let of = |(object, &choice): (usize, &usize)| {
                let mut later = self.later(object, choice);
                later.find(|&later| begins(object, later)).unwrap_or(choice)
            };
            Selection(selection.0.iter().enumerate().map(of).collect())
        })
    }

    /// The selection as it would be with an input of another size.
    pub fn resized(&self, selection: &Selection) -> Selection {
        let of = |(object, &choice): (&Object, &usize)| object.resized[choice];
        Selection(self.objects.iter().zip(&selection.0).map(of).collect())
    }

    /// True if an object is the heap that `brk` extends.
    pub fn is_brk_heap(&self, object: usize) -> bool {
        self.heap == Some(object)
    }

    /// True if a choice for an object would become another choice with an input of another size.
    pub fn has_size(&self, object: usize, choice: usize) -> bool {
        self.objects[object].resized[choice] != choice
    }

    /// Share of an object's accesses that a choice makes local, if known.
    pub(super) fn local_share(&self, object: usize, choice: usize) -> Option<f64> {
        self.objects[object].choices[choice].local_share
    }

    /// The choice that an object's structure speaks for.
    pub(super) fn preference(&self, object: usize) -> Option<Preference> {
        self.objects[object].preference
    }

    /// The selection without choices that their objects' structures do not speak for on one of these grounds.
    pub(super) fn restricted_to(&self, selection: &Selection, grounds: &[Ground]) -> Selection {
        let is_kept = |object: usize| {
            let preference = self.preference(object);
            preference.is_some_and(|one| {
                one.choice == selection.choice(object) && grounds.contains(&one.ground)
            })
        };
        let of = |object: usize| match is_kept(object) {
            true => selection.choice(object),
            false => 0,
        };
        Selection((0..self.objects.len()).map(of).collect())
    }

    /// The selection that the structures of all objects speak for.
    pub(super) fn preferred(&self) -> Selection {
        let of = |object: &Object| object.preference.map_or(0, |one| one.choice);
        Selection(self.objects.iter().map(of).collect())
    }

    /// True for choices by a pattern with enough samples, and for leaving the object alone.
    pub(super) fn is_by_pattern(&self, object: usize, choice: usize) -> bool {
        let choice = &self.objects[object].choices[choice];
        matches!(
            choice.kind,
            Kind::FirstTouch | Kind::Pattern | Kind::Segments
        )
    }

    /// Decisions of a choice for an object.
    pub(crate) fn decisions(&self, object: usize, choice: usize) -> &[Decision] {
        &self.objects[object].choices[choice].decisions
    }

    /// Two standard errors of what a choice for an object saves, in nanoseconds of the program's time.
    pub fn sampling_error_ns(&self, object: usize, choice: usize) -> f64 {
        self.runtime_scale * self.objects[object].choices[choice].error_ns
    }

    /// Two standard errors of an object's saving, queues included, as a share of the saving. The saving is as uncertain
    /// as the number of the object's samples, with which it grows. The share has a limit, as it is less uncertain that
    /// there is a saving at all.
    pub fn sampling_error(&self, object: usize) -> f64 {
        (2.0 / self.objects[object].samples.max(1.0).sqrt()).min(SAVING_ERROR_MAX)
    }

    /// Saving of a selection that is expected by chance: the same samples choose and judge.
    pub fn chance_ns(&self, selection: &Selection) -> f64 {
        let objects = self.objects.iter().enumerate();
        let sum: f64 = objects
            .map(|(number, object)| object.choices[selection.choice(number)].chance_ns)
            .sum();
        self.runtime_scale * sum
    }

    /// Time of accesses that a selection makes slower, in nanoseconds of the program's time.
    pub fn slower_ns(&self, selection: &Selection) -> f64 {
        let objects = self.objects.iter().zip(&selection.0);
        objects
            .map(|(object, &choice)| object.choices[choice].slower_ns)
            .sum()
    }

    /// The selection that leaves everything alone.
    pub fn nothing(&self) -> Selection {
        Selection(vec![0; self.objects.len()])
    }

    /// Selections that treat all objects by one rule, as far as it applies to them, and leave unmatched memory alone.
    pub fn alike(&self) -> impl Iterator<Item = Selection> {
        KINDS
            .into_iter()
            .map(|kind| self.without_unmatched(&self.of_kind(kind)))
    }

    fn of_kind(&self, kind: Kind) -> Selection {
        let of = |object: &Object| {
            let choices = &object.choices;
            choices.iter().position(|choice| choice.kind == kind)
        };
        let choices = self.objects.iter().map(|object| of(object).unwrap_or(0));
        Selection(choices.collect())
    }

    /// The plan of a selection; `worth` gives the share of the time that the decision about an object saves, if known.
    /// If unmatched memory is placed, decisions keep the other objects at first touch; if the heap is placed, the other
    /// objects on it. If anything is placed, so is what is near its worker by chance.
    pub fn plan(&self, selection: &Selection, worth: impl Fn(usize) -> Option<f64>) -> Plan {
        let mut decisions = Vec::new();
        let is_placed = |object: usize| selection.choice(object) != 0;
        let unmatched_is_placed = self.unmatched.is_some_and(is_placed);
        let heap_is_placed = self.heap.is_some_and(is_placed);
        let is_kept_apart = |is_of_heap: bool| unmatched_is_placed || heap_is_placed && is_of_heap;
        let places_some = *selection != self.nothing();
        for (number, object) in self.objects.iter().enumerate() {
            if selection.choice(number) == 0 {
                let near_worker = object.near_worker.as_deref().filter(|_| places_some);
                let apart = object
                    .apart
                    .as_ref()
                    .filter(|_| is_kept_apart(object.is_of_heap));
                decisions.extend(near_worker.or(apart).cloned());
            }
            for decision in self.decisions(number, selection.choice(number)) {
                let mut decision = decision.clone();
                if let Some(worth) = worth(number) {
                    decision.why += &format!("; predicted to save {} of the time", percent(worth));
                }
                decisions.push(decision);
            }
        }
        let kept = self
            .kept_at_first_touch
            .iter()
            .filter(|(_, is_of_heap)| is_kept_apart(*is_of_heap));
        decisions.extend(kept.map(|(decision, _)| decision.clone()));
        Plan {
            decisions,
            ..self.plan.clone()
        }
    }
}

/// Limit of [`Alternatives::sampling_error`]. With a greater limit, objects would be left alone for a few samples that
/// stand for thousands, however many other samples say whose their pages are.
const SAVING_ERROR_MAX: f64 = 0.5;

/// Rules that may treat all objects alike.
const KINDS: [Kind; 8] = [
    Kind::Pattern,
    Kind::Segments,
    Kind::Block,
    Kind::NextTouch,
    Kind::Interleave,
    Kind::HopSensitive,
    Kind::Uniform,
    Kind::Replicate,
];

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;

    use super::*;
    use crate::Planner;
    use crate::auto::{Judge, Model};
    use crate::making::Samples;

    #[test]
    fn what_a_choice_would_be_with_another_size_is_not_taken_for_a_later_choice() {
        let samples = Samples::of("opteron-4", &[0, 1, 2, 3]).analysed();
        let machine = preset("opteron-4").unwrap();
        let planner = Planner::of(&samples.analysis, &machine, None);
        let input = &planner.programs().unwrap()[0];
        let parameters = Parameters::default();
        let context = Context::new(input);
        let margins = Model::new(input, &parameters).unwrap().margins();
        let mut alternatives = Alternatives::new(&context, input, &parameters, &margins);
        let (grid, placed) = (0, 1);
        assert!(placed < alternatives.at_once(grid));
        let later: Vec<usize> = alternatives.later(grid, placed).collect();
        let choices = &mut alternatives.objects[grid].choices;
        choices.push(choices[placed].clone());
        let with_other_size: Vec<usize> = alternatives.later(grid, placed).collect();
        assert_eq!(with_other_size, later);
    }
}
