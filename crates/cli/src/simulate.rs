//! `nearpage simulate`: a full recording's misses, replayed on a machine under policies.

use std::path::Path;
use std::process::ExitCode;

use nearpage_policy::online::Initial;
use nearpage_recording::Recording;
use nearpage_recording::trace::Tracing;
use nearpage_report::{Simulation, simulation_json, simulation_text};
use nearpage_simulator::{Error, Job, Outcome, Policy, simulate};

use crate::arguments::Simulate;
use crate::homes;
use crate::progress::Progress;
use crate::replayed::Replayed;
use crate::{Usage, terminal};

pub fn main(arguments: Simulate) -> anyhow::Result<ExitCode> {
    let mut jobs = jobs(&arguments)?;
    let folder = arguments.recording.display().to_string();
    let (recording, trace) = {
        let _progress = Progress::new(format!("reading {folder}"));
        let recording = Recording::open(&arguments.recording)?;
        let trace = Replayed(recording.trace()?);
        (recording, trace)
    };
    let machine = match &arguments.machine {
        Some(name) => crate::machine::read(name)?,
        None => recording.machine.clone(),
    };
    let tracing = recording.metadata.tracing.clone().unwrap_or_default();
    tracing.serves(&machine).map_err(|difference| {
        let named = arguments.machine.as_deref().unwrap_or("local");
        let command = recording.metadata.command.join(" ");
        anyhow::anyhow!(
            "{folder}: {difference}; record it again: nearpage record --source full --machine {named} -- {command}"
        )
    })?;
    let mut planned = Vec::new();
    for job in &mut jobs {
        if let Policy::Homes { name, homes } = &mut job.policy {
            let file = Path::new(name.strip_prefix(PLAN).unwrap_or(name));
            let found = homes::of_file(file, &recording, &trace.0, &machine)?;
            planned.extend(found.notes(name));
            *homes = found.homes;
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes = {
        let _progress = Progress::new(format!("simulating {folder}"));
        simulate(&trace, &machine, &jobs, workers).map_err(|error| match error {
            Error::Parameter(error) => anyhow::Error::from(Usage(error.to_string())),
            other => anyhow::Error::from(other).context(folder.clone()),
        })?
    };
    let mut notes = notes(&tracing, &machine.timing()?.assumed, &outcomes);
    notes.extend(planned);
    let simulation = Simulation {
        machine: &machine.name,
        recording: &folder,
        outcomes: &outcomes,
        notes: &notes,
    };
    terminal::print(&match arguments.json {
        true => simulation_json(&simulation),
        false => simulation_text(&simulation, terminal::width()),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What the name of a plan's policy begins with, before its file.
const PLAN: &str = "plan:";

/// What to simulate, of what was typed.
fn jobs(arguments: &Simulate) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for name in &arguments.policy {
        let plan = || {
            name.starts_with(PLAN).then(|| Policy::Homes {
                name: name.clone(),
                homes: Vec::new(),
            })
        };
        let policy = Policy::from_name(name).or_else(plan).ok_or_else(|| {
            Usage(format!(
                "no policy `{name}`; there are {}, {PLAN}FILE",
                Policy::NAMES.join(", ")
            ))
        })?;
        let mut job = Job::new(policy);
        job.initial = arguments.initial.map(Initial::from);
        jobs.push(job);
    }
    for setting in &arguments.set {
        let (name, value) = setting.split_once('=').ok_or_else(|| {
            Usage(format!(
                "--set {setting}: expected KEY=VALUE, such as trigger=64"
            ))
        })?;
        let mut known = false;
        for job in &mut jobs {
            known |= job
                .set(name, value)
                .map_err(|error| Usage(format!("--set {error}")))?;
        }
        if !known {
            let message =
                format!("--set {setting}: none of these policies has a parameter `{name}`");
            return Err(Usage(message).into());
        }
    }
    Ok(jobs)
}

/// What has to be known of the figures.
fn notes(tracing: &Tracing, assumed: &[String], outcomes: &[Outcome]) -> Vec<String> {
    let mut notes = Vec::new();
    if !assumed.is_empty() {
        notes.push(format!(
            "Assumed, as the machine does not say: {}.",
            assumed.join(", ")
        ));
    }
    if !tracing.keep_hits() {
        notes.push(
            "Hits of the second and third level cost nothing here: the recording was made without --keep-hits."
                .to_owned(),
        );
    }
    let missing = outcomes
        .iter()
        .map(|outcome| outcome.signals_missing)
        .max()
        .unwrap_or(0);
    if missing > 0 {
        notes.push(format!(
            "{missing} waits had no recorded end: they took as long as they did while tracing."
        ));
    }
    let overcommitted = outcomes
        .iter()
        .map(|outcome| outcome.overcommitted)
        .max()
        .unwrap_or(0);
    if overcommitted > 0 {
        notes.push(format!(
            "{overcommitted} pages did not fit in the machine's memory."
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(policy: &str, set: &[&str]) -> anyhow::Result<Vec<Job>> {
        jobs(&Simulate {
            recording: "r".into(),
            machine: None,
            policy: policy.split(',').map(str::to_owned).collect(),
            set: set.iter().map(|&text| text.to_owned()).collect(),
            initial: None,
            json: false,
        })
    }

    #[test]
    fn parameters_go_to_the_policies_that_have_them() {
        let jobs = typed("first-touch,migrate", &["trigger=64", "slice_ns=5"]).expect("jobs");
        assert!(
            !jobs[0]
                .parameters()
                .iter()
                .any(|(name, _)| *name == "trigger")
        );
        assert!(jobs[1].parameters().contains(&("trigger", "64".to_owned())));
        assert!(
            jobs.iter()
                .all(|job| job.parameters().contains(&("slice_ns", "5".to_owned())))
        );
    }

    #[test]
    fn mistakes_are_usage_errors_of_one_line() {
        for (policy, set, message) in [
            ("best", "", "no policy `best`; there are first-touch, "),
            ("migrate", "trigger", "--set trigger: expected KEY=VALUE"),
            (
                "migrate",
                "trigger=0",
                "--set trigger=0: expected a whole number from 1 to 65534",
            ),
            (
                "first-touch",
                "trigger=1",
                "--set trigger=1: none of these policies has a parameter `trigger`",
            ),
        ] {
            let set: Vec<&str> = if set.is_empty() { vec![] } else { vec![set] };
            let error = typed(policy, &set).expect_err(message);
            assert!(error.is::<Usage>(), "{error}");
            assert!(error.to_string().starts_with(message), "{error}");
        }
    }
}
