//! A recording's plan: what it decides and predicts, and what other placements would do instead.

use std::collections::BTreeMap;

use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::{Layout, Placement, Plan, Subject};
use nearpage_planner::{
    FirstTouchBasis, Input, Outcome, Parameters, Policy, Prediction, Programs, decide, predict,
    thread_nodes, traffic,
};
use nearpage_recording::Recording;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Session;
use crate::answer::Answer;
use crate::opened::{Opened, Stage};

/// What the page posts.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wish {
    /// Placements by position of the object in the prediction.
    placements: BTreeMap<usize, String>,
    /// Write the plan beside the recording.
    save: bool,
}

/// Name of the file that plans are saved in, in the recording's folder.
pub const FILE: &str = "plan.edited.toml";

pub(crate) fn answer(
    session: &Session,
    opened: &Opened,
    stage: &Stage,
    body: Option<&str>,
) -> Result<Answer, Answer> {
    if let (None, Some(known)) = (body, stage.plan.get()) {
        return Ok(known.clone());
    }
    let wish: Wish = match body {
        None => Wish::default(),
        Some(body) => serde_json::from_str(body)
            .map_err(|error| Answer::error(400, format!("plan: {error}")))?,
    };
    let machine = session.target.as_ref().unwrap_or(&opened.recording.machine);
    let attribution = &stage.attribution;
    let recording = &opened.recording;
    let programs = Programs {
        attribution,
        tables: &recording.tables,
        metadata: &recording.metadata,
    };
    let Some((pid, program)) = programs.find().into_iter().next() else {
        return Err(Answer::error(
            404,
            "no thread was recorded, there is nothing to plan",
        ));
    };
    let threads = &recording.tables.threads;
    let planned = session.plan.as_ref().and_then(|(_, plan)| plan.threads);
    let layout = planned.map_or(ThreadPlacement::Compact, ThreadPlacement::from);
    let nodes = thread_nodes(attribution, threads, machine, layout, None);
    let input = Input {
        attribution,
        tables: &recording.tables,
        machine,
        thread_nodes: &nodes,
        pid,
        program,
        page_bytes: machine.page_bytes,
    };
    let (mut plan, origin) = match &session.plan {
        Some((path, plan)) => (plan.clone(), path.display().to_string()),
        None => (
            decide(Policy::default(), &input, &Parameters::default()),
            format!("policy {}", Policy::default().as_str()),
        ),
    };
    let misfits = misfits(&plan, &input, recording);
    edit(&mut plan, &input, &wish.placements)?;
    let saved = match wish.save {
        false => None,
        true => {
            let file = recording.folder.join(FILE);
            plan.write(&file)
                .map_err(|error| Answer::error(500, error.to_string()))?;
            Some(file.display().to_string())
        }
    };
    let prediction = predict(&plan, &input);
    let mut form = form(&plan, &prediction, machine);
    let flows = traffic(&plan, &input, &prediction);
    form["traffic"] = json!({ "first_touch": flows.first_touch, "plan": flows.plan });
    form["origin"] = json!(origin);
    form["misfits"] = json!(misfits);
    form["saved"] = json!(saved);
    form["thread_nodes"] = json!(nodes);
    form["toml"] = json!(plan.to_toml());
    let answer = Answer::json(&form);
    if body.is_none() {
        let _ = stage.plan.set(answer.clone());
    }
    Ok(answer)
}

/// What a plan from a file has that the recording does not.
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
            object.decision.is_some_and(|first| {
                first == position || plan.decisions[first].name == decision.name
            })
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

/// Puts other placements in a plan. What it left to first touch gets a decision of its own.
fn edit(
    plan: &mut Plan,
    input: &Input,
    placements: &BTreeMap<usize, String>,
) -> Result<(), Answer> {
    if placements.is_empty() {
        return Ok(());
    }
    let before = predict(plan, input);
    // Interleaving decides about everything that can be placed: it knows how each is recognised.
    let every = Parameters {
        cost_share_min: 0.0,
        ..Parameters::default()
    };
    let everything = decide(Policy::Interleave, input, &every);
    let recognised = predict(&everything, input);
    let known = input.machine.node_ids();
    for (&object, text) in placements {
        let refuse = |what: String| Answer::error(400, what);
        let placement = Placement::parse_among(text, &known).map_err(refuse)?;
        let Some(predicted) = before.objects.get(object) else {
            return Err(refuse(format!("the prediction has no object {object}")));
        };
        if matches!(&placement, Placement::Runs(runs) if runs.is_empty()) {
            return Err(refuse(
                "runs are written in the plan file, not typed here".to_owned(),
            ));
        }
        let why = format!("set by hand to {placement}");
        let of_rest = |first: &usize| plan.decisions[*first].subject == Subject::Rest;
        match predicted.decision.filter(|first| !of_rest(first)) {
            Some(first) => {
                plan.decisions[first].placement = placement;
                plan.decisions[first].why = why;
            }
            None => {
                let mut objects = recognised.objects.iter();
                let decision = objects
                    .find(|object| object.group == predicted.group)
                    .and_then(|object| object.decision)
                    .map(|first| everything.decisions[first].clone());
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
    let after = predict(plan, input);
    for object in &after.objects {
        if let Some(first) = object.decision {
            let decision = &mut plan.decisions[first];
            if decision.subject != Subject::Rest {
                decision.effect.local_after = object.plan.local;
            }
        }
    }
    Ok(())
}

fn form(plan: &Plan, prediction: &Prediction, machine: &Machine) -> Value {
    let outcome = |outcome: Outcome| json!({ "local": outcome.local, "mean": outcome.mean_weight });
    let objects: Vec<Value> = prediction
        .objects
        .iter()
        .map(|object| {
            let decision = object.decision.map(|first| &plan.decisions[first]);
            json!({
                "name": object.name,
                "object": object.group,
                "size": object.size_bytes,
                "accesses": object.accesses,
                "cost_share": object.cost_share,
                "placement": decision.map_or("first-touch".to_owned(), |decision| decision.placement.to_string()),
                "why": decision.map(|decision| &decision.why),
                "assumed": object.basis == FirstTouchBasis::Assumed,
                "first_touch": outcome(object.first_touch),
                "interleave": outcome(object.interleave),
                "plan": outcome(object.plan),
            })
        })
        .collect();
    json!({
        "machine": machine.name,
        "nodes": machine.nodes.len(),
        "policy": plan.policy,
        "threads": plan.threads.map(Layout::as_str),
        "phases": plan.phases.iter().map(|phase| &phase.function).collect::<Vec<_>>(),
        "looked_after": plan.live.is_some(),
        "program": plan.program.executable,
        "teams": plan.teams,
        "unit": prediction.unit.as_str(),
        "accesses": prediction.accesses,
        "first_touch": outcome(prediction.first_touch),
        "interleave": outcome(prediction.interleave),
        "plan": outcome(prediction.plan),
        "objects": objects,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_read_strictly() {
        let wish: Wish = serde_json::from_str(r#"{"placements":{"3":"block"}}"#).expect("a wish");
        assert_eq!(wish.placements[&3], "block");
        assert!(!wish.save);
        assert!(serde_json::from_str::<Wish>(r#"{"file":"/etc/passwd"}"#).is_err());
    }
}
