//! Objects with their choices, and selections of them.

use nearpage_plan::{Decision, Plan, Start};
use nearpage_recording::ObjectKind;

use super::choice::{
    Choice, Kind, REPLICATED_STORES_MAX, choices, copied, later, left, next_touch, placements,
};
use super::inputs;
use crate::plan::{Context, Input, named_apart, worth_deciding};
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

/// An object of the recording with its choices.
pub(crate) struct Object {
    /// Position in the attribution's objects.
    pub group: usize,
    names: Vec<String>,
    /// Samples of its accesses.
    samples: f64,
    /// Those of `at_once`, then others of them from the second thread on, then what would become of some of
    /// them with an input of another size, which no plan says.
    choices: Vec<Choice>,
    at_once: usize,
    /// By choice: the one that it would become.
    resized: Vec<usize>,
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
            // Code is copied or left: a plan says nothing else of it.
            if parameters.phases && !of_samples && !is_code {
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
                for choice in &mut choices {
                    choice.slower_ns =
                        inputs::slower_ns(context, group, &choice.decisions, &latency_ns);
                }
                let mut resized: Vec<usize> = (0..choices.len()).collect();
                for number in 0..resized.len() {
                    if let Some(other) = inputs::resized(context, &choices[number]) {
                        resized[number] = choices.len();
                        choices.push(other);
                    }
                }
                objects.push(Object {
                    group: position,
                    names: subject::names(&subject),
                    samples: group.accesses() / group.affinity.sample_weight.max(1.0),
                    choices,
                    at_once,
                    resized,
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

    /// What a selection would become with an input of another size.
    pub fn resized(&self, selection: &Selection) -> Selection {
        let of = |(object, &choice): (&Object, &usize)| object.resized[choice];
        Selection(self.objects.iter().zip(&selection.0).map(of).collect())
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

    /// What the choices of a selection make slower, in nanoseconds of the program's time.
    pub fn slower_ns(&self, selection: &Selection) -> f64 {
        let objects = self.objects.iter().zip(&selection.0);
        objects
            .map(|(object, &choice)| object.choices[choice].slower_ns)
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
