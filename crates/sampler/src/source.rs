//! Chooses the source of accesses: the best one that this machine and its permissions allow.
//!
//! [`Facts`] are the results of tests on this machine; [`choose`] is a pure function of them.

use std::path::Path;

use nearpage_machine::{CpuId, online_cpus};
use nearpage_perf_abi::{Attributes, event, flag};
use nearpage_recording::Source;
use serde::{Deserialize, Serialize};

use crate::calibrate::page_bytes;
use crate::calibrate::{signal_supported, supported};
use crate::error::{Error, NoPreload, paranoid_level};
use crate::perf_event::{PerfEvent, Scope, software_attributes};
use crate::pmu::{MemoryEvent, PmuOptions};
use crate::ring::Ring;

/// The requested source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestedSource {
    /// The best source that works: the PMU, else the clock, else signals.
    #[default]
    Auto,
    /// Hardware samples, or an error.
    Pmu,
    /// Clock samples, or an error.
    Clock,
    /// Samples that the preload library takes inside the command, by timer signals, or an error.
    Signal,
}

/// The `errno` of a refused call.
pub(crate) type Errno = i32;

/// Tasks that events cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reach {
    /// Processes and their children.
    #[default]
    Processes,
    /// All tasks on every CPU.
    Machine,
}

impl Reach {
    /// Scope of a test event of this process on `cpu`.
    fn scope(self, cpu: CpuId) -> Scope {
        match self {
            Self::Processes => Scope::ProcessOn(0, cpu),
            Self::Machine => Scope::MachineOn(cpu),
        }
    }
}

/// Permissions and features, found by testing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub reach: Reach,
    /// `kernel.perf_event_paranoid`; `None` if it is unknown.
    pub paranoid: Option<i32>,
    /// Number of online CPUs.
    pub cpus: usize,
    /// Largest number of open files of this process.
    pub open_files: u64,
    pub pmu: Pmu,
    pub clock: Result<(), Refused>,
    /// Bytes of memory for a CPU's records, or why none can be mapped.
    pub ring: Result<usize, Errno>,
    /// Whether the preload library can sample inside the command, or why not.
    pub signal: Result<(), String>,
}

/// Events of PMUs that sample memory accesses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Pmu {
    /// Sysfs lists no such event.
    None,
    /// Sysfs lists an event that cannot be configured.
    Unusable(String),
    /// Sysfs lists these events.
    Listed {
        /// The events in perf's notation.
        events: Vec<String>,
        /// Largest number of open files that they take on a CPU.
        files: usize,
        /// Whether they have a period each instead of a rate.
        fixed_period: bool,
        /// Result of opening them: the refused event and its `errno`.
        opened: Result<(), (String, Errno)>,
    },
}

/// Why the clock source does not work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Refused {
    /// The kernel refused.
    Kernel(Errno),
    /// Instructions of this architecture are not decoded.
    Architecture,
}

/// The chosen source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceChoice {
    /// The source.
    pub source: Source,
    /// One line for the user: the source, and why no better one works.
    pub line: String,
    /// Whether samples come after a number of events, not at a rate: `PmuOptions::period` was given, or the hardware
    /// accepts no rate (Arm SPE).
    pub fixed_period: bool,
}

/// Files reserved for other purposes: standard streams, logs, the command's pipes.
const OTHER_FILES: u64 = 16;

/// Chooses a source. If none works, the error has the reason for each.
pub(crate) fn choose(requested: RequestedSource, facts: &Facts) -> Result<SourceChoice, Error> {
    let pmu = pmu_works(facts);
    let clock = clock_works(facts);
    let signal = signal_works(facts);
    let fixed_period = matches!(facts.pmu, Pmu::Listed { fixed_period, .. } if fixed_period);
    let found = |source, line: String| {
        Ok(SourceChoice {
            source,
            line,
            fixed_period: fixed_period && source == Source::Pmu,
        })
    };
    let none = |line| Err(Error::NoSource(line));
    match requested {
        RequestedSource::Pmu => match pmu {
            Ok(events) => found(Source::Pmu, source_pmu(events)),
            Err(why) => none(format!("source pmu: {why}")),
        },
        RequestedSource::Clock => match clock {
            Ok(()) => found(Source::Clock, "source clock".to_owned()),
            Err(why) => none(format!("source clock: {why}")),
        },
        RequestedSource::Signal => match signal {
            Ok(()) => found(Source::Signal, "source signal".to_owned()),
            Err(why) => none(format!("source signal: {why}")),
        },
        RequestedSource::Auto => match (pmu, clock, signal) {
            (Ok(events), ..) => found(Source::Pmu, source_pmu(events)),
            (Err(why), Ok(()), _) => found(Source::Clock, format!("source clock, not pmu: {why}")),
            (Err(pmu), Err(clock), Ok(())) => found(
                Source::Signal,
                format!(
                    "source signal, not clock: {clock}{}",
                    unless_same(", not pmu", &pmu, &clock)
                ),
            ),
            (Err(pmu), Err(clock), Err(signal)) => none(format!(
                "no source works here: clock: {clock}{}{}",
                unless_same("; pmu", &pmu, &clock),
                unless_same("; signal", &signal, &clock)
            )),
        },
    }
}

fn source_pmu(events: &[String]) -> String {
    format!("source pmu: {}", events.join(", "))
}

/// A reason under its heading; empty if the same reason was already given.
fn unless_same(heading: &str, why: &str, given: &str) -> String {
    match why == given {
        true => String::new(),
        false => format!("{heading}: {why}"),
    }
}

/// The events of the PMU, or why it can't be used.
fn pmu_works(facts: &Facts) -> Result<&[String], String> {
    let (events, files, opened) = match &facts.pmu {
        Pmu::None => {
            return Err(
                "the kernel names no PMU that samples memory accesses (virtual machines need one \
                 passed through)"
                    .to_owned(),
            );
        }
        Pmu::Unusable(why) => return Err(why.clone()),
        Pmu::Listed {
            events,
            files,
            opened,
            ..
        } => (events, files, opened),
    };
    if let Err((event, errno)) = opened {
        return Err(match *errno {
            libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO | libc::EIO => format!(
                "{event} is listed and refused ({}): hypervisors do so that pass on a part of the PMU",
                name(*errno)
            ),
            libc::EINVAL => format!(
                "{event} is listed and refused (EINVAL): the hypervisor does not pass it on, or \
                 this kernel cannot sample a single process with it"
            ),
            libc::EBUSY | libc::EAGAIN => {
                format!("{event} is in use by another profiler (EBUSY): end that one to have it")
            }
            // The system call itself is allowed, as the clock's event opens.
            libc::EPERM if facts.clock.is_ok() => format!("{event}: {}", no_memory(libc::EPERM)),
            errno => format!("{event}: {}", denial(errno, facts)),
        });
    }
    enough_files(1 + *files as u64, facts)?;
    ring_works(facts)?;
    Ok(events)
}

fn clock_works(facts: &Facts) -> Result<(), String> {
    match facts.clock {
        Ok(()) => {}
        Err(Refused::Architecture) => return Err(not_decoded()),
        Err(Refused::Kernel(errno)) => return Err(denial(errno, facts)),
    }
    enough_files(2, facts)?;
    ring_works(facts)
}

fn signal_works(facts: &Facts) -> Result<(), String> {
    match (&facts.clock, &facts.signal) {
        // Samples of signals are decoded like those of the clock.
        (Err(Refused::Architecture), _) => Err(not_decoded()),
        (_, Err(why)) => Err(why.clone()),
        (_, Ok(())) => Ok(()),
    }
}

fn not_decoded() -> String {
    format!(
        "instructions of {} are not decoded yet",
        std::env::consts::ARCH
    )
}

fn enough_files(per_cpu: u64, facts: &Facts) -> Result<(), String> {
    let wanted = per_cpu * facts.cpus as u64 + OTHER_FILES;
    if wanted <= facts.open_files {
        return Ok(());
    }
    Err(format!(
        "{wanted} open files are needed, {per_cpu} a CPU, and {} are allowed: raise ulimit -n",
        facts.open_files
    ))
}

fn ring_works(facts: &Facts) -> Result<(), String> {
    match facts.ring {
        Ok(_) => Ok(()),
        Err(errno) => Err(no_memory(errno)),
    }
}

fn no_memory(errno: Errno) -> String {
    format!(
        "no memory may be locked for samples ({}): raise kernel.perf_event_mlock_kb or ulimit -l",
        name(errno)
    )
}

/// Cause and remedy for a failed `perf_event_open`.
fn denial(errno: Errno, facts: &Facts) -> String {
    match (errno, facts.paranoid) {
        (libc::EACCES | libc::EPERM, Some(level @ 1..)) if facts.reach == Reach::Machine => {
            format!(
                "kernel.perf_event_paranoid is {level}, which reserves the whole machine for \
             administrators: set it to 0, or give nearpage CAP_PERFMON"
            )
        }
        (libc::EACCES | libc::EPERM, Some(level @ 3..)) => format!(
            "kernel.perf_event_paranoid is {level}, which reserves perf events for administrators: \
             set it to 2, or give nearpage CAP_PERFMON"
        ),
        // At level 2, only IBS is refused, on kernels that cannot exclude the kernel's ops.
        (libc::EACCES, Some(level @ 2)) => format!(
            "kernel.perf_event_paranoid is {level}, and this event samples the kernel as well: set \
             it to 1, or give nearpage CAP_PERFMON"
        ),
        (libc::EACCES | libc::EPERM, _) => format!(
            "perf_event_open is forbidden ({}), as by the seccomp profiles of containers: allow it \
             there, or add CAP_PERFMON",
            name(errno)
        ),
        (libc::EMFILE | libc::ENFILE, _) => "too many open files: raise ulimit -n".to_owned(),
        (libc::ENOSYS, _) => "this kernel or sandbox has no perf events (ENOSYS)".to_owned(),
        _ => format!("perf_event_open: {}", name(errno)),
    }
}

/// Name of an error as in manual pages, or its text.
fn name(errno: Errno) -> String {
    let known = match errno {
        libc::EACCES => "EACCES",
        libc::EAGAIN => "EAGAIN",
        libc::EBUSY => "EBUSY",
        libc::EINVAL => "EINVAL",
        libc::EIO => "EIO",
        libc::ENODEV => "ENODEV",
        libc::ENOENT => "ENOENT",
        libc::ENOMEM => "ENOMEM",
        libc::ENXIO => "ENXIO",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::EPERM => "EPERM",
        _ => return std::io::Error::from_raw_os_error(errno).to_string(),
    };
    known.to_owned()
}

impl Facts {
    /// Tests each prerequisite of sampling on this process. `options` determine the PMU's events; `library` is whether
    /// the preload library will be in the command.
    pub fn probe(
        options: &PmuOptions,
        library: &Result<(), NoPreload>,
        rate_hz: f64,
        reach: Reach,
        sys_root: &Path,
        proc_root: &Path,
    ) -> Result<Self, Error> {
        let cpus = online_cpus(sys_root)?.as_slice().to_vec();
        let clock = PerfEvent::open(&clock_attributes(), reach.scope(cpus[0]));
        let ring = match &clock {
            Ok(event) => smallest_ring(event),
            Err(_) => Ok(0),
        };
        Ok(Self {
            reach,
            paranoid: paranoid_level(proc_root),
            cpus: cpus.len(),
            open_files: open_files_limit(),
            pmu: Pmu::of(options.events(rate_hz, sys_root, proc_root), &cpus, reach),
            clock: match (supported(), clock) {
                (Err(_), _) => Err(Refused::Architecture),
                (_, Err(error)) => Err(Refused::Kernel(errno(&error))),
                (Ok(()), Ok(_)) => Ok(()),
            },
            ring,
            signal: library
                .clone()
                .map_err(|NoPreload(why)| why)
                .and_then(|()| signal_supported())
                .and_then(|()| timers_work()),
        })
    }
}

impl Pmu {
    fn of(events: Result<Vec<MemoryEvent>, String>, cpus: &[CpuId], reach: Reach) -> Self {
        let events = match events {
            Ok(events) if events.is_empty() => return Self::None,
            Ok(events) => events,
            Err(why) => return Self::Unusable(why),
        };
        let files = |cpu| {
            let here = events.iter().filter(|event| event.on(cpu));
            here.map(MemoryEvent::files).sum::<usize>()
        };
        // Opens each event on one of its CPUs, as for the target.
        let refused = events.iter().find_map(|event| {
            let cpu = cpus.iter().find(|cpu| event.on(**cpu))?;
            let opened = event.open(reach.scope(*cpu), flag::INHERIT);
            Some((event.name.clone(), errno(&opened.err()?)))
        });
        Self::Listed {
            fixed_period: events.iter().all(MemoryEvent::fixed_period),
            files: cpus.iter().map(|cpu| files(*cpu)).max().unwrap_or(0),
            events: events.into_iter().map(|event| event.name).collect(),
            opened: refused.map_or(Ok(()), Err),
        }
    }
}

/// Whether a thread can have a timer on its time in user mode.
fn timers_work() -> Result<(), String> {
    let mut timer = 0 as libc::c_int;
    // SAFETY: zero is a valid sigevent. The kernel reads it and writes the timer's number, by which the timer is
    // deleted.

    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_NONE;
        let made = libc::syscall(
            libc::SYS_timer_create,
            nearpage_wire::samples::THREAD_USER_CLOCK,
            &raw const event,
            &raw mut timer,
        );
        match made {
            0 => drop(libc::syscall(libc::SYS_timer_delete, timer)),
            _ => return Err(no_timer(&std::io::Error::last_os_error())),
        }
        Ok(())
    }
}

fn no_timer(error: &std::io::Error) -> String {
    let number = errno(error);
    let remedy = match number {
        libc::EAGAIN => "raise ulimit -i",
        _ => "allow timer_create in the sandbox",
    };
    format!(
        "the kernel gives no timer of a thread's time ({}): {remedy}",
        name(number)
    )
}

/// The error's number; EIO for errors that are not the kernel's.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn clock_attributes() -> Attributes {
    let mut attributes = software_attributes(event::CPU_CLOCK);
    attributes.sample_period = 1_000_000;
    attributes.flags |= flag::EXCLUDE_KERNEL;
    attributes
}

/// Maps the smallest ring that the sampler can use, and returns its size.
fn smallest_ring(event: &PerfEvent) -> Result<usize, Errno> {
    let bytes = 4 * page_bytes();
    match Ring::map(event, page_bytes(), bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(errno(&error)),
    }
}

/// Value to which the sampler can raise the limit on open files.
pub(crate) fn open_files_limit() -> u64 {
    // SAFETY: zero is a valid rlimit, which the call fills in.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        match libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) {
            0 => limit.rlim_max.min(65_536).max(limit.rlim_cur),
            _ => 1024,
        }
    }
}

#[cfg(test)]
mod tests;
