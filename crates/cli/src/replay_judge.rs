//! `auto` by replay: the simulator says how long a full recording takes under a plan, phase by phase where it has
//! long ones.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use nearpage_machine::Machine;
use nearpage_online::Initial;
use nearpage_plan::{Live, Phase, Plan};
use nearpage_planner::auto::{
    Alternatives, Chosen, Judge, Margins, Model, Selection, Times, choose, choose_within,
};
use nearpage_planner::{Input, Parameters, Policy, decide};
use nearpage_recording::Recording;
use nearpage_simulator::{Job, Outcome, PlanHomes, simulate};

use crate::homes::{Homes, Processes};
use crate::phases::{self, Phases};
use crate::replayed::Replayed;

/// The machine's own model is replayed, references, barriers and all: what is uncertain is how far
/// another run resembles this one: two tracings of the same differ by about a hundredth. That a decision costs time with
/// an input of another size is taken three times as seriously as that it saves as much.
const MARGINS: Margins = Margins {
    plan: 0.01,
    object: 0.001,
    slower: 1.0 / 6.0,
    resized: 1.0 / 3.0,
    of_samples: false,
};
/// What moves may cost beyond what they have saved, in thousandths of the time, where the recording shows that it pays: ten
/// times what `auto` risks without one.
const BUDGET_PERMILLE: u64 = 100;
/// Every object is a handful of replays.
const OBJECTS_MAX: usize = 6;

/// How long a replay takes, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct ReplayTime {
    all_ns: f64,
    /// Of that, the part in which several threads run.
    parallel_ns: f64,
}

impl ReplayTime {
    fn of(outcome: &Outcome) -> Self {
        Self {
            all_ns: outcome.time_ns,
            parallel_ns: outcome.parallel_ns,
        }
    }

    /// Of a run whose parallel part is so many times as long.
    pub fn longer_ns(self, longer: f64) -> f64 {
        self.all_ns + (longer - 1.0) * self.parallel_ns
    }
}

/// Replays a recording.
struct Replays<'a> {
    recording: &'a Recording,
    trace: &'a Replayed,
    processes: Processes<'a>,
    machine: &'a Machine,
    workers: usize,
    /// [`Parameters::longer`].
    longer: f64,
    /// What was replayed before, by a hash of what it asks for each page and thread: other decisions about one part of a
    /// plan, or the same ones about another, often come to the same.
    known: HashMap<u64, ReplayTime>,
    /// What else is planned: a plan for the phase of this number, or, without one, for all but its phases.
    around: Option<(Plan, Option<usize>)>,
}

impl Replays<'_> {
    /// The whole plan, of which this is the part that is decided about.
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

    /// Replays under some selections, as far as it is not known what comes of them.
    fn replay(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> anyhow::Result<Vec<ReplayTime>> {
        let plans = selections
            .iter()
            .map(|selection| self.whole(alternatives.plan(selection, |_| None)));
        self.replay_plans(plans.collect())
    }

    /// The same of whole plans.
    fn replay_plans(&mut self, plans: Vec<Plan>) -> anyhow::Result<Vec<ReplayTime>> {
        let mut asked = Vec::with_capacity(plans.len());
        let mut jobs: Vec<(u64, Job)> = Vec::new();
        for plan in plans {
            let homes = Homes::of(&[plan], &self.processes)?;
            let hash = hash(&homes.plan);
            asked.push(hash);
            if !self.known.contains_key(&hash) && jobs.iter().all(|job| job.0 != hash) {
                let policy = nearpage_simulator::Policy::Homes {
                    name: String::new(),
                    plan: homes.plan,
                };
                jobs.push((hash, Job::new(policy)));
            }
        }
        let (new, jobs): (Vec<u64>, Vec<Job>) = jobs.into_iter().unzip();
        let outcomes = simulate(self.trace, self.machine, &jobs, self.workers)?;
        let times = outcomes.iter().map(ReplayTime::of);
        self.known.extend(new.into_iter().zip(times));
        Ok(asked.iter().map(|hash| self.known[hash]).collect())
    }

    /// Decides about a part of a plan, given the others; what the whole is then, and how long it takes.
    fn decide_part(
        &mut self,
        around: Plan,
        phase: Option<usize>,
        input: &Input,
        parameters: &Parameters,
    ) -> anyhow::Result<(Plan, f64)> {
        let parameters = Parameters {
            of_phase: phase.is_some(),
            phases: parameters.phases && phase.is_none(),
            ..*parameters
        };
        self.around = Some((around, phase));
        let Chosen { plan, time, .. } = choose(input, &parameters, self)?;
        Ok((self.whole(plan), time.planned_ns))
    }

    /// Decides about one phase after the other: where pages go, and whether threads that go to them do better.
    fn decide_onwards(
        &mut self,
        mut plan: Plan,
        found: &Phases,
        input: &Input,
        parameters: &Parameters,
    ) -> anyhow::Result<(Plan, f64)> {
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

    /// The best plan that changes with the recording's long phases, if it takes less time than one that does not.
    fn decide_phases(
        &mut self,
        chosen: &Chosen,
        input: &Input,
        parameters: &Parameters,
    ) -> anyhow::Result<Option<(Plan, f64)>> {
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
        // From the plan for the whole run: what had better change as it goes on.
        let onwards = with_phases(&chosen.plan);
        let onwards = self.decide_onwards(onwards, &found, input, parameters)?;
        // From nothing: each phase for itself, the last first, then what comes before them all, and once more.
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

    /// The plan that has the program looked after, with the time that this takes; none: it had better not be.
    ///
    /// Of four ways, placed as decided or by first touch, with `auto`'s budget or more, the quickest is taken if that is
    /// worth it. What another input asks for is not in a recording: otherwise it is the plan as decided, with `auto`'s
    /// budget, unless that costs more than a decision may with an input of another size.
    fn decide_live(
        &mut self,
        chosen: &Chosen,
        parameters: &Parameters,
    ) -> anyhow::Result<Option<(Plan, ReplayTime)>> {
        let left = Plan {
            decisions: Vec::new(),
            phases: Vec::new(),
            ..chosen.plan.clone()
        };
        let budget = [("budget_permille", BUDGET_PERMILLE)];
        let mut plans = Vec::new();
        for set in [&[][..], &budget] {
            let mut live = Live::default();
            let copies = (!parameters.replicas).then_some(("replication", 0));
            for &(name, value) in set.iter().chain(&copies) {
                live.parameters.insert(name.to_owned(), value);
            }
            plans.extend([&chosen.plan, &left].map(|start| Plan {
                live: Some(live.clone()),
                ..start.clone()
            }));
        }
        let times = self.replay_plans(plans.clone())?;
        let Times {
            first_touch_ns,
            planned_ns,
        } = chosen.time;
        let cost_ns = |&at: &usize| times[at].longer_ns(self.longer) - planned_ns;
        let margin_ns = MARGINS.plan * first_touch_ns;
        let quickest = (0..plans.len()).min_by(|a, b| cost_ns(a).total_cmp(&cost_ns(b)));
        let taken = quickest
            .filter(|at| cost_ns(at) < -margin_ns)
            .or((cost_ns(&0) <= MARGINS.resized * margin_ns).then_some(0));
        Ok(taken.map(|at| (plans.swap_remove(at), times[at])))
    }
}

fn hash(plan: &PlanHomes) -> u64 {
    let mut hasher = DefaultHasher::new();
    plan.hash(&mut hasher);
    hasher.finish()
}

impl Judge for Replays<'_> {
    type Error = anyhow::Error;

    fn times_ns(
        &mut self,
        alternatives: &Alternatives,
        selections: &[Selection],
    ) -> anyhow::Result<Vec<f64>> {
        let times = self.replay(alternatives, selections)?;
        let longer_ns = times.into_iter().map(|time| time.longer_ns(self.longer));
        Ok(longer_ns.collect())
    }

    fn recorded_ns(
        &mut self,
        alternatives: &Alternatives,
        selection: &Selection,
    ) -> anyhow::Result<f64> {
        let times = self.replay(alternatives, std::slice::from_ref(selection))?;
        Ok(times[0].all_ns)
    }

    fn margins(&self) -> Margins {
        MARGINS
    }

    fn objects_max(&self) -> usize {
        OBJECTS_MAX
    }
}

/// The trace of a full recording that can be replayed on the machine.
fn replayable(recording: &Recording, machine: &Machine) -> anyhow::Result<Option<Replayed>> {
    let tracing = recording.metadata.tracing.clone().unwrap_or_default();
    let (Ok(trace), Ok(())) = (recording.trace(), tracing.serves(machine)) else {
        return Ok(None);
    };
    let mut trace = Replayed::new(recording, trace);
    trace.keep_steps()?;
    Ok(Some(trace))
}

/// How long a full recording takes under first touch on its machine; `None`: it cannot be replayed there.
pub fn first_touch(recording: &Recording, machine: &Machine) -> anyhow::Result<Option<ReplayTime>> {
    let Some(trace) = replayable(recording, machine)? else {
        return Ok(None);
    };
    let assumed = machine.with_assumed_bandwidth();
    let machine = assumed.as_ref().map_or(machine, |assumed| &assumed.machine);
    let job = Job::new(nearpage_simulator::Policy::Static(Initial::FirstTouch));
    let outcomes = simulate(&trace, machine, &[job], 1)?;
    Ok(outcomes.first().map(ReplayTime::of))
}

/// What a plan does to a program's time.
#[derive(Clone, Copy, Debug)]
pub struct Predicted {
    /// Of a run as long as the recorded one.
    pub recorded: Times,
    /// Of the runs that it was decided for ([`Parameters::longer`]).
    pub longer: Times,
    /// It was replayed, not modelled.
    pub replayed: bool,
}

/// What a policy decides, and, for `auto`, by what and how long it takes.
pub struct Decided {
    pub plan: Plan,
    pub time: Option<Predicted>,
    /// What was assumed of the machine for that.
    pub assumed: Option<String>,
}

impl Decided {
    /// Without any judgement of time.
    fn untimed(plan: Plan) -> Self {
        Self {
            plan,
            time: None,
            assumed: None,
        }
    }
}

/// Decides: `auto` by replay where `recording` can be replayed on the machine, by its model otherwise.
pub fn decided(
    policy: Policy,
    input: &Input,
    parameters: &Parameters,
    recording: &Recording,
) -> anyhow::Result<Decided> {
    let decided = decided_within(f64::INFINITY, None, policy, input, parameters, recording)?;
    Ok(decided.expect("no time is as long"))
}

/// The same; `None`: `auto` did not look closer, since the program takes longer than `limit_ns` under all simple
/// rules. `touched`: what [`first_touch()`] said of the recording, where it was asked.
pub fn decided_within(
    limit_ns: f64,
    touched: Option<ReplayTime>,
    policy: Policy,
    input: &Input,
    parameters: &Parameters,
    recording: &Recording,
) -> anyhow::Result<Option<Decided>> {
    let untimed = || Ok(Some(Decided::untimed(decide(policy, input, parameters))));
    if policy != Policy::Auto {
        return untimed();
    }
    let Some(mut model) = Model::new(input, parameters) else {
        return untimed();
    };
    let assumed = input.machine.with_assumed_bandwidth();
    let (chosen, by_replay) = match replayable(recording, input.machine)? {
        Some(trace) => {
            let machine = assumed
                .as_ref()
                .map_or(input.machine, |assumed| &assumed.machine);
            let nothing = hash(&PlanHomes::nothing(trace.trace.pages().len()));
            let mut replays = Replays {
                recording,
                trace: &trace,
                processes: Processes::of(recording, &trace.trace, machine),
                machine,
                workers: std::thread::available_parallelism().map_or(1, usize::from),
                longer: parameters.longer,
                known: touched.map(|time| (nothing, time)).into_iter().collect(),
                around: None,
            };
            let mut chosen = choose_within(limit_ns, input, parameters, &mut replays)?;
            if let Some(chosen) = chosen.as_mut().filter(|_| parameters.phases) {
                let phased = replays.decide_phases(chosen, input, parameters)?;
                if let Some((plan, planned_ns)) = phased {
                    chosen.recorded.planned_ns =
                        replays.replay_plans(vec![plan.clone()])?[0].all_ns;
                    (chosen.plan, chosen.time.planned_ns) = (plan, planned_ns);
                }
            }
            if let Some(chosen) = chosen.as_mut().filter(|_| parameters.live)
                && let Some((plan, time)) = replays.decide_live(chosen, parameters)?
            {
                chosen.plan = plan;
                chosen.recorded.planned_ns = time.all_ns;
                chosen.time.planned_ns = time.longer_ns(parameters.longer);
            }
            (chosen, true)
        }
        None => {
            let Ok(chosen) = choose_within(limit_ns, input, parameters, &mut model);
            (chosen, false)
        }
    };
    let of_chosen = |chosen: Chosen| Decided {
        plan: chosen.plan,
        time: Some(Predicted {
            recorded: chosen.recorded,
            longer: chosen.time,
            replayed: by_replay,
        }),
        assumed: assumed.map(|assumed| assumed.words),
    };
    Ok(chosen.map(of_chosen))
}
