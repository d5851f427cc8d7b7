//! Warnings about missing samples.

use nearpage_amount::{counted, percent, time};
use nearpage_recording::{SampleCounts, UnsampledPrograms};
use nearpage_sampler::{SignalLosses, Summary};

/// Sentences for the user. Each names a remedy if there is one.
pub(super) fn warnings(
    summary: &Summary,
    counts: &SampleCounts,
    unsampled: &UnsampledPrograms,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let losses = &summary.signal_losses;
    if losses.blocked > 0 {
        warnings.push(format!(
            "{} did not come: the program blocked the signal meanwhile",
            counted(losses.blocked, "sample")
        ));
    }
    if losses.dropped > 0 {
        warnings.push(format!(
            "{} lost because buffers were full; a lower --rate loses fewer",
            counted(losses.dropped, "sample")
        ));
    }
    if losses.threads > 0 {
        warnings.push(format!(
            "{} not sampled: the kernel gives no more timers; raise ulimit -i",
            counted(losses.threads, "thread")
        ));
    }
    if losses.given_way > 0 {
        warnings.push(format!(
            "{} took over the signal and could not be sampled from then on",
            counted(losses.given_way, "process")
        ));
    }
    if summary.records.lost > 0 && *losses == SignalLosses::default() {
        warnings.push(format!(
            "{} lost because buffers were full; a lower --rate loses fewer",
            counted(counts.lost, "record")
        ));
    }
    if summary.records.throttled > 0 {
        warnings.push(format!(
            "the kernel stopped sampling {} (kernel.perf_event_max_sample_rate or perf_cpu_time_max_percent); \
             a lower --rate avoids it",
            counted(summary.records.throttled, "time")
        ));
    }
    if summary.records.incomplete > 0 {
        warnings.push(format!(
            "hardware samples are incomplete in {}; a longer --period loses fewer",
            counted(summary.records.incomplete, "place")
        ));
    }
    warnings.extend(unknown_sources(summary));
    if summary.records.left_out > 0 {
        warnings.push(format!(
            "{} outside --range, --object or --event left out",
            counted(summary.records.left_out, "access")
        ));
    }
    if summary.counting_share < 0.99 {
        warnings.push(format!(
            "the hardware was counting {} of the time: its events took turns, or something else uses the PMU",
            percent(summary.counting_share)
        ));
    }
    if let (Some(first), Some(last)) = (summary.rates.first(), summary.rates.last())
        && summary.rates.len() > 1
        && summary.sampling_ns.is_none()
    {
        warnings.push(format!(
            "the rate went from {:.0} to {:.0} Hz in {}, to keep --max-overhead: a sample costs {}",
            first.rate_hz,
            last.rate_hz,
            counted(summary.rates.len() as u64 - 1, "step"),
            time(summary.sample_ns.unwrap_or(0.0))
        ));
    }
    warnings.extend(unsampled.note());
    if counts.samples == 0 && unsampled.programs().is_empty() {
        warnings.push(
            "no samples: what was observed used too little CPU time, as programs do that wait (for input, a lock, the \
             network); a higher --rate sees more of what they do use"
                .to_owned(),
        );
    }
    warnings
}

/// A warning about hardware samples with a data source that only a later kernel defines.
fn unknown_sources(summary: &Summary) -> Option<String> {
    let records = &summary.records;
    (records.unknown_sources > 0).then(|| {
        format!(
            "{} with a data_src that this version of nearpage does not know, so what served them is unknown; the last is {:#x}",
            counted(records.unknown_sources, "sample"),
            records.unknown_source
        )
    })
}
