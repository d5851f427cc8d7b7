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

fn line(requested: RequestedSource, facts: &Facts) -> String {
    match choose(requested, facts) {
        Ok(SourceChoice { source, line, .. }) => {
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
#[expect(
    clippy::too_many_lines,
    reason = "one table: what a machine allows, and the line that the user reads"
)]
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
        // Above level 2 with CAP_PERFMON.
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
        // `--all` without CAP_PERFMON.
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
        // At these levels, only a security filter refuses.
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
        // A seccomp profile that allows the clock, or the PMU alone.
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
            // The clock and the PMU need the same memory.
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
        assert_eq!(&line(RequestedSource::Auto, facts), expected, "{facts:?}");
        // If any source works on request, `Auto` chooses one.
        let works = |requested| choose(requested, facts).is_ok();
        assert_eq!(
            works(RequestedSource::Auto),
            [
                RequestedSource::Pmu,
                RequestedSource::Clock,
                RequestedSource::Signal
            ]
            .into_iter()
            .any(works),
            "{facts:?}"
        );
        assert!(!expected.contains('\n'));
    }
}

#[test]
fn a_named_source_is_taken_or_refused() {
    assert_eq!(line(RequestedSource::Clock, &facts()), "source clock");
    let none = Facts {
        pmu: Pmu::None,
        ..facts()
    };
    assert!(line(RequestedSource::Pmu, &none).starts_with("source pmu: the kernel names no PMU"));
    assert_eq!(
        line(RequestedSource::Signal, &facts()),
        format!("source signal: {NO_LIBRARY}")
    );
    let denied = refused(4, libc::EACCES);
    assert!(line(RequestedSource::Clock, &denied).starts_with("source clock: kernel.perf_event"));
}

#[test]
fn a_fake_machine_is_probed_by_what_it_lists() {
    use crate::pmu::fake;
    let events = |files| PmuOptions::default().events(97.0, fake(files).path(), Path::new("/proc"));
    let cpus = [CpuId(0), CpuId(16)];
    let hybrid = Pmu::of(events(crate::pmu::ALDER_LAKE), &cpus, Reach::Processes);
    // Two events on each kind of core, one of them with a leader.
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
