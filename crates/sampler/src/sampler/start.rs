//! Starts a recording: finds the target, chooses a source, and opens its events.

use std::ops::Range;

use nearpage_machine::{CpuId, online_cpus};
use nearpage_recording::Source;

use super::governing::RateControl;
use super::{MAX_RATE_HZ, ObservedTarget, Options, Sampler, nanoseconds, now_ns};
use crate::attached::Attached;
use crate::budgeted_rate::BudgetedRate;
use crate::calibrate::{Calibration, SkidSide, UNMEASURED_RATE_HZ, calibrate_for, page_bytes};
use crate::cpu_ring::CpuRing;
use crate::error::Error;
use crate::filter::Filter;
use crate::follower::{Follower, Hardware, Period};
use crate::found::FoundTarget;
use crate::governor::Governor;
use crate::interrupts::Interrupts;
use crate::launch::Child;
use crate::levels::{event_rates_hz, kernel_rate_limit_hz};
use crate::marks::Marks;
use crate::merge::Window;
use crate::opening::Opening;
use crate::overhead::{DutyCycle, Overhead};
use crate::perf_event::Scope;
use crate::pmu::Frequencies;
use crate::processes::Processes;
use crate::signal::{self, Signals};
use crate::source::{Facts, Pmu, Reach, SourceChoice, choose, errno};
use crate::target::Target;

/// Lowest rate of the governor, so that it still notices when samples become cheaper.
const RATE_MIN_HZ: f64 = 10.0;

struct Opened {
    observed: ObservedTarget,
    rings: Vec<CpuRing>,
    window: Window,
    follower: Follower,
    notes: Vec<String>,
    deferred: bool,
    period_ns: u64,
    /// Whether the rate changes within a budget.
    has_budget: bool,
}

/// State before events are opened.
struct Starting<'a> {
    options: &'a Options,
    cpus: Vec<CpuId>,
    processes: Processes,
    /// The running target; `None` for a command, and after a first attempt to open its events.
    found: Option<FoundTarget>,
    calibrated: Result<Calibration, Error>,
    rate_hz: f64,
    facts: Facts,
    choice: SourceChoice,
    interrupts: Interrupts,
    begin_ns: u64,
    /// The rate, if there is a budget that the source can keep.
    budgeted_rate: Option<BudgetedRate>,
}

impl Sampler {
    /// Starts the command, or attaches to the running target, and samples it.
    ///
    /// # Errors
    /// If the target does not exist or may not be observed, if no source works, or if the kernel refuses. In these
    /// cases, nothing has been started or changed.
    pub fn start(options: &Options) -> Result<Self, Error> {
        let mut starting = Starting::new(options)?;
        let mut opened = starting.open()?;
        let source = starting.choice.source;
        if source == Source::Pmu {
            starting.know_hardware(&mut opened);
        }
        opened.follower.filter = Filter::new(options.selection.clone());
        starting.weigh(&mut opened);
        starting.begin(&mut opened)?;

        let (rate_hz, begin_ns) = (starting.rate_hz, starting.begin_ns);
        let first_ns = begin_ns + nanoseconds(options.after);
        let enable_at_ns = opened.deferred.then_some(first_ns);
        let last_ns = |duration| first_ns + nanoseconds(duration);
        let disable_at_ns = options.duration.map(last_ns);
        let window_ns = enable_at_ns.unwrap_or(0)..disable_at_ns.unwrap_or(u64::MAX);
        let signals = starting.signals(&opened, window_ns);
        let calibration = match source {
            Source::Clock => starting.calibrated?,
            _ => starting.calibrated.unwrap_or_default(),
        };
        let overhead = |share| {
            // Perf events can pause, but not exceed the rate that threads inherited.
            let most_hz = match source {
                Source::Signal => MAX_RATE_HZ,
                _ => rate_hz,
            };
            let governor = Governor::new(share, rate_hz, RATE_MIN_HZ.min(rate_hz)..=most_hz);
            Overhead::new(governor, source, &calibration, begin_ns)
        };
        let rate = match (
            starting.budgeted_rate.take().filter(|_| opened.has_budget),
            options.max_overhead,
        ) {
            (Some(mut budgeted), _) => {
                budgeted.begin(now_ns());
                RateControl::Budget(Box::new(budgeted))
            }
            (None, Some(share)) => RateControl::Share(overhead(share)),
            (None, None) => RateControl::Fixed,
        };
        Ok(Self {
            on: match enable_at_ns {
                None => rate.events(),
                Some(_) => 0,
            },
            marks: match (&rate, &opened.observed, &options.preload) {
                (RateControl::Budget(_), ObservedTarget::Command(_), Ok(())) => {
                    Some(Marks::new(&options.samples_folder))
                }
                _ => None,
            },
            rate,
            duty_cycle: DutyCycle::new(begin_ns),
            in_window: enable_at_ns.is_none(),
            observed: opened.observed,
            rings: opened.rings,
            signals,
            window: opened.window,
            follower: opened.follower,
            interrupts: starting.interrupts,
            calibration,
            choice: starting.choice,
            notes: opened.notes,
            page_nodes: options.page_nodes,
            page_bytes: page_bytes(),
            period_ns: opened.period_ns,
            begin_ns,
            enable_at_ns,
            disable_at_ns,
            round_ns: 0,
            followed_ns: begin_ns,
            give_up_at_ns: None,
        })
    }
}

impl<'a> Starting<'a> {
    /// Looks for the target, calibrates on this machine, and chooses a source.
    fn new(options: &'a Options) -> Result<Self, Error> {
        if let Some(rate_hz) = options.rate_hz
            && !(1.0..=MAX_RATE_HZ).contains(&rate_hz)
        {
            return Err(Error::Options(format!(
                "a rate of {rate_hz} Hz: expected 1 to {MAX_RATE_HZ}"
            )));
        }
        let cpus = online_cpus(&options.sys_root)?.as_slice().to_vec();
        let processes = Processes::new(&options.proc_root);
        let mut found = FoundTarget::of(&options.target, &processes, &options.proc_root)?;
        raise_open_files_limit(found.is_some());
        if let Some(found) = &mut found {
            let opening = Opening::new(options, Source::Clock, UNMEASURED_RATE_HZ)?;
            found.try_cgroup(&opening, cpus[0]);
        }
        let reach = reach(found.as_ref());
        let calibrated = match options.calibration {
            Some(calibration) => Ok(calibration),
            None => calibrate_for(options.source),
        };
        let rate_hz = rate_hz(options, &calibrated);
        let facts = facts(options, rate_hz, reach)?;
        Ok(Self {
            choice: choose(options.source, &facts)?,
            options,
            cpus,
            processes,
            found,
            calibrated,
            rate_hz,
            facts,
            interrupts: Interrupts::take(),
            begin_ns: now_ns(),
            budgeted_rate: None,
        })
    }

    /// Opens the events of the chosen source, or of the next one if the PMU is refused.
    fn open(&mut self) -> Result<Opened, Error> {
        match self.open_source() {
            // Another process has taken the PMU, or its memory, since it was tried.
            Err(Error::PmuRefused { event, source }) => {
                if let Pmu::Listed { opened, .. } = &mut self.facts.pmu {
                    *opened = Err((event, errno(&source)));
                }
                self.choice = choose(self.options.source, &self.facts)?;
                self.open_source()
            }
            opened => opened,
        }
    }

    fn open_source(&mut self) -> Result<Opened, Error> {
        let (options, source) = (self.options, self.choice.source);
        let mut opening = Opening::new(options, source, self.rate_hz)?;
        self.budgeted_rate = self.budgeted_rate(source, &mut opening);
        let rate_hz = self
            .budgeted_rate
            .as_ref()
            .map_or(self.rate_hz, |budgeted| budgeted.setting().rate_hz);
        let side = match &self.calibrated {
            Ok(calibration) => calibration.side,
            Err(_) => Calibration::default().side,
        };
        let Target::Command(command) = &options.target else {
            let found = match self.found.take() {
                Some(found) => found,
                None => {
                    let found =
                        FoundTarget::of(&options.target, &self.processes, &options.proc_root)?;
                    let mut found = found.expect("no command");
                    found.try_cgroup(&opening, self.cpus[0]);
                    found
                }
            };
            return Opened::attached(found, opening, self.processes.clone(), &self.cpus, side);
        };
        let mut environment = options.environment.clone();
        let mut cpus = self.cpus.as_slice();
        if source == Source::Signal {
            let slots = signal::slots(self.rate_hz.max(rate_hz), cpus.len());
            let folder = &options.samples_folder;
            environment.extend(signal::environment(folder, rate_hz, slots));
            cpus = &[];
        }
        let ignored: Vec<_> = self.interrupts.ignored_before().collect();
        let child = Child::waiting(command, &environment, &ignored)?;
        Opened::command(child, opening, cpus, side)
    }

    /// Chooses the rate if there is a budget, and sets the rates of its events.
    fn budgeted_rate(&self, source: Source, opening: &mut Opening) -> Option<BudgetedRate> {
        if !self.options.budget || source == Source::Pmu {
            return None;
        }
        let cpus = self.cpus.len();
        let max_hz = kernel_rate_limit_hz(&self.options.proc_root).unwrap_or(MAX_RATE_HZ);
        let rates_hz = match source {
            Source::Clock => event_rates_hz(self.rate_hz, cpus, max_hz),
            _ => vec![self.rate_hz],
        };
        let calibration = self.calibrated.as_ref().copied().unwrap_or_default();
        let budgeted = BudgetedRate::new(
            self.rate_hz,
            &rates_hz,
            source,
            &calibration,
            cpus,
            self.begin_ns,
        );
        opening.change_rates(&rates_hz, budgeted.setting().events);
        Some(budgeted)
    }

    fn know_hardware(&self, opened: &mut Opened) {
        let options = self.options;
        let frequencies = Frequencies::read(&options.sys_root, &options.proc_root, &self.cpus);
        opened.notes.extend(frequencies.note());
        opened.follower.hardware = Hardware {
            frequencies,
            min_latency_cycles: options.pmu.min_latency_cycles(),
            event: options.pmu.event,
        };
    }

    /// Sets the weights of samples if the rate changes within a budget.
    fn weigh(&self, opened: &mut Opened) {
        let Some(budgeted) = self.budgeted_rate.as_ref().filter(|_| opened.has_budget) else {
            return;
        };
        let full_ns = (1e9 / budgeted.full_hz()) as f32;
        let follower = &mut opened.follower;
        follower.counts_busy = true;
        follower.period = match self.choice.source {
            Source::Signal => Period::First(full_ns),
            _ => Period::Full(full_ns),
        };
        follower.periods_each.push((0, budgeted.setting().weight));
    }

    /// Lets the command run, or introduces running processes to the follower.
    fn begin(&self, opened: &mut Opened) -> Result<(), Error> {
        match &mut opened.observed {
            ObservedTarget::Command(child) => {
                let pid = child.pid as u32;
                let own_pid = std::process::id();
                opened.follower.begin(self.begin_ns, pid, pid, own_pid);
                child.execute()?;
            }
            ObservedTarget::Attached(attached) => attached.introduce(&mut opened.follower),
        }
        Ok(())
    }

    /// For the signal source: the reader of samples that a command takes itself.
    fn signals(&self, opened: &Opened, window_ns: Range<u64>) -> Option<Signals> {
        match &opened.observed {
            ObservedTarget::Command(child) if self.choice.source == Source::Signal => {
                let options = self.options;
                let folder = &options.samples_folder;
                let period_ns = match &self.budgeted_rate {
                    Some(budgeted) => (1e9 / budgeted.setting().rate_hz).round() as u64,
                    None => opened.period_ns,
                };
                let mut signals = Signals::new(folder, &options.proc_root, period_ns);
                signals.know(child.pid as u32);
                signals.window_ns = window_ns;
                Some(signals)
            }
            _ => None,
        }
    }
}

impl Opened {
    /// Opens the events of a command's process on all CPUs; its threads and children inherit them.
    fn command(
        child: Child,
        mut opening: Opening,
        cpus: &[CpuId],
        side: SkidSide,
    ) -> Result<Self, Error> {
        let mut rings = Vec::new();
        for cpu in cpus {
            opening.open(&mut rings, *cpu, Scope::ProcessOn(child.pid, *cpu), 0)?;
        }
        Ok(Self {
            observed: ObservedTarget::Command(child),
            rings,
            window: Window::default(),
            deferred: opening.deferred,
            period_ns: opening.period_ns,
            has_budget: opening.changes_rates(),
            follower: Follower::new(side, opening.identifiers),
            notes: opening.notes,
        })
    }

    fn attached(
        found: FoundTarget,
        opening: Opening,
        processes: Processes,
        cpus: &[CpuId],
        side: SkidSide,
    ) -> Result<Self, Error> {
        let (mut rings, mut window) = (Vec::new(), Window::default());
        let cpus = cpus.to_vec();
        let (mut attached, discovery) =
            Attached::attach(found, opening, processes, cpus, &mut window, &mut rings)?;
        let period_ns = attached.period_ns();
        let mut follower = Follower::new(side, attached.identifiers().clone());
        follower.discovery = Some(discovery);
        Ok(Self {
            notes: attached.notes(),
            deferred: attached.deferred(),
            has_budget: attached.changes_rates(),
            observed: ObservedTarget::Attached(attached),
            rings,
            window,
            follower,
            period_ns,
        })
    }
}

/// The source that [`Sampler::start`] will choose for `options`, as far as this is known without a command.
///
/// # Errors
/// [`Error::NoSource`] if the requested source does not work, or none does; the reason if a running target does not
/// exist or can't be observed.
pub fn choose_source(options: &Options) -> Result<SourceChoice, Error> {
    let rate_hz = rate_hz(options, &options.calibration.ok_or(()));
    let processes = Processes::new(&options.proc_root);
    let mut found = FoundTarget::of(&options.target, &processes, &options.proc_root)?;
    if let Some(found) = &mut found {
        let cpus = online_cpus(&options.sys_root)?.as_slice().to_vec();
        let opening = Opening::new(options, Source::Clock, UNMEASURED_RATE_HZ)?;
        found.try_cgroup(&opening, cpus[0]);
    }
    choose(
        options.source,
        &facts(options, rate_hz, reach(found.as_ref()))?,
    )
}

fn reach(found: Option<&FoundTarget>) -> Reach {
    match found {
        Some(found) if found.machine_wide() => Reach::Machine,
        _ => Reach::Processes,
    }
}

/// Facts about sampling processes on this machine.
pub(crate) fn facts_of(options: &Options) -> Result<Facts, Error> {
    let rate_hz = rate_hz(options, &options.calibration.ok_or(()));
    facts(options, rate_hz, Reach::Processes)
}

fn facts(options: &Options, rate_hz: f64, reach: Reach) -> Result<Facts, Error> {
    Facts::probe(
        &options.pmu,
        &options.preload,
        rate_hz,
        reach,
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

/// Raises the limit on open files: two descriptors per CPU exceed the usual limit on large machines. If each of many
/// threads needs as many, the hard limit is raised, too, if that is allowed. No child inherits the limits.
fn raise_open_files_limit(attached: bool) {
    const OPEN_FILES: u64 = 65_536;
    // SAFETY: zero is a valid rlimit; the calls read or write one.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return;
        }
        if attached && limit.rlim_max < OPEN_FILES {
            let raised = libc::rlimit {
                rlim_cur: OPEN_FILES,
                rlim_max: OPEN_FILES,
            };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
                return;
            }
        }
        limit.rlim_cur = limit.rlim_max.min(OPEN_FILES).max(limit.rlim_cur);
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}
