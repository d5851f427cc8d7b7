//! `nearpage record --source full`: run a command in emulation, and record every miss of its caches.

use std::path::Path;
use std::process::ExitCode;

use nearpage_recording::Recording;
use nearpage_recording::trace::TraceOptions;
use nearpage_runner::{TraceRequest, Traced, trace};

use crate::arguments::Record;
use crate::json::{self, OwnOutput};
use crate::progress::Progress;
use crate::record::{RecordOutput, quoted, small_allocations};
use crate::{Usage, terminal};

pub fn main(arguments: &Record, output: &Path) -> anyhow::Result<ExitCode> {
    refuse_sampling(arguments)?;
    let own_output = arguments.json.then(OwnOutput::take).transpose()?;
    let traced = trace(&TraceRequest {
        output: output.to_owned(),
        replace: arguments.force,
        command: arguments.command.clone(),
        machine: arguments.machine.clone().unwrap_or("local".to_owned()),
        schedule: arguments.schedule.clone(),
        small_allocations: small_allocations(arguments),
        tracer: TraceOptions {
            threads: arguments.threads.placement(),
            moves: Vec::new(),
            quantum_instructions: arguments.quantum,
            sample_every: arguments.sample_every,
            keep_hits: arguments.keep_hits,
            from_mark: arguments.markers,
            serial: arguments.serial,
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
        say(&recording, output, traced);
    }
    Ok(ExitCode::from(traced.status))
}

/// Options that a trace can't have.
fn refuse_sampling(arguments: &Record) -> Result<(), Usage> {
    let inapplicable = [
        (arguments.after.is_some(), "--after"),
        (arguments.duration.is_some(), "--for"),
        (arguments.redact, "--redact"),
    ];
    let Some((_, option)) = inapplicable.iter().find(|(given, _)| *given) else {
        return Ok(());
    };
    let why = match *option {
        "--redact" => "a trace has paths in it",
        _ => {
            "a trace is of all that the program does; --markers leaves out what lies outside its stable phase"
        }
    };
    Err(Usage(format!(
        "{option} can't be had with --source full: {why}"
    )))
}

/// What the tracer counted under a name.
pub fn total(recording: &Recording, name: &str) -> u64 {
    let tracing = recording.metadata.tracing.as_ref();
    let found = tracing.and_then(|tracing| tracing.totals.get(name));
    found.copied().unwrap_or(0)
}

/// What was traced, in a few lines on standard error.
fn say(recording: &Recording, output: &Path, traced: Traced) {
    for note in &recording.metadata.notes {
        terminal::say(note);
    }
    let total = |name| total(recording, name);
    terminal::say(&format!(
        "traced {:.1} s on {}: {} instructions, {} loads, {} stores; {} accesses missed the caches",
        traced.elapsed.as_secs_f64(),
        recording.machine.name,
        total("instructions"),
        total("loads"),
        total("stores"),
        recording.access_count()
    ));
    if traced.status >= 128 {
        terminal::say(&format!(
            "the command was ended by signal {}",
            traced.status - 128
        ));
    }
    terminal::say(&format!("the recording is in {}", output.display()));
    terminal::say(&format!(
        "next: nearpage report {}",
        quoted(&output.to_string_lossy())
    ));
}
