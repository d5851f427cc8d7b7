//! `nearpage lab`: run a command on a modelled machine, in modelled time.

mod matrix;
mod page;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use nearpage_amount::{count, counted, percent, time};
use nearpage_runner::{
    LabCounts, LabKernel, LabOptions, LabPages, LabRun, LabStream, ModelledFrom, lab,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::arguments::{Lab, LabCommand};
use crate::progress::Progress;
use crate::{json, terminal};

pub use matrix::MatrixOutput;
pub use page::shown;

/// What `lab --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LabOutput {
    /// Version of this form.
    version: u32,
    /// Exit status of the command, as a shell shows it.
    exit_status: u8,
    /// The modelled machine.
    machine: String,
    /// CPUs of the guest.
    cpus: u32,
    /// Properties of the machine that were assumed or not modelled.
    assumed: Vec<String>,
    /// Messages of the guest's kernel that put the result in doubt.
    warnings: Vec<String>,
    /// Counts from the begin mark to the end mark: of the whole command, or of its stable phase.
    counts: Option<LabCounts>,
    /// Page events in the guest's kernel while the command ran.
    pages: Option<LabPages>,
}

impl From<LabRun> for LabOutput {
    fn from(run: LabRun) -> Self {
        Self {
            version: nearpage_recording::JSON_VERSION,
            exit_status: run.status,
            machine: run.machine,
            cpus: run.cpus,
            assumed: run.assumed,
            warnings: run.warnings,
            counts: run.counts,
            pages: run.pages,
        }
    }
}

pub fn main(arguments: Lab) -> anyhow::Result<ExitCode> {
    if let Some(LabCommand::Matrix(arguments)) = arguments.what {
        return matrix::main(&arguments);
    }
    let options = LabOptions {
        command: arguments.command,
        before: None,
        machine: arguments.machine,
        cpus: arguments.cpus,
        memory_mib: arguments.memory,
        kernel: arguments.kernel,
        share: arguments.share,
        modelled_from: match (arguments.whole, arguments.fast) {
            (true, _) => ModelledFrom::Boot,
            (_, true) => ModelledFrom::Marker,
            _ => ModelledFrom::Command,
        },
        warm_up_instructions: arguments.warm_up,
        seed: arguments.seed,
        boot_limit: arguments.boot_limit.map(Duration::from_secs_f64),
        time_limit: arguments.time_limit.map(Duration::from_secs_f64),
    };
    let json = arguments.json;
    let print = |stream: LabStream, bytes: &[u8]| {
        // A closed pipe does not end the run.
        let _ = match stream {
            LabStream::Output if !json => {
                let mut output = std::io::stdout();
                output.write_all(bytes).and_then(|()| output.flush())
            }
            _ => std::io::stderr().write_all(bytes),
        };
    };
    let quiet = arguments.quiet || json || arguments.shell;
    let run = {
        let _progress = (!quiet).then(|| Progress::beside_command("in the lab".to_owned()));
        lab(&options, &print)?
    };
    let status = run.status;
    if json {
        json::print(&LabOutput::from(run))?;
    } else if !quiet {
        to_text(&run).iter().for_each(|line| terminal::say(line));
    }
    Ok(ExitCode::from(status))
}

/// The result in a few lines.
fn to_text(run: &LabRun) -> Vec<String> {
    let mut lines = Vec::new();
    if !run.assumed.is_empty() {
        lines.push(format!(
            "{}: assumed {}",
            run.machine,
            run.assumed.join(", ")
        ));
    }
    lines.extend(
        run.warnings
            .iter()
            .map(|line| format!("the guest's kernel: {line}")),
    );
    let Some(counts) = &run.counts else {
        return lines;
    };
    let seconds = |seconds: f64| time(1e9 * seconds);
    let number = |things: u64| count(things as f64);
    let per_second = match counts.host_s_per_guest_s {
        Some(ratio) => format!(", {ratio:.1} for a second of the guest"),
        None => String::new(),
    };
    lines.push(format!(
        "{} on {} with {}; {} of the host{per_second}",
        seconds(counts.guest_s),
        run.machine,
        counted(run.cpus.into(), "CPU"),
        seconds(counts.host_s)
    ));
    lines.push(format!(
        "{} instructions, {} L2 hits, {} L3 hits, {} TLB misses",
        number(counts.instructions),
        number(counts.l2_hits),
        number(counts.l3_hits),
        number(counts.tlb_misses)
    ));
    let stall_share = |stall_s: f64| match counts.guest_s > 0.0 {
        true => stall_s / (counts.guest_s * f64::from(run.cpus)),
        false => 0.0,
    };
    lines.push(format!(
        "misses: {} local, {} remote; stall {} ({} of all CPUs' time), of that {} in queues",
        number(counts.local_misses),
        number(counts.remote_misses),
        seconds(counts.stall_s),
        percent(stall_share(counts.stall_s)),
        seconds(counts.queue_s)
    ));
    if let Some(words) = run.pages.as_ref().and_then(LabPages::to_words) {
        lines.push(format!("pages: {words}"));
    }
    if let Some(words) = counts.kernel.as_ref().and_then(LabKernel::to_words) {
        lines.push(format!("kernel: {words}"));
    }
    for node in &counts.nodes {
        lines.push(format!(
            "node {}: {} local, {} remote misses, stall {}; controller {} busy",
            node.node,
            number(node.local_misses),
            number(node.remote_misses),
            seconds(node.stall_s),
            percent(node.controller.busy)
        ));
    }
    lines
}
