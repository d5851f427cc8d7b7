//! `nearpage compare`: how good the plans of lossy recordings are, against a reference's.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use nearpage_attribution::Operations;
use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_policy::{Parameters, Policy, Prediction, Quality, decide, predict, quality};
use nearpage_report::{printable, shorten};
use serde_json::{Value, json};

use crate::analysis::Analysis;
use crate::arguments::Compare;
use crate::terminal;

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
    let threads = arguments.threads.placement();
    let policy = arguments.policy.policy();
    let mut rows = vec![Row::of(
        &arguments.reference,
        &reference,
        &reference,
        &machine,
        threads,
        policy,
    )?];
    for folder in &arguments.recordings {
        let analysis = Analysis::of(folder, Operations::Both)?;
        rows.push(Row::of(
            folder, &reference, &analysis, &machine, threads, policy,
        )?);
    }
    let text = if arguments.json {
        let others: Vec<Value> = rows[1..].iter().map(Row::to_json).collect();
        let whole = json!({
            "reference": json!({
                "recording": arguments.reference,
                "samples": rows[0].samples,
                "seconds": rows[0].seconds,
                "remote_first_touch": rows[0].remote_first_touch,
                "remote_planned": rows[0].remote_planned,
            }),
            "machine": machine.name,
            "policy": policy.as_str(),
            "recordings": others,
        });
        serde_json::to_string_pretty(&whole)? + "\n"
    } else {
        to_text(&rows, &machine, policy)
    };
    terminal::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Elapsed time of the run that was recorded.
fn seconds(analysis: &Analysis) -> f64 {
    let metadata = &analysis.recording.metadata;
    metadata.end_ns.saturating_sub(metadata.begin_ns) as f64 / 1e9
}

/// One recording.
struct Row {
    recording: String,
    samples: u64,
    seconds: f64,
    quality: Quality,
    /// The reference's accesses, by weight: of all, remote under first touch, remote under this
    /// recording's plan.
    accesses: f64,
    remote_first_touch: f64,
    remote_planned: f64,
}

impl Row {
    fn of(
        folder: &Path,
        reference: &Analysis,
        analysis: &Analysis,
        machine: &Machine,
        threads: ThreadPlacement,
        policy: Policy,
    ) -> anyhow::Result<Self> {
        let mut row = Self {
            recording: folder.display().to_string(),
            samples: analysis.recording.access_count(),
            seconds: seconds(analysis),
            quality: Quality::default(),
            accesses: 0.0,
            remote_first_touch: 0.0,
            remote_planned: 0.0,
        };
        let expected = reference.on(machine, threads)?;
        let ours = analysis.on(machine, threads)?;
        let mut matched = false;
        for expected in &expected {
            let expected = expected.input();
            let same_program = |input: &nearpage_policy::Input| {
                input.program.executable == expected.program.executable
            };
            let found = ours.iter().map(|ours| ours.input()).find(same_program);
            let Some(ours) = found else { continue };
            matched = true;
            let part = quality(&expected, &ours, policy);
            row.quality.reference += part.reference;
            row.quality.recording += part.recording;
            row.quality.common += part.common;
            row.quality.same += part.same;
            let plan = decide(policy, &ours, &Parameters::default());
            row.add(&predict(&plan, &expected));
        }
        if !matched {
            bail!(
                "{}: no program of {} was recorded there",
                folder.display(),
                reference.recording.folder.display()
            );
        }
        Ok(row)
    }

    fn add(&mut self, prediction: &Prediction) {
        let remote = |local: f64| (1.0 - local) * prediction.accesses;
        self.accesses += prediction.accesses;
        self.remote_first_touch += remote(prediction.first_touch.local);
        self.remote_planned += remote(prediction.plan.local);
    }

    fn to_json(&self) -> Value {
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
        })
    }
}

fn to_text(rows: &[Row], machine: &Machine, policy: Policy) -> String {
    const FIGURES: usize = 12 + 9 + 10 + 10 + 8 + 20;
    let name_width = terminal::width().saturating_sub(FIGURES).clamp(12, 40);
    let mut text = format!(
        "page hints of policy {} on {}, against {}\n\n",
        policy.as_str(),
        machine.name,
        printable(&rows[0].recording)
    );
    let _ = writeln!(
        text,
        "{:<name_width$}{:>12}{:>9}{:>10}{:>10}{:>8}{:>20}",
        "recording", "samples", "seconds", "coverage", "accuracy", "useful", "remote accesses"
    );
    for row in rows {
        let share = |share: f64| format!("{:.1} %", 100.0 * share);
        let of_all = |part: f64| 100.0 * part / row.accesses.max(1.0);
        let _ = writeln!(
            text,
            "{:<name_width$}{:>12}{:>9.1}{:>10}{:>10}{:>8}{:>20}",
            shorten(&printable(&row.recording), name_width - 1),
            row.samples,
            row.seconds,
            share(row.quality.coverage()),
            share(row.quality.accuracy()),
            share(row.quality.useful_fraction()),
            format!(
                "{:.1} → {:.1} %",
                of_all(row.remote_first_touch),
                of_all(row.remote_planned)
            )
        );
    }
    text.push_str(
        "\nremote accesses: the reference's, under first touch and under the recording's plan\n",
    );
    text
}
