//! `nearpage simulate`: full recordings' misses, replayed on a machine under policies.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use nearpage_attribution::Operations;
use nearpage_machine::{Machine, ThreadPlacement, Timing, several};
use nearpage_online::{Initial, Parameter};
use nearpage_plan::{Layout, Plan};
use nearpage_planner::{Parameters, recorded_layout};
use nearpage_recording::Recording;
use nearpage_recording::trace::{TraceOptions, Tracing};
use nearpage_report::{
    Simulation, ThreadsElsewhere, simulation_html, simulation_json, simulation_text,
};
use nearpage_simulator::{
    Error, Job, NUMBERS, Outcome, PlanHomes, Policy, Programs, Schedule, Trace, simulate,
};

use crate::analysis::Analysis;
use crate::arguments::{Only, Simulate};
use crate::homes::{self, Homes, Processes};
use crate::progress::Progress;
use crate::record::quoted;
use crate::replay_judge::decided;
use crate::replayed::Replayed;
use crate::whole_file::WholeFile;
use crate::{Usage, terminal};

pub fn main(arguments: Simulate) -> anyhow::Result<ExitCode> {
    let mut jobs = jobs(&arguments)?;
    if let Some(path) = &arguments.schedule {
        let schedule = Arc::new(schedule(path)?);
        for job in &mut jobs {
            job.schedule = schedule.clone();
        }
    }
    let folders: Vec<String> = arguments
        .recordings
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let mut recordings = Vec::new();
    let mut traces = Vec::new();
    for (path, folder) in arguments.recordings.iter().zip(&folders) {
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
    if let [trace] = traces.as_mut_slice()
        && jobs.len() > 1
    {
        trace.keep_steps()?;
    }
    let machine = match &arguments.machine {
        Some(name) => crate::machine::read(name)?,
        None => recordings[0].machine.clone(),
    };
    for (recording, folder) in recordings.iter().zip(&folders) {
        serves(
            recording,
            folder,
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
    let trace: &dyn Trace = match &together {
        Some(programs) => programs,
        None => &traces[0],
    };
    let mut planned = Vec::new();
    let mut elsewhere: Vec<ThreadsElsewhere> = Vec::new();
    // By recording, for all plans.
    let processes: Vec<OnceCell<Processes>> = recordings.iter().map(|_| OnceCell::new()).collect();
    for job in &mut jobs {
        if let Policy::Homes { name, plan } = &mut job.policy {
            let wanted = name.strip_prefix(PLAN).unwrap_or(name);
            let file = Path::new(wanted);
            let planned_by = match nearpage_planner::Policy::from_name(wanted) {
                Some(policy) => PlannedBy::Policy(policy),
                None if matches!(file.try_exists(), Ok(false)) => bail!(
                    "{name}: there is no file `{wanted}`, and no policy of that name that plans"
                ),
                None => PlannedBy::File(Box::new(Plan::read(file)?)),
            };
            let mut found = Vec::new();
            let mut refused = None;
            for ((recording, trace), processes) in recordings.iter().zip(&traces).zip(&processes) {
                // Of several programs a plan need not be for all.
                let trace = &trace.trace;
                let processes = processes.get_or_init(|| Processes::of(recording, trace, &machine));
                let (found_homes, layout) = match &planned_by {
                    PlannedBy::Policy(policy) => {
                        (planned_for(*policy, recording, processes, &machine), None)
                    }
                    PlannedBy::File(plan) => (homes::of_file(file, plan, processes), plan.threads),
                };
                found.push(match found_homes {
                    Ok(found) => {
                        planned.extend(found.notes(name));
                        elsewhere.extend(layout.and_then(|layout| {
                            threads_elsewhere(name, layout, recording, trace, &machine)
                        }));
                        Some(found.plan)
                    }
                    Err(error) => {
                        refused.get_or_insert(error);
                        None
                    }
                });
            }
            if let Some(error) = refused.filter(|_| found.iter().all(Option::is_none)) {
                return Err(error);
            }
            let found = found.into_iter().map(Option::unwrap_or_default);
            let mut found: Vec<PlanHomes> = found.collect();
            *plan = match &together {
                Some(programs) => programs.plan(&found),
                None => found.remove(0),
            };
        }
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = folders.join(" and ");
    let outcomes = {
        let _progress = Progress::new(format!("simulating {folder}"));
        simulate(trace, &machine, &jobs, workers).map_err(|error| match error {
            Error::Parameter(error) => anyhow::Error::from(Usage(error.to_string())),
            Error::Schedule { .. } => anyhow::Error::from(error),
            other => anyhow::Error::from(other).context(folder.clone()),
        })?
    };
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
    notes.extend(elsewhere.iter().map(elsewhere_note));
    let threads = outcomes.first().map_or(0, |outcome| outcome.threads.len());
    let processes: BTreeSet<u16> = (0..threads).map(|at| trace.application(at)).collect();
    if processes.len() > 1 && arguments.schedule.is_none() {
        notes.push(format!(
            "{} processes: each has its first thread on the same CPU, as traced, and they take turns there; a --schedule \
             with scheduler = \"affinity\" or \"partition\" spreads them.",
            processes.len()
        ));
    }
    if let Some(together) = &together {
        notes.push(format!(
            "{} programs at once: where some mark a phase, the time from the first one's begin to the last one's end \
             counts; they share {} of files.",
            folders.len(),
            several(together.shared_pages() as u64, "page")
        ));
    }
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

/// The plan that a policy makes of the recording itself: what it could do with perfect knowledge.
/// Copies and placements that begin later are allowed, and threads run where they were traced.
fn planned_for(
    policy: nearpage_planner::Policy,
    recording: &Recording,
    processes: &Processes,
    machine: &Machine,
) -> anyhow::Result<Homes> {
    let analysis = Analysis::of(&recording.folder, Operations::Both)?;
    let parameters = Parameters {
        replicas: true,
        phases: true,
        // It is replayed as it was recorded.
        longer: 1.0,
        ..Parameters::default()
    };
    let plans: Vec<Plan> = analysis
        .on(machine, ThreadPlacement::None)?
        .iter()
        .map(|program| {
            let _progress = Progress::new(format!("deciding for {}", program.name()));
            let decided = decided(policy, &program.input(), &parameters, recording)?;
            Ok(decided.plan)
        })
        .collect::<anyhow::Result<_>>()?;
    Homes::of(&plans, processes)
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
fn serves(
    recording: &Recording,
    folder: &str,
    machine: &Machine,
    named: &str,
) -> anyhow::Result<()> {
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
