//! `nearpage downsample`: derives from a trace the recording that sampling hardware would have made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nearpage_machine::CpuId;
use nearpage_recording::trace::{DownsampleEvent, Downsampling, StepBatch, Steps};
use nearpage_recording::{Recording, SampleCounts, ThreadIndex};
use schemars::JsonSchema;
use serde::Serialize;

use crate::arguments::{Downsample, Event};
use crate::progress::Progress;
use crate::{Usage, json, shell, terminal};

/// What `downsample --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct DownsampleOutput {
    /// Version of this form.
    version: u32,
    /// Folder of the trace.
    input: PathBuf,
    /// Folder of the recording that was made.
    output: PathBuf,
    /// Name of the setting; null without a name.
    setting: Option<String>,
    /// Rule by which accesses were kept, in words.
    kept: String,
    /// Accesses of the trace.
    input_accesses: u64,
    /// Accesses that were kept.
    kept_accesses: u64,
    /// Limits of the recording that was made.
    notes: Vec<String>,
}

pub fn main(arguments: Downsample) -> anyhow::Result<ExitCode> {
    let downsampling = downsampling(&arguments)?;
    let recording = Recording::open(&arguments.recording)?;
    let notes = notes(&arguments.recording, &recording, &downsampling);
    let described = match &arguments.setting {
        Some(name) => format!("{name}: {}", downsampling.describe()),
        None => downsampling.describe(),
    };
    // The first pass counts totals, because tables store them beside the accesses.
    let mut by_cpu: BTreeMap<(ThreadIndex, CpuId), u64> = BTreeMap::new();
    let mut cost_ns = 0.0;
    let counted = {
        let _progress = Progress::new(format!("downsampling {}", arguments.recording.display()));
        recording.downsample(&downsampling, |batch| {
            cost_ns += batch.cost_ns.iter().map(|&ns| f64::from(ns)).sum::<f64>();
            for (thread, cpu) in batch.thread.iter().zip(&batch.cpu) {
                *by_cpu.entry((*thread, *cpu)).or_default() += 1;
            }
            Ok(())
        })?
    };
    let mut metadata = recording.metadata.clone();
    metadata.tracing = None;
    metadata.calibration.clone_from(&described);
    let computed_ns = computed_ns(&recording)?;
    let each_ns = cost_ns / counted.max(1) as f64;
    metadata.notes.extend(notes.iter().cloned());
    let mut tables = recording.tables.clone();
    for (thread, index) in tables.threads.iter_mut().zip(0..) {
        let computed_ns = computed_ns.get(index as usize).copied().unwrap_or(0.0);
        thread.cpus = of_thread(&by_cpu, ThreadIndex(index));
        let accesses = thread.cpus.iter().map(|(_, accesses)| accesses).sum();
        thread.counts = counts(accesses, computed_ns, each_ns);
    }
    metadata.counts = sum(tables.threads.iter().map(|thread| thread.counts));
    {
        let progress = Progress::new(format!("downsampling {}", arguments.recording.display()));
        let mut written = 0;
        Recording::write(
            &arguments.output,
            &metadata,
            &recording.machine,
            &tables,
            |writer| {
                recording.downsample(&downsampling, |batch| {
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
            kept: downsampling.describe(),
            input_accesses: recording.access_count(),
            kept_accesses: counted,
            notes,
        })?;
    } else if !arguments.quiet {
        notes.iter().for_each(|note| terminal::say(note));
        let (all, output) = (recording.access_count(), arguments.output.display());
        terminal::say(&format!(
            "{counted} of {all} accesses kept ({described}) in {output}"
        ));
        terminal::next(&format!(
            "nearpage evaluate {} {}",
            shell::path(&arguments.recording),
            shell::path(&arguments.output)
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which accesses the downsampling needs and the trace lacks.
fn notes(folder: &Path, recording: &Recording, downsampling: &Downsampling) -> Vec<String> {
    let tracing = recording.metadata.tracing.as_ref();
    match downsampling.needs_hits() && !tracing.is_some_and(|tracing| tracing.keep_hits()) {
        true => vec![format!(
            "{} kept no hits of its caches: references that the second level served are missing here; record with \
             --keep-hits to have them",
            folder.display()
        )],
        false => Vec::new(),
    }
}

/// Number of accesses of a thread, per CPU.
fn of_thread(
    by_cpu: &BTreeMap<(ThreadIndex, CpuId), u64>,
    thread: ThreadIndex,
) -> Vec<(CpuId, u64)> {
    by_cpu
        .range((thread, CpuId(0))..=(thread, CpuId(u32::MAX)))
        .map(|((_, cpu), accesses)| (*cpu, *accesses))
        .collect()
}

/// Time that each thread computes between its misses, by index, in nanoseconds; 0 where the trace was cut short.
fn computed_ns(recording: &Recording) -> anyhow::Result<Vec<f64>> {
    let timing = recording.machine.timing()?;
    let instruction_ns = timing.instruction_ns();
    let mut computed = vec![0.0; recording.tables.threads.len()];
    let trace = match recording.trace() {
        Ok(trace) => trace,
        Err(nearpage_recording::Error::CutShort(_)) => return Ok(computed),
        Err(error) => return Err(error.into()),
    };
    let mut batch = StepBatch::default();
    for (position, traced) in trace.threads().iter().enumerate() {
        let mut steps = trace.steps(position);
        let mut instructions = 0;
        while steps.next(&mut batch)? {
            let misses = batch.misses.iter().map(|miss| miss.instructions);
            let others = batch.trace_events.iter().map(|trace_event| trace_event.1);
            instructions += misses.chain(others).map(u64::from).sum::<u64>();
        }
        if let Some(own) = computed.get_mut(traced.thread.0 as usize) {
            *own += instructions as f64 * instruction_ns;
        }
    }
    Ok(computed)
}

/// Counts computation as the clock source does: a computation sample stands for as much time as an access sample.
fn counts(accesses: u64, computed_ns: f64, each_ns: f64) -> SampleCounts {
    let compute = match each_ns > 0.0 {
        true => (computed_ns / each_ns).round() as u64,
        false => 0,
    };
    SampleCounts {
        samples: accesses + compute,
        accesses,
        compute,
        ..SampleCounts::default()
    }
}

fn sum(counts: impl Iterator<Item = SampleCounts>) -> SampleCounts {
    counts.fold(SampleCounts::default(), |sum, one| SampleCounts {
        samples: sum.samples + one.samples,
        accesses: sum.accesses + one.accesses,
        compute: sum.compute + one.compute,
        ..sum
    })
}

fn downsampling(arguments: &Downsample) -> Result<Downsampling, Usage> {
    if arguments.setting.is_none() && arguments.every.is_none() {
        return Err(Usage(
            "say what to keep: --every N, or --setting NAME".to_owned(),
        ));
    }
    let named = arguments.setting.as_deref().and_then(Downsampling::setting);
    let mut downsampling = named.unwrap_or_default();
    downsampling.every = arguments.every.unwrap_or(downsampling.every);
    downsampling.latency_cycles_min = arguments
        .min_latency
        .unwrap_or(downsampling.latency_cycles_min);
    downsampling.loads_only |= arguments.loads_only;
    downsampling.one_in_flight |= arguments.one_in_flight;
    match arguments.event {
        Some(Event::CacheMiss) => downsampling.event = DownsampleEvent::CacheMiss,
        Some(Event::DtlbMiss) => downsampling.event = DownsampleEvent::DtlbMiss,
        None => {}
    }
    Ok(downsampling)
}
