//! The planner's one entry point: from a recording and a machine, it decides a plan for each program, or predicts the
//! effect of an existing plan.
//!
//! Every command that shows a plan uses this entry point and gets a [`DecidedPlan`], so all give the same answer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use nearpage_attribution::{Attribution, Confidence, Names, Sampling};
use nearpage_machine::{Assumed, Machine, NodeId, ThreadPlacement};
use nearpage_plan::{Plan, Program};
use nearpage_recording::Recording;

use crate::analysis::Analysis;
use crate::auto::SearchProgress;
use crate::confidence::{Tested, leave_doubtful};
use crate::context::Input;
use crate::decide::decide;
use crate::decided::{DecidedPlan, Layout, Threads};
use crate::error::Error;
use crate::layout::{has_recorded_cpus, thread_nodes};
use crate::other_sizes;
use crate::parameters::{Parameters, Policy};
use crate::plan_predictor::PlanPredictor;
use crate::programs::Programs;
use crate::replay::{Replays, is_stripped};
use crate::simple_policies;
use crate::withdrawal::{Saving, withdraw};

/// One recording on one machine: decides for its programs, and predicts what plans do.
pub struct Planner<'a> {
    recording: &'a Recording,
    /// The accesses, with the weights of few heavy samples evened out.
    attribution: Cow<'a, Attribution>,
    /// Programs with their processes, the costliest first, and the accesses that matter to each if these are not its
    /// own alone.
    programs: Vec<(u32, Program, Option<Attribution>)>,
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
        let programs = Programs {
            attribution: &attribution,
            tables: &recording.tables,
            metadata: &recording.metadata,
        };
        let with_accesses = |(pid, program)| {
            let own = attribution.of_process(pid, &recording.tables.threads);
            (pid, program, own)
        };
        Self {
            recording,
            programs: programs.find().into_iter().map(with_accesses).collect(),
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
        if self.programs.is_empty() {
            return Err(Error::NoThreads(self.recording.folder.clone()));
        }
        let programs = self.programs.iter();
        let inputs = programs.map(|(pid, program, own)| Input {
            attribution: own.as_ref().unwrap_or(&self.attribution),
            tables: &self.recording.tables,
            names: &self.names,
            machine: self.machine,
            thread_nodes: &self.nodes,
            pid: *pid,
            program: program.clone(),
            page_bytes: self.machine.page_bytes,
        });
        Ok(inputs.collect())
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
            let is_replayed = replays.is_some();
            let remove = |plan| self.remove_unsure(plan, policy, input, parameters, is_replayed);
            plans.extend(plan.map(|plan| remove(plan).0));
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
            Policy::Auto if !is_replayed => other_sizes::note(&plan, input, parameters),
            _ => None,
        };
        let (plan, tested, saving) =
            self.remove_unsure(plan, policy, input, parameters, is_replayed);
        let is_of_samples = self.recording.metadata.tracing.is_none();
        let of_others = match policy {
            Policy::Auto if is_of_samples => simple_policies::note(&plan, input, parameters),
            _ => None,
        };
        let known = saving.iter().flatten().next().copied();
        let predictor = self.predictor();
        let mut decided = predictor.predicted(plan, input, parameters, replays, known)?;
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

    /// Removes decisions from a plan for which there are too few samples, and plans of `auto` that may be slower. Also
    /// returns how sure it is about each object and, for a plan of `auto`, about the saving. What a replay found stays
    /// as it is. A trace has all accesses, so its decisions are sure; without a replay, their time is not.
    fn remove_unsure(
        &self,
        mut plan: Plan,
        policy: Policy,
        input: &Input,
        parameters: &Parameters,
        is_replayed: bool,
    ) -> (Plan, Vec<Option<Tested>>, Option<Saving>) {
        if is_replayed {
            return (plan, Vec::new(), None);
        }
        let is_traced = self.recording.metadata.tracing.is_some();
        let found = match is_traced {
            true => Vec::new(),
            false => leave_doubtful(&mut plan, policy, input, parameters),
        };
        let saving = match policy {
            Policy::Auto => withdraw(&mut plan, input, parameters, is_traced),
            _ => None,
        };
        (plan, found, saving)
    }

    fn predictor(&self) -> PlanPredictor<'_> {
        PlanPredictor {
            metadata: &self.recording.metadata,
            assumed: self.assumed.as_ref(),
            threads: &self.threads,
            is_as_recorded: self.is_as_recorded,
        }
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
        self.predictor()
            .predicted(plan, input, parameters, replays.as_mut(), None)
    }
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
