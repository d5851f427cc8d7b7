//! How far a placement that was found with one input holds for another.
//!
//! An input of another size changes where in an object accesses go, and how long each part of the program takes. A
//! recording shows neither. It does show the effect of placements:
//!
//! - A placement that has a size (page runs, shares of parts, block-cyclic) fits another size only if the pattern
//!   changes as the plan's translation assumes: in proportion to an object from the heap, and not at all for blocks,
//!   or for objects whose size does not depend on the input. [`resized`] is the placement if this assumption is wrong.
//!   Rows are assumed to keep their length: to judge tiles of other rows, too, left good tiles alone (generated
//!   program 239, 93 % of the best placement without that, 78 % with it).
//! - A placement makes some accesses faster, mostly the team's, and others slower, mostly those of the thread that
//!   fills the object or goes through all of it at the end. The saving is the difference of the two, and inputs differ
//!   in how much there is of each ([`slower_ns`]).

use std::collections::BTreeMap;

use nearpage_attribution::{Cell, ObjectGroup};
use nearpage_plan::{Decision, PageRun, Placement, Start, Subject};
use nearpage_recording::ThreadIndex;

use super::choice::ObjectChoice;
use crate::context::{Context, main_user};
use crate::holder::{Holder, ResolvedPlacement, of_instance};
use crate::placed_accesses::assumed_toucher;

/// Another input is assumed to be half as large again: 3 ÷ 2.
const LARGER: (u64, u64) = (3, 2);

/// The choice as it fits the recorded accesses if translation to another size is wrong: accesses keep to their pages
/// where a plan scales its runs with the object, and spread where a plan keeps the pages or the block. None if the
/// placement has no size.
pub(super) fn resized(
    context: &Context,
    group: &ObjectGroup,
    choice: &ObjectChoice,
) -> Option<ObjectChoice> {
    let [decision] = choice.decisions.as_slice() else {
        return None;
    };
    let (times, by) = match decision.subject {
        Subject::CallSite { .. } => LARGER,
        _ => (LARGER.1, LARGER.0),
    };
    let placement = match &decision.placement {
        Placement::Runs(runs) => Placement::Runs(scaled(runs, times, by)?),
        // As a block's, shares of all of an object are in proportion to any size of it.
        Placement::Parts { parts, .. } if parts.is_whole() => return None,
        Placement::Parts { parts, team } => Placement::Parts {
            parts: parts.farther(times, by)?,
            team: team.clone(),
        },
        // The shares of a heap that has grown are as long as before.
        Placement::Block { team } if decision.subject.is_brk_heap() => {
            Placement::Runs(scaled(&shares(context, group, team)?, times, by)?)
        }
        Placement::BlockCyclic { block_bytes, team } => {
            let pages = block_bytes * LARGER.1 / LARGER.0 / context.page_bytes;
            Placement::BlockCyclic {
                block_bytes: pages.max(1) * context.page_bytes,
                team: team.clone(),
            }
        }
        _ => return None,
    };
    let same = placement == decision.placement;
    (!same).then(|| ObjectChoice {
        decisions: vec![Decision {
            placement,
            ..decision.clone()
        }],
        ..choice.clone()
    })
}

/// Equal shares of a group's pages, one for each thread of a team.
fn shares(context: &Context, group: &ObjectGroup, team: &str) -> Option<Vec<PageRun>> {
    let threads = context.team(team)?;
    let pages = group.size_bytes / context.page_bytes;
    let first = |index: usize| pages * index as u64 / threads.len() as u64;
    let share = |(index, &thread): (usize, &ThreadIndex)| {
        Some(PageRun {
            first_page: first(index),
            pages: first(index + 1) - first(index),
            owner: context.owner(thread)?,
        })
    };
    threads.iter().enumerate().map(share).collect()
}

/// Runs that begin `times` ÷ `parts` as far into the same pages; the last run goes to the end of the pages.
fn scaled(runs: &[PageRun], times: u64, parts: u64) -> Option<Vec<PageRun>> {
    let end = runs.last().map(|run| run.first_page + run.pages)?;
    let mut scaled: Vec<PageRun> = Vec::new();
    for run in runs {
        let first_page = run.first_page * times / parts;
        if first_page >= end {
            break;
        }
        // Of several runs that begin on one page, the last counts.
        if scaled
            .last()
            .is_some_and(|before| before.first_page == first_page)
        {
            scaled.pop();
        }
        scaled.push(PageRun {
            first_page,
            ..run.clone()
        });
    }
    for number in 0..scaled.len() {
        let next = scaled.get(number + 1).map_or(end, |next| next.first_page);
        scaled[number].pages = next - scaled[number].first_page;
    }
    Some(scaled)
}

/// Time of accesses that a decision about an object makes slower ([`TimeChanges::slower_ns`]).
pub(super) fn slower_ns(
    context: &Context,
    group: &ObjectGroup,
    decisions: &[Decision],
    latency_ns: &[Vec<f64>],
    runtime_scale: f64,
) -> f64 {
    let [decision] = decisions else {
        return 0.0;
    };
    // A thread that is alone before and after loses nothing.
    if decision.start == Start::Parallel {
        return 0.0;
    }
    // Even interleaving relieves queues, which unloaded latencies do not show, and fits inputs of all sizes.
    if let Placement::Interleave { nodes } = &decision.placement
        && nodes.windows(2).all(|pair| pair[0].1 == pair[1].1)
    {
        return 0.0;
    }
    changed(context, group, decision, latency_ns, runtime_scale).slower_ns()
}

/// Changes by a decision about an object, in nanoseconds of the program's time, with unloaded latencies.
pub(super) struct TimeChanges {
    /// Time that initialisation takes longer.
    initialised_ns: f64,
    /// By thread: time by which accesses become slower, and time by which others become quicker.
    threads: BTreeMap<ThreadIndex, [f64; 2]>,
}

impl TimeChanges {
    /// Time that initialisation takes longer, plus slower accesses of the thread with most of them.
    fn slower_ns(&self) -> f64 {
        let slower = self.threads.values().map(|thread| thread[0]);
        self.initialised_ns + slower.fold(0.0, f64::max)
    }

    /// Net loss of the thread that loses most, as a part of the threads' mean gain; infinite without a gain.
    pub fn lost_part(&self) -> f64 {
        let lost = self
            .threads
            .values()
            .map(|[slower, quicker]| slower - quicker);
        let lost = self.initialised_ns + lost.fold(0.0, f64::max);
        let quicker = self.threads.values().map(|thread| thread[1]);
        let gained = quicker.sum::<f64>() / self.threads.len().max(1) as f64;
        match gained > 0.0 {
            true => lost / gained,
            false => f64::INFINITY,
        }
    }
}

/// Changes by a decision about an object that is used for `runtime_scale` times as long as recorded. Pages that are
/// left to the thread that uses them next are assumed to be near their main user.
pub(super) fn changed(
    context: &Context,
    group: &ObjectGroup,
    decision: &Decision,
    latency_ns: &[Vec<f64>],
    runtime_scale: f64,
) -> TimeChanges {
    // Change of one access by a thread to memory that was near one thread, and is elsewhere.
    let change_ns = |thread: ThreadIndex, before: Option<ThreadIndex>, after: Option<Holder>| {
        let reader = context.node_position(thread);
        let (Some(reader), Some(before), Some(after)) = (reader, before, after) else {
            return 0.0;
        };
        let each_ns = |holder: Holder| holder.latency_ns(context, reader, latency_ns);
        each_ns(after) - each_ns(Holder::Thread(before))
    };
    let assumed = assumed_toucher(context, group);
    let initialisation = match decision.start {
        Start::Allocation => group.affinity.initialisation.as_slice(),
        _ => &[],
    };
    let misses = super::model::misses_an_access(latency_ns, group);
    let mut threads: BTreeMap<ThreadIndex, [f64; 2]> = BTreeMap::new();
    let mut initialised = 0.0;
    let mut used = |thread: ThreadIndex, change_ns: f64| {
        let [slower, quicker] = threads.entry(thread).or_default();
        *slower += misses * runtime_scale * change_ns.max(0.0);
        *quicker += misses * runtime_scale * (-change_ns).max(0.0);
    };
    if decision.placement.goes_by_number() {
        let all: f64 = group.uses.iter().map(|one| one.accesses).sum();
        for one in &group.uses {
            let object = context.tables.objects.get(one.object.0 as usize);
            let after =
                object.and_then(|object| of_instance(&decision.placement, context, object.order));
            let before = object.and_then(|object| object.thread).or(assumed);
            used(
                one.thread,
                one.accesses * change_ns(one.thread, before, after),
            );
            // It is unknown which object was filled: each object gets a part in proportion to its use.
            let part = one.accesses / all.max(f64::MIN_POSITIVE);
            let filled = initialisation
                .iter()
                .map(|cell| cell.accesses() * change_ns(cell.thread, before, after));
            initialised += part * filled.sum::<f64>().max(0.0);
        }
    } else {
        let resolved = ResolvedPlacement::new(&decision.placement, context, group.size_bytes);
        let touches = context.first_touches(group);
        let unit = group.affinity.page_bytes;
        let cell_ns = |cell: &Cell, users: &[Cell]| {
            let before = touches.toucher(cell.page).or(assumed);
            let after = match &resolved {
                Some(resolved) => Some(resolved.holder(u64::from(cell.page) * unit + unit / 2)),
                None => main_user(users).map(Holder::Thread),
            };
            cell.accesses() * change_ns(cell.thread, before, after)
        };
        let by_page = |a: &Cell, b: &Cell| a.page == b.page;
        for users in group.affinity.cells.chunk_by(by_page) {
            for cell in users {
                used(cell.thread, cell_ns(cell, users));
            }
        }
        initialised = initialisation
            .iter()
            .map(|cell| cell_ns(cell, &[]).max(0.0))
            .sum();
    }
    TimeChanges {
        initialised_ns: misses * initialised,
        threads,
    }
}

#[cfg(test)]
mod tests {
    use nearpage_plan::Owner;
    use proptest::prelude::*;

    use super::*;

    fn runs(boundaries: &[u64]) -> Vec<PageRun> {
        let run = |(index, pair): (usize, &[u64])| PageRun {
            first_page: pair[0],
            pages: pair[1] - pair[0],
            owner: Owner::Thread {
                team: "openmp".to_owned(),
                index: index as u32,
            },
        };
        boundaries.windows(2).enumerate().map(run).collect()
    }

    fn firsts(runs: &[PageRun]) -> Vec<(u64, u64)> {
        runs.iter().map(|run| (run.first_page, run.pages)).collect()
    }

    #[test]
    fn runs_are_scaled_within_the_same_pages() {
        let four = runs(&[0, 4, 8, 12, 16]);
        let larger = scaled(&four, 3, 2).expect("runs");
        assert_eq!(firsts(&larger), [(0, 6), (6, 6), (12, 4)]);
        let smaller = scaled(&four, 2, 3).expect("runs");
        assert_eq!(firsts(&smaller), [(0, 2), (2, 3), (5, 3), (8, 8)]);
        // Of two runs that begin on one page, the last counts.
        let pages = scaled(&runs(&[0, 1, 2, 3]), 1, 2).expect("runs");
        assert_eq!(firsts(&pages), [(0, 1), (1, 2)]);
        assert_eq!(pages[0].owner, runs(&[0, 1, 2, 3])[1].owner);
        assert_eq!(scaled(&[], 3, 2), None);
    }

    proptest! {
        #[test]
        fn scaled_runs_cover_the_same_pages(lengths in prop::collection::vec(1u64..9, 1..20), larger in any::<bool>()) {
            let mut boundaries = vec![0];
            for length in lengths {
                boundaries.push(boundaries[boundaries.len() - 1] + length);
            }
            let (times, parts) = if larger { (3, 2) } else { (2, 3) };
            let scaled = scaled(&runs(&boundaries), times, parts).expect("runs");
            let mut next = 0;
            for run in &scaled {
                prop_assert_eq!(run.first_page, next);
                prop_assert!(run.pages > 0);
                next += run.pages;
            }
            prop_assert_eq!(Some(&next), boundaries.last());
        }
    }
}
