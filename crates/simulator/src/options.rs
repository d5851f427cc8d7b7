//! A simulation job: the policy ([`SimulatedPolicy`]), its options, and where pages and threads start.

mod effects;

use std::borrow::Cow;
use std::sync::Arc;

use nearpage_online::{Initial, Parameter, ParameterError};

use self::effects::{OF_PAGES, OF_STEPS, OF_VIEW};
use crate::policy::{Home, SimulatedPolicy};
use crate::schedule::Schedule;

/// References that a policy is shown (Verghese §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Information {
    /// Cache misses.
    #[default]
    Cache,
    /// TLB misses.
    Tlb,
    /// Loads that take at least a given number of cycles, as sampling hardware reports them (Marathe §3.1, §7).
    Loads,
    /// Stall time, as a clock samples it: one observation per stall time of `every` unloaded remote misses. A miss that
    /// takes longer is seen more often.
    Clock,
    /// The source that the policy itself requests: samples, or hinting faults.
    ByPolicy,
}

impl Information {
    /// Names of each source: for all of its events, and for samples. Sources that are always sampled have one name.
    const WORDS: [(Self, &'static str, &'static str); 5] = [
        (Self::Cache, "cache", "sampled-cache"),
        (Self::Tlb, "tlb", "sampled-tlb"),
        (Self::Loads, "loads", "loads"),
        (Self::Clock, "clock", "clock"),
        (Self::ByPolicy, "policy", "policy"),
    ];

    /// The source with this name, and the sampling period (one event in that many is shown).
    fn from_word(word: &str) -> Option<(Self, u32)> {
        // Earlier versions called the policy's own source `asked`.
        let word = if word == "asked" { "policy" } else { word };
        let (information, all, _) = Self::WORDS
            .into_iter()
            .find(|(_, all, sampled)| word == *all || word == *sampled)?;
        let in_full =
            word == all && matches!(information, Self::Cache | Self::Tlb | Self::ByPolicy);
        Some((information, if in_full { 1 } else { EVERY_SAMPLED }))
    }

    fn word(self, every: u32) -> &'static str {
        let (_, all, sampled) = Self::WORDS[self as usize];
        if every == 1 { all } else { sampled }
    }
}

/// CPUs that must flush their TLB when a page moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// All CPUs that run a thread (IRIX, Verghese §8).
    #[default]
    All,
    /// CPUs that have used the page since it last moved (the improvement of Verghese §8.2).
    Mapping,
}

/// Hardware that copies pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copy {
    /// The CPU; the cost is the machine's `copy_ns`.
    #[default]
    Cpu,
    /// The directory controller; the cost is the machine's hardware copy time (Verghese §8.2).
    Hardware,
}

/// Pages that rules and policies place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// All pages.
    #[default]
    All,
    /// Pages of the heap, of the program's own mappings and of its own static data that several threads use: ARS
    /// distributes, monitors and moves these (§3, §4). Other pages stay on the node of their first touch, and policies
    /// are not shown their misses.
    Shared,
}

/// Options of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// References that the policy is shown.
    pub information: Information,
    /// Sampling period: the policy is shown one event in `every`.
    pub every: u32,
    /// For [`Information::Loads`]: minimum number of cycles of a load that is shown.
    pub latency_cycles_min: u64,
    /// Fixed cost of each page move, in place of the machine's cost.
    pub move_ns: Option<u64>,
    /// Pages that are placed.
    pub pages: Pages,
    /// CPUs that flush their TLBs.
    pub flush: Flush,
    /// Hardware that copies pages.
    pub copy: Copy,
    /// Number of hot pages after which the CPU is interrupted to move them, where moves are costed by step…
    pub batch_pages: u64,
    /// …or the time since the first hot page, whichever comes first (Verghese §8.1).
    pub batch_ns: u64,
    /// Total number of pages of memory, besides each node's own limit, to model memory pressure (Verghese Table 7).
    pub memory_pages: Option<u64>,
    /// Time slice of a thread where others wait for its CPU.
    pub slice_ns: u64,
    /// Seed of a policy's random draws.
    pub seed: u64,
    /// Maximum number of page movements to keep; 0: neither movements nor a timeline are kept. The results do not
    /// depend on this option.
    pub movements_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        let [
            _,
            move_ns,
            batch_pages,
            batch_ns,
            _,
            slice_ns,
            seed,
            latency_cycles_min,
        ] = NUMBERS.map(|parameter| parameter.default);
        debug_assert_eq!(move_ns, u64::MAX, "none");
        Self {
            information: Information::default(),
            every: 1,
            latency_cycles_min,
            move_ns: None,
            pages: Pages::default(),
            flush: Flush::default(),
            copy: Copy::default(),
            batch_pages,
            batch_ns,
            memory_pages: None,
            slice_ns,
            seed,
            movements_max: 0,
        }
    }
}

/// Default sampling period of sampled sources (Verghese §7.2).
pub const EVERY_SAMPLED: u32 = 10;

/// Options with a numeric value.
pub const NUMBERS: [Parameter; 8] = [
    Parameter::new(
        "every",
        1,
        1..=1_000_000,
        "the policy sees one reference in so many; 10 for sampled sources",
    ),
    Parameter::new(
        "move_ns",
        u64::MAX,
        0..=1_000_000_000_000,
        "cost of moving a page, in place of the machine's",
    ),
    Parameter::new(
        "batch_pages",
        5,
        1..=1_000_000,
        "hot pages to an interrupt, where the machine has steps",
    ),
    Parameter::new(
        "batch_ns",
        500_000,
        0..=1_000_000_000_000,
        "the longest that a hot page waits for others",
    ),
    Parameter::new(
        "memory_pages",
        u64::MAX,
        1..=u64::MAX,
        "pages of memory in all",
    ),
    Parameter::new(
        "slice_ns",
        10_000_000,
        1..=1_000_000_000_000,
        "time slice of threads that share a CPU",
    ),
    Parameter::new("seed", 0, 0..=u64::MAX, "start of random draws"),
    Parameter::new(
        "min_latency",
        128,
        0..=1_000_000,
        "cycles that a load must take to be sampled, where source is loads",
    ),
];

/// One simulation to make.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The policy.
    pub policy: SimulatedPolicy,
    /// Rule for the first touch of pages; absent: first touch, or the rule of a static policy.
    pub initial: Option<Initial>,
    /// How the policy is run.
    pub options: Options,
    /// Names of the options that were set, to report options without effect.
    given: Vec<&'static str>,
    /// Placement of threads over time.
    pub schedule: Arc<Schedule>,
}

impl Job {
    /// A job with the published default options.
    pub fn new(policy: SimulatedPolicy) -> Self {
        let (information, every) = match policy {
            // `auto` is designed for sampled misses.
            SimulatedPolicy::Auto(_) => (Information::Cache, EVERY_SAMPLED),
            _ if policy.requests_samples() => (Information::ByPolicy, 1),
            _ => (Information::Cache, 1),
        };
        Self {
            policy,
            initial: None,
            options: Options {
                information,
                every,
                ..Options::default()
            },
            given: Vec::new(),
            schedule: Arc::default(),
        }
    }

    /// The job with the defaults for a machine with `nodes` nodes.
    pub(crate) fn on(&self, nodes: usize) -> Cow<'_, Self> {
        let SimulatedPolicy::PushPull(monitor, parameters) = self.policy else {
            return Cow::Borrowed(self);
        };
        Cow::Owned(Self {
            policy: SimulatedPolicy::PushPull(monitor, parameters.on(monitor, nodes)),
            ..self.clone()
        })
    }

    /// Sets a parameter of the policy or an option; `false`: the job has no parameter or option of that name.
    ///
    /// # Errors
    /// The value is out of range or unknown.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        let known = OF_STEPS
            .iter()
            .chain(&OF_VIEW)
            .chain(&OF_PAGES)
            .find(|known| **known == name);
        self.given.extend(known);
        let options = &mut self.options;
        if let Some(parameter) = NUMBERS.iter().find(|parameter| parameter.name == name) {
            let value = parameter.read(value)?;
            match name {
                "every" => options.every = value as u32,
                "move_ns" => options.move_ns = Some(value),
                "batch_pages" => options.batch_pages = value,
                "batch_ns" => options.batch_ns = value,
                "memory_pages" => options.memory_pages = Some(value),
                "slice_ns" => options.slice_ns = value,
                "min_latency" => options.latency_cycles_min = value,
                _ => options.seed = value,
            }
            return Ok(true);
        }
        let one_of =
            |words: &str| ParameterError(format!("{name}={value}: expected one of {words}"));
        match name {
            "source" if matches!(self.policy, SimulatedPolicy::KernelBalancing(_)) => {
                // The kernel sees nothing but its own hinting faults.
                return Ok(false);
            }
            "source" => {
                let requests_samples = self.policy.requests_samples();
                (options.information, options.every) = Information::from_word(value)
                    .filter(|found| requests_samples || found.0 != Information::ByPolicy)
                    .ok_or_else(|| {
                        one_of(match requests_samples {
                            true => "cache, sampled-cache, tlb, sampled-tlb, loads, clock, policy",
                            false => "cache, sampled-cache, tlb, sampled-tlb, loads, clock",
                        })
                    })?;
            }
            "flush" => {
                options.flush = match value {
                    "all" => Flush::All,
                    "mapping" => Flush::Mapping,
                    _ => return Err(one_of("all, mapping")),
                };
            }
            "pages" => {
                options.pages = match value {
                    "all" => Pages::All,
                    "shared" => Pages::Shared,
                    _ => return Err(one_of("all, shared")),
                };
            }
            "copy" => {
                options.copy = match value {
                    "cpu" => Copy::Cpu,
                    "hardware" => Copy::Hardware,
                    _ => return Err(one_of("cpu, hardware")),
                };
            }
            _ => return self.policy.set(name, value),
        }
        Ok(true)
    }

    /// Every parameter that the result depends on, as name and value.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = vec![("initial", self.start().to_owned())];
        if self.policy.is_online() {
            parameters.extend(self.policy.values());
            let Options {
                information,
                every,
                latency_cycles_min,
                flush,
                copy,
                batch_pages,
                batch_ns,
                seed,
                ..
            } = self.options;
            let every = match self.policy {
                SimulatedPolicy::Homes { .. } => EVERY_SAMPLED,
                _ => every,
            };
            parameters.push(("source", information.word(every).to_owned()));
            parameters.push(("every", every.to_string()));
            if information == Information::Loads {
                parameters.push(("min_latency", latency_cycles_min.to_string()));
            }
            parameters.push((
                "flush",
                if flush == Flush::All {
                    "all"
                } else {
                    "mapping"
                }
                .to_owned(),
            ));
            parameters.push((
                "copy",
                if copy == Copy::Cpu { "cpu" } else { "hardware" }.to_owned(),
            ));
            parameters.push(("batch_pages", batch_pages.to_string()));
            parameters.push(("batch_ns", batch_ns.to_string()));
            parameters.push(("seed", seed.to_string()));
        }
        let Options {
            move_ns,
            memory_pages,
            slice_ns,
            ..
        } = self.options;
        if self.options.pages == Pages::Shared {
            parameters.push(("pages", "shared".to_owned()));
        }
        parameters.extend(move_ns.map(|ns| ("move_ns", ns.to_string())));
        parameters.extend(memory_pages.map(|pages| ("memory_pages", pages.to_string())));
        parameters.push(("slice_ns", slice_ns.to_string()));
        if !self.schedule.file.is_empty() {
            parameters.push(("schedule", self.schedule.file.clone()));
        }
        parameters
    }

    /// Bytes of memory per page that a replay on `nodes` nodes takes.
    pub(crate) fn bytes_a_page(&self, nodes: u64) -> u64 {
        let entry = 16;
        let mapped = if self.options.flush == Flush::Mapping {
            8
        } else {
            0
        };
        let used = if self.options.memory_pages.is_some() {
            8
        } else {
            0
        };
        // The page's object while its users are counted, and whether the page is shared.
        let entry = entry
            + if self.options.pages == Pages::Shared {
                17
            } else {
                0
            };
        // Misses by node (2 bytes each); CPUs that mapped the page; copies that were referenced.
        let moved = entry + 2 * nodes + mapped + used;
        match self.policy {
            SimulatedPolicy::Static(_) => entry,
            // The home of the page.
            SimulatedPolicy::BlockNaive => entry + 4,
            // Counts by node, then the home.
            SimulatedPolicy::PostFacto => entry + 4 + 4 * nodes,
            // The home, for each phase the home and the change, and the misses by node.
            SimulatedPolicy::Homes { ref plan, .. } => {
                let phases = 2 * size_of::<Option<Home>>() as u64 * plan.phases.len() as u64;
                // As for `auto` below.
                let online_migration = plan.online_migration.map_or(0, |_| 6 + 2 * nodes);
                moved + 4 + 4 * nodes + phases + online_migration
            }
            // A row of counters, padded to 32 bytes.
            SimulatedPolicy::MigrateReplicate { .. } => {
                moved + (8 + 2 * nodes).next_multiple_of(32)
            }
            SimulatedPolicy::ReplicateOnFirstTouch => moved + 1,
            // Place and home, counts by node, migrations.
            SimulatedPolicy::PushPull(..) => moved + 24 + 4 * nodes + 4,
            // Row of its samples, collapses, application and flag of its replication, stale copies.
            SimulatedPolicy::Carrefour(_) => moved + 4 + 4 + 2 + 1 + 8,
            // State, counts by node.
            SimulatedPolicy::Auto(_) => moved + 6 + 2 * nodes,
            // Entry in its process's list of pages, last fault, unmapped flags of the policy and the replay.
            SimulatedPolicy::KernelBalancing(_) => moved + 16 + 12 + 2,
        }
    }

    /// The rule for the first touch of pages.
    pub(crate) fn rule(&self) -> Initial {
        match self.policy {
            SimulatedPolicy::Static(rule) => rule,
            _ => self.initial.unwrap_or_default(),
        }
    }

    fn start(&self) -> &str {
        match &self.policy {
            SimulatedPolicy::PostFacto => "post-facto",
            SimulatedPolicy::BlockNaive => "block-naive",
            _ => self.rule().as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_by_name() {
        let mut job = Job::new(SimulatedPolicy::from_name("migrate-replicate").expect("policy"));
        for (name, value) in [
            ("trigger", "64"),
            ("source", "sampled-cache"),
            ("every", "20"),
            ("copy", "hardware"),
        ] {
            assert_eq!(job.set(name, value), Ok(true), "{name}");
        }
        assert_eq!(job.set("triger", "64"), Ok(false));
        assert_eq!(
            job.set("flush", "some").expect_err("word").0,
            "flush=some: expected one of all, mapping"
        );
        let parameters = job.parameters();
        for expected in [("trigger", "64"), ("every", "20"), ("reset", "32000000")] {
            assert!(
                parameters
                    .iter()
                    .any(|(name, value)| (*name, value.as_str()) == expected)
            );
        }
        let mut job = Job::new(SimulatedPolicy::from_name("first-touch").expect("policy"));
        assert_eq!(
            job.set("trigger", "64"),
            Ok(false),
            "it has no such parameter"
        );
    }
}
