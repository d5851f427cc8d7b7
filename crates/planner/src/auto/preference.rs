//! What the structure of an object says about its placement, before any time is predicted.
//!
//! Predicted times of samples differ from recording to recording by a few per cent. An object whose decision changes the time by
//! as much would be placed after one recording and left alone after the next. What a decision does to each access is known
//! better: a block for each thread makes hardly an access slower where the main thread filled the array, and interleaving an
//! array that all threads read takes nothing from any of them where it lay on one node. So such placements are where a decision
//! begins, and times decide only where they differ by more than they are known.

use std::collections::BTreeMap;

use nearpage_attribution::{ObjectGroup, Pattern};
use nearpage_plan::{Decision, Placement};
use nearpage_recording::ThreadIndex;

use super::choice::{Choice, Kind};
use super::inputs::slower_and_quicker_ns;
use crate::context::Context;
use crate::effect::{Access, Count, Part};
use crate::first_touch::FirstTouches;
use crate::parameters::Parameters;
use crate::placed_accesses::{Placing, placed_accesses};

/// The choice that an object's structure speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preference {
    /// Among the object's choices; 0 leaves it alone.
    pub choice: usize,
    /// It makes hardly an access slower, so that it has nothing to lose, whatever part of the program's time the object is.
    pub loses_nothing: bool,
}

/// An object is where it should be.
const LEFT: Preference = Preference {
    choice: 0,
    loses_nothing: false,
};

/// A placement by a pattern is preferred where it makes so much more of the object's accesses local than first touch does.
const MORE_LOCAL: f64 = 0.05;

/// The same of an object that its threads use in two ways in turn, of which a placement suits one: how the accesses divide over the
/// two is known less surely.
const MORE_LOCAL_OF_PHASES: f64 = 0.2;

/// A placement near threads that makes so many fewer accesses local than first touch does looks quicker by chance.
const LESS_LOCAL_BY_CHANCE: f64 = 0.02;

/// Of what a decision makes quicker, it may make so much slower for its sign to be beyond doubt: what is uncertain then is how
/// much of the program's time its object is.
const SLOWER_PART_MAX: f64 = 0.35;

/// An object is left alone where the thread that a decision costs most loses more than this part of what all gain on the average.
const SLOWER_PART_MOST: f64 = 1.2;

/// First touch has so many of an object's accesses on one node where interleaving it relieves that node.
const CONCENTRATED: f64 = 0.75;

/// Interleaving may take so many of its accesses' locality from an object: the threads on the one node lose what those on others
/// gain, unless most threads are there.
const LESS_LOCAL: f64 = 0.1;

/// A thread uses an object that all use alike if it has this part of an equal share of the accesses.
const USER_SHARE: f64 = 0.25;

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
        return Some(Preference {
            // What first touch has spread already serves all as well as it can.
            choice: if decisions.iter().any(is_relieved) {
                choice
            } else {
                0
            },
            loses_nothing: false,
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
    let slower_part = match choices[choice].decisions.as_slice() {
        [decision] => slower_part(context, group, decision, latency_ns, parameters),
        // What several decisions about the objects of one call site make slower is not known.
        _ => 0.0,
    };
    Some(match slower_part {
        // Others wait for the thread that loses more than they gain.
        part if part > SLOWER_PART_MOST && !is_of_phases(group) => LEFT,
        part => Preference {
            choice,
            loses_nothing: part <= SLOWER_PART_MAX && choices[choice].decisions.len() == 1,
        },
    })
}

/// Leaves out choices about a group of samples that can only look quicker by chance: all where first touch has the pages where the
/// pattern would, parts for threads where no part has an owner, and what is near threads and makes fewer accesses local than leaving
/// the group alone, which is the first.
pub(super) fn leave_out_chance(context: &Context, group: &ObjectGroup, choices: &mut Vec<Choice>) {
    if !group.pattern.is_shared() && FirstTouches::of(context, group).are_by_owners() {
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
    slower_part(context, group, decision, latency_ns, parameters) <= SLOWER_PART_MAX
}

/// What a decision makes slower as a part of what it makes quicker; infinite where that is nothing.
fn slower_part(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    latency_ns: &[Vec<f64>],
    parameters: &Parameters,
) -> f64 {
    let runtime_scale = parameters.runtime_scale;
    let [slower_ns, quicker_ns] =
        slower_and_quicker_ns(context, group, decision, latency_ns, runtime_scale);
    match quicker_ns > 0.0 {
        true => slower_ns / quicker_ns,
        false => f64::INFINITY,
    }
}

/// Is a group interleaved that threads of several nodes use alike and first touch has on one node? The one node's memory no longer
/// serves all of them, and about as many accesses are local as before.
pub(crate) fn relieves_one_node(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    parameters: &Parameters,
) -> bool {
    if !group.pattern.is_shared() || !matches!(decision.placement, Placement::Interleave { .. }) {
        return false;
    }
    let found = placed_accesses::<Uses>(context, group, Placing::Decided(&[]), parameters);
    let Some((
        _,
        Uses {
            by_memory,
            by_thread,
        },
    )) = found
    else {
        return false;
    };
    let all: f64 = by_memory.iter().sum();
    let nodes = by_memory.iter().enumerate();
    let Some((home, &most)) = nodes.max_by(|a, b| a.1.total_cmp(b.1)) else {
        return false;
    };
    // All threads use it alike, however many samples chance gave to each; one that looks in now and then is none of them.
    let least = USER_SHARE * all / by_thread.len().max(1) as f64;
    let users = by_thread.values().filter(|one| one.1 >= least);
    let at_home = users.clone().filter(|one| one.0 == home).count() as f64;
    let local = at_home / users.count().max(1) as f64;
    let spread = 1.0 / context.machine.nodes_with_memory().len().max(1) as f64;
    most >= CONCENTRATED * all && local < 1.0 && local <= spread + LESS_LOCAL
}

/// Is a group used in two ways in turn, by all threads at a time in either? What the thread with the object on its node loses then
/// is no more than the others, which it waits for, gain.
fn is_of_phases(group: &ObjectGroup) -> bool {
    let is_of_team = |one: &Pattern| !matches!(one, Pattern::Private { .. });
    matches!(&group.pattern, Pattern::InTurn(patterns) if patterns.iter().all(is_of_team))
}

/// Accesses after initialisation.
#[derive(Default)]
struct Uses {
    /// By the node of the memory, by position.
    by_memory: Vec<f64>,
    /// The position of each thread's node, and its accesses.
    by_thread: BTreeMap<ThreadIndex, (usize, f64)>,
}

impl Count for Uses {
    fn count(&mut self, context: &Context, access: Access) {
        if access.part == Part::Use {
            self.by_memory.resize(context.machine.nodes.len(), 0.0);
            self.by_memory[access.memory] += access.count;
            let thread = self.by_thread.entry(access.thread);
            thread.or_insert((access.reader, 0.0)).1 += access.count;
        }
    }
}

#[cfg(test)]
mod tests {
    use nearpage_attribution::{Attribution, Cell, ObjectGroup, ObjectName, Operations, Pattern};
    use nearpage_machine::preset;
    use nearpage_plan::Placement;
    use nearpage_recording::ThreadIndex;
    use tempfile::TempDir;

    use crate::making::Samples;
    use crate::{Analysis, Parameters, Planner, Policy};

    /// What `auto` decides about the grid of a program whose four threads, one on each node, use a block each of what the main
    /// thread filled, once its attribution has been changed.
    fn decided(change: impl FnOnce(&mut Attribution)) -> Option<Placement> {
        decided_of("opteron-4", &[0, 1, 2, 3], change)
    }

    /// The same of threads on other CPUs.
    fn decided_of(
        machine: &str,
        cpus: &[u32],
        change: impl FnOnce(&mut Attribution),
    ) -> Option<Placement> {
        let folder = TempDir::new().unwrap();
        let recording = folder.path().join("r");
        Samples::of(machine, cpus).write(&recording);
        let mut analysis = Analysis::of(&recording, Operations::Both).unwrap();
        change(&mut analysis.attribution);
        let machine = preset(machine).unwrap();
        let planner = Planner::of(&analysis, &machine, None);
        let plans = planner.plans(Policy::Auto, &Parameters::default()).unwrap();
        let decisions = &plans[0].decisions;
        decisions.first().map(|decision| decision.placement.clone())
    }

    fn is_block(placement: Option<&Placement>) -> bool {
        matches!(placement, Some(Placement::Block { .. }))
    }

    /// The costliest object.
    fn grid(attribution: &mut Attribution) -> &mut ObjectGroup {
        let objects = attribution.objects.iter_mut();
        objects
            .max_by(|a, b| a.cost_ns().total_cmp(&b.cost_ns()))
            .unwrap()
    }

    /// Beside which the grid's decision hardly changes the time.
    fn add_one_of_a_hundred_times_the_cost(attribution: &mut Attribution) {
        let group = grid(attribution);
        let mut other = group.clone();
        other.pattern = Pattern::Unknown;
        other.name = ObjectName::Other("stack".to_owned());
        for sums in [&mut other.loads, &mut other.stores] {
            sums.count *= 100.0;
            sums.cost_ns *= 100.0;
        }
        for cell in &mut other.affinity.cells {
            cell.loads *= 100.0;
            cell.stores *= 100.0;
            cell.cost_ns *= 100.0;
        }
        attribution.objects.push(other);
    }

    #[test]
    fn a_block_that_loses_nothing_is_decided_for_whatever_part_of_the_time_it_is() {
        assert!(is_block(decided(|_| ()).as_ref()));
        let placed = decided(|attribution| {
            add_one_of_a_hundred_times_the_cost(attribution);
        });
        assert!(is_block(placed.as_ref()), "{placed:?}");
    }

    #[test]
    fn one_heavy_sample_of_another_thread_does_not_change_the_decision() {
        let placed = decided(|attribution| {
            let cells = &mut grid(attribution).affinity.cells;
            let all: f64 = cells.iter().map(Cell::accesses).sum();
            // The main thread, which filled the grid, was seen once in a share that is not its own.
            let main = cells[0].thread;
            let last = cells.last_mut().unwrap();
            last.thread = main;
            (last.loads, last.stores, last.samples) = (3.0 * all as f32, 0.0, 1.0);
        });
        assert!(is_block(placed.as_ref()), "{placed:?}");
    }

    /// All threads read all of the grid, the main thread so much of what the others do.
    fn read_by_all(attribution: &mut Attribution, by_main: f32) {
        let group = grid(attribution);
        group.pattern = Pattern::ReadShared;
        let threads: Vec<_> = group.threads.iter().map(|thread| thread.0).collect();
        let of_all = |cell: &Cell| {
            let each = threads.len() as f32;
            let mut cell = *cell;
            (cell.loads, cell.stores) = ((cell.loads + cell.stores) / each, 0.0);
            let of = |&thread: &ThreadIndex| Cell {
                thread,
                loads: cell.loads * if thread.0 == 0 { by_main } else { 1.0 },
                ..cell
            };
            threads.iter().map(of).collect::<Vec<_>>()
        };
        let cells = group.affinity.cells.iter().flat_map(of_all).collect();
        group.affinity.cells = cells;
    }

    #[test]
    fn what_all_threads_read_is_spread_where_it_lies_on_one_node_alone() {
        let placed = decided(|attribution| read_by_all(attribution, 1.0));
        assert!(
            matches!(placed, Some(Placement::Interleave { .. })),
            "{placed:?}"
        );
    }

    #[test]
    fn a_main_thread_that_looks_in_now_and_then_is_no_user() {
        let of = |by_main: f32| {
            let cpus = &[0, 0, 1, 2, 3];
            decided_of("opteron-4", cpus, |attribution| {
                read_by_all(attribution, by_main);
                add_one_of_a_hundred_times_the_cost(attribution);
            })
        };
        let placed = of(0.02);
        assert!(
            matches!(placed, Some(Placement::Interleave { .. })),
            "{placed:?}"
        );
        // Two of five users are where the grid is.
        assert!(matches!(of(1.0), None | Some(Placement::FirstTouch)));
    }

    #[test]
    fn pages_that_threads_filled_in_turn_are_left_though_few_of_their_faults_were_seen() {
        let cyclic = |faults: &dyn Fn(u32, u32) -> u32| {
            decided(|attribution| {
                let group = grid(attribution);
                let Pattern::Block { team, .. } = group.pattern else {
                    panic!("{:?}", group.pattern);
                };
                let page_bytes = group.affinity.page_bytes;
                group.pattern = Pattern::BlockCyclic {
                    team,
                    block_bytes: page_bytes,
                    period_bytes: 4 * page_bytes,
                };
                let mut threads: Vec<_> = group.threads.iter().map(|thread| thread.0).collect();
                threads.truncate(4);
                for cell in &mut group.affinity.cells {
                    cell.thread = threads[cell.page as usize % 4];
                }
                group.affinity.initialisation.clear();
                let seen = (0..group.affinity.pages).step_by(5);
                let toucher = |page| threads[faults(page, 4) as usize];
                group.first_touches = seen.map(|page| (page, toucher(page))).collect();
            })
        };
        assert_eq!(cyclic(&|page, threads| page % threads), None);
        // The faults of one thread that filled all of it.
        let placed = cyclic(&|_, _| 0);
        assert!(
            matches!(placed, Some(Placement::BlockCyclic { .. })),
            "{placed:?}"
        );
    }
}
