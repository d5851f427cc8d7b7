//! Choices for unmatched memory: all memory that is not among the objects worth deciding about, together.
//!
//! Rows, atoms and nodes of a few hundred bytes share pages, so no decision about one call site can place them. Enough
//! is known of all of them together to spread their pages.

use std::collections::BTreeSet;

use nearpage_amount::counted;
use nearpage_attribution::{ObjectGroup, ObjectName};
use nearpage_machine::NodeId;
use nearpage_plan::{Decision, Effect, Placement, Start, Subject};
use nearpage_recording::{ObjectKind, ThreadIndex};

use super::choice::{Kind, ObjectChoice, first_touch_choice, sampling_error_ns};
use crate::context::Context;
use crate::effect::{Tally, under_first_touch};
use crate::instances::{self, Instances};
use crate::interleave;
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};

/// True if a group can be part of unmatched memory: no stacks, code, or pages of files.
pub(crate) fn may_be_unmatched(group: &ObjectGroup) -> bool {
    match (group.kind, &group.name) {
        (ObjectKind::Heap | ObjectKind::HeapArea | ObjectKind::Static, _) => true,
        (ObjectKind::Mapping, ObjectName::Other(name)) => !name.starts_with('/'),
        (ObjectKind::Mapping, _) => true,
        (ObjectKind::Stack | ObjectKind::Tls | ObjectKind::Code, _) => false,
    }
}

/// True if it is known which threads touch a group's pages first. Instances laid over each other do not show it, unless
/// each has one user, nor does a thread that is assumed for lack of page faults.
pub(super) fn first_touch_is_known(
    context: &Context,
    group: &ObjectGroup,
    parameters: &Parameters,
) -> bool {
    match instances::of(context, group, parameters) {
        Instances::Together => {
            group.instances <= 1 && under_first_touch::<Tally>(context, group).is_some()
        }
        Instances::OwnToucher | Instances::Runs(_) | Instances::ByTeam(_) => true,
    }
}

/// Choices for these groups together; the first leaves them alone.
pub(super) fn choices(
    context: &Context,
    groups: &[&ObjectGroup],
    parameters: &Parameters,
    latency_ns: &[Vec<f64>],
    of_samples: bool,
) -> Vec<ObjectChoice> {
    let mut choices = vec![first_touch_choice()];
    let mut offer = |kind, placement: Placement, start: Start, rule: &str| {
        let decision = Decision {
            start,
            ..decided(context, groups, placement, rule, parameters)
        };
        let errors = groups.iter().map(|group| {
            sampling_error_ns(context, group, std::slice::from_ref(&decision), latency_ns)
        });
        choices.push(ObjectChoice {
            kind,
            error_ns: errors.map(|error| error * error).sum::<f64>().sqrt(),
            decisions: vec![decision],
            ..first_touch_choice()
        });
    };
    let everywhere = interleave::everywhere();
    let at_once = Start::Allocation;
    offer(Kind::Interleave, everywhere, at_once, "over all nodes");
    if let Some(nodes) = nodes_of_threads(context) {
        let placement = Placement::Interleave { nodes };
        let rule = "over the nodes that threads run on";
        offer(Kind::Weighted, placement, at_once, rule);
    }
    if parameters.phases && !of_samples && filled_by_one(groups).is_some() {
        let rule = "each page near the thread that uses it first when a second thread runs";
        let (placement, start) = (Placement::FirstTouch, Start::SecondThread);
        offer(Kind::NextTouch, placement, start, rule);
    }
    choices
}

/// The first group that one thread fills before others use it.
pub(super) fn filled_by_one<'a>(groups: &[&'a ObjectGroup]) -> Option<&'a ObjectGroup> {
    let mut groups = groups.iter();
    groups
        .find(|group| !group.affinity.initialisation.is_empty())
        .copied()
}

/// The nodes with memory that threads of the process run on, if these are several, but not all.
fn nodes_of_threads(context: &Context) -> Option<Vec<(NodeId, u32)>> {
    let threads = (0..context.thread_nodes.len() as u32).map(ThreadIndex);
    let of_threads = threads.filter(|&thread| context.is_own(thread));
    let run_on: BTreeSet<NodeId> = of_threads
        .map(|thread| context.thread_nodes[thread.0 as usize])
        .collect();
    let all = context.machine.nodes_with_memory();
    let used: Vec<(NodeId, u32)> = all
        .iter()
        .filter(|node| run_on.contains(node))
        .map(|&node| (node, 1))
        .collect();
    (used.len() > 1 && used.len() < all.len()).then_some(used)
}

fn decided(
    context: &Context,
    groups: &[&ObjectGroup],
    placement: Placement,
    rule: &str,
    parameters: &Parameters,
) -> Decision {
    let mut decision = Decision {
        name: "unmatched memory".to_owned(),
        subject: Subject::Unmatched,
        placement,
        start: Start::Allocation,
        why: String::new(),
        effect: Effect::default(),
    };
    let mut threads = BTreeSet::new();
    let (mut loads, mut stores) = (0.0, 0.0);
    let [mut before, mut after] = [Tally::default(); 2];
    for group in groups {
        let ours = group.threads.iter();
        for &(thread, more_loads, more_stores, _) in
            ours.filter(|(thread, ..)| context.places.knows(*thread))
        {
            threads.insert(thread);
            loads += more_loads;
            stores += more_stores;
        }
        let (accesses, cost_share) = context.part(group);
        decision.effect.accesses += accesses;
        decision.effect.cost_share += cost_share;
        let is_known = first_touch_is_known(context, group, parameters);
        for (tally, decisions, counts) in [
            (&mut before, &[][..], is_known),
            (&mut after, &[&decision], true),
        ] {
            let found =
                placed_accesses::<Tally>(context, group, Placing::Decided(decisions), parameters);
            if let (Some((_, found)), true) = (found, counts) {
                tally.add_scaled(found, 1.0);
            }
        }
    }
    decision.why = format!(
        "{} and {} by {} to {}; {rule}",
        counted(loads.round_ties_even() as u64, "load"),
        counted(stores.round_ties_even() as u64, "store"),
        counted(threads.len() as u64, "thread"),
        names_of_costliest(context, groups),
    );
    decision.effect.local_before = (before.accesses > 0.0).then(|| before.local_share());
    decision.effect.local_after = after.local_share();
    decision
}

/// Names of the costliest groups, and the number of the others.
fn names_of_costliest(context: &Context, groups: &[&ObjectGroup]) -> String {
    let mut costliest = groups.to_vec();
    costliest.sort_by(|a, b| context.part(b).1.total_cmp(&context.part(a).1));
    costliest.truncate(NAMED_MAX);
    let named: Vec<String> = costliest
        .iter()
        .map(|group| context.names.of(group))
        .collect();
    match groups.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// Most groups that are named.
const NAMED_MAX: usize = 3;
