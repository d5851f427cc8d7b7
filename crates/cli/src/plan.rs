//! `nearpage plan`: decides where each object's pages should live, and predicts the effect.

mod choice;
mod inputs;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nearpage_attribution::Operations;
use nearpage_machine::Machine;
use nearpage_plan::Plan;
use nearpage_planner::recordings::{Choice, choose, differ_in_input};
use nearpage_planner::several_inputs::{AcrossInputs, plan_for_all};
use nearpage_planner::{Analysis, DecidedPlan, Planner, Policy};
use nearpage_recording::Job;
use nearpage_report::printable;
use nearpage_runner::openmp_threads_to_set;
use schemars::JsonSchema;
use serde::Serialize;

use crate::job::PlannedJob;
use crate::progress::Progress;
use crate::{Usage, analysis, arguments, job, json, shell, terminal};

pub use table::to_text;

/// What `plan --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlanOutput {
    /// Version of this form.
    version: u32,
    /// A plan for each program of the recording and each policy.
    plans: Vec<DecidedPlan>,
    /// Choice among several recordings that differ in where threads ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<Choice>,
    /// Effect of the plan on each of several recordings with different inputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<AcrossInputs>,
    /// In a plan for a job: the plans that each rank follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<PlannedJob>,
}

impl PlanOutput {
    /// Output for the plans of a job.
    pub fn of_job(plans: Vec<DecidedPlan>, job: PlannedJob) -> Self {
        Self {
            version: nearpage_recording::JSON_VERSION,
            plans,
            choice: None,
            inputs: None,
            job: Some(job),
        }
    }
}

pub fn main(arguments: arguments::Plan) -> anyhow::Result<ExitCode> {
    if let Some(job) = named_job(&arguments.recordings)? {
        return job::plan(&arguments, &job);
    }
    if arguments.recordings.len() > 1 {
        choice::refuse_policies(&arguments)?;
    }
    let mut policies: Vec<Policy> = Vec::new();
    for policy in arguments.policy.iter().map(|one| one.policy()) {
        if !policies.contains(&policy) {
            policies.push(policy);
        }
    }
    let is_printed = arguments.output.as_deref() == Some(Path::new("-"));
    if policies.len() > 1 && is_printed {
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
        .map(|folder| analysis::read(folder, Operations::Both))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let machine = named.unwrap_or_else(|| analyses[0].recording.machine.clone());
    let (mut plans, several) = match analyses.as_slice() {
        [analysis] => (decided(&arguments, analysis, &machine, &policies)?, None),
        recordings => {
            let several = one_plan(&arguments, recordings, &machine)?;
            let plan = match &several {
                SeveralRecordings::Layouts(choice) => choice.chosen().planned.clone(),
                SeveralRecordings::Inputs(inputs) => Some(inputs.planned.clone()),
            };
            (plan.into_iter().collect(), Some(several))
        }
    };
    if is_printed {
        for decided in &plans {
            terminal::print(&decided.plan.to_toml())?;
            print_summary(decided);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let output = arguments
        .output
        .clone()
        .unwrap_or_else(|| arguments.recordings[0].join("plan.toml"));
    write(&mut plans, &output, policies.len())?;
    if arguments.json {
        let version = nearpage_recording::JSON_VERSION;
        let (choice, inputs) = match several {
            Some(SeveralRecordings::Layouts(choice)) => (Some(choice), None),
            Some(SeveralRecordings::Inputs(inputs)) => (None, Some(*inputs)),
            None => (None, None),
        };
        json::print(&PlanOutput {
            version,
            plans,
            choice,
            inputs,
            job: None,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    show(
        &plans,
        several.as_ref(),
        &output,
        &shell::command(&analyses[0].recording.metadata.command),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The job to plan; `None` if recordings are named instead.
fn named_job(folders: &[PathBuf]) -> anyhow::Result<Option<Job>> {
    for folder in folders {
        let Some(job) = Job::open(folder)? else {
            continue;
        };
        if folders.len() == 1 {
            return Ok(Some(job));
        }
        let wording = format!(
            "{} is a job, which is planned alone; name only it, or the folders of ranks in it",
            folder.display()
        );
        return Err(Usage(wording).into());
    }
    Ok(None)
}

/// Prints the plans, and for each plan how to run `command` with it.
fn show(
    plans: &[DecidedPlan],
    several: Option<&SeveralRecordings>,
    output: &Path,
    command: &str,
) -> anyhow::Result<()> {
    for decided in plans {
        let mut text = to_text(decided, terminal::width(), terminal::colour());
        let of_several = match several {
            Some(SeveralRecordings::Layouts(choice)) => Some(choice::to_text(choice)),
            Some(SeveralRecordings::Inputs(inputs)) => Some(inputs::to_text(inputs)),
            None => None,
        };
        text.extend(of_several.map(|words| format!("\n{words}")));
        let file = decided.file.as_deref().unwrap_or(output);
        let named = printable(&file.to_string_lossy());
        terminal::print(&format!("{text}\nThe plan is in {named}\n"))?;
        let file = shell::path(file);
        let threads = openmp_threads([&decided.plan]);
        terminal::next(&format!("{threads}nearpage run --plan {file} -- {command}"));
    }
    Ok(())
}

/// Start of a command line that gives a run as many OpenMP threads as the recording had; empty where it gets them anyway.
pub fn openmp_threads<'a>(plans: impl IntoIterator<Item = &'a Plan>) -> String {
    let mut plans = plans.into_iter();
    plans
        .find_map(openmp_threads_to_set)
        .map_or_else(String::new, |threads| format!("OMP_NUM_THREADS={threads} "))
}

/// Result of planning for several recordings.
enum SeveralRecordings {
    /// The recordings differ in where threads ran: the fastest is planned.
    Layouts(Choice),
    /// The recordings differ in input or number of threads: one plan serves all.
    Inputs(Box<AcrossInputs>),
}

/// Makes one plan for several recordings.
fn one_plan(
    arguments: &arguments::Plan,
    recordings: &[Analysis],
    machine: &Machine,
) -> anyhow::Result<SeveralRecordings> {
    let deciding = &arguments.deciding;
    let parameters = deciding.parameters();
    let differ = differ_in_input(recordings, machine)?;
    if !differ {
        choice::refuse_threads(arguments)?;
    }
    let _progress = Progress::new("comparing recordings".to_owned());
    Ok(match differ {
        true => {
            let inputs = plan_for_all(recordings, machine, deciding.threads(), &parameters)?;
            SeveralRecordings::Inputs(Box::new(inputs))
        }
        false => SeveralRecordings::Layouts(choose(recordings, machine, &parameters)?),
    })
}

/// Plans for one recording: one for each policy and program.
fn decided(
    arguments: &arguments::Plan,
    analysis: &Analysis,
    machine: &Machine,
    policies: &[Policy],
) -> anyhow::Result<Vec<DecidedPlan>> {
    let deciding = &arguments.deciding;
    let planner = Planner::of(analysis, machine, deciding.threads());
    let _progress = Progress::deciding(&analysis.recording.folder, planner.progress());
    Ok(planner.decide(policies, &deciding.parameters())?)
}

/// Writes plans. Plans of one policy go to `output`, further programs beside it. With several policies, each has files
/// of its own.
pub fn write(plans: &mut [DecidedPlan], output: &Path, policies: usize) -> anyhow::Result<()> {
    let mut number = 0;
    for at in 0..plans.len() {
        number = match at.checked_sub(1) {
            Some(before) if plans[before].policy == plans[at].policy => number + 1,
            _ => 0,
        };
        let decided = &mut plans[at];
        let file = match policies {
            1 => output.to_owned(),
            _ => output.with_extension(format!("{}.toml", decided.policy)),
        };
        let file = numbered(&file, number);
        decided.plan.write(&file)?;
        decided.file = Some(file);
    }
    Ok(())
}

/// Prints the warnings and notes of a plan whose table is not printed.
pub fn print_summary(decided: &DecidedPlan) {
    let warnings = decided
        .warnings
        .iter()
        .map(|warning| format!("warning: {warning}"));
    warnings
        .chain(decided.notes.iter().cloned())
        .for_each(|line| terminal::say(&line));
}

/// File name of a plan: `plan.toml`, then `plan.2.toml` and so on for further programs of a recording.
pub fn numbered(output: &Path, number: usize) -> PathBuf {
    match number {
        0 => output.to_owned(),
        _ => output.with_extension(format!("{}.toml", number + 1)),
    }
}
