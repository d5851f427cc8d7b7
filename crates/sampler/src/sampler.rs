//! The sampler: one inherited event and ring per CPU, drained until the command ends.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearpage_machine::CpuId;
use nearpage_recording::Source;

use crate::architecture::REGISTER_MASK;
use crate::calibrate::{Calibration, UNMEASURED_RATE_HZ, calibrate, calibrate_signal, page_bytes};
use crate::cpus::online_cpus;
use crate::error::{Error, Refusal};
use crate::follower::{Follower, Hardware, RecordCounts, Sink, UndecodedCounts, UndecodedPlace};
use crate::governor::Governor;
use crate::interrupts::Interrupts;
use crate::launch::Child;
use crate::merge::Window;
use crate::overhead::{Overhead, RateChange, Turns};
use crate::page_nodes;
use crate::perf_event::{Attributes, Counted, PerfEvent, READ_TIMES, Scope, flag};
use crate::pmu::{Frequencies, MemoryEvent, PmuOptions, spe};
use crate::record::{CLOCK_SAMPLE, FAULT_SAMPLE, Identifiers};
use crate::ring::Ring;
use crate::signal::{self, SignalLosses, Signals};
use crate::source::{Choice, Facts, Pmu, SourceWish, choose, errno};
use crate::threads::SampledThread;

/// One page fault in so many is recorded, where nothing else is asked for. A prime, so as not to
/// be in step with the program's loops. What page faults cost is mostly that they are counted at all
/// (`benches/tracking_cost`), so a longer period would gain little.
pub const DEFAULT_FAULT_PERIOD: u64 = 61;

/// The kernel samples the clock at most this often (`perf_swevent_hrtimer`).
pub const MAX_RATE_HZ: f64 = 100_000.0;

/// The governor does not go below, so that it hears of cheaper times.
const RATE_MIN_HZ: f64 = 10.0;

/// What to record, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Command and arguments; the command is looked for in PATH.
    pub command: Vec<OsString>,
    /// Variables added to the environment.
    pub environment: Vec<(OsString, OsString)>,
    /// Where accesses come from.
    pub source: SourceWish,
    /// What to sample where that is the PMU.
    pub pmu: PmuOptions,
    /// Whether the preload library will be in the command, which the signal source needs; where it
    /// won't, why and what helps, for the user.
    pub preload: Result<(), String>,
    /// Where it puts its samples: a folder, by its absolute path.
    pub samples_folder: PathBuf,
    /// Samples per second of every thread's CPU time; `None`:
    /// [as many as cost little](Calibration::default_rate_hz).
    pub rate_hz: Option<f64>,
    /// The share of the program's time that sampling may take: the rate is lowered to keep it.
    /// `None`: it stays as it is.
    pub max_overhead: Option<f64>,
    /// Time after the start of the command when sampling begins.
    pub after: Duration,
    /// How long sampling lasts; `None`: to the end.
    pub duration: Option<Duration>,
    /// One page fault in so many becomes a first touch; 0: none.
    pub fault_period: u64,
    /// Ask the kernel on which node sampled pages are. Of use on more than one node only.
    pub page_nodes: bool,
    /// Where the sampled instruction is and what samples cost; `None`: measure it at the start.
    pub calibration: Option<Calibration>,
    /// `/sys`, but in tests.
    pub sys_root: PathBuf,
    /// `/proc`, but in tests.
    pub proc_root: PathBuf,
}

impl Options {
    /// The defaults, for a command.
    pub fn new(command: Vec<OsString>) -> Self {
        Self {
            command,
            environment: Vec::new(),
            source: SourceWish::default(),
            pmu: PmuOptions::default(),
            preload: Err("it needs the preload library inside the command".to_owned()),
            samples_folder: PathBuf::new(),
            rate_hz: None,
            max_overhead: None,
            after: Duration::ZERO,
            duration: None,
            fault_period: DEFAULT_FAULT_PERIOD,
            page_nodes: false,
            calibration: None,
            sys_root: "/sys".into(),
            proc_root: "/proc".into(),
        }
    }
}

/// How a recording stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The command is running.
    Running,
    /// It has ended, with this status as a shell shows it (128 + signal).
    Ended(i32),
    /// Recording was interrupted; the command goes on without it.
    Detached,
}

/// What a recording amounts to.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How it ended.
    pub state: State,
    /// All threads, by [`ThreadIndex`](nearpage_recording::ThreadIndex).
    pub threads: Vec<SampledThread>,
    /// Why samples are undecoded.
    pub undecoded: UndecodedCounts,
    /// Where most of them are, most first; at most 16.
    pub undecoded_places: Vec<UndecodedPlace>,
    /// Records that are not what they should be.
    pub records: RecordCounts,
    /// The rates sampled at, by time; the first from the beginning on.
    pub rates: Vec<RateChange>,
    /// What a sample was found to cost, in nanoseconds, the recorder's part included; `None` where
    /// nobody looked, or too few came.
    pub sample_ns: Option<f64>,
    /// What the signal source did not see.
    pub signal_losses: SignalLosses,
    /// The share of the time in which the hardware was counting, 0 to 1: less than 1 where events
    /// take turns or someone else uses the PMU. Weights are not scaled by it. 1 with the clock.
    pub counting_share: f64,
    /// Where it began, CLOCK_MONOTONIC.
    pub begin_ns: u64,
    /// Where it ended.
    pub end_ns: u64,
}

struct CpuRing {
    /// What is switched on and off; without the leaders of groups, which only have to be there, the
    /// last in each group.
    sampling: Vec<Sampling>,
    /// Open for its records, which go to the same ring.
    tracking: PerfEvent,
    ring: Ring,
    /// The event whose packets are in the ring's AUX area, and its period.
    packets: Option<(u64, u64)>,
    /// Time of the program on this CPU while sampling was on, and its time when it was switched on.
    sampled_ns: u64,
    on_since_ns: Option<u64>,
}

/// An event and its leader, or an event alone.
struct Sampling(Vec<PerfEvent>);

impl Sampling {
    /// The one that samples.
    fn event(&self) -> &PerfEvent {
        self.0.last().expect("made with one or two")
    }
}

impl CpuRing {
    /// Where records go.
    fn owner(&self) -> &PerfEvent {
        self.sampling
            .first()
            .map_or(&self.tracking, Sampling::event)
    }

    /// Fails at worst where nothing is left to be switched.
    fn switch(&mut self, on: bool) {
        for event in self.sampling.iter().flat_map(|sampling| &sampling.0) {
            let _ = if on { event.enable() } else { event.disable() };
        }
        let now_ns = self.tracking.running_ns().unwrap_or(0);
        if on {
            self.on_since_ns.get_or_insert(now_ns);
        } else if let Some(since_ns) = self.on_since_ns.take() {
            self.sampled_ns += now_ns.saturating_sub(since_ns);
        }
    }

    /// Appends new records to `out`, packets as samples; says how many bytes were no packets.
    fn drain(&mut self, out: &mut Vec<u8>) -> u64 {
        let begin = out.len();
        self.ring.drain(out);
        let Some((id, period)) = self.packets else {
            return 0;
        };
        let (new, ring) = (begin..out.len(), &self.ring);
        let mut end = None;
        let bad = spe::append_samples(out, new, id, period, |stretch, packets| {
            ring.read_aux(stretch.offset, stretch.bytes, packets);
            end = Some(stretch.offset.wrapping_add(stretch.bytes));
        });
        if let Some(end) = end {
            self.ring.release_aux(end);
        }
        bad
    }
}

/// A running recording.
pub struct Sampler {
    child: Child,
    rings: Vec<CpuRing>,
    /// Instead of rings, with the signal source.
    signals: Option<Signals>,
    window: Window,
    follower: Follower,
    interrupts: Interrupts,
    calibration: Calibration,
    choice: Choice,
    notes: Vec<String>,
    page_nodes: bool,
    page_bytes: usize,
    period_ns: u64,
    overhead: Option<Overhead>,
    turns: Turns,
    /// Not before `enable_at_ns`, nor after `disable_at_ns`.
    wanted: bool,
    begin_ns: u64,
    /// Clock switches ahead, CLOCK_MONOTONIC.
    enable_at_ns: Option<u64>,
    disable_at_ns: Option<u64>,
    /// When the last round of draining began: records older than it are complete.
    round_ns: u64,
    give_up_at_ns: Option<u64>,
}

/// How long an interrupted command may take to end before it is left alone.
const GRACE: Duration = Duration::from_secs(2);

impl Sampler {
    /// Starts the command and samples it.
    pub fn start(options: &Options) -> Result<Self, Error> {
        if let Some(rate_hz) = options.rate_hz
            && !(1.0..=MAX_RATE_HZ).contains(&rate_hz)
        {
            return Err(Error::Options(format!(
                "a rate of {rate_hz} Hz: expected 1 to {MAX_RATE_HZ}"
            )));
        }
        let cpus = online_cpus(&options.sys_root)?;
        raise_open_files_limit();
        let calibrated = options.calibration.map_or_else(
            || calibrate().or_else(|refused| calibrate_signal().map_err(|_| refused)),
            Ok,
        );
        let rate_hz = rate_hz(options, &calibrated);
        let mut facts = facts(options, rate_hz)?;
        let mut choice = choose(options.source, &facts)?;
        let mut environment = options.environment.clone();
        if choice.source == Source::Signal {
            let slots = signal::slots(rate_hz, cpus.len());
            environment.extend(signal::environment(&options.samples_folder, rate_hz, slots));
        }
        let mut child = Child::waiting(&options.command, &environment)?;
        let interrupts = Interrupts::take();
        let opened = Opening::all(options, choice.source, rate_hz, child.pid, &cpus);
        let (opening, rings) = match opened {
            // Since it was tried, someone else took the PMU or its memory.
            Err(Error::PmuRefused { event, source }) => {
                if let Pmu::Listed { opened, .. } = &mut facts.pmu {
                    *opened = Err((event, errno(&source)));
                }
                choice = choose(options.source, &facts)?;
                Opening::all(options, choice.source, rate_hz, child.pid, &cpus)?
            }
            opened => opened?,
        };
        let calibration = match choice.source {
            Source::Clock => calibrated?,
            _ => calibrated.unwrap_or_default(),
        };
        let identifiers = opening.identifiers;
        let mut notes = opening.notes;
        let mut follower = Follower::new(calibration.side, identifiers);
        if choice.source == Source::Pmu {
            let frequencies = Frequencies::read(&options.sys_root, &options.proc_root, &cpus);
            notes.extend(frequencies.note());
            follower.hardware = Hardware {
                frequencies,
                min_latency_cycles: options.pmu.min_latency_cycles(),
            };
        }
        let begin_ns = now_ns();
        follower.begin(
            begin_ns,
            child.pid as u32,
            child.pid as u32,
            std::process::id(),
        );
        child.go()?;
        let enable_at_ns = opening
            .deferred
            .then(|| begin_ns + nanoseconds(options.after));
        let disable_at_ns = options
            .duration
            .map(|duration| begin_ns + nanoseconds(options.after) + nanoseconds(duration));
        let signals = (choice.source == Source::Signal).then(|| {
            let folder = &options.samples_folder;
            let mut signals = Signals::new(folder, &options.proc_root, opening.period_ns);
            signals.know(child.pid as u32);
            signals.wanted_ns = enable_at_ns.unwrap_or(0)..disable_at_ns.unwrap_or(u64::MAX);
            signals
        });
        let overhead = options.max_overhead.map(|share| {
            // Perf events can pause, and not come more often than the threads inherited them.
            let most_hz = match choice.source {
                Source::Signal => MAX_RATE_HZ,
                _ => rate_hz,
            };
            let governor = Governor::new(share, rate_hz, RATE_MIN_HZ.min(rate_hz)..=most_hz);
            Overhead::new(governor, choice.source, &calibration, begin_ns)
        });
        Ok(Self {
            overhead,
            turns: Turns::new(begin_ns),
            wanted: enable_at_ns.is_none(),
            child,
            rings,
            signals,
            window: Window::default(),
            follower,
            interrupts,
            calibration,
            choice,
            notes,
            page_nodes: options.page_nodes,
            page_bytes: page_bytes(),
            period_ns: opening.period_ns,
            begin_ns,
            enable_at_ns,
            disable_at_ns,
            round_ns: 0,
            give_up_at_ns: None,
        })
    }

    /// The command's process.
    pub fn pid(&self) -> u32 {
        self.child.pid as u32
    }

    /// Time between two samples of a thread, in nanoseconds: the cost of each.
    pub fn period_ns(&self) -> u64 {
        self.period_ns
    }

    /// Where the sampled instruction is, and what samples cost.
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Where accesses come from, and why.
    pub fn choice(&self) -> &Choice {
        &self.choice
    }

    /// What could not be had, in sentences for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Waits up to `patience` for records, takes them in and hands over what they are. Call it
    /// until it no longer says [`State::Running`], then [`finish`](Self::finish).
    pub fn drain(&mut self, patience: Duration, sink: &mut dyn Sink) -> Result<State, Error> {
        self.wait(patience)?;
        self.switch_clock();
        let interrupted = self.forward_interrupts();
        let status = self.child.status().map_err(Error::Wait)?;
        self.round(sink)?;
        self.govern(now_ns());
        Ok(match status {
            Some(status) => State::Ended(status),
            None if interrupted => State::Detached,
            None => State::Running,
        })
    }

    /// Ends the recording: stops the clock and hands over the rest. `state` is what the last
    /// [`drain`](Self::drain) said.
    pub fn finish(mut self, state: State, sink: &mut dyn Sink) -> Result<Summary, Error> {
        self.rings.iter_mut().for_each(|ring| ring.switch(false));
        let counting_share = self.counting_share();
        let end_ns = now_ns();
        self.round(sink)?;
        self.round_ns = u64::MAX;
        self.round(sink)?;
        let mut records = self.follower.records;
        records.malformed += self.window.malformed;
        records.late = self.window.late;
        let rates = match &mut self.overhead {
            Some(overhead) => std::mem::take(&mut overhead.changes),
            None => Vec::new(),
        };
        let sample_ns = self.overhead.as_ref().and_then(Overhead::sample_ns);
        let signal_losses = self
            .signals
            .map(|signals| signals.losses)
            .unwrap_or_default();
        Ok(Summary {
            state,
            threads: self.follower.threads.all().to_vec(),
            undecoded: self.follower.undecoded,
            undecoded_places: self.follower.undecoded_places(16),
            records,
            rates,
            sample_ns,
            signal_losses,
            counting_share,
            begin_ns: self.begin_ns,
            end_ns,
        })
    }

    /// [`Summary::counting_share`].
    fn counting_share(&self) -> f64 {
        if self.choice.source != Source::Pmu {
            return 1.0;
        }
        let (mut counting_ns, mut wanted_ns) = (0, 0);
        for ring in &self.rings {
            for sampling in &ring.sampling {
                counting_ns += sampling.event().running_ns().unwrap_or(0);
                wanted_ns += ring.sampled_ns;
            }
        }
        match wanted_ns {
            0 => 1.0,
            wanted_ns => (counting_ns as f64 / wanted_ns as f64).min(1.0),
        }
    }

    /// Drains to the end: [`drain`](Self::drain) in a loop, then [`finish`](Self::finish).
    pub fn run(mut self, sink: &mut dyn Sink) -> Result<Summary, Error> {
        loop {
            let state = self.drain(Duration::from_millis(200), sink)?;
            if state != State::Running {
                return self.finish(state, sink);
            }
        }
    }

    fn wait(&self, patience: Duration) -> Result<(), Error> {
        let readable = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut polled: Vec<_> = self
            .rings
            .iter()
            .map(|ring| readable(ring.owner().raw()))
            .collect();
        polled.extend(
            self.child
                .ended
                .as_ref()
                .map(|ended| readable(ended.as_raw_fd())),
        );
        let next_switch_ns = self
            .enable_at_ns
            .into_iter()
            .chain(self.disable_at_ns)
            .min();
        let until_switch =
            next_switch_ns.map(|at| Duration::from_nanos(at.saturating_sub(now_ns())));
        let patience = patience.min(self.turns.patience(now_ns()));
        let patience = until_switch.map_or(patience, |until| {
            patience.min(until + Duration::from_millis(1))
        });
        let timeout_ms = patience.as_millis().min(i32::MAX as u128) as libc::c_int;
        // SAFETY: the array has the length given and outlives the call.
        let result = unsafe {
            libc::poll(
                polled.as_mut_ptr(),
                polled.len() as libc::nfds_t,
                timeout_ms,
            )
        };
        match io::Error::last_os_error() {
            error if result < 0 && error.kind() != io::ErrorKind::Interrupted => {
                Err(Error::Wait(error))
            }
            _ => Ok(()),
        }
    }

    fn switch_clock(&mut self) {
        let now_ns = now_ns();
        let due = |at: &mut Option<u64>| at.take_if(|at| *at <= now_ns).is_some();
        let was_on = self.wanted && self.turns.is_on();
        if due(&mut self.enable_at_ns) {
            self.wanted = true;
        }
        if due(&mut self.disable_at_ns) {
            self.wanted = false;
        }
        self.turns.switch(now_ns);
        let on = self.wanted && self.turns.is_on();
        if on != was_on {
            // Fails only where the process has gone.
            self.rings.iter_mut().for_each(|ring| ring.switch(on));
        }
    }

    /// Asks for another rate; with [`Options::max_overhead`], it is had as far as it is affordable.
    pub fn ask_rate(&mut self, rate_hz: f64) {
        if let Some(overhead) = &mut self.overhead {
            overhead.ask(rate_hz);
        }
    }

    /// Tells the governor what happened, and does what it says.
    fn govern(&mut self, now_ns: u64) {
        let Some(overhead) = &mut self.overhead else {
            return;
        };
        let running_ns = |ring: &CpuRing| ring.tracking.running_ns().unwrap_or(0);
        let program_ns = match &self.signals {
            Some(_) => self.follower.taken_ns,
            None => self.rings.iter().map(running_ns).sum::<u64>() as f64,
        };
        let Some(rate_hz) = overhead.round(now_ns, program_ns, self.follower.taken) else {
            return;
        };
        if let Some(signals) = &mut self.signals {
            signals.set_period((1e9 / rate_hz).round() as u64);
        } else {
            let share = rate_hz * self.period_ns as f64 / 1e9;
            self.turns.set_share(share, now_ns);
            let periods_each = (now_ns, self.turns.periods_each());
            self.follower.periods_each.push(periods_each);
        }
    }

    /// Passes signals on to the command; true once it has had its time to end.
    fn forward_interrupts(&mut self) -> bool {
        if let Some(signal) = self.interrupts.to_forward() {
            self.child.signal(signal);
        }
        match self.interrupts.count() {
            0 => false,
            1 => {
                let give_up_at_ns = *self
                    .give_up_at_ns
                    .get_or_insert_with(|| now_ns() + nanoseconds(GRACE));
                give_up_at_ns <= now_ns()
            }
            _ => true,
        }
    }

    fn round(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let began_ns = now_ns();
        for ring in &mut self.rings {
            let mut bad = 0;
            self.window.add(|bytes| bad = ring.drain(bytes));
            self.window.malformed += bad;
        }
        if let Some(signals) = &mut self.signals {
            let end = self.round_ns == u64::MAX;
            self.window.add(|bytes| signals.drain(began_ns, end, bytes));
        }
        let Self {
            window, follower, ..
        } = self;
        window.take(self.round_ns, |record| follower.follow(record));
        self.round_ns = began_ns;
        if self.page_nodes && !follower.batch.is_empty() {
            page_nodes::look_up(&mut follower.batch, &follower.batch_pids, self.page_bytes);
        }
        follower.hand_over(sink).map_err(Error::Sink)
    }
}

/// Which source [`Sampler::start`] will take with `options`, as far as can be told before there is
/// a command.
///
/// # Errors
/// [`Error::NoSource`] where the one asked for does not work, or none does.
pub fn choose_source(options: &Options) -> Result<Choice, Error> {
    let rate_hz = rate_hz(options, &options.calibration.ok_or(()));
    choose(options.source, &facts(options, rate_hz)?)
}

fn facts(options: &Options, rate_hz: f64) -> Result<Facts, Error> {
    Facts::probe(
        &options.pmu,
        &options.preload,
        rate_hz,
        &options.sys_root,
        &options.proc_root,
    )
}

fn rate_hz<E>(options: &Options, calibrated: &Result<Calibration, E>) -> f64 {
    options.rate_hz.unwrap_or(match calibrated {
        Ok(calibration) => calibration.default_rate_hz(),
        Err(_) => UNMEASURED_RATE_HZ,
    })
}

/// Opens events for one CPU after another, with what the first ones taught.
struct Opening {
    /// Those of the PMU; none: the clock.
    memory: Vec<MemoryEvent>,
    clock: Attributes,
    tracking: Attributes,
    pid: libc::pid_t,
    ring_bytes: usize,
    page_bytes: usize,
    period_ns: u64,
    /// The clock starts later than the command.
    deferred: bool,
    identifiers: Identifiers,
    notes: Vec<String>,
    proc_root: PathBuf,
}

impl Opening {
    /// Opens the events of `source` on all CPUs.
    fn all(
        options: &Options,
        source: Source,
        rate_hz: f64,
        pid: libc::pid_t,
        cpus: &[CpuId],
    ) -> Result<(Self, Vec<CpuRing>), Error> {
        let mut opening = Self::new(options, rate_hz, pid);
        if source == Source::Pmu {
            let events = options
                .pmu
                .events(rate_hz, &options.sys_root, &options.proc_root);
            opening.memory = events.map_err(Error::NoSource)?;
            if options.pmu.period.is_some() {
                // How many will come is not known.
                opening.ring_bytes = RING_BYTES_MAX;
            }
        }
        if source == Source::Signal {
            return Ok((opening, Vec::new()));
        }
        let rings = cpus.iter().map(|cpu| opening.open(*cpu));
        let rings = rings.collect::<Result<_, _>>()?;
        Ok((opening, rings))
    }

    fn new(options: &Options, rate_hz: f64, pid: libc::pid_t) -> Self {
        let page_bytes = page_bytes();
        let period_ns = (1e9 / rate_hz).round() as u64;
        let deferred = !options.after.is_zero();
        let ring_bytes = ring_bytes(rate_hz, page_bytes);
        let mut clock = Attributes::new(Counted::CpuClock);
        clock.sample_period = period_ns;
        clock.sample_type = CLOCK_SAMPLE;
        clock.sample_regs_user = REGISTER_MASK;
        clock.flags |= flag::INHERIT | flag::SAMPLE_ID_ALL | flag::WATERMARK;
        if !deferred {
            clock.flags |= flag::ENABLE_ON_EXEC;
        }
        clock.wakeup_watermark = (ring_bytes / 4) as u32;
        // Mappings and threads are followed from the beginning, whenever the clock starts.
        let mut tracking = Attributes::new(Counted::PageFaults);
        tracking.sample_period = options.fault_period;
        tracking.sample_type = FAULT_SAMPLE;
        tracking.read_format = READ_TIMES;
        tracking.flags |= flag::INHERIT
            | flag::ENABLE_ON_EXEC
            | flag::SAMPLE_ID_ALL
            | flag::WATERMARK
            | flag::MMAP
            | flag::MMAP2
            | flag::MMAP_DATA
            | flag::COMM
            | flag::COMM_EXEC
            | flag::TASK
            | flag::BUILD_ID;
        tracking.wakeup_watermark = clock.wakeup_watermark;
        Self {
            memory: Vec::new(),
            clock,
            tracking,
            pid,
            ring_bytes,
            page_bytes,
            period_ns,
            deferred,
            identifiers: Identifiers::default(),
            notes: Vec::new(),
            proc_root: options.proc_root.clone(),
        }
    }

    fn open(&mut self, cpu: CpuId) -> Result<CpuRing, Error> {
        let scope = Scope::ProcessOn(self.pid, cpu);
        let mut sampling = Vec::new();
        let mut packets = None;
        if self.memory.is_empty() {
            sampling.push(Sampling(vec![self.open_clock(scope)?]));
        }
        for event in self.memory.iter().filter(|event| event.on(cpu)) {
            let refused = |source| Error::PmuRefused {
                event: event.name.clone(),
                source,
            };
            let enable = self.clock.flags & flag::ENABLE_ON_EXEC;
            let events = event
                .open(scope, enable | flag::INHERIT | flag::SAMPLE_ID_ALL)
                .map_err(refused)?;
            let events = Sampling(events);
            let id = events.event().id().map_err(refused)?;
            let memory = &mut self.identifiers.memory;
            let at = memory.partition_point(|(other, _)| *other < id);
            memory.insert(at, (id, event.form));
            if event.packets {
                packets = Some((id, event.attributes.sample_period));
            }
            sampling.push(events);
        }
        let tracking = self.open_tracking(scope)?;
        let owner = sampling.first().map_or(&tracking, Sampling::event);
        let mut ring = self.map(owner)?;
        if packets.is_some() {
            self.map_aux(&mut ring, owner)?;
        }
        let refused = |error| refused(error, &self.proc_root);
        for event in sampling.iter().skip(1).map(Sampling::event) {
            event.write_to(owner).map_err(refused)?;
        }
        if !sampling.is_empty() {
            tracking.write_to(owner).map_err(refused)?;
        }
        let id = tracking.id().map_err(refused)?;
        let at = self.identifiers.faults.partition_point(|other| *other < id);
        self.identifiers.faults.insert(at, id);
        Ok(CpuRing {
            sampling,
            tracking,
            ring,
            packets,
            sampled_ns: 0,
            on_since_ns: (!self.deferred).then_some(0),
        })
    }

    fn open_clock(&mut self, scope: Scope) -> Result<PerfEvent, Error> {
        match PerfEvent::open(&self.clock, scope) {
            Err(error) if denied(&error) && self.clock.flags & flag::EXCLUDE_KERNEL == 0 => {
                self.clock.flags |= flag::EXCLUDE_KERNEL;
                self.tracking.flags |= flag::EXCLUDE_KERNEL;
                let event = PerfEvent::open(&self.clock, scope)
                    .map_err(|error| refused(error, &self.proc_root))?;
                self.notes.push(
                    "time in the kernel is not sampled: kernel.perf_event_paranoid is 2 or more; \
                     `sysctl kernel.perf_event_paranoid=1` or CAP_PERFMON allows it"
                        .to_owned(),
                );
                Ok(event)
            }
            result => result.map_err(|error| refused(error, &self.proc_root)),
        }
    }

    fn open_tracking(&mut self, scope: Scope) -> Result<PerfEvent, Error> {
        match PerfEvent::open(&self.tracking, scope) {
            Err(error) if denied(&error) && self.tracking.flags & flag::EXCLUDE_KERNEL == 0 => {
                self.tracking.flags |= flag::EXCLUDE_KERNEL;
                self.open_tracking(scope)
            }
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL)
                    && self.tracking.flags & flag::BUILD_ID != 0 =>
            {
                self.tracking.flags &= !flag::BUILD_ID;
                self.open_tracking(scope)
            }
            result => result.map_err(|error| refused(error, &self.proc_root)),
        }
    }

    /// Maps room for packets, less where the kernel won't lock as much.
    fn map_aux(&self, ring: &mut Ring, event: &PerfEvent) -> Result<(), Error> {
        let mut bytes = AUX_BYTES.max(2 * self.page_bytes);
        loop {
            match ring.map_aux(event, bytes) {
                Err(error) if denied(&error) && bytes > 2 * self.page_bytes => bytes /= 2,
                result => {
                    return result.map_err(|source| Error::PmuRefused {
                        event: "memory for packets of arm_spe".to_owned(),
                        source,
                    });
                }
            }
        }
    }

    /// Maps the ring, a smaller one where the kernel won't lock as much.
    fn map(&mut self, event: &PerfEvent) -> Result<Ring, Error> {
        loop {
            match Ring::map(event, self.page_bytes, self.ring_bytes) {
                Err(error) if denied(&error) && self.ring_bytes > 4 * self.page_bytes => {
                    self.ring_bytes /= 2
                }
                result => {
                    return result.map_err(|source| Error::RingRefused {
                        bytes: self.ring_bytes,
                        source,
                    });
                }
            }
        }
    }
}

/// Room for 16,384 packets of Arm's SPE, a second's and more.
const AUX_BYTES: usize = 1 << 20;

const RING_BYTES_MAX: usize = 8 << 20;

/// Room for two seconds of samples, between 512 KiB (what the kernel locks for anybody) and 8 MiB.
fn ring_bytes(rate_hz: f64, page_bytes: usize) -> usize {
    const SAMPLE_BYTES: f64 = 200.0;
    let wanted = (rate_hz * SAMPLE_BYTES * 2.0) as usize;
    wanted
        .next_power_of_two()
        .clamp(512 << 10, RING_BYTES_MAX)
        .max(page_bytes)
}

fn refused(error: io::Error, proc_root: &Path) -> Error {
    Error::Refused(Refusal::explain(error, proc_root))
}

fn denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Two descriptors per CPU are more than the usual limit on large machines.
fn raise_open_files_limit() {
    // SAFETY: zero is a valid rlimit; both calls read or write one.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(65_536).max(limit.rlim_cur);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    // SAFETY: zero is a valid timespec, which the call fills in.
    let time = unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
        time
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
