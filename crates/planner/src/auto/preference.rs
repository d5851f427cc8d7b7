//! What the structure of an object says about its placement, before any time is predicted.
//!
//! Times predicted from samples differ by a few per cent from recording to recording. An object whose decision changes
//! the time by as much would be placed after one recording and left alone after the next. The effect of a decision on
//! each access is known better. A block for each thread makes hardly an access slower if the main thread filled the
//! array. Interleaving an array that all threads read costs none of them much if the array lay on one node. So
//! decisions begin with such placements, and times decide only if they differ by more than their uncertainty.
//!
//! Predicted times say least about an array that all threads use alike. The thread near the array loses by interleaving
//! what the others gain, and recordings differ in the thread that the program waits for. Such an array is interleaved
//! if first touch has it on one node, unless threads of that node use it more than the others. Only clearly longer
//! predicted times speak against it.

use std::collections::BTreeMap;

use nearpage_attribution::{Cell, ObjectGroup, Pattern};
use nearpage_plan::{Decision, Placement};
use nearpage_recording::ThreadIndex;

use super::choice::{Kind, ObjectChoice};
use super::inputs::changed;
use crate::context::Context;
use crate::effect::{Access, Count, Part};
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};

/// The choice that an object's structure speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preference {
    /// Position among the object's choices; 0 leaves the object alone.
    pub choice: usize,
    /// The reason for the preference.
    pub ground: Ground,
}

/// Reason for a preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ground {
    /// The choice makes hardly an access slower, so it has nothing to lose, whatever the object's share of the
    /// program's time.
    HardlySlower,
    /// The choice relieves the one node whose memory serves all threads, and makes about as many accesses local, or more.
    Relief,
    /// The choice makes more accesses local than another choice does.
    Local,
}

/// Preference for leaving an object where first touch puts it.
const PREFER_FIRST_TOUCH: Preference = Preference {
    choice: 0,
    ground: Ground::Local,
};

/// Increase of an object's local share over first touch from which a placement by pattern is preferred.
const MORE_LOCAL: f64 = 0.05;

/// The same for an object that threads use in two ways in turn. A placement suits one way, and it is less certain how
/// accesses divide over the two.
const MORE_LOCAL_IN_TURN: f64 = 0.2;

/// A placement near threads that reduces the local share by more than this looks quicker by chance.
const LESS_LOCAL_BY_CHANCE: f64 = 0.02;

/// Greatest loss of a thread, as a part of the threads' mean gain, with which the sign of a decision is beyond doubt.
/// Then only the object's share of the program's time is uncertain.
const LOST_PART_MAX: f64 = 0.35;

/// Share of an object's accesses on one node under first touch from which interleaving relieves that node.
const CONCENTRATED_SHARE: f64 = 0.75;

/// Share of an object's accesses on the busiest node under first touch, times the number of nodes, up to which
/// interleaving relieves no node.
const SPREAD_MOST: f64 = 1.5;

/// Share of accesses that may become remote by interleaving: threads on the one node lose what the others gain, unless
/// most threads are there.
const LESS_LOCAL: f64 = 0.1;

/// A thread is a user of a shared object if it makes this part of an equal share of the accesses.
const USER_SHARE: f64 = 0.25;

/// Threads of the one node use an object more than the others if their share of the accesses exceeds their share of its
/// users by this.
const EXCESS_USE_MIN: f64 = 0.2;

/// One thread writes an object if it makes this share of the stores, and stores are this share of the accesses.
const WRITER_SHARE: f64 = 0.75;
const STORED_SHARE: f64 = 0.1;

/// Ratio by which the slowest thread of an object may become slower: it is less certain how its accesses divide.
const SLOWDOWN_MAX: f64 = 1.05;

/// The choice that a group's structure speaks for; none if the structure says nothing.
pub(super) fn preferred(
    context: &Context,
    group: &ObjectGroup,
    choices: &[ObjectChoice],
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
            // Pages that first touch has spread serve all threads as well as possible.
            false => PREFER_FIRST_TOUCH,
        });
    }
    // Without a pattern, a few samples decide whose a page is.
    if matches!(group.pattern, Pattern::Mixed | Pattern::Unknown) {
        return None;
    }
    let first_touch_local = choices.first()?.local_share?;
    if first_touch_local >= parameters.first_touch_local_min {
        return Some(PREFER_FIRST_TOUCH);
    }
    let more_local = match has_patterns_in_turn(group) {
        true => MORE_LOCAL_IN_TURN,
        false => MORE_LOCAL,
    };
    let is_better = |one: &ObjectChoice| {
        matches!(one.kind, Kind::Pattern | Kind::Segments)
            && one
                .local_share
                .is_some_and(|local| local >= first_touch_local + more_local)
    };
    let Some(choice) = choices.iter().position(is_better) else {
        return Some(PREFER_FIRST_TOUCH);
    };
    let [decision] = choices[choice].decisions.as_slice() else {
        // It is unknown what several decisions about the objects of one call site make slower.
        return Some(Preference {
            choice,
            ground: Ground::Local,
        });
    };
    let ground = if loses_nothing(context, group, decision, latency_ns, parameters) {
        Ground::HardlySlower
    } else if relieves_one_node(context, group, decision, parameters) {
        Ground::Relief
    } else {
        Ground::Local
    };
    // Other threads would wait for the slowest thread.
    let is_slower = || match uses(context, group, decision, parameters) {
        Some([before, after]) => after.slowest(context) > SLOWDOWN_MAX * before.slowest(context),
        None => false,
    };
    Some(
        match ground == Ground::Local && !has_patterns_in_turn(group) && is_slower() {
            true => PREFER_FIRST_TOUCH,
            false => Preference { choice, ground },
        },
    )
}

/// Removes choices that can only look quicker by chance, from samples. These are all choices if first touch puts pages
/// where the pattern would, parts for threads if no part has an owner, and placements near threads that make fewer
/// accesses local than the first choice, which leaves the group alone. A placement near a thread that works alone in
/// turn with the others stays: all wait for that thread, so that it may be quicker with fewer local accesses.
pub(super) fn leave_out_chance(
    context: &Context,
    group: &ObjectGroup,
    choices: &mut Vec<ObjectChoice>,
) {
    let places_all = |one: &ObjectChoice, is_placed: fn(&Placement) -> bool| {
        one.decisions.iter().all(|one| is_placed(&one.placement))
    };
    let spreads = |one: &ObjectChoice| {
        places_all(one, |placement| {
            matches!(placement, Placement::Interleave { .. })
        })
    };
    let is_near_one =
        |one: &ObjectChoice| places_all(one, |placement| matches!(placement, Placement::Whole(_)));
    // One of two ways in turn is that of a thread alone.
    let has_thread_alone =
        matches!(group.pattern, Pattern::InTurn(_)) && !has_patterns_in_turn(group);
    let serves_thread_alone = |one: &ObjectChoice| has_thread_alone && is_near_one(one);
    if !group.pattern.is_shared() && context.first_touches(group).are_by_owners() {
        choices.retain(|one| one.decisions.is_empty() || serves_thread_alone(one));
    }
    let before = choices.first().and_then(|first| first.local_share);
    choices.retain(|one| match (before, one.local_share) {
        _ if group.pattern.is_shared() && matches!(one.kind, Kind::Block | Kind::Segments) => false,
        // Two patterns explain the accesses: parts that are in neither of them come from a few samples.
        _ if has_patterns_in_turn(group) && one.kind != Kind::Pattern && !spreads(one) => {
            one.decisions.is_empty()
        }
        // One thread makes more accesses to a shared object than the others by chance.
        (Some(before), Some(local)) if group.pattern.is_shared() && one.kind == Kind::Whole => {
            local >= before + MORE_LOCAL_IN_TURN
        }
        // A share for each thread, without a pattern that speaks for it.
        (Some(before), Some(local)) if one.kind == Kind::Block => local >= before + MORE_LOCAL,
        _ if serves_thread_alone(one) => true,
        (Some(before), Some(local)) => spreads(one) || local >= before - LESS_LOCAL_BY_CHANCE,
        _ => true,
    });
}

/// True if a decision makes hardly an access of a group slower, compared with its gain.
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

/// True if a decision relieves the memory of one node, which has a group under first touch although threads of several
/// nodes use the group alike. The decision interleaves a shared group, which makes about as many accesses local as before,
/// or places a group by one of two patterns in turn, which makes clearly more accesses local. False if threads of that
/// node use the group clearly more than the others, such as the only thread that writes: they would lose more than others
/// gain.
pub(crate) fn relieves_one_node(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    parameters: &Parameters,
) -> bool {
    let is_interleaved = matches!(decision.placement, Placement::Interleave { .. });
    if !(group.pattern.is_shared() && is_interleaved || has_patterns_in_turn(group)) {
        return false;
    }
    let Some([before, after]) = uses(context, group, decision, parameters) else {
        return false;
    };
    let more_local = after.local_share() - before.local_share();
    if has_patterns_in_turn(group) && more_local < MORE_LOCAL_IN_TURN {
        return false;
    }
    let by_memory = before.by_memory();
    let all: f64 = by_memory.iter().sum();
    let nodes = by_memory.iter().enumerate();
    let Some((home, &most)) = nodes.max_by(|a, b| a.1.total_cmp(b.1)) else {
        return false;
    };
    // All threads use the group alike, however many samples chance gave to each; a thread with few accesses is no user.
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
    let spread = 1.0 / context.machine.nodes_with_near_memory().len().max(1) as f64;
    most >= CONCENTRATED_SHARE * all
        && local < 1.0
        && local <= spread + LESS_LOCAL
        && by_home <= (local + EXCESS_USE_MIN) * all
        && writer(group).and_then(|thread| context.node_position(thread)) != Some(home)
}

/// True if first touch has spread a group's pages already, so that interleaving relieves no node: none serves many more
/// of the accesses than an equal share.
pub(crate) fn is_spread(context: &Context, group: &ObjectGroup, parameters: &Parameters) -> bool {
    let placing = Placing::Decided(&[]);
    let Some((_, uses)) = placed_accesses::<Uses>(context, group, placing, parameters) else {
        return false;
    };
    let by_memory = uses.by_memory();
    let most = by_memory.iter().copied().fold(0.0, f64::max);
    let equal = by_memory.iter().sum::<f64>()
        / context.machine.nodes_with_near_memory().len().max(1) as f64;
    most <= SPREAD_MOST * equal
}

/// The thread that makes most of a group's stores, if the others mostly read.
fn writer(group: &ObjectGroup) -> Option<ThreadIndex> {
    let mut stores: BTreeMap<ThreadIndex, f64> = BTreeMap::new();
    for cell in &group.affinity.cells {
        *stores.entry(cell.thread).or_default() += f64::from(cell.stores);
    }
    let all: f64 = stores.values().sum();
    let accesses: f64 = group.affinity.cells.iter().map(Cell::accesses).sum();
    let (&thread, &most) = stores.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (most >= WRITER_SHARE * all && all > STORED_SHARE * accesses).then_some(thread)
}

/// Accesses of a group under first touch, and under a decision.
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

/// True if all threads use a group in two ways in turn. The thread with the object on its node then loses no more than
/// the others gain, and it waits for them.
fn has_patterns_in_turn(group: &ObjectGroup) -> bool {
    let is_of_team = |one: &Pattern| !matches!(one, Pattern::Private { .. });
    matches!(&group.pattern, Pattern::InTurn(patterns) if patterns.iter().all(is_of_team))
}

/// Accesses after initialisation, by thread: position of the thread's node, and accesses by position of the memory's
/// node.
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

    fn local_share(&self) -> f64 {
        let local = self.0.values().map(|(reader, counts)| counts[*reader]);
        let all = self.0.values().flat_map(|(_, counts)| counts);
        local.sum::<f64>() / all.sum::<f64>().max(f64::MIN_POSITIVE)
    }

    /// Weighted accesses of the thread that takes longest for them, by the machine's weights.
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
