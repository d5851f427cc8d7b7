//! `nearpage evaluate`: compares the plans of lossy recordings with the plan of a reference.

mod recorded;
mod replayed;

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use nearpage_amount::{percent, signed_change, time};
use nearpage_attribution::Operations;
use nearpage_machine::Machine;
use nearpage_plan::Plan;
use nearpage_planner::{Analysis, Planner, Policy, Prediction, Quality, Threads, predict, quality};
use nearpage_recording::{Error, Recording};
use nearpage_report::{printable, shorten, wrapped};
use nearpage_simulator::Outcome;
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Deciding, Evaluate};
use crate::progress::Progress;
use crate::{analysis, json, terminal};

use recorded::RecordedRemote;
use replayed::{Simulated, replay};

pub fn main(arguments: Evaluate) -> anyhow::Result<ExitCode> {
    let reference = analysis::read(&arguments.reference, Operations::Both)?;
    let machine = match &arguments.machine {
        Some(name) => crate::machine::read(name)?,
        None => reference.recording.machine.clone(),
    };
    if machine.nodes.len() < 2 {
        bail!(
            "{} has one memory node, where every page is local: name a machine with --machine",
            machine.name
        );
    }
    let comparison = Comparison {
        reference: &reference,
        machine: &machine,
        deciding: &arguments.deciding,
        policy: arguments.policy.policy(),
        remote_latency_cycles: arguments.remote_latency,
    };
    let replayed = arguments.trace.as_deref().map(Recording::open);
    let mut replayed = replayed.transpose()?;
    if let Some(recording) = &replayed {
        recording.trace()?;
    }
    let mut rows = vec![comparison.row(&arguments.reference, &reference)?];
    for folder in &arguments.recordings {
        let analysis = analysis::read(folder, Operations::Both)?;
        rows.push(comparison.row(folder, &analysis)?);
        if replayed.is_none() && !is_full(&reference.recording) && is_full(&analysis.recording) {
            replayed = Some(analysis.recording);
        }
    }
    let mut notes = Vec::new();
    let simulated = match &replayed {
        Some(recording) => Some(recording),
        None => Some(&reference.recording).filter(|recording| is_full(recording)),
    };
    let simulated = match simulated {
        Some(recording) => {
            let plans: Vec<(String, Vec<Plan>)> = rows
                .iter_mut()
                .map(|row| (row.recording.clone(), std::mem::take(&mut row.plans)))
                .collect();
            replay(recording, &machine, &plans, &mut notes)?
        }
        None => {
            notes.push("not simulated: --trace names the trace to do it on".to_owned());
            None
        }
    };
    match arguments.json {
        true => json::print(&comparison.to_json(&rows, simulated.as_ref(), notes))?,
        false => terminal::print(&comparison.to_text(&rows, simulated.as_ref(), &notes))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Can the recording be replayed?
fn is_full(recording: &Recording) -> bool {
    !matches!(
        recording.trace(),
        Err(Error::SamplesOnly(_) | Error::CutShort(_))
    )
}

/// Elapsed time of the recorded run, in seconds.
fn seconds(analysis: &Analysis) -> f64 {
    let metadata = &analysis.recording.metadata;
    metadata.end_ns.saturating_sub(metadata.begin_ns) as f64 / 1e9
}

/// The reference and the parameters of the comparison.
struct Comparison<'a> {
    reference: &'a Analysis,
    machine: &'a Machine,
    deciding: &'a Deciding,
    policy: Policy,
    remote_latency_cycles: f64,
}

/// Figures of one recording.
struct Row {
    recording: String,
    samples: u64,
    seconds: f64,
    /// Assumed placement of the threads.
    threads: Threads,
    quality: Quality,
    /// Remote accesses in the recorded run itself.
    recorded: RecordedRemote,
    /// The reference's accesses, by weight: all, remote under first touch, and remote under this recording's plan.
    accesses: f64,
    remote_first_touch: f64,
    remote_planned: f64,
    plans: Vec<Plan>,
}

impl Comparison<'_> {
    fn planner<'b>(&'b self, analysis: &'b Analysis) -> Planner<'b> {
        Planner::of(analysis, self.machine, self.deciding.threads())
    }

    /// Plans of a recording, and their effect on the reference's accesses.
    fn row(&self, folder: &Path, analysis: &Analysis) -> anyhow::Result<Row> {
        let (reference, own) = (self.planner(self.reference), self.planner(analysis));
        let mut row = Row {
            recording: folder.display().to_string(),
            samples: analysis.recording.access_count(),
            seconds: seconds(analysis),
            threads: own.threads().clone(),
            quality: Quality::default(),
            recorded: RecordedRemote::of(&analysis.recording, self.remote_latency_cycles)?,
            accesses: 0.0,
            remote_first_touch: 0.0,
            remote_planned: 0.0,
            plans: Vec::new(),
        };
        let ours = own.programs()?;
        let plans = {
            let _progress = Progress::deciding(folder, own.progress());
            own.plans(self.policy, &self.deciding.parameters())?
        };
        for expected in reference.programs()? {
            let is_same = |input: &nearpage_planner::Input| {
                input.program.executable == expected.program.executable
            };
            let Some(at) = ours.iter().position(is_same) else {
                continue;
            };
            let quality = quality(&expected, &ours[at], &plans[at], self.policy);
            row.quality.add(&quality);
            row.add(&predict(&plans[at], &expected));
            row.plans.push(plans[at].clone());
        }
        if row.plans.is_empty() {
            bail!(
                "{}: no program of {} was recorded there",
                folder.display(),
                self.reference.recording.folder.display()
            );
        }
        Ok(row)
    }

    fn to_json(
        &self,
        rows: &[Row],
        simulated: Option<&Simulated>,
        notes: Vec<String>,
    ) -> EvaluateOutput {
        let form = |(number, row): (usize, &Row)| {
            let outcome = simulated.and_then(|simulated| simulated.planned[number].as_ref());
            row.to_json(outcome)
        };
        let mut rows: Vec<Compared> = rows.iter().enumerate().map(form).collect();
        let recordings = rows.split_off(1);
        EvaluateOutput {
            version: nearpage_recording::JSON_VERSION,
            reference: rows.remove(0),
            machine: self.machine.name.clone(),
            policy: self.policy.as_str(),
            remote_latency_cycles: self.remote_latency_cycles,
            replayed_trace: simulated.map(|simulated| simulated.recording.clone()),
            first_touch: simulated.map(|simulated| SimulatedTime::of(&simulated.first_touch)),
            recordings,
            notes,
        }
    }

    fn to_text(&self, rows: &[Row], simulated: Option<&Simulated>, notes: &[String]) -> String {
        // On a narrow terminal, shares have no decimals.
        let decimals = usize::from(terminal::width() >= 80);
        let change_width = if decimals > 0 { 15 } else { 11 };
        let (hints, accesses) = (8 + 8 + 9 + 9 + 7 + 8, 9 + 2 * change_width + 9 + 8);
        let figures: usize = hints.max(accesses);
        let name_width = terminal::width().saturating_sub(figures).clamp(11, 40);
        let mut text = format!(
            "page hints of policy {} on {}, against {}\n\n",
            self.policy.as_str(),
            printable(&self.machine.name),
            printable(&rows[0].recording)
        );
        let name = |row: &Row| shorten(&printable(&row.recording), name_width - 1);
        let _ = writeln!(
            text,
            "{:<name_width$}{:>8}{:>8}{:>9}{:>9}{:>7}{:>8}",
            "recording", "samples", "seconds", "coverage", "accuracy", "useful", "by plan"
        );
        for row in rows {
            let _ = writeln!(
                text,
                "{:<name_width$}{:>8}{:>8.1}{:>9}{:>9}{:>7}{:>8}",
                name(row),
                row.samples,
                row.seconds,
                percent(row.quality.coverage()),
                percent(row.quality.accuracy()),
                percent(row.quality.useful_fraction()),
                percent(row.quality.planned_useful_fraction()),
            );
        }
        let _ = writeln!(
            text,
            "\nshares of remote accesses\n{:<name_width$}{:>9}{:>change_width$}{:>change_width$}{:>9}{:>8}",
            "recording", "recorded", "predicted", "simulated", "time", "change"
        );
        let first_touch = simulated.map(|simulated| &simulated.first_touch);
        let change = |before: f64, after: f64| {
            let [before, after] = [before, after].map(|share| 100.0 * share);
            format!("{before:.decimals$} → {after:.decimals$} %")
        };
        for (number, row) in rows.iter().enumerate() {
            let recorded = match row.recorded.share() {
                Some(share) if row.recorded.by_latency > 0.0 => format!("{}*", percent(share)),
                Some(share) => percent(share),
                None => "?".to_owned(),
            };
            let accesses = row.accesses.max(1.0);
            let predicted = change(
                row.remote_first_touch / accesses,
                row.remote_planned / accesses,
            );
            let planned = simulated.and_then(|simulated| simulated.planned[number].as_ref());
            let [remote, elapsed, changed] = match (first_touch, planned) {
                (Some(before), Some(after)) => [
                    change(1.0 - before.local_share(), 1.0 - after.local_share()),
                    time(after.time_ns),
                    signed_change(after.time_ns / before.time_ns.max(1.0) - 1.0),
                ],
                _ => ["-"; 3].map(str::to_owned),
            };
            let _ = writeln!(
                text,
                "{:<name_width$}{recorded:>9}{predicted:>change_width$}{remote:>change_width$}{elapsed:>9}{changed:>8}",
                name(row),
            );
        }
        text + &self.legend(rows, simulated, notes)
    }

    /// Explains which accesses each column counts, and adds the notes.
    fn legend(&self, rows: &[Row], simulated: Option<&Simulated>, notes: &[String]) -> String {
        let mut lines = vec![
            rows[0].threads.words(),
            format!(
                "useful: the reference's pages with the same node in the recording's samples. by plan: with this node \
                 in a run under the recording's plan; {} without a plan.",
                percent(rows[0].quality.first_touch_useful_fraction())
            ),
            "recorded: of the run's own. predicted: of the reference's, under first touch and the plan."
                .to_owned(),
        ];
        lines.extend(simulated.map(|simulated| {
            format!(
                "simulated: misses of {}, which takes {} under first touch.",
                printable(&simulated.recording),
                time(simulated.first_touch.time_ns)
            )
        }));
        if rows.iter().any(|row| row.recorded.by_latency > 0.0) {
            lines.push(format!(
                "*: where the page's node is not known, loads of {} cycles and more.",
                self.remote_latency_cycles
            ));
        }
        lines.extend(notes.iter().map(|note| printable(note)));
        let wrapped = |line: &String| wrapped(line, terminal::width()) + "\n";
        "\n".to_owned() + &lines.iter().map(wrapped).collect::<String>()
    }
}

/// What `evaluate --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct EvaluateOutput {
    /// Version of this form.
    version: u32,
    /// The recording that the other recordings are compared with.
    reference: Compared,
    /// The machine for which plans are decided.
    machine: String,
    /// How pages are decided.
    policy: &'static str,
    /// Loads that took at least this many cycles count as remote if the page's node is not known.
    remote_latency_cycles: f64,
    /// The trace on which plans were simulated; null: no plan was simulated.
    #[serde(rename = "replayed")]
    replayed_trace: Option<String>,
    /// Result of a simulation without a plan.
    first_touch: Option<SimulatedTime>,
    /// Recordings that are compared with the reference.
    recordings: Vec<Compared>,
    /// Limits of the figures.
    notes: Vec<String>,
}

/// One recording that is compared.
#[derive(Debug, Serialize, JsonSchema)]
struct Compared {
    /// Folder of the recording.
    recording: String,
    /// Number of accesses in the recording.
    samples: u64,
    /// Elapsed time of the recorded run.
    elapsed_ns: f64,
    /// Assumed placement of the threads.
    threads: Threads,
    /// Number of pages for which the recording gives a hint.
    hints: u64,
    /// Number of pages for which the reference gives a hint.
    reference_hints: u64,
    /// Share of the reference's pages with a hint, 0 to 1.
    coverage: f64,
    /// Share of the recording's hints that agree with the reference's, 0 to 1.
    accuracy: f64,
    /// Share of the reference's hints that the recording gives as well, 0 to 1.
    useful_fraction: f64,
    /// Share of the reference's pages that the recording's plan places, 0 to 1.
    planned_coverage: f64,
    /// Share of the reference's hints whose page first touch puts on the hint's node, 0 to 1.
    first_touch_useful_fraction: f64,
    /// Share of the reference's hints whose page is on the hint's node in a run under the recording's plan, also
    /// without a sample, and also if the plan leaves it to first touch, 0 to 1. Interleaved pages count by the node's
    /// share.
    planned_useful_fraction: f64,
    /// The reference's accesses, by weight.
    accesses: f64,
    /// Part of `accesses` that is remote under first touch.
    remote_first_touch: f64,
    /// Part of `accesses` that is remote under this recording's plan.
    remote_planned: f64,
    /// Accesses of the recorded run itself.
    recorded: RecordedRemote,
    /// Result of a simulation under this recording's plan; null: the plan was not simulated.
    simulated: Option<SimulatedTime>,
}

/// Result of a simulation.
#[derive(Debug, Serialize, JsonSchema)]
struct SimulatedTime {
    /// Simulated time.
    time_ns: f64,
    /// Part of `time_ns` in which several threads run.
    parallel_ns: f64,
    /// Number of misses.
    misses: u64,
    /// Number of misses to another node's memory.
    remote: u64,
}

impl SimulatedTime {
    fn of(outcome: &Outcome) -> Self {
        Self {
            time_ns: outcome.time_ns,
            parallel_ns: outcome.parallel_ns,
            misses: outcome.misses,
            remote: outcome.remote(),
        }
    }
}

impl Row {
    fn add(&mut self, prediction: &Prediction) {
        let remote = |local: f64| (1.0 - local) * prediction.accesses;
        self.accesses += prediction.accesses;
        self.remote_first_touch += remote(prediction.first_touch.local_share);
        self.remote_planned += remote(prediction.planned.local_share);
    }

    fn to_json(&self, simulated: Option<&Outcome>) -> Compared {
        Compared {
            recording: self.recording.clone(),
            samples: self.samples,
            elapsed_ns: 1e9 * self.seconds,
            threads: self.threads.clone(),
            hints: self.quality.recording,
            reference_hints: self.quality.reference,
            coverage: self.quality.coverage(),
            accuracy: self.quality.accuracy(),
            useful_fraction: self.quality.useful_fraction(),
            planned_coverage: self.quality.planned_coverage(),
            first_touch_useful_fraction: self.quality.first_touch_useful_fraction(),
            planned_useful_fraction: self.quality.planned_useful_fraction(),
            accesses: self.accesses,
            remote_first_touch: self.remote_first_touch,
            remote_planned: self.remote_planned,
            recorded: self.recorded,
            simulated: simulated.map(SimulatedTime::of),
        }
    }
}
