//! Predicts the threads of a run: team sizes, CPUs, and pins. The sources are options, plans, OpenMP's variables and
//! the affinity mask.

use std::io;

use nearpage_machine::{CpuId, CpuList, Machine, ThreadPlacement, thread_cpus};
use nearpage_plan::{Pinning, Plan, Team};

use super::PlacingOptions;
use crate::error::{Error, IoContext};

/// Maximum number of threads that are pinned in order of creation.
const PINNED_THREADS_MAX: usize = 4096;

/// Thread settings in the environment of a run.
pub(super) struct RunThreads {
    /// CPUs that the command may use.
    allowed: CpuList,
    /// Does the affinity mask leave out CPUs of the machine?
    masked: bool,
    /// `OMP_NUM_THREADS`.
    openmp_threads: Option<usize>,
    /// First CPU of each place in `OMP_PLACES`; empty if the variable has abstract names.
    places: Option<Vec<CpuId>>,
    /// A variable that tells the OpenMP runtime to bind threads to CPUs of its choice.
    binding: Option<&'static str>,
}

impl RunThreads {
    pub(super) fn of_this_process(machine: &Machine) -> Result<Self, Error> {
        let allowed = affinity_mask()?;
        let known: CpuList = machine
            .cpus()
            .as_slice()
            .iter()
            .copied()
            .filter(|&cpu| allowed.contains(cpu))
            .collect();
        Ok(Self {
            masked: known.as_slice().len() < machine.cpus().as_slice().len(),
            // If the machine file describes another machine, no CPU of it is in the mask, and the mask is ignored.
            allowed: if known.as_slice().is_empty() {
                machine.cpus()
            } else {
                known
            },
            openmp_threads: openmp_variable(),
            places: variable("OMP_PLACES").map(|value| openmp_places(&value).unwrap_or_default()),
            binding: ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"]
                .into_iter()
                .find(|name| {
                    let value = variable(name);
                    value.is_some_and(|value| !value.trim().eq_ignore_ascii_case("false"))
                }),
        })
    }

    /// Number of threads of a team in this run, if it is known before the start.
    pub(super) fn team_size(&self, team: &str) -> Option<usize> {
        (team == Team::OPENMP).then(|| self.openmp_threads.unwrap_or(self.allowed.as_slice().len()))
    }

    /// Layout and pins of threads: from the option, else from a plan, else compact if placements name threads.
    /// `OMP_PLACES` and an affinity mask take precedence; other OpenMP bindings do not.
    pub(super) fn pinning(
        &self,
        options: &PlacingOptions<'_>,
        warnings: &mut Vec<String>,
    ) -> (ThreadPlacement, Pinning) {
        let planned = planned_threads(options.plans, warnings);
        if let (Some(planned), Some(given)) = (planned, options.threads)
            && given != planned
        {
            warnings.push(format!(
                "the plan is for threads that run {}: --threads {} wins, and what the plan promises does not hold",
                as_typed(planned),
                as_typed(given)
            ));
        }
        let placement = options.threads.or(planned);
        let needs_threads = options.plans.iter().any(Plan::names_threads)
            || options
                .rules
                .iter()
                .any(|rule| rule.placement.names_threads());
        let pinning = match placement {
            Some(ThreadPlacement::None) => return (ThreadPlacement::Compact, Pinning::None),
            Some(_) if options.plans.is_empty() => Pinning::CreationOrder,
            Some(_) => Pinning::Teams,
            None if needs_threads => Pinning::Teams,
            None => return (ThreadPlacement::Compact, Pinning::None),
        };
        let placement = placement.unwrap_or(ThreadPlacement::Compact);
        if self.masked {
            warnings.push(format!(
                "an affinity mask is set: threads are pinned within CPUs {}",
                self.allowed
            ));
        }
        match &self.places {
            None => {
                if let Some(name) = self.binding {
                    warnings.push(format!(
                        "{name} is set, but threads are pinned over it, {}; --threads none leaves them to it",
                        as_typed(placement)
                    ));
                }
                (placement, pinning)
            }
            Some(places) => {
                let how = if places.is_empty() {
                    "as if bound compactly"
                } else {
                    "to its places in order"
                };
                let though = match planned.filter(|_| options.threads.is_none()) {
                    Some(planned) => format!(
                        ", though the plan is for threads that run {}",
                        as_typed(planned)
                    ),
                    None => String::new(),
                };
                warnings.push(format!(
                    "OMP_PLACES is set: threads are not pinned{though}; pages follow it, {how}"
                ));
                (placement, Pinning::None)
            }
        }
    }

    /// Should LLVM's OpenMP runtime be kept from setting affinities? Not under an affinity mask: without affinities the
    /// runtime ignores the mask when it counts CPUs.
    pub(super) fn overrules_llvm(&self, pinning: Pinning) -> bool {
        pinning != Pinning::None && !self.masked && self.binding.is_none()
    }

    /// CPUs of a team. A main thread that works beside another team has the CPU after that team's CPUs.
    pub(super) fn team_cpus(
        &self,
        machine: &Machine,
        team: &Team,
        placement: ThreadPlacement,
    ) -> Vec<CpuId> {
        let threads = self.team_size(&team.name).unwrap_or(team.threads as usize);
        let before = team.beside as usize;
        let cpus = self.cpus(machine, before.saturating_add(threads.max(1)), placement);
        cpus.into_iter().skip(before).collect()
    }

    /// CPUs of a team of `threads` threads.
    pub(super) fn cpus(
        &self,
        machine: &Machine,
        threads: usize,
        placement: ThreadPlacement,
    ) -> Vec<CpuId> {
        match &self.places {
            Some(places) if !places.is_empty() => {
                places.iter().copied().cycle().take(threads).collect()
            }
            _ => thread_cpus(machine, threads, placement, Some(&self.allowed)),
        }
    }

    /// CPUs of threads in order of creation, of any team.
    pub(super) fn all_cpus(&self, machine: &Machine, placement: ThreadPlacement) -> Vec<CpuId> {
        let round = self
            .openmp_threads
            .unwrap_or(self.allowed.as_slice().len())
            .max(1);
        self.cpus(machine, round, placement)
            .into_iter()
            .cycle()
            .take(PINNED_THREADS_MAX.max(round))
            .collect()
    }
}

/// Value of `--threads`.
fn as_typed(placement: ThreadPlacement) -> &'static str {
    match placement {
        ThreadPlacement::Compact => "compact",
        ThreadPlacement::Scatter => "scatter",
        ThreadPlacement::None => "none",
    }
}

/// Thread layout of the plans. If plans contradict each other, the first counts.
fn planned_threads(plans: &[Plan], warnings: &mut Vec<String>) -> Option<ThreadPlacement> {
    let mut layouts = plans.iter().filter_map(|plan| plan.threads);
    let first = layouts.next()?;
    if let Some(other) = layouts.find(|&other| other != first) {
        warnings.push(format!(
            "one plan is for threads that run {}, another {}: all run {}",
            first.as_str(),
            other.as_str(),
            first.as_str()
        ));
    }
    Some(first.into())
}

/// The value of `OMP_NUM_THREADS` with which a run has as many OpenMP threads as the recording of `plan`; `None` if a run in
/// this environment has so many anyway, or if the program uses no OpenMP.
pub fn openmp_threads_to_set(plan: &Plan) -> Option<u32> {
    let team = plan.teams.iter().find(|team| team.name == Team::OPENMP)?;
    let here = openmp_variable().or_else(|| Some(affinity_mask().ok()?.as_slice().len()));
    (here != Some(team.threads as usize)).then_some(team.threads)
}

/// An environment variable that is neither unset nor blank.
fn variable(name: &str) -> Option<String> {
    std::env::var(name)
        .ok()
        .filter(|value| !value.trim().is_empty())
}

fn affinity_mask() -> Result<CpuList, Error> {
    // SAFETY: zero is a valid set, and the kernel writes into the set, whose size is passed.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(io::Error::last_os_error()).context("can't read the affinity mask");
        }
        set
    };
    // SAFETY: every number is below CPU_SETSIZE, so the set contains its bit.
    let is_set = |cpu: &u32| unsafe { libc::CPU_ISSET(*cpu as usize, &set) };
    Ok((0..libc::CPU_SETSIZE as u32)
        .filter(is_set)
        .map(CpuId)
        .collect())
}

/// The number of threads that `OMP_NUM_THREADS` sets.
fn openmp_variable() -> Option<usize> {
    openmp_threads(&variable("OMP_NUM_THREADS")?)
}

/// First number of `OMP_NUM_THREADS`, which may list a number for each nesting level.
fn openmp_threads(value: &str) -> Option<usize> {
    value
        .split(',')
        .next()?
        .trim()
        .parse()
        .ok()
        .filter(|&threads| threads > 0)
}

/// First CPU of each place in a list such as `{0},{1,2},{4}:4:2`; `None` for abstract names (`cores`) and unknown
/// syntax.
fn openmp_places(value: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    let mut rest = value.trim();
    while !rest.is_empty() {
        let (place, after) = rest.strip_prefix('{')?.split_once('}')?;
        let first: u32 = place.split([',', ':']).next()?.trim().parse().ok()?;
        let (interval, after) = after.split_once(',').unwrap_or((after, ""));
        let mut parts = interval
            .trim()
            .strip_prefix(':')
            .map(|text| text.split(':').map(str::trim))
            .into_iter()
            .flatten();
        let count: u32 = parts.next().map_or(Some(1), |text| text.parse().ok())?;
        let stride: u32 = parts.next().map_or(Some(1), |text| text.parse().ok())?;
        if count > 4096 {
            return None;
        }
        cpus.extend(
            (0..count).map(|number| CpuId(first.saturating_add(number.saturating_mul(stride)))),
        );
        rest = after.trim();
    }
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(text: &str) -> Option<Vec<u32>> {
        Some(openmp_places(text)?.into_iter().map(|cpu| cpu.0).collect())
    }

    #[test]
    fn reads_openmp_variables() {
        assert_eq!(openmp_threads("8"), Some(8));
        assert_eq!(openmp_threads("4,2"), Some(4));
        assert_eq!(openmp_threads("0"), None);
        assert_eq!(places("{0},{3},{1,2}"), Some(vec![0, 3, 1]));
        assert_eq!(places("{4}:3:2"), Some(vec![4, 6, 8]));
        assert_eq!(places("{0:2}:2:2,{9}"), Some(vec![0, 2, 9]));
        assert_eq!(places("cores"), None);
        assert_eq!(places("{0}:99999"), None);
        assert_eq!(places("{,"), None);
    }

    /// Layout, pins and warnings on `amd48` with these plans and this option.
    fn pinned(
        run: &RunThreads,
        plans: &[&str],
        threads: Option<ThreadPlacement>,
    ) -> (ThreadPlacement, Pinning, Vec<String>) {
        let machine = nearpage_machine::preset("amd48").unwrap();
        let plan = |keys: &&str| {
            let text = format!("version = 1\n{keys}\n[program]\nexecutable = \"x\"\n");
            Plan::from_toml(&text, "p").unwrap()
        };
        let plans: Vec<Plan> = plans.iter().map(plan).collect();
        let options = PlacingOptions {
            plans: &plans,
            threads,
            ..PlacingOptions::new(&machine)
        };
        let mut warnings = Vec::new();
        let (placement, pinning) = run.pinning(&options, &mut warnings);
        (placement, pinning, warnings)
    }

    /// An environment that sets a number of threads and nothing else.
    fn run() -> RunThreads {
        RunThreads {
            allowed: nearpage_machine::preset("amd48").unwrap().cpus(),
            masked: false,
            openmp_threads: Some(8),
            places: None,
            binding: None,
        }
    }

    #[test]
    fn a_main_thread_that_works_has_a_cpu_that_no_worker_has() {
        let machine = nearpage_machine::preset("amd48").unwrap();
        let team = |name: &str, threads: u32, beside: u32| Team {
            name: name.to_owned(),
            threads,
            beside,
            module: String::new(),
            build_id: String::new(),
            offset: 0,
        };
        let cpus = |team: &Team, placement| {
            let cpus = run().team_cpus(&machine, team, placement);
            cpus.into_iter().map(|cpu| cpu.0).collect::<Vec<u32>>()
        };
        for placement in [ThreadPlacement::Compact, ThreadPlacement::Scatter] {
            for workers in [1, 7, 47] {
                let of_workers = cpus(&team("worker", workers, 0), placement);
                let of_main = cpus(&team("main", 1, workers), placement);
                assert_eq!((of_workers.len(), of_main.len()), (workers as usize, 1));
                assert!(
                    !of_workers.contains(&of_main[0]),
                    "{of_main:?} among {of_workers:?}"
                );
            }
            // An idle main thread changes nothing. If there are fewer CPUs than threads, the main thread still gets a
            // CPU.
            let idle = cpus(&team("main", 1, 0), placement);
            assert_eq!(idle, cpus(&team("worker", 1, 0), placement));
            assert_eq!(cpus(&team("main", 1, 500), placement).len(), 1);
        }
    }

    const COMPACT: &str = "threads = \"compact\"";
    const SCATTER: &str = "threads = \"scatter\"";

    #[test]
    fn threads_run_as_planned() {
        let silent = |placement, pinning| (placement, pinning, Vec::<String>::new());
        assert_eq!(
            pinned(&run(), &[""], None),
            silent(ThreadPlacement::Compact, Pinning::None)
        );
        for (plan, placement) in [
            (COMPACT, ThreadPlacement::Compact),
            (SCATTER, ThreadPlacement::Scatter),
        ] {
            let expected = silent(placement, Pinning::Teams);
            assert_eq!(pinned(&run(), &[plan], None), expected);
            assert_eq!(pinned(&run(), &["", plan], None), expected);
        }
        assert_eq!(
            pinned(&run(), &[SCATTER], Some(ThreadPlacement::Scatter)),
            silent(ThreadPlacement::Scatter, Pinning::Teams)
        );
    }

    #[test]
    fn options_override_plans_and_the_first_plan_the_others() {
        for (threads, name, pinning) in [
            (ThreadPlacement::Compact, "compact", Pinning::Teams),
            (ThreadPlacement::None, "none", Pinning::None),
        ] {
            let found = pinned(&run(), &[SCATTER], Some(threads));
            let line = format!(
                "the plan is for threads that run scatter: --threads {name} wins, and what the plan promises does not hold"
            );
            assert_eq!(found, (ThreadPlacement::Compact, pinning, vec![line]));
        }
        let (placement, _, warnings) = pinned(&run(), &[SCATTER, COMPACT], None);
        assert_eq!(placement, ThreadPlacement::Scatter);
        assert_eq!(
            warnings,
            ["one plan is for threads that run scatter, another compact: all run scatter"]
        );
    }

    #[test]
    fn only_omp_places_overrules_pins() {
        let placed = RunThreads {
            places: Some(vec![CpuId(6), CpuId(0)]),
            binding: Some("OMP_PROC_BIND"),
            ..run()
        };
        let (_, pinning, warnings) = pinned(&placed, &[SCATTER], None);
        assert_eq!(pinning, Pinning::None);
        assert_eq!(
            warnings,
            [
                "OMP_PLACES is set: threads are not pinned, though the plan is for threads that run scatter; pages \
                 follow it, to its places in order"
            ]
        );
        let bound = RunThreads {
            binding: Some("OMP_PROC_BIND"),
            ..run()
        };
        let (_, pinning, warnings) = pinned(&bound, &[SCATTER], None);
        assert_eq!(pinning, Pinning::Teams);
        assert_eq!(
            warnings,
            [
                "OMP_PROC_BIND is set, but threads are pinned over it, scatter; --threads none leaves them to it"
            ]
        );
    }
}
