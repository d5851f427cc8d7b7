//! Decisions about one group of objects: whether it is worth one, and what a policy decides.

use nearpage_amount::{counted, percent};
use nearpage_attribution::ObjectGroup;
use nearpage_plan::{Decision, Effect, Placement, Start, Subject};
use nearpage_recording::ObjectKind;

use crate::affinity::{self, Equation};
use crate::context::Context;
use crate::effect::{Tally, share_near, under_first_touch, under_placement};
use crate::holder::ResolvedPlacement;
use crate::instances::{self, Instances, TeamInstances};
use crate::parameters::{Parameters, Policy};
use crate::placed_accesses::{Placing, placed_accesses};
use crate::{interleave, object};

/// True if the process's accesses to a group cost enough, and the group has pages of its own.
pub(crate) fn worth_deciding(
    context: &Context,
    group: &ObjectGroup,
    parameters: &Parameters,
) -> bool {
    let (accesses, cost_share) = context.part(group);
    // No other object shares a page of code.
    let has_pages = group.kind == ObjectKind::Code
        || group.size_bytes >= parameters.pages_min.saturating_mul(context.page_bytes);
    accesses > 0.0 && cost_share >= parameters.cost_share_min && has_pages
}

/// A decision about all objects of a group.
pub(crate) fn decided(
    context: &Context,
    group: &ObjectGroup,
    subject: Subject,
    placement: Placement,
    rule: &str,
) -> Decision {
    let (accesses, cost_share) = context.part(group);
    let local_after = ResolvedPlacement::new(&placement, context, group.size_bytes)
        .map_or(0.0, |resolved| {
            under_placement::<Tally>(context, group, &resolved).local_share()
        });
    Decision {
        name: context.names.of(group),
        subject,
        placement,
        start: Start::Allocation,
        why: format!("{}; {rule}", context.counters(group)),
        effect: Effect {
            accesses,
            cost_share,
            local_before: under_first_touch::<Tally>(context, group)
                .map(|tally| tally.local_share()),
            local_after,
            ..Effect::default()
        },
    }
}

/// Decisions about a group by a policy that looks at each group alone; none if first touch is better.
pub(crate) fn decide_group(
    policy: Policy,
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    parameters: &Parameters,
) -> Vec<Decision> {
    let (accesses, cost_share) = context.part(group);
    let counters = context.counters(group);
    if context.is_of_processes(group) && policy != Policy::Interleave {
        let placed = spread_over_processes(context, group);
        let rule = "threads of several processes use it";
        let decision =
            placed.map(|placement| decided(context, group, subject.clone(), placement, rule));
        return decision.into_iter().collect();
    }
    let instances = match policy {
        Policy::Interleave => Instances::Together,
        _ => instances::of(context, group, parameters),
    };
    let runs = match instances {
        Instances::OwnToucher => return Vec::new(),
        Instances::Runs(runs) => runs,
        Instances::ByTeam(instances) => {
            let decision = team_instances_decision(context, group, subject, &instances);
            return decision.into_iter().collect();
        }
        Instances::Together => {
            let placed = place_together(policy, context, group, parameters);
            let decision = placed.map(|(placement, rule)| {
                decided(context, group, subject.clone(), placement, &rule)
            });
            return decision.into_iter().collect();
        }
    };
    let all: f64 = runs.iter().map(|run| run.accesses).sum();
    runs.into_iter()
        .filter_map(|run| {
            let Subject::CallSite {
                frames, size_bytes, ..
            } = subject
            else {
                return None;
            };
            let owner = context.owner(run.user)?;
            let part = run.accesses / all.max(f64::MIN_POSITIVE);
            let (first, last) = run.order;
            let rule = format!(
                "{}, of which {first} to {last} are used by one thread ({} of their accesses)",
                counted(group.instances, "instance"),
                percent(run.share),
            );
            Some(Decision {
                name: context.names.of(group),
                subject: Subject::CallSite {
                    frames: frames.clone(),
                    size_bytes: *size_bytes,
                    order: Some(run.order),
                    thread: Some(run.allocator),
                },
                placement: Placement::Whole(owner),
                start: Start::Allocation,
                why: format!("{counters}; {rule}"),
                effect: Effect {
                    accesses: accesses * part,
                    cost_share: cost_share * part,
                    local_before: None,
                    local_after: run.share,
                    ..Effect::default()
                },
            })
        })
        .collect()
}

/// The decision that distributes a call site's objects among a team's threads; none for groups without a call site.
fn team_instances_decision(
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    instances: &TeamInstances,
) -> Option<Decision> {
    let Subject::CallSite {
        frames, size_bytes, ..
    } = subject
    else {
        return None;
    };
    let subject = Subject::CallSite {
        frames: frames.clone(),
        size_bytes: *size_bytes,
        order: None,
        thread: Some(instances.allocator),
    };
    let use_them = match instances.placement {
        Placement::ObjectBlocks { .. } => "of which each thread uses an equal share, in order",
        _ => "which threads use in turn",
    };
    let rule = format!(
        "{}, {use_them} ({} of their accesses)",
        counted(group.instances, "instance"),
        percent(instances.share),
    );
    let placement = instances.placement.clone();
    let decision = decided(context, group, subject, placement, &rule);
    Some(Decision {
        effect: Effect {
            local_before: None,
            local_after: instances.share,
            ..decision.effect
        },
        ..decision
    })
}

/// The placement of memory that several processes share. A plan serves each process by itself, so no thread of another
/// can be named: the pages are spread. Parts that have owners stay where first touch puts them if they are as local
/// there.
fn spread_over_processes(context: &Context, group: &ObjectGroup) -> Option<Placement> {
    let placement = interleave::unless_users_share_a_node(context, group)?;
    let resolved = ResolvedPlacement::new(&placement, context, group.size_bytes)?;
    let spread = under_placement::<Tally>(context, group, &resolved).local_share();
    // Owners are taken to have filled their parts, unless others were seen to.
    let before =
        under_first_touch::<Tally>(context, group).map_or(1.0, |tally| tally.local_share());
    (group.pattern.is_shared() || spread > before).then_some(placement)
}

/// The placement of objects that are all treated alike, and the rule in words.
fn place_together(
    policy: Policy,
    context: &Context,
    group: &ObjectGroup,
    parameters: &Parameters,
) -> Option<(Placement, String)> {
    let equation = match policy {
        Policy::Interleave => {
            return Some((
                interleave::everywhere(),
                "every object is interleaved".to_owned(),
            ));
        }
        Policy::Object | Policy::Auto => return object::place(context, group, parameters),
        Policy::Uniform => Equation::Uniform,
        Policy::HopSensitive => Equation::HopSensitive,
    };
    let (placement, found) = affinity::place(context, group, equation, parameters)?;
    if first_touch_does_as_well(context, group, &placement, equation, parameters) {
        return None;
    }
    let rule = match equation {
        Equation::Uniform => "each page goes where most of its accesses come from (Eq. 1)",
        Equation::HopSensitive => "each page goes where its accesses cost least (Eq. 2)",
    };
    Some((placement, format!("{rule}: {found}")))
}

fn first_touch_does_as_well(
    context: &Context,
    group: &ObjectGroup,
    placement: &Placement,
    equation: Equation,
    parameters: &Parameters,
) -> bool {
    if context.places.are_threads() {
        let touches = context.first_touches(group);
        let near = share_near(context, group, true, |page| touches.toucher(page));
        return near.is_some_and(|near| near >= parameters.first_touch_local_min);
    }
    let Some(before) = under_first_touch::<Tally>(context, group) else {
        return false;
    };
    let Some(resolved) = ResolvedPlacement::new(placement, context, group.size_bytes) else {
        return false;
    };
    let after: Tally = under_placement(context, group, &resolved);
    match equation {
        Equation::Uniform => before.local_share() + parameters.slack >= after.local_share(),
        Equation::HopSensitive => {
            before.weighted * after.accesses
                <= after.weighted * before.accesses * (1.0 + parameters.slack)
        }
    }
}

/// The decision that leaves a group to first touch, unlike the memory around it.
pub(crate) fn first_touched(
    context: &Context,
    group: &ObjectGroup,
    subject: Subject,
    parameters: &Parameters,
) -> Decision {
    let rule = "kept at first touch, although the memory around it is placed";
    let mut decision = decided(context, group, subject, Placement::FirstTouch, rule);
    let found = placed_accesses::<Tally>(context, group, Placing::Decided(&[]), parameters);
    decision.effect.local_after = found.map_or(0.0, |(_, found)| found.local_share());
    decision
}
