//! Objects of a recording that are worth deciding about, with their choices.

use nearpage_attribution::{ObjectGroup, Pattern};
use nearpage_plan::{Decision, Owner, Placement, Start, Subject};
use nearpage_recording::ObjectKind;

use super::choice::{
    ObjectChoice, REPLICATED_STORES_MAX, choices, copies_of_code, first_touch_choice, later,
    least_and_most_ns, next_touch, next_use,
};
use super::preference::{Preference, leave_out_chance, preferred};
use super::{inputs, unmatched};
use crate::context::Context;
use crate::group::{decided, first_touched};
use crate::parameters::Parameters;

/// An object of the recording with its choices, or unmatched memory.
pub(crate) struct Object {
    /// Positions in the attribution's objects: several only for unmatched memory.
    pub groups: Vec<usize>,
    /// Number of samples of its accesses.
    pub samples: f64,
    /// First `at_once` choices, then some of them with later starts, then some as they would be with an input of
    /// another size, which no plan contains.
    pub(super) choices: Vec<ObjectChoice>,
    pub at_once: usize,
    /// By choice: the choice that it would be with an input of another size.
    pub resized: Vec<usize>,
    /// The choice that its structure speaks for, if only samples tell of its accesses.
    pub(super) preference: Option<Preference>,
    /// Decision that leaves it to first touch if unmatched memory or the heap around it is placed, of which it would be
    /// a part otherwise.
    pub apart: Option<Decision>,
    /// Decision for a plan that leaves it alone: it is near the thread that works on it alone, but only because that
    /// thread happens to run on the node of the thread that touches it first.
    pub near_worker: Option<Box<Decision>>,
    /// True if it is on the heap.
    pub is_of_heap: bool,
}

/// Choices for an object that is worth deciding about.
pub(super) enum ObjectAlternatives {
    /// The object has several choices.
    Object(Object),
    /// The object can only be left alone: the decision for it if memory around it is placed, and whether it is on the
    /// heap.
    FirstTouchOnly(Option<(Decision, bool)>),
    /// There is nothing to decide.
    Nothing,
}

impl ObjectAlternatives {
    /// Choices for a group, given with its position in the attribution.
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
            true => std::iter::once(first_touch_choice())
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
        // A plan can copy code or leave it alone, nothing else.
        if parameters.of_phase {
            choices.push(next_use(context, group, &subject));
        } else if parameters.phases && !of_samples && !is_code {
            choices.extend(next_touch(context, group, &subject));
        }
        if of_samples {
            leave_out_chance(context, group, &mut choices);
            if subject.is_brk_heap() && context.part(group).1 < BRK_HEAP_COST_SHARE_MIN {
                choices.truncate(1);
            }
        }
        let near_worker = near_worker(context, group, &subject, parameters).map(Box::new);
        let apart = (!is_code).then(|| first_touched(context, group, subject, parameters));
        let is_of_heap = group.kind == ObjectKind::Heap;
        if choices.len() == 1 {
            return Self::FirstTouchOnly(apart.map(|apart| (apart, is_of_heap)));
        }
        let at_once = choices.len();
        let preference = match of_samples {
            true => preferred(context, group, &choices, latency_ns, parameters),
            false => None,
        };
        let starts = match context.is_of_processes(group) {
            // A start of this process means nothing to the others.
            true => &[],
            false => starts(parameters, of_samples),
        };
        let mut choices = with_later(choices, group, starts);
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
            near_worker,
            is_of_heap,
        })
    }
}

/// A group that one thread works on alone, by itself or in turn with all others, near that thread; none if that thread
/// touches its pages first, or if first touch puts them on another node. On a machine with other nodes, or with another
/// number of threads, the thread that touches them may be on another node.
fn near_worker(
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    parameters: &Parameters,
) -> Option<Decision> {
    // In a phase, pages may be elsewhere before. Code, the heap as a whole and what other processes use have no worker.
    let is_code = group.kind == ObjectKind::Code;
    let is_for_all = is_code || subject.is_brk_heap() || context.is_of_processes(group);
    if parameters.of_phase || is_for_all {
        return None;
    }
    let alone = |pattern: &Pattern| match *pattern {
        Pattern::Private { thread } => Some(thread),
        _ => None,
    };
    let worker = match &group.pattern {
        Pattern::InTurn(patterns) => patterns.iter().find_map(alone),
        pattern => alone(pattern),
    }?;
    let (owner, node) = (context.owner(worker)?, context.node_position(worker)?);
    let touches = context.first_touches(group);
    let (mut all, mut on_its_node, mut by_itself) = (0.0, 0.0, 0.0);
    for cell in &group.affinity.cells {
        let toucher = touches.toucher(cell.page);
        let is_on_its_node =
            toucher.and_then(|toucher| context.node_position(toucher)) == Some(node);
        let is_by_itself =
            toucher.and_then(|toucher| context.owner(toucher)).as_ref() == Some(&owner);
        all += cell.accesses();
        on_its_node += if is_on_its_node { cell.accesses() } else { 0.0 };
        by_itself += if is_by_itself { cell.accesses() } else { 0.0 };
    }
    let least = parameters.first_touch_local_min;
    if all == 0.0 || on_its_node < least * all || by_itself > (1.0 - least) * all {
        return None;
    }
    let Owner::Thread { team, index } = &owner else {
        return None;
    };
    let rule = format!(
        "thread {index} of {team} works on it alone; first touch puts it there only because the thread that fills it is \
         on the same node"
    );
    let placement = Placement::Whole(owner);
    Some(decided(context, group, subject.clone(), placement, &rule))
}

/// Least share of the cost for which samples decide about the heap that `brk` extends, a free parameter. Of 77 plans for
/// traced workloads on modelled machines that decided about a heap with less, none saved 0.3 % of the time by that, and
/// four lost as much; of 18 with more, 16 saved.
const BRK_HEAP_COST_SHARE_MIN: f64 = 0.1;

/// Starts other than an object's allocation.
pub(super) const STARTS_LATER: [Start; 2] = [Start::SecondThread, Start::Parallel];

/// Later starts that may be chosen: samples do not say when one thread runs alone.
fn starts(parameters: &Parameters, of_samples: bool) -> &'static [Start] {
    match (parameters.phases, of_samples) {
        (false, _) => &[],
        (true, true) => &STARTS_LATER[..1],
        (true, false) => &STARTS_LATER,
    }
}

/// Choices, then the same choices with other starts, if one thread fills `group` first.
fn with_later(
    choices: Vec<ObjectChoice>,
    group: &ObjectGroup,
    starts: &[Start],
) -> Vec<ObjectChoice> {
    let of_start = |&start: &Start| choices.iter().filter_map(move |c| later(group, c, start));
    let more: Vec<ObjectChoice> = starts.iter().flat_map(of_start).collect();
    choices.into_iter().chain(more).collect()
}

/// Notes in choices about some groups how much they make slower.
fn note_slower(
    context: &Context,
    groups: &[&ObjectGroup],
    choices: &mut [ObjectChoice],
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

/// Appends choices as they would be with an input of another size. Returns the position of the changed choice for each
/// choice.
fn with_resized(
    context: &Context,
    group: &ObjectGroup,
    choices: &mut Vec<ObjectChoice>,
) -> Vec<usize> {
    let mut resized: Vec<usize> = (0..choices.len()).collect();
    for number in 0..resized.len() {
        if let Some(other) = inputs::resized(context, group, &choices[number]) {
            resized[number] = choices.len();
            choices.push(other);
        }
    }
    resized
}

/// Number of samples of a group's accesses.
fn samples(group: &ObjectGroup) -> f64 {
    group.accesses() / group.affinity.sample_weight.max(1.0)
}

/// Greatest share of the cost that placing a group can save: all its misses would be on the farthest node before, and
/// on the nearest after. If all nodes are equally far, only relief of queues saves time.
pub(super) fn may_save(context: &Context, group: &ObjectGroup, latency_ns: &[Vec<f64>]) -> f64 {
    let (_, cost_share) = context.part(group);
    match least_and_most_ns(latency_ns) {
        [least_ns, most_ns] if least_ns < most_ns => cost_share * (1.0 - least_ns / most_ns),
        _ => cost_share,
    }
}

/// Unmatched memory, if the process's accesses to it cost enough and pages could be elsewhere. `others`: groups that
/// may be part of it, with positions. A judge by samples has to know the first touch for half of the accesses; a replay
/// knows it.
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
        // Pages go to nodes or to the thread that uses them next, so no choice has a size.
        resized: (0..choices.len()).collect(),
        preference: None,
        choices,
        apart: None,
        near_worker: None,
        is_of_heap: false,
        groups: positions,
    })
}
