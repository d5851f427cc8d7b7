//! Page affinity: Marathe, Thakkar and Mueller, section 4.
//!
//! # Silent pages
//! Pages without a sample, between sampled pages, take the object's pattern if there is one. Otherwise they take the
//! decision of the nearest sampled page, the earlier of two equally near. Marathe does so for small allocations on a
//! page with sampled allocations. Only pages can be placed, so small objects need no decision of their own.
//!
//! # Runs
//! Consecutive pages of one node become a run. It is owned by the thread of that node that accesses the run most, or by
//! the node itself if none of its threads does (Eq. 2 may choose a node between two). A simpler pattern replaces runs
//! if it loses at most [`Parameters::slack`].

use std::collections::BTreeMap;

use nearpage_amount::{counted, percent};
use nearpage_attribution::{Affinity, Cell, ObjectGroup, Pattern, find_segments};
use nearpage_online::best_node::{cost_on, hop_sensitive, same, uniform};
use nearpage_plan::{Owner, PageRun, Placement};
use nearpage_recording::ThreadIndex;

use crate::blocks::{cyclic, over_part};
use crate::context::Context;
use crate::holder::{Holder, ResolvedPlacement};
use crate::parameters::Parameters;
use crate::place::Places;

/// Marathe's equation that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Equation {
    Uniform,
    HopSensitive,
}

/// A page that was accessed, and the place chosen for it.
#[derive(Clone, Debug, PartialEq)]
struct ChosenPlace {
    page: u64,
    place: usize,
    histogram: Vec<(usize, f64)>,
}

/// Consecutive pages of one place.
#[derive(Clone, Debug, PartialEq)]
struct Run {
    first: u64,
    end: u64,
    place: usize,
}

/// The placement of a group's pages, and the reason in words; none without accesses of the process.
pub(crate) fn place(
    context: &Context,
    group: &ObjectGroup,
    equation: Equation,
    parameters: &Parameters,
) -> Option<(Placement, String)> {
    let places = &context.places;
    let mut unit = group.affinity.page_bytes.max(context.page_bytes).max(1);
    loop {
        let choices = choices(&group.affinity, places, equation, unit);
        if choices.is_empty() {
            return None;
        }
        for candidate in candidates(context, group, &choices) {
            let Some(resolved) = ResolvedPlacement::new(&candidate, context, group.size_bytes)
            else {
                continue;
            };
            let loss = loss(&choices, &resolved, places, equation, unit);
            if loss <= parameters.slack {
                let why = format!(
                    "{} sampled, and page runs would be better by {} only",
                    counted(choices.len() as u64, "page"),
                    percent(loss.max(0.0))
                );
                return Some((candidate, why));
            }
        }
        let pages = group
            .size_bytes
            .div_ceil(unit)
            .max(choices.last().map_or(0, |choice| choice.page + 1));
        let pattern = pattern_placement(context, group)
            .and_then(|placement| ResolvedPlacement::new(&placement, context, group.size_bytes));
        let runs = runs(&choices, pages, |page| {
            pattern
                .as_ref()?
                .holder(page * unit + unit / 2)
                .place(places)
        });
        if runs.len() <= parameters.runs_max.max(1) {
            let why = format!(
                "{} sampled, {} of pages",
                counted(choices.len() as u64, "page"),
                counted(runs.len() as u64, "run")
            );
            return Some((
                Placement::Runs(owned(
                    context,
                    &group.affinity,
                    &runs,
                    unit,
                    pattern.as_ref(),
                )),
                why,
            ));
        }
        unit = unit.saturating_mul(2);
    }
}

/// Page runs that put each segment of an object near its users ([`nearpage_attribution::find_segments`]), and the
/// number of runs; none if all would be at one place.
pub(crate) fn by_segments(
    context: &Context,
    group: &ObjectGroup,
    equation: Equation,
) -> Option<(Placement, usize)> {
    let (affinity, places) = (&group.affinity, &context.places);
    let unit = affinity.page_bytes.max(context.page_bytes).max(1);
    let mut runs: Vec<Run> = Vec::new();
    // End of the last segment, in units.
    let mut ended = 0;
    for segment in find_segments(affinity) {
        let first = affinity
            .cells
            .partition_point(|cell| cell.page < segment.first_page);
        let end = affinity
            .cells
            .partition_point(|cell| cell.page <= segment.last_page);
        let histogram = places.histogram(&affinity.cells[first..end]);
        let Some(place) = best_place(&histogram, places, equation) else {
            continue;
        };
        // The machine's pages may be larger than those that the recording counted.
        let [begins, ends] = segment.part_bytes(affinity);
        let (begins, ends) = (begins / unit, ends.div_ceil(unit));
        match runs.last_mut() {
            Some(last) if last.place == place => {}
            Some(last) => {
                // Unsampled pages between two segments: half of them to each.
                last.end = (ended + begins).div_ceil(2);
                let first = last.end;
                runs.push(Run {
                    first,
                    end: first,
                    place,
                });
            }
            None => runs.push(Run {
                first: 0,
                end: 0,
                place,
            }),
        }
        ended = ends;
    }
    let pages = group.size_bytes.div_ceil(unit).max(ended);
    runs.last_mut()?.end = pages;
    // Segments that lie on one page leave empty runs.
    runs.retain(|run| run.first < run.end);
    let count = runs.len();
    let placed = owned(context, affinity, &runs, unit, None);
    (count > 1 && placed.len() == count).then_some((Placement::Runs(placed), count))
}

fn best_place(histogram: &[(usize, f64)], places: &Places, equation: Equation) -> Option<usize> {
    match (equation, places.weights()) {
        (Equation::HopSensitive, Some(weights)) => {
            hop_sensitive(histogram, weights, places.holds())
        }
        // Threads that stand in for nodes are all equally far from each other, so Eq. 2 equals Eq. 1.
        _ => uniform(histogram, places.holds()),
    }
}

fn choices(
    affinity: &Affinity,
    places: &Places,
    equation: Equation,
    unit: u64,
) -> Vec<ChosenPlace> {
    let page_of = |cell: &Cell| u64::from(cell.page) * affinity.page_bytes / unit;
    affinity
        .cells
        .chunk_by(|a, b| page_of(a) == page_of(b))
        .filter_map(|cells| {
            let histogram = places.histogram(cells);
            Some(ChosenPlace {
                page: page_of(&cells[0]),
                place: best_place(&histogram, places, equation)?,
                histogram,
            })
        })
        .collect()
}

/// Pages of a group that were accessed, ascending, in units of `unit` bytes, and the place that an
/// equation gives each.
pub(crate) fn hints(
    context: &Context,
    group: &ObjectGroup,
    equation: Equation,
    unit: u64,
) -> Vec<(u64, usize)> {
    choices(&group.affinity, &context.places, equation, unit)
        .into_iter()
        .map(|choice| (choice.page, choice.place))
        .collect()
}

/// Simpler placements that may do as well: the whole object near one thread, and the object's pattern.
fn candidates(context: &Context, group: &ObjectGroup, choices: &[ChosenPlace]) -> Vec<Placement> {
    let mut candidates = Vec::new();
    let one_place = choices
        .iter()
        .all(|choice| choice.place == choices[0].place);
    if one_place {
        let place = choices[0].place;
        let owner = most_active(context, &group.affinity.cells, place)
            .or_else(|| context.places.node(place).map(Owner::Node));
        candidates.extend(owner.map(Placement::Whole));
    }
    candidates.extend(pattern_placement(context, group));
    candidates
}

/// The placement that the object's pattern stands for, if the pattern has owners.
fn pattern_placement(context: &Context, group: &ObjectGroup) -> Option<Placement> {
    match group.pattern {
        Pattern::Private { thread } => context.owner(thread).map(Placement::Whole),
        Pattern::Block { team, .. } => Some(Placement::Block {
            team: context.team_name(team)?,
        }),
        Pattern::PartialBlock {
            team,
            block_bytes,
            ref part_bytes,
        } => over_part(context, team, block_bytes, part_bytes, group.size_bytes),
        Pattern::BlockCyclic {
            team, block_bytes, ..
        } => cyclic(context, group, team, block_bytes),
        Pattern::Unknown
        | Pattern::PrivateEach
        | Pattern::PrivateRuns(_)
        | Pattern::Shared
        | Pattern::ReadShared
        | Pattern::Segments(_)
        | Pattern::Tiles { .. }
        | Pattern::InTurn(_)
        | Pattern::Mixed => None,
    }
}

/// How much worse than the choices a placement is, as a share of the accesses made local (Eq. 1) or of the cost (Eq.
/// 2).
fn loss(
    choices: &[ChosenPlace],
    resolved: &ResolvedPlacement,
    places: &Places,
    equation: Equation,
    unit: u64,
) -> f64 {
    let mut best = 0.0;
    let mut found = 0.0;
    for choice in choices {
        let holder = resolved.holder(choice.page * unit + unit / 2);
        let Some(place) = holder.place(places) else {
            return f64::INFINITY;
        };
        match (equation, places.weights()) {
            (Equation::HopSensitive, Some(weights)) => {
                best += cost_on(&choice.histogram, weights, choice.place);
                found += cost_on(&choice.histogram, weights, place);
            }
            _ => {
                let local = |place| {
                    choice
                        .histogram
                        .iter()
                        .find(|entry| entry.0 == place)
                        .map_or(0.0, |entry| entry.1)
                };
                // `found` grows by the lost accesses, as a cost does.
                best += local(choice.place);
                found += 2.0 * local(choice.place) - local(place);
            }
        }
    }
    if best > 0.0 { found / best - 1.0 } else { 0.0 }
}

/// Runs that cover all `pages`; see "Silent pages" above.
fn runs(choices: &[ChosenPlace], pages: u64, pattern: impl Fn(u64) -> Option<usize>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut push = |first: u64, end: u64, place: usize| {
        if first >= end {
            return;
        }
        match runs.last_mut() {
            Some(last) if last.place == place => last.end = end,
            _ => runs.push(Run { first, end, place }),
        }
    };
    let mut next = 0;
    for (position, choice) in choices.iter().enumerate() {
        let before = position.checked_sub(1).map(|before| &choices[before]);
        // The earlier of two equally near pages keeps the middle one.
        let middle = before
            .map_or(next, |before| (before.page + choice.page) / 2 + 1)
            .clamp(next, choice.page);
        push_unsampled(
            next,
            middle,
            before.unwrap_or(choice).place,
            &pattern,
            &mut push,
        );
        push_unsampled(middle, choice.page, choice.place, &pattern, &mut push);
        push(choice.page, choice.page + 1, choice.place);
        next = choice.page + 1;
    }
    if let Some(last) = choices.last() {
        push_unsampled(next, pages, last.place, &pattern, &mut push);
    }
    runs
}

fn push_unsampled(
    first: u64,
    end: u64,
    neighbour: usize,
    pattern: &impl Fn(u64) -> Option<usize>,
    push: &mut impl FnMut(u64, u64, usize),
) {
    if first < end && pattern(first).is_none() {
        return push(first, end, neighbour);
    }
    for page in first..end {
        push(page, page + 1, pattern(page).unwrap_or(neighbour));
    }
}

fn owned(
    context: &Context,
    affinity: &Affinity,
    runs: &[Run],
    unit: u64,
    pattern: Option<&ResolvedPlacement>,
) -> Vec<PageRun> {
    let scale = unit / context.page_bytes;
    let cells = &affinity.cells;
    let page_of = |cell: &Cell| u64::from(cell.page) * affinity.page_bytes / unit;
    runs.iter()
        .filter_map(|run| {
            let first = cells.partition_point(|cell| page_of(cell) < run.first);
            let end = cells.partition_point(|cell| page_of(cell) < run.end);
            // A silent run has no accesses: its owner is the thread of the pattern that filled it.
            let filled = || match pattern?.holder(run.first * unit + unit / 2) {
                Holder::Thread(thread) if context.places.of(thread) == Some(run.place) => {
                    context.owner(thread)
                }
                _ => None,
            };
            Some(PageRun {
                first_page: run.first * scale,
                pages: (run.end - run.first) * scale,
                owner: most_active(context, &cells[first..end], run.place)
                    .or_else(filled)
                    .or_else(|| context.places.node(run.place).map(Owner::Node))?,
            })
        })
        .collect()
}

/// The thread of a place with the most accesses, the first of equals; none if no thread of the place has any.
fn most_active(context: &Context, cells: &[Cell], place: usize) -> Option<Owner> {
    let mut totals = BTreeMap::new();
    for cell in cells
        .iter()
        .filter(|cell| context.places.of(cell.thread) == Some(place))
    {
        *totals.entry(cell.thread).or_insert(0.0) += cell.accesses();
    }
    let more = |best: (ThreadIndex, f64), next: (ThreadIndex, f64)| {
        if next.1 > best.1 && !same(next.1, best.1) {
            next
        } else {
            best
        }
    };
    totals
        .into_iter()
        .reduce(more)
        .and_then(|(thread, _)| context.owner(thread))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_cover_every_page_once(
            sampled in prop::collection::btree_map(0u64..60, 0usize..3, 1..20),
            patterned in any::<bool>(),
        ) {
            let choices: Vec<ChosenPlace> = sampled
                .iter()
                .map(|(&page, &place)| ChosenPlace { page, place, histogram: vec![(place, 1.0)] })
                .collect();
            let runs = runs(&choices, 64, |page| patterned.then_some(page as usize / 16));
            prop_assert_eq!(runs[0].first, 0);
            prop_assert_eq!(runs.last().unwrap().end, 64);
            for pair in runs.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].first);
                prop_assert_ne!(pair[0].place, pair[1].place);
            }
            let place_of = |page| runs.iter().find(|run| (run.first..run.end).contains(&page)).unwrap().place;
            for page in 0..64 {
                let expected = match sampled.get(&page) {
                    Some(&place) => place,
                    None if patterned => page as usize / 16,
                    None => {
                        let nearest = sampled.keys().min_by_key(|&&other| (other.abs_diff(page), other)).unwrap();
                        sampled[nearest]
                    }
                };
                prop_assert_eq!(place_of(page), expected, "page {}", page);
            }
        }
    }
}
