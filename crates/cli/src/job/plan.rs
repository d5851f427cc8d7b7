//! `nearpage plan JOB`: makes one plan, with a part for each group of ranks that behave alike.

use std::path::Path;
use std::process::ExitCode;

use nearpage_attribution::{Operations, group_ranks};
use nearpage_planner::job::{GroupDecision, JobPlanner, job_plan};
use nearpage_recording::{Job, Launcher, rank_words};
use nearpage_report::printable;
use schemars::JsonSchema;
use serde::Serialize;

use super::Ranks;
use crate::arguments::Plan;
use crate::plan::{PlanOutput, openmp_threads, print_summary, to_text};
use crate::progress::Progress;
use crate::{Usage, json, shell, terminal};

/// The plan of a job, in `plan --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlannedJob {
    /// Ranks that behave alike, the largest group first.
    groups: Vec<PlannedGroup>,
    /// Ranks with too few samples for a group. At run time they choose a part as ranks without a recording do.
    too_few_samples: Vec<u32>,
    /// Limits of the recordings, such as missing ranks and mixed versions.
    notes: Vec<String>,
}

/// A part of a job's plan.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedGroup {
    /// Ranks that follow this part.
    ranks: Vec<u32>,
    /// Local ranks of the group. A rank without a recording follows this part if its local rank is in the list.
    local_ranks: Vec<u32>,
    /// Rank whose recording the part was decided from.
    decided_from: u32,
    /// Positions in `plans`, one for each program of the ranks.
    plans: Vec<usize>,
}

pub fn plan(arguments: &Plan, job: &Job) -> anyhow::Result<ExitCode> {
    let [policy] = arguments.policy.as_slice() else {
        let wording = "a job has one plan: name one --policy";
        return Err(Usage(wording.to_owned()).into());
    };
    let named = arguments.machine.as_deref();
    let machine = named.map(crate::machine::read).transpose()?;
    let mut job = job.clone();
    let read = Ranks::read(&mut job, Operations::Both)?;
    let groups = group_ranks(&read.profiles);
    let planner = JobPlanner {
        job: &job,
        profiles: &read.profiles,
        groups: &groups,
        machine: machine.as_ref(),
        threads: arguments.deciding.threads(),
    };
    let mut decisions = {
        let progress = Progress::new("deciding".to_owned());
        let begun = |rank| progress.say(format!("deciding from rank {rank}"));
        planner.decide(policy.policy(), &arguments.deciding.parameters(), &begun)?
    };
    let plan = job_plan(&decisions);
    if arguments.output.as_deref() == Some(Path::new("-")) {
        terminal::print(&plan.to_toml())?;
        job.notes.iter().for_each(|note| terminal::say(note));
        decisions
            .iter()
            .flat_map(|one| &one.plans)
            .for_each(print_summary);
        return Ok(ExitCode::SUCCESS);
    }
    let output = arguments.output.clone();
    let output = output.unwrap_or_else(|| job.folder.join("plan.toml"));
    plan.write(&output)?;
    for decided in decisions.iter_mut().flat_map(|one| &mut one.plans) {
        decided.file = Some(output.clone());
    }
    let too_few = groups.too_few.iter().map(|&at| job.ranks[at].rank);
    let too_few: Vec<u32> = too_few.collect();
    if arguments.json {
        json::print(&output_of(decisions, too_few, job.notes))?;
        return Ok(ExitCode::SUCCESS);
    }
    job.notes.iter().for_each(|note| terminal::say(note));
    show(&job, &decisions, &too_few, &output)?;
    Ok(ExitCode::SUCCESS)
}

fn output_of(
    decisions: Vec<GroupDecision>,
    too_few_samples: Vec<u32>,
    notes: Vec<String>,
) -> PlanOutput {
    let mut plans = Vec::new();
    let mut groups = Vec::new();
    for decision in decisions {
        let first = plans.len();
        plans.extend(decision.plans);
        groups.push(PlannedGroup {
            ranks: decision.ranks,
            local_ranks: decision.local_ranks,
            decided_from: decision.decided_from,
            plans: (first..plans.len()).collect(),
        });
    }
    PlanOutput::of_job(
        plans,
        PlannedJob {
            groups,
            too_few_samples,
            notes,
        },
    )
}

/// Prints each part, and how to run the job with the plan.
fn show(
    job: &Job,
    decisions: &[GroupDecision],
    too_few: &[u32],
    output: &Path,
) -> anyhow::Result<()> {
    let all = job.ranks.len();
    let mut text = String::new();
    for decision in decisions {
        text += &format!(
            "{} ({} of {all}), decided from rank {}\n",
            rank_words(&decision.ranks),
            decision.ranks.len(),
            decision.decided_from
        );
        for decided in &decision.plans {
            text += &to_text(decided, terminal::width(), terminal::colour());
            text.push('\n');
        }
    }
    if !too_few.is_empty() {
        text += &format!(
            "{}: too few samples to be in a group\n",
            rank_words(too_few)
        );
    }
    text += "Ranks that are in no group follow the part of most ranks with their local rank, else the first part.\n";
    let file = printable(&output.to_string_lossy());
    terminal::print(&format!("{text}The plan is in {file}\n"))?;
    let launch = launch_of(job);
    let first = job.ranks.first();
    let command = shell::command(first.map_or(&[], |rank| &rank.metadata.command));
    let plans = decisions.iter().flat_map(|decision| &decision.plans);
    let threads = openmp_threads(plans.map(|decided| &decided.plan));
    terminal::next(&format!(
        "{threads}{launch}nearpage run --plan {} -- {command}",
        shell::path(output)
    ));
    Ok(())
}

/// Start of a command line with the job's launcher, such as `srun -n 8 `.
fn launch_of(job: &Job) -> String {
    let launched = job
        .ranks
        .iter()
        .find_map(|rank| rank.metadata.launched.as_ref());
    let launcher = launched.map(|launched| launched.launcher);
    let size = job
        .size
        .map_or_else(|| "RANKS".to_owned(), |size| size.to_string());
    match launcher {
        None => String::new(),
        Some(Launcher::Slurm) => format!("srun -n {size} "),
        Some(Launcher::Flux) => format!("flux run -n {size} "),
        Some(Launcher::Pals | Launcher::IntelMpi | Launcher::Mpich) => {
            format!("mpiexec -n {size} ")
        }
        Some(Launcher::OpenMpi | Launcher::Pmix | Launcher::Pmi) => format!("mpirun -n {size} "),
    }
}
