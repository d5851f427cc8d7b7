//! `nearpage simulate`: replays the misses of traces on a machine, under policies.

mod plans;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use nearpage_amount::counted;
use nearpage_attribution::Names;
use nearpage_machine::{Machine, Timing};
use nearpage_online::{Initial, Parameter};
use nearpage_plan::slower_than_first_touch;
use nearpage_planner::replay::trace::Replayed;
use nearpage_recording::Recording;
use nearpage_recording::trace::{TraceOptions, Tracing};
use nearpage_report::{
    ObjectPages, Simulation, ThreadsElsewhere, simulation_json, simulation_text,
};
use nearpage_simulator::{
    Error, Job, NUMBERS, Outcome, PlanHomes, Programs, Schedule, SimulatedPolicy, Trace, Watched,
    simulate,
};
use nearpage_view::simulation_page;

use crate::arguments::{CountedMode, Shard, Simulate};
use crate::progress::Progress;
use crate::whole_file::WholeFile;
use crate::{Usage, shell, sweep, terminal};

pub use plans::Plans;

pub fn main(arguments: Simulate) -> anyhow::Result<ExitCode> {
    if let Some(file) = &arguments.sweep {
        let shard = arguments.shard.unwrap_or(Shard::WHOLE);
        return sweep::compute(file, shard, arguments.jobs);
    }
    of_recordings(&arguments)
}

/// Replays the recordings on the command line.
fn of_recordings(arguments: &Simulate) -> anyhow::Result<ExitCode> {
    let mut jobs = scheduled(jobs(arguments)?, arguments)?;
    let (recordings, mut traces) = read(arguments)?;
    if let [trace] = traces.as_mut_slice()
        && jobs.len() > 1
    {
        trace.keep_steps()?;
    }
    let machine = match &arguments.machine {
        Some(name) => crate::machine::read(name)?,
        None => recordings[0].machine.clone(),
    };
    let named = arguments.machine.as_deref().unwrap_or("local");
    for recording in &recordings {
        serves(recording, &machine, named)?;
    }
    let left_out = match arguments.policy.is_empty() {
        true => leave_out_unsuitable(&mut jobs, &machine.timing()?),
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
        if let SimulatedPolicy::Homes { name, plan } = &mut job.policy {
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
    let outcomes = replayed(trace, &machine, &jobs, &recordings)?;
    let mut notes = notes(&recordings, &machine.timing()?.assumed, &outcomes);
    notes.extend(arguments.only.map(only_note));
    notes.extend(left_out);
    notes.extend(planned);
    notes.extend(slower_plans(&outcomes));
    notes.extend(elsewhere.iter().map(elsewhere_note));
    notes.extend(processes_note(trace, &outcomes).filter(|_| arguments.schedule.is_none()));
    notes.extend(
        together
            .as_ref()
            .map(|programs| together_note(programs, folders.len())),
    );
    let simulation = Simulation {
        machine: &machine.name,
        recordings: &folders,
        page_bytes: traces[0].trace.pages().page_bytes(),
        outcomes: &outcomes,
        notes: &notes,
        objects: &objects(&recordings, &traces),
        threads_elsewhere: &elsewhere,
    };
    print(arguments, &simulation)?;
    Ok(ExitCode::SUCCESS)
}

/// Objects on the pages of a trace. Empty for several programs, because the trace does not tell the program of a
/// process.
fn objects(recordings: &[Recording], traces: &[Replayed]) -> Vec<ObjectPages> {
    let ([recording], [trace]) = (recordings, traces) else {
        return Vec::new();
    };
    let names = Names::new(&recording.tables, &[]);
    let objects = trace.objects(recording).into_iter();
    objects
        .map(|(process, first, end, object)| ObjectPages {
            process,
            page_numbers: (first, end),
            name: names.of_object(object),
        })
        .collect()
}

/// The jobs with the schedule that the options ask for.
fn scheduled(mut jobs: Vec<Job>, arguments: &Simulate) -> anyhow::Result<Vec<Job>> {
    if let Some(path) = &arguments.schedule {
        let schedule = Arc::new(Schedule::read(path)?);
        for job in &mut jobs {
            job.schedule = schedule.clone();
        }
    }
    Ok(jobs)
}

/// Prints the results, and writes the page if an option asks for it.
fn print(arguments: &Simulate, simulation: &Simulation) -> anyhow::Result<()> {
    terminal::print(&match arguments.json {
        true => simulation_json(simulation),
        false => simulation_text(simulation, terminal::width(), terminal::colour()),
    })?;
    if let Some(path) = &arguments.html {
        let recorded = simulation.recordings.join(" and ");
        WholeFile::write(
            path,
            simulation_page(&recorded, &simulation_json(simulation))?.as_bytes(),
        )?;
        terminal::next_page(path);
    }
    Ok(())
}

/// Opens the recordings and their traces. Of guests, the traces contain only the misses that `--only` selects.
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

/// Simulates the recordings, whose trace is `trace`.
fn replayed(
    trace: &dyn Trace,
    machine: &Machine,
    jobs: &[Job],
    recordings: &[Recording],
) -> anyhow::Result<Vec<Outcome>> {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = |recording: &Recording| recording.folder.display().to_string();
    let folder = recordings
        .iter()
        .map(folder)
        .collect::<Vec<_>>()
        .join(" and ");
    let misses: u64 = recordings.iter().map(Recording::access_count).sum();
    let progress = Progress::new(format!("simulating {folder}"));
    let all = misses.saturating_mul(jobs.len() as u64);
    // Some policies read the trace an additional time before the simulation, so `read` can exceed `all`.
    let watch = |read: u64| progress.done(read.min(all), all);
    simulate(&Watched::new(trace, &watch), machine, jobs, workers).map_err(|error| match error {
        Error::Parameter(error) => anyhow::Error::from(Usage(error.to_string())),
        Error::Schedule { .. } => anyhow::Error::from(error),
        other => anyhow::Error::from(other).context(folder),
    })
}

/// A note on whose misses count.
fn only_note(only: CountedMode) -> String {
    let (whose, other) = match only {
        CountedMode::Kernel => ("the kernel", "programs"),
        CountedMode::User => ("programs", "the kernel"),
    };
    format!("Misses of {whose} alone (--only): {other} compute, and miss nothing.")
}

/// A note on the measured time of programs that run together, and on their shared pages.
fn together_note(together: &Programs, programs: usize) -> String {
    format!(
        "{programs} programs at once: where some mark a phase, the time from the first one's begin to the last one's end \
         counts; they share {} of files.",
        counted(together.shared_pages() as u64, "page")
    )
}

/// A note if several processes take turns on CPUs.
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
    for name in SimulatedPolicy::NAMES {
        let parameters =
            SimulatedPolicy::from_name(name).map_or_else(Vec::new, |policy| policy.parameters());
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

/// Notes on plans that take more time than first touch, with remedies, if first touch was simulated.
fn slower_plans(outcomes: &[Outcome]) -> Vec<String> {
    let touch = outcomes.iter().find(|one| one.policy == "first-touch");
    let slower = |plan: &Outcome| {
        let policy = plan.policy.strip_prefix(PLAN)?;
        let slower = slower_than_first_touch([touch?.time_ns, plan.time_ns], policy)?;
        Some(format!("{}: {slower}.", plan.policy))
    };
    outcomes.iter().filter_map(slower).collect()
}

fn elsewhere_note(plan: &ThreadsElsewhere) -> String {
    let ran = plan.recorded.unwrap_or("neither compact nor scatter");
    format!(
        "{}: the plan is for threads that run {}; those of {} ran {ran}, and a replay leaves them there: only its pages are \
         placed.",
        plan.policy, plan.planned, plan.recording
    )
}

/// Prefix of a policy that follows a plan; the plan's file or policy stands after it.
pub const PLAN: &str = "plan:";

/// Refuses a recording that was made for other caches; the error names the command for a suitable recording.
pub fn serves(recording: &Recording, machine: &Machine, named: &str) -> anyhow::Result<()> {
    let folder = recording.folder.display();
    let asked = Tracing::new(machine, named, &TraceOptions::default());
    asked.map_err(|problem| anyhow::anyhow!(problem))?;
    let tracing = recording.metadata.tracing.clone().unwrap_or_default();
    tracing.serves(machine).map_err(|difference| {
        anyhow::anyhow!(
            "{folder}: {difference}; record it again: nearpage trace --machine {} -- {}",
            shell::word(named),
            shell::command(&recording.metadata.command)
        )
    })
}

/// Default of `--policy`, also named in the help: the policies of Verghese's Figure 6.1.
const DEFAULT_POLICIES: [&str; 6] = [
    "round-robin",
    "first-touch",
    "post-facto",
    "migrate",
    "replicate",
    "migrate-replicate",
];

/// Removes jobs that cannot run on the machine, and returns a note about them.
fn leave_out_unsuitable(jobs: &mut Vec<Job>, timing: &Timing) -> Option<String> {
    let mut left_out = Vec::new();
    let mut why = None;
    jobs.retain(|job| {
        let reason = job.policy.unsuitable_on(timing);
        if reason.is_some() {
            left_out.push(job.policy.name().to_owned());
            why = reason;
        }
        reason.is_none()
    });
    why.map(|reason| {
        format!(
            "Left out, as they cannot run on this machine: {}: {reason}.",
            left_out.join(", ")
        )
    })
}

/// The policy of this name. The placement of a plan is not read yet.
pub fn policy(name: &str) -> anyhow::Result<SimulatedPolicy> {
    let plan = || {
        let is_plan = name.starts_with(PLAN) && name != PLAN;
        is_plan.then(|| SimulatedPolicy::Homes {
            name: name.to_owned(),
            plan: PlanHomes::default(),
        })
    };
    let known = SimulatedPolicy::from_name(name).or_else(plan);
    known.ok_or_else(|| {
        let wording = format!(
            "no policy `{name}`; there are {}, {PLAN}FILE, and {PLAN}auto, {PLAN}object and so on of the recording itself",
            SimulatedPolicy::NAMES.join(", ")
        );
        Usage(wording).into()
    })
}

/// The jobs that the arguments ask for.
fn jobs(arguments: &Simulate) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    let named: Vec<&str> = match arguments.policy.as_slice() {
        [] => DEFAULT_POLICIES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    for name in named {
        let policy = policy(name)?;
        let mut job = Job::new(policy);
        job.initial = arguments.initial.map(Initial::from);
        if arguments.json || arguments.html.is_some() {
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

/// Notes that explain the figures.
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
            counted(missing, "wait")
        ));
    }
    let overcommitted = most(|outcome| outcome.overcommitted);
    if overcommitted > 0 {
        notes.push(format!(
            "{} did not fit in the machine's memory.",
            counted(overcommitted, "page")
        ));
    }
    let left = most(|outcome| outcome.moves_left);
    if left > 0 {
        notes.push(format!(
            "Of the schedule, {} not made: the thread had ended.",
            counted(left, "move")
        ));
    }
    let moved = most(|outcome| outcome.threads_moved);
    if moved > 0 {
        notes.push(format!(
            "Estimated: threads moved to other CPUs, up to {}, and were charged a refill of their caches \
             ({}); what else they would have missed there is not in the recording.",
            counted(moved, "time"),
            counted(most(|outcome| outcome.refilled_lines), "line")
        ));
    }
    notes
}

#[cfg(test)]
mod tests;
