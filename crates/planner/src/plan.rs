//! From a recording's attribution to a plan.

use nearpage_attribution::{Attribution, ObjectGroup};
use nearpage_machine::{Machine, NodeId, several};
use nearpage_plan::{Decision, Effect, Owner, Placement, Plan, Program, Start, Subject, Team};
use nearpage_recording::{ObjectKind, Tables, ThreadIndex};

use crate::affinity::{self, Equation};
use crate::effect::{Tally, under_first_touch, under_layout};
use crate::first_touch::FirstTouches;
use crate::holder::Layout;
use crate::instances::{self, Instances};
use crate::place::Places;
use crate::{Parameters, Policy, auto, effect, interleave, object, subject};

/// What decisions are made from.
#[derive(Clone, Debug)]
pub struct Input<'a> {
    /// What each thread did to each object and page.
    pub attribution: &'a Attribution,
    /// The recording's threads, objects, call sites and modules.
    pub tables: &'a Tables,
    /// The machine that the plan is for.
    pub machine: &'a Machine,
    /// The node of each thread on that machine, by [`ThreadIndex`]: [`crate::thread_nodes`].
    pub thread_nodes: &'a [NodeId],
    /// The process that the plan is for: a plan serves one program.
    pub pid: u32,
    /// Its program.
    pub program: Program,
    /// Unit of placement in bytes: the page, or the huge page where these are in use.
    pub page_bytes: u64,
}

/// An [`Input`] with what follows from it.
pub(crate) struct Context<'a> {
    pub tables: &'a Tables,
    pub machine: &'a Machine,
    pub thread_nodes: &'a [NodeId],
    pub page_bytes: u64,
    /// `[CPU's node][memory's node]`, by position.
    pub weights: Vec<Vec<f64>>,
    pub places: Places,
    /// Name, position in the attribution's teams, and threads of the process's teams.
    teams: Vec<(String, usize, &'a [ThreadIndex])>,
    /// Team and index of each thread, by [`ThreadIndex`].
    members: Vec<Option<(usize, u32)>>,
    /// Cost of the whole recording.
    cost_ns: f64,
}

impl<'a> Context<'a> {
    pub fn new(input: &Input<'a>) -> Self {
        let mut teams: Vec<(String, usize, &[ThreadIndex])> = Vec::new();
        let mut members = vec![None; input.tables.threads.len()];
        for (position, team) in input.attribution.teams.iter().enumerate() {
            if team.pid != input.pid || team.threads.is_empty() {
                continue;
            }
            let taken = |name: &str| teams.iter().any(|team| team.0 == name);
            let mut name = team.name.clone();
            let mut number = 2;
            while taken(&name) {
                name = format!("{}-{number}", team.name);
                number += 1;
            }
            for (index, thread) in team.threads.iter().enumerate() {
                if let Some(member) = members.get_mut(thread.0 as usize) {
                    *member = member.or(Some((teams.len(), index as u32)));
                }
            }
            teams.push((name, position, &team.threads));
        }
        Self {
            tables: input.tables,
            machine: input.machine,
            thread_nodes: input.thread_nodes,
            page_bytes: input.page_bytes.max(1),
            weights: input.machine.weights(),
            places: Places::new(
                input.machine,
                input.thread_nodes,
                &input.tables.threads,
                input.pid,
            ),
            teams,
            members,
            cost_ns: input
                .attribution
                .objects
                .iter()
                .map(ObjectGroup::cost_ns)
                .sum(),
        }
    }

    /// A thread as plans name it; none for threads of no team.
    pub fn owner(&self, thread: ThreadIndex) -> Option<Owner> {
        let (team, index) = (*self.members.get(thread.0 as usize)?)?;
        Some(Owner::Thread {
            team: self.teams[team].0.clone(),
            index,
        })
    }

    /// The team at `position` in the attribution's teams as patterns name it: nothing for the first.
    pub fn team_name(&self, position: usize) -> Option<String> {
        let found = self.teams.iter().position(|team| team.1 == position)?;
        Some(if found == 0 {
            String::new()
        } else {
            self.teams[found].0.clone()
        })
    }

    /// The same for people.
    pub fn team_words(&self, position: usize) -> String {
        match self.teams.iter().find(|team| team.1 == position) {
            Some((name, _, threads)) => format!("the {} threads of {name}", threads.len()),
            None => "a team's threads".to_owned(),
        }
    }

    /// Threads of the team that a plan names.
    pub fn team(&self, name: &str) -> Option<&'a [ThreadIndex]> {
        let mut teams = self.teams.iter();
        let found = if name.is_empty() {
            teams.next()
        } else {
            teams.find(|team| team.0 == name)
        };
        found.map(|team| team.2)
    }

    /// Position of the node that a thread of the process runs on.
    pub fn node_position(&self, thread: ThreadIndex) -> Option<usize> {
        self.places.of(thread)?;
        self.machine
            .position(*self.thread_nodes.get(thread.0 as usize)?)
    }

    /// Accesses and share of the recording's cost that the process has on a group.
    pub fn part(&self, group: &ObjectGroup) -> (f64, f64) {
        let ours = group
            .threads
            .iter()
            .filter(|(thread, ..)| self.places.knows(*thread));
        let (accesses, cost_ns) = ours.fold((0.0, 0.0), |sum, (_, loads, stores, cost)| {
            (sum.0 + loads + stores, sum.1 + cost)
        });
        (
            accesses,
            if self.cost_ns > 0.0 {
                cost_ns / self.cost_ns
            } else {
                0.0
            },
        )
    }

    /// What was seen of a group, in words.
    fn counters(&self, group: &ObjectGroup) -> String {
        let ours = || {
            group
                .threads
                .iter()
                .filter(|(thread, ..)| self.places.knows(*thread))
        };
        let (loads, stores) = ours().fold((0.0, 0.0), |sum, thread| {
            (sum.0 + thread.1, sum.1 + thread.2)
        });
        format!(
            "{} and {} by {}",
            several(loads.round_ties_even() as u64, "load"),
            several(stores.round_ties_even() as u64, "store"),
            several(ours().count() as u64, "thread")
        )
    }

    pub fn plan_teams(&self) -> Vec<Team> {
        self.teams
            .iter()
            .map(|(name, _, threads)| {
                let threads_table = &self.tables.threads;
                let start = threads
                    .iter()
                    .find_map(|thread| threads_table.get(thread.0 as usize)?.start);
                let module =
                    start.and_then(|(module, _)| self.tables.modules.get(module.0 as usize));
                Team {
                    name: name.clone(),
                    threads: u32::try_from(threads.len()).unwrap_or(u32::MAX),
                    module: module.map_or_else(String::new, |module| module.file_name().to_owned()),
                    build_id: module.map_or_else(String::new, |module| module.build_id.clone()),
                    offset: start.map_or(0, |(_, offset)| offset),
                }
            })
            .collect()
    }
}

/// Makes a plan. Objects that are not worth placing, cannot be recognised again, or are where they
/// should be by first touch, have no decision.
pub fn decide(policy: Policy, input: &Input, parameters: &Parameters) -> Plan {
    if policy == Policy::Auto {
        return auto::decide(input, parameters);
    }
    let context = Context::new(input);
    let mut decisions: Vec<(Vec<String>, Decision)> = Vec::new();
    let mut left: Vec<(Vec<String>, Decision)> = Vec::new();
    for group in &input.attribution.objects {
        if group.kind == ObjectKind::Code || !worth_deciding(&context, group, parameters) {
            continue;
        }
        let Some(subject) = subject::subject(context.tables, group) else {
            continue;
        };
        let names = subject::names(&subject);
        let decided = decide_group(policy, &context, group, &subject, parameters);
        if decided.is_empty() && group.kind == ObjectKind::Heap {
            let apart = auto::first_touched(&context, group, subject, parameters);
            left.push((names.clone(), apart));
        }
        for decision in decided {
            decisions.push((names.clone(), decision));
        }
    }
    // Objects in a heap that is placed would be a part of it.
    if decisions
        .iter()
        .any(|(_, decision)| decision.subject.is_brk_heap())
    {
        decisions.extend(left);
    }
    Plan {
        program: input.program.clone(),
        policy: policy.as_str().to_owned(),
        machine: input.machine.name.clone(),
        page_bytes: context.page_bytes,
        threads: None,
        teams: context.plan_teams(),
        decisions: named_apart(decisions),
        live: None,
        phases: Vec::new(),
    }
}

/// Has the process accesses to a group that matter, and pages?
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
    let local_after = Layout::new(&placement, context, group.size_bytes).map_or(0.0, |layout| {
        under_layout::<Tally>(context, group, &layout).local_share()
    });
    Decision {
        name: String::new(),
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
        },
    }
}

pub(crate) fn decide_group(
    policy: Policy,
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    parameters: &Parameters,
) -> Vec<Decision> {
    let (accesses, cost_share) = context.part(group);
    let counters = context.counters(group);
    let instances = match policy {
        Policy::Interleave => Instances::Together,
        _ => instances::of(context, group, parameters),
    };
    let runs = match instances {
        Instances::OwnAllocator => return Vec::new(),
        Instances::Runs(runs) => runs,
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
                "{}, of which {first} to {last} are used by one thread ({:.0} % of their accesses)",
                several(group.instances, "instance"),
                100.0 * run.share,
            );
            Some(Decision {
                name: String::new(),
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
                },
            })
        })
        .collect()
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
        let touches = FirstTouches::of(group);
        let near = effect::share_near(context, group, true, |page| touches.toucher(page));
        return near.is_some_and(|near| near >= parameters.first_touch_local_min);
    }
    let Some(before) = under_first_touch::<Tally>(context, group) else {
        return false;
    };
    let Some(layout) = Layout::new(placement, context, group.size_bytes) else {
        return false;
    };
    let after: Tally = under_layout(context, group, &layout);
    match equation {
        Equation::Uniform => before.local_share() + parameters.slack >= after.local_share(),
        Equation::HopSensitive => {
            before.weighted * after.accesses
                <= after.weighted * before.accesses * (1.0 + parameters.slack)
        }
    }
}

/// Gives every decision the shortest of its names that tells it from the others.
pub(crate) fn named_apart(decisions: Vec<(Vec<String>, Decision)>) -> Vec<Decision> {
    let subjects: Vec<_> = decisions
        .iter()
        .map(|(names, decision)| (names.as_slice(), &decision.subject))
        .collect();
    let names = subject::names_apart(&subjects);
    decisions
        .into_iter()
        .zip(names)
        .map(|((_, decision), name)| Decision { name, ..decision })
        .collect()
}
