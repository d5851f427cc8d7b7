//! The choices for one object.

use nearpage_amount::percent;
use nearpage_attribution::{Cell, ObjectGroup, Pattern};
use nearpage_plan::{Decision, Owner, Placement, Proportions, Start, Subject};

use crate::affinity::{self, Equation};
use crate::context::Context;
use crate::effect::Tally;
use crate::group::{decide_group, decided};
use crate::holder::{Holder, ResolvedPlacement};
use crate::instances::{self, Instances};
use crate::interleave;
use crate::parameters::{Parameters, Policy};
use crate::placed_accesses::{Placing, assumed_toucher, placed_accesses};

/// A rule that may treat all objects alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    FirstTouch,
    Pattern,
    Segments,
    Block,
    Whole,
    NextTouch,
    Interleave,
    Weighted,
    HopSensitive,
    Uniform,
    Replicate,
}

/// One choice for an object.
#[derive(Clone, Debug)]
pub(super) struct ObjectChoice {
    pub kind: Kind,
    /// Its decisions; empty: the object is left to first touch.
    pub decisions: Vec<Decision>,
    /// How much of its saving is expected by chance, in nanoseconds of the program's time.
    pub chance_ns: f64,
    /// Two standard errors of its saving, in nanoseconds of the program's time.
    pub error_ns: f64,
    /// Time of accesses that it makes slower ([`super::inputs::slower_ns`]).
    pub slower_ns: f64,
    /// Share of the accesses that are local, 0 to 1; `None` if unknown.
    pub local_share: Option<f64>,
}

/// Most stores among accesses to an object that may be copied, if samples do not tell the pages of stores:
/// each store removes all copies but one.
pub(super) const REPLICATED_STORES_MAX: f64 = 0.001;

pub(super) fn first_touch_choice() -> ObjectChoice {
    ObjectChoice {
        kind: Kind::FirstTouch,
        decisions: Vec::new(),
        chance_ns: 0.0,
        error_ns: 0.0,
        slower_ns: 0.0,
        local_share: None,
    }
}

/// Shares of the cost of remote fetches for which the fewest possible pages are copied: each copy costs the same,
/// however much its page is used.
const COPIED_COST_SHARES: [f64; 2] = [0.9, 0.5];

/// Code for all nodes that run it: the pages with most of the cost, or all.
pub(super) fn copies_of_code(
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    latency_ns: &[Vec<f64>],
) -> Vec<ObjectChoice> {
    let copied = |subject: Subject, rule: String| ObjectChoice {
        kind: Kind::Replicate,
        decisions: vec![decided(
            context,
            group,
            subject,
            Placement::Replicate,
            &rule,
        )],
        ..first_touch_choice()
    };
    let mut choices: Vec<ObjectChoice> = Vec::new();
    let by_cost = pages_by_cost(context, group, latency_ns);
    let all_ns: f64 = by_cost.iter().map(|page| page.1).sum();
    if let Subject::Code {
        module, build_id, ..
    } = subject
    {
        for share in COPIED_COST_SHARES {
            let mut left_ns = share * all_ns;
            let hot = by_cost.iter().take_while(|page| {
                let needed = left_ns > 0.0;
                left_ns -= page.1;
                needed
            });
            let mut hot: Vec<u32> = hot.map(|page| page.0).collect();
            let count = hot.len();
            let same = |choice: &ObjectChoice| {
                matches!(&choice.decisions[0].subject, Subject::Code { pages, .. }
                    if pages.iter().map(|run| run.1).sum::<u64>() == count as u64)
            };
            if hot.is_empty() || count == by_cost.len() || choices.iter().any(same) {
                continue;
            }
            hot.sort_unstable();
            let unit = group.affinity.page_bytes.div_ceil(context.page_bytes);
            let run = |pages: &[u32]| (u64::from(pages[0]) * unit, pages.len() as u64 * unit);
            let runs = hot.chunk_by(|a, b| a + 1 == *b);
            let subject = Subject::Code {
                module: module.clone(),
                build_id: build_id.clone(),
                pages: runs.map(run).collect(),
            };
            let rule = format!(
                "a copy for each node that runs it, of the {count} of {} pages that make {} of what fetches \
                 from other nodes cost",
                by_cost.len(),
                percent(share)
            );
            choices.push(copied(subject, rule));
        }
    }
    let rule = "a copy for each node that runs it".to_owned();
    choices.push(copied(subject.clone(), rule));
    choices
}

/// Pages that are used by other nodes than the node of their first touch, with the cost of these accesses; the
/// costliest first.
fn pages_by_cost(
    context: &Context,
    group: &ObjectGroup,
    latency_ns: &[Vec<f64>],
) -> Vec<(u32, f64)> {
    let home = assumed_toucher(context, group).and_then(|thread| context.node_position(thread));
    let Some(home) = home else {
        return Vec::new();
    };
    let cost_ns = |cell: &Cell| {
        let reader = context.node_position(cell.thread);
        reader.map_or(0.0, |reader| {
            cell.accesses() * (latency_ns[reader][home] - latency_ns[reader][reader])
        })
    };
    let by_page = group.affinity.cells.chunk_by(|a, b| a.page == b.page);
    let pages = by_page.map(|users| (users[0].page, users.iter().map(cost_ns).sum()));
    let mut pages: Vec<(u32, f64)> = pages.filter(|page| page.1 > 0.0).collect();
    pages.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    pages
}

/// All choices for a group, without repetitions; the first leaves it to first touch.
pub(super) fn choices(
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    parameters: &Parameters,
    latency_ns: &[Vec<f64>],
    stores_most: f64,
) -> Vec<ObjectChoice> {
    let local_share = |decisions: &[Decision]| {
        let decisions: Vec<&Decision> = decisions.iter().collect();
        let found =
            placed_accesses::<Tally>(context, group, Placing::Decided(&decisions), parameters);
        found.map(|(_, tally)| tally.local_share())
    };
    let mut choices = vec![ObjectChoice {
        local_share: local_share(&[]),
        ..first_touch_choice()
    }];
    let samples: f64 = cells(group).map(|cell| f64::from(cell.samples)).sum();
    let by_page = group.affinity.cells.chunk_by(|a, b| a.page == b.page);
    let pages = by_page.count();
    let mut offer = |kind, decisions: Vec<Decision>| {
        let same = |choice: &ObjectChoice| placements(&choice.decisions) == placements(&decisions);
        // Rules that agree are one choice.
        if !choices.iter().any(same) {
            let chosen = decisions
                .iter()
                .map(|one| numbers(kind, group, one, pages))
                .max();
            choices.push(ObjectChoice {
                kind,
                chance_ns: chosen.unwrap_or(0) as f64
                    * sample_ns(latency_ns, group, weight_of_chance(kind, group, samples)),
                error_ns: sampling_error_ns(context, group, &decisions, latency_ns),
                local_share: local_share(&decisions),
                decisions,
                ..first_touch_choice()
            });
        }
    };
    let by = |policy| decide_group(policy, context, group, subject, parameters);
    if context.is_of_processes(group) {
        offer(Kind::Pattern, by(Policy::Object));
        for (kind, placement, rule) in spread_choices(context, group) {
            let decision = placement
                .map(|placement| decided(context, group, subject.clone(), placement, &rule));
            offer(kind, decision.into_iter().collect());
        }
        return choices;
    }
    let by_object = by(Policy::Object);
    // Pages without a pattern are placed one by one, which takes more samples.
    let is_by_rule = |one: &Decision| matches!(one.placement, Placement::Parts { .. });
    if group.pattern != Pattern::Mixed
        || samples >= parameters.page_samples_min * pages as f64
        || by_object.iter().all(is_by_rule)
    {
        offer(Kind::Pattern, by_object);
    }
    let together = matches!(
        instances::of(context, group, parameters),
        Instances::Together
    );
    if together {
        let mut one = |kind, placement: Option<Placement>, rule: &str| {
            let decision = placement
                .map(|placement| decided(context, group, subject.clone(), placement, rule));
            offer(kind, decision.into_iter().collect());
        };
        for (kind, placement, rule) in together_choices(context, group) {
            one(kind, placement, &rule);
        }
        let stores: f64 = cells(group).map(|cell| f64::from(cell.stores)).sum();
        let all: f64 = cells(group).map(Cell::accesses).sum();
        if parameters.replicas && stores <= stores_most * all {
            one(
                Kind::Replicate,
                Some(Placement::Replicate),
                "a copy for each node that reads it",
            );
        }
    }
    if samples >= parameters.page_samples_min * pages as f64 {
        offer(Kind::HopSensitive, by(Policy::HopSensitive));
        offer(Kind::Uniform, by(Policy::Uniform));
    }
    choices
}

/// Number of values in a decision that were fitted to the samples: the saving by chance depends on it.
fn numbers(kind: Kind, group: &ObjectGroup, decision: &Decision, pages: usize) -> usize {
    let runs = match &decision.placement {
        Placement::Runs(runs) => runs,
        // Two numbers for each part: its beginning and its end.
        Placement::Parts { parts, .. } => {
            let proportions = parts.proportions().map_or(0, Proportions::count);
            return 2 * parts.count() + proportions;
        }
        Placement::Tiles { .. } => return 3,
        _ => return 0,
    };
    match (kind, &group.pattern) {
        (Kind::Segments, _) => runs.len(),
        (Kind::Pattern, Pattern::Tiles { shares, .. }) => 1 + shares.len(),
        (Kind::Pattern, Pattern::Segments(_)) => runs.len(),
        _ => pages,
    }
}

/// Choices, except copies, that place all objects of a group together, with the rules in words.
fn together_choices(
    context: &Context,
    group: &ObjectGroup,
) -> impl Iterator<Item = (Kind, Option<Placement>, String)> {
    let segments = affinity::by_segments(context, group, Equation::HopSensitive);
    let (segments, parts) =
        segments.map_or((None, 0), |(placement, parts)| (Some(placement), parts));
    let block = context.team("").filter(|threads| {
        threads.len() > 1 && group.size_bytes >= threads.len() as u64 * context.page_bytes
    });
    let block = block.map(|_| Placement::Block {
        team: String::new(),
    });
    [
        (
            Kind::Segments,
            segments,
            format!("each of {parts} contiguous parts near its users"),
        ),
        (Kind::Block, block, "a share for each thread".to_owned()),
        (
            Kind::Whole,
            dominant(context, group).map(Placement::Whole),
            "all of it near the thread that uses it most".to_owned(),
        ),
    ]
    .into_iter()
    .chain(spread_choices(context, group))
}

/// The placements that name no thread, with the rules in words.
fn spread_choices(
    context: &Context,
    group: &ObjectGroup,
) -> [(Kind, Option<Placement>, String); 3] {
    [
        (
            Kind::Interleave,
            Some(interleave::everywhere()),
            "over all nodes".to_owned(),
        ),
        (
            Kind::Interleave,
            interleave::near(context.machine),
            "over all nodes but far ones without CPUs".to_owned(),
        ),
        (
            Kind::Weighted,
            interleave::weighted(context, group),
            "over the nodes as its users are spread".to_owned(),
        ),
    ]
}

/// The placements of decisions, without their reasons.
pub(super) fn placements(decisions: &[Decision]) -> Vec<(&Subject, &Placement)> {
    decisions
        .iter()
        .map(|decision| (&decision.subject, &decision.placement))
        .collect()
}

/// Each page near the thread that uses it first when a second thread runs, for objects that one thread fills before.
pub(super) fn next_touch(
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
) -> Option<ObjectChoice> {
    if group.affinity.initialisation.is_empty() {
        return None;
    }
    let rule = "each page near the thread that uses it first when a second thread runs";
    let place = Placement::FirstTouch;
    Some(ObjectChoice {
        kind: Kind::NextTouch,
        decisions: vec![Decision {
            start: Start::SecondThread,
            ..decided(context, group, subject.clone(), place, rule)
        }],
        ..first_touch_choice()
    })
}

/// Each page near the thread that uses it next, in a phase.
pub(super) fn next_use(context: &Context, group: &ObjectGroup, subject: &Subject) -> ObjectChoice {
    let rule = "each page near the thread that uses it next";
    let place = Placement::FirstTouch;
    ObjectChoice {
        kind: Kind::NextTouch,
        decisions: vec![decided(context, group, subject.clone(), place, rule)],
        ..first_touch_choice()
    }
}

/// The same choice with another start, for objects that one thread fills before.
pub(super) fn later(
    group: &ObjectGroup,
    choice: &ObjectChoice,
    start: Start,
) -> Option<ObjectChoice> {
    let [decision] = choice.decisions.as_slice() else {
        return None;
    };
    let same = decision.start == start
        || decision.placement == Placement::Replicate
        || decision.placement.goes_by_number();
    if same || group.affinity.initialisation.is_empty() {
        return None;
    }
    Some(ObjectChoice {
        decisions: vec![Decision {
            start,
            why: match start {
                Start::Parallel => format!("{}; while several threads run", decision.why),
                _ => format!("{}; from when a second thread runs", decision.why),
            },
            ..decision.clone()
        }],
        ..choice.clone()
    })
}

fn cells(group: &ObjectGroup) -> impl Iterator<Item = &nearpage_attribution::Cell> {
    group.affinity.cells.iter()
}

/// Least share of an object's samples that a thread must have for the whole object to be placed near it.
const DOMINANT: f64 = 0.5;

/// The thread with most of the accesses and of the samples: a few samples alone may stand for most accesses.
fn dominant(context: &Context, group: &ObjectGroup) -> Option<Owner> {
    let known = group
        .threads
        .iter()
        .filter(|(thread, ..)| context.places.knows(*thread));
    let most = known.max_by(|a, b| (a.1 + a.2).total_cmp(&(b.1 + b.2)).then(b.0.cmp(&a.0)));
    let most = most?.0;
    let samples = |of: &dyn Fn(&Cell) -> bool| -> f64 {
        let cells = cells(group).filter(|cell| of(cell));
        cells.map(|cell| f64::from(cell.samples)).sum()
    };
    let is_sampled = group.affinity.sample_weight > 1.0;
    if is_sampled && samples(&|cell| cell.thread == most) < DOMINANT * samples(&|_| true) {
        return None;
    }
    context.owner(most)
}

/// The weight of a sample in the saving by chance. Patterns are found from samples regardless of their weights, so for
/// them it is the mean. Pages are chosen by their accesses, most of which may belong to a few heavy samples.
fn weight_of_chance(kind: Kind, group: &ObjectGroup, samples: f64) -> f64 {
    let by_accesses = group.affinity.sample_weight.max(1.0);
    match kind {
        Kind::Pattern if group.pattern != Pattern::Mixed && samples > 0.0 => {
            let accesses: f64 = cells(group).map(Cell::accesses).sum();
            (accesses / samples).clamp(1.0, by_accesses)
        }
        _ => by_accesses,
    }
}

/// Most of the program's time that can be saved by placing the accesses of a sample with this weight near their thread,
/// if they are on the farthest node now.
fn sample_ns(latency_ns: &[Vec<f64>], group: &ObjectGroup, weight: f64) -> f64 {
    let threads = group.threads.len().max(1) as f64;
    weight * super::model::misses_an_access(latency_ns, group) * range_ns(latency_ns) / threads
}

/// Difference of latency between the farthest and the nearest memory.
fn range_ns(latency_ns: &[Vec<f64>]) -> f64 {
    let [least, most] = least_and_most_ns(latency_ns);
    most - least
}

/// Latencies of the nearest and of the farthest memory.
pub(super) fn least_and_most_ns(latency_ns: &[Vec<f64>]) -> [f64; 2] {
    let latencies = latency_ns.iter().flatten().copied();
    let most = latencies.clone().fold(0.0, f64::max);
    let least = latencies.fold(f64::MAX, f64::min);
    [least, most]
}

/// Two standard errors of the decisions' saving: each sample of an access that they make faster or slower
/// might as well have been taken twice, or not at all. Accesses that they do not change add no uncertainty.
pub(super) fn sampling_error_ns(
    context: &Context,
    group: &ObjectGroup,
    decisions: &[Decision],
    latency_ns: &[Vec<f64>],
) -> f64 {
    let together = match decisions {
        [decision] => ResolvedPlacement::new(&decision.placement, context, group.size_bytes),
        _ => None,
    };
    let touches = context.first_touches(group);
    let assumed = assumed_toucher(context, group);
    let unit = group.affinity.page_bytes;
    let range_ns = range_ns(latency_ns);
    let square = |cell: &nearpage_attribution::Cell| {
        let Some(reader) = context.node_position(cell.thread) else {
            return 0.0;
        };
        let before = touches.toucher(cell.page).or(assumed);
        let changed = match (&together, before) {
            (Some(resolved), Some(before)) => {
                let after = resolved.holder(u64::from(cell.page) * unit + unit / 2);
                let each_ns = |holder: Holder| holder.latency_ns(context, reader, latency_ns);
                each_ns(Holder::Thread(before)) - each_ns(after)
            }
            _ => range_ns,
        };
        cell.accesses() * changed * changed
    };
    let squares: f64 = cells(group).map(square).sum();
    let threads = group.threads.len().max(1) as f64;
    let weight = group.affinity.sample_weight.max(1.0);
    2.0 * (weight * squares).sqrt() * super::model::misses_an_access(latency_ns, group) / threads
}
