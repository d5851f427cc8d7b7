//! `auto` by replay: the simulator says how long a trace takes under a plan, phase by phase if the trace has long
//! phases.

pub mod homes;
mod phases;
pub mod process;
pub mod trace;
mod unmatched;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use nearpage_machine::Machine;
use nearpage_plan::{OnlineMigration, Phase, Plan};
use nearpage_recording::Recording;
use nearpage_simulator::{Job, Outcome, PlanHomes, SimulatedPolicy, simulate};

use crate::auto::{
    Alternatives, ChosenPlan, Judge, Margins, SearchProgress, Selection, Times, choose,
    choose_within,
};
use crate::context::Input;
use crate::error::Error;
use crate::parameters::Parameters;
use homes::Homes;
use phases::Phases;
pub(crate) use phases::is_stripped;
use process::Processes;
use trace::Replayed;

/// A replay uses the machine's full model, with references, barriers and all. Only other runs are uncertain: two traces
/// of the same run differ by about 1 %. `resized`: a cost with an input of another size counts three times as much as a
/// saving.
const MARGINS: Margins = Margins {
    plan: 0.01,
    object: 0.001,
    slower: 1.0 / 6.0,
    resized: 1.0 / 3.0,
    of_samples: false,
};
/// Time that moves may cost beyond what earlier moves have saved, in thousandths of the program's time, if the
/// recording shows that it pays: ten times `auto`'s default without a recording.
const BUDGET_PERMILLE: u64 = 100;
/// Each object takes a handful of replays.
const OBJECTS_MAX: usize = 6;

/// Time of a replay, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayTime {
    all_ns: f64,
    /// The part of `all_ns` in which several threads run.
    parallel_ns: f64,
}

impl ReplayTime {
    fn of(outcome: &Outcome) -> Self {
        Self {
            all_ns: outcome.time_ns,
            parallel_ns: outcome.parallel_ns,
        }
    }

    /// Time of a run whose parallel part is `runtime_scale` times as long.
    pub fn scaled_ns(self, runtime_scale: f64) -> f64 {
        self.all_ns + (runtime_scale - 1.0) * self.parallel_ns
    }
}

/// Replays a recording: the judge that knows in which order accesses were made.
pub(crate) struct Replays<'a> {
    recording: &'a Recording,
    trace: Replayed,
    processes: Processes<'a>,
    machine: &'a Machine,
    workers: usize,
    /// [`Parameters::runtime_scale`].
    runtime_scale: f64,
    /// Earlier results, by a hash of the plan's homes of pages and threads: other decisions about one part of a plan,
    /// or the same decisions about another part, often lead to the same homes.
    known: HashMap<u64, ReplayTime>,
    /// The rest of the plan around the part that is decided: the part is the phase of this number or, without a number,
    /// everything but the phases.
    around: Option<(Plan, Option<usize>)>,
    progress: Arc<SearchProgress>,
}

impl<'a> Replays<'a> {
    /// Replays of a recording on `machine`, for runs whose parallel part is `runtime_scale` times as long; none if the
    /// recording has no trace that can be replayed there.
    pub fn of(
        recording: &'a Recording,
        machine: &'a Machine,
        runtime_scale: f64,
    ) -> Result<Option<Self>, Error> {
        let tracing = recording.metadata.tracing.clone().unwrap_or_default();
        let (Ok(trace), Ok(())) = (recording.trace(), tracing.serves(machine)) else {
            return Ok(None);
        };
        let mut trace = Replayed::new(recording, trace);
        trace.keep_steps()?;
        Ok(Some(Self {
            recording,
            processes: Processes::of(recording, &trace.trace, machine),
            trace,
            machine,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            runtime_scale,
            known: HashMap::new(),
            around: None,
            progress: Arc::default(),
        }))
    }

    /// Reports progress to `progress`.
    pub fn followed_by(self, progress: Arc<SearchProgress>) -> Self {
        Self { progress, ..self }
    }

    /// Time of the recording under first touch.
    pub fn first_touch(&mut self) -> Result<ReplayTime, Error> {
        let nothing = PlanHomes::nothing(self.trace.trace.pages().len());
        Ok(self.replay_homes(vec![nothing])?[0])
    }

    /// Times without and with a plan: of a run as long as the recorded one, and of the scaled run.
    pub fn times(&mut self, plan: &Plan) -> Result<[Times; 2], Error> {
        let [before, after] = [
            self.first_touch()?,
            self.replay_plans(vec![plan.clone()])?[0],
        ];
        Ok([1.0, self.runtime_scale].map(|runtime_scale| Times {
            first_touch_ns: before.scaled_ns(runtime_scale),
            planned_ns: after.scaled_ns(runtime_scale),
        }))
    }

    /// The plan that replays find best, with phases and online migration if `parameters` allow them. None if the
    /// recording takes longer than `limit_ns` under all simple rules.
    pub fn decide(
        &mut self,
        limit_ns: f64,
        input: &Input,
        parameters: &Parameters,
    ) -> Result<Option<Plan>, Error> {
        // Forget what was decided for another program.
        self.around = None;
        let Some(mut chosen) = choose_within(limit_ns, input, parameters, self)? else {
            return Ok(None);
        };
        if parameters.phases
            && let Some((plan, planned_ns)) = self.decide_phases(&chosen, input, parameters)?
        {
            (chosen.plan, chosen.time.planned_ns) = (plan, planned_ns);
        }
        if parameters.online_migration
            && let Some(plan) = self.decide_live(&chosen, parameters)?
        {
            chosen.plan = plan;
        }
        Ok(Some(chosen.plan))
    }

    /// The whole plan, of which `part` is the part that is decided about.
    fn whole(&self, part: Plan) -> Plan {
        match &self.around {
            None => part,
            Some((around, None)) => Plan {
                phases: around.phases.clone(),
                ..part
            },
            Some((around, Some(phase))) => phases::with_phase(around, *phase, part),
        }
    }

    /// Times under some selections, replayed where they are unknown.
    fn replay(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<ReplayTime>, Error> {
        let plans = selections
            .iter()
            .map(|selection| self.whole(alternatives.plan(selection, |_| None)));
        self.replay_plans(plans.collect())
    }

    /// Times under whole plans.
    fn replay_plans(&mut self, plans: Vec<Plan>) -> Result<Vec<ReplayTime>, Error> {
        let homes = plans.into_iter().map(|plan| {
            let homes = Homes::of(&[plan], &self.processes)?;
            Ok(homes.plan)
        });
        let homes = homes.collect::<Result<Vec<PlanHomes>, Error>>()?;
        self.replay_homes(homes)
    }

    fn replay_homes(&mut self, homes: Vec<PlanHomes>) -> Result<Vec<ReplayTime>, Error> {
        let mut asked = Vec::with_capacity(homes.len());
        let mut jobs: Vec<(u64, Job)> = Vec::new();
        for plan in homes {
            let hash = hash(&plan);
            asked.push(hash);
            if !self.known.contains_key(&hash) && jobs.iter().all(|job| job.0 != hash) {
                let name = String::new();
                jobs.push((hash, Job::new(SimulatedPolicy::Homes { name, plan })));
            }
        }
        let (new, jobs): (Vec<u64>, Vec<Job>) = jobs.into_iter().unzip();
        let outcomes = simulate(&self.trace, self.machine, &jobs, self.workers);
        let outcomes = outcomes.map_err(|source| Error::Replay {
            folder: self.recording.folder.clone(),
            source,
        })?;
        self.progress.has_replayed(outcomes.len() as u64);
        let times = outcomes.iter().map(ReplayTime::of);
        self.known.extend(new.into_iter().zip(times));
        Ok(asked.iter().map(|hash| self.known[hash]).collect())
    }

    /// Decides about a part of a plan, given the other parts; returns the whole plan and its time.
    fn decide_part(
        &mut self,
        around: Plan,
        phase: Option<usize>,
        input: &Input,
        parameters: &Parameters,
    ) -> Result<(Plan, f64), Error> {
        let parameters = Parameters {
            of_phase: phase.is_some(),
            phases: parameters.phases && phase.is_none(),
            ..*parameters
        };
        self.around = Some((around, phase));
        let ChosenPlan { plan, time, .. } = choose(input, &parameters, self)?;
        Ok((self.whole(plan), time.planned_ns))
    }

    /// Decides about one phase after the other: where pages go, and whether threads should move to their pages.
    fn decide_onwards(
        &mut self,
        mut plan: Plan,
        found: &Phases,
        input: &Input,
        parameters: &Parameters,
    ) -> Result<(Plan, f64), Error> {
        let team = phases::first_team(&found.first, input.pid);
        let mut places: Vec<u32> = Vec::new();
        let mut before = &found.first;
        let mut planned_ns = f64::INFINITY;
        for (number, one) in found.others.iter().enumerate() {
            let now = &one.attribution;
            let mut decide = |plan, places: &[u32]| {
                let nodes = phases::nodes_in(places, team, input.thread_nodes);
                let input = Input {
                    attribution: now,
                    thread_nodes: &nodes,
                    ..input.clone()
                };
                self.decide_part(plan, Some(number), &input, parameters)
            };
            let moved = phases::exchanged(
                &before.objects,
                &now.objects,
                team,
                input.thread_nodes,
                &places,
            );
            let mut with_moves = plan.clone();
            (plan, planned_ns) = decide(plan, &places)?;
            if let Some(moved) = moved {
                with_moves.phases[number].threads.clone_from(&moved);
                let (with_moves, moved_ns) = decide(with_moves, &moved)?;
                if moved_ns < (1.0 - MARGINS.object) * planned_ns {
                    (plan, planned_ns, places) = (with_moves, moved_ns, moved);
                }
            }
            before = now;
        }
        Ok((plan, planned_ns))
    }

    /// The best plan that changes with the recording's long phases, if it takes less time than a plan without phases.
    fn decide_phases(
        &mut self,
        chosen: &ChosenPlan,
        input: &Input,
        parameters: &Parameters,
    ) -> Result<Option<(Plan, f64)>, Error> {
        let Some(found) = phases::of(self.recording, input)? else {
            return Ok(None);
        };
        let of = |attribution| Input {
            attribution,
            ..input.clone()
        };
        let phases: Vec<Phase> = found.others.iter().map(|one| one.phase.clone()).collect();
        let with_phases = |plan: &Plan| Plan {
            phases: phases.clone(),
            ..plan.clone()
        };
        // From the plan for the whole run: what should change in each phase.
        let onwards = with_phases(&chosen.plan);
        let onwards = self.decide_onwards(onwards, &found, input, parameters)?;
        // From nothing: each phase by itself, the last first, then the time before them all, and each phase again.
        let nothing = Plan {
            decisions: Vec::new(),
            ..chosen.plan.clone()
        };
        let mut apart = (with_phases(&nothing), f64::INFINITY);
        for (number, one) in found.others.iter().enumerate().rev() {
            apart = self.decide_part(apart.0, Some(number), &of(&one.attribution), parameters)?;
        }
        apart = self.decide_part(apart.0, None, &of(&found.first), parameters)?;
        apart = self.decide_onwards(apart.0, &found, input, parameters)?;
        let (mut plan, planned_ns) = match apart.1 < onwards.1 {
            true => apart,
            false => onwards,
        };
        plan.phases.retain(|phase| !phase.is_empty());
        let Times {
            first_touch_ns,
            planned_ns: before_ns,
        } = chosen.time;
        let worth_it = planned_ns < before_ns - MARGINS.plan * first_touch_ns;
        Ok((worth_it && !plan.phases.is_empty()).then_some((plan, planned_ns)))
    }

    /// The plan with online migration; none if migration makes it slower.
    ///
    /// There are four ways: pages placed as decided or by first touch, with `auto`'s budget or a larger one. The
    /// quickest is taken if it saves enough. Otherwise the plan as decided is taken, with `auto`'s budget, as another
    /// input may need migration that this recording does not show. Its cost is limited to what a decision may cost with
    /// an input of another size.
    fn decide_live(
        &mut self,
        chosen: &ChosenPlan,
        parameters: &Parameters,
    ) -> Result<Option<Plan>, Error> {
        let left = Plan {
            decisions: Vec::new(),
            phases: Vec::new(),
            ..chosen.plan.clone()
        };
        let budget = [("budget_permille", BUDGET_PERMILLE)];
        let mut plans = Vec::new();
        for set in [&[][..], &budget] {
            let mut online_migration = OnlineMigration::default();
            let copies = (!parameters.replicas).then_some(("replication", 0));
            for &(name, value) in set.iter().chain(&copies) {
                online_migration.parameters.insert(name.to_owned(), value);
            }
            plans.extend([&chosen.plan, &left].map(|start| Plan {
                online_migration: Some(online_migration.clone()),
                ..start.clone()
            }));
        }
        let times = self.replay_plans(plans.clone())?;
        let Times {
            first_touch_ns,
            planned_ns,
        } = chosen.time;
        let cost_ns = |&at: &usize| times[at].scaled_ns(self.runtime_scale) - planned_ns;
        let margin_ns = MARGINS.plan * first_touch_ns;
        let quickest = (0..plans.len()).min_by(|a, b| cost_ns(a).total_cmp(&cost_ns(b)));
        let taken = quickest
            .filter(|at| cost_ns(at) < -margin_ns)
            .or((cost_ns(&0) <= MARGINS.resized * margin_ns).then_some(0));
        Ok(taken.map(|at| plans.swap_remove(at)))
    }
}

fn hash(plan: &PlanHomes) -> u64 {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    hasher.finish()
}

impl Judge for Replays<'_> {
    type Error = Error;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> Result<Vec<f64>, Error> {
        let times = self.replay(alternatives, selections)?;
        let scaled_ns = times
            .into_iter()
            .map(|time| time.scaled_ns(self.runtime_scale));
        Ok(scaled_ns.collect())
    }

    fn margins(&self) -> Margins {
        MARGINS
    }

    fn objects_max(&self) -> usize {
        OBJECTS_MAX
    }

    fn progress(&self) -> Option<&SearchProgress> {
        Some(&self.progress)
    }
}

#[cfg(test)]
mod tests;
