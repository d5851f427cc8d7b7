//! What may be done with each object.

use nearpage_attribution::ObjectGroup;
use nearpage_machine::NodeId;
use nearpage_plan::{Decision, Owner, Placement, Plan, Start, Subject};
use nearpage_recording::ObjectKind;

use crate::first_touch::FirstTouches;
use crate::holder::{Holder, Layout};
use crate::instances::{self, Instances};
use crate::interleave;
use crate::place::accesses;
use crate::plan::{Context, Input, decided, named_apart, worth_deciding};
use crate::under::assumed_toucher;
use crate::{Parameters, Policy, subject};

/// A choice for each object, by number; 0 leaves it alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Selection(Vec<usize>);

impl Selection {
    /// The choice for an object.
    pub fn choice(&self, object: usize) -> usize {
        self.0[object]
    }

    /// The same but for one object.
    pub fn with(&self, object: usize, choice: usize) -> Self {
        let mut other = self.clone();
        other.0[object] = choice;
        other
    }
}

/// A rule that may treat all objects alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Left,
    Pattern,
    Block,
    Whole,
    NextTouch,
    Interleave,
    Weighted,
    HopSensitive,
    Uniform,
    Replicate,
}

/// One of the things that may be done with an object.
#[derive(Clone, Debug)]
struct Choice {
    kind: Kind,
    /// None: it is left to first touch.
    decisions: Vec<Decision>,
    /// What it owes to chance, in nanoseconds of the program's time.
    chance_ns: f64,
    /// Two standard errors of what it saves, in nanoseconds of the program's time.
    error_ns: f64,
}

/// An object of the recording with its choices.
pub(crate) struct Object {
    /// Position in the attribution's objects.
    pub group: usize,
    names: Vec<String>,
    /// Samples of its accesses.
    samples: f64,
    /// Those of `at_once`, then others of them from the second thread on.
    choices: Vec<Choice>,
    at_once: usize,
}

/// Objects worth deciding about, by cost, and what may be done with each.
pub struct Alternatives<'a> {
    plan: Plan,
    pub(crate) objects: Vec<Object>,
    machine: &'a nearpage_machine::Machine,
}

impl<'a> Alternatives<'a> {
    /// `of_samples`: they will be judged by samples, which do not say in what order accesses were made.
    pub(crate) fn new(
        context: &Context<'a>,
        input: &Input<'a>,
        parameters: &Parameters,
        of_samples: bool,
    ) -> Self {
        let mut objects = Vec::new();
        // Where the machine knows no latencies, those that its time is modelled with.
        let timing = input.machine.timing();
        let latency_ns =
            timing.map_or_else(|_| context.weights.clone(), |timing| timing.latency_ns);
        for (position, group) in input.attribution.objects.iter().enumerate() {
            if !worth_deciding(context, group, parameters) {
                continue;
            }
            let Some(subject) = subject::subject(context.tables, group) else {
                continue;
            };
            let stores_most = match of_samples {
                true => REPLICATED_STORES_MAX,
                false => 1.0,
            };
            let is_code = group.kind == ObjectKind::Code;
            // Samples do not say where a file's pages are.
            if is_code && (of_samples || !parameters.replicas) {
                continue;
            }
            let mut choices = match is_code {
                true => vec![left(), copied(context, group, &subject)],
                false => choices(
                    context,
                    group,
                    &subject,
                    parameters,
                    &latency_ns,
                    stores_most,
                ),
            };
            if parameters.phases && !of_samples {
                choices.extend(next_touch(context, group, &subject));
            }
            let at_once = choices.len();
            if at_once > 1 {
                if parameters.phases {
                    for start in STARTS_LATER {
                        if of_samples && start == Start::Parallel {
                            continue;
                        }
                        let more = choices[..at_once]
                            .iter()
                            .filter_map(|c| later(group, c, start));
                        let more: Vec<Choice> = more.collect();
                        choices.extend(more);
                    }
                }
                objects.push(Object {
                    group: position,
                    names: subject::names(&subject),
                    samples: group.accesses() / group.affinity.sample_weight.max(1.0),
                    choices,
                    at_once,
                });
            }
        }
        Self {
            plan: Plan {
                program: input.program.clone(),
                policy: Policy::Auto.as_str().to_owned(),
                machine: input.machine.name.clone(),
                page_bytes: context.page_bytes,
                teams: context.plan_teams(),
                decisions: Vec::new(),
            },
            objects,
            machine: input.machine,
        }
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.objects.len()
    }

    /// The machine that is decided for.
    pub fn machine(&self) -> &'a nearpage_machine::Machine {
        self.machine
    }

    /// How many choices there are for an object.
    pub fn choices(&self, object: usize) -> usize {
        self.objects[object].choices.len()
    }

    /// How many of them, the first, differ in more than their [`Start`].
    pub fn at_once(&self, object: usize) -> usize {
        self.objects[object].at_once
    }

    /// The same choice with each other [`Start`] that it may have.
    pub fn later(&self, object: usize, choice: usize) -> impl Iterator<Item = usize> {
        let Object {
            choices, at_once, ..
        } = &self.objects[object];
        let wanted = placements(&choices[choice].decisions);
        (*at_once..choices.len())
            .filter(move |&later| placements(&choices[later].decisions) == wanted)
    }

    /// The choice of pages near who uses them next.
    pub fn next_touch(&self, object: usize) -> Option<usize> {
        let choices = &self.objects[object].choices;
        choices
            .iter()
            .position(|choice| choice.kind == Kind::NextTouch)
    }

    /// All that can be near who uses it next.
    pub fn all_next_touch(&self) -> Selection {
        let of = |object| self.next_touch(object).unwrap_or(0);
        Selection((0..self.objects.len()).map(of).collect())
    }

    /// For each other [`Start`], a selection with all that may have it.
    pub fn all_later(&self, selection: &Selection) -> impl Iterator<Item = Selection> {
        STARTS_LATER.into_iter().map(|start| {
            let begins = |object: usize, choice: usize| {
                let decisions = self.decisions(object, choice);
                decisions.iter().all(|decision| decision.start == start)
            };
            let of = |(object, &choice): (usize, &usize)| {
                let mut later = self.later(object, choice);
                later.find(|&later| begins(object, later)).unwrap_or(choice)
            };
            Selection(selection.0.iter().enumerate().map(of).collect())
        })
    }

    /// Decisions about an object.
    pub(crate) fn decisions(&self, object: usize, choice: usize) -> &[Decision] {
        &self.objects[object].choices[choice].decisions
    }

    /// Two standard errors of what a choice for an object saves, in nanoseconds of the program's time.
    pub fn sampling_error_ns(&self, object: usize, choice: usize) -> f64 {
        self.objects[object].choices[choice].error_ns
    }

    /// Two standard errors of whatever is saved by an object's accesses, queues included, as a share of it: it
    /// grows with their number, which is a count of samples.
    pub fn sampling_error(&self, object: usize) -> f64 {
        2.0 / self.objects[object].samples.max(1.0).sqrt()
    }

    /// What the choices of a selection owe to chance: they were made by what they are judged by.
    pub fn chance_ns(&self, selection: &Selection) -> f64 {
        let objects = self.objects.iter().enumerate();
        objects
            .map(|(number, object)| object.choices[selection.choice(number)].chance_ns)
            .sum()
    }

    /// Everything is left alone.
    pub fn nothing(&self) -> Selection {
        Selection(vec![0; self.objects.len()])
    }

    /// Selections that treat all objects by one rule, as far as it says something about them.
    pub fn alike(&self) -> impl Iterator<Item = Selection> {
        let kinds = [
            Kind::Pattern,
            Kind::Block,
            Kind::NextTouch,
            Kind::Interleave,
            Kind::HopSensitive,
            Kind::Uniform,
            Kind::Replicate,
        ];
        kinds.into_iter().map(|kind| {
            let of = |object: &Object| {
                let choices = &object.choices;
                choices.iter().position(|choice| choice.kind == kind)
            };
            let choices = self.objects.iter().map(|object| of(object).unwrap_or(0));
            Selection(choices.collect())
        })
    }

    /// The plan of a selection; `worth` has the share of the time that the decision about an object
    /// saves, where it is known.
    pub fn plan(&self, selection: &Selection, worth: impl Fn(usize) -> Option<f64>) -> Plan {
        let mut decisions = Vec::new();
        for (number, object) in self.objects.iter().enumerate() {
            for decision in self.decisions(number, selection.choice(number)) {
                let mut decision = decision.clone();
                if let Some(worth) = worth(number) {
                    let percent = 100.0 * worth;
                    decision.why += &format!("; predicted to save {percent:.1} % of the time");
                }
                decisions.push((object.names.clone(), decision));
            }
        }
        Plan {
            decisions: named_apart(decisions),
            ..self.plan.clone()
        }
    }
}

/// Other starts than an object's allocation.
const STARTS_LATER: [Start; 2] = [Start::SecondThread, Start::Parallel];

/// Most stores among accesses to what is worth copying, where samples do not say to which pages they are:
/// each takes all copies but one away again.
const REPLICATED_STORES_MAX: f64 = 0.001;

fn left() -> Choice {
    Choice {
        kind: Kind::Left,
        decisions: Vec::new(),
        chance_ns: 0.0,
        error_ns: 0.0,
    }
}

/// Code for all nodes that run it.
fn copied(context: &Context, group: &ObjectGroup, subject: &Subject) -> Choice {
    let rule = "a copy for each node that runs it";
    let place = Placement::Replicate;
    Choice {
        kind: Kind::Replicate,
        decisions: vec![decided(context, group, subject.clone(), place, rule)],
        ..left()
    }
}

/// Everything that may be done with a group, without repetitions; leaving it alone first.
fn choices(
    context: &Context,
    group: &ObjectGroup,
    subject: &Subject,
    parameters: &Parameters,
    latency_ns: &[Vec<f64>],
    stores_most: f64,
) -> Vec<Choice> {
    let mut choices = vec![left()];
    let sample_ns = sample_ns(latency_ns, group);
    let by_page = group.affinity.cells.chunk_by(|a, b| a.page == b.page);
    let pages = by_page.count();
    let mut offer = |kind, decisions: Vec<Decision>| {
        let same = |choice: &Choice| placements(&choice.decisions) == placements(&decisions);
        // Rules that agree are one choice.
        if !choices.iter().any(same) {
            let by_page = |decision: &Decision| matches!(decision.placement, Placement::Runs(_));
            let chosen = match decisions.iter().any(by_page) {
                true => pages,
                false => 0,
            };
            choices.push(Choice {
                kind,
                chance_ns: chosen as f64 * sample_ns,
                error_ns: sampling_error_ns(context, group, &decisions, latency_ns),
                decisions,
            });
        }
    };
    let by = |policy| crate::plan::decide_group(policy, context, group, subject, parameters);
    offer(Kind::Pattern, by(Policy::Object));
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
        let team = context.team("");
        let block = team.filter(|threads| {
            threads.len() > 1 && group.size_bytes >= threads.len() as u64 * context.page_bytes
        });
        one(
            Kind::Block,
            block.map(|_| Placement::Block {
                team: String::new(),
            }),
            "a share for each thread",
        );
        one(
            Kind::Whole,
            dominant(context, group).map(Placement::Whole),
            "all of it near the thread that uses it most",
        );
        one(
            Kind::Interleave,
            Some(interleave::everywhere()),
            "over all nodes",
        );
        one(
            Kind::Weighted,
            weighted(context, group),
            "over the nodes as its users are spread",
        );
        let stores: f64 = cells(group).map(|cell| f64::from(cell.stores)).sum();
        let all: f64 = cells(group).map(accesses).sum();
        if parameters.replicas && stores <= stores_most * all {
            one(
                Kind::Replicate,
                Some(Placement::Replicate),
                "a copy for each node that reads it",
            );
        }
    }
    offer(Kind::HopSensitive, by(Policy::HopSensitive));
    offer(Kind::Uniform, by(Policy::Uniform));
    choices
}

/// What decisions do, whatever they say of it.
fn placements(decisions: &[Decision]) -> Vec<(&Subject, &Placement)> {
    decisions
        .iter()
        .map(|decision| (&decision.subject, &decision.placement))
        .collect()
}

/// Each page near the thread that is the first to use it when a second one runs, for objects that one thread
/// fills before.
fn next_touch(context: &Context, group: &ObjectGroup, subject: &Subject) -> Option<Choice> {
    if group.affinity.initialisation.is_empty() {
        return None;
    }
    let rule = "each page near the thread that uses it first when a second thread runs";
    let place = Placement::FirstTouch;
    Some(Choice {
        kind: Kind::NextTouch,
        decisions: vec![Decision {
            start: Start::SecondThread,
            ..decided(context, group, subject.clone(), place, rule)
        }],
        chance_ns: 0.0,
        error_ns: 0.0,
    })
}

/// The same choice with another start, for objects that one thread fills before.
fn later(group: &ObjectGroup, choice: &Choice, start: Start) -> Option<Choice> {
    let [decision] = choice.decisions.as_slice() else {
        return None;
    };
    let same = decision.start == start || decision.placement == Placement::Replicate;
    if same || group.affinity.initialisation.is_empty() {
        return None;
    }
    Some(Choice {
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

/// The thread with the most accesses.
fn dominant(context: &Context, group: &ObjectGroup) -> Option<Owner> {
    let known = group
        .threads
        .iter()
        .filter(|(thread, ..)| context.places.knows(*thread));
    let most = known.max_by(|a, b| (a.1 + a.2).total_cmp(&(b.1 + b.2)).then(b.0.cmp(&a.0)));
    context.owner(most?.0)
}

/// Accesses differ less than this between nodes: they are even.
const EVEN: f64 = 0.25;
/// Largest weight of a node.
const WEIGHT_MAX: f64 = 8.0;

/// Interleaving with weights by node, as accesses come from them; none where they come evenly from
/// all, or from one alone.
fn weighted(context: &Context, group: &ObjectGroup) -> Option<Placement> {
    let with_memory = context.machine.nodes_with_memory();
    let mut by_node: Vec<(NodeId, f64)> = with_memory.iter().map(|&node| (node, 0.0)).collect();
    for cell in cells(group) {
        let reader = context.node_position(cell.thread);
        let node = reader.and_then(|at| context.machine.nodes.get(at))?.id;
        if let Some(entry) = by_node.iter_mut().find(|entry| entry.0 == node) {
            entry.1 += accesses(cell);
        }
    }
    let most = by_node.iter().map(|node| node.1).fold(0.0, f64::max);
    let least = by_node.iter().map(|node| node.1).fold(f64::MAX, f64::min);
    if most <= 0.0 || least >= (1.0 - EVEN) * most {
        return None;
    }
    let weight = |count: f64| (WEIGHT_MAX * count / most).round() as u32;
    let nodes: Vec<(NodeId, u32)> = by_node
        .into_iter()
        .map(|(node, count)| (node, weight(count)))
        .filter(|node| node.1 > 0)
        .collect();
    (nodes.len() > 1).then_some(Placement::Interleave { nodes })
}

/// What placing the accesses of one sample well can save of the program's time, were they on the
/// farthest node.
fn sample_ns(latency_ns: &[Vec<f64>], group: &ObjectGroup) -> f64 {
    let threads = group.threads.len().max(1) as f64;
    let weight = group.affinity.sample_weight.max(1.0);
    weight * super::model::misses_an_access(latency_ns, group) * range_ns(latency_ns) / threads
}

/// From the nearest to the farthest memory.
fn range_ns(latency_ns: &[Vec<f64>]) -> f64 {
    let latencies = latency_ns.iter().flatten().copied();
    let most = latencies.clone().fold(0.0, f64::max);
    let least = latencies.fold(f64::MAX, f64::min);
    most - least
}

/// Two standard errors of what decisions save: each sample of an access that they make faster or slower
/// might as well not have been taken, or twice. What they leave as it is is no uncertainty.
fn sampling_error_ns(
    context: &Context,
    group: &ObjectGroup,
    decisions: &[Decision],
    latency_ns: &[Vec<f64>],
) -> f64 {
    let each_ns = |reader: usize, holder: Holder| -> f64 {
        let mut sum = 0.0;
        holder.serve(context, reader, |memory, share| {
            sum += share * latency_ns[reader][memory];
        });
        sum
    };
    let together = match decisions {
        [decision] => Layout::new(&decision.placement, context, group.size_bytes),
        _ => None,
    };
    let touches = FirstTouches::of(group);
    let assumed = assumed_toucher(context, group);
    let unit = group.affinity.page_bytes;
    let range_ns = range_ns(latency_ns);
    let square = |cell: &nearpage_attribution::Cell| {
        let Some(reader) = context.node_position(cell.thread) else {
            return 0.0;
        };
        let before = touches.toucher(cell.page).or(assumed);
        let changed = match (&together, before) {
            (Some(layout), Some(before)) => {
                let after = layout.holder(u64::from(cell.page) * unit + unit / 2);
                each_ns(reader, Holder::Thread(before)) - each_ns(reader, after)
            }
            _ => range_ns,
        };
        accesses(cell) * changed * changed
    };
    let squares: f64 = cells(group).map(square).sum();
    let threads = group.threads.len().max(1) as f64;
    let weight = group.affinity.sample_weight.max(1.0);
    2.0 * (weight * squares).sqrt() * super::model::misses_an_access(latency_ns, group) / threads
}
