//! A plan of one recording in the terms of another recording, with another input or a team of another size.
//!
//! Patterns over threads are dealt to the threads of a run when the plan is translated. So the plan is translated for
//! the recorded run, as `run` translates it for a new run. Each object's decision becomes the nodes that its pages get.

use std::collections::{BTreeMap, HashMap};

use nearpage_attribution::ObjectGroup;
use nearpage_machine::{CpuId, NodeId};
use nearpage_plan::{
    Decision, Error, Evaluated, ModuleName, Owner, PageRun, PlacedPages, Placement, Plan, Subject,
    Target, Team, translate,
};
use nearpage_recording::{Object, ObjectId, ThreadIndex};

use crate::context::{Context, Input};
use crate::instances::{self, Instances};
use crate::parameters::Parameters;
use crate::placed_objects::place_objects;
use crate::prediction::Prediction;
use crate::subject::subject;

/// A plan in the terms of another recording.
pub(crate) struct Translated {
    /// The plan, whose decisions are about objects of the other recording and whose owners are nodes.
    pub plan: Plan,
    /// By decision: the position of the original plan's decision.
    pub origins: Vec<usize>,
}

impl Translated {
    /// Names decisions and placements, in a prediction of the translated plan, as the original plan does.
    pub fn name_decisions(&self, plan: &Plan, prediction: &mut Prediction) {
        for object in &mut prediction.objects {
            for at in &mut object.decisions {
                *at = self.origins[*at];
            }
            object.decisions.dedup();
            if let Some(decision) = object.decisions.first().map(|&at| &plan.decisions[at]) {
                object.placement = decision.placement.to_string();
            }
        }
    }
}

/// The decision and the pages that a rule gives an object.
struct MatchedDecision {
    decision: usize,
    pages: Vec<PlacedPages>,
}

/// Translates a plan for the recorded run of `input`. Phases, online migration and copies of code are left out.
///
/// # Errors
/// The plan names nodes or teams that do not exist.
pub(crate) fn translated(plan: &Plan, input: &Input) -> Result<Translated, Error> {
    let context = Context::new(input);
    let matched = matched_decisions(plan, input, &context)?;
    let mut found = Translated {
        plan: Plan {
            page_bytes: context.page_bytes,
            teams: context.plan_teams(),
            decisions: Vec::new(),
            online_migration: None,
            phases: Vec::new(),
            ..plan.clone()
        },
        origins: Vec::new(),
    };
    for group in &input.attribution.objects {
        let Some(own) = subject(input.tables, group) else {
            continue;
        };
        for (at, subject, placement) in of_group(plan, &context, group, &own, &matched) {
            found.origins.push(at);
            found.plan.decisions.push(Decision {
                subject,
                placement,
                ..plan.decisions[at].clone()
            });
        }
    }
    // Unmatched memory has no size that could differ.
    let mut decisions = plan.decisions.iter();
    if let Some(at) = decisions.position(|decision| decision.subject == Subject::Unmatched) {
        found.origins.push(at);
        found.plan.decisions.push(plan.decisions[at].clone());
    }
    Ok(found)
}

/// Decisions about the objects of a group: position in the plan, and subject and placement in terms of the group.
fn of_group(
    plan: &Plan,
    context: &Context,
    group: &ObjectGroup,
    own: &Subject,
    matched: &HashMap<ObjectId, MatchedDecision>,
) -> Vec<(usize, Subject, Placement)> {
    let object = |id: &ObjectId| context.tables.objects.get(id.0 as usize);
    let translated = |id: &ObjectId| {
        let (decided, object) = (matched.get(id)?, object(id)?);
        let placement = &plan.decisions[decided.decision].placement;
        let placement = on_nodes(placement, object, &decided.pages, context.page_bytes)?;
        Some((decided.decision, object, placement))
    };
    let parameters = Parameters::default();
    let by_instance = instances::of(context, group, &parameters) != Instances::Together;
    let (
        true,
        Subject::CallSite {
            frames, size_bytes, ..
        },
    ) = (by_instance, own)
    else {
        let first = group.listed_instances.iter().find_map(translated);
        return first
            .into_iter()
            .map(|(at, _, placement)| (at, own.clone(), placement))
            .collect();
    };
    let mut used: Vec<ObjectId> = group.uses.iter().map(|one| one.object).collect();
    used.dedup();
    let of_one = |id: &ObjectId| {
        let (at, object, placement) = translated(id)?;
        let allocator = object
            .thread
            .and_then(|thread| context.tables.threads.get(thread.0 as usize));
        let subject = Subject::CallSite {
            frames: frames.clone(),
            size_bytes: *size_bytes,
            order: Some((object.order, object.order)),
            thread: allocator.map(|thread| thread.order),
        };
        Some((at, subject, placement))
    };
    used.iter().filter_map(of_one).collect()
}

/// A placement with its pages on nodes; none if pages stay where they are touched first.
fn on_nodes(
    placement: &Placement,
    object: &Object,
    pages: &[PlacedPages],
    page_bytes: u64,
) -> Option<Placement> {
    match placement {
        Placement::Interleave { .. } | Placement::Replicate | Placement::FirstTouch => {
            return Some(placement.clone());
        }
        Placement::Whole(_)
        | Placement::Block { .. }
        | Placement::BlockCyclic { .. }
        | Placement::Parts { .. }
        | Placement::Tiles { .. }
        | Placement::RoundRobin { .. }
        | Placement::ObjectBlocks { .. }
        | Placement::Runs(_) => {}
    }
    let mut runs: Vec<PageRun> = Vec::new();
    for piece in pages {
        let page = |address: u64| {
            let offset = address.saturating_sub(object.address);
            (offset + page_bytes / 2) / page_bytes
        };
        let owner = Owner::Node(piece.node(piece.start, page_bytes)?);
        let (first_page, end) = (page(piece.start), page(piece.end));
        match runs.last_mut() {
            Some(last) if last.owner == owner => last.pages = end - last.first_page,
            _ => runs.push(PageRun {
                first_page,
                pages: end.saturating_sub(first_page),
                owner,
            }),
        }
    }
    match runs.as_slice() {
        [] => None,
        [one] => Some(Placement::Whole(one.owner.clone())),
        _ => Some(Placement::Runs(runs)),
    }
}

/// Decisions and pages that the plan's rules give the process's accessed objects.
fn matched_decisions(
    plan: &Plan,
    input: &Input,
    context: &Context,
) -> Result<HashMap<ObjectId, MatchedDecision>, Error> {
    let machine = input.machine;
    let mut of_node: BTreeMap<NodeId, CpuId> = BTreeMap::new();
    for node in &machine.nodes {
        if let Some(cpu) = node.cpus.first() {
            of_node.insert(node.id, *cpu);
        }
    }
    let cpu = |thread: &ThreadIndex| {
        let node = input.thread_nodes.get(thread.0 as usize)?;
        of_node.get(node).copied()
    };
    let cpus = |team: &Team| {
        let threads = context.team(&team.name)?;
        Some((team.name.clone(), threads.iter().filter_map(cpu).collect()))
    };
    let teams = plan.teams.iter().filter_map(cpus).collect();
    let mut threads: Vec<_> = (0..)
        .map(ThreadIndex)
        .zip(&input.tables.threads)
        .filter(|(_, thread)| thread.pid == input.pid)
        .collect();
    threads.sort_by_key(|(_, thread)| thread.order);
    let threads = threads.iter().filter_map(|(thread, _)| cpu(thread));
    let target = Target::of_recorded(machine, teams, threads.collect());
    let compact = translate(std::slice::from_ref(plan), &[], &target, &[])?;
    let program = ModuleName {
        build_id: &input.program.build_id,
        file_name: &input.program.executable,
    };
    let rules = compact.process(program, input.program.rank, machine.page_bytes);
    let mut is_used = vec![false; input.tables.objects.len()];
    for group in &input.attribution.objects {
        let uses = group.uses.iter().map(|one| one.object);
        for id in group.listed_instances.iter().copied().chain(uses) {
            if let Some(used) = is_used.get_mut(id.0 as usize) {
                *used = true;
            }
        }
    }
    let mut found = HashMap::new();
    place_objects(input.tables, input.pid, rules, |number, _, evaluated| {
        if let Some(Evaluated { rule, pages, .. }) = evaluated.filter(|_| is_used[number])
            && let Some(decision) = compact.decisions[rule]
        {
            found.insert(ObjectId(number as u32), MatchedDecision { decision, pages });
        }
    });
    Ok(found)
}
