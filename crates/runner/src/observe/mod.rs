//! Records samples of a command or of running processes. The sampler's output and the preload library's log end up in
//! one recording.

mod compared;
mod log_sink;
mod metadata;
mod program;
mod warnings;

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use nearpage_machine::Machine;
use nearpage_recording::{
    Attached, Finished, LogWriter, Messages, RateChange, SampleCounts, Source, ThreadPinning,
    UnsampledPrograms,
};
use nearpage_sampler::{
    AccessSelection, DEFAULT_MAX_OVERHEAD, Options, PmuOptions, RequestedSource, Sampler,
    SourceChoice, State, Summary, Target, choose_source, shell_status,
};

pub use self::compared::ComparedRun;

use self::log_sink::LogSink;
use self::program::ObservedProgram;
use self::warnings::warnings;
use crate::Reporter;
use crate::command::command_status;
use crate::environment::{Environment, SmallAllocations, allocation_log};
use crate::error::{Error, IoContext};
use crate::libraries::PreloadLibrary;
use crate::measured_costs;
use crate::messages;
use crate::output::OutputFolder;

/// Options of a recording.
#[derive(Clone, Debug)]
pub struct ObserveOptions {
    /// Folder of the recording.
    pub output: PathBuf,
    /// May an earlier recording in the folder be replaced?
    pub replace: bool,
    /// Source of the accesses.
    pub source: RequestedSource,
    /// Options of the PMU, if it is the source.
    pub pmu: PmuOptions,
    /// Selection of the accesses to keep.
    pub selection: AccessSelection,
    /// Samples per second and CPU; `None`: as many as have a low cost on this machine.
    pub rate_hz: Option<f64>,
    /// Limit of the share of the program's time that sampling takes. `None`: the sample budget, or no limit if a rate
    /// or period is set.
    pub max_overhead: Option<f64>,
    /// Time from the start until sampling begins.
    pub after: Duration,
    /// How long sampling lasts; `None`: to the end.
    pub duration: Option<Duration>,
    /// Small allocations to log.
    pub small_allocations: SmallAllocations,
    /// Leave out paths and arguments.
    pub redact: bool,
    /// Pinning of the threads, for the metadata; `environment` has the pins.
    pub thread_placement: ThreadPinning,
    /// Variables that placement adds.
    pub environment: Environment,
    /// Command or processes to observe.
    pub target: Target,
}

impl ObserveOptions {
    /// Records a target from its start, or from now, to its end.
    pub fn new(output: PathBuf, target: Target) -> Self {
        Self {
            output,
            replace: false,
            source: RequestedSource::Auto,
            pmu: PmuOptions::default(),
            selection: AccessSelection::default(),
            rate_hz: None,
            max_overhead: None,
            after: Duration::ZERO,
            duration: None,
            small_allocations: SmallAllocations::default(),
            redact: false,
            thread_placement: ThreadPinning::None,
            environment: Environment::new(),
            target,
        }
    }
}

/// Result of a recording.
#[derive(Debug)]
pub struct Observed {
    /// How the target ended.
    pub state: State,
    /// Source of the samples.
    pub source: Source,
    /// Numbers of samples by outcome.
    pub counts: SampleCounts,
    /// Samples per second and CPU; 0: samples came by period.
    pub rate_hz: f64,
    /// Sampling rates over time; empty if the rate was constant.
    pub rates: Vec<RateChange>,
    /// Processor time that sampling took, including the recorder's; `None` without a sample budget.
    pub sampling: Option<Duration>,
    /// Duration of sampling.
    pub elapsed: Duration,
    /// Messages about the recording, for the user.
    pub notes: Vec<String>,
    /// Are the recording's tables made?
    pub finished: Finished,
    /// Did the target run already? Then no command was started.
    pub attached: bool,
}

impl Observed {
    /// Exit status of the command: 130 if the command continues, 0 for running processes, which are meant to continue.
    pub fn exit_status(&self) -> ExitStatus {
        match self.attached {
            true => ExitStatus::default(),
            false => command_status(self.state),
        }
    }
}

/// Records `options.target` from its start, or from now, to its end. `say` gets a line at once if the recording can't
/// be written any more; [`Observed::notes`] has all other messages.
///
/// # Errors
/// The target cannot be observed, or the output folder cannot be written or must not be replaced.
pub fn observe(options: &ObserveOptions, say: Reporter<'_>) -> Result<Observed, Error> {
    let machine = Machine::local(Path::new("/sys"))?;
    let mut notes = Vec::new();
    let program = ObservedProgram::of(&options.target, &mut notes)?;
    let (mut sampling, choice) = sampling_options(options, &program)?;
    let output = OutputFolder::claim(&options.output, options.replace)?;
    let metadata = metadata::at_start(options, &sampling, &choice, &program, &machine);
    let (output, log) = output.begin(metadata, &machine)?;
    add_timing_and_environment(&mut sampling, options, &machine);
    if let Some(library) = &program.library {
        preload(
            &mut sampling,
            library,
            &log,
            options.small_allocations,
            &mut notes,
        )?;
    }

    let sampler = match Sampler::start(&sampling) {
        Ok(sampler) => sampler,
        Err(error) => {
            drop(log);
            output.give_back();
            return Err(error.into());
        }
    };
    output.keep();
    let choice = sampler.choice().clone();
    if options.source == RequestedSource::Auto {
        notes.insert(0, choice.line.clone());
    }
    if choice.source == Source::Clock && options.pmu != PmuOptions::default() {
        notes.push("--min-latency and --period are for the PMU and were left aside".to_owned());
    }
    notes.extend(sampler.notes().iter().cloned());
    let full_rate_hz = sampler.full_rate_hz();
    let attached = program.attached_to.as_ref().zip(sampler.coverage());
    let attached = attached.map(|(target, coverage)| Attached {
        target: target.clone(),
        coverage,
    });

    let mut sink = LogSink::new(log, say);
    let summary = sampler.run(&mut sink)?;
    let (mut log, unsampled) = sink.into_log()?;
    let is_attached = attached.is_some();
    log.metadata_mut().attached = attached;
    // The sampler may use another source than the chosen one, for example if another program has taken the PMU
    // meanwhile.
    metadata::set_source(log.metadata_mut(), &sampling, &choice);
    if let Some(full_hz) = full_rate_hz {
        log.metadata_mut().rate_hz = full_hz;
    }
    finish(log, &summary, &unsampled, notes, is_attached)
}

/// Options of the sampler for source and rate, and the source that the sampler will use.
fn sampling_options(
    options: &ObserveOptions,
    program: &ObservedProgram,
) -> Result<(Options, SourceChoice), Error> {
    let mut sampling = Options::new(options.target.clone());
    sampling.source = options.source;
    sampling.pmu = options.pmu;
    sampling.selection = options.selection.clone();
    sampling.preload = match &program.without_library {
        None => Ok(()),
        Some(reason) => Err(nearpage_sampler::NoPreload(reason.clone())),
    };
    let calibration = measured_costs::calibration(options.source);
    sampling.calibration = calibration.as_ref().ok().copied();
    sampling.rate_hz = options.rate_hz.or(sampling
        .calibration
        .map(|calibration| calibration.default_rate_hz()));
    let choice = choose_source(&sampling)?;
    if choice.source == Source::Clock {
        calibration?;
    }
    Ok((sampling, choice))
}

fn add_timing_and_environment(sampling: &mut Options, options: &ObserveOptions, machine: &Machine) {
    sampling.max_overhead = options.max_overhead;
    // An explicit rate or period takes precedence over the budget.
    if options.max_overhead.is_none() && options.rate_hz.is_none() && options.pmu.period.is_none() {
        sampling.budget = true;
        sampling.max_overhead = Some(DEFAULT_MAX_OVERHEAD);
    }
    sampling.after = options.after;
    sampling.duration = options.duration;
    sampling.page_nodes = machine.nodes.len() > 1;
    sampling.environment = options.environment.clone();
}

/// Makes the command load the preload library, which logs allocations into the recording.
fn preload(
    sampling: &mut Options,
    library: &PreloadLibrary,
    log: &LogWriter,
    small: SmallAllocations,
    notes: &mut Vec<String>,
) -> Result<(), Error> {
    let folder = log
        .allocation_log_folder()
        .canonicalize()
        .context("the recording's folder went away")?;
    sampling.samples_folder.clone_from(&folder);
    let environment = &mut sampling.environment;
    environment.push(("LD_PRELOAD".into(), library.ld_preload()));
    notes.extend(messages::add_file(&folder, environment).err());
    environment.extend(allocation_log(folder, small));
    Ok(())
}

/// Completes the recording with counts and notes.
fn finish(
    mut log: LogWriter,
    summary: &Summary,
    unsampled: &UnsampledPrograms,
    mut notes: Vec<String>,
    attached: bool,
) -> Result<Observed, Error> {
    let counts = metadata::counts(summary);
    for note in &summary.notes {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes.extend(warnings(summary, &counts, unsampled));
    let said = Messages::read(&log.allocation_log_folder()).lines;
    notes.extend(said);
    let metadata = log.metadata_mut();
    metadata.begin_ns = summary.begin_ns;
    metadata.rates = metadata::rates(summary);
    metadata.counts = counts;
    metadata.notes.clone_from(&notes);
    let (rate_hz, source, rates) = (metadata.rate_hz, metadata.source, metadata.rates.clone());
    let exit_status = match summary.state {
        State::Ended(status) => Some(shell_status(status).into()),
        State::Running | State::Detached | State::TargetEnded => None,
    };
    let finished = log.finish(exit_status, summary.end_ns)?;
    Ok(Observed {
        state: summary.state,
        source,
        counts,
        rate_hz,
        rates,
        sampling: summary
            .sampling_ns
            .map(|sampling_ns| Duration::from_nanos(sampling_ns as u64)),
        elapsed: Duration::from_nanos(summary.end_ns.saturating_sub(summary.begin_ns)),
        notes,
        finished,
        attached,
    })
}

#[cfg(test)]
mod tests;
