//! What to simulate: a policy, where pages start, what the policy is shown, how pages are moved.

use std::ops::Range;
use std::sync::Arc;

use nearpage_machine::Timing;
use nearpage_online::{
    AutoParameters, Initial, KernelBalancingParameters, Monitor, Parameter, ParameterError,
    PushPullParameters, Thresholds, TrafficParameters,
};

use nearpage_recording::ThreadIndex;

use crate::schedule::Schedule;

/// A policy, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Pages stay where the rule puts them.
    Static(Initial),
    /// Pages stay on the node that makes the unloaded latency of all their misses least: the best
    /// static placement, with perfect knowledge and without contention (Verghese §6.2.1).
    PostFacto,
    /// Each object in as many blocks as there are nodes with memory, one to a node (NumaMMA §4.1.3);
    /// pages that are in no object of several pages where they start.
    BlockNaive,
    /// Pages go where a plan says, by page number; where it says nothing, they start by the rule.
    Homes {
        /// What it is called in results.
        name: String,
        /// What it says.
        plan: PlanHomes,
    },
    /// Migration and replication (Verghese §3.2).
    MigrateReplicate {
        /// Thresholds, for full information.
        thresholds: Thresholds,
        /// Which of its halves are on.
        halves: Halves,
        /// The trigger follows memory pressure and contention (§6.2.2, §8.2).
        adaptive: bool,
    },
    /// Copies for all who read (Verghese §6.2.1).
    ReplicateOnFirstTouch,
    /// One of ARS's algorithms.
    PushPull(Monitor, PushPullParameters),
    /// Carrefour.
    Traffic(TrafficParameters),
    /// Linux's automatic NUMA balancing.
    KernelBalancing(KernelBalancingParameters),
    /// nearpage's own, as it decides while the program runs.
    Auto(AutoParameters),
}

/// What a plan comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanHomes {
    /// By page number.
    pub homes: Vec<Option<Home>>,
    /// What changes as programs go on.
    pub phases: Vec<PhaseHomes>,
    /// `auto` looks after the programs while they run, with these parameters, from one in [`EVERY_SAMPLED`] of their misses, but
    /// for pages that are to have copies, or to move yet.
    pub live: Option<AutoParameters>,
}

impl PlanHomes {
    /// So many pages, all left to first touch.
    pub fn nothing(pages: usize) -> Self {
        Self {
            homes: vec![None; pages],
            ..Self::default()
        }
    }
}

/// Where a plan wants a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// On a node, by position.
    Node(u16),
    /// On every node that reads it, from then on.
    Copies,
    /// On a node, by position, from when a second thread of its program runs: it moves there when it is
    /// next referred to. Before, it starts by the rule. None: on the node that refers to it then.
    Later(Option<u16>),
    /// The same whenever several threads of its program run; when one has run alone for a while, the page
    /// moves to that one's node when it is next referred to.
    Parallel(Option<u16>),
}

/// Where a plan wants pages from when an instruction is executed for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PhaseHomes {
    /// The instructions: the first fetch of any of these bytes begins the phase. Pages, and bytes in them.
    pub entry: Vec<(u32, Range<u32>)>,
    /// By page number: where it moves when it is next referred to ([`Home::Later`] of no node: to the node that
    /// refers to it). None: it stays where it is.
    pub homes: Vec<Option<Home>>,
    /// Threads that go to another node, by position.
    pub threads: Vec<(ThreadIndex, u16)>,
}

/// Halves of [`Policy::MigrateReplicate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halves {
    /// `migrate-replicate`.
    Both,
    /// `migrate`.
    Migrate,
    /// `replicate`.
    Replicate,
}

impl Policy {
    /// Names of the policies that [`Policy::from_name`] knows.
    pub const NAMES: [&str; 17] = [
        "first-touch",
        "round-robin",
        "interleave",
        "block-naive",
        "post-facto",
        "migrate",
        "replicate",
        "migrate-replicate",
        "replicate-on-first-touch",
        "out-u",
        "out-w",
        "in-w",
        "out-u-local",
        "out-w-local",
        "traffic",
        "kernel-balancing",
        "auto",
    ];

    /// The policy of that name, with its published parameters.
    pub fn from_name(name: &str) -> Option<Self> {
        let dynamic = |halves| Self::MigrateReplicate {
            thresholds: Thresholds::default(),
            halves,
            adaptive: false,
        };
        match name {
            "post-facto" => Some(Self::PostFacto),
            "migrate" => Some(dynamic(Halves::Migrate)),
            "replicate" => Some(dynamic(Halves::Replicate)),
            "migrate-replicate" => Some(dynamic(Halves::Both)),
            "block-naive" => Some(Self::BlockNaive),
            "replicate-on-first-touch" => Some(Self::ReplicateOnFirstTouch),
            "traffic" => Some(Self::Traffic(TrafficParameters::default())),
            "auto" => Some(Self::Auto(AutoParameters::default())),
            "kernel-balancing" => Some(Self::KernelBalancing(KernelBalancingParameters::default())),
            _ => {
                let monitor = Monitor::ALL.into_iter().find(|one| one.as_str() == name);
                let push_pull = |monitor| Self::PushPull(monitor, PushPullParameters::default());
                let initial = || Initial::from_name(name).map(Self::Static);
                monitor.map(push_pull).or_else(initial)
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Static(rule) => rule.as_str(),
            Self::PostFacto => "post-facto",
            Self::BlockNaive => "block-naive",
            Self::Homes { name, .. } => name,
            Self::ReplicateOnFirstTouch => "replicate-on-first-touch",
            Self::PushPull(monitor, _) => monitor.as_str(),
            Self::Traffic(_) => "traffic",
            Self::KernelBalancing(_) => "kernel-balancing",
            Self::Auto(_) => "auto",
            Self::MigrateReplicate {
                halves: Halves::Both,
                ..
            } => "migrate-replicate",
            Self::MigrateReplicate {
                halves: Halves::Migrate,
                ..
            } => "migrate",
            Self::MigrateReplicate {
                halves: Halves::Replicate,
                ..
            } => "replicate",
        }
    }

    /// Does it decide while the program runs?
    pub fn is_online(&self) -> bool {
        match self {
            Self::Static(_) | Self::PostFacto | Self::BlockNaive => false,
            Self::Homes { plan, .. } => plan.live.is_some(),
            _ => true,
        }
    }

    /// Why there is nothing for it to do on a machine; `None`: there may be.
    pub fn senseless_on(&self, timing: &Timing) -> Option<&'static str> {
        let memories = timing
            .capacity_pages
            .iter()
            .filter(|pages| **pages != Some(0));
        (self.is_online() && memories.count() < 2)
            .then_some("its memory is on one node, and no page could go elsewhere")
    }

    /// Does it say which references it wants to be shown?
    fn asks(&self) -> bool {
        matches!(self, Self::Traffic(_) | Self::KernelBalancing(_))
    }

    /// Sets a parameter of its own; `false`: it has none of that name.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        match self {
            Self::MigrateReplicate { adaptive, .. } if name == ADAPTIVE.name => {
                *adaptive = ADAPTIVE.read(value)? != 0;
                Ok(true)
            }
            Self::MigrateReplicate { thresholds, .. } => thresholds.set(name, value),
            Self::PushPull(_, parameters) => parameters.set(name, value),
            Self::Traffic(parameters) => parameters.set(name, value),
            Self::KernelBalancing(parameters) => parameters.set(name, value),
            Self::Auto(parameters) => parameters.set(name, value),
            _ => Ok(false),
        }
    }

    /// Parameters that are its own, as they may be set.
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::MigrateReplicate { .. } => Thresholds::PARAMETERS
                .into_iter()
                .chain([ADAPTIVE])
                .collect(),
            Self::PushPull(..) => PushPullParameters::PARAMETERS.to_vec(),
            Self::Traffic(_) => TrafficParameters::PARAMETERS.to_vec(),
            Self::KernelBalancing(_) => KernelBalancingParameters::PARAMETERS.to_vec(),
            Self::Auto(_) => AutoParameters::PARAMETERS.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Their names and values.
    fn values(&self) -> Vec<(&'static str, String)> {
        let text = |(name, value): (&'static str, u64)| (name, value.to_string());
        match self {
            Self::MigrateReplicate {
                thresholds,
                adaptive,
                ..
            } => {
                let adaptive = (ADAPTIVE.name, u64::from(*adaptive));
                thresholds
                    .values()
                    .into_iter()
                    .chain([adaptive])
                    .map(text)
                    .collect()
            }
            Self::PushPull(_, parameters) => parameters.values().to_vec(),
            Self::Traffic(parameters) => parameters.values().into_iter().map(text).collect(),
            Self::KernelBalancing(parameters) => {
                parameters.values().into_iter().map(text).collect()
            }
            Self::Homes {
                plan:
                    PlanHomes {
                        live: Some(parameters),
                        ..
                    },
                ..
            }
            | Self::Auto(parameters) => parameters.values().into_iter().map(text).collect(),
            _ => Vec::new(),
        }
    }
}

/// Of `migrate-replicate` and its halves.
const ADAPTIVE: Parameter = Parameter::new(
    "adaptive",
    0,
    0..=1,
    "1: the trigger follows memory pressure and lock contention",
);

/// What a policy is shown of the misses (Verghese §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Information {
    /// Cache misses.
    #[default]
    Cache,
    /// TLB misses.
    Tlb,
    /// Loads that take so many cycles, as processors sample them (Marathe §3.1, §7).
    Loads,
    /// Time lost to misses, as a clock samples it: one observation for the time that as many remote
    /// misses take, unloaded, as one in how many is seen. A miss that takes longer is seen more often.
    Clock,
    /// What the policy itself asks for: samples, hinting faults.
    Asked,
}

impl Information {
    /// Words for it, of everything and of samples; for what is always sampled, the same.
    const WORDS: [(Self, &'static str, &'static str); 5] = [
        (Self::Cache, "cache", "sampled-cache"),
        (Self::Tlb, "tlb", "sampled-tlb"),
        (Self::Loads, "loads", "loads"),
        (Self::Clock, "clock", "clock"),
        (Self::Asked, "asked", "asked"),
    ];

    /// What is shown, and one in how many of it.
    fn from_word(word: &str) -> Option<(Self, u32)> {
        let (information, all, _) = Self::WORDS
            .into_iter()
            .find(|(_, all, sampled)| word == *all || word == *sampled)?;
        let in_full = word == all && matches!(information, Self::Cache | Self::Tlb | Self::Asked);
        Some((information, if in_full { 1 } else { EVERY_SAMPLED }))
    }

    fn word(self, every: u32) -> &'static str {
        let (_, all, sampled) = Self::WORDS[self as usize];
        if every == 1 { all } else { sampled }
    }
}

/// CPUs that are asked to flush their TLB when a page moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flush {
    /// All that run a thread (IRIX, Verghese §8).
    #[default]
    All,
    /// Those that have used the page since it last moved (the improvement of §8.2).
    Mapping,
}

/// Who copies pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copy {
    /// The CPU, at the machine's cost.
    #[default]
    Cpu,
    /// The directory controller, in 35 µs (Verghese §8.2).
    Hardware,
}

/// How a policy is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the policy is shown.
    pub information: Information,
    /// One in so many of it.
    pub every: u32,
    /// Where [`Information::Loads`] is shown: cycles that a load must take to be.
    pub latency_cycles_min: u64,
    /// A fixed cost for each page moved, in place of the machine's.
    pub move_ns: Option<u64>,
    /// Who flushes.
    pub flush: Flush,
    /// Who copies.
    pub copy: Copy,
    /// Hot pages that are collected before the CPU is interrupted, where moves are costed by step…
    pub batch_pages: u64,
    /// …or the time after which it is, whichever comes first (Verghese §8.1).
    pub batch_ns: u64,
    /// Pages that there are in all, for memory pressure (Verghese Table 7); besides, no node has
    /// more than its memory holds.
    pub memory_pages: Option<u64>,
    /// Time after which a thread makes way for another on its CPU.
    pub slice_ns: u64,
    /// Start of a policy's random draws.
    pub seed: u64,
    /// Movements of pages that are kept, at most, and with them what happened over time; 0: none of
    /// it. Results do not depend on it.
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

/// One in ten, where a sampled source is chosen and nothing else said (Verghese §7.2).
pub const EVERY_SAMPLED: u32 = 10;

/// Numbers among the options.
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
    pub policy: Policy,
    /// Where pages start; absent: first touch, and for static policies where these put them.
    pub initial: Option<Initial>,
    /// How it is run.
    pub options: Options,
    /// Which thread runs where and when.
    pub schedule: Arc<Schedule>,
}

impl Job {
    /// With everything as published.
    pub fn new(policy: Policy) -> Self {
        let (information, every) = match policy {
            // It is to do with samples.
            Policy::Auto(_) => (Information::Cache, EVERY_SAMPLED),
            _ if policy.asks() => (Information::Asked, 1),
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
            schedule: Arc::default(),
        }
    }

    /// Sets a parameter of the policy or an option; `false`: this job has none of that name.
    ///
    /// # Errors
    /// A value that it cannot have.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
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
            "source" if matches!(self.policy, Policy::KernelBalancing(_)) => {
                // It has nothing to go by but its own hinting faults.
                return Ok(false);
            }
            "source" => {
                let asks = self.policy.asks();
                (options.information, options.every) = Information::from_word(value)
                    .filter(|found| asks || found.0 != Information::Asked)
                    .ok_or_else(|| {
                        one_of(match asks {
                            true => "cache, sampled-cache, tlb, sampled-tlb, loads, clock, asked",
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

    /// Every parameter that the result depends on, by name.
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
                Policy::Homes { .. } => EVERY_SAMPLED,
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
        parameters.extend(move_ns.map(|ns| ("move_ns", ns.to_string())));
        parameters.extend(memory_pages.map(|pages| ("memory_pages", pages.to_string())));
        parameters.push(("slice_ns", slice_ns.to_string()));
        if !self.schedule.file.is_empty() {
            parameters.push(("schedule", self.schedule.file.clone()));
        }
        parameters
    }

    /// Memory that a replay on so many nodes takes for each page.
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
        // Misses by node; who mapped it, and what was in use.
        let moved = entry + 2 * nodes + mapped + used;
        match self.policy {
            Policy::Static(_) => entry,
            // A home.
            Policy::BlockNaive => entry + 4,
            // Counts by node, then a home.
            Policy::PostFacto => entry + 4 + 4 * nodes,
            // The same for each phase, and what is wanted then.
            Policy::Homes { ref plan, .. } => {
                let phases = 2 * size_of::<Option<Home>>() as u64 * plan.phases.len() as u64;
                // What `auto` has.
                let live = plan.live.map_or(0, |_| 6 + 2 * nodes);
                moved + 4 + 4 * nodes + phases + live
            }
            // A row of counters.
            Policy::MigrateReplicate { .. } => moved + (8 + 2 * nodes).next_multiple_of(32),
            Policy::ReplicateOnFirstTouch => moved + 1,
            // Its place and home, counts by node, migrations.
            Policy::PushPull(..) => moved + 24 + 4 * nodes + 4,
            // Row of its samples, collapses, who replicated it, stale copies.
            Policy::Traffic(_) => moved + 4 + 4 + 2 + 8,
            // Its state, counts by node.
            Policy::Auto(_) => moved + 6 + 2 * nodes,
            // In its process, last fault, unmapped for the policy and for the replay.
            Policy::KernelBalancing(_) => moved + 16 + 12 + 2,
        }
    }

    /// The rule that pages start by.
    pub(crate) fn rule(&self) -> Initial {
        match self.policy {
            Policy::Static(rule) => rule,
            _ => self.initial.unwrap_or_default(),
        }
    }

    fn start(&self) -> &str {
        match &self.policy {
            Policy::PostFacto => "post-facto",
            Policy::BlockNaive => "block-naive",
            _ => self.rule().as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_set_by_name() {
        let mut job = Job::new(Policy::from_name("migrate-replicate").expect("policy"));
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
        let mut job = Job::new(Policy::from_name("first-touch").expect("policy"));
        assert_eq!(
            job.set("trigger", "64"),
            Ok(false),
            "it has no such parameter"
        );
    }

    #[test]
    fn names_lead_back() {
        for name in Policy::NAMES {
            let policy = Policy::from_name(name).expect(name);
            assert_eq!(policy.name(), name);
            // What is listed can be set, and is what it is said to be.
            let mut job = Job::new(policy.clone());
            let before = job.parameters();
            for parameter in policy.parameters() {
                let value = parameter.default.to_string();
                assert_eq!(job.set(parameter.name, &value), Ok(true), "{name}");
                let above = (parameter.most + 1).to_string();
                assert!(job.set(parameter.name, &above).is_err(), "{name}");
            }
            assert_eq!(job.parameters(), before, "{name}");
        }
        assert_eq!(Policy::from_name("best"), None);
    }
}
