//! What the structure of an object says about its placement, before any time is predicted.
//!
//! Predicted times of samples differ from recording to recording by a few per cent. An object whose decision changes the time by
//! as much would be placed after one recording and left alone after the next. What a decision does to each access is known
//! better: a block for each thread makes hardly an access slower where the main thread filled the array, and interleaving an
//! array that all threads read takes nothing from any of them where it lay on one node. So such placements are where a decision
//! begins, and times decide only where they differ by more than they are known.
//!
//! Of an array that all threads use alike, predicted times say least: what the thread near it loses by interleaving, the others
//! gain, and which thread the program waits for differs from recording to recording. Such an array is interleaved where first
//! touch has it on one node, unless threads of that node have more to do with it than the others. Predicted times speak against
//! that only where they are clearly longer.

use std::collections::BTreeMap;

use nearpage_attribution::{Cell, ObjectGroup, Pattern};
use nearpage_plan::{Decision, Placement};
use nearpage_recording::ThreadIndex;

use super::choice::{Choice, Kind};
use super::inputs::changed;
use crate::context::Context;
use crate::effect::{Access, Count, Part};
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};

/// The choice that an object's structure speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preference {
    /// Among the object's choices; 0 leaves it alone.
    pub choice: usize,
    /// Why that is so.
    pub ground: Ground,
}

/// What speaks for a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// It makes hardly an access slower, so that it has nothing to lose, whatever part of the program's time the object is.
    HardlySlower,
    /// It relieves the one node whose memory serves all threads, and makes about as many accesses local.
    Relief,
    /// It makes more accesses local than another choice does.
    Local,
}

/// An object is where it should be.
const LEFT: Preference = Preference {
    choice: 0,
    ground: Ground::Local,
};

/// A placement by a pattern is preferred where it makes so much more of the object's accesses local than first touch does.
const MORE_LOCAL: f64 = 0.05;

/// The same of an object that its threads use in two ways in turn, of which a placement suits one: how the accesses divide over the
/// two is known less surely.
const MORE_LOCAL_OF_PHASES: f64 = 0.2;

/// A placement near threads that makes so many fewer accesses local than first touch does looks quicker by chance.
const LESS_LOCAL_BY_CHANCE: f64 = 0.02;

/// Of what threads gain by a decision on the average, no thread may lose more than this part for its sign to be beyond doubt: what
/// is uncertain then is how much of the program's time its object is.
const LOST_PART_MAX: f64 = 0.35;

/// First touch has so many of an object's accesses on one node where interleaving it relieves that node.
const CONCENTRATED: f64 = 0.75;

/// Interleaving may take so many of its accesses' locality from an object: the threads on the one node lose what those on others
/// gain, unless most threads are there.
const LESS_LOCAL: f64 = 0.1;

/// A thread uses an object that all use alike if it has this part of an equal share of the accesses.
const USER_SHARE: f64 = 0.25;

/// Threads of the one node have more to do with an object than the others where their share of the accesses is by so much larger
/// than their share of its users.
const BUSIER: f64 = 0.2;

/// One thread writes an object where it makes this part of the stores, and these are this part of the accesses.
const WRITER_SHARE: f64 = 0.75;
const WRITTEN: f64 = 0.1;

/// The slowest thread of an object may take so much longer for it: how its accesses divide is known less surely.
const NOT_SLOWER: f64 = 1.05;

/// What the structure of a group says about its choices; none: nothing.
pub(super) fn preferred(
    context: &Context,
    group: &ObjectGroup,
    choices: &[Choice],
    latency_ns: &[Vec<f64>],
    parameters: &Parameters,
) -> Option<Preference> {
    if group.pattern.is_shared() {
        let choice = choices.iter().position(|one| one.kind == Kind::Pattern)?;
        let decisions = &choices[choice].decisions;
        let is_relieved = |one: &Decision| relieves_one_node(context, group, one, parameters);
        return Some(match decisions.iter().any(is_relieved) {
            true => Preference {
                choice,
                ground: Ground::Relief,
            },
            // What first touch has spread already serves all as well as it can.
            false => LEFT,
        });
    }
    // Pages without a pattern belong to whoever a few samples name.
    if matches!(group.pattern, Pattern::Mixed | Pattern::Unknown) {
        return None;
    }
    let left = choices.first()?.local_share?;
    if left >= parameters.first_touch_local_min {
        return Some(LEFT);
    }
    let more_local = match is_of_phases(group) {
        true => MORE_LOCAL_OF_PHASES,
        false => MORE_LOCAL,
    };
    let is_better = |one: &Choice| {
        matches!(one.kind, Kind::Pattern | Kind::Segments)
            && one
                .local_share
                .is_some_and(|local| local >= left + more_local)
    };
    let Some(choice) = choices.iter().position(is_better) else {
        return Some(LEFT);
    };
    let [decision] = choices[choice].decisions.as_slice() else {
        // What several decisions about the objects of one call site make slower is not known.
        return Some(Preference {
            choice,
            ground: Ground::Local,
        });
    };
    let ground = match loses_nothing(context, group, decision, latency_ns, parameters) {
        true => Ground::HardlySlower,
        false => Ground::Local,
    };
    // Others wait for the thread that is the slowest then.
    let is_slower = || match uses(context, group, decision, parameters) {
        Some([before, after]) => after.slowest(context) > NOT_SLOWER * before.slowest(context),
        None => false,
    };
    Some(
        match ground == Ground::Local && !is_of_phases(group) && is_slower() {
            true => LEFT,
            false => Preference { choice, ground },
        },
    )
}

/// Leaves out choices about a group of samples that can only look quicker by chance: all where first touch has the pages where the
/// pattern would, parts for threads where no part has an owner, and what is near threads and makes fewer accesses local than leaving
/// the group alone, which is the first.
pub(super) fn leave_out_chance(context: &Context, group: &ObjectGroup, choices: &mut Vec<Choice>) {
    if !group.pattern.is_shared() && context.first_touches(group).are_by_owners() {
        choices.truncate(1);
    }
    let left = choices.first().and_then(|left| left.local_share);
    let spreads = |one: &Choice| {
        let mut placements = one.decisions.iter().map(|one| &one.placement);
        placements.all(|one| matches!(one, Placement::Interleave { .. }))
    };
    choices.retain(|one| match (left, one.local_share) {
        _ if group.pattern.is_shared() && matches!(one.kind, Kind::Block | Kind::Segments) => false,
        // Two patterns explain the accesses: parts that neither of them has are of a few samples.
        _ if is_of_phases(group) && one.kind != Kind::Pattern && !spreads(one) => {
            one.decisions.is_empty()
        }
        // Of what all use, one thread has more than the others by chance.
        (Some(left), Some(local)) if group.pattern.is_shared() && one.kind == Kind::Whole => {
            local >= left + MORE_LOCAL_OF_PHASES
        }
        // A share for each thread that no pattern speaks for.
        (Some(left), Some(local)) if one.kind == Kind::Block => local >= left + MORE_LOCAL,
        (Some(left), Some(local)) => spreads(one) || local >= left - LESS_LOCAL_BY_CHANCE,
        _ => true,
    });
}

/// Does a decision make hardly an access of a group slower, for what it makes quicker?
pub(crate) fn loses_nothing(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    latency_ns: &[Vec<f64>],
    parameters: &Parameters,
) -> bool {
    let changed = changed(
        context,
        group,
        decision,
        latency_ns,
        parameters.runtime_scale,
    );
    changed.lost_part() <= LOST_PART_MAX
}

/// Is a group interleaved that threads of several nodes use alike and first touch has on one node? The one node's memory no longer
/// serves all of them, and about as many accesses are local as before. Threads of that node that do clearly more than the others,
/// such as the only one that writes, would lose more than others gain.
pub(crate) fn relieves_one_node(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    parameters: &Parameters,
) -> bool {
    if !group.pattern.is_shared() || !matches!(decision.placement, Placement::Interleave { .. }) {
        return false;
    }
    let Some([before, _]) = uses(context, group, decision, parameters) else {
        return false;
    };
    let by_memory = before.by_memory();
    let all: f64 = by_memory.iter().sum();
    let nodes = by_memory.iter().enumerate();
    let Some((home, &most)) = nodes.max_by(|a, b| a.1.total_cmp(b.1)) else {
        return false;
    };
    // All threads use it alike, however many samples chance gave to each; one that looks in now and then is none of them.
    let threads = || {
        before
            .0
            .values()
            .map(|(node, counts)| (*node, counts.iter().sum::<f64>()))
    };
    let least = USER_SHARE * all / before.0.len().max(1) as f64;
    let users = || threads().filter(|one| one.1 >= least);
    let local = users().filter(|one| one.0 == home).count() as f64 / users().count().max(1) as f64;
    let by_home: f64 = threads().filter(|one| one.0 == home).map(|one| one.1).sum();
    let spread = 1.0 / context.machine.nodes_with_memory().len().max(1) as f64;
    most >= CONCENTRATED * all
        && local < 1.0
        && local <= spread + LESS_LOCAL
        && by_home <= (local + BUSIER) * all
        && writer(group).and_then(|thread| context.node_position(thread)) != Some(home)
}

/// The thread that makes most of a group's stores, where others only read it.
fn writer(group: &ObjectGroup) -> Option<ThreadIndex> {
    let mut stores: BTreeMap<ThreadIndex, f64> = BTreeMap::new();
    for cell in &group.affinity.cells {
        *stores.entry(cell.thread).or_default() += f64::from(cell.stores);
    }
    let all: f64 = stores.values().sum();
    let accesses: f64 = group.affinity.cells.iter().map(Cell::accesses).sum();
    let (&thread, &most) = stores.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (most >= WRITER_SHARE * all && all > WRITTEN * accesses).then_some(thread)
}

/// The uses of a group under first touch, and under a decision.
fn uses(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    parameters: &Parameters,
) -> Option<[Uses; 2]> {
    let under = |decisions: &[&Decision]| {
        let found =
            placed_accesses::<Uses>(context, group, Placing::Decided(decisions), parameters);
        found.map(|(_, uses)| uses)
    };
    Some([under(&[])?, under(&[decision])?])
}

/// Is a group used in two ways in turn, by all threads at a time in either? What the thread with the object on its node loses then
/// is no more than the others, which it waits for, gain.
fn is_of_phases(group: &ObjectGroup) -> bool {
    let is_of_team = |one: &Pattern| !matches!(one, Pattern::Private { .. });
    matches!(&group.pattern, Pattern::InTurn(patterns) if patterns.iter().all(is_of_team))
}

/// Accesses after initialisation, by thread: the position of its node, and its accesses by the position of the memory's node.
#[derive(Default)]
struct Uses(BTreeMap<ThreadIndex, (usize, Vec<f64>)>);

impl Uses {
    fn by_memory(&self) -> Vec<f64> {
        let mut sums: Vec<f64> = Vec::new();
        for (_, counts) in self.0.values() {
            sums.resize(counts.len(), 0.0);
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        sums
    }

    /// What the thread that takes longest for its accesses takes, by the machine's weights.
    fn slowest(&self, context: &Context) -> f64 {
        let of_thread = |(reader, counts): &(usize, Vec<f64>)| -> f64 {
            let weights = context.weights[*reader].iter();
            counts
                .iter()
                .zip(weights)
                .map(|(count, each)| count * each)
                .sum()
        };
        self.0.values().map(of_thread).fold(0.0, f64::max)
    }
}

impl Count for Uses {
    fn count(&mut self, context: &Context, access: Access) {
        if access.part == Part::Use {
            let nodes = context.machine.nodes.len();
            let thread = self.0.entry(access.thread);
            let (_, counts) = thread.or_insert_with(|| (access.reader, vec![0.0; nodes]));
            counts[access.memory] += access.count;
        }
    }
}

#[cfg(test)]
mod tests;
