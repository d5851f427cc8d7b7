//! A group's accesses under decisions about it.

use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Decision, Placement, Start};
use nearpage_recording::{Object, ThreadIndex};

use crate::context::{Context, FirstTouchBasis};
use crate::effect::{
    Count, HeldAccesses, add_initialisation, all_as_known, under_first_touch, under_placement,
};
use crate::holder::{Holder, ResolvedPlacement, of_instance};
use crate::instances::{self, Instances, picks, touched_by_users};
use crate::parameters::Parameters;

/// Where a group's pages go.
#[derive(Clone, Copy)]
pub(crate) enum Placing<'a> {
    /// As the decisions about the group say; without decisions, first touch.
    Decided(&'a [&'a Decision]),
    /// Spread over all nodes.
    Spread(&'a ResolvedPlacement<'a>),
}

/// A group's accesses, with its initialisation, and how first touch is known; none if it is unknown which threads
/// touch the group.
pub(crate) fn placed_accesses<C: Count>(
    context: &Context,
    group: &ObjectGroup,
    placing: Placing,
    parameters: &Parameters,
) -> Option<(FirstTouchBasis, C)> {
    let by_instance = !matches!(
        instances::of(context, group, parameters),
        Instances::Together
    );
    if by_instance {
        let counts = match placing {
            Placing::Spread(spread) => over_instances(context, group, |_, _| None, Some(spread)),
            Placing::Decided(decisions) => instances_decided(context, group, decisions),
        };
        return Some((FirstTouchBasis::Assumed, counts));
    }
    let resolved = match placing {
        Placing::Spread(_) => None,
        Placing::Decided(decisions) => decisions
            .first()
            .and_then(|first| ResolvedPlacement::new(&first.placement, context, group.size_bytes)),
    };
    let resolved = match placing {
        Placing::Spread(spread) => Some(spread),
        Placing::Decided(_) => resolved.as_ref(),
    };
    let observed: Option<C> = under_first_touch(context, group);
    let touched = !group.first_touches.is_empty() || !group.affinity.initialisation.is_empty();
    let basis = match observed {
        Some(_) if touched => FirstTouchBasis::Observed,
        _ => FirstTouchBasis::Assumed,
    };
    let mut counts = match (resolved, observed) {
        (Some(resolved), _) => under_placement(context, group, resolved),
        (None, Some(observed)) => observed,
        (None, None) => {
            let toucher = Holder::Thread(assumed_toucher(context, group)?);
            under_placement(context, group, &ResolvedPlacement::Whole(toucher))
        }
    };
    // A placement that begins later than allocation leaves initialisation to first touch.
    let waits = match placing {
        Placing::Decided([first, ..]) => first.start != Start::Allocation,
        _ => false,
    };
    let initial = resolved.filter(|_| !waits);
    add_initialisation(context, group, initial, &mut counts);
    Some((basis, counts))
}

/// The thread assumed to have touched an object first: its allocating thread, else the main thread, else any that uses
/// it.
pub(crate) fn assumed_toucher(context: &Context, group: &ObjectGroup) -> Option<ThreadIndex> {
    let objects = &context.tables.objects;
    let allocator = group
        .listed_instances
        .iter()
        .find_map(|id| objects.get(id.0 as usize)?.thread);
    let allocator = allocator.filter(|&thread| context.places.knows(thread));
    let threads = context.tables.threads.iter().zip(0..);
    let main = || {
        threads
            .clone()
            .find(|(thread, index)| thread.order == 0 && context.is_own(ThreadIndex(*index)))
    };
    let any = || {
        group
            .threads
            .iter()
            .map(|thread| thread.0)
            .find(|&thread| context.places.knows(thread))
    };
    allocator
        .or_else(|| main().map(|(_, index)| ThreadIndex(index)))
        .or_else(any)
}

/// Sums a group's instances, of which the largest are followed. `owner` gives an instance's holder from the object and
/// its allocating thread. Instances without an owner are spread, or else are where first touch puts them.
fn over_instances<'a, C: Count>(
    context: &Context<'a>,
    group: &ObjectGroup,
    owner: impl Fn(&Object, ThreadIndex) -> Option<Holder<'a>>,
    spread: Option<&ResolvedPlacement>,
) -> C {
    let by_users = touched_by_users(context, group);
    let mut known: Vec<HeldAccesses> = Vec::new();
    for uses in group.uses.chunk_by(|a, b| a.object == b.object) {
        let object = context.tables.objects.get(uses[0].object.0 as usize);
        let most = uses.iter().max_by(|a, b| a.samples.total_cmp(&b.samples));
        let (Some(object), Some(most)) = (object, most) else {
            continue;
        };
        let allocator = object.thread.unwrap_or(most.thread);
        let holder = match (owner(object, allocator), spread) {
            (Some(holder), _) => holder,
            (None, Some(spread)) => spread.holder(0),
            (None, None) if by_users => Holder::Thread(most.thread),
            (None, None) => Holder::Thread(allocator),
        };
        known.extend(uses.iter().map(|one| (one.thread, one.accesses, holder)));
    }
    all_as_known(context, group, &known)
}

fn instances_decided<'a, C: Count>(
    context: &Context<'a>,
    group: &ObjectGroup,
    decisions: &[&Decision],
) -> C {
    let owner = |object: &Object, allocator: ThreadIndex| {
        decisions.iter().find_map(|decision| {
            if !picks(context.tables, &decision.subject, object, Some(allocator)) {
                return None;
            }
            of_instance(&decision.placement, context, object.order)
        })
    };
    // If the first decision spreads all objects of the call site, accesses are known by page only.
    let resolved = decisions
        .first()
        .filter(|decision| !matches!(decision.placement, Placement::Whole(_)))
        .and_then(|decision| {
            ResolvedPlacement::new(&decision.placement, context, group.size_bytes)
        });
    match resolved {
        Some(resolved) => under_placement(context, group, &resolved),
        None => over_instances(context, group, owner, None),
    }
}
