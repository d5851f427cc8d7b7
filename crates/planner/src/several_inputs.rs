//! Several recordings of one program with different inputs, or teams of different sizes: one plan that holds for all.
//!
//! One recording does not show what of a pattern depends on the input. A block may be a share of the array, or have a
//! fixed size; page runs may grow with the array, or have nothing to do with its size. So each plan is translated to
//! the other recordings, as for a run, and its time is predicted there. Each object gets the decision with the least
//! mean time over all recordings, where times are shares of the time under first touch.

use std::path::PathBuf;

use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::{Decision, Placement, Plan, Subject, Team, team_and_order, threads_of};
use schemars::JsonSchema;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::auto::Model;
use crate::context::Input;
use crate::decided::DecidedPlan;
use crate::error::Error;
use crate::interleave;
use crate::parameters::{Parameters, Policy};
use crate::planner::Planner;
use crate::prediction::{Prediction, predict};
use crate::translated::translated;

/// Decrease of the mean time for which another decision about an object is taken.
const GAIN_MIN: f64 = 0.01;
/// Decrease of the mean time for which the plan of another recording than the first is taken.
const FIRST_MARGIN: f64 = 0.01;
/// A decision holds for an input if the local share of its accesses is at most this much less than under the plan of
/// that input alone.
const HOLDS_MARGIN: f64 = 0.1;
/// Most objects for which other decisions are tried, the costliest first.
const OBJECTS_MAX: usize = 24;

/// One of several recordings with different inputs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct OfInput {
    /// The recording's folder.
    pub recording: PathBuf,
    /// Arguments of the program; empty where they were redacted.
    pub arguments: Vec<String>,
    /// Number of threads of the program.
    pub threads: usize,
    /// Predicted time under first touch.
    pub first_touch_ns: f64,
    /// Predicted time under the plan of this recording alone.
    pub own_plan_ns: f64,
    /// Predicted time under the plan for all inputs.
    pub planned_ns: f64,
    /// Share of its accesses that are local under first touch.
    pub local_before: f64,
    /// Share of its accesses that are local under the plan for all inputs.
    pub local_after: f64,
}

/// What the recordings show about a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// The object is accessed in one recording only.
    OneInput,
    /// The object has the same size with every input, and the decision holds for all.
    SameSize,
    /// The object's size follows the input, or its users do, and the decision holds for all.
    Holds,
    /// With at least one input, far fewer accesses are local than under the plan of that input alone.
    DependsOnInput,
}

/// An object of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AcrossObject {
    /// The object's name in the recording whose plan was taken.
    pub name: String,
    /// Placement of its pages, as plan files write it.
    pub placement: String,
    /// What the recordings show about the decision.
    pub evidence: Evidence,
    /// By recording: size of the largest object in bytes; null where the object is not accessed.
    pub size_bytes: Vec<Option<u64>>,
    /// By recording: share of accesses that are local under the plan for all inputs; null where the object is not
    /// accessed.
    pub local: Vec<Option<f64>>,
}

/// A plan for all inputs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct AcrossInputs {
    /// The recordings in the order in which they were named.
    pub recordings: Vec<OfInput>,
    /// Position of the recording whose teams and sizes the plan is written in.
    pub base: usize,
    /// The objects that the plan places.
    pub objects: Vec<AcrossObject>,
    /// The plan, with its prediction.
    #[serde(skip)]
    pub planned: DecidedPlan,
}

/// A recording's program, and the plan of this recording alone.
struct PlannedInput<'a> {
    input: &'a Input<'a>,
    model: Model<'a>,
    own: Plan,
}

impl PlannedInput<'_> {
    /// A plan in terms of this recording, and the positions of its decisions in `plan`; its own plan stays as it is.
    fn of(&self, plan: &Plan, is_own: bool) -> Result<(Plan, Vec<usize>), Error> {
        if is_own {
            return Ok((plan.clone(), (0..plan.decisions.len()).collect()));
        }
        let translated = translated(plan, self.input)?;
        Ok((translated.plan, translated.origins))
    }

    /// Predicted times under first touch, and under a plan in terms of this recording.
    fn times(&self, plan: &Plan) -> (f64, f64) {
        let [_, scaled] = self.model.times(plan);
        (scaled.first_touch_ns, scaled.planned_ns)
    }
}

/// Makes one plan for all recordings, which are of one program. `threads` is the layout to assume.
///
/// # Errors
/// No time can be predicted on the machine, or a recording can't be read.
pub fn plan_for_all(
    analyses: &[Analysis],
    machine: &Machine,
    threads: Option<ThreadPlacement>,
    parameters: &Parameters,
) -> Result<AcrossInputs, Error> {
    let parameters = &Parameters {
        phases: false,
        online_migration: false,
        ..*parameters
    };
    let planners: Vec<Planner> = analyses
        .iter()
        .map(|analysis| Planner::of(analysis, machine, threads))
        .collect();
    let mut inputs = Vec::new();
    for planner in &planners {
        inputs.push(planner.programs()?.remove(0));
    }
    let mut all = Vec::new();
    for (planner, input) in planners.iter().zip(&inputs) {
        let own = planner.plans(Policy::Auto, parameters)?.remove(0);
        let model = Model::new(input, parameters).ok_or_else(|| {
            Error::Incomparable(format!(
                "no time can be predicted on {}, by which several inputs could be weighed; name another machine with \
                 --machine, or one recording",
                machine.name
            ))
        })?;
        all.push(PlannedInput { input, model, own });
    }
    let mut best: Option<(f64, usize, Plan)> = None;
    for base in 0..all.len() {
        let (mean, plan) = refined(&all, base, parameters)?;
        let margin = if base == 0 { 0.0 } else { FIRST_MARGIN };
        if best
            .as_ref()
            .is_none_or(|(least, ..)| mean < least - margin)
        {
            best = Some((mean, base, plan));
        }
    }
    let Some((_, base, mut plan)) = best else {
        return Err(Error::Incomparable("no recording was named".to_owned()));
    };
    let folders = analyses.iter().map(|one| one.recording.folder.clone());
    let folders: Vec<PathBuf> = folders.collect();
    let (recordings, objects) = described(&all, base, &mut plan, &folders)?;
    Ok(AcrossInputs {
        recordings,
        base,
        objects,
        planned: planners[base].predict(plan, parameters)?,
    })
}

/// Mean over the recordings of a plan's time, as a share of the time under first touch.
fn mean_time(all: &[PlannedInput], base: usize, plan: &Plan) -> Result<f64, Error> {
    let mut sum = 0.0;
    for (number, one) in all.iter().enumerate() {
        let (plan, _) = one.of(plan, number == base)?;
        let (first_touch_ns, planned_ns) = one.times(&plan);
        sum += planned_ns / first_touch_ns.max(f64::MIN_POSITIVE);
    }
    Ok(sum / all.len() as f64)
}

/// The least mean time over all recordings, and the plan that gives it: the plan of one recording, with the best
/// decision for each object.
fn refined(
    all: &[PlannedInput],
    base: usize,
    parameters: &Parameters,
) -> Result<(f64, Plan), Error> {
    let one = &all[base];
    let by_pattern = crate::decide(Policy::Object, one.input, parameters);
    let mut plan = one.own.clone();
    let mut least = mean_time(all, base, &plan)?;
    let mut subjects: Vec<Subject> = Vec::new();
    for decision in plan.decisions.iter().chain(&by_pattern.decisions) {
        if !subjects.contains(&decision.subject) {
            subjects.push(decision.subject.clone());
        }
    }
    subjects.truncate(OBJECTS_MAX);
    for subject in subjects {
        for other in alternatives(&plan, &by_pattern, &subject, one.input.machine) {
            let mut changed = plan.clone();
            let at = changed
                .decisions
                .iter()
                .position(|one| one.subject == subject);
            match (at, other) {
                (Some(at), Some(other)) => changed.decisions[at] = other,
                (Some(at), None) => drop(changed.decisions.remove(at)),
                // Before the decision about unmatched memory.
                (None, Some(other)) => changed.decisions.insert(0, other),
                (None, None) => continue,
            }
            let mean = mean_time(all, base, &changed)?;
            if mean < least - GAIN_MIN {
                (least, plan) = (mean, changed);
            }
        }
    }
    Ok((least, plan))
}

/// Alternatives to a plan's decision about a subject; `None` among them: first touch.
fn alternatives(
    plan: &Plan,
    by_pattern: &Plan,
    subject: &Subject,
    machine: &Machine,
) -> Vec<Option<Decision>> {
    let of = |plan: &Plan| {
        let mut decisions = plan.decisions.iter();
        decisions.find(|one| one.subject == *subject).cloned()
    };
    let (own, found) = (of(plan), of(by_pattern));
    let Some(like) = own.clone().or(found.clone()) else {
        return Vec::new();
    };
    let mut placements: Vec<Placement> = Vec::new();
    for decision in [&own, &found].into_iter().flatten() {
        placements.extend(resized(&decision.placement, subject, &plan.teams));
    }
    placements.extend(interleave::near(machine));
    let with = |placement: Placement| {
        let why = match placement {
            Placement::Interleave { .. } => "interleaved: its users depend on the input".to_owned(),
            _ => like.why.clone(),
        };
        Some(Decision {
            placement,
            why,
            ..like.clone()
        })
    };
    let mut others: Vec<Option<Decision>> = Vec::new();
    others.extend(found.map(Some));
    others.extend(placements.into_iter().map(with));
    others.push(None);
    others.retain(|other| *other != own);
    others
}

/// The placement that is equal at the recorded size and team, and differs at others: fixed blocks for equal shares, or
/// the reverse.
fn resized(placement: &Placement, subject: &Subject, teams: &[Team]) -> Option<Placement> {
    let size_bytes = match subject {
        Subject::Symbol { size_bytes, .. } | Subject::CallSite { size_bytes, .. } => *size_bytes,
        _ => return None,
    };
    let threads = |name: &str| {
        let first = teams.first().map(|team| team.name.as_str());
        let is_known = |name: &str| teams.iter().any(|team| team.name == name);
        let (name, _) = team_and_order(name, is_known);
        let name = if name.is_empty() { first? } else { name };
        Some(threads_of(teams, name)?.max(1))
    };
    match placement {
        Placement::Block { team } => Some(Placement::BlockCyclic {
            block_bytes: size_bytes.div_ceil(threads(team)?).max(1),
            team: team.clone(),
        }),
        Placement::BlockCyclic { block_bytes, team }
            if block_bytes.saturating_mul(threads(team)?) >= size_bytes =>
        {
            Some(Placement::Block { team: team.clone() })
        }
        _ => None,
    }
}

/// For each of a plan's decisions: local share of its objects' accesses, largest size and groups; none without
/// accesses.
fn by_decision(
    prediction: &Prediction,
    origins: &[usize],
    decisions: usize,
) -> Vec<Option<(f64, u64, Vec<usize>)>> {
    let mut sums = vec![(0.0, 0.0, 0, Vec::new()); decisions];
    for object in &prediction.objects {
        let mut of: Vec<usize> = object.decisions.iter().map(|&at| origins[at]).collect();
        of.sort_unstable();
        of.dedup();
        for at in of {
            let (accesses, local, size_bytes, groups) = &mut sums[at];
            *accesses += object.accesses;
            *local += object.accesses * object.planned.local_share;
            *size_bytes = object.size_bytes.max(*size_bytes);
            groups.push(object.group);
        }
    }
    sums.into_iter()
        .map(|(accesses, local, size_bytes, groups)| {
            (accesses > 0.0).then(|| (local / accesses, size_bytes, groups))
        })
        .collect()
}

/// Results of the plan for each recording and for each of its objects. Adds the evidence to the decisions' reasons.
fn described(
    all: &[PlannedInput],
    base: usize,
    plan: &mut Plan,
    folders: &[PathBuf],
) -> Result<(Vec<OfInput>, Vec<AcrossObject>), Error> {
    let mut recordings = Vec::new();
    let mut by_recording = Vec::new();
    let count = plan.decisions.len();
    let mut is_short = vec![false; count];
    for (number, (one, folder)) in all.iter().zip(folders).enumerate() {
        let (here, origins) = one.of(plan, number == base)?;
        let prediction = predict(&here, one.input);
        let (first_touch_ns, planned_ns) = one.times(&here);
        let alone = predict(&one.own, one.input);
        let of_each = by_decision(&prediction, &origins, count);
        for (at, known) in of_each.iter().enumerate() {
            let Some((local, _, groups)) = known else {
                continue;
            };
            let theirs = alone.objects.iter();
            let theirs = theirs.filter(|object| groups.contains(&object.group));
            let (accesses, own_local) = theirs.fold((0.0, 0.0), |sum, object| {
                (
                    sum.0 + object.accesses,
                    sum.1 + object.accesses * object.planned.local_share,
                )
            });
            is_short[at] |= own_local > (local + HOLDS_MARGIN) * accesses;
        }
        recordings.push(OfInput {
            recording: folder.clone(),
            arguments: one.input.program.arguments.clone(),
            threads: one
                .input
                .tables
                .threads
                .iter()
                .filter(|thread| thread.pid == one.input.pid)
                .count(),
            first_touch_ns,
            own_plan_ns: one.times(&one.own).1,
            planned_ns,
            local_before: prediction.first_touch.local_share,
            local_after: prediction.planned.local_share,
        });
        by_recording.push(of_each);
    }
    let mut objects = Vec::new();
    for (at, decision) in plan.decisions.iter_mut().enumerate() {
        let known = |of: &Vec<Option<(f64, u64, Vec<usize>)>>| of[at].clone();
        let known: Vec<_> = by_recording.iter().map(known).collect();
        let mut sizes = known.iter().flatten().map(|one| one.1);
        let first = sizes.next();
        let evidence = match known.iter().flatten().count() {
            0 | 1 => Evidence::OneInput,
            _ if is_short[at] => Evidence::DependsOnInput,
            _ if sizes.all(|size| Some(size) == first) => Evidence::SameSize,
            _ => Evidence::Holds,
        };
        decision.why = format!("{}; {}", decision.why, evidence.words());
        objects.push(AcrossObject {
            name: decision.name.clone(),
            placement: decision.placement.to_string(),
            evidence,
            size_bytes: known.iter().map(|one| Some(one.as_ref()?.1)).collect(),
            local: known.iter().map(|one| Some(one.as_ref()?.0)).collect(),
        });
    }
    Ok((recordings, objects))
}

impl Evidence {
    /// Words for messages, after the reason of a decision.
    pub fn words(self) -> &'static str {
        match self {
            Self::OneInput => "accessed with one input only",
            Self::SameSize => "holds for all inputs, of the same size",
            Self::Holds => "holds for all inputs",
            Self::DependsOnInput => "depends on the input",
        }
    }
}
