//! Records a command, or what is running already: the sampler's output and the preload library's log
//! end in one recording.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use nearpage_machine::{Machine, several};
use nearpage_plan::{ProgramImage, SearchPaths, resolve_command};
use nearpage_recording::{
    Access, AccessBatch, Attached, Event, Finished, LogWriter, Metadata, RateChange, SampleCounts,
    Source, ThreadPinning, elf::ElfFile, folder,
};
use nearpage_sampler::{
    Choice, NoPreload, Options, PmuOptions, Sampler, SignalLosses, Sink, SourceWish, State,
    Summary, Target, UNMEASURED_RATE_HZ, Wanted, calibrate, calibrate_signal, choose_source,
};

use crate::launch::PreloadLibrary;
use crate::terminal;

/// Mean bytes between two sampled small allocations, where not every one is logged.
pub const SMALL_SAMPLE_BYTES: u64 = 512 * 1024;

/// What to record, and how.
pub struct Wish {
    /// Folder of the recording.
    pub output: PathBuf,
    /// An earlier recording there may go.
    pub replace: bool,
    pub source: SourceWish,
    pub pmu: PmuOptions,
    /// Which accesses to keep.
    pub wanted: Wanted,
    /// `None`: as many samples as cost little here.
    pub rate_hz: Option<f64>,
    /// The share of the program's time that sampling may take; `None`: as much as it takes.
    pub max_overhead: Option<f64>,
    pub after: Duration,
    pub duration: Option<Duration>,
    pub all_allocations: bool,
    pub redact: bool,
    /// How threads are pinned, for the metadata; the pins themselves are in `environment`.
    pub thread_placement: ThreadPinning,
    /// Variables that placement adds.
    pub environment: Vec<(OsString, OsString)>,
    pub target: Target,
}

/// What came of it.
pub struct Observed {
    pub state: State,
    pub counts: SampleCounts,
    /// 0: samples came by period.
    pub rate_hz: f64,
    pub elapsed: Duration,
    pub notes: Vec<String>,
    pub finished: Finished,
    /// It was not a command that was started for it.
    pub attached: bool,
}

/// Appends to the recording's log. Where that fails (a full disk) the command must still run to its
/// end, so the first failure is kept and nothing is written any more.
struct ToLog {
    log: LogWriter,
    batch: AccessBatch,
    failure: Option<nearpage_recording::Error>,
}

impl ToLog {
    fn unless_failed(
        &mut self,
        write: impl FnOnce(&mut LogWriter) -> Result<(), nearpage_recording::Error>,
    ) {
        if self.failure.is_none()
            && let Err(failure) = write(&mut self.log)
        {
            terminal::say(&format!(
                "recording stops here, what is observed goes on: {failure}"
            ));
            self.failure = Some(failure);
        }
    }
}

impl Sink for ToLog {
    fn accesses(&mut self, accesses: &[Access]) -> io::Result<()> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        batch.extend(accesses);
        self.unless_failed(|log| log.accesses(&batch));
        self.batch = batch;
        Ok(())
    }

    fn events(&mut self, events: &[Event]) -> io::Result<()> {
        self.unless_failed(|log| log.events(events));
        Ok(())
    }
}

/// [`Options::preload`], for programs that it can enter.
pub fn preload_works<L, E>(found: Result<L, E>) -> Result<(), String> {
    let missing = |_| {
        "it needs the preload library, which is not there: install it beside nearpage".to_owned()
    };
    found.map(drop).map_err(missing)
}

/// What is recorded, as its metadata has it.
struct Program {
    command: Vec<String>,
    build_id: String,
    attached_to: Option<String>,
    /// What is preloaded into a command.
    library: Option<PreloadLibrary>,
    /// [`Options::preload`].
    preload: Result<(), String>,
}

impl Program {
    fn of(target: &Target, notes: &mut Vec<String>) -> anyhow::Result<Self> {
        let attached = |to: String| {
            Self {
            command: Vec::new(),
            build_id: String::new(),
            attached_to: Some(to),
            library: None,
            preload: Err(
                "it needs the preload library inside from the start: not where something runs already"
                    .to_owned(),
            ),
        }
        };
        Ok(match target {
            Target::Command(command) => Self::started(command, notes)?,
            Target::Processes(pids) => {
                let listed: Vec<String> = pids.iter().map(u32::to_string).collect();
                let several = if pids.len() == 1 {
                    "process"
                } else {
                    "processes"
                };
                let first = pids.first().copied().unwrap_or_default();
                let words = fs::read(format!("/proc/{first}/cmdline")).unwrap_or_default();
                let words = words
                    .split(|byte| *byte == 0)
                    .filter(|word| !word.is_empty());
                let file = ElfFile::open(Path::new(&format!("/proc/{first}/exe"))).ok();
                Self {
                    command: words
                        .map(|word| String::from_utf8_lossy(word).into_owned())
                        .collect(),
                    build_id: file.map(|file| file.build_id()).unwrap_or_default(),
                    ..attached(format!("{several} {}", listed.join(", ")))
                }
            }
            Target::Cgroup(path) => attached(format!("cgroup {}", path.display())),
            Target::All => attached("all processes".to_owned()),
        })
    }

    fn started(command: &[OsString], notes: &mut Vec<String>) -> anyhow::Result<Self> {
        let search = SearchPaths::from_environment();
        let program = command.first().context("no command given")?;
        resolve_command(program, &search)?;
        let image = ProgramImage::load(program, &search).ok();
        let library = match PreloadLibrary::find() {
            Ok(library) => Some(library),
            Err(error) => {
                notes.push(format!("{error}: recorded without heap objects"));
                None
            }
        };
        if image.as_ref().is_some_and(|image| image.program.is_static) {
            notes.push(format!(
                "{} is statically linked: the preload library can't enter it, so its heap objects are not known and \
                 count as heap_unresolved; link it dynamically to see them",
                Path::new(program).display()
            ));
        }
        let preload = match &image {
            Some(image) if image.program.is_static => Err(format!(
                "it needs the preload library, which can't enter the statically linked {}: link it dynamically",
                Path::new(program).display()
            )),
            _ => preload_works(library.as_ref().ok_or(())),
        };
        let words = command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        Ok(Self {
            command: words.collect(),
            build_id: image.map_or_else(String::new, |image| image.program.build_id),
            attached_to: None,
            library,
            preload,
        })
    }
}

/// Records `wish.target` from start, or from now, to end.
pub fn observe(wish: &Wish) -> anyhow::Result<Observed> {
    let machine = Machine::local(Path::new("/sys"))?;
    let mut notes = Vec::new();
    let program = Program::of(&wish.target, &mut notes)?;

    let mut options = Options::new(wish.target.clone());
    options.source = wish.source;
    options.pmu = wish.pmu;
    options.wanted = wish.wanted.clone();
    options.preload = program.preload.clone().map_err(NoPreload);
    let calibration = match wish.source {
        SourceWish::Signal => calibrate_signal(),
        _ => calibrate().or_else(|refused| calibrate_signal().map_err(|_| refused)),
    };
    options.calibration = calibration.as_ref().ok().copied();
    options.rate_hz = wish.rate_hz.or(options
        .calibration
        .map(|calibration| calibration.default_rate_hz()));
    let choice = choose_source(&options)?;
    if choice.source == Source::Clock {
        calibration?;
    }
    let place = OutputFolder::claim(&wish.output, wish.replace)?;
    let metadata = metadata(wish, &options, &choice, &program, &machine);
    let (place, log) = place.begin(metadata, &machine)?;

    options.max_overhead = wish.max_overhead;
    options.after = wish.after;
    options.duration = wish.duration;
    options.page_nodes = machine.nodes.len() > 1;
    options.environment = wish.environment.clone();
    if let Some(library) = &program.library {
        let folder = log
            .allocation_log_folder()
            .canonicalize()
            .context("the recording's folder went away")?;
        options.samples_folder.clone_from(&folder);
        let sample = if wish.all_allocations {
            1
        } else {
            SMALL_SAMPLE_BYTES
        };
        options.environment.extend([
            ("LD_PRELOAD".into(), library.ld_preload()),
            (
                nearpage_wire::LOG_DIRECTORY_VARIABLE.into(),
                folder.into_os_string(),
            ),
            (
                nearpage_wire::SMALL_SAMPLE_BYTES_VARIABLE.into(),
                sample.to_string().into(),
            ),
        ]);
    }

    let sampler = match Sampler::start(&options) {
        Ok(sampler) => sampler,
        Err(error) => {
            drop(log);
            place.give_back();
            return Err(error.into());
        }
    };
    place.keep();
    let choice = sampler.choice().clone();
    if wish.source == SourceWish::Auto {
        notes.insert(0, choice.line.clone());
    }
    if choice.source == Source::Clock && wish.pmu != PmuOptions::default() {
        notes.push("--min-latency and --period are for the PMU and were left aside".to_owned());
    }
    notes.extend(sampler.notes().iter().cloned());
    let attached = program.attached_to.zip(sampler.coverage());
    let attached = attached.map(|(target, coverage)| Attached { target, coverage });

    let mut sink = ToLog {
        log,
        batch: AccessBatch::default(),
        failure: None,
    };
    let summary = sampler.run(&mut sink)?;
    let ToLog {
        mut log, failure, ..
    } = sink;
    if let Some(failure) = failure {
        return Err(anyhow::Error::new(failure).context("the recording is incomplete"));
    }
    let counts = counts(&summary);
    for note in &summary.notes {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    notes.extend(warnings(&summary, &counts));
    let metadata = log.metadata_mut();
    metadata.begin_ns = summary.begin_ns;
    metadata.rates = rates(&summary);
    metadata.counts = counts;
    metadata.notes = notes.clone();
    let is_attached = attached.is_some();
    metadata.attached = attached;
    // Another source than was expected, where someone took the PMU meanwhile.
    set_source(metadata, &options, &choice);
    let rate_hz = metadata.rate_hz;
    let exit_status = match summary.state {
        State::Ended(status) => Some(status),
        State::Running | State::Detached | State::TargetEnded => None,
    };
    let finished = log.finish(exit_status, summary.end_ns)?;
    Ok(Observed {
        state: summary.state,
        counts,
        rate_hz,
        elapsed: Duration::from_nanos(summary.end_ns.saturating_sub(summary.begin_ns)),
        notes,
        finished,
        attached: is_attached,
    })
}

/// Empty where the rate stayed what it was.
fn rates(summary: &Summary) -> Vec<RateChange> {
    let rate = |change: &nearpage_sampler::RateChange| RateChange {
        time_ns: change.time_ns,
        rate_hz: change.rate_hz,
    };
    match summary.rates.as_slice() {
        [] | [_] => Vec::new(),
        changes => changes.iter().map(rate).collect(),
    }
}

fn set_source(metadata: &mut Metadata, options: &Options, choice: &Choice) {
    let rate_hz = options.rate_hz.unwrap_or(UNMEASURED_RATE_HZ);
    metadata.rate_hz = if choice.fixed_period { 0.0 } else { rate_hz };
    metadata.source = choice.source;
    metadata.calibration = match choice.source.measures_latency() {
        true => choice.line.clone(),
        false => options.calibration.unwrap_or_default().to_string(),
    };
}

fn metadata(
    wish: &Wish,
    options: &Options,
    choice: &Choice,
    program: &Program,
    machine: &Machine,
) -> Metadata {
    let mut metadata = Metadata {
        command: program.command.clone(),
        build_id: program.build_id.clone(),
        thread_placement: wish.thread_placement,
        redacted: wish.redact,
        rank: rank(),
        attached: program.attached_to.clone().map(|target| Attached {
            target,
            coverage: String::new(),
        }),
        ..Metadata::begun(choice.source, SystemTime::now(), machine.node_ids())
    };
    set_source(&mut metadata, options, choice);
    metadata
}

/// The number that an MPI launcher gave this process.
pub fn rank() -> Option<u32> {
    nearpage_wire::RANK_VARIABLES
        .into_iter()
        .find_map(|name| std::env::var(name).ok()?.parse().ok())
}

fn counts(summary: &Summary) -> SampleCounts {
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
    sum.lost = sum.lost.max(summary.records.lost) + summary.signal_losses.dropped;
    sum
}

fn warnings(summary: &Summary, counts: &SampleCounts) -> Vec<String> {
    let mut warnings = Vec::new();
    let losses = &summary.signal_losses;
    if losses.blocked > 0 {
        warnings.push(format!(
            "{} did not come: the program blocked the signal meanwhile",
            several(losses.blocked, "sample")
        ));
    }
    if losses.dropped > 0 {
        warnings.push(format!(
            "{} lost for want of room; a lower --rate loses fewer",
            several(losses.dropped, "sample")
        ));
    }
    if losses.threads > 0 {
        warnings.push(format!(
            "{} not sampled: the kernel gives no more timers; raise ulimit -i",
            several(losses.threads, "thread")
        ));
    }
    if losses.given_way > 0 {
        warnings.push(format!(
            "{} took over the signal and could not be sampled from then on",
            several(losses.given_way, "process")
        ));
    }
    if summary.records.lost > 0 && *losses == SignalLosses::default() {
        warnings.push(format!(
            "{} lost for want of room; a lower --rate loses fewer",
            several(counts.lost, "record")
        ));
    }
    if summary.records.throttled > 0 {
        warnings.push(format!(
            "the kernel stopped sampling {} (kernel.perf_event_max_sample_rate or perf_cpu_time_max_percent); \
             a lower --rate avoids it",
            several(summary.records.throttled, "time")
        ));
    }
    if summary.records.incomplete > 0 {
        warnings.push(format!(
            "hardware samples are incomplete in {}; a longer --period loses fewer",
            several(summary.records.incomplete, "place")
        ));
    }
    if summary.records.left_out > 0 {
        warnings.push(format!(
            "{} left out that nobody asked for (--range, --object, --event)",
            several(summary.records.left_out, "access")
        ));
    }
    if summary.counting_share < 0.99 {
        warnings.push(format!(
            "the hardware was counting {:.0} % of the time: its events took turns, or something else uses the PMU",
            100.0 * summary.counting_share
        ));
    }
    if let (Some(first), Some(last)) = (summary.rates.first(), summary.rates.last())
        && summary.rates.len() > 1
    {
        warnings.push(format!(
            "the rate went from {:.0} to {:.0} Hz in {}, to keep --max-overhead: a sample costs {:.1} µs",
            first.rate_hz,
            last.rate_hz,
            several(summary.rates.len() as u64 - 1, "step"),
            summary.sample_ns.unwrap_or(0.0) / 1e3
        ));
    }
    if counts.samples == 0 {
        warnings.push(
            "no samples: what was observed used too little CPU time; a higher --rate sees more"
                .to_owned(),
        );
    }
    warnings
}

/// Sees to it that an earlier recording is there until the new one has begun.
pub struct OutputFolder {
    path: PathBuf,
    /// There was nothing, or an earlier recording that is out of the way.
    is_new: bool,
    /// Where the earlier recording waits.
    earlier: Option<PathBuf>,
}

impl OutputFolder {
    pub fn claim(path: &Path, replace: bool) -> anyhow::Result<Self> {
        let mut earlier = None;
        if replace && path.exists() {
            let is_empty = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
            if !is_empty && !path.join(folder::METADATA_FILE).exists() {
                bail!(
                    "{}: not a recording, so --force does not replace it",
                    path.display()
                );
            }
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".earlier-{}", std::process::id()));
            fs::rename(path, &name)
                .with_context(|| format!("{}: can't be moved out of the way", path.display()))?;
            earlier = Some(PathBuf::from(name));
        }
        Ok(Self {
            path: path.to_owned(),
            is_new: !path.exists(),
            earlier,
        })
    }

    /// The new recording has begun.
    pub fn keep(self) {
        if let Some(earlier) = self.earlier {
            let _ = fs::remove_dir_all(earlier);
        }
    }

    /// Makes the new recording's first files. Where they can't be made, perhaps since others are
    /// there, there will be none.
    pub fn begin(self, metadata: Metadata, machine: &Machine) -> anyhow::Result<(Self, LogWriter)> {
        match LogWriter::create(&self.path, metadata, machine) {
            Ok(log) => Ok((self, log)),
            Err(error) => {
                let is_recording = self.path.join(folder::METADATA_FILE).exists();
                if self.is_new {
                    self.give_back();
                }
                match error {
                    nearpage_recording::Error::FolderInUse(path) if is_recording => bail!(
                        "{}: there is a recording already; choose another folder with -o, or replace it with --force",
                        path.display()
                    ),
                    error => Err(error.into()),
                }
            }
        }
    }

    /// There will be no new recording.
    fn give_back(self) {
        // One after the other: where it is for want of open files, two folders can't be open at once.
        let _ = fs::remove_dir_all(self.path.join(folder::LOG_FOLDER));
        let _ = fs::remove_dir_all(&self.path);
        if let Some(earlier) = self.earlier {
            let _ = fs::rename(earlier, &self.path);
        }
    }
}
