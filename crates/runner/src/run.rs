//! Runs a command with its pages placed, its files replicated or its pages migrated, as plans and options say.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use nearpage_amount::counted;
use nearpage_files::TemporaryFolder;
use nearpage_live::{LivePolicy, RespectedPolicies, balancing};
use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::{
    JobPlan, Mechanism, PartChoice, PlaceRule, Placement, Plan, PlanFile, ProgramImage, Rank, Store,
};
use nearpage_recording::{Launched, Messages, NoLog, rank_words};
use nearpage_sampler::Target;

use crate::Reporter;
use crate::command::run_to_end;
use crate::environment::Environment;
use crate::error::{Error, IoContext, NO_FOLDER};
use crate::launcher::launched;
use crate::libraries::{PreloadLibrary, kept_out};
use crate::messages;
use crate::online_migration::{OnlineMigration, OnlineMigrationOptions};
use crate::placing::{Placed, Placing, PlacingOptions};
use crate::replicas::{ReplicaSource, Replicas, UsedReplicas};

/// Options of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions<'a> {
    /// The command and its arguments.
    pub command: &'a [OsString],
    /// Programs that the command names; the first is the command's own program.
    pub programs: &'a [ProgramImage],
    /// Machine on which the command runs.
    pub machine: &'a Machine,
    /// Plan files. Without plans and other options, the newest kept plan that fits the command is used.
    pub plans: &'a [PathBuf],
    /// Placements by hand, which take precedence over the plans.
    pub rules: &'a [PlaceRule],
    /// Thread layout; `None`: the layout that the plans need.
    pub threads: Option<ThreadPlacement>,
    /// Mechanism that puts pages on their nodes.
    pub mechanism: Mechanism,
    /// With [`Mechanism::Touch`]: number of heap objects for which the nodes are visited once.
    pub touch_group: u32,
    /// Files that are copied to each node.
    pub replicate: &'a [ReplicaSource],
    /// Limit of the memory of all copies, in bytes.
    pub replicate_bytes_max: u64,
}

impl RunOptions<'_> {
    fn places_nothing(&self) -> bool {
        self.plans.is_empty() && self.rules.is_empty() && self.threads.is_none()
    }

    fn plans(&self, ran: &mut RunOutcome, say: Reporter<'_>) -> Result<Vec<Plan>, Error> {
        if self.places_nothing() && self.replicate.is_empty() {
            let store = Store::of_user().ok_or(Error::NoHomeFolder)?;
            return kept_plans(&store, self, ran, say);
        }
        ran.plans = self.plans.to_vec();
        let mut plans = Vec::new();
        for path in self.plans {
            match PlanFile::read(path)? {
                PlanFile::Program(plan) => plans.push(*plan),
                PlanFile::Job(mut job) => {
                    let (part, note) = part_of_rank(&job, launched().as_ref());
                    if let Some(note) = note {
                        ran.note(format!("{}: {note}", path.display()), say);
                    }
                    plans.append(&mut job.groups[part].plans);
                }
            }
        }
        Ok(plans)
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOutcome {
    /// Exit status of the command.
    pub status: ExitStatus,
    /// Files of the plans in use; for kept plans, their folder.
    pub plans: Vec<PathBuf>,
    /// Result of the placement; `None`: there was nothing to place.
    pub placed: Option<Placed>,
    /// Use of the copies of files; `None` without copies.
    pub replicas: Option<UsedReplicas>,
    /// Pages that online migration moved; `None`: online migration did not run.
    pub migrated_pages: Option<u64>,
    /// Doubts about the plans, and parts of the plans that cannot be followed.
    pub warnings: Vec<String>,
    /// Further messages from before the run.
    pub notes: Vec<String>,
}

impl RunOutcome {
    fn warn(&mut self, line: String, say: Reporter<'_>) {
        say(&line);
        self.warnings.push(line);
    }

    fn note(&mut self, line: String, say: Reporter<'_>) {
        say(&line);
        self.notes.push(line);
    }
}

/// Runs a command to its end. `say` gets each message at once; the outcome contains the messages as well.
///
/// # Errors
/// Plans, rules or files to replicate cannot be used here, or the command cannot be run.
pub fn run(options: &RunOptions<'_>, say: Reporter<'_>) -> Result<RunOutcome, Error> {
    let mut ran = RunOutcome::default();
    let plans = options.plans(&mut ran, say)?;
    // Replication alone needs no plan.
    let placing = match options.places_nothing() && !options.replicate.is_empty() {
        true => None,
        false => Some(Placing::new(
            &PlacingOptions {
                machine: options.machine,
                plans: &plans,
                rules: options.rules,
                threads: options.threads,
                mechanism: options.mechanism,
                touch_group: options.touch_group,
            },
            options.programs,
        )?),
    };
    for warning in warnings(&plans) {
        ran.warn(warning, say);
    }
    let library = PreloadLibrary::find()?;
    for warning in placing.iter().flat_map(|placing| &placing.warnings) {
        ran.warn(warning.clone(), say);
    }
    let kept_out = options.programs.first().and_then(kept_out);
    refuse_static(options.programs, kept_out)?;
    let nodes = options.machine.nodes_with_memory();
    if nodes.len() < 2 {
        let line = "this machine has one memory node: pages have nowhere else to go";
        ran.note(line.to_owned(), say);
    }
    if options.rules.is_empty() && leave_all_to_first_touch(&plans) {
        ran.note("the plan leaves all pages to first touch".to_owned(), say);
    }
    let replicas = Replicas::make(
        options.replicate,
        options.programs,
        &nodes,
        options.replicate_bytes_max,
    )?;
    for line in replicas.notes() {
        ran.note(line.clone(), say);
    }

    let mut environment = placing.as_ref().map_or_else(Vec::new, Placing::environment);
    environment.extend(replicas.environment());
    let messages = TemporaryFolder::new("messages").context(NO_FOLDER)?;
    match kept_out {
        // The program runs unchanged.
        Some(reason) => {
            let name = Path::new(&options.command[0]).display();
            ran.warn(format!("nothing is placed in {name}: {reason}"), say);
            environment.clear();
        }
        None => {
            environment.push(("LD_PRELOAD".into(), library.ld_preload()));
            if let Err(note) = messages::add_file(messages.path(), &mut environment) {
                ran.warn(note, say);
            }
        }
    }
    let online_migration = plans.iter().find_map(|plan| plan.online_migration.as_ref());
    let policy = online_migration
        .filter(|_| nodes.len() > 1)
        .map(online_policy);
    match policy.transpose()? {
        None => ran.status = run_to_end(options.command, environment)?,
        Some(policy) => run_migrating(policy, options.command, environment, &mut ran, say)?,
    }
    for line in Messages::read(messages.path()).lines {
        ran.note(line, say);
    }
    ran.placed = placing.map(|placing| placing.placed());
    ran.replicas = replicas.used();
    let placed = ran.placed.iter().flat_map(|placed| &placed.words);
    placed.for_each(|line| say(line));
    if let Some(used) = &ran.replicas {
        say(&used.words());
    }
    Ok(ran)
}

/// The part of a job's plan for this process, and a note with the reason unless this rank was recorded.
fn part_of_rank(job: &JobPlan, launched: Option<&Launched>) -> (usize, Option<String>) {
    let whose = |part: usize| {
        let ranks = job.groups[part].ranks.as_slice().iter();
        rank_words(&ranks.map(|rank| rank.0).collect::<Vec<u32>>())
    };
    let Some(Launched {
        rank,
        local_rank,
        size,
        ..
    }) = launched
    else {
        let note = format!(
            "no launcher says which rank this is, so it follows the part of the largest group, {}; start `nearpage run` \
             by the launcher (srun nearpage run …)",
            whose(0)
        );
        return (0, Some(note));
    };
    let (part, _, why) = job.part(Rank(*rank), local_rank.map(Rank));
    let why = match why {
        // Only the first rank prints a note.
        PartChoice::Recorded if *rank == 0 => return (part, others_note(job, *size)),
        PartChoice::Recorded => return (part, None),
        PartChoice::LocalRank(local) => {
            format!("to which most ranks with local rank {local} belong")
        }
        PartChoice::Largest => "the largest group".to_owned(),
    };
    let note = format!(
        "rank {rank} is in no group of the plan, so it follows the part of {}, {why}",
        whose(part)
    );
    (part, Some(note))
}

/// A note on the launched ranks that are in no group of a plan.
fn others_note(job: &JobPlan, size: Option<u32>) -> Option<String> {
    let is_planned = |rank: &u32| {
        let mut groups = job.groups.iter();
        groups.any(|group| group.ranks.contains(Rank(*rank)))
    };
    let others: Vec<u32> = (0..size?).filter(|rank| !is_planned(rank)).collect();
    (!others.is_empty()).then(|| {
        format!(
            "{} in no group of the plan; such a rank follows the part of most ranks with its local rank, else the \
             largest group's",
            rank_words(&others)
        )
    })
}

/// Warnings about plans that were predicted to be slower than first touch, with remedies.
fn warnings(plans: &[Plan]) -> Vec<String> {
    let warning = |plan: &Plan| {
        let warning = plan.warning()?;
        Some(format!(
            "warning: {warning} (predicted for {})",
            plan.machine
        ))
    };
    plans.iter().filter_map(warning).collect()
}

/// Do the plans leave all pages to first touch?
fn leave_all_to_first_touch(plans: &[Plan]) -> bool {
    let leaves = |plan: &Plan| {
        let mut decisions = plan.all_decisions();
        plan.online_migration.is_none()
            && decisions.all(|decision| decision.placement == Placement::FirstTouch)
    };
    !plans.is_empty() && plans.iter().all(leaves)
}

/// Refuses a static program: it has no loader, so the preload library could not place anything.
fn refuse_static(programs: &[ProgramImage], kept_out: Option<NoLog>) -> Result<(), Error> {
    match (programs.first(), kept_out) {
        (Some(image), Some(NoLog::StaticallyLinked)) => {
            Err(Error::StaticallyLinked(image.program.path.clone()))
        }
        _ => Ok(()),
    }
}

/// The policy for online migration, with the plan's parameters.
fn online_policy(planned: &nearpage_plan::OnlineMigration) -> Result<LivePolicy, Error> {
    let mut policy = LivePolicy::from_name("auto").expect("a live policy has this name");
    // The call enables moves of threads. A plan's parameters, set afterwards, can disable them.
    policy.allow_thread_moves();
    for (name, value) in &planned.parameters {
        if !policy.set(name, &value.to_string())? {
            return Err(Error::UnknownParameter(name.clone()));
        }
    }
    Ok(policy)
}

/// Runs a command with online migration if possible, else without.
fn run_migrating(
    policy: LivePolicy,
    command: &[OsString],
    environment: Environment,
    ran: &mut RunOutcome,
    say: Reporter<'_>,
) -> Result<(), Error> {
    let options = OnlineMigrationOptions {
        environment: environment.clone(),
        moves_threads: true,
        // The preload library's policies only prefer nodes. If the command inherits a policy, that policy cannot be
        // told apart from the library's.
        respected_policies: match balancing::is_unbound() {
            true => RespectedPolicies::Strict,
            false => RespectedPolicies::All,
        },
        ..OnlineMigrationOptions::new(Target::Command(command.to_vec()), policy)
    };
    match OnlineMigration::start(&options, &|_| ()) {
        Ok(migration) => {
            let migrated = migration.finish(&mut |_| (), &|_| ())?;
            let moved = counted(migrated.moved_pages, "page");
            say(&format!(
                "online migration by auto, as the plan asks: {moved} moved"
            ));
            ran.migrated_pages = Some(migrated.moved_pages);
            ran.status = migrated.status;
        }
        // The command has not run. If the command itself causes the error, the second attempt reports it.
        Err(error) => {
            let line = format!(
                "no online migration, though the plan asks for it: {}",
                with_causes(&error)
            );
            ran.warn(line, say);
            ran.status = run_to_end(command, environment)?;
        }
    }
    Ok(())
}

/// An error, followed by its causes.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

/// The newest kept plans that fit the command.
fn kept_plans(
    store: &Store,
    options: &RunOptions<'_>,
    ran: &mut RunOutcome,
    say: Reporter<'_>,
) -> Result<Vec<Plan>, Error> {
    let (Some(program), [_, arguments @ ..]) = (options.programs.first(), options.command) else {
        return Err(Error::NoCommand);
    };
    let program = program.identity(arguments);
    let (kept, warnings) = store.newest_fitting(&program);
    for warning in warnings {
        ran.warn(warning, say);
    }
    let kept = kept.ok_or(Error::NoKeptPlan(program.executable))?;
    let arguments = match kept.same_arguments {
        true => "",
        false => ", made with other arguments",
    };
    let line = format!("using the kept plan {}{arguments}", kept.path.display());
    ran.note(line, say);
    ran.plans = vec![kept.path];
    Ok(kept.plans)
}

#[cfg(test)]
mod tests;
