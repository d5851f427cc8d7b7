//! Metadata of a recording about its sampling.

use std::time::SystemTime;

use nearpage_machine::Machine;
use nearpage_recording::{Attached, Metadata, RateChange, SampleCounts};
use nearpage_sampler::{Options, SourceChoice, Summary, Target, UNMEASURED_RATE_HZ};

use super::ObserveOptions;
use super::program::ObservedProgram;
use crate::environment::rank;
use crate::launcher;

/// Metadata at the start of a recording.
pub(super) fn at_start(
    options: &ObserveOptions,
    sampling: &Options,
    choice: &SourceChoice,
    program: &ObservedProgram,
    machine: &Machine,
) -> Metadata {
    let mut metadata = Metadata {
        command: program.command.clone(),
        build_id: program.build_id.clone(),
        thread_placement: options.thread_placement,
        redacted: options.redact,
        rank: rank(),
        launched: launcher::launched(),
        host: match options.redact {
            true => String::new(),
            false => launcher::host(),
        },
        origin: launcher::origin().filter(|_| !options.redact),
        binding: match options.target {
            Target::Command(_) => launcher::binding(),
            _ => None,
        },
        attached: program.attached_to.clone().map(|target| Attached {
            target,
            coverage: String::new(),
        }),
        ..Metadata::begun(choice.source, SystemTime::now(), machine.node_ids())
    };
    set_source(&mut metadata, sampling, choice);
    metadata
}

/// Sets the source of the accesses, and the sampling rate.
pub(super) fn set_source(metadata: &mut Metadata, sampling: &Options, choice: &SourceChoice) {
    let rate_hz = sampling.rate_hz.unwrap_or(UNMEASURED_RATE_HZ);
    metadata.rate_hz = if choice.fixed_period { 0.0 } else { rate_hz };
    metadata.source = choice.source;
    metadata.calibration = match choice.source.measures_latency() {
        true => choice.line.clone(),
        false => sampling.calibration.unwrap_or_default().to_string(),
    };
}

/// Sampling rates over time; empty if the rate was constant.
pub(super) fn rates(summary: &Summary) -> Vec<RateChange> {
    let rate = |change: &nearpage_sampler::RateChange| RateChange {
        time_ns: change.time_ns,
        rate_hz: change.rate_hz,
    };
    match summary.rates.as_slice() {
        [] | [_] => Vec::new(),
        changes => changes.iter().map(rate).collect(),
    }
}

/// Numbers of samples by outcome, summed over threads.
pub(super) fn counts(summary: &Summary) -> SampleCounts {
    let mut sum = summary
        .threads
        .iter()
        .fold(SampleCounts::default(), |sum, thread| SampleCounts {
            samples: sum.samples + thread.counts.samples,
            accesses: sum.accesses + thread.counts.accesses,
            compute: sum.compute + thread.counts.compute,
            undecoded: sum.undecoded + thread.counts.undecoded,
            kernel: sum.kernel + thread.counts.kernel,
            lost: sum.lost + thread.counts.lost,
        });
    // The kernel counts losses of a ring, and does not always say of which thread.
    sum.lost = sum.lost.max(summary.records.lost) + summary.signal_losses.dropped;
    sum
}
