//! `nearpage simulate`: a full recording's misses, replayed on a machine under policies.

use std::fmt::Write;
use std::process::ExitCode;

use nearpage_policy::online::{Initial, Parameter};
use nearpage_recording::trace::{PageIndex, Tracing};
use nearpage_recording::{ObjectKind, Recording};
use nearpage_report::{Simulation, simulation_json, simulation_text};
use nearpage_simulator::{Error, Job, NUMBERS, Outcome, Policy, ThreadSteps, Trace, simulate};

use crate::arguments::Simulate;
use crate::progress::Progress;
use crate::{Usage, terminal};

pub fn main(arguments: Simulate) -> anyhow::Result<ExitCode> {
    let jobs = jobs(&arguments)?;
    let folder = arguments.recording.display().to_string();
    let (recording, trace) = {
        let _progress = Progress::new(format!("reading {folder}"));
        let recording = Recording::open(&arguments.recording)?;
        let trace = Replayed::new(&recording, recording.trace()?);
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
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let outcomes = {
        let _progress = Progress::new(format!("simulating {folder}"));
        simulate(&trace, &machine, &jobs, workers).map_err(|error| match error {
            Error::Parameter(error) => anyhow::Error::from(Usage(error.to_string())),
            other => anyhow::Error::from(other).context(folder.clone()),
        })?
    };
    let notes = notes(&tracing, &machine.timing()?.assumed, &outcomes);
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

/// Every parameter with its default and range, for the help.
pub fn parameters() -> String {
    let mut text = "Parameters for --set, with defaults and ranges:\n".to_owned();
    let mut list = |heading: &str, parameters: &[Parameter]| {
        let _ = writeln!(text, "\n{heading}:");
        for parameter in parameters {
            let Parameter {
                name,
                default,
                least,
                most,
                meaning,
            } = parameter;
            let most = match *most {
                u64::MAX => "any".to_owned(),
                most => most.to_string(),
            };
            let default = match *default {
                u64::MAX => "none".to_owned(),
                default => default.to_string(),
            };
            let _ = writeln!(text, "  {name}={default} ({least} to {most}): {meaning}");
        }
    };
    let mut families: Vec<(Vec<&str>, Vec<Parameter>)> = Vec::new();
    for name in Policy::NAMES {
        let parameters =
            Policy::from_name(name).map_or_else(Vec::new, |policy| policy.parameters());
        match families.last_mut() {
            _ if parameters.is_empty() => {}
            Some((names, others)) if *others == parameters => names.push(name),
            _ => families.push((vec![name], parameters)),
        }
    }
    for (names, parameters) in &families {
        list(&names.join(", "), parameters);
    }
    list("all", &NUMBERS);
    text
}

/// What to simulate, of what was typed.
fn jobs(arguments: &Simulate) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for name in &arguments.policy {
        let policy = Policy::from_name(name).ok_or_else(|| {
            Usage(format!(
                "no policy `{name}`; there are {}",
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
    for outcome in outcomes.iter().filter(|outcome| outcome.threads_moved > 0) {
        notes.push(format!(
            "{} moved threads {} times: each was charged the filling of its caches; what they miss is as before.",
            outcome.policy, outcome.threads_moved
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

/// A recording's trace as the simulator takes it.
struct Replayed {
    trace: nearpage_recording::trace::Trace,
    /// Processes, in the order of their threads.
    processes: Vec<u32>,
    /// Process of each thread.
    applications: Vec<u16>,
    /// Objects of more than a page: process, first page number, pages. In order of place; of those
    /// that begin together, the largest last.
    objects: Vec<(u32, u64, u64)>,
}

impl Replayed {
    fn new(recording: &Recording, trace: nearpage_recording::trace::Trace) -> Self {
        let mut processes = Vec::new();
        let mut number = |pid: u32| {
            let known = processes.iter().position(|&other| other == pid);
            let number = known.unwrap_or_else(|| {
                processes.push(pid);
                processes.len() - 1
            });
            u16::try_from(number).unwrap_or(u16::MAX)
        };
        let threads = &recording.tables.threads;
        let applications = trace
            .threads()
            .iter()
            .map(|thread| number(threads[thread.thread.0 as usize].pid))
            .collect();
        let page_bytes = trace.pages().page_bytes();
        let distributed = |kind: ObjectKind| {
            matches!(
                kind,
                ObjectKind::Heap | ObjectKind::Static | ObjectKind::Mapping
            )
        };
        let mut objects: Vec<(u32, u64, u64)> = recording
            .tables
            .objects
            .iter()
            .filter(|object| distributed(object.kind) && object.size_bytes > page_bytes)
            .map(|object| {
                let first = object.address / page_bytes;
                let end = (object.address + object.size_bytes).div_ceil(page_bytes);
                (object.pid, first, end - first)
            })
            .collect();
        objects.sort_unstable();
        objects.dedup();
        Self {
            trace,
            processes,
            applications,
            objects,
        }
    }
}

impl Trace for Replayed {
    fn pages(&self) -> usize {
        self.trace.pages().len()
    }

    fn page_number(&self, page: u32) -> u64 {
        let pages = self.trace.pages();
        pages.place(PageIndex(page)).address / pages.page_bytes()
    }

    fn page_application(&self, page: u32) -> u16 {
        let pid = self.trace.pid(PageIndex(page));
        let number = self.processes.iter().position(|&other| other == pid);
        number.map_or(u16::MAX, |number| number as u16)
    }

    fn application(&self, thread: usize) -> u16 {
        self.applications[thread]
    }

    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        let (pid, number) = (self.trace.pid(PageIndex(page)), self.page_number(page));
        // Of those that begin at or before the page, the last that reaches it.
        let end = self
            .objects
            .partition_point(|&(other, first, _)| (other, first) <= (pid, number));
        let before = self.objects[..end].iter().rev();
        before
            .take_while(|object| object.0 == pid)
            .take(NESTED_MOST)
            .find(|&&(_, first, pages)| number < first + pages)
            .map(|&(_, first, pages)| (first, pages))
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        let mut threads: Vec<ThreadSteps<'_>> = Vec::new();
        for (position, thread) in self.trace.threads().iter().enumerate() {
            threads.push((thread.clone(), Box::new(self.trace.steps(position))));
        }
        Ok(threads)
    }
}

/// Objects that are looked at for one that reaches a page: a mapping is cut into no more large
/// objects than that, or its pages after them are in none.
const NESTED_MOST: usize = 1000;

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
    fn help_lists_every_parameter_once_for_a_family() {
        let text = parameters();
        for line in [
            "migrate, replicate, migrate-replicate:",
            "  trigger=128 (1 to 65534): misses of a node that make a page hot",
            "out-u, out-w, in-w, out-u-local, out-w-local:",
            "  maptu=50 (0 to 1000000000000): memory accesses per microsecond above which an application is managed",
            "  scan_size_mb=256 (1 to 1000000): megabytes unmapped by a scan",
            "  memory_pages=none (1 to any): pages of memory in all",
        ] {
            assert_eq!(
                text.lines().filter(|other| *other == line).count(),
                1,
                "{line}\n{text}"
            );
        }
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
                "out-w",
                "factor=-1",
                "--set factor=-1: expected a number from 0 to 63",
            ),
            (
                "kernel-balancing",
                "source=cache",
                "--set source=cache: none of these policies has a parameter `source`",
            ),
            (
                "migrate",
                "source=asked",
                "--set source=asked: expected one of cache, ",
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
