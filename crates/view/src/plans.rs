//! Plan of a recording: decisions and predictions, and predictions of other placements.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nearpage_amount::percent;
use nearpage_http::Answer;
use nearpage_machine::{NodeId, ThreadPlacement};
use nearpage_plan::{Placement, Plan, Subject, Team};
use nearpage_planner::{
    DecidedPlan, Error, Input, Parameters, Planner, Policy, decide, predict, traffic,
};
use nearpage_recording::Recording;
use serde::{Deserialize, Serialize};

use crate::Session;
use crate::answer::json_answer;
use crate::opened::{Opened, Stage};

/// Request that the page posts.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PlanRequest {
    /// Placements by position of the object in the prediction.
    placements: BTreeMap<usize, String>,
    /// Write the plan beside the recording.
    save: bool,
    /// Decide anew, even if there is a plan file?
    afresh: bool,
}

/// Name of the file that plans are saved in, in the recording's folder.
pub const FILE: &str = "plan.edited.toml";
/// Plan files in a recording's folder. The first existing file is shown.
const SHOWN: [&str; 2] = [FILE, "plan.toml"];

/// Answer to the page: the plan as commands print it, and data for pictures of the plan.
#[derive(Debug, Serialize)]
struct PlanAnswer {
    #[serde(flatten)]
    decided: DecidedPlan,
    /// Source of the plan: a file, or a policy.
    origin: String,
    /// Is the plan from a file in the recording's folder? Then the page offers to decide anew.
    may_be_decided_afresh: bool,
    /// Thread layout that the plan asks for.
    threads_of_plan: Option<&'static str>,
    /// Number of the machine's nodes.
    nodes: usize,
    /// Teams in the plan's placements.
    teams: Vec<Team>,
    traffic: Flows,
    /// Node of each thread.
    thread_nodes: Vec<NodeId>,
    /// Differences between a plan file and the recording.
    misfits: Vec<String>,
    /// File to which this request saved the plan.
    saved: Option<PathBuf>,
    /// The plan as a plan file.
    toml: String,
}

/// Accesses by weight, `[CPU's node][memory's node]`.
#[derive(Debug, Serialize)]
struct Flows {
    first_touch: Vec<Vec<f64>>,
    planned: Vec<Vec<f64>>,
}

/// The plan before edits, and its source.
#[derive(Clone, Debug)]
pub(crate) struct ShownPlan {
    decided: DecidedPlan,
    /// Assumed thread layout; `None`: as recorded.
    layout: Option<ThreadPlacement>,
    origin: String,
    may_be_decided_afresh: bool,
    misfits: Vec<String>,
}

pub(crate) fn answer(
    session: &Session,
    opened: &Opened,
    stage: &Stage,
    body: Option<&str>,
) -> Result<Answer, Answer> {
    let request: PlanRequest = match body {
        None => PlanRequest::default(),
        Some(body) => serde_json::from_str(body)
            .map_err(|error| Answer::error(400, format!("plan: {error}")))?,
    };
    let recording = &opened.recording;
    let machine = session.target.as_ref().unwrap_or(&recording.machine);
    let planner = |layout| Planner::new(recording, &stage.attribution, machine, layout);
    let known = match request.afresh {
        true => &stage.found.decided,
        false => &stage.found.plan,
    };
    let shown = match known.get() {
        Some(shown) => shown.clone(),
        None => {
            let found = (!request.afresh).then(|| file(session, recording));
            let shown = shown(session, planner, recording, found.flatten()).map_err(refused)?;
            known.get_or_init(|| shown).clone()
        }
    };
    let planner = planner(shown.layout);
    let mut decided = shown.decided;
    if !request.placements.is_empty() {
        let programs = planner.programs().map_err(refused)?;
        let mut plan = decided.plan;
        edit(&mut plan, &programs[0], &request.placements)?;
        decided = planner
            .predict(plan, &session.parameters)
            .map_err(refused)?;
    }
    if stage.share < 1.0 {
        decided.notes.push(format!(
            "from {} of the accesses: all of them are being read",
            percent(stage.share)
        ));
    }
    let saved = request
        .save
        .then(|| save(&decided.plan, recording))
        .transpose()?;
    let programs = planner.programs().map_err(refused)?;
    let flows = traffic(&decided.plan, &programs[0], &decided.prediction);
    Ok(json_answer(&PlanAnswer {
        origin: shown.origin,
        may_be_decided_afresh: shown.may_be_decided_afresh,
        threads_of_plan: decided
            .plan
            .threads
            .map(nearpage_plan::ThreadLayout::as_str),
        nodes: machine.nodes.len(),
        teams: decided.plan.teams.clone(),
        traffic: Flows {
            first_touch: flows.first_touch,
            planned: flows.plan,
        },
        thread_nodes: planner.thread_nodes().to_vec(),
        misfits: shown.misfits,
        saved,
        toml: decided.plan.to_toml(),
        decided,
    }))
}

fn refused(error: Error) -> Answer {
    let status = match error {
        Error::NoThreads(_) => 404,
        _ => 500,
    };
    Answer::error(status, error.to_string())
}

/// The plan file to show: the named file, else a file in the recording's folder.
fn file(
    session: &Session,
    recording: &Recording,
) -> Option<Result<(PathBuf, Plan), nearpage_plan::Error>> {
    if let Some((path, plan)) = &session.plan {
        return Some(Ok((path.clone(), plan.clone())));
    }
    let files = SHOWN.iter().map(|name| recording.folder.join(name));
    let path = files.into_iter().find(|path| path.is_file())?;
    Some(Plan::read_found(&path).map(|plan| (path, plan)))
}

/// Predicts the effect of a plan file. Without a readable file, decides a plan.
fn shown<'a>(
    session: &Session,
    planner: impl Fn(Option<ThreadPlacement>) -> Planner<'a>,
    recording: &Recording,
    file: Option<Result<(PathBuf, Plan), nearpage_plan::Error>>,
) -> Result<ShownPlan, Error> {
    let (file, unreadable) = match file.transpose() {
        Ok(file) => (file, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let layout = session.threads.or_else(|| {
        let planned = file.as_ref().and_then(|(_, plan)| plan.threads);
        planned.map(Into::into)
    });
    let planner = planner(layout);
    let Some((path, plan)) = file else {
        let policy = Policy::default();
        let decided = planner.decide(&[policy], &session.parameters)?;
        return Ok(ShownPlan {
            decided: decided.into_iter().next().expect("a plan for each program"),
            origin: format!("policy {}", policy.as_str()),
            layout,
            may_be_decided_afresh: false,
            misfits: unreadable.into_iter().collect(),
        });
    };
    let misfits = misfits(&plan, &planner.programs()?[0], recording);
    let mut decided = planner.predict(plan, &session.parameters)?;
    decided.file = Some(path.clone());
    Ok(ShownPlan {
        decided,
        origin: path.display().to_string(),
        layout,
        may_be_decided_afresh: session.plan.is_none(),
        misfits,
    })
}

fn save(plan: &Plan, recording: &Recording) -> Result<PathBuf, Answer> {
    let file: &Path = &recording.folder.join(FILE);
    let written = plan.write(file);
    written.map_err(|error| Answer::error(500, error.to_string()))?;
    Ok(file.to_owned())
}

/// Differences between a plan file and the recording.
fn misfits(plan: &Plan, input: &Input, recording: &Recording) -> Vec<String> {
    let mut misfits = Vec::new();
    let ours = &input.program;
    if !plan.program.executable.is_empty() && plan.program.executable != ours.executable {
        misfits.push(format!(
            "the plan is for {}, the recording of {}",
            plan.program.executable, ours.executable
        ));
    } else if !plan.program.build_id.is_empty()
        && !ours.build_id.is_empty()
        && plan.program.build_id != ours.build_id
    {
        misfits.push(format!(
            "{} was built again since the plan was made: objects are matched by name",
            ours.executable
        ));
    }
    let prediction = predict(plan, input);
    for (position, decision) in plan.decisions.iter().enumerate() {
        let is_used = |object: &nearpage_planner::ObjectPrediction| {
            let mut about = object.decisions.iter();
            about.any(|&at| at == position || plan.decisions[at].name == decision.name)
        };
        if !prediction.objects.iter().any(is_used) {
            misfits.push(format!(
                "no object of {} fits the decision about {}",
                recording.folder.display(),
                decision.name
            ));
        }
    }
    misfits
}

/// Replaces placements in a plan. An object that the plan leaves to first touch gets a decision of its own.
fn edit(
    plan: &mut Plan,
    input: &Input,
    placements: &BTreeMap<usize, String>,
) -> Result<(), Answer> {
    if placements.is_empty() {
        return Ok(());
    }
    let before = predict(plan, input);
    // The interleave policy makes a decision for everything that can be placed. New decisions are copied from it,
    // because it knows how to recognise each object.
    let every = Parameters {
        cost_share_min: 0.0,
        ..Parameters::default()
    };
    let everything = decide(Policy::Interleave, input, &every);
    let recognised = predict(&everything, input);
    let known = input.machine.node_ids();
    for (&object, text) in placements {
        let refuse = |what: String| Answer::error(400, what);
        let placement =
            Placement::parse_among(text, &known).map_err(|error| refuse(error.to_string()))?;
        let Some(predicted) = before.objects.get(object) else {
            return Err(refuse(format!("the prediction has no object {object}")));
        };
        if matches!(&placement, Placement::Runs(runs) if runs.is_empty()) {
            return Err(refuse(
                "runs are written in the plan file, not typed here".to_owned(),
            ));
        }
        let why = format!("set by hand to {placement}");
        let of_unmatched = |first: &usize| plan.decisions[*first].subject == Subject::Unmatched;
        match predicted
            .decisions
            .first()
            .copied()
            .filter(|first| !of_unmatched(first))
        {
            Some(first) => {
                plan.decisions[first].placement = placement;
                plan.decisions[first].why = why;
            }
            None => {
                let mut objects = recognised.objects.iter();
                let decision = objects
                    .find(|object| object.group == predicted.group)
                    .and_then(|object| object.decisions.first())
                    .map(|&first| everything.decisions[first].clone());
                let Some(mut decision) = decision else {
                    return Err(refuse(format!(
                        "{}: nothing recognises it in another run, so no plan can place it",
                        predicted.name
                    )));
                };
                decision.placement = placement;
                decision.why = why;
                plan.decisions.push(decision);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_strictly() {
        let request: PlanRequest =
            serde_json::from_str(r#"{"placements":{"3":"block"}}"#).expect("a request");
        assert_eq!(request.placements[&3], "block");
        assert!(!request.save);
        assert!(serde_json::from_str::<PlanRequest>(r#"{"file":"/etc/passwd"}"#).is_err());
    }
}
