//! `nearpage downsample`: of a trace, what sampling hardware would have recorded.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use nearpage_machine::CpuId;
use nearpage_recording::trace::{ThinEvent, Thinning};
use nearpage_recording::{Recording, SampleCounts, ThreadIndex};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Downsample, Event};
use crate::progress::Progress;
use crate::record::quoted;
use crate::{Usage, json, terminal};

/// What `downsample --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DownsampleOutput {
    /// Version of this form.
    version: u32,
    /// Folder of the trace.
    input: PathBuf,
    /// Folder of the recording that was made.
    output: PathBuf,
    /// The setting's name; null: none was named.
    setting: Option<String>,
    /// Which accesses were kept, in words.
    kept: String,
    /// Accesses of the trace.
    input_accesses: u64,
    /// Accesses that were kept.
    kept_accesses: u64,
    /// What has to be known of the recording that was made.
    notes: Vec<String>,
}

pub fn main(arguments: Downsample) -> anyhow::Result<ExitCode> {
    let thinning = thinning(&arguments)?;
    let recording = Recording::open(&arguments.recording)?;
    let tracing = recording.metadata.tracing.as_ref();
    let mut notes = Vec::new();
    if thinning.needs_hits() && !tracing.is_some_and(|tracing| tracing.keep_hits()) {
        notes.push(format!(
            "{} kept no hits of its caches: references that the second level served are missing here; record with \
             --keep-hits to have them",
            arguments.recording.display()
        ));
    }
    let described = match &arguments.setting {
        Some(name) => format!("{name}: {}", thinning.describe()),
        None => thinning.describe(),
    };
    // A first pass for the totals, which tables have beside the accesses.
    let mut by_cpu: BTreeMap<(ThreadIndex, CpuId), u64> = BTreeMap::new();
    let counted = {
        let _progress = Progress::new(format!("downsampling {}", arguments.recording.display()));
        recording.thin(&thinning, |batch| {
            for (thread, cpu) in batch.thread.iter().zip(&batch.cpu) {
                *by_cpu.entry((*thread, *cpu)).or_default() += 1;
            }
            Ok(())
        })?
    };
    let mut metadata = recording.metadata.clone();
    metadata.tracing = None;
    metadata.calibration.clone_from(&described);
    metadata.counts = counts(counted);
    metadata.notes.extend(notes.iter().cloned());
    let mut tables = recording.tables.clone();
    for (thread, index) in tables.threads.iter_mut().zip(0..) {
        let of_thread = (ThreadIndex(index), CpuId(0))..=(ThreadIndex(index), CpuId(u32::MAX));
        thread.cpus = by_cpu
            .range(of_thread)
            .map(|((_, cpu), accesses)| (*cpu, *accesses))
            .collect();
        thread.counts = counts(thread.cpus.iter().map(|(_, accesses)| accesses).sum());
    }
    {
        let progress = Progress::new(format!("downsampling {}", arguments.recording.display()));
        let mut written = 0;
        Recording::write(
            &arguments.output,
            &metadata,
            &recording.machine,
            &tables,
            |writer| {
                recording.thin(&thinning, |batch| {
                    written += batch.thread.len() as u64;
                    progress.done(written, counted);
                    writer.accesses(batch)
                })?;
                Ok(())
            },
        )?;
    }
    if arguments.json {
        json::print(&DownsampleOutput {
            version: nearpage_recording::JSON_VERSION,
            input: arguments.recording,
            output: arguments.output,
            setting: arguments.setting,
            kept: thinning.describe(),
            input_accesses: recording.access_count(),
            kept_accesses: counted,
            notes,
        })?;
    } else if !arguments.quiet {
        for note in &notes {
            terminal::say(note);
        }
        terminal::say(&format!(
            "{counted} of {} accesses kept ({described}) in {}",
            recording.access_count(),
            arguments.output.display()
        ));
        terminal::next(&format!(
            "nearpage evaluate REFERENCE {}",
            quoted(&arguments.output.to_string_lossy())
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn counts(accesses: u64) -> SampleCounts {
    SampleCounts {
        samples: accesses,
        accesses,
        ..SampleCounts::default()
    }
}

fn thinning(arguments: &Downsample) -> Result<Thinning, Usage> {
    if arguments.setting.is_none() && arguments.every.is_none() {
        return Err(Usage(
            "say what to keep: --every N, or --setting NAME".to_owned(),
        ));
    }
    let named = arguments.setting.as_deref().and_then(Thinning::setting);
    let mut thinning = named.unwrap_or_default();
    thinning.every = arguments.every.unwrap_or(thinning.every);
    thinning.latency_cycles_min = arguments.min_latency.unwrap_or(thinning.latency_cycles_min);
    thinning.loads_only |= arguments.loads_only;
    thinning.one_in_flight |= arguments.one_in_flight;
    match arguments.event {
        Some(Event::CacheMiss) => thinning.event = ThinEvent::CacheMiss,
        Some(Event::DtlbMiss) => thinning.event = ThinEvent::DtlbMiss,
        None => {}
    }
    Ok(thinning)
}
