//! `nearpage run`: runs a command with its pages placed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use nearpage_machine::NodeId;
use nearpage_plan::{PlaceRule, ProgramImage, SearchPaths};
use nearpage_runner::{
    Placed, ReplicaSource, RunOptions, RunOutcome, UsedReplicas, end_as, launched, run,
};
use nearpage_sampler::shell_status;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Mechanism, Run};
use crate::json::{self, OwnOutput};
use crate::{Usage, history, terminal};

/// What `run --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunOutput {
    /// Version of this form.
    version: u32,
    /// Exit status of the command, as a shell shows it.
    exit_status: u8,
    /// Files of the plans in use; for kept plans, their folder.
    plans: Vec<PathBuf>,
    /// What was placed; null: there was nothing to place.
    placed: Option<Placed>,
    /// With `--replicate`, use of the copies; null: there were no copies.
    replicas: Option<UsedReplicas>,
    /// Pages that online migration moved; null: online migration did not run.
    migrated_pages: Option<u64>,
    /// Doubts about the plans, and parts of the plans that could not be followed.
    warnings: Vec<String>,
    /// Further remarks.
    notes: Vec<String>,
}

impl From<RunOutcome> for RunOutput {
    fn from(ran: RunOutcome) -> Self {
        Self {
            version: nearpage_recording::JSON_VERSION,
            exit_status: shell_status(ran.status),
            plans: ran.plans,
            placed: ran.placed,
            replicas: ran.replicas,
            migrated_pages: ran.migrated_pages,
            warnings: ran.warnings,
            notes: ran.notes,
        }
    }
}

pub fn main(arguments: Run) -> anyhow::Result<ExitCode> {
    let machine = crate::machine::read(&arguments.machine)?;
    let known = machine.node_ids();
    let rules = arguments.place.iter().map(|rule| parse(rule, &known));
    let rules = rules.collect::<anyhow::Result<Vec<_>>>()?;
    let search = SearchPaths::from_environment();
    let programs = ProgramImage::load_command(&arguments.command, &search)?;
    let replicate = arguments.replicate.iter();
    let replicate = replicate.map(|source| ReplicaSource::parse(source));
    let options = RunOptions {
        command: &arguments.command,
        programs: &programs,
        machine: &machine,
        plans: &arguments.plan,
        rules: &rules,
        threads: arguments.threads.map(|threads| threads.placement()),
        mechanism: match arguments.mechanism {
            Mechanism::Bind => nearpage_plan::Mechanism::Bind,
            Mechanism::Touch => nearpage_plan::Mechanism::Touch,
        },
        touch_group: arguments.touch_group,
        replicate: &replicate.collect::<Result<Vec<_>, _>>()?,
        replicate_bytes_max: arguments.replicate_max << 20,
    };
    // Only rank 0 prints; `--json` has the messages of each rank.
    let is_other_rank = launched().is_some_and(|launched| launched.rank > 0);
    let say = |line: &str| {
        if !arguments.quiet && !arguments.json && !is_other_rank {
            terminal::say(line);
        }
    };
    let own_output = arguments.json.then(OwnOutput::take).transpose()?;
    let begun = Instant::now();
    let ran = run(&options, &say)?;
    let elapsed = begun.elapsed();
    drop(own_output);
    let status = ran.status;
    let is_of_kept_plan = arguments.plan.is_empty() && rules.is_empty() && status.success();
    if let ([kept], Some(image)) = (ran.plans.as_slice(), programs.first())
        && is_of_kept_plan
    {
        let program = image.identity(&arguments.command[1..]);
        let compared = history::keep_run(&program, kept, elapsed);
        compared.iter().for_each(|words| say(words));
    }
    if arguments.json {
        json::print(&RunOutput::from(ran))?;
    }
    Ok(end_as(status))
}

/// Parses a rule. A rule that is invalid on any machine is a usage mistake.
fn parse(rule: &str, known: &[NodeId]) -> anyhow::Result<PlaceRule> {
    PlaceRule::parse(rule, known).map_err(|error| match PlaceRule::parse(rule, &[]) {
        Err(wording) if wording.is_usage() => Usage(error.to_string()).into(),
        _ => error.into(),
    })
}
