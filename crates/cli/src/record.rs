//! `nearpage record`: runs a command and records its memory accesses.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nearpage_amount::{count, counted, percent, time};
use nearpage_recording::{Finished, Launched, RateChange, Recording, SampleCounts};
use nearpage_report::needs_no_action;
use nearpage_runner::{
    ObserveOptions, Observed, Placing, RankSelection, SmallAllocations, Traced, default_output,
    end_as, expand_output, launched, observe, replace_by,
};
use nearpage_sampler::{
    AccessSelection, PmuEvent, PmuOptions, RequestedSource, State, Target, shell_status,
};
use schemars::JsonSchema;
use serde::Serialize;

use crate::Usage;
use crate::arguments::{Record, SampledEvent, Source, Threads};
use crate::json::{self, OwnOutput};
use crate::{shell, terminal, trace};

/// What `record --json` prints.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RecordOutput {
    /// Version of this form.
    version: u32,
    /// Folder of the recording.
    recording: PathBuf,
    /// Source of the accesses.
    source: nearpage_recording::Source,
    /// Exit status of the command, as a shell shows it; null: the command continues, or there was no command.
    exit_status: Option<i32>,
    /// Why recording ended.
    ending: Ending,
    /// Duration of the recording.
    elapsed_ns: u64,
    /// Samples per second and CPU, the maximum where the rate changed; null: sampled by period, or every miss was
    /// traced.
    rate_hz: Option<f64>,
    /// Sampling rates over time; empty if the rate was constant.
    rates: Vec<RateOutput>,
    /// Processor time that sampling took, including the recorder's; null where sampling was not accounted for: with
    /// --rate, --period, --max-overhead, the PMU and in traces.
    sampling_ns: Option<u64>,
    /// Number of recorded accesses.
    accesses: u64,
    /// Number of samples, by outcome; null in a trace.
    samples: Option<SampleCounts>,
    /// Totals of a trace; null for samples.
    trace: Option<TraceOutput>,
    /// Have tables been made? If not, the first opening of the recording makes them.
    has_tables: bool,
    /// Limits of the recording, with their causes.
    notes: Vec<String>,
}

/// A sampling rate, and the time of its start.
#[derive(Debug, Serialize, JsonSchema)]
struct RateOutput {
    /// Start of the rate, by CLOCK_MONOTONIC.
    time_ns: u64,
    /// Samples per second of a thread's time.
    rate_hz: f64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Ending {
    /// The command ended.
    CommandEnded,
    /// The observed processes ended.
    TargetEnded,
    /// Recording was interrupted or its time was up; the observed processes continue.
    TargetGoesOn,
}

/// Totals of a run in emulation.
#[derive(Debug, Serialize, JsonSchema)]
struct TraceOutput {
    /// The machine whose caches the references went through.
    machine: String,
    /// Instructions executed.
    instructions: u64,
    /// Loads.
    loads: u64,
    /// Stores.
    stores: u64,
}

impl From<&RateChange> for RateOutput {
    fn from(change: &RateChange) -> Self {
        Self {
            time_ns: change.time_ns,
            rate_hz: change.rate_hz,
        }
    }
}

impl RecordOutput {
    fn of_samples(observed: &Observed, recording: &Path) -> Self {
        let (ending, exit_status) = match observed.state {
            State::Ended(status) => (Ending::CommandEnded, Some(shell_status(status).into())),
            State::TargetEnded => (Ending::TargetEnded, None),
            State::Running | State::Detached => (Ending::TargetGoesOn, None),
        };
        Self {
            version: nearpage_recording::JSON_VERSION,
            recording: recording.to_owned(),
            source: observed.source,
            exit_status,
            ending,
            elapsed_ns: observed.elapsed.as_nanos() as u64,
            rate_hz: (observed.rate_hz > 0.0).then_some(observed.rate_hz),
            rates: observed.rates.iter().map(RateOutput::from).collect(),
            sampling_ns: observed.sampling.map(|time| time.as_nanos() as u64),
            accesses: observed.counts.accesses,
            samples: Some(observed.counts),
            trace: None,
            has_tables: observed.finished == Finished::Converted,
            notes: observed.notes.clone(),
        }
    }

    pub fn of_trace(recording: &Recording, traced: Traced) -> Self {
        let total = |name| trace::total(recording, name);
        Self {
            version: nearpage_recording::JSON_VERSION,
            recording: recording.folder.clone(),
            source: recording.metadata.source,
            exit_status: Some(shell_status(traced.status).into()),
            ending: Ending::CommandEnded,
            elapsed_ns: traced.elapsed.as_nanos() as u64,
            rate_hz: None,
            rates: Vec::new(),
            sampling_ns: None,
            accesses: recording.access_count(),
            samples: None,
            trace: Some(TraceOutput {
                machine: recording.machine.name.clone(),
                instructions: total("instructions"),
                loads: total("loads"),
                stores: total("stores"),
            }),
            has_tables: true,
            notes: recording.metadata.notes.clone(),
        }
    }
}

pub fn main(arguments: Record) -> anyhow::Result<ExitCode> {
    leave_unselected(arguments.ranks.as_ref(), &arguments.command)?;
    let pmu = pmu_options(&arguments)?;
    let source = match arguments.source {
        // Only the PMU can sample TLB misses.
        Source::Auto if pmu.event == PmuEvent::DtlbMiss => RequestedSource::Pmu,
        Source::Auto => RequestedSource::Auto,
        Source::Pmu => RequestedSource::Pmu,
        Source::Clock => RequestedSource::Clock,
        Source::Signal => RequestedSource::Signal,
        Source::Full => return trace::main(trace::of_record(arguments)?),
    };
    if let Some(option) = arguments.tracing.given() {
        let wording =
            format!("{option} is an option of `nearpage trace`: `record` knows no caches");
        return Err(Usage(wording).into());
    }
    let target = arguments.target();
    into_new_folder(arguments.output.as_deref(), &target, |output| {
        sample(&arguments, target.clone(), (source, pmu), output)
    })
}

/// Replaces this process by the command if `--ranks` does not select this rank.
pub fn leave_unselected(ranks: Option<&RankSelection>, command: &[OsString]) -> anyhow::Result<()> {
    let Some(ranks) = ranks else { return Ok(()) };
    let Some(launched) = launched() else {
        let wording = "--ranks: no launcher (srun, mpirun) gives this process a rank";
        return Err(Usage(wording.to_owned()).into());
    };
    match ranks.contains(launched.rank) {
        true => Ok(()),
        false => match replace_by(command)? {},
    }
}

/// Records into the folder of `-o` with its placeholders replaced, or into a new folder with a default name. An empty
/// folder is removed after an error.
pub fn into_new_folder(
    pattern: Option<&Path>,
    target: &Target,
    record: impl FnOnce(&Path) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    let output = match pattern {
        Some(pattern) => expand_output(pattern).map_err(nearpage_runner::Error::from)?,
        None => default_output(target),
    };
    let recorded = record(&output);
    if recorded.is_err() {
        // The folder was made early to reserve the name. `remove_dir` leaves a folder that is not empty.
        let _ = std::fs::remove_dir(&output);
        if let (None, Some(job)) = (pattern, output.parent()) {
            let _ = std::fs::remove_dir(job);
        }
    }
    recorded
}

fn sample(
    arguments: &Record,
    target: Target,
    (source, pmu): (RequestedSource, PmuOptions),
    output: &Path,
) -> anyhow::Result<ExitCode> {
    let pins = match arguments.threads {
        Threads::None => None,
        threads => Some(Placing::pins_only(threads.placement())?),
    };
    let options = ObserveOptions {
        output: output.to_owned(),
        replace: arguments.force,
        source,
        pmu,
        selection: selection(arguments),
        rate_hz: arguments.rate,
        max_overhead: arguments.max_overhead.map(|percent| percent / 100.0),
        after: Duration::from_secs_f64(arguments.after.unwrap_or(0.0)),
        duration: arguments.duration.map(Duration::from_secs_f64),
        small_allocations: small_allocations(arguments.all_allocations),
        redact: arguments.redact,
        thread_placement: arguments.threads.pinning(),
        environment: pins.as_ref().map(Placing::environment).unwrap_or_default(),
        target,
    };
    let own_output = arguments.json.then(OwnOutput::take).transpose()?;
    let observed = observe(&options, &terminal::say)?;
    drop(own_output);
    if arguments.json {
        json::print(&RecordOutput::of_samples(&observed, &options.output))?;
    } else if !arguments.quiet {
        if let Some(launched) = launched() {
            say_of_rank(&observed, &launched, output);
            return Ok(end_as(observed.exit_status()));
        }
        print_summary(&observed, &options.output);
    }
    Ok(end_as(observed.exit_status()))
}

/// Options of the PMU; an error if the source has no PMU.
fn pmu_options(arguments: &Record) -> Result<PmuOptions, Usage> {
    let pmu = PmuOptions {
        min_latency_cycles: arguments.min_latency,
        period: arguments.period,
        event: match arguments.event {
            SampledEvent::Access => PmuEvent::Access,
            SampledEvent::DtlbMiss => PmuEvent::DtlbMiss,
        },
    };
    let without_pmu = [Source::Clock, Source::Signal, Source::Full];
    if without_pmu.contains(&arguments.source) && pmu != PmuOptions::default() {
        let wording = "--min-latency, --period and --event are for hardware samples: not with --source clock or signal, or in a trace";
        return Err(Usage(wording.to_owned()));
    }
    Ok(pmu)
}

/// Selection of the sampled accesses to keep.
fn selection(arguments: &Record) -> AccessSelection {
    AccessSelection {
        ranges: arguments.range.clone(),
        objects: arguments
            .object
            .iter()
            .map(|name| nearpage_files::path_to_text(name.as_bytes()))
            .collect(),
    }
}

/// Logging of small allocations: all, or samples.
pub fn small_allocations(all: bool) -> SmallAllocations {
    match all {
        true => SmallAllocations::All,
        false => SmallAllocations::Sampled,
    }
}

/// Prints a summary of the recording on standard error, away from the command's output.
fn print_summary(observed: &Observed, output: &Path) {
    for note in observed.notes.iter().filter(|note| !needs_no_action(note)) {
        terminal::say(note);
    }
    let counts = &observed.counts;
    let number = |samples: u64| count(samples as f64);
    let of_samples = |count: u64| percent(count as f64 / counts.samples.max(1) as f64);
    terminal::say(&format!(
        "recorded {} {}, {} in user mode: {} of accesses ({}), {} of computation, {} undecoded; {} lost",
        time(observed.elapsed.as_nanos() as f64),
        sampling_rate(observed),
        counted(counts.samples, "sample"),
        number(counts.accesses),
        of_samples(counts.accesses),
        number(counts.compute),
        number(counts.undecoded),
        number(counts.lost)
    ));
    match observed.state {
        State::Ended(status) => {
            if let Some(signal) = status.signal() {
                terminal::say(&format!("the command was ended by signal {signal}"));
            }
        }
        State::Running | State::Detached if observed.attached => {}
        State::Running | State::Detached => terminal::say("interrupted; the command goes on"),
        State::TargetEnded => terminal::say("what was observed has ended"),
    }
    let later = match observed.finished {
        Finished::Converted => "",
        Finished::Deferred => " (its tables are made when it is first opened)",
    };
    terminal::say(&format!("the recording is in {}{later}", output.display()));
    terminal::next(&format!("nearpage report {}", shell::path(output)));
}

/// Prints a summary for rank 0 only. Each rank's notes are in its recording, and `report` prints them once.
fn say_of_rank(observed: &Observed, launched: &Launched, output: &Path) {
    if launched.rank > 0 {
        return;
    }
    for note in observed.notes.iter().filter(|note| !needs_no_action(note)) {
        terminal::say(note);
    }
    terminal::say(&format!(
        "rank 0 is recorded in {}, other ranks beside it",
        output.display()
    ));
    if let Some(job) = output.parent().filter(|job| !job.as_os_str().is_empty()) {
        terminal::next(&format!("nearpage report {}", shell::path(job)));
    }
}

/// Sampling rate, and the cost of sampling if it is known.
fn sampling_rate(observed: &Observed) -> String {
    let rate = rates_in_words(&observed.rates, observed.rate_hz);
    match observed.sampling {
        Some(sampling) => {
            let sampling = time(sampling.as_nanos() as f64);
            format!("{rate} ({sampling} of processor time)")
        }
        None => rate,
    }
}

/// The rates in order of time, or the constant rate: 0 if samples come by period.
fn rates_in_words(rates: &[RateChange], rate_hz: f64) -> String {
    let all = || rates.iter().map(|rate| rate.rate_hz);
    let (least, most) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
    match (rates, rate_hz) {
        // The lowest rate matters: threads that began then have the fewest samples. The last one may be higher.
        ([first, .., last], _) if last.rate_hz < first.rate_hz => {
            format!("at {:.0} Hz falling to {least:.0} Hz", first.rate_hz)
        }
        ([_, .., _], _) => format!("at {least:.0} to {most:.0} Hz"),
        (_, 0.0) => "by period".to_owned(),
        (_, rate_hz) => format!("at {rate_hz} Hz"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rate_is_named_wherever_it_was() {
        let words = |rates: &[f64]| {
            let rates = rates.iter().map(|&rate_hz| RateChange {
                time_ns: 0,
                rate_hz,
            });
            rates_in_words(&rates.collect::<Vec<_>>(), 4098.0)
        };
        assert_eq!(
            words(&[3105.0, 97.0, 1232.0]),
            "at 3105 Hz falling to 97 Hz"
        );
        assert_eq!(words(&[3113.0, 500.0, 4098.0]), "at 500 to 4098 Hz");
        assert_eq!(words(&[4098.0]), "at 4098 Hz");
        assert_eq!(rates_in_words(&[], 0.0), "by period");
    }
}
