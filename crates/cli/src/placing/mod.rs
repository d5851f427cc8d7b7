//! Hands a plan to the preload library: who is pinned where, how large teams are in this run, the
//! compact form on disk, and what the library says of it at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nearpage_machine::{CpuId, CpuList, Machine, ThreadPlacement, several, thread_cpus};
use nearpage_plan::{Later, Pinning, PlaceRule, Plan, ProgramImage, Target, translate};
use nearpage_report::{bytes, printable, time};
use serde::Deserialize;

use crate::arguments::Threads;

/// Linux's default of `vm.max_map_count`.
const MAPPINGS_DEFAULT: u32 = 65_530;
/// `touch`: pages touched at start at the most (4 GiB of 4 KiB pages), so that sparse arrays stay so.
const TOUCH_PAGES_MAX: u64 = 1 << 20;
/// Threads pinned in order of creation.
const PINNED_THREADS_MAX: usize = 4096;

/// How a plan is to be enforced.
pub struct Wish<'a> {
    pub machine: &'a Machine,
    pub plans: &'a [Plan],
    pub rules: &'a [PlaceRule],
    /// What was asked for; nothing: what the plan needs.
    pub threads: Option<Threads>,
    pub mechanism: nearpage_plan::Mechanism,
    pub touch_group: u32,
}

/// A compact plan on disk, for as long as the command runs.
pub struct Placing {
    folder: PathBuf,
    rule_names: Vec<String>,
    /// By the same number: the function that the rule's phase begins with.
    phases: Vec<Option<String>>,
    /// By number of the phase: the function with which its threads change places.
    exchanges: Vec<Option<String>>,
    /// LLVM's OpenMP runtime would set the affinity of threads after they have been pinned, and can be kept from it.
    overrules_llvm: bool,
    /// What people should know before the command runs.
    pub warnings: Vec<String>,
}

impl Placing {
    /// Pins threads in order of creation and places nothing.
    pub fn pins_only(threads: Threads) -> anyhow::Result<Self> {
        let machine = Machine::local(Path::new("/sys"))?;
        let wish = Wish {
            machine: &machine,
            plans: &[],
            rules: &[],
            threads: Some(threads),
            mechanism: nearpage_plan::Mechanism::Bind,
            touch_group: 1,
        };
        Self::new(&wish, &[])
    }

    /// Translates plans and rules for this machine and this run.
    pub fn new(wish: &Wish, programs: &[ProgramImage]) -> anyhow::Result<Self> {
        let run = RunThreads::of_this_process(wish.machine)?;
        let mut warnings = Vec::new();
        let (placement, pinning) = run.pinning(wish, &mut warnings);
        // Without an affinity of its own it would not see a mask when it counts CPUs.
        let overrules_llvm = pinning != Pinning::None && !run.masked && run.binding.is_none();
        let teams = wish.plans.iter().flat_map(|plan| &plan.teams);
        let teams = teams.map(|team| {
            let threads = run.team_size(&team.name).unwrap_or(team.threads as usize);
            (
                team.name.clone(),
                run.cpus(wish.machine, threads.max(1), placement),
            )
        });
        let target = Target {
            machine: wish.machine,
            teams: teams.collect::<HashMap<_, _>>(),
            threads: run.all_cpus(wish.machine, placement),
            pinning,
            mechanism: wish.mechanism,
            page_bytes: wish.machine.page_bytes as u32,
            huge_page_bytes: wish
                .machine
                .huge_page_bytes
                .unwrap_or(wish.machine.page_bytes) as u32,
            mappings_max: mappings(Path::new("/proc")) / 4,
            touch_pages_max: TOUCH_PAGES_MAX,
            touch_group: wish.touch_group,
            has_copies: false,
            later: match wish.mechanism {
                nearpage_plan::Mechanism::Bind => Later::Once,
                // Pages that are there stay where they are.
                nearpage_plan::Mechanism::Touch => Later::Never,
            },
            summary: true,
        };
        let compact = translate(wish.plans, wish.rules, &target, programs)?;
        warnings.extend(compact.warnings);

        let folder = temporary_folder().context("can't make a folder for the compact plan")?;
        let placing = Self {
            folder,
            rule_names: compact.rule_names,
            phases: compact.phases,
            exchanges: compact.exchanges,
            overrules_llvm,
            warnings,
        };
        fs::write(placing.plan_file(), compact.bytes).with_context(|| {
            format!(
                "{}: can't write the compact plan",
                placing.plan_file().display()
            )
        })?;
        Ok(placing)
    }

    /// Variables that the preload library reads, and one for LLVM's OpenMP runtime.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut variables = vec![
            (
                nearpage_wire::PLAN_VARIABLE.into(),
                self.plan_file().into_os_string(),
            ),
            (
                nearpage_wire::SUMMARY_VARIABLE.into(),
                self.summary_file().into_os_string(),
            ),
        ];
        const LLVM_AFFINITY: &str = "KMP_AFFINITY";
        if self.overrules_llvm && std::env::var_os(LLVM_AFFINITY).is_none() {
            variables.push((LLVM_AFFINITY.into(), "disabled".into()));
        }
        if let Some(policy) = launched_policy() {
            variables.push((nearpage_wire::POLICY_VARIABLE.into(), policy.into()));
        }
        variables
    }

    /// What was placed, what was not, and why: lines for people, once the command has ended.
    pub fn outcome(&self) -> Vec<String> {
        let text = fs::read_to_string(self.summary_file()).unwrap_or_default();
        let processes: Vec<ProcessSummary> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let mut lines = outcome(&processes, &self.rule_names, &self.phases);
        lines.extend(changed_places(&processes, &self.exchanges));
        lines
    }

    fn plan_file(&self) -> PathBuf {
        self.folder.join("plan")
    }

    fn summary_file(&self) -> PathBuf {
        self.folder.join("summary")
    }
}

impl Drop for Placing {
    fn drop(&mut self) {
        // Best effort: two small files in the temporary folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The memory policy that this command was launched with, as [`nearpage_wire::POLICY_VARIABLE`] has it; none
/// where it is the default, or the kernel does not say.
fn launched_policy() -> Option<String> {
    const NODES_MAX: usize = 1024;
    let mut mode: libc::c_int = 0;
    let mut nodes = [0u64; NODES_MAX / 64];
    // SAFETY: the kernel writes one number, and as many bits as are said.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &mut mode,
            nodes.as_mut_ptr(),
            NODES_MAX,
            0,
            0,
        )
    };
    let nodes: Vec<String> = (0..NODES_MAX)
        .filter(|node| nodes[node / 64] >> (node % 64) & 1 == 1)
        .map(|node| node.to_string())
        .collect();
    (asked == 0 && mode != libc::MPOL_DEFAULT).then(|| format!("{mode}:{}", nodes.join(",")))
}

fn temporary_folder() -> io::Result<PathBuf> {
    let name = |number: u32| {
        std::env::temp_dir().join(format!("nearpage-plan-{}-{number}", std::process::id()))
    };
    let make = |path: &PathBuf| fs::DirBuilder::new().mode(0o700).create(path);
    for path in (0..1000).map(name) {
        match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn mappings(proc_root: &Path) -> u32 {
    let text = fs::read_to_string(proc_root.join("sys/vm/max_map_count")).unwrap_or_default();
    text.trim().parse().unwrap_or(MAPPINGS_DEFAULT)
}

/// What the environment says about the threads of a run.
struct RunThreads {
    /// CPUs that the command may use.
    allowed: CpuList,
    /// The affinity mask leaves CPUs of the machine out.
    masked: bool,
    /// `OMP_NUM_THREADS`.
    openmp_threads: Option<usize>,
    /// CPUs of `OMP_PLACES`, place by place, where it lists them; empty where it names them.
    places: Option<Vec<CpuId>>,
    /// A variable by which the OpenMP runtime is to bind threads to CPUs of its choice.
    binding: Option<&'static str>,
}

impl RunThreads {
    fn of_this_process(machine: &Machine) -> anyhow::Result<Self> {
        let allowed = affinity_mask()?;
        let known: CpuList = machine
            .cpus()
            .as_slice()
            .iter()
            .copied()
            .filter(|&cpu| allowed.contains(cpu))
            .collect();
        let variable = |name: &str| {
            std::env::var(name)
                .ok()
                .filter(|value| !value.trim().is_empty())
        };
        Ok(Self {
            masked: known.as_slice().len() < machine.cpus().as_slice().len(),
            // A machine file of another machine: its CPUs are not ours to be masked.
            allowed: if known.as_slice().is_empty() {
                machine.cpus()
            } else {
                known
            },
            openmp_threads: variable("OMP_NUM_THREADS").and_then(|value| openmp_threads(&value)),
            places: variable("OMP_PLACES").map(|value| openmp_places(&value).unwrap_or_default()),
            binding: ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"]
                .into_iter()
                .find(|name| {
                    let value = variable(name);
                    value.is_some_and(|value| !value.trim().eq_ignore_ascii_case("false"))
                }),
        })
    }

    /// Threads of a team in this run, where that is known before it starts.
    fn team_size(&self, team: &str) -> Option<usize> {
        (team == "openmp").then(|| self.openmp_threads.unwrap_or(self.allowed.as_slice().len()))
    }

    /// How threads are laid out, and which are pinned: as was asked for, else as a plan says, else compactly where
    /// placements name threads. `OMP_PLACES` and an affinity mask win; other bindings of OpenMP's do not.
    fn pinning(&self, wish: &Wish, warnings: &mut Vec<String>) -> (ThreadPlacement, Pinning) {
        let planned = planned_threads(wish.plans, warnings);
        if let (Some(planned), Some(given)) = (planned, wish.threads)
            && given != planned
        {
            warnings.push(format!(
                "the plan is for threads that run {}: --threads {} wins, and what the plan promises does not hold",
                planned.as_str(),
                given.as_str()
            ));
        }
        let wanted = wish.threads.or(planned);
        let needs_threads = wish.plans.iter().any(Plan::names_threads)
            || wish.rules.iter().any(|rule| rule.placement.names_threads());
        let pinning = match wanted {
            Some(Threads::None) => return (ThreadPlacement::Compact, Pinning::None),
            Some(_) if wish.plans.is_empty() => Pinning::CreationOrder,
            Some(_) => Pinning::Teams,
            None if needs_threads => Pinning::Teams,
            None => return (ThreadPlacement::Compact, Pinning::None),
        };
        let placement = wanted.unwrap_or(Threads::Compact).placement();
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
                        wanted.unwrap_or(Threads::Compact).as_str()
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
                let though = match planned.filter(|_| wish.threads.is_none()) {
                    Some(planned) => format!(
                        ", though the plan is for threads that run {}",
                        planned.as_str()
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

    /// CPUs of a team of so many threads.
    fn cpus(&self, machine: &Machine, threads: usize, placement: ThreadPlacement) -> Vec<CpuId> {
        match &self.places {
            Some(places) if !places.is_empty() => {
                places.iter().copied().cycle().take(threads).collect()
            }
            _ => thread_cpus(machine, threads, placement, Some(&self.allowed)),
        }
    }

    /// CPUs of threads in order of creation, of whatever team.
    fn all_cpus(&self, machine: &Machine, placement: ThreadPlacement) -> Vec<CpuId> {
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

/// Where plans want threads to run; of several that contradict each other the first counts.
fn planned_threads(plans: &[Plan], warnings: &mut Vec<String>) -> Option<Threads> {
    let mut wanted = plans.iter().filter_map(|plan| plan.threads);
    let first = wanted.next()?;
    if let Some(other) = wanted.find(|&other| other != first) {
        warnings.push(format!(
            "one plan is for threads that run {}, another {}: all run {}",
            first.as_str(),
            other.as_str(),
            first.as_str()
        ));
    }
    Some(first.into())
}

fn affinity_mask() -> anyhow::Result<CpuList> {
    // SAFETY: zero is a valid set; the kernel fills in the set that is passed.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return Err(io::Error::last_os_error()).context("can't read the affinity mask");
        }
        set
    };
    // SAFETY: every number is within the set.
    let is_set = |cpu: &u32| unsafe { libc::CPU_ISSET(*cpu as usize, &set) };
    Ok((0..libc::CPU_SETSIZE as u32)
        .filter(is_set)
        .map(CpuId)
        .collect())
}

/// The first number of `OMP_NUM_THREADS`, which may list one per nesting level.
fn openmp_threads(value: &str) -> Option<usize> {
    value
        .split(',')
        .next()?
        .trim()
        .parse()
        .ok()
        .filter(|&threads| threads > 0)
}

/// The first CPU of each place of a list such as `{0},{1,2},{4}:4:2`; none where places are named
/// (`cores`) or written in a way that is not known here.
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

/// A line of the preload library's summary; its keys are documented in
/// `crates/preload/src/place/summary.rs`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ProcessSummary {
    pid: u32,
    /// The process only says that it began.
    began: bool,
    mechanism: String,
    bind_refused: Option<i32>,
    pins: Pins,
    rules: Vec<RuleSummary>,
    phases: Vec<PhaseSummary>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pins {
    pinned: u64,
    failed: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PhaseSummary {
    number: u32,
    begun: bool,
    changed: u64,
    left: u64,
    failed: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct RuleSummary {
    number: u32,
    objects: u64,
    pages: u64,
    bytes: u64,
    weak: u64,
    left: u64,
    waited: u64,
    switched: u64,
    switched_moved: u64,
    switched_ns: u64,
    early: u64,
    too_small: u64,
    coarsened: u64,
    no_room: u64,
    missing_node_pages: u64,
    untouched: u64,
    outside: u64,
    ignored: bool,
    failures: Vec<Failure>,
    /// Of the rule about the rest: what became of it.
    rest: Option<RestStatus>,
    /// The function that its phase begins with; none: it holds from the start.
    #[serde(skip)]
    phase: Option<String>,
    /// By what became of the rest, the processes.
    #[serde(skip)]
    processes: BTreeMap<RestStatus, BTreeSet<u32>>,
}

/// What became of the rest in a process.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
enum RestStatus {
    Set,
    Left,
    Waits,
    Failed,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Failure {
    call: String,
    errno: i32,
    count: u64,
}

impl RuleSummary {
    fn add(&mut self, pid: u32, other: &Self) {
        if let Some(status) = other.rest {
            self.processes.entry(status).or_default().insert(pid);
        }
        self.objects += other.objects;
        self.pages += other.pages;
        self.bytes += other.bytes;
        self.weak += other.weak;
        self.left += other.left;
        self.waited += other.waited;
        self.switched += other.switched;
        self.switched_moved += other.switched_moved;
        self.switched_ns += other.switched_ns;
        self.early += other.early;
        self.too_small += other.too_small;
        self.coarsened += other.coarsened;
        self.no_room += other.no_room;
        self.missing_node_pages += other.missing_node_pages;
        self.untouched += other.untouched;
        self.outside += other.outside;
        self.ignored |= other.ignored;
        for failure in &other.failures {
            let known = self
                .failures
                .iter_mut()
                .find(|one| one.call == failure.call && one.errno == failure.errno);
            match known {
                Some(known) => known.count += failure.count,
                None => self.failures.push(failure.clone()),
            }
        }
    }

    /// What was done with the objects.
    fn done(&self) -> String {
        let mut done = match self.objects {
            _ if !self.processes.is_empty() => self.rest_done(),
            0 if self.left > 0 => format!(
                "{} left {}, as planned",
                several(self.left, "object"),
                self.left_where()
            ),
            // Of those that are placed at their allocation instead there are objects.
            0 if self.waited + self.early > 0 => format!(
                "{} recognised, none placed",
                several(self.waited + self.early, "object")
            ),
            0 => "matched nothing".to_owned(),
            count => format!(
                "placed {}, {} in {}",
                several(count, "object"),
                bytes(self.bytes),
                several(self.pages, "page")
            ),
        };
        if self.switched > 0 && self.objects > 0 {
            let which = match self.switched == self.objects {
                true => String::new(),
                false => format!("{} of them ", self.switched),
            };
            done += &format!(", {which}{}", self.moved_at_switch());
        }
        done
    }

    /// What was done with the rest.
    fn rest_done(&self) -> String {
        let count = |status| self.processes.get(&status).map_or(0, BTreeSet::len) as u64;
        let words = [
            (RestStatus::Set, "policy set in"),
            (RestStatus::Left, "left to first touch, as planned, in"),
            (
                RestStatus::Waits,
                "left to first touch, as no second thread was created, in",
            ),
            (RestStatus::Failed, "could not be placed in"),
        ];
        let said = words
            .into_iter()
            .filter(|&(status, _)| count(status) > 0)
            .map(|(status, words)| {
                let switched = match status {
                    RestStatus::Set if self.switched > 0 => format!(" {}", self.moved_at_switch()),
                    _ => String::new(),
                };
                format!("{words} {}{switched}", several(count(status), "process"))
            });
        said.collect::<Vec<_>>().join("; ")
    }

    /// What becomes of objects that are not placed.
    fn left_where(&self) -> &'static str {
        match self.phase {
            Some(_) => "where placed before",
            None => "to first touch",
        }
    }

    /// What those that wait wait for.
    fn event(&self) -> String {
        match &self.phase {
            Some(function) => format!("`{}` was first executed", printable(function)),
            None => "the second thread was created".to_owned(),
        }
    }

    fn moved_at_switch(&self) -> String {
        format!(
            "when {}: {} moved, {}",
            self.event(),
            several(self.switched_moved, "page"),
            time(self.switched_ns as f64)
        )
    }

    /// What did not go as planned.
    fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        let mut tell = |count: u64, words: &str| {
            if count > 0 {
                troubles.push(format!("{count} {words}"));
            }
        };
        tell(self.weak, "recognised only by function, line and size");
        if self.objects > 0 {
            tell(self.left, &format!("left {}", self.left_where()));
        }
        match &self.phase {
            Some(function) => {
                let function = printable(function);
                tell(
                    self.waited,
                    &format!(
                        "left where placed before: `{function}` was not seen to be executed while they were there"
                    ),
                );
                tell(
                    self.early,
                    "left where placed before: pages that are there can't be moved by touching them",
                );
            }
            None => {
                tell(
                    self.waited,
                    "left to first touch: no second thread was created while they were there",
                );
                tell(
                    self.early,
                    "placed at their allocation, not when the second thread was created: pages that are there can't \
                     be moved",
                );
            }
        }
        tell(self.too_small, "too small to place (under two pages)");
        tell(
            self.no_room,
            "not placed: no mappings left, or no room to remember them",
        );
        tell(
            self.outside,
            "outside their module: the plan is of another build",
        );
        for (count, noun, words) in [
            (
                self.coarsened,
                "piece",
                "made coarser to stay within the mappings allowed",
            ),
            (
                self.missing_node_pages,
                "page",
                "for a node that is not there",
            ),
            (
                self.untouched,
                "page",
                "not touched (over the cap, or not touchable)",
            ),
        ] {
            if count > 0 {
                troubles.push(format!("{} {words}", several(count, noun)));
            }
        }
        for Failure { call, errno, count } in &self.failures {
            let reason = io::Error::from_raw_os_error(*errno);
            troubles.push(format!("{count} × {call} failed: {reason}"));
        }
        if self.ignored {
            troubles
                .push("the rule makes no sense to the preload library and was ignored".to_owned());
        }
        troubles
    }
}

fn outcome(
    processes: &[ProcessSummary],
    rule_names: &[String],
    phases: &[Option<String>],
) -> Vec<String> {
    if processes.is_empty() {
        return vec!["nothing was placed: no process of the command loaded the preload library (is it static, \
                     or setuid?)"
            .to_owned()];
    }
    let mut silent: HashMap<u32, i64> = HashMap::new();
    for process in processes {
        *silent.entry(process.pid).or_default() += if process.began { 1 } else { -1 };
    }
    let silent = silent.values().filter(|began| **began > 0).count();
    if silent > 0 && processes.iter().all(|process| process.began) {
        return vec![
            "what was placed is not known: the command ended abruptly, most likely by a signal, or could not tell"
                .to_owned(),
        ];
    }
    let mut rules: Vec<RuleSummary> = (0..rule_names.len())
        .map(|number| RuleSummary {
            phase: phases.get(number).cloned().flatten(),
            ..RuleSummary::default()
        })
        .collect();
    for process in processes {
        for rule in &process.rules {
            if let Some(sum) = rules.get_mut(rule.number as usize) {
                sum.add(process.pid, rule);
            }
        }
    }
    let mut lines = Vec::new();
    for (rule, name) in rules.iter().zip(rule_names) {
        let name = printable(name);
        let mut line = format!("{name}: {}", rule.done());
        let troubles = rule.troubles();
        if !troubles.is_empty() {
            line += &format!(" ({})", troubles.join("; "));
        }
        lines.push(line);
    }
    let mut lines = counted(lines);
    let pinned: u64 = processes.iter().map(|process| process.pins.pinned).sum();
    let failed: u64 = processes.iter().map(|process| process.pins.failed).sum();
    if pinned + failed > 0 {
        let failed = if failed > 0 {
            format!(", {failed} could not be")
        } else {
            String::new()
        };
        lines.push(format!("{} pinned{failed}", several(pinned, "thread")));
    }
    if silent > 0 {
        lines.push(format!(
            "{} ended abruptly, most likely by a signal: what was placed there is not known",
            several(silent as u64, "process")
        ));
    }
    if let Some(errno) = processes.iter().find_map(|process| process.bind_refused) {
        lines.push(format!(
            "mbind is refused here ({}): pages were touched from their nodes instead; a container needs CAP_SYS_NICE \
             or a seccomp profile that allows mbind",
            io::Error::from_raw_os_error(errno)
        ));
    } else if processes.iter().any(|process| process.mechanism == "touch") {
        lines.push("pages were touched from their nodes".to_owned());
    }
    lines
}

/// How many threads changed places with each phase that is to have them do so.
fn changed_places(processes: &[ProcessSummary], exchanges: &[Option<String>]) -> Vec<String> {
    let of_phase = |(number, function): (u32, &Option<String>)| {
        let function = printable(function.as_ref()?);
        let phases = processes.iter().flat_map(|process| &process.phases);
        let ours = || phases.clone().filter(|phase| phase.number == number);
        // Where nobody said anything, something else has been said of that.
        ours().next()?;
        if !ours().any(|phase| phase.begun) {
            return Some(format!(
                "no thread changed place: `{function}` was not seen to be executed"
            ));
        }
        let sum = |count: fn(&PhaseSummary) -> u64| ours().map(count).sum::<u64>();
        let mut line = format!(
            "{} changed place when `{function}` was first executed",
            several(sum(|phase| phase.changed), "thread")
        );
        let left = sum(|phase| phase.left);
        if left > 0 {
            line += &format!(
                ", {left} stayed, as the program or its OpenMP runtime has set their affinity since"
            );
        }
        let failed = sum(|phase| phase.failed);
        if failed > 0 {
            line += &format!(", {failed} could not be pinned there");
        }
        Some(line)
    };
    (0..).zip(exchanges).filter_map(of_phase).collect()
}

/// Lines that are the same once, where the first was, with their number: what one function allocates
/// by several ways may have a rule for each.
fn counted(lines: Vec<String>) -> Vec<String> {
    let mut counts: HashMap<String, usize> = HashMap::new();
    for line in &lines {
        *counts.entry(line.clone()).or_default() += 1;
    }
    lines
        .into_iter()
        .filter_map(|line| match counts.remove(&line)? {
            1 => Some(line),
            count => Some(format!("{count} × {line}")),
        })
        .collect()
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

    /// How threads of these plans are pinned on `amd48`, where these were asked for, and what is said of it.
    fn pinned(
        run: &RunThreads,
        plans: &[&str],
        threads: Option<Threads>,
    ) -> (ThreadPlacement, Pinning, Vec<String>) {
        let machine = nearpage_machine::preset("amd48").unwrap();
        let plan = |keys: &&str| {
            let text = format!("version = 1\n{keys}\n[program]\nexecutable = \"x\"\n");
            Plan::from_toml(&text, "p").unwrap()
        };
        let plans: Vec<Plan> = plans.iter().map(plan).collect();
        let wish = Wish {
            machine: &machine,
            plans: &plans,
            rules: &[],
            threads,
            mechanism: nearpage_plan::Mechanism::Bind,
            touch_group: 1,
        };
        let mut warnings = Vec::new();
        let (placement, pinning) = run.pinning(&wish, &mut warnings);
        (placement, pinning, warnings)
    }

    #[test]
    fn threads_run_as_asked_for_or_else_as_planned() {
        let run = || RunThreads {
            allowed: nearpage_machine::preset("amd48").unwrap().cpus(),
            masked: false,
            openmp_threads: Some(8),
            places: None,
            binding: None,
        };
        let (compact, scatter) = ("threads = \"compact\"", "threads = \"scatter\"");
        let silent = |placement, pinning| (placement, pinning, Vec::<String>::new());
        assert_eq!(
            pinned(&run(), &[""], None),
            silent(ThreadPlacement::Compact, Pinning::None)
        );
        for (plan, placement) in [
            (compact, ThreadPlacement::Compact),
            (scatter, ThreadPlacement::Scatter),
        ] {
            let wanted = silent(placement, Pinning::Teams);
            assert_eq!(pinned(&run(), &[plan], None), wanted);
            assert_eq!(pinned(&run(), &["", plan], None), wanted);
        }
        assert_eq!(
            pinned(&run(), &[scatter], Some(Threads::Scatter)),
            silent(ThreadPlacement::Scatter, Pinning::Teams)
        );
        // What was asked for wins, and so does the first plan.
        for (threads, placement, pinning) in [
            (Threads::Compact, ThreadPlacement::Compact, Pinning::Teams),
            (Threads::None, ThreadPlacement::Compact, Pinning::None),
        ] {
            let found = pinned(&run(), &[scatter], Some(threads));
            let line = format!(
                "the plan is for threads that run scatter: --threads {} wins, and what the plan promises does not hold",
                threads.as_str()
            );
            assert_eq!(found, (placement, pinning, vec![line]));
        }
        let (placement, _, warnings) = pinned(&run(), &[scatter, compact], None);
        assert_eq!(placement, ThreadPlacement::Scatter);
        assert_eq!(
            warnings,
            ["one plan is for threads that run scatter, another compact: all run scatter"]
        );
        // Who binds threads by OMP_PLACES is left to it; nothing else is.
        let placed = RunThreads {
            places: Some(vec![CpuId(6), CpuId(0)]),
            binding: Some("OMP_PROC_BIND"),
            ..run()
        };
        let (_, pinning, warnings) = pinned(&placed, &[scatter], None);
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
        let (_, pinning, warnings) = pinned(&bound, &[scatter], None);
        assert_eq!(pinning, Pinning::Teams);
        assert_eq!(
            warnings,
            [
                "OMP_PROC_BIND is set, but threads are pinned over it, scatter; --threads none leaves them to it"
            ]
        );
    }

    #[test]
    fn placements_that_begin_later_are_told_apart() {
        let said = |counters: &str| {
            let line =
                format!(r#"{{"pid":1,"mechanism":"bind","rules":[{{"number":0{counters}}}]}}"#);
            outcome(
                &[serde_json::from_str(&line).unwrap()],
                &["a".to_owned()],
                &[],
            )
            .join("\n")
        };
        let placed = r#","objects":2,"pages":512,"bytes":2097152"#;
        assert_eq!(
            said(&format!(
                r#"{placed},"switched":2,"switched_moved":384,"switched_ns":5300000"#
            )),
            "a: placed 2 objects, 2 MiB in 512 pages, when the second thread was created: 384 pages moved, 5.3 ms"
        );
        assert_eq!(
            said(&format!(
                r#"{placed},"switched":1,"switched_moved":1,"switched_ns":42000,"waited":3"#
            )),
            "a: placed 2 objects, 2 MiB in 512 pages, 1 of them when the second thread was created: 1 page moved, 42 µs \
             (3 left to first touch: no second thread was created while they were there)"
        );
        assert_eq!(
            said(r#","waited":1"#),
            "a: 1 object recognised, none placed (1 left to first touch: no second thread was created while they \
             were there)"
        );
        assert_eq!(
            said(&format!(r#"{placed},"early":2"#)),
            "a: placed 2 objects, 2 MiB in 512 pages (2 placed at their allocation, not when the second thread was \
             created: pages that are there can't be moved)"
        );
        assert_eq!(
            said(r#","left":2"#),
            "a: 2 objects left to first touch, as planned"
        );
    }

    #[test]
    fn placements_of_phases_are_told_apart() {
        let said = |counters: &str| {
            let line =
                format!(r#"{{"pid":1,"mechanism":"bind","rules":[{{"number":0{counters}}}]}}"#);
            let processes = [serde_json::from_str(&line).unwrap()];
            let phases = [Some("f._omp_fn.0".to_owned())];
            outcome(&processes, &["a from f on".to_owned()], &phases).join("\n")
        };
        let placed = r#","objects":2,"pages":512,"bytes":2097152"#;
        assert_eq!(
            said(&format!(
                r#"{placed},"switched":1,"switched_moved":384,"switched_ns":5300000,"waited":1"#
            )),
            "a from f on: placed 2 objects, 2 MiB in 512 pages, 1 of them when `f._omp_fn.0` was first executed: 384 \
             pages moved, 5.3 ms (1 left where placed before: `f._omp_fn.0` was not seen to be executed while they \
             were there)"
        );
        assert_eq!(
            said(r#","left":1"#),
            "a from f on: 1 object left where placed before, as planned"
        );
        assert_eq!(
            said(r#","early":1"#),
            "a from f on: 1 object recognised, none placed (1 left where placed before: pages that are there can't \
             be moved by touching them)"
        );
    }

    #[test]
    fn threads_that_change_places_are_told_by_phase() {
        let said = |phases: &[&str]| {
            let line = |phases: &&str| format!(r#"{{"pid":1,"phases":[{phases}]}}"#);
            let lines = phases.iter().map(line);
            let processes: Vec<ProcessSummary> = lines
                .map(|line| serde_json::from_str(&line).unwrap())
                .collect();
            changed_places(&processes, &[None, Some("f._omp_fn.0".to_owned())]).join("\n")
        };
        let all = r#"{"number":1,"begun":true,"changed":3,"left":0,"failed":0}"#;
        let when = "changed place when `f._omp_fn.0` was first executed";
        assert_eq!(said(&[all]), format!("3 threads {when}"));
        let some = r#"{"number":1,"begun":true,"changed":1,"left":2,"failed":1}"#;
        assert_eq!(
            said(&[some]),
            format!(
                "1 thread {when}, 2 stayed, as the program or its OpenMP runtime has set their affinity since, 1 could not be \
                 pinned there"
            )
        );
        let none = r#"{"number":1,"begun":false,"changed":0,"left":0,"failed":0}"#;
        assert_eq!(said(&[all, none, all]), format!("6 threads {when}"));
        assert_eq!(
            said(&[none, none]),
            "no thread changed place: `f._omp_fn.0` was not seen to be executed"
        );
        assert_eq!(said(&["", r#"{"number":0,"begun":true}"#]), "");
    }

    #[test]
    fn what_became_of_the_rest_is_told_by_processes() {
        let said = |processes: &[(u32, &str)]| {
            let line = |&(pid, rest): &(u32, &str)| {
                let line = format!(
                    r#"{{"pid":{pid},"mechanism":"bind","rules":[{{"number":0,{rest}}}]}}"#
                );
                serde_json::from_str(&line).unwrap()
            };
            let processes: Vec<ProcessSummary> = processes.iter().map(line).collect();
            outcome(&processes, &["rest".to_owned()], &[]).join("\n")
        };
        let set = r#""rest":"set""#;
        assert_eq!(said(&[(1, set)]), "rest: policy set in 1 process");
        assert_eq!(
            said(&[(1, set), (2, set), (1, set)]),
            "rest: policy set in 2 processes",
            "one that became another program is one"
        );
        assert_eq!(
            said(&[(
                1,
                r#""rest":"set","switched":1,"switched_moved":7,"switched_ns":42000"#
            )]),
            "rest: policy set in 1 process when the second thread was created: 7 pages moved, 42 µs"
        );
        assert_eq!(
            said(&[
                (1, r#""rest":"waits""#),
                (2, set),
                (
                    3,
                    r#""rest":"failed","failures":[{"call":"set_mempolicy","errno":1,"count":1}]"#
                )
            ]),
            "rest: policy set in 1 process; left to first touch, as no second thread was created, in 1 process; could \
             not be placed in 1 process (1 × set_mempolicy failed: Operation not permitted (os error 1))"
        );
        assert_eq!(
            said(&[(1, r#""rest":"left""#)]),
            "rest: left to first touch, as planned, in 1 process"
        );
    }

    #[test]
    fn outcome_adds_up_processes_and_names_failures() {
        let line = r#"{"pid":1,"mechanism":"bind","bind_refused":null,"pins":{"pinned":3,"failed":1},
            "rules":[{"number":0,"objects":1,"pages":256,"bytes":1048576},
                     {"number":1,"failures":[{"call":"mbind","errno":12,"count":2}]}]}"#;
        let process = || serde_json::from_str(line).unwrap();
        let names = ["a".to_owned(), "b".to_owned()];
        let lines = outcome(&[process(), process()], &names, &[]);
        assert_eq!(lines[0], "a: placed 2 objects, 2 MiB in 512 pages");
        assert!(
            lines[1].starts_with("b: matched nothing (4 × mbind failed: Cannot allocate memory"),
            "{lines:?}"
        );
        assert_eq!(lines[2], "6 threads pinned, 2 could not be");
        let alike = ["c", "a", "c", "c"].map(str::to_owned);
        let lines = outcome(&[process()], &alike, &[]);
        assert_eq!(lines[0], "c: placed 1 object, 1 MiB in 256 pages");
        assert_eq!(lines[2], "2 × c: matched nothing");
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(outcome(&[], &names, &[])[0].starts_with("nothing was placed"));
        let began = |pid| ProcessSummary {
            pid,
            began: true,
            ..ProcessSummary::default()
        };
        let lines = outcome(&[began(1)], &names, &[]);
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("ended abruptly"), "{lines:?}");
        let lines = outcome(&[began(1), began(2), process()], &names, &[]);
        assert_eq!(lines[0], "a: placed 1 object, 1 MiB in 256 pages");
        assert!(
            lines[3].starts_with("1 process ended abruptly"),
            "{lines:?}"
        );
        let lines = outcome(&[began(1), process()], &names, &[]);
        assert!(!lines.concat().contains("abruptly"), "{lines:?}");
    }
}
