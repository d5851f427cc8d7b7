//! `nearpage simulate`: full recordings' misses, replayed on a machine under policies.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use nearpage_attribution::Operations;
use nearpage_machine::{Machine, Timing, duration, several};
use nearpage_online::{Initial, Parameter};
use nearpage_plan::{Layout, Plan};
use nearpage_planner::replay::homes::{self, Homes};
use nearpage_planner::replay::process::Processes;
use nearpage_planner::replay::trace::Replayed;
use nearpage_planner::{Analysis, Planner, recorded_layout};
use nearpage_recording::Recording;
use nearpage_recording::trace::{TraceOptions, Tracing};
use nearpage_report::{
    Simulation, ThreadsElsewhere, simulation_html, simulation_json, simulation_text,
};
use nearpage_simulator::{
    Error, Job, NUMBERS, Outcome, PlanHomes, Policy, Programs, Schedule, Trace, simulate,
};

use crate::arguments::{Deciding, Only, Simulate};
use crate::progress::Progress;
use crate::record::quoted;
use crate::whole_file::WholeFile;
use crate::{Usage, analysis, terminal};

pub fn main(arguments: Simulate) -> anyhow::Result<ExitCode> {
    let mut jobs = jobs(&arguments)?;
    if let Some(path) = &arguments.schedule {
        let schedule = Arc::new(schedule(path)?);
        for job in &mut jobs {
            job.schedule = schedule.clone();
        }
    }
    let (recordings, mut traces) = read(&arguments)?;
    if let [trace] = traces.as_mut_slice()
        && jobs.len() > 1
    {
        trace.keep_steps()?;
    }
    let machine = match &arguments.machine {
        Some(name) => crate::machine::read(name)?,
        None => recordings[0].machine.clone(),
    };
    for recording in &recordings {
        serves(
            recording,
            &machine,
            arguments.machine.as_deref().unwrap_or("local"),
        )?;
    }
    let left_out = match arguments.policy.is_empty() {
        true => leave_out_senseless(&mut jobs, &machine.timing()?),
        false => None,
    };
    let together = match traces.len() {
        1 => None,
        _ => {
            let programs = traces.iter().map(|trace| trace as &dyn Trace);
            Some(Programs::new(programs.collect())?)
        }
    };
    let mut plans = Plans {
        deciding: &arguments.deciding,
        recordings: &recordings,
        traces: &traces,
        processes: recordings.iter().map(|_| OnceCell::new()).collect(),
        machine: &machine,
        notes: Vec::new(),
        elsewhere: Vec::new(),
    };
    for job in &mut jobs {
        if let Policy::Homes { name, plan } = &mut job.policy {
            let mut found = plans.find(name)?;
            *plan = match &together {
                Some(programs) => programs.plan(&found),
                None => found.remove(0),
            };
        }
    }
    let (planned, elsewhere) = (plans.notes, plans.elsewhere);
    let trace: &dyn Trace = match &together {
        Some(programs) => programs,
        None => &traces[0],
    };
    let folders: Vec<String> = recordings
        .iter()
        .map(|recording| recording.folder.display().to_string())
        .collect();
    let outcomes = replayed(trace, &machine, &jobs, &folders)?;
    let mut notes = notes(&recordings, &machine.timing()?.assumed, &outcomes);
    notes.extend(arguments.only.map(|only| {
        let (whose, other) = match only {
            Only::Kernel => ("the kernel", "programs"),
            Only::User => ("programs", "the kernel"),
        };
        format!("Misses of {whose} alone (--only): {other} compute, and miss nothing.")
    }));
    notes.extend(left_out);
    notes.extend(planned);
    notes.extend(slower_than_first_touch(&outcomes));
    notes.extend(elsewhere.iter().map(elsewhere_note));
    notes.extend(processes_note(trace, &outcomes).filter(|_| arguments.schedule.is_none()));
    notes.extend(together.as_ref().map(|together| {
        format!(
            "{} programs at once: where some mark a phase, the time from the first one's begin to the last one's end \
             counts; they share {} of files.",
            folders.len(),
            several(together.shared_pages() as u64, "page")
        )
    }));
    let simulation = Simulation {
        machine: &machine.name,
        recordings: &folders,
        page_bytes: traces[0].trace.pages().page_bytes(),
        outcomes: &outcomes,
        notes: &notes,
        threads_elsewhere: &elsewhere,
    };
    terminal::print(&match arguments.json {
        true => simulation_json(&simulation),
        false => simulation_text(&simulation, terminal::width()),
    })?;
    if let Some(path) = &arguments.html {
        WholeFile::write(path, simulation_html(&simulation).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the recordings with their traces, of which those misses count that are asked for.
fn read(arguments: &Simulate) -> anyhow::Result<(Vec<Recording>, Vec<Replayed>)> {
    let mut recordings = Vec::new();
    let mut traces = Vec::new();
    for path in &arguments.recordings {
        let folder = path.display();
        let _progress = Progress::new(format!("reading {folder}"));
        let recording = Recording::open(path)?;
        let mut trace = recording.trace()?;
        if let Some(only) = arguments.only {
            if !trace.is_of_whole_system() {
                bail!(
                    "{folder}: its kernel was not recorded, so that all misses are the program's; --only is for guests \
                     under qemu-system"
                );
            }
            trace.only(only.into());
        }
        traces.push(Replayed::new(&recording, trace));
        recordings.push(recording);
    }
    Ok((recordings, traces))
}

/// Simulates.
fn replayed(
    trace: &dyn Trace,
    machine: &Machine,
    jobs: &[Job],
    folders: &[String],
) -> anyhow::Result<Vec<Outcome>> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = folders.join(" and ");
    let _progress = Progress::new(format!("simulating {folder}"));
    simulate(trace, machine, jobs, workers).map_err(|error| match error {
        Error::Parameter(error) => anyhow::Error::from(Usage(error.to_string())),
        Error::Schedule { .. } => anyhow::Error::from(error),
        other => anyhow::Error::from(other).context(folder),
    })
}

/// Several processes take turns on the CPUs where they were traced.
fn processes_note(trace: &dyn Trace, outcomes: &[Outcome]) -> Option<String> {
    let threads = outcomes.first().map_or(0, |outcome| outcome.threads.len());
    let processes: BTreeSet<u16> = (0..threads).map(|at| trace.application(at)).collect();
    (processes.len() > 1).then(|| {
        format!(
            "{} processes: each has its first thread on the same CPU, as traced, and they take turns there; a --schedule \
             with scheduler = \"affinity\" or \"partition\" spreads them.",
            processes.len()
        )
    })
}

/// Looks for plans in recordings, and collects what has to be known of them.
struct Plans<'a> {
    deciding: &'a Deciding,
    recordings: &'a [Recording],
    traces: &'a [Replayed],
    /// By recording, for all plans.
    processes: Vec<OnceCell<Processes<'a>>>,
    machine: &'a Machine,
    notes: Vec<String>,
    elsewhere: Vec<ThreadsElsewhere>,
}

impl Plans<'_> {
    /// Where the plan of a policy's name has pages, by recording: of several programs, it need not be for all.
    fn find(&mut self, name: &str) -> anyhow::Result<Vec<PlanHomes>> {
        let wanted = name.strip_prefix(PLAN).unwrap_or(name);
        let file = Path::new(wanted);
        let planned_by = match nearpage_planner::Policy::from_name(wanted) {
            Some(policy) => PlannedBy::Policy(policy),
            None if matches!(file.try_exists(), Ok(false)) => {
                bail!("{name}: there is no file `{wanted}`, and no policy of that name that plans")
            }
            None => PlannedBy::File(Box::new(Plan::read(file)?)),
        };
        if let PlannedBy::File(plan) = &planned_by {
            let warning = plan.predicted.and_then(|predicted| predicted.warning());
            self.notes
                .extend(warning.map(|warning| format!("{name}: when it was made: {warning}.")));
        }
        let mut found = Vec::new();
        let mut refused = None;
        for number in 0..self.recordings.len() {
            match self.find_in(number, name, &planned_by) {
                Ok(homes) => found.push(Some(homes)),
                Err(error) => {
                    found.push(None);
                    refused.get_or_insert(error);
                }
            }
        }
        match refused.filter(|_| found.iter().all(Option::is_none)) {
            Some(error) => Err(error),
            None => Ok(found.into_iter().map(Option::unwrap_or_default).collect()),
        }
    }

    fn find_in(
        &mut self,
        number: usize,
        name: &str,
        planned_by: &PlannedBy,
    ) -> anyhow::Result<PlanHomes> {
        let (recording, trace) = (&self.recordings[number], &self.traces[number].trace);
        let machine = self.machine;
        let processes =
            self.processes[number].get_or_init(|| Processes::of(recording, trace, machine));
        let homes =
            match planned_by {
                PlannedBy::Policy(policy) => {
                    let (homes, notes) =
                        planned_for(*policy, self.deciding, recording, processes, machine)?;
                    self.notes
                        .extend(notes.into_iter().map(|note| format!("{name}: {note}.")));
                    homes
                }
                PlannedBy::File(plan) => {
                    let file = Path::new(name.strip_prefix(PLAN).unwrap_or(name));
                    let homes = homes::of_file(file, plan, processes)?;
                    self.elsewhere.extend(plan.threads.and_then(|layout| {
                        threads_elsewhere(name, layout, recording, trace, machine)
                    }));
                    homes
                }
            };
        self.notes.extend(homes.notes(name));
        Ok(homes.plan)
    }
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

/// Where the pages go under the plan that `nearpage plan` decides of the recording itself, and what has to be known of it.
fn planned_for(
    policy: nearpage_planner::Policy,
    deciding: &Deciding,
    recording: &Recording,
    processes: &Processes,
    machine: &Machine,
) -> anyhow::Result<(Homes, Vec<String>)> {
    let Analysis { attribution, .. } = analysis::read(&recording.folder, Operations::Both)?;
    let planner = Planner::new(recording, &attribution, machine, deciding.threads());
    let _progress = Progress::new(format!("deciding for {}", recording.folder.display()));
    let decided = planner.decide(&[policy], &deciding.parameters())?;
    let mut notes = Vec::new();
    for one in &decided {
        notes.extend(one.notes.iter().chain(&one.warnings).cloned());
    }
    let plans: Vec<Plan> = decided.into_iter().map(|one| one.plan).collect();
    Ok((Homes::of(&plans, processes)?, notes))
}

/// What takes more time than first touch, where both were simulated: that, and what to do instead.
fn slower_than_first_touch(outcomes: &[Outcome]) -> Vec<String> {
    let touch = outcomes.iter().find(|one| one.policy == "first-touch");
    let plans = outcomes.iter().filter(|one| one.policy.starts_with(PLAN));
    let slower = |plan: &&Outcome| touch.is_some_and(|touch| plan.time_ns > 1.0005 * touch.time_ns);
    let say = |plan: &Outcome| {
        let touch_ns = touch.map_or(0.0, |touch| touch.time_ns);
        format!(
            "{}: slower than first touch: {} instead of {} ({:.1} % more); run without the plan, or make one with \
             `nearpage plan --policy auto`.",
            plan.policy,
            duration(plan.time_ns),
            duration(touch_ns),
            100.0 * (plan.time_ns / touch_ns - 1.0)
        )
    };
    plans.filter(slower).map(say).collect()
}

/// What is to be known of a plan for threads that run in a layout, if they were traced in another.
fn threads_elsewhere(
    policy: &str,
    planned: Layout,
    recording: &Recording,
    trace: &nearpage_recording::trace::Trace,
    machine: &Machine,
) -> Option<ThreadsElsewhere> {
    let threads = &recording.tables.threads;
    let mut cpus = vec![Vec::new(); threads.len()];
    for traced in trace.threads() {
        if let Some(cpus) = cpus.get_mut(traced.thread.0 as usize) {
            cpus.push((traced.cpu, 1.0));
        }
    }
    // Where both layouts are the same on the machine, the planned one is what they ran in.
    let recorded = recorded_layout(threads, machine, Some(planned), |thread| {
        cpus.get(thread.0 as usize).map_or(&[], Vec::as_slice)
    });
    (recorded != Some(planned)).then(|| ThreadsElsewhere {
        policy: policy.to_owned(),
        recording: recording.folder.display().to_string(),
        planned: planned.as_str(),
        recorded: recorded.map(Layout::as_str),
    })
}

fn elsewhere_note(plan: &ThreadsElsewhere) -> String {
    let ran = plan.recorded.unwrap_or("neither compact nor scatter");
    format!(
        "{}: the plan is for threads that run {}; those of {} ran {ran}, and a replay leaves them there: only its pages are \
         placed.",
        plan.policy, plan.planned, plan.recording
    )
}

/// What `plan:` is followed by.
enum PlannedBy {
    /// A policy, of the very recording.
    Policy(nearpage_planner::Policy),
    /// A file.
    File(Box<Plan>),
}

/// What the name of a plan's policy begins with, before its file.
const PLAN: &str = "plan:";

/// Reads a schedule.
pub fn schedule(path: &Path) -> anyhow::Result<Schedule> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("{file}: cannot be read"))?;
    Ok(Schedule::from_toml(&text, &file)?)
}

/// Refuses a recording that was made for other caches, with the command that makes one.
fn serves(recording: &Recording, machine: &Machine, named: &str) -> anyhow::Result<()> {
    let folder = recording.folder.display();
    let asked = Tracing::new(machine, named, &TraceOptions::default());
    asked.map_err(|problem| anyhow::anyhow!(problem))?;
    let tracing = recording.metadata.tracing.clone().unwrap_or_default();
    tracing.serves(machine).map_err(|difference| {
        let command = &recording.metadata.command;
        let command: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        anyhow::anyhow!(
            "{folder}: {difference}; record it again: nearpage record --source full --machine {} -- {}",
            quoted(named),
            command.join(" ")
        )
    })
}

/// Policies where none is named, as the help of `--policy` says: those of Verghese's Figure 6.1.
const DEFAULT_POLICIES: [&str; 6] = [
    "round-robin",
    "first-touch",
    "post-facto",
    "migrate",
    "replicate",
    "migrate-replicate",
];

/// Leaves out what makes no sense on the machine, and says so.
fn leave_out_senseless(jobs: &mut Vec<Job>, timing: &Timing) -> Option<String> {
    let mut left_out = Vec::new();
    let mut why = None;
    jobs.retain(|job| {
        let reason = job.policy.senseless_on(timing);
        if reason.is_some() {
            left_out.push(job.policy.name().to_owned());
            why = reason;
        }
        reason.is_none()
    });
    why.map(|reason| {
        format!(
            "Left out, as they make no sense on this machine: {}: {reason}.",
            left_out.join(", ")
        )
    })
}

/// What to simulate, of what was typed.
fn jobs(arguments: &Simulate) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let named: Vec<&str> = match arguments.policy.as_slice() {
        [] => DEFAULT_POLICIES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    for name in named {
        let plan = || {
            let is_plan = name.starts_with(PLAN) && name != PLAN;
            is_plan.then(|| Policy::Homes {
                name: name.to_owned(),
                plan: PlanHomes::default(),
            })
        };
        let policy = Policy::from_name(name).or_else(plan).ok_or_else(|| {
            Usage(format!(
                "no policy `{name}`; there are {}, {PLAN}FILE, and {PLAN}auto, {PLAN}object and so on of the recording itself",
                Policy::NAMES.join(", ")
            ))
        })?;
        let mut job = Job::new(policy);
        job.initial = arguments.initial.map(Initial::from);
        if arguments.json {
            job.options.movements_max = arguments.movements;
        }
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
fn notes(recordings: &[Recording], assumed: &[String], outcomes: &[Outcome]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for note in recordings
        .iter()
        .flat_map(|recording| &recording.metadata.notes)
    {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let most = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).max().unwrap_or(0);
    if !assumed.is_empty() {
        notes.push(format!(
            "Assumed, as the machine does not say: {}.",
            assumed.join(", ")
        ));
    }
    let keep_hits = |recording: &Recording| {
        let tracing = recording.metadata.tracing.as_ref();
        tracing.is_some_and(Tracing::keep_hits)
    };
    if !recordings.iter().all(keep_hits) {
        notes.push(
            "Hits of the second and third level cost nothing here: the recording was made without --keep-hits."
                .to_owned(),
        );
    }
    let missing = most(|outcome| outcome.signals_missing);
    if missing > 0 {
        notes.push(format!(
            "{} had no recorded end, and took as long as while tracing.",
            several(missing, "wait")
        ));
    }
    let overcommitted = most(|outcome| outcome.overcommitted);
    if overcommitted > 0 {
        notes.push(format!(
            "{} did not fit in the machine's memory.",
            several(overcommitted, "page")
        ));
    }
    let left = most(|outcome| outcome.moves_left);
    if left > 0 {
        notes.push(format!(
            "Of the schedule, {} not made: the thread had ended.",
            several(left, "move")
        ));
    }
    let moved = most(|outcome| outcome.threads_moved);
    if moved > 0 {
        notes.push(format!(
            "Estimated: threads moved to other CPUs, up to {}, and were charged a refill of their caches \
             ({}); what else they would have missed there is not in the recording.",
            several(moved, "time"),
            several(most(|outcome| outcome.refilled_lines), "line")
        ));
    }
    notes
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use nearpage_machine::preset;

    use super::*;
    use crate::arguments::Arguments;

    fn typed(policy: &str, set: &[&str]) -> anyhow::Result<Vec<Job>> {
        jobs(&Simulate {
            recordings: vec!["r".into()],
            machine: None,
            deciding: Deciding::default(),
            policy: policy.split_terminator(',').map(str::to_owned).collect(),
            set: set.iter().map(|&text| text.to_owned()).collect(),
            initial: None,
            only: None,
            schedule: None,
            json: false,
            movements: 0,
            html: None,
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
    fn without_a_named_policy_those_are_run_that_make_sense() {
        let mut jobs = typed("", &["trigger=64"]).expect("jobs");
        let names = |jobs: &[Job]| -> Vec<String> {
            let names = jobs.iter().map(|job| job.policy.name().to_owned());
            names.collect()
        };
        let help = Arguments::command()
            .find_subcommand_mut("simulate")
            .expect("subcommand")
            .render_long_help()
            .to_string();
        let words: Vec<&str> = help.split_whitespace().collect();
        let said = format!(
            "[default: {}, as far as they make sense",
            names(&jobs).join(", ")
        );
        assert!(words.join(" ").contains(&said), "{help}");
        let flash = preset("flash-8").expect("preset");
        let timing = flash.timing().expect("timing");
        assert_eq!(leave_out_senseless(&mut jobs, &timing), None);
        assert_eq!(jobs.len(), DEFAULT_POLICIES.len());
        let mut one = flash;
        for node in &mut one.nodes[1..] {
            node.memory_bytes = Some(0);
        }
        let timing = one.timing().expect("timing");
        assert_eq!(
            leave_out_senseless(&mut jobs, &timing).expect("note"),
            "Left out, as they make no sense on this machine: migrate, replicate, migrate-replicate: its memory is on \
             one node, and no page could go elsewhere."
        );
        assert_eq!(names(&jobs), ["round-robin", "first-touch", "post-facto"]);
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
            ("plan:", "", "no policy `plan:`; there are first-touch, "),
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
