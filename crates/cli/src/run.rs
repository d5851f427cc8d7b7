//! `nearpage run`: run a command with its pages placed.

use std::process::ExitCode;

use nearpage_machine::NodeId;
use nearpage_plan::{PlaceRule, ProgramImage, SearchPaths};
use nearpage_runner::{ReplicaSource, RunOptions, run};

use crate::arguments::{Mechanism, Run};
use crate::{Usage, terminal};

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
    let say = |line: &str| {
        if !arguments.quiet {
            terminal::say(line);
        }
    };
    Ok(ExitCode::from(run(&options, &say)?))
}

/// A rule; one that is wrong on any machine is wrong usage.
fn parse(rule: &str, known: &[NodeId]) -> anyhow::Result<PlaceRule> {
    PlaceRule::parse(rule, known).map_err(|error| match PlaceRule::parse(rule, &[]) {
        Err(wording) if wording.is_usage() => Usage(error.to_string()).into(),
        _ => error.into(),
    })
}
