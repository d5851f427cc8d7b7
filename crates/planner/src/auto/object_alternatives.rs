//! Objects of a recording that are worth deciding about, with what may be done with each.

use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Decision, Start, Subject};
use nearpage_recording::ObjectKind;

use super::choice::{
    Choice, REPLICATED_STORES_MAX, choices, copies_of_code, later, least_and_most_ns, left,
    next_touch, next_use,
};
use super::preference::{Preference, leave_out_chance, preferred};
use super::{inputs, unmatched};
use crate::context::Context;
use crate::group::first_touched;
use crate::parameters::Parameters;

/// An object of the recording with its choices, or unmatched memory.
pub(crate) struct Object {
    /// Positions in the attribution's objects: one, but for unmatched memory.
    pub groups: Vec<usize>,
    /// Samples of its accesses.
    pub samples: f64,
    /// Those of `at_once`, then others of them from the second thread on, then what would become of some of
    /// them with an input of another size, which no plan says.
    pub(super) choices: Vec<Choice>,
    pub at_once: usize,
    /// By choice: the one that it would become.
    pub resized: Vec<usize>,
    /// What its structure speaks for, where samples alone tell of its accesses.
    pub(super) preference: Option<Preference>,
    /// Leaves it to first touch where unmatched memory is placed, or the heap around it, of which it would be a part otherwise.
    pub apart: Option<Decision>,
    /// It is from the heap.
    pub is_of_heap: bool,
}

/// What becomes of an object that is worth deciding about.
pub(super) enum ObjectAlternatives {
    /// There are choices.
    Object(Object),
    /// It can only be left alone, by a decision where the heap or unmatched memory around it is placed; and whether it is from the heap.
    Left(Option<(Decision, bool)>),
    /// Nothing is said of it.
    Nothing,
}

impl ObjectAlternatives {
    /// A group at a position of the attribution.
    pub fn of(
        context: &Context,
        (position, group): (usize, &ObjectGroup),
        subject: Subject,
        parameters: &Parameters,
        latency_ns: &[Vec<f64>],
        of_samples: bool,
    ) -> Self {
        let stores_most = match of_samples {
            true => REPLICATED_STORES_MAX,
            false => 1.0,
        };
        let is_code = group.kind == ObjectKind::Code;
        // Samples do not say where a file's pages are.
        if is_code && (of_samples || !parameters.replicas || parameters.of_phase) {
            return Self::Nothing;
        }
        let mut choices = match is_code {
            true => std::iter::once(left())
                .chain(copies_of_code(context, group, &subject, latency_ns))
                .collect(),
            false => choices(
                context,
                group,
                &subject,
                parameters,
                latency_ns,
                stores_most,
            ),
        };
        // Code is copied or left: a plan says nothing else of it.
        if parameters.of_phase {
            choices.push(next_use(context, group, &subject));
        } else if parameters.phases && !of_samples && !is_code {
            choices.extend(next_touch(context, group, &subject));
        }
        if of_samples {
            leave_out_chance(context, group, &mut choices);
        }
        let apart = (!is_code).then(|| first_touched(context, group, subject, parameters));
        let is_of_heap = group.kind == ObjectKind::Heap;
        if choices.len() == 1 {
            return Self::Left(apart.map(|apart| (apart, is_of_heap)));
        }
        let at_once = choices.len();
        let preference = match of_samples {
            true => preferred(context, group, &choices, latency_ns, parameters),
            false => None,
        };
        let mut choices = with_later(choices, group, starts(parameters, of_samples));
        let resized = match parameters.same_input {
            true => (0..choices.len()).collect(),
            false => {
                let runtime_scale = parameters.runtime_scale;
                note_slower(context, &[group], &mut choices, latency_ns, runtime_scale);
                with_resized(context, group, &mut choices)
            }
        };
        Self::Object(Object {
            groups: vec![position],
            samples: samples(group),
            at_once,
            resized,
            preference,
            choices,
            apart,
            is_of_heap,
        })
    }
}

/// Other starts than an object's allocation.
pub(super) const STARTS_LATER: [Start; 2] = [Start::SecondThread, Start::Parallel];

/// Those that may be chosen: samples do not say when one thread runs alone.
fn starts(parameters: &Parameters, of_samples: bool) -> &'static [Start] {
    match (parameters.phases, of_samples) {
        (false, _) => &[],
        (true, true) => &STARTS_LATER[..1],
        (true, false) => &STARTS_LATER,
    }
}

/// Choices, then the same with other starts; `group` says whether one thread fills what they are about.
fn with_later(choices: Vec<Choice>, group: &ObjectGroup, starts: &[Start]) -> Vec<Choice> {
    let of_start = |&start: &Start| choices.iter().filter_map(move |c| later(group, c, start));
    let more: Vec<Choice> = starts.iter().flat_map(of_start).collect();
    choices.into_iter().chain(more).collect()
}

/// Notes in choices about some groups what they make slower.
fn note_slower(
    context: &Context,
    groups: &[&ObjectGroup],
    choices: &mut [Choice],
    latency_ns: &[Vec<f64>],
    runtime_scale: f64,
) {
    for choice in choices {
        let decisions = &choice.decisions;
        let of = |group: &&ObjectGroup| {
            inputs::slower_ns(context, group, decisions, latency_ns, runtime_scale)
        };
        choice.slower_ns = groups.iter().map(of).sum();
    }
}

/// Appends what would become of choices with an input of another size; by choice, the one that it would become.
fn with_resized(context: &Context, group: &ObjectGroup, choices: &mut Vec<Choice>) -> Vec<usize> {
    let mut resized: Vec<usize> = (0..choices.len()).collect();
    for number in 0..resized.len() {
        if let Some(other) = inputs::resized(context, group, &choices[number]) {
            resized[number] = choices.len();
            choices.push(other);
        }
    }
    resized
}

/// Samples of a group's accesses.
fn samples(group: &ObjectGroup) -> f64 {
    group.accesses() / group.affinity.sample_weight.max(1.0)
}

/// Share of the latencies that placing a group saves at most: were all it misses on the farthest node, and then on the
/// nearest. Where all nodes are as far, relief of queues is all there is to save.
pub(super) fn may_save(context: &Context, group: &ObjectGroup, latency_ns: &[Vec<f64>]) -> f64 {
    let (_, cost_share) = context.part(group);
    match least_and_most_ns(latency_ns) {
        [least_ns, most_ns] if least_ns < most_ns => cost_share * (1.0 - least_ns / most_ns),
        _ => cost_share,
    }
}

/// The rest, where the process has accesses to it that matter, and pages could be elsewhere: of groups
/// with their positions, those that may be part of it. Of samples, who touched first what half of its
/// accesses are to has to be known; a replay knows.
pub(super) fn unmatched_memory(
    context: &Context,
    others: &[(usize, &ObjectGroup)],
    parameters: &Parameters,
    latency_ns: &[Vec<f64>],
    of_samples: bool,
) -> Option<Object> {
    let ours = others.iter().filter(|(_, group)| {
        let (accesses, _) = context.part(group);
        accesses > 0.0 && unmatched::may_be_unmatched(group)
    });
    let (positions, groups): (Vec<usize>, Vec<&ObjectGroup>) = ours.copied().unzip();
    let cost_share: f64 = groups.iter().map(|group| context.part(group).1).sum();
    let nodes = context.machine.nodes_with_memory().len();
    if groups.is_empty() || nodes < 2 || cost_share < parameters.cost_share_min {
        return None;
    }
    let known = groups
        .iter()
        .filter(|group| unmatched::first_touch_is_known(context, group, parameters));
    let accesses = |group: &&ObjectGroup| context.part(group).0;
    let known: f64 = known.map(accesses).sum();
    if of_samples && 2.0 * known < groups.iter().map(accesses).sum() {
        return None;
    }
    let choices = unmatched::choices(context, &groups, parameters, latency_ns, of_samples);
    let at_once = choices.len();
    let mut choices = match unmatched::filled_by_one(&groups) {
        Some(group) => with_later(choices, group, starts(parameters, of_samples)),
        None => choices,
    };
    if !parameters.same_input {
        let runtime_scale = parameters.runtime_scale;
        note_slower(context, &groups, &mut choices, latency_ns, runtime_scale);
    }
    Some(Object {
        samples: groups.iter().map(|group| samples(group)).sum(),
        at_once,
        // It goes to nodes or to who uses it next: nothing with a size.
        resized: (0..choices.len()).collect(),
        preference: None,
        choices,
        apart: None,
        is_of_heap: false,
        groups: positions,
    })
}
