//! The planner's one entry point: from a recording and a machine, it decides a plan for each program, or predicts the
//! effect of an existing plan.
//!
//! Every command that shows a plan uses this entry point and gets a [`DecidedPlan`], so all give the same answer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use nearpage_attribution::{Attribution, Confidence, Names, Sampling};
use nearpage_machine::{Assumed, Machine, NodeId, ThreadPlacement};
use nearpage_plan::{Decision, Placement, Plan, PlanPrediction, Program, Team};
use nearpage_recording::Recording;

use crate::analysis::Analysis;
use crate::auto::{Model, SearchProgress, Times};
use crate::confidence::{Tested, leave_doubtful, tested};
use crate::context::{Context, Input};
use crate::decide::decide;
use crate::decided::{DecidedPlan, Judged, Layout, PhaseDecisions, PlanTime, Threads};
use crate::error::Error;
use crate::interval::{self, Uncertainty};
use crate::layout::{has_recorded_cpus, thread_nodes};
use crate::parameters::{Parameters, Policy};
use crate::prediction::{Prediction, predict};
use crate::programs::Programs;
use crate::replay::{Replays, is_stripped};
use crate::simple_policies;
use crate::translated::translated;
use crate::withdrawal::{Saving, withdraw};

/// One recording on one machine: decides for its programs, and predicts what plans do.
pub struct Planner<'a> {
    recording: &'a Recording,
    /// The accesses, with the weights of few heavy samples evened out.
    attribution: Cow<'a, Attribution>,
    names: Names<'a>,
    machine: &'a Machine,
    assumed: Option<Assumed>,
    nodes: Vec<NodeId>,
    threads: Threads,
    /// True if threads run where they were recorded, so that a replay gives their time.
    is_as_recorded: bool,
    progress: Arc<SearchProgress>,
}

impl<'a> Planner<'a> {
    /// `threads`: the layout to assume; none: threads stay where they were recorded if the machine has the recorded
    /// nodes, and are laid out compactly otherwise.
    pub fn new(
        recording: &'a Recording,
        attribution: &'a Attribution,
        machine: &'a Machine,
        threads: Option<ThreadPlacement>,
    ) -> Self {
        // Whether the main thread works beside a team follows from the same weights as the plan's teams.
        let evened = attribution.evened();
        let attribution = evened.map_or(Cow::Borrowed(attribution), Cow::Owned);
        let (placement, why) = match threads {
            Some(asked) => (asked, None),
            None if recording.machine.node_ids() == machine.node_ids()
                && has_recorded_cpus(recording, &attribution, machine) =>
            {
                (ThreadPlacement::None, None)
            }
            None => {
                let why = format!("recorded on other nodes than those of {}", machine.name);
                (ThreadPlacement::Compact, Some(why))
            }
        };
        let of = |placement| {
            let threads = &recording.tables.threads;
            thread_nodes(&attribution, threads, machine, placement, None)
        };
        let nodes = of(placement);
        let ran = |thread: usize| {
            let totals = attribution.threads.get(thread);
            totals.is_some_and(|totals| !totals.cpus.is_empty())
        };
        let is_as_recorded = placement == ThreadPlacement::None || {
            let recorded = of(ThreadPlacement::None);
            (0..nodes.len()).all(|at| !ran(at) || nodes[at] == recorded[at])
        };
        let used = (0..nodes.len()).filter(|&at| ran(at));
        let used: BTreeSet<NodeId> = used.map(|at| nodes[at]).collect();
        let with_cpus = machine.nodes.iter().filter(|node| !node.cpus.is_empty());
        Self {
            recording,
            names: Names::new(&recording.tables, &attribution.objects),
            machine,
            assumed: machine.with_assumed_bandwidth(),
            threads: Threads {
                layout: match placement {
                    ThreadPlacement::None => Layout::AsRecorded,
                    ThreadPlacement::Compact => Layout::Compact,
                    ThreadPlacement::Scatter => Layout::Scatter,
                },
                why,
                threads: (0..nodes.len()).filter(|&at| ran(at)).count(),
                nodes_used: used.len(),
                nodes: with_cpus.count(),
            },
            nodes,
            attribution,
            is_as_recorded,
            progress: Arc::default(),
        }
    }

    /// The progress of the search for placements.
    pub fn progress(&self) -> Arc<SearchProgress> {
        self.progress.clone()
    }

    /// A planner for an analysis.
    pub fn of(
        analysis: &'a Analysis,
        machine: &'a Machine,
        threads: Option<ThreadPlacement>,
    ) -> Self {
        Self::new(&analysis.recording, &analysis.attribution, machine, threads)
    }

    /// The node of each thread, by [`nearpage_recording::ThreadIndex`].
    pub fn thread_nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The assumed placement of threads.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// The inputs of decisions: one for each executable that bears some of the cost, the costliest first.
    /// The busiest of several processes of one executable represents all of them.
    ///
    /// # Errors
    /// [`Error::NoThreads`].
    pub fn programs(&self) -> Result<Vec<Input<'_>>, Error> {
        let programs = Programs {
            attribution: &self.attribution,
            tables: &self.recording.tables,
            metadata: &self.recording.metadata,
        };
        let found = programs.find();
        if found.is_empty() {
            return Err(Error::NoThreads(self.recording.folder.clone()));
        }
        let input = |(pid, program): (u32, Program)| Input {
            attribution: &self.attribution,
            tables: &self.recording.tables,
            names: &self.names,
            machine: self.machine,
            thread_nodes: &self.nodes,
            pid,
            program,
            page_bytes: self.machine.page_bytes,
        };
        Ok(found.into_iter().map(input).collect())
    }

    /// The machine on which times are predicted, with assumptions where figures are unknown.
    fn modelled(&self) -> &Machine {
        let assumed = self.assumed.as_ref();
        assumed.map_or(self.machine, |assumed| &assumed.machine)
    }

    /// The judge that replays the recording; none without a trace that can be replayed with the assumed placement of
    /// threads.
    pub(crate) fn replays(&self, runtime_scale: f64) -> Result<Option<Replays<'_>>, Error> {
        match self.is_as_recorded && self.machine.nodes_with_memory().len() > 1 {
            true => {
                let replays = Replays::of(self.recording, self.modelled(), runtime_scale)?;
                Ok(replays.map(|replays| replays.followed_by(self.progress.clone())))
            }
            false => Ok(None),
        }
    }

    /// Decides by each policy for each program of the recording, the costliest first.
    ///
    /// # Errors
    /// The recording has no threads, or cannot be read.
    pub fn decide(
        &self,
        policies: &[Policy],
        parameters: &Parameters,
    ) -> Result<Vec<DecidedPlan>, Error> {
        let programs = self.programs()?;
        // Policies share the results of replays.
        let mut replays = self.replays(parameters.runtime_scale)?;
        let mut decided = Vec::new();
        for (&policy, input) in policies
            .iter()
            .flat_map(|one| programs.iter().map(move |input| (one, input)))
        {
            let limit_ns = f64::INFINITY;
            let one = self.decide_within(limit_ns, policy, input, parameters, replays.as_mut())?;
            decided.extend(one);
        }
        Ok(decided)
    }

    /// The plans of one policy for each of [`Self::programs`], without predictions.
    ///
    /// # Errors
    /// The recording has no threads, or cannot be read.
    pub fn plans(&self, policy: Policy, parameters: &Parameters) -> Result<Vec<Plan>, Error> {
        let mut replays = match policy {
            Policy::Auto => self.replays(parameters.runtime_scale)?,
            _ => None,
        };
        let programs = self.programs()?;
        let mut plans = Vec::new();
        for input in &programs {
            let limit_ns = f64::INFINITY;
            let plan = plan_within(limit_ns, policy, input, parameters, replays.as_mut())?;
            plans.extend(plan.map(|plan| self.remove_unsure(plan, policy, input, parameters).0));
        }
        Ok(plans)
    }

    /// Decides for one program; `None` if replays show that it takes longer than `limit_ns` under all simple rules.
    pub(crate) fn decide_within(
        &self,
        limit_ns: f64,
        policy: Policy,
        input: &Input,
        parameters: &Parameters,
        mut replays: Option<&mut Replays<'_>>,
    ) -> Result<Option<DecidedPlan>, Error> {
        let plan = plan_within(limit_ns, policy, input, parameters, replays.as_deref_mut())?;
        let Some(plan) = plan else { return Ok(None) };
        let is_replayed = replays.is_some();
        let of_size = match policy {
            Policy::Auto if !is_replayed => note_of_size(&plan, input, parameters),
            _ => None,
        };
        let (plan, tested, saving) = self.remove_unsure(plan, policy, input, parameters);
        let is_of_samples = self.recording.metadata.tracing.is_none();
        let of_others = match policy {
            Policy::Auto if is_of_samples => simple_policies::note(&plan, input, parameters),
            _ => None,
        };
        let known = saving.iter().flatten().next().copied();
        let mut decided = self.predicted(plan, input, parameters, replays, known)?;
        for object in &mut decided.prediction.objects {
            let known = tested.get(object.group).copied().flatten();
            object.confidence = known.map(|known| known.confidence.share);
        }
        let known = tested.into_iter().flatten();
        let known: Vec<Confidence> = known.map(|one| one.confidence).collect();
        let sampling = Sampling::of(&self.recording.metadata);
        let remedy = sampling.and_then(|sampling| sampling.remedy(&known, "place"));
        decided.notes.extend(saving.and_then(Result::err));
        decided.notes.extend(remedy);
        decided.notes.extend(of_size);
        decided.notes.extend(of_others);
        let program = &input.program.executable;
        if parameters.phases && is_stripped(self.recording, &input.program) {
            decided.notes.push(format!(
                "{program} is stripped: no phase is seen that begins with a function of its own; one with its symbols \
                 shows them"
            ));
        }
        if parameters.online_migration && policy == Policy::Auto && !is_replayed {
            decided.notes.push(format!(
                "--online-migration: {} cannot be replayed on {}, so that nothing is known of what online migration is worth",
                self.recording.folder.display(),
                self.machine.name
            ));
        }
        Ok(Some(decided))
    }

    /// Removes decisions from a plan for which there are too few samples. Also returns how sure it is about each object
    /// and, for a plan of `auto`, about the saving. A plan of a trace, which has all accesses, stays as it is.
    fn remove_unsure(
        &self,
        mut plan: Plan,
        policy: Policy,
        input: &Input,
        parameters: &Parameters,
    ) -> (Plan, Vec<Option<Tested>>, Option<Saving>) {
        if self.recording.metadata.tracing.is_some() {
            return (plan, Vec::new(), None);
        }
        let found = tested(&plan, policy, input, parameters);
        leave_doubtful(&mut plan, &found, input, parameters);
        let doubted = || withdraw(&mut plan, input, parameters);
        let saving = (policy == Policy::Auto).then(doubted).flatten();
        (plan, found, saving)
    }

    /// Predicts the effect of a plan that was read from a file or changed by hand. The plan applies to the program that
    /// it names, or to the costliest program if the recording has none of that name.
    ///
    /// # Errors
    /// The recording has no threads or cannot be read, or the plan names nodes or teams that do not exist.
    pub fn predict(&self, plan: Plan, parameters: &Parameters) -> Result<DecidedPlan, Error> {
        let programs = self.programs()?;
        let is_for = |input: &&Input| input.program.executable == plan.program.executable;
        let input = programs.iter().find(is_for).unwrap_or(&programs[0]);
        let mut replays = self.replays(parameters.runtime_scale)?;
        self.predicted(plan, input, parameters, replays.as_mut(), None)
    }

    /// Predicts a plan; `known` is how sure the time is, if that was computed already.
    fn predicted(
        &self,
        mut plan: Plan,
        input: &Input,
        parameters: &Parameters,
        replays: Option<&mut Replays<'_>>,
        known: Option<Uncertainty>,
    ) -> Result<DecidedPlan, Error> {
        let translated = is_of_other_run(&plan, input).then(|| translated(&plan, input));
        let translated = translated.transpose()?;
        let here = translated
            .as_ref()
            .map_or(&plan, |translated| &translated.plan);
        let mut prediction = predict(here, input);
        let known = known.filter(|_| translated.is_none());
        let times = self.times(&plan, here, input, parameters, replays, known)?;
        if let Some(translated) = &translated {
            translated.name_decisions(&plan, &mut prediction);
        }
        let time = times.map(|(by, [recorded, scaled], uncertainty)| PlanTime {
            by,
            first_touch_ns: recorded.first_touch_ns,
            planned_ns: recorded.planned_ns,
            runtime_scale: parameters.runtime_scale,
            scaled_first_touch_ns: scaled.first_touch_ns,
            scaled_planned_ns: scaled.planned_ns,
            uncertainty,
        });
        note_effects(&mut plan, &prediction);
        let predicted = PlanPrediction {
            local_before: prediction.first_touch.local_share,
            local_after: prediction.planned.local_share,
            first_touch_ns: time.map(|time| time.scaled_first_touch_ns),
            planned_ns: time.map(|time| time.scaled_planned_ns),
        };
        plan.predicted = (prediction.accesses > 0.0).then_some(predicted);
        let warning = plan.predicted.and_then(|predicted| predicted.warning());
        let changes_something = !plan.decisions.is_empty()
            || !plan.phases.is_empty()
            || plan.online_migration.is_some();
        Ok(DecidedPlan {
            version: nearpage_recording::JSON_VERSION,
            file: None,
            program: input.program.executable.clone(),
            machine: self.machine.name.clone(),
            policy: plan.policy.clone(),
            threads: self.threads.clone(),
            assumed: self
                .assumed
                .as_ref()
                .filter(|_| time.is_some())
                .map(|assumed| assumed.words.clone()),
            time,
            online_migration: plan
                .online_migration
                .as_ref()
                .map(|online_migration| online_migration.parameters.clone()),
            phases: plan.phases.iter().map(PhaseDecisions::from).collect(),
            warnings: warning.filter(|_| changes_something).into_iter().collect(),
            notes: self.threads.notes(
                self.machine,
                self.recording.metadata.tracing.is_some() && self.is_as_recorded,
            ),
            prediction,
            plan,
        })
    }

    /// Predicts a plan's effect on the time, and how sure the prediction is; `here` is the plan in terms of this
    /// recording. `None` if no prediction is possible.
    fn times(
        &self,
        plan: &Plan,
        here: &Plan,
        input: &Input,
        parameters: &Parameters,
        replays: Option<&mut Replays<'_>>,
        known: Option<Uncertainty>,
    ) -> Result<Option<PredictedTimes>, Error> {
        let model = Model::new(input, parameters);
        let modelled = model.as_ref().map(|model| model.expected_times(here));
        if let Some(replays) = replays {
            let replayed = replays.times(plan)?;
            let modelled = modelled.as_ref().map(|(modelled, _)| &modelled[0]);
            let uncertainty = interval::of_replay(&replayed[0], modelled);
            return Ok(Some((Judged::Replay, replayed, uncertainty)));
        }
        Ok(modelled.map(|modelled| {
            let uncertainty = match (known, &self.recording.metadata.tracing) {
                (Some(known), _) => known,
                (None, None) => interval::of_samples(here, input, parameters, &modelled),
                (None, Some(_)) => interval::of_all(input, parameters, &modelled.0),
            };
            (Judged::Model, modelled.0, uncertainty)
        }))
    }
}

/// How times were predicted, the times of a run as long as the recorded one and of a longer one, and how sure they are.
type PredictedTimes = (Judged, [Times; 2], Uncertainty);

/// True if a plan was made from a run with other arguments or team sizes: patterns over threads are then dealt anew.
fn is_of_other_run(plan: &Plan, input: &Input) -> bool {
    let own = Context::new(input).plan_teams();
    let other_size = |team: &Team| {
        let mut same = own.iter().filter(|one| one.name == team.name);
        same.any(|one| one.threads != team.threads)
    };
    let [planned, recorded] = [&plan.program.arguments, &input.program.arguments];
    let is_known = !planned.is_empty() && !recorded.is_empty();
    is_known && planned != recorded || plan.teams.iter().any(other_size)
}

/// Makes the plan of one program; `None` if replays show that it takes longer than `limit_ns` under all simple rules.
fn plan_within(
    limit_ns: f64,
    policy: Policy,
    input: &Input,
    parameters: &Parameters,
    replays: Option<&mut Replays<'_>>,
) -> Result<Option<Plan>, Error> {
    match (policy, replays) {
        (Policy::Auto, Some(replays)) => replays.decide(limit_ns, input, parameters),
        _ => Ok(Some(decide(policy, input, parameters))),
    }
}

/// A note on objects about which `auto` decides differently, so that the plan suits inputs of another size.
fn note_of_size(plan: &Plan, input: &Input, parameters: &Parameters) -> Option<String> {
    if parameters.same_input {
        return None;
    }
    let parameters = Parameters {
        same_input: true,
        ..*parameters
    };
    let recorded = decide(Policy::Auto, input, &parameters);
    let is_known = |one: &Decision| {
        let mut decisions = plan.decisions.iter();
        decisions.any(|other| other.subject == one.subject && other.placement == one.placement)
    };
    let others = recorded.decisions.iter();
    let others = others.filter(|one| !is_known(one) && one.placement != Placement::FirstTouch);
    let mut words: Vec<String> = others
        .map(|one| format!("{} ({})", one.name, one.placement))
        .collect();
    words.dedup();
    let more = words.len().saturating_sub(NAMED_MAX);
    words.truncate(NAMED_MAX);
    if more > 0 {
        words.push(format!("{more} more"));
    }
    (!words.is_empty()).then(|| {
        format!(
            "another size of input may change what these placements do, so that others are planned: {}; --same-input \
             weighs the recorded input alone",
            words.join(", ")
        )
    })
}

/// Most objects that a note names.
const NAMED_MAX: usize = 4;

/// Sets the expected effects of decisions to the prediction for their objects, so that the plan's file agrees with
/// the output of every command.
fn note_effects(plan: &mut Plan, prediction: &Prediction) {
    let mut of_decision: Vec<Vec<usize>> = vec![Vec::new(); plan.decisions.len()];
    for (number, object) in prediction.objects.iter().enumerate() {
        for &at in &object.decisions {
            of_decision[at].push(number);
        }
    }
    for (decision, objects) in plan.decisions.iter_mut().zip(of_decision) {
        let objects = || objects.iter().map(|&number| &prediction.objects[number]);
        let accesses: f64 = objects().map(|object| object.accesses).sum();
        if accesses <= 0.0 {
            continue;
        }
        let mean = |share: fn(&crate::ObjectPrediction) -> f64| {
            objects()
                .map(|object| share(object) * object.accesses)
                .sum::<f64>()
                / accesses
        };
        let is_known = objects().all(|object| !object.first_touch_assumed);
        decision.effect.local_before = is_known.then(|| mean(|one| one.first_touch.local_share));
        decision.effect.local_after = mean(|one| one.planned.local_share);
    }
}
