//! Hands a plan to the preload library: who is pinned where, how large teams are in this run, the
//! compact form on disk, and what the library says of it at the end.

mod outcome;
mod rule;
mod summary;
mod threads;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nearpage_machine::Machine;
use nearpage_plan::{Later, Mechanism, PlaceRule, Plan, ProgramImage, Target, translate};

use self::outcome::{changed_places, outcome};
use self::summary::ProcessSummary;
use self::threads::RunThreads;
use crate::arguments::Threads;

/// Linux's default of `vm.max_map_count`.
const MAPPINGS_DEFAULT: u32 = 65_530;
/// `touch`: pages touched at start at the most (4 GiB of 4 KiB pages), so that sparse arrays stay so.
const TOUCH_PAGES_MAX: u64 = 1 << 20;

/// How a plan is to be enforced.
pub struct Wish<'a> {
    pub machine: &'a Machine,
    pub plans: &'a [Plan],
    pub rules: &'a [PlaceRule],
    /// What was asked for; nothing: what the plan needs.
    pub threads: Option<Threads>,
    pub mechanism: Mechanism,
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
            mechanism: Mechanism::Bind,
            touch_group: 1,
        };
        Self::new(&wish, &[])
    }

    /// Translates plans and rules for this machine and this run.
    pub fn new(wish: &Wish, programs: &[ProgramImage]) -> anyhow::Result<Self> {
        let run = RunThreads::of_this_process(wish.machine)?;
        let mut warnings = Vec::new();
        let (placement, pinning) = run.pinning(wish, &mut warnings);
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
                Mechanism::Bind => Later::Once,
                // Pages that are there stay where they are.
                Mechanism::Touch => Later::Never,
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
            overrules_llvm: run.overrules_llvm(pinning),
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
