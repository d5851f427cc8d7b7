//! Where accesses come from: the best source that this machine and these permissions allow.
//!
//! [`Facts`] are what was tried here; [`choose`] is a pure function of them.

use std::path::Path;

use nearpage_machine::CpuId;
use nearpage_perf_abi::{Attributes, event, flag};
use nearpage_recording::Source;

use crate::calibrate::page_bytes;
use crate::calibrate::{signal_supported, supported};
use crate::error::{Error, paranoid_level};
use crate::perf_event::{PerfEvent, Scope, software_attributes};
use crate::pmu::{MemoryEvent, PmuOptions};
use crate::ring::Ring;

/// The source asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceWish {
    /// The best that works: the PMU, else the clock, else signals.
    #[default]
    Auto,
    /// Hardware samples, or none.
    Pmu,
    /// Clock samples, or none.
    Clock,
    /// Samples that the preload library takes inside the command, by timer signals, or none.
    Signal,
}

/// A refused call: its `errno`.
pub(crate) type Errno = i32;

/// How far events reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Processes, with what they start.
    #[default]
    Processes,
    /// Whatever runs, on every CPU.
    Machine,
}

impl Reach {
    /// Of an event tried on `cpu`, in this process's name.
    fn scope(self, cpu: CpuId) -> Scope {
        match self {
            Self::Processes => Scope::ProcessOn(0, cpu),
            Self::Machine => Scope::MachineOn(cpu),
        }
    }
}

/// What the machine and the kernel allow, as found by trying.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub reach: Reach,
    /// `kernel.perf_event_paranoid`; `None` where it is not to be had.
    pub paranoid: Option<i32>,
    /// CPUs that are online.
    pub cpus: usize,
    /// Files that this process may have open.
    pub open_files: u64,
    pub pmu: Pmu,
    pub clock: Result<(), Refused>,
    /// Bytes of memory for a CPU's records, or why there is none.
    pub ring: Result<usize, Errno>,
    /// Whether the preload library can sample inside the command, or why not.
    pub signal: Result<(), String>,
}

/// What there is of a PMU that samples memory.
#[derive(Clone, Debug)]
pub(crate) enum Pmu {
    /// Sysfs names no such event.
    None,
    /// It names one that makes no sense.
    Unusable(String),
    /// It names these.
    Listed {
        /// As perf would write them.
        events: Vec<String>,
        /// Open files that they take on a CPU, at most.
        files: usize,
        /// They have a period each, and not a rate.
        fixed_period: bool,
        /// What the kernel said when they were opened: the refused event and its `errno`.
        opened: Result<(), (String, Errno)>,
    },
}

/// Why there is no clock source.
#[derive(Clone, Debug)]
pub(crate) enum Refused {
    /// The kernel said so.
    Kernel(Errno),
    /// Instructions of this architecture are not decoded.
    Architecture,
}

/// What was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The source.
    pub source: Source,
    /// One line that says which, and why not the better one; for the user.
    pub line: String,
    /// Samples come after so many events each, and not at a rate: `PmuOptions::period` was given,
    /// or the hardware knows no rate (Arm SPE).
    pub fixed_period: bool,
}

/// Files open for other things: standard streams, logs, the command's pipes.
const OTHER_FILES: u64 = 16;

/// Chooses a source; where none works, the error says of each why.
pub(crate) fn choose(wish: SourceWish, facts: &Facts) -> Result<Choice, Error> {
    let pmu = pmu_works(facts);
    let clock = clock_works(facts);
    let signal = signal_works(facts);
    let fixed_period = matches!(facts.pmu, Pmu::Listed { fixed_period, .. } if fixed_period);
    let found = |source, line: String| {
        Ok(Choice {
            source,
            line,
            fixed_period: fixed_period && source == Source::Pmu,
        })
    };
    let none = |line| Err(Error::NoSource(line));
    match wish {
        SourceWish::Pmu => match pmu {
            Ok(events) => found(Source::Pmu, source_pmu(events)),
            Err(why) => none(format!("source pmu: {why}")),
        },
        SourceWish::Clock => match clock {
            Ok(()) => found(Source::Clock, "source clock".to_owned()),
            Err(why) => none(format!("source clock: {why}")),
        },
        SourceWish::Signal => match signal {
            Ok(()) => found(Source::Signal, "source signal".to_owned()),
            Err(why) => none(format!("source signal: {why}")),
        },
        SourceWish::Auto => match (pmu, clock, signal) {
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

/// A reason under its heading; nothing where it has been given already.
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
            // Not the call itself, which the clock's would show.
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
        // It is decoded as the clock's samples are.
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

/// Why `perf_event_open` failed, and the remedy.
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
        // Only IBS, without a way to leave the kernel's ops out, is not had at 2 by everybody.
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

/// An error's name, as manual pages have it, or its text.
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
    /// Tries everything that sampling takes, on this process. `options` decide the PMU's events;
    /// `library` is whether the preload library will be in the command.
    pub fn probe(
        options: &PmuOptions,
        library: &Result<(), String>,
        rate_hz: f64,
        reach: Reach,
        sys_root: &Path,
        proc_root: &Path,
    ) -> Result<Self, Error> {
        let cpus = crate::cpus::online_cpus(sys_root)?;
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
        // Each on one of its CPUs, as it will be for the target.
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

/// Can a thread have a timer of its own time in user mode?
fn timers_work() -> Result<(), String> {
    let mut timer = 0 as libc::c_int;
    // SAFETY: zero is a valid sigevent; the kernel reads it and writes the timer's number, which is
    // the one that is deleted.

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

/// The error's number; EIO for one that the kernel did not make.
pub(crate) fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn clock_attributes() -> Attributes {
    let mut attributes = software_attributes(event::CPU_CLOCK);
    attributes.sample_period = 1_000_000;
    attributes.flags |= flag::EXCLUDE_KERNEL;
    attributes
}

/// The smallest ring that the sampler makes do with.
fn smallest_ring(event: &PerfEvent) -> Result<usize, Errno> {
    let bytes = 4 * page_bytes();
    match Ring::map(event, page_bytes(), bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => Err(errno(&error)),
    }
}

/// What the limit can be raised to; the sampler does.
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
mod tests {
    use super::*;

    const NO_LIBRARY: &str = "the preload library is missing";
    const INTEL: [&str; 2] = ["cpu/mem-loads,ldlat=30/", "cpu/mem-stores/"];

    fn listed(events: &[&str], opened: Result<(), Errno>) -> Pmu {
        Pmu::Listed {
            events: events.iter().map(|event| (*event).to_owned()).collect(),
            files: events.len(),
            fixed_period: false,
            opened: opened.map_err(|errno| (events[0].to_owned(), errno)),
        }
    }

    /// A machine with a PMU, where everything is allowed.
    fn facts() -> Facts {
        Facts {
            reach: Reach::Processes,
            paranoid: Some(2),
            cpus: 64,
            open_files: 1024,
            pmu: listed(&INTEL, Ok(())),
            clock: Ok(()),
            ring: Ok(16 << 10),
            signal: Err(NO_LIBRARY.to_owned()),
        }
    }

    fn refused(paranoid: i32, errno: Errno) -> Facts {
        Facts {
            paranoid: Some(paranoid),
            pmu: listed(&INTEL, Err(errno)),
            clock: Err(Refused::Kernel(errno)),
            ..facts()
        }
    }

    fn line(wish: SourceWish, facts: &Facts) -> String {
        match choose(wish, facts) {
            Ok(Choice { source, line, .. }) => {
                let name = match source {
                    Source::Pmu => "source pmu",
                    Source::Signal => "source signal",
                    _ => "source clock",
                };
                assert!(line.starts_with(name), "{line}");
                line
            }
            Err(Error::NoSource(line)) => line,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn every_state_has_its_source_and_its_line() {
        const PMU: &str = "source pmu: cpu/mem-loads,ldlat=30/, cpu/mem-stores/";
        const NO_PMU: &str = "source clock, not pmu: the kernel names no PMU that samples memory \
                              accesses (virtual machines need one passed through)";
        let mut table = Vec::new();
        for level in -1..=4 {
            let here = Facts {
                paranoid: Some(level),
                ..facts()
            };
            let (pmu, clock) = (
                here.clone(),
                Facts {
                    pmu: Pmu::None,
                    ..here
                },
            );
            // Above 2 with CAP_PERFMON.
            table.push((pmu, PMU.to_owned()));
            table.push((clock, NO_PMU.to_owned()));
        }
        for level in 3..=4 {
            for errno in [libc::EACCES, libc::EPERM] {
                let why = format!(
                    "kernel.perf_event_paranoid is {level}, which reserves perf events for \
                     administrators: set it to 2, or give nearpage CAP_PERFMON"
                );
                table.push((
                    refused(level, errno),
                    format!(
                        "no source works here: clock: {why}; pmu: cpu/mem-loads,ldlat=30/: {why}; \
                         signal: {NO_LIBRARY}"
                    ),
                ));
            }
        }
        let of = |pmu| Facts { pmu, ..facts() };
        let intel = |errno| of(listed(&INTEL, Err(errno)));
        let with_library = |facts| Facts {
            signal: Ok(()),
            ..facts
        };
        let machine = |facts| Facts {
            reach: Reach::Machine,
            ..facts
        };
        let rest: [(Facts, &str); 30] = [
            // `--all`, without CAP_PERFMON.
            (
                machine(Facts {
                    pmu: Pmu::None,
                    ..refused(2, libc::EACCES)
                }),
                "no source works here: clock: kernel.perf_event_paranoid is 2, which reserves the \
                 whole machine for administrators: set it to 0, or give nearpage CAP_PERFMON; pmu: \
                 the kernel names no PMU that samples memory accesses (virtual machines need one \
                 passed through); signal: the preload library is missing",
            ),
            (
                machine(refused(1, libc::EPERM)),
                "no source works here: clock: kernel.perf_event_paranoid is 1, which reserves the \
                 whole machine for administrators: set it to 0, or give nearpage CAP_PERFMON; pmu: \
                 cpu/mem-loads,ldlat=30/: kernel.perf_event_paranoid is 1, which reserves the \
                 whole machine for administrators: set it to 0, or give nearpage CAP_PERFMON; signal: the preload library is missing",
            ),
            // Nothing but a filter refuses at these levels.
            (
                machine(Facts {
                    pmu: Pmu::None,
                    ..refused(-1, libc::EPERM)
                }),
                "no source works here: clock: perf_event_open is forbidden (EPERM), as by the \
                 seccomp profiles of containers: allow it there, or add CAP_PERFMON; pmu: the \
                 kernel names no PMU that samples memory accesses (virtual machines need one \
                 passed through); signal: the preload library is missing",
            ),
            (machine(facts()), PMU),
            (
                machine(Facts {
                    pmu: Pmu::None,
                    ..facts()
                }),
                NO_PMU,
            ),
            // A seccomp profile that lets the clock through, or the PMU alone.
            (
                intel(libc::EACCES),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/: kernel.perf_event_paranoid is 2, \
                 and this event samples the kernel as well: set it to 1, or give nearpage \
                 CAP_PERFMON",
            ),
            (
                intel(libc::EAGAIN),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/ is in use by another profiler \
                 (EBUSY): end that one to have it",
            ),
            (
                Facts {
                    clock: Err(Refused::Kernel(libc::EMFILE)),
                    ..intel(libc::EMFILE)
                },
                "no source works here: clock: too many open files: raise ulimit -n; pmu: \
                 cpu/mem-loads,ldlat=30/: too many open files: raise ulimit -n; signal: the preload library is missing",
            ),
            (
                Facts {
                    ring: Err(libc::ENOMEM),
                    pmu: Pmu::None,
                    ..facts()
                },
                "no source works here: clock: no memory may be locked for samples (ENOMEM): raise \
                 kernel.perf_event_mlock_kb or ulimit -l; pmu: the kernel names no PMU that samples \
                 memory accesses (virtual machines need one passed through); signal: the preload library is missing",
            ),
            (
                Facts {
                    paranoid: None,
                    clock: Err(Refused::Kernel(libc::ENOSYS)),
                    ..intel(libc::ENOSYS)
                },
                "no source works here: clock: this kernel or sandbox has no perf events (ENOSYS); \
                 pmu: cpu/mem-loads,ldlat=30/: this kernel or sandbox has no perf events (ENOSYS); signal: the preload library is missing",
            ),
            (
                with_library(refused(2, libc::EPERM)),
                "source signal, not clock: perf_event_open is forbidden (EPERM), as by the seccomp \
                 profiles of containers: allow it there, or add CAP_PERFMON, not pmu: \
                 cpu/mem-loads,ldlat=30/: perf_event_open is forbidden (EPERM), as by the seccomp \
                 profiles of containers: allow it there, or add CAP_PERFMON",
            ),
            (
                with_library(Facts {
                    ring: Err(libc::EPERM),
                    ..facts()
                }),
                "source signal, not clock: no memory may be locked for samples (EPERM): raise \
                 kernel.perf_event_mlock_kb or ulimit -l",
            ),
            (
                with_library(Facts {
                    pmu: Pmu::None,
                    ..facts()
                }),
                NO_PMU,
            ),
            (
                refused(2, libc::EPERM),
                "no source works here: clock: perf_event_open is forbidden (EPERM), as by the \
                 seccomp profiles of containers: allow it there, or add CAP_PERFMON; pmu: \
                 cpu/mem-loads,ldlat=30/: perf_event_open is forbidden (EPERM), as by the seccomp \
                 profiles of containers: allow it there, or add CAP_PERFMON; signal: the preload \
                 library is missing",
            ),
            (
                Facts {
                    pmu: Pmu::None,
                    ..refused(2, libc::ENOSYS)
                },
                "no source works here: clock: this kernel or sandbox has no perf events (ENOSYS); \
                 pmu: the kernel names no PMU that samples memory accesses (virtual machines need \
                 one passed through); signal: the preload library is missing",
            ),
            (
                of(listed(&["ibs_op/cnt_ctl/"], Err(libc::EACCES))),
                "source clock, not pmu: ibs_op/cnt_ctl/: kernel.perf_event_paranoid is 2, and this \
                 event samples the kernel as well: set it to 1, or give nearpage CAP_PERFMON",
            ),
            (
                Facts {
                    open_files: 150,
                    ..facts()
                },
                "source clock, not pmu: 208 open files are needed, 3 a CPU, and 150 are allowed: \
                 raise ulimit -n",
            ),
            (
                Facts {
                    open_files: 100,
                    pmu: Pmu::None,
                    ..facts()
                },
                "no source works here: clock: 144 open files are needed, 2 a CPU, and 100 are \
                 allowed: raise ulimit -n; pmu: the kernel names no PMU that samples memory \
                 accesses (virtual machines need one passed through); signal: the preload library \
                 is missing",
            ),
            (
                intel(libc::EMFILE),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/: too many open files: raise \
                 ulimit -n",
            ),
            (
                // The clock and the PMU take as much.
                Facts {
                    ring: Err(libc::EPERM),
                    ..facts()
                },
                "no source works here: clock: no memory may be locked for samples (EPERM): raise \
                 kernel.perf_event_mlock_kb or ulimit -l; signal: the preload library is missing",
            ),
            (
                of(listed(&["memory for packets of arm_spe"], Err(libc::EPERM))),
                "source clock, not pmu: memory for packets of arm_spe: no memory may be locked for \
                 samples (EPERM): raise kernel.perf_event_mlock_kb or ulimit -l",
            ),
            (
                intel(libc::EBUSY),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/ is in use by another profiler \
                 (EBUSY): end that one to have it",
            ),
            (
                intel(libc::ENOENT),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/ is listed and refused (ENOENT): \
                 hypervisors do so that pass on a part of the PMU",
            ),
            (
                intel(libc::EOPNOTSUPP),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/ is listed and refused \
                 (EOPNOTSUPP): hypervisors do so that pass on a part of the PMU",
            ),
            (
                intel(libc::EINVAL),
                "source clock, not pmu: cpu/mem-loads,ldlat=30/ is listed and refused (EINVAL): \
                 the hypervisor does not pass it on, or this kernel cannot sample a single process \
                 with it",
            ),
            (
                of(Pmu::Unusable(
                    "cpu: the kernel's formats have no `odd=1`".to_owned(),
                )),
                "source clock, not pmu: cpu: the kernel's formats have no `odd=1`",
            ),
            (
                Facts {
                    clock: Err(Refused::Architecture),
                    pmu: listed(&["arm_spe_0/jitter/"], Ok(())),
                    ..facts()
                },
                "source pmu: arm_spe_0/jitter/",
            ),
            (
                Facts {
                    clock: Err(Refused::Kernel(libc::EPERM)),
                    ..facts()
                },
                PMU,
            ),
            (
                Facts {
                    paranoid: None,
                    ..facts()
                },
                PMU,
            ),
            (
                Facts {
                    paranoid: None,
                    pmu: Pmu::None,
                    ..facts()
                },
                NO_PMU,
            ),
        ];
        table.extend(rest.map(|(facts, line)| (facts, line.to_owned())));
        for (facts, expected) in &table {
            assert_eq!(&line(SourceWish::Auto, facts), expected, "{facts:?}");
            // Where some source works when asked for, one is chosen unasked.
            let works = |wish| choose(wish, facts).is_ok();
            assert_eq!(
                works(SourceWish::Auto),
                [SourceWish::Pmu, SourceWish::Clock, SourceWish::Signal]
                    .into_iter()
                    .any(works),
                "{facts:?}"
            );
            assert!(!expected.contains('\n'));
        }
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        assert_eq!(line(SourceWish::Clock, &facts()), "source clock");
        let none = Facts {
            pmu: Pmu::None,
            ..facts()
        };
        assert!(line(SourceWish::Pmu, &none).starts_with("source pmu: the kernel names no PMU"));
        assert_eq!(
            line(SourceWish::Signal, &facts()),
            format!("source signal: {NO_LIBRARY}")
        );
        let denied = refused(4, libc::EACCES);
        assert!(line(SourceWish::Clock, &denied).starts_with("source clock: kernel.perf_event"));
    }

    #[test]
    fn a_fake_machine_is_probed_by_what_it_lists() {
        use crate::pmu::fake;
        let events =
            |files| PmuOptions::default().events(97.0, fake(files).path(), Path::new("/proc"));
        let cpus = [CpuId(0), CpuId(16)];
        let hybrid = Pmu::of(events(crate::pmu::ALDER_LAKE), &cpus, Reach::Processes);
        // Two events on either kind of core, one of them led by a third.
        assert!(matches!(hybrid, Pmu::Listed { files: 3, .. }), "{hybrid:?}");
        assert!(matches!(
            Pmu::of(Ok(Vec::new()), &cpus, Reach::Processes),
            Pmu::None
        ));
        assert!(matches!(
            Pmu::of(Err(String::new()), &cpus, Reach::Processes),
            Pmu::Unusable(_)
        ));
    }
}
