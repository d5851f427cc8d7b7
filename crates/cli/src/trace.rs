//! `nearpage trace`: runs a command in emulation, and records every miss of its caches.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitCode;

use nearpage_amount::{count, time};
use nearpage_recording::Recording;
use nearpage_recording::trace::TraceOptions;
use nearpage_runner::{TraceRequest, Traced, end_as, trace};
use nearpage_sampler::Target;

use crate::arguments::{Record, Trace};
use crate::json::{self, OwnOutput};
use crate::progress::Progress;
use crate::record::{RecordOutput, into_new_folder, leave_unselected, small_allocations};
use crate::{Usage, shell, terminal};

pub fn main(arguments: Trace) -> anyhow::Result<ExitCode> {
    leave_unselected(arguments.ranks.as_ref(), &arguments.command)?;
    let target = Target::Command(arguments.command.clone());
    let pattern = arguments.output.clone();
    into_new_folder(pattern.as_deref(), &target, |output| {
        trace_into(arguments, output)
    })
}

fn trace_into(arguments: Trace, output: &Path) -> anyhow::Result<ExitCode> {
    let own_output = arguments.json.then(OwnOutput::take).transpose()?;
    let tracing = arguments.tracing;
    let traced = trace(&TraceRequest {
        output: output.to_owned(),
        replace: arguments.force,
        command: arguments.command,
        machine: tracing.machine.unwrap_or("local".to_owned()),
        schedule: tracing.schedule,
        small_allocations: small_allocations(arguments.all_allocations),
        tracer: TraceOptions {
            threads: arguments.threads.placement(),
            moves: Vec::new(),
            quantum_instructions: tracing.quantum,
            sample_every: tracing.sample_every,
            keep_hits: tracing.keep_hits,
            from_mark: tracing.markers,
            serial: tracing.serial,
        },
    })?;
    drop(own_output);
    let recording = {
        let _progress = Progress::new(format!("indexing {}", output.display()));
        Recording::open(output)?
    };
    if arguments.json {
        json::print(&RecordOutput::of_trace(&recording, traced))?;
    } else if !arguments.quiet {
        print_summary(&recording, output, traced);
    }
    Ok(end_as(traced.status))
}

/// Converts options of `record --source full`, the name of `trace` in version 0.1.
pub fn of_record(arguments: Record) -> Result<Trace, Usage> {
    let inapplicable = [
        (!arguments.pid.is_empty(), "-p", ATTACHED),
        (arguments.cgroup.is_some(), "--cgroup", ATTACHED),
        (arguments.all, "--all", ATTACHED),
        (arguments.after.is_some(), "--after", WHOLE),
        (arguments.duration.is_some(), "--for", WHOLE),
        (arguments.redact, "--redact", "a trace has paths in it"),
        (!arguments.range.is_empty(), "--range", EVERY_MISS),
        (!arguments.object.is_empty(), "--object", EVERY_MISS),
    ];
    if let Some((_, option, why)) = inapplicable.iter().find(|(given, ..)| *given) {
        return Err(Usage(format!("{option} can't be had with a trace: {why}")));
    }
    Ok(Trace {
        output: arguments.output,
        force: arguments.force,
        tracing: arguments.tracing,
        threads: arguments.threads,
        all_allocations: arguments.all_allocations,
        ranks: arguments.ranks,
        json: arguments.json,
        quiet: arguments.quiet,
        command: arguments.command,
    })
}

const ATTACHED: &str = "a command is traced in emulation, so nearpage has to start it";
const WHOLE: &str =
    "a trace is of the whole run; --markers leaves out what lies outside its stable phase";
const EVERY_MISS: &str = "a trace keeps every miss; `report` shows each object's";

/// The tracer's total under a name; 0 without one.
pub fn total(recording: &Recording, name: &str) -> u64 {
    let tracing = recording.metadata.tracing.as_ref();
    let found = tracing.and_then(|tracing| tracing.totals.get(name));
    found.copied().unwrap_or(0)
}

/// Prints a summary of the trace on standard error.
fn print_summary(recording: &Recording, output: &Path, traced: Traced) {
    for note in &recording.metadata.notes {
        terminal::say(note);
    }
    let total = |name| count(total(recording, name) as f64);
    terminal::say(&format!(
        "traced {} on {}: {} instructions, {} loads, {} stores; {} accesses missed the caches",
        time(traced.elapsed.as_nanos() as f64),
        recording.machine.name,
        total("instructions"),
        total("loads"),
        total("stores"),
        count(recording.access_count() as f64)
    ));
    if let Some(signal) = traced.status.signal() {
        terminal::say(&format!("the command was ended by signal {signal}"));
    }
    terminal::say(&format!("the recording is in {}", output.display()));
    terminal::next(&format!("nearpage report {}", shell::path(output)));
}
