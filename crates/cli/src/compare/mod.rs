//! `nearpage compare`: how good the plans of lossy recordings are, against a reference's.

mod recorded;
mod replayed;

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use nearpage_attribution::Operations;
use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_plan::Plan;
use nearpage_planner::{Parameters, Policy, Prediction, Quality, decide, predict, quality};
use nearpage_recording::{Error, Recording};
use nearpage_report::{printable, shorten};
use nearpage_simulator::Outcome;
use serde_json::{Value, json};

use crate::analysis::Analysis;
use crate::arguments::Compare;
use crate::terminal;

use recorded::RecordedRemote;
use replayed::{Simulated, replay};

pub fn main(arguments: Compare) -> anyhow::Result<ExitCode> {
    let reference = Analysis::of(&arguments.reference, Operations::Both)?;
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
        threads: arguments.threads.placement(),
        policy: arguments.policy.policy(),
        remote_latency_cycles: arguments.remote_latency,
    };
    let replayed = arguments.replay.as_deref().map(Recording::open);
    let mut replayed = replayed.transpose()?;
    if let Some(recording) = &replayed {
        recording.trace()?;
    }
    let mut rows = vec![comparison.row(&arguments.reference, &reference)?];
    for folder in &arguments.recordings {
        let analysis = Analysis::of(folder, Operations::Both)?;
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
            notes.push("not simulated: --replay names the full recording to do it on".to_owned());
            None
        }
    };
    let text = match arguments.json {
        true => comparison.to_json(&rows, simulated.as_ref(), &notes)?,
        false => comparison.to_text(&rows, simulated.as_ref(), &notes),
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Can it be replayed?
fn is_full(recording: &Recording) -> bool {
    !matches!(
        recording.trace(),
        Err(Error::SamplesOnly(_) | Error::CutShort(_))
    )
}

/// Elapsed time of the run that was recorded.
fn seconds(analysis: &Analysis) -> f64 {
    let metadata = &analysis.recording.metadata;
    metadata.end_ns.saturating_sub(metadata.begin_ns) as f64 / 1e9
}

/// What recordings are measured against.
struct Comparison<'a> {
    reference: &'a Analysis,
    machine: &'a Machine,
    threads: ThreadPlacement,
    policy: Policy,
    remote_latency_cycles: f64,
}

/// One recording.
struct Row {
    recording: String,
    samples: u64,
    seconds: f64,
    quality: Quality,
    /// The run's own.
    recorded: RecordedRemote,
    /// The reference's accesses, by weight: of all, remote under first touch, remote under this
    /// recording's plan.
    accesses: f64,
    remote_first_touch: f64,
    remote_planned: f64,
    plans: Vec<Plan>,
}

impl Comparison<'_> {
    fn row(&self, folder: &Path, analysis: &Analysis) -> anyhow::Result<Row> {
        let Self {
            reference,
            machine,
            threads,
            policy,
            ..
        } = *self;
        let mut row = Row {
            recording: folder.display().to_string(),
            samples: analysis.recording.access_count(),
            seconds: seconds(analysis),
            quality: Quality::default(),
            recorded: RecordedRemote::of(&analysis.recording, self.remote_latency_cycles)?,
            accesses: 0.0,
            remote_first_touch: 0.0,
            remote_planned: 0.0,
            plans: Vec::new(),
        };
        let expected = reference.on(machine, threads)?;
        let ours = analysis.on(machine, threads)?;
        for expected in &expected {
            let expected = expected.input();
            let same_program = |input: &nearpage_planner::Input| {
                input.program.executable == expected.program.executable
            };
            let found = ours.iter().map(|ours| ours.input()).find(same_program);
            let Some(ours) = found else { continue };
            row.quality.add(&quality(&expected, &ours, policy));
            let plan = decide(policy, &ours, &Parameters::default());
            row.add(&predict(&plan, &expected));
            row.plans.push(plan);
        }
        if row.plans.is_empty() {
            bail!(
                "{}: no program of {} was recorded there",
                folder.display(),
                reference.recording.folder.display()
            );
        }
        Ok(row)
    }

    fn to_json(
        &self,
        rows: &[Row],
        simulated: Option<&Simulated>,
        notes: &[String],
    ) -> anyhow::Result<String> {
        let form = |(number, row): (usize, &Row)| {
            let outcome = simulated.and_then(|simulated| simulated.planned[number].as_ref());
            row.to_json(outcome)
        };
        let mut rows: Vec<Value> = rows.iter().enumerate().map(form).collect();
        let others = rows.split_off(1);
        let first_touch = simulated.map(|simulated| outcome_json(Some(&simulated.first_touch)));
        let whole = json!({
            "reference": rows.remove(0),
            "machine": self.machine.name,
            "policy": self.policy.as_str(),
            "remote_latency_cycles": self.remote_latency_cycles,
            "replayed": simulated.map(|simulated| &simulated.recording),
            "first_touch": first_touch,
            "recordings": others,
            "notes": notes,
        });
        Ok(serde_json::to_string_pretty(&whole)? + "\n")
    }

    fn to_text(&self, rows: &[Row], simulated: Option<&Simulated>, notes: &[String]) -> String {
        const FIGURES: usize = 10 + 19 + 19 + 10 + 8;
        let name_width = terminal::width().saturating_sub(FIGURES).clamp(14, 40);
        let mut text = format!(
            "page hints of policy {} on {}, against {}\n\n",
            self.policy.as_str(),
            printable(&self.machine.name),
            printable(&rows[0].recording)
        );
        let name = |row: &Row| shorten(&printable(&row.recording), name_width - 1);
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let _ = writeln!(
            text,
            "{:<name_width$}{:>12}{:>10}{:>12}{:>12}{:>12}",
            "recording", "samples", "seconds", "coverage", "accuracy", "useful"
        );
        for row in rows {
            let _ = writeln!(
                text,
                "{:<name_width$}{:>12}{:>10.1}{:>12}{:>12}{:>12}",
                name(row),
                row.samples,
                row.seconds,
                percent(row.quality.coverage()),
                percent(row.quality.accuracy()),
                percent(row.quality.useful_fraction()),
            );
        }
        let _ = writeln!(
            text,
            "\n{:<name_width$}{:>10}{:>19}{:>19}{:>10}{:>8}",
            "remote accesses", "recorded", "predicted", "simulated", "time", "saved"
        );
        let first_touch = simulated.map(|simulated| &simulated.first_touch);
        let change =
            |before: f64, after: f64| format!("{:.1} → {:.1} %", 100.0 * before, 100.0 * after);
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
            let [remote, time, saved] = match (first_touch, planned) {
                (Some(before), Some(after)) => [
                    change(1.0 - before.local_share(), 1.0 - after.local_share()),
                    duration(after.time_ns),
                    percent(1.0 - after.time_ns / before.time_ns.max(1.0)),
                ],
                _ => ["-"; 3].map(str::to_owned),
            };
            let _ = writeln!(
                text,
                "{:<name_width$}{recorded:>10}{predicted:>19}{remote:>19}{time:>10}{saved:>8}",
                name(row),
            );
        }
        text.push_str("\nrecorded: of the run's own. predicted: of the reference's, under first touch and the plan.\n");
        if let Some(simulated) = simulated {
            let _ = writeln!(
                text,
                "simulated: misses of {}, which takes {} under first touch.",
                printable(&simulated.recording),
                duration(simulated.first_touch.time_ns)
            );
        }
        if rows.iter().any(|row| row.recorded.by_latency > 0.0) {
            let _ = writeln!(
                text,
                "*: where the page's node is not known, loads of {} cycles and more.",
                self.remote_latency_cycles
            );
        }
        for note in notes {
            let _ = writeln!(text, "{}", printable(note));
        }
        text
    }
}

/// As people read it.
pub fn duration(nanoseconds: f64) -> String {
    match nanoseconds {
        long if long >= 1e10 => format!("{:.1} s", long / 1e9),
        middle if middle >= 1e9 => format!("{:.2} s", middle / 1e9),
        short => format!("{:.1} ms", short / 1e6),
    }
}

/// Of a simulation; all null where there was none.
fn outcome_json(outcome: Option<&Outcome>) -> Value {
    json!({
        "time_ns": outcome.map(|outcome| outcome.time_ns),
        "parallel_ns": outcome.map(|outcome| outcome.parallel_ns),
        "misses": outcome.map(|outcome| outcome.misses),
        "remote": outcome.map(Outcome::remote),
    })
}

impl Row {
    fn add(&mut self, prediction: &Prediction) {
        let remote = |local: f64| (1.0 - local) * prediction.accesses;
        self.accesses += prediction.accesses;
        self.remote_first_touch += remote(prediction.first_touch.local);
        self.remote_planned += remote(prediction.plan.local);
    }

    fn to_json(&self, simulated: Option<&Outcome>) -> Value {
        json!({
            "recording": self.recording,
            "samples": self.samples,
            "seconds": self.seconds,
            "hints": self.quality.recording,
            "reference_hints": self.quality.reference,
            "coverage": self.quality.coverage(),
            "accuracy": self.quality.accuracy(),
            "useful_fraction": self.quality.useful_fraction(),
            "accesses": self.accesses,
            "remote_first_touch": self.remote_first_touch,
            "remote_planned": self.remote_planned,
            "recorded": {
                "accesses": self.recorded.told,
                "remote": self.recorded.remote,
                "by_latency": self.recorded.by_latency,
            },
            "time_ns": simulated.map(|outcome| outcome.time_ns),
            "simulated": outcome_json(simulated),
        })
    }
}
