//! `nearpage optimize`: records, plans, runs the command placed, and compares.

use std::ffi::OsString;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use nearpage_amount::{self as amount, percent, signed_change, time};
use nearpage_attribution::{Attribution, Operations};
use nearpage_machine::Machine;
use nearpage_plan::{Plan, ProgramImage, SearchPaths, Store};
use nearpage_planner::{Analysis, DecidedPlan, Planner};
use nearpage_report::printable;
use nearpage_runner::{
    ComparedRun, Environment, Observed, Placing, PlacingOptions, PreloadLibrary, default_output,
};
use nearpage_sampler::Target;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::Optimize;
use crate::history::{self, Measured};
use crate::json::{self, OwnOutput};
use crate::{analysis, plan, shell, terminal};

/// Machine for the prediction, if this machine has a single node and no other was named.
const MACHINE_DEFAULT: &str = "opteron-4";
/// Verdicts without a placed run.
const NOWHERE_TO_PLACE: &str = "this machine has one memory node: there is nothing to place here";
const NOTHING_TO_PLACE: &str = "no object is worth placing: nothing to compare";
/// Medians of three and more runs with a smaller difference count as equal.
const NOISE_OF_MEDIANS: f64 = 0.02;
/// Single runs of one program differ by this share on busy machines.
const NOISE_OF_SINGLE_RUNS: f64 = 0.10;

/// What `optimize --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct OptimizeOutput {
    /// Version of this form.
    version: u32,
    /// A plan for each program.
    plans: Vec<DecidedPlan>,
    /// Folder of the kept plan; null: no plan is kept.
    kept: Option<PathBuf>,
    /// Result of the comparison, in words.
    verdict: String,
    /// Comparison of the runs without and with placed pages; null: there was no placed run.
    comparison: Option<Comparison>,
}

pub fn main(arguments: Optimize) -> anyhow::Result<ExitCode> {
    let search = SearchPaths::from_environment();
    let programs = ProgramImage::load_command(&arguments.command, &search)?;
    let here = crate::machine::read("local")?;
    let can_place = here.nodes_with_memory().len() > 1;
    let machine = crate::machine::read(match arguments.machine.as_str() {
        "local" if !can_place => MACHINE_DEFAULT,
        chosen => chosen,
    })?;
    let output = arguments
        .output
        .clone()
        .unwrap_or_else(|| default_output(&Target::Command(arguments.command.clone())));
    fs::create_dir_all(&output)
        .with_context(|| format!("{}: can't make the folder", output.display()))?;
    let say = terminal::say;

    let own_output = arguments.json.then(OwnOutput::take).transpose()?;
    say("recording the command as it is");
    let first = record(&arguments, &output.join("before"), Vec::new())?;
    let before = vec![first];
    let analysis = analysis::read(&output.join("before"), Operations::Both)?;
    let plans = decided(&arguments, &analysis, &machine, &output)?;
    let is_worthwhile = plans.iter().any(|plan| !plan.plan.decisions.is_empty());
    let kept = match is_worthwhile {
        true => keep(&programs, &arguments.command, &plans),
        false => None,
    };
    let (comparison, outcome) = match can_place && is_worthwhile {
        true => {
            let runs = Runs {
                before,
                after: Vec::new(),
                outcome: Vec::new(),
            };
            let runs = runs.placed(&arguments, &here, &plans, &programs, &output)?;
            let placed = analysis::read(&output.join("after"), Operations::Both)?;
            let comparison = Comparison {
                before: MeasuredRuns::new(&runs.before, &analysis.attribution),
                after: MeasuredRuns::new(&runs.after, &placed.attribution),
            };
            (Some(comparison), runs.outcome)
        }
        false => (None, Vec::new()),
    };
    drop(own_output);
    let compared = comparison.as_ref().and_then(|comparison| {
        compared(
            &arguments,
            comparison,
            &here,
            &programs,
            &plans,
            kept.as_ref(),
        )
    });

    let verdict = verdict(comparison.as_ref(), can_place, arguments.runs);
    let loses = comparison
        .as_ref()
        .is_some_and(|it| it.loses(arguments.runs));
    if let (true, Some(kept)) = (loses, &kept) {
        Store::of_user()
            .context("the kept plan's folder went away")?
            .mark_lost(kept, &verdict)?;
    }
    if arguments.json {
        json::print(&OptimizeOutput {
            version: nearpage_recording::JSON_VERSION,
            plans,
            kept,
            verdict,
            comparison,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    outcome.iter().for_each(|line| say(line));
    let mut text = tables(&plans, comparison.as_ref(), compared);
    let is_kept = kept.is_some() && !loses;
    text.push_str(&ending(&verdict, &output, is_kept));
    terminal::print(&text)?;
    terminal::next(&next_command(&arguments.command, &output, is_kept));
    Ok(ExitCode::SUCCESS)
}

/// The command to type next: run under the kept plan, or else show the recording.
fn next_command(command: &[OsString], output: &Path, is_kept: bool) -> String {
    if !is_kept {
        return format!("nearpage report {}", shell::path(&output.join("before")));
    }
    let words: Vec<String> = command.iter().map(shell::word).collect();
    format!("nearpage run -- {}", words.join(" "))
}

/// Result of the comparison, in words.
fn verdict(comparison: Option<&Comparison>, can_place: bool, runs: u32) -> String {
    match comparison {
        None if !can_place => NOWHERE_TO_PLACE.to_owned(),
        None => NOTHING_TO_PLACE.to_owned(),
        Some(comparison) => comparison.verdict(runs),
    }
}

/// Keeps the measurement beside the prediction for the costliest program, and returns both in words. `None` if the
/// prediction was for another machine.
fn compared(
    arguments: &Optimize,
    comparison: &Comparison,
    here: &Machine,
    programs: &[ProgramImage],
    plans: &[DecidedPlan],
    kept: Option<&PathBuf>,
) -> Option<String> {
    if arguments.machine != "local" {
        return None;
    }
    history::keep(&Measured {
        program: &programs.first()?.identity(&arguments.command[1..]),
        machine: here,
        decided: plans.first()?,
        first_touch_ns: comparison.before.elapsed_ns,
        planned_ns: comparison.after.elapsed_ns,
        runs: arguments.runs,
        kept,
    })
}

/// Tables of the plans and of the comparison.
fn tables(
    plans: &[DecidedPlan],
    comparison: Option<&Comparison>,
    compared: Option<String>,
) -> String {
    let mut text = String::new();
    for plan in plans {
        text.push_str(&plan::to_text(plan, terminal::width(), terminal::colour()));
        text.push('\n');
    }
    if let Some(comparison) = comparison {
        text.push_str(&comparison.to_text());
        text.extend(compared.map(|words| words + "\n"));
        text.push('\n');
    }
    text
}

/// Last lines of the output: the verdict, and the file of the plan.
fn ending(verdict: &str, output: &Path, is_kept: bool) -> String {
    let file = output.join("plan.toml");
    let file = printable(&file.to_string_lossy());
    let kept = match is_kept {
        true => "; `nearpage run` uses it for this command from now on",
        false => "",
    };
    format!("{verdict}\nThe plan is in {file}{kept}\n")
}

/// Decides for each recorded program, and writes the plans.
fn decided(
    arguments: &Optimize,
    analysis: &Analysis,
    machine: &Machine,
    output: &Path,
) -> anyhow::Result<Vec<DecidedPlan>> {
    let deciding = &arguments.deciding;
    let planner = Planner::of(analysis, machine, deciding.threads());
    let mut plans = planner.decide(&[arguments.policy.policy()], &deciding.parameters())?;
    plan::write(&mut plans, &output.join("plan.toml"), 1)?;
    Ok(plans)
}

/// Runs of the command without and with placed pages.
struct Runs {
    before: Vec<Observed>,
    after: Vec<Observed>,
    /// What was placed, in words.
    outcome: Vec<String>,
}

impl Runs {
    /// Runs the command with placed pages, then adds further runs of each kind in turn.
    fn placed(
        mut self,
        arguments: &Optimize,
        here: &Machine,
        plans: &[DecidedPlan],
        programs: &[ProgramImage],
        output: &Path,
    ) -> anyhow::Result<Self> {
        let say = terminal::say;
        let library = PreloadLibrary::find()?;
        let plans: Vec<Plan> = plans.iter().map(|decided| decided.plan.clone()).collect();
        let options = PlacingOptions {
            plans: &plans,
            ..PlacingOptions::new(here)
        };
        let placing = Placing::new(&options, programs)?;
        placing.warnings.iter().for_each(|warning| say(warning));
        let environment = || {
            let mut environment = placing.environment();
            environment.push(("LD_PRELOAD".into(), library.ld_preload()));
            environment
        };
        say("recording it with its pages placed");
        self.after
            .push(record(arguments, &output.join("after"), environment())?);
        self.outcome = placing.outcome();
        for run in 2..=arguments.runs {
            say(&format!("run {run} of {} of each kind", arguments.runs));
            let [before, after] =
                ["before", "after"].map(|kind| output.join(format!("{kind}-{run}")));
            self.before.push(record(arguments, &before, Vec::new())?);
            self.after.push(record(arguments, &after, environment())?);
        }
        Ok(self)
    }
}

fn record(
    arguments: &Optimize,
    output: &Path,
    environment: Environment,
) -> anyhow::Result<Observed> {
    let run = ComparedRun {
        output: output.to_owned(),
        command: arguments.command.clone(),
        rate_hz: arguments.rate,
        environment,
    };
    Ok(run.observe(&terminal::say)?)
}

/// Keeps the plan for later runs; `None` without a home folder.
fn keep(
    programs: &[ProgramImage],
    command: &[OsString],
    decided: &[DecidedPlan],
) -> Option<PathBuf> {
    let program = programs.first()?.identity(&command[1..]);
    let plans: Vec<Plan> = decided.iter().map(|one| one.plan.clone()).collect();
    let kept = Store::of_user()?.keep(&program, &plans);
    kept.inspect_err(|error| {
        terminal::say(&format!("the plan is not kept for later runs: {error}"))
    })
    .ok()
}

/// Figures of one kind of run.
#[derive(Debug, Serialize, JsonSchema)]
struct MeasuredRuns {
    /// Median of the elapsed times.
    elapsed_ns: f64,
    /// Shortest and longest elapsed time.
    elapsed_range_ns: [f64; 2],
    /// Time lost to memory accesses in the first run, summed over threads.
    cost_ns: f64,
    /// Local share of the accesses in the first run, if nodes were recorded.
    local_share: Option<f64>,
}

impl MeasuredRuns {
    fn new(runs: &[Observed], attribution: &Attribution) -> Self {
        let mut elapsed: Vec<f64> = runs
            .iter()
            .map(|run| 1e9 * run.elapsed.as_secs_f64())
            .collect();
        elapsed.sort_by(f64::total_cmp);
        let sides = || {
            attribution
                .objects
                .iter()
                .flat_map(|group| [&group.loads, &group.stores])
        };
        let known: f64 = sides().map(|side| side.node_known).sum();
        let remote: f64 = sides().map(|side| side.remote).sum();
        Self {
            elapsed_ns: elapsed.get(elapsed.len() / 2).copied().unwrap_or(0.0),
            elapsed_range_ns: [elapsed.first(), elapsed.last()]
                .map(|run| run.copied().unwrap_or(0.0)),
            cost_ns: sides().map(|side| side.cost_ns).sum(),
            local_share: (known > 0.0).then(|| 1.0 - remote / known),
        }
    }
}

/// Runs without and with placed pages.
#[derive(Debug, Serialize, JsonSchema)]
struct Comparison {
    /// Runs without placed pages.
    before: MeasuredRuns,
    /// Runs with placed pages.
    after: MeasuredRuns,
}

impl Comparison {
    fn noise(runs: u32) -> f64 {
        if runs >= 3 {
            NOISE_OF_MEDIANS
        } else {
            NOISE_OF_SINGLE_RUNS
        }
    }

    fn change(&self) -> f64 {
        self.after.elapsed_ns / self.before.elapsed_ns.max(1.0) - 1.0
    }

    fn loses(&self, runs: u32) -> bool {
        self.change() > Self::noise(runs)
    }

    fn verdict(&self, runs: u32) -> String {
        let change = self.change();
        let of = if runs == 1 {
            "one run of each".to_owned()
        } else {
            format!("medians of {runs} runs of each")
        };
        if self.loses(runs) {
            format!(
                "placed, it takes {} time ({of}): the plan is not used again",
                amount::change(change)
            )
        } else if change < -Self::noise(runs) {
            format!("placed, it takes {} time ({of})", amount::change(change))
        } else {
            format!(
                "placed, it takes {} time ({of}): within noise; --runs 5 tells more",
                amount::change(change)
            )
        }
    }

    fn to_text(&self) -> String {
        let mut text = format!(
            "{:<28}{:>12}{:>12}{:>12}\n",
            "", "as it is", "placed", "change"
        );
        let mut row = |label: &str, before: f64, after: f64, words: fn(f64) -> String| {
            let change = if before > 0.0 {
                signed_change(after / before - 1.0)
            } else {
                "–".to_owned()
            };
            let _ = writeln!(
                text,
                "{label:<28}{:>12}{:>12}{change:>12}",
                words(before),
                words(after)
            );
        };
        let (before, after) = (&self.before, &self.after);
        row("elapsed", before.elapsed_ns, after.elapsed_ns, time);
        let longest = |side: &MeasuredRuns| side.elapsed_range_ns[1] > side.elapsed_range_ns[0];
        if longest(before) || longest(after) {
            for (label, at) in [("  shortest run", 0), ("  longest run", 1)] {
                let [before, after] = [before, after].map(|side| side.elapsed_range_ns[at]);
                row(label, before, after, time);
            }
        }
        row(
            "lost to memory, all threads",
            before.cost_ns,
            after.cost_ns,
            time,
        );
        if let (Some(before), Some(after)) = (before.local_share, after.local_share) {
            row("local accesses", before, after, percent);
        }
        text
    }
}
