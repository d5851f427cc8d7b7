//! `nearpage plan`: decide where each object's pages should live, and predict what that does.

mod layouts;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nearpage_attribution::Operations;
use nearpage_machine::several;
use nearpage_plan::{Decision, Phase, Placement, Plan, Subject};
use nearpage_planner::auto::Times;
use nearpage_planner::{
    FirstTouchBasis, ObjectPrediction, Outcome, Parameters, Policy, Prediction, WeightUnit, predict,
};
use nearpage_report::{bytes, printable, shorten, width, wrapped};
use serde_json::{Value, json};

use crate::Usage;
use crate::analysis::{Analysis, OnMachine, naming};
use crate::arguments::Threads;
use crate::progress::Progress;
use crate::replay_judge::{Decided, Predicted, ReplayTime, decided_within};
use crate::{arguments, phases, terminal};

pub fn main(arguments: arguments::Plan) -> anyhow::Result<ExitCode> {
    if arguments.recordings.len() > 1 {
        layouts::refuse(&arguments)?;
    }
    let mut policies: Vec<Policy> = Vec::new();
    for policy in arguments.policy.iter().map(|one| one.policy()) {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    if policies.len() > 1 && arguments.output.as_deref() == Some(Path::new("-")) {
        return Err(Usage(
            "-o - prints one plan; name a file, which several policies get their plans beside, or one policy"
                .to_owned(),
        )
        .into());
    }
    let named = arguments.machine.as_deref();
    let named = named.map(crate::machine::read).transpose()?;
    let analyses = arguments
        .recordings
        .iter()
        .map(|folder| Analysis::of(folder, Operations::Both))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let machine = named.unwrap_or_else(|| analyses[0].recording.machine.clone());
    let output = arguments
        .output
        .clone()
        .unwrap_or_else(|| arguments.recordings[0].join("plan.toml"));
    let planned = |analysis: &Analysis, program: &OnMachine, policy, limit_ns, touched| {
        planned(&arguments, analysis, program, policy, limit_ns, touched)
    };
    let (plans, choice) = match analyses.as_slice() {
        [analysis] => {
            let threads = arguments.threads.unwrap_or(Threads::Compact).placement();
            let programs = analysis.on(&machine, threads)?;
            let mut plans = Vec::new();
            for &policy in &policies {
                let output = match policies.len() {
                    1 => output.clone(),
                    _ => output.with_extension(format!("{}.toml", policy.as_str())),
                };
                for (number, program) in programs.iter().enumerate() {
                    let planned = planned(analysis, program, policy, f64::INFINITY, None)?;
                    plans.extend(planned.map(|planned| (numbered(&output, number), planned)));
                }
            }
            (plans, None)
        }
        several => {
            let auto = |analysis: &Analysis, program: &OnMachine, limit_ns, touched| {
                planned(analysis, program, Policy::Auto, limit_ns, touched)
            };
            let choice = layouts::choose(several, &machine, arguments.longer, auto)?;
            (Vec::new(), Some(choice))
        }
    };
    let plans: Vec<(PathBuf, &Planned)> = match &choice {
        Some(choice) => vec![(output.clone(), choice.taken())],
        None => plans
            .iter()
            .map(|(file, planned)| (file.clone(), planned))
            .collect(),
    };
    let mut predicted = Vec::new();
    for (file, planned) in plans {
        let plan = &planned.decided.plan;
        if output == Path::new("-") {
            terminal::print(&plan.to_toml())?;
            continue;
        }
        plan.write(&file)?;
        if arguments.json {
            let mut json = to_json(plan, &planned.prediction, &file);
            json["time"] = planned.time_json(arguments.longer);
            json["assumed"] = json!(planned.decided.assumed);
            predicted.push(json);
        } else {
            let mut text = to_text(plan, &planned.prediction, terminal::width());
            let time = planned.decided.time.as_ref();
            if let Some(predicted) = time.filter(|_| planned.prediction.accesses > 0.0) {
                let words = in_words(predicted, arguments.longer);
                let _ = writeln!(text, "{}", wrapped(&words, terminal::width()));
            }
            if let Some(words) = &planned.decided.assumed {
                let words = wrapped(&printable(&format!("assumed: {words}")), terminal::width());
                let _ = writeln!(text, "{words}");
            }
            if let Some(choice) = &choice {
                text += &format!("\n{}", choice.to_text());
            }
            let file = printable(&file.to_string_lossy());
            terminal::print(&format!("{text}\nThe plan is in {file}\n"))?;
        }
    }
    if arguments.json && output != Path::new("-") {
        let mut json = json!({ "plans": predicted });
        if let Some(choice) = &choice {
            choice.add_to(&mut json);
        }
        terminal::print(&(serde_json::to_string_pretty(&json)? + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What was decided for a program, and what that is predicted to do.
pub struct Planned {
    pub decided: Decided,
    pub prediction: Prediction,
}

impl Planned {
    /// Null where no time is predicted.
    fn time_json(&self, longer: f64) -> Value {
        self.decided.time.map_or(Value::Null, |predicted| {
            json!({
                "first_touch_ns": predicted.recorded.first_touch_ns,
                "plan_ns": predicted.recorded.planned_ns,
                "replayed": predicted.replayed,
                "longer": {
                    "times": longer,
                    "first_touch_ns": predicted.longer.first_touch_ns,
                    "plan_ns": predicted.longer.planned_ns,
                },
            })
        })
    }
}

/// What a plan does to the time, of a run as long as the recorded one and of those that it is for.
fn in_words(predicted: &Predicted, longer: f64) -> String {
    let how = match predicted.replayed {
        true => "replayed",
        false => "modelled with contention",
    };
    let mut words = format!(
        "time, {how}: {} under first touch{}",
        instead(predicted.recorded),
        by_how_much(predicted.recorded)
    );
    if longer > 1.0 {
        let _ = write!(
            words,
            "; {} with a parallel part {longer} times as long, for which it was decided{}",
            instead(predicted.longer),
            by_how_much(predicted.longer)
        );
    }
    words
}

fn instead(times: Times) -> String {
    let duration = crate::compare::duration;
    format!(
        "{} instead of {}",
        duration(times.planned_ns),
        duration(times.first_touch_ns)
    )
}

/// Nothing, where it rounds to nothing.
fn by_how_much(times: Times) -> String {
    let percent = 100.0 * (times.planned_ns / times.first_touch_ns - 1.0);
    match percent {
        -0.05..0.05 => String::new(),
        ..0.0 => format!(" ({:.1} % less)", -percent),
        _ => format!(" ({percent:.1} % more)"),
    }
}

/// `None`: no simple rule brings it within so much time. `touched`: its time under first touch, where it was replayed
/// before.
fn planned(
    arguments: &arguments::Plan,
    analysis: &Analysis,
    program: &OnMachine,
    policy: Policy,
    limit_ns: f64,
    touched: Option<ReplayTime>,
) -> anyhow::Result<Option<Planned>> {
    let input = program.input();
    let parameters = Parameters {
        replicas: arguments.replicas,
        phases: arguments.phases,
        live: arguments.live,
        longer: arguments.longer,
        ..Parameters::default()
    };
    let decided = {
        let _progress = Progress::new(format!("deciding for {}", program.name()));
        decided_within(
            limit_ns,
            touched,
            policy,
            &input,
            &parameters,
            &analysis.recording,
        )
        .map_err(naming(&analysis.recording))?
    };
    if arguments.phases && phases::is_stripped(&analysis.recording, &input.program) {
        terminal::say(&format!(
            "{} is stripped: no phase is seen that begins with a function of its own; one with its symbols shows them",
            program.name()
        ));
    }
    let is_modelled = |decided: &Decided| decided.time.is_none_or(|time| !time.replayed);
    if arguments.live && policy == Policy::Auto && decided.as_ref().is_some_and(is_modelled) {
        terminal::say(&format!(
            "--live: {} cannot be replayed on {}, so that nothing is known of what looking after it is worth",
            analysis.recording.folder.display(),
            input.machine.name
        ));
    }
    Ok(decided.map(|decided| Planned {
        prediction: predict(&decided.plan, &input),
        decided,
    }))
}

/// `plan.toml`, and `plan.2.toml` and so on for the further programs of a recording.
pub fn numbered(output: &Path, number: usize) -> PathBuf {
    match number {
        0 => output.to_owned(),
        _ => output.with_extension(format!("{}.toml", number + 1)),
    }
}

/// Objects below this share of the cost have no row, unless the plan places them.
const COST_SHARE_MIN: f64 = 0.001;
const ROWS_MAX: usize = 20;

/// The prediction as a table.
pub fn to_text(plan: &Plan, prediction: &Prediction, width: usize) -> String {
    let mut text = String::new();
    let threads = plan.teams.first().map_or(1, |team| team.threads);
    let heading = format!(
        "{} on {}, {}: where accesses would go (policy {})",
        if plan.program.executable.is_empty() {
            "program"
        } else {
            &plan.program.executable
        },
        prediction.machine,
        several(threads as u64, "thread"),
        plan.policy
    );
    let _ = writeln!(text, "{}\n", wrapped(&printable(&heading), width));
    if prediction.accesses <= 0.0 {
        let words = "no accesses were recorded that a plan could place; record for longer, or at a higher --rate";
        let _ = writeln!(text, "{}", wrapped(words, width));
        return text;
    }
    let columns = Columns::that_fit(width);
    text.push_str(
        &columns.line(
            "object",
            [
                "size",
                "cost",
                "placement",
                "first touch",
                "interleave",
                "planned",
            ]
            .map(str::to_owned),
        ),
    );
    let mut assumed = false;
    let worth_a_row = |object: &&ObjectPrediction| {
        let has_own = object.decision.is_some() && !is_of_rest(plan, object);
        object.cost_share >= COST_SHARE_MIN || has_own
    };
    let rows = prediction.objects.iter().filter(worth_a_row).take(ROWS_MAX);
    let left_out = prediction.objects.len() - rows.clone().count();
    for object in rows {
        let placement = object.decision.map_or("first-touch".to_owned(), |at| {
            let placement = &plan.decisions[at].placement;
            match is_of_rest(plan, object) {
                true => format!("rest: {placement}"),
                false => placement.to_string(),
            }
        });
        let mark = if object.basis == FirstTouchBasis::Assumed {
            "*"
        } else {
            ""
        };
        assumed |= !mark.is_empty();
        let cells = [
            bytes(object.size_bytes),
            format!("{:.1}%", object.cost_share * 100.0),
            placement,
            format!("{}{mark}", share(object.first_touch)),
            share(object.interleave),
            share(object.plan),
        ];
        text.push_str(&columns.line(&object.name, cells));
    }
    if left_out > 0 {
        let _ = writeln!(text, "… and {left_out} more that matter less");
    }
    let totals = [
        prediction.first_touch,
        prediction.interleave,
        prediction.plan,
    ];
    text.push_str(&columns.total("local accesses, all objects", totals.map(share)));
    let label = match prediction.unit {
        WeightUnit::Nanoseconds => "mean latency in ns, uncontended",
        WeightUnit::Distance => "mean distance, uncontended",
    };
    let means = totals.map(|outcome| format!("{:.0}", outcome.mean_weight));
    text.push_str(&columns.total(label, means));
    if assumed {
        let words = wrapped(
            "* assumed: first touched by the thread that allocated it",
            width,
        );
        let _ = writeln!(text, "{words}");
    }
    if let Some(live) = &plan.live {
        let mut words = "auto looks after the program while it runs".to_owned();
        if !live.parameters.is_empty() {
            let parameters = live.parameters.iter();
            let parameters: Vec<String> = parameters
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            let _ = write!(words, ", with {}", parameters.join(", "));
        }
        let _ = writeln!(text, "{}", wrapped(&printable(&words), width));
    }
    for phase in &plan.phases {
        let _ = writeln!(
            text,
            "from when {} is first executed:",
            printable(&phase.function)
        );
        if let Some(team) = plan.teams.first().filter(|_| !phase.threads.is_empty()) {
            let places: Vec<String> = phase.threads.iter().map(u32::to_string).collect();
            let _ = writeln!(
                text,
                "  threads 0, 1 … of {} take the places of {}",
                printable(&team.name),
                places.join(", ")
            );
        }
        for decision in &phase.decisions {
            let placement = match &decision.placement {
                Placement::FirstTouch => "near the thread that uses it next".to_owned(),
                placement => placement.to_string(),
            };
            let _ = writeln!(
                text,
                "  {} {placement}",
                fitted(&decision.name, columns.name)
            );
        }
    }
    text
}

/// The table's columns: the name, then size, cost, placement, first touch, interleave, planned, as far as there is
/// room.
struct Columns {
    name: usize,
    /// 0: left out.
    widths: [usize; 6],
}

/// Which of them is the placement: words, on the left.
const PLACEMENT: usize = 2;

impl Columns {
    fn that_fit(columns: usize) -> Self {
        let mut widths = [10, 7, 19, 12, 11, 8];
        let room = |widths: &[usize; 6]| columns.saturating_sub(widths.iter().sum());
        let (size, first_touch, interleave) = (0, 3, 4);
        for dispensable in [interleave, size, first_touch] {
            if room(&widths) < NAME_MIN {
                widths[dispensable] = 0;
            }
        }
        Self {
            name: room(&widths).clamp(NAME_MIN, NAME_MAX),
            widths,
        }
    }

    fn line(&self, name: &str, cells: [String; 6]) -> String {
        let mut line = fitted(name, self.name);
        for (column, (cell, width)) in cells.iter().zip(self.widths).enumerate() {
            match (width, column) {
                (0, _) => {}
                (_, PLACEMENT) => line += &format!("  {}", fitted(cell, width - 2)),
                _ => line += &format!("{cell:>width$}"),
            }
        }
        line.trim_end().to_owned() + "\n"
    }

    /// Of all objects: first touch, interleave, planned.
    fn total(&self, label: &str, figures: [String; 3]) -> String {
        let (before, after) = self.widths.split_at(PLACEMENT + 1);
        let mut line = fitted(label, self.name + before.iter().sum::<usize>());
        for (figure, width) in figures.iter().zip(after).filter(|(_, width)| **width > 0) {
            line += &format!("{figure:>width$}");
        }
        line + "\n"
    }
}

/// Columns of a name, at least and at most.
const NAME_MIN: usize = 16;
const NAME_MAX: usize = 48;

/// Is an object placed as part of the rest?
fn is_of_rest(plan: &Plan, object: &ObjectPrediction) -> bool {
    let decision = object.decision.map(|at| &plan.decisions[at].subject);
    decision == Some(&Subject::Rest)
}

/// The prediction for programs.
pub fn to_json(plan: &Plan, prediction: &Prediction, file: &Path) -> Value {
    let outcome = |outcome: Outcome| json!({ "local": outcome.local, "mean": outcome.mean_weight });
    let objects: Vec<Value> = prediction
        .objects
        .iter()
        .map(|object| {
            let decision = object.decision.map(|at| &plan.decisions[at]);
            json!({
                "name": object.name,
                "size": object.size_bytes,
                "accesses": object.accesses,
                "cost_share": object.cost_share,
                "placement": decision.map_or("first-touch".to_owned(), |decision| decision.placement.to_string()),
                "why": decision.map(|decision| decision.why.clone()),
                "of_rest": is_of_rest(plan, object),
                "first_touch_assumed": object.basis == FirstTouchBasis::Assumed,
                "first_touch": outcome(object.first_touch),
                "interleave": outcome(object.interleave),
                "plan": outcome(object.plan),
            })
        })
        .collect();
    json!({
        "file": file,
        "program": plan.program.executable,
        "machine": prediction.machine,
        "policy": plan.policy,
        "unit": prediction.unit.as_str(),
        "accesses": prediction.accesses,
        "first_touch": outcome(prediction.first_touch),
        "interleave": outcome(prediction.interleave),
        "plan": outcome(prediction.plan),
        "objects": objects,
        "live": plan.live.as_ref().map(|live| &live.parameters),
        "phases": plan.phases.iter().map(phase_json).collect::<Vec<Value>>(),
    })
}

fn phase_json(phase: &Phase) -> Value {
    let object = |decision: &Decision| {
        json!({
            "name": decision.name,
            "placement": decision.placement.to_string(),
            "why": decision.why,
        })
    };
    json!({
        "function": phase.function,
        "module": phase.module,
        "threads": phase.threads,
        "objects": phase.decisions.iter().map(object).collect::<Vec<Value>>(),
    })
}

fn share(outcome: Outcome) -> String {
    format!("{:.0} %", outcome.local * 100.0)
}

/// Made safe for a terminal, and cut or padded to so many columns.
fn fitted(text: &str, columns: usize) -> String {
    let text = shorten(&printable(text), columns);
    let padding = columns.saturating_sub(width(&text));
    format!("{text}{:padding$}", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gained_is_said_where_there_is_any() {
        let by = |planned_ns| {
            by_how_much(Times {
                first_touch_ns: 1000.0,
                planned_ns,
            })
        };
        assert_eq!(by(1000.0), "");
        assert_eq!(by(999.6), "");
        assert_eq!(by(987.0), " (1.3 % less)");
        assert_eq!(by(1010.0), " (1.0 % more)");
    }
}
