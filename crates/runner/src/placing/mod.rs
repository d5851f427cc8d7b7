//! Hands plans to the preload library: pins of threads, sizes of teams in this run, the compact plan on disk, and the
//! library's summary at the end.

mod outcome;
mod rule;
mod summary;
mod threads;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use nearpage_files::TemporaryFolder;
use nearpage_machine::{Machine, ThreadPlacement};
use nearpage_measurement::available_bytes;
use nearpage_plan::{
    LatePlacement, Mechanism, Pinning, PlaceRule, Plan, ProgramImage, Target, translate,
};

pub use self::outcome::{Placed, PlacedRule};
pub use self::threads::openmp_threads_to_set;

use self::outcome::{changed_places, nothing_placed, outcome};
use self::summary::ProcessSummary;
use self::threads::RunThreads;
use crate::Environment;
use crate::error::{Error, IoContext, NO_FOLDER};

/// Linux's default of `vm.max_map_count`.
const MAPPINGS_DEFAULT: u32 = 65_530;
/// File of the compact plan, in a temporary folder.
const PLAN_FILE: &str = "plan";
/// Variable that makes LLVM's OpenMP runtime leave thread affinities alone.
const LLVM_AFFINITY: &str = "KMP_AFFINITY";
/// With `touch`, a process touches at most this part of the memory that is available when it starts. Otherwise, sparse
/// arrays would fill the memory.
const TOUCH_PART: u64 = 4;

/// Options for enforcing plans.
#[derive(Clone, Copy, Debug)]
pub struct PlacingOptions<'a> {
    /// Machine on which the command runs.
    pub machine: &'a Machine,
    /// Plans, one for each program.
    pub plans: &'a [Plan],
    /// Placements by hand, which take precedence over the plans.
    pub rules: &'a [PlaceRule],
    /// Thread layout; `None`: the layout that the plans need.
    pub threads: Option<ThreadPlacement>,
    /// Mechanism that puts pages on their nodes.
    pub mechanism: Mechanism,
    /// With [`Mechanism::Touch`]: number of heap objects for which the nodes are visited once.
    pub touch_group: u32,
}

impl<'a> PlacingOptions<'a> {
    /// No placements and no pins; memory policies as the mechanism.
    pub fn new(machine: &'a Machine) -> Self {
        Self {
            machine,
            plans: &[],
            rules: &[],
            threads: None,
            mechanism: Mechanism::Bind,
            touch_group: 1,
        }
    }
}

/// A compact plan on disk, for as long as the command runs.
#[derive(Debug)]
pub struct Placing {
    folder: TemporaryFolder,
    rule_names: Vec<String>,
    /// By number of the rule: the function with which the rule's phase begins.
    phases: Vec<Option<String>>,
    /// By number of the phase: the function at which the phase's threads change places.
    exchanges: Vec<Option<String>>,
    /// Keep LLVM's OpenMP runtime from setting affinities after the threads have been pinned?
    overrules_llvm: bool,
    /// The message if no process reports that it has used the plan; `None` if there is nothing to place and nothing to pin.
    unused: Option<String>,
    /// Messages to print before the command runs.
    pub warnings: Vec<String>,
}

impl Placing {
    /// Pins threads in order of creation and places nothing.
    ///
    /// # Errors
    /// Those of [`Placing::new`], and a machine that cannot be read.
    pub fn pins_only(threads: ThreadPlacement) -> Result<Self, Error> {
        let machine = Machine::local(Path::new("/sys"))?;
        let options = PlacingOptions {
            threads: Some(threads),
            ..PlacingOptions::new(&machine)
        };
        Self::new(&options, &[])
    }

    /// Translates plans and rules for this machine and this run.
    ///
    /// # Errors
    /// Plans or rules contradict the machine or the programs, or the temporary folder has no room.
    pub fn new(options: &PlacingOptions<'_>, programs: &[ProgramImage]) -> Result<Self, Error> {
        let run = RunThreads::of_this_process(options.machine)?;
        let mut warnings = Vec::new();
        let (placement, pinning) = run.pinning(options, &mut warnings);
        let teams = options.plans.iter().flat_map(|plan| &plan.teams);
        let teams = teams.map(|team| {
            let cpus = run.team_cpus(options.machine, team, placement);
            (team.name.clone(), cpus)
        });
        let target = Target {
            machine: options.machine,
            teams: teams.collect::<HashMap<_, _>>(),
            threads: run.all_cpus(options.machine, placement),
            pinning,
            mechanism: options.mechanism,
            page_bytes: options.machine.page_bytes as u32,
            huge_page_bytes: options
                .machine
                .huge_page_bytes
                .unwrap_or(options.machine.page_bytes) as u32,
            mappings_max: mappings(Path::new("/proc")) / 4,
            touch_pages_max: touch_pages_max(options.machine.page_bytes),
            touch_group: options.touch_group,
            has_copies: false,
            later: match options.mechanism {
                Mechanism::Bind => LatePlacement::Once,
                // Touching cannot move existing pages.
                Mechanism::Touch => LatePlacement::Never,
            },
            summary: true,
        };
        let compact = translate(options.plans, options.rules, &target, programs)?;
        warnings.extend(compact.warnings);

        let executables: Vec<&str> = match options.rules {
            [] => options
                .plans
                .iter()
                .map(|plan| plan.program.executable.as_str())
                .collect(),
            _ => Vec::new(),
        };
        let places_or_pins = !compact.rule_names.is_empty() || pinning != Pinning::None;
        let folder = TemporaryFolder::new("plan").context(NO_FOLDER)?;
        let plan_file = folder.path().join(PLAN_FILE);
        let placing = Self {
            folder,
            rule_names: compact.rule_names,
            phases: compact.phases,
            exchanges: compact.exchanges,
            overrules_llvm: run.overrules_llvm(pinning),
            unused: places_or_pins.then(|| nothing_placed(&executables)),
            warnings,
        };
        fs::write(&plan_file, compact.bytes).at(&plan_file, "can't write the compact plan")?;
        Ok(placing)
    }

    /// Variables for the preload library, and a variable for LLVM's OpenMP runtime.
    pub fn environment(&self) -> Environment {
        let has_llvm_affinity = std::env::var_os(LLVM_AFFINITY).is_some();
        self.variables(has_llvm_affinity, launched_policy())
    }

    /// `has_llvm_affinity`: the command inherits a value for LLVM's variable. `policy`: the memory policy that the
    /// command inherits.
    fn variables(&self, has_llvm_affinity: bool, policy: Option<String>) -> Environment {
        let mut variables = vec![
            (
                nearpage_wire::PLAN_VARIABLE.into(),
                self.folder.path().join(PLAN_FILE).into_os_string(),
            ),
            (
                nearpage_wire::SUMMARY_VARIABLE.into(),
                self.summary_file().into_os_string(),
            ),
        ];
        if self.overrules_llvm && !has_llvm_affinity {
            variables.push((LLVM_AFFINITY.into(), "disabled".into()));
        }
        if let Some(policy) = policy {
            variables.push((nearpage_wire::POLICY_VARIABLE.into(), policy.into()));
        }
        variables
    }

    /// Text on the placement, available after the command has ended.
    pub fn outcome(&self) -> Vec<String> {
        self.placed().words
    }

    /// Result of the placement, available after the command has ended.
    pub fn placed(&self) -> Placed {
        let text = fs::read_to_string(self.summary_file()).unwrap_or_default();
        let processes: Vec<ProcessSummary> = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect();
        let words = if processes.is_empty() {
            self.unused.iter().cloned().collect()
        } else {
            let mut words = outcome(&processes, &self.rule_names, &self.phases);
            words.extend(changed_places(&processes, &self.exchanges));
            words
        };
        Placed::new(&processes, &self.rule_names, &self.phases, words)
    }

    fn summary_file(&self) -> PathBuf {
        self.folder.path().join("summary")
    }
}

/// The memory policy that this process inherited, in the form of [`nearpage_wire::POLICY_VARIABLE`]; `None` for the
/// default policy, or if the kernel refuses to say.
fn launched_policy() -> Option<String> {
    const NODES_MAX: usize = 1024;
    let mut mode: libc::c_int = 0;
    let mut nodes = [0u64; NODES_MAX / 64];
    // SAFETY: the kernel writes one number, and at most `NODES_MAX` bits into `nodes`.
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

fn mappings(proc_root: &Path) -> u32 {
    let text = fs::read_to_string(proc_root.join("sys/vm/max_map_count")).unwrap_or_default();
    text.trim().parse().unwrap_or(MAPPINGS_DEFAULT)
}

/// Limit of the number of pages that a process touches; 0 if the available memory is unknown.
fn touch_pages_max(page_bytes: u64) -> u64 {
    available_bytes(Path::new("/sys")).unwrap_or(0) / TOUCH_PART / page_bytes.max(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use nearpage_machine::preset;

    use super::*;

    fn variable(placing: &Placing, name: &str) -> Option<PathBuf> {
        let environment = placing.environment();
        let found = environment.into_iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.into())
    }

    #[test]
    fn the_command_gets_a_plan_that_goes_with_the_placing() {
        let placing = Placing::pins_only(ThreadPlacement::Compact).unwrap();
        let plan = variable(&placing, nearpage_wire::PLAN_VARIABLE).unwrap();
        let summary = variable(&placing, nearpage_wire::SUMMARY_VARIABLE).unwrap();
        assert!(fs::metadata(&plan).unwrap().len() > 0);
        let folder = plan.parent().unwrap().to_owned();
        assert_eq!(summary.parent(), Some(folder.as_path()));
        let mode = fs::metadata(&folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "nobody else may write a plan");
        // Two placements have different folders.
        let other = Placing::pins_only(ThreadPlacement::Scatter).unwrap();
        assert_ne!(variable(&other, nearpage_wire::PLAN_VARIABLE), Some(plan));
        drop(placing);
        assert!(!folder.exists());
    }

    #[test]
    fn llvm_is_kept_from_affinities_unless_it_was_told_some() {
        let mut placing = placing(&[]);
        let names = |placing: &Placing, has_llvm_affinity, policy| {
            let variables = placing.variables(has_llvm_affinity, policy).into_iter();
            let names = variables.map(|(name, _)| name.into_string().unwrap());
            names.collect::<Vec<_>>()
        };
        let plan_and_summary = [
            nearpage_wire::PLAN_VARIABLE,
            nearpage_wire::SUMMARY_VARIABLE,
        ];
        assert_eq!(names(&placing, false, None), plan_and_summary);
        placing.overrules_llvm = true;
        assert_eq!(names(&placing, true, None), plan_and_summary);
        let all = [LLVM_AFFINITY, nearpage_wire::POLICY_VARIABLE];
        let inherited = Some("1:0".to_owned());
        assert_eq!(
            names(&placing, false, inherited),
            [plan_and_summary, all].concat()
        );
    }

    #[test]
    fn threads_are_left_alone_where_nothing_needs_pins() {
        let machine = preset("opteron-4").unwrap();
        let placing = Placing::new(&PlacingOptions::new(&machine), &[]).unwrap();
        assert!(!placing.overrules_llvm);
        assert_eq!(placing.warnings, Vec::<String>::new());
    }

    #[test]
    fn outcome_of_a_plan_is_read_from_the_summary() {
        let placing = placing(&["a"]);
        assert!(placing.outcome()[0].starts_with("nothing was placed"));
        let lines = r#"{"pid":1,"mechanism":"bind","rules":[{"number":0,"objects":1,"pages":2,"bytes":8192}]}
            not a line of the library's"#;
        fs::write(placing.summary_file(), lines).unwrap();
        assert_eq!(placing.outcome(), ["a: placed 1 object, 8 KiB in 2 pages"]);
        let placed = placing.placed();
        let rule = PlacedRule {
            name: "a".to_owned(),
            objects: 1,
            pages: 2,
            placed_bytes: 8192,
            ..PlacedRule::default()
        };
        assert_eq!(placed.rules, [rule]);
        assert_eq!((placed.processes, placed.processes_unknown), (1, 0));
    }

    fn placing(rules: &[&str]) -> Placing {
        Placing {
            folder: TemporaryFolder::new("plan").unwrap(),
            rule_names: rules.iter().map(|&name| name.to_owned()).collect(),
            phases: Vec::new(),
            exchanges: Vec::new(),
            overrules_llvm: false,
            unused: Some(nothing_placed(&[])),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn the_limit_on_mappings_has_the_kernels_default() {
        let proc_root = tempfile::tempdir().unwrap();
        assert_eq!(mappings(proc_root.path()), MAPPINGS_DEFAULT);
        fs::create_dir_all(proc_root.path().join("sys/vm")).unwrap();
        fs::write(proc_root.path().join("sys/vm/max_map_count"), "262144\n").unwrap();
        assert_eq!(mappings(proc_root.path()), 262_144);
    }
}
