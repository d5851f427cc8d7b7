//! What to simulate: a policy ([`SimulatedPolicy`]), where pages start, what the policy is shown, how pages are moved.

mod effects;

use std::borrow::Cow;
use std::sync::Arc;

use nearpage_online::{Initial, Parameter, ParameterError};

use self::effects::{OF_PAGES, OF_STEPS, OF_VIEW};
use crate::policy::{Home, SimulatedPolicy};
use crate::schedule::Schedule;

/// What a policy is shown of the misses (Verghese §7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Information {
    /// Cache misses.
    #[default]
    Cache,
    /// TLB misses.
    Tlb,
    /// Loads that take at least a number of cycles, as processors sample them (Marathe §3.1, §7).
    Loads,
    /// Time lost to misses, as a clock samples it: one observation for the time that as many remote
    /// misses take, unloaded, as one in how many is seen. A miss that takes longer is seen more often.
    Clock,
    /// The policy's own source: samples, or hinting faults.
    Asked,
}

impl Information {
    /// Each source with its names: of all events, and of samples. The names of a source that is always sampled are the same.
    const WORDS: [(Self, &'static str, &'static str); 5] = [
        (Self::Cache, "cache", "sampled-cache"),
        (Self::Tlb, "tlb", "sampled-tlb"),
        (Self::Loads, "loads", "loads"),
        (Self::Clock, "clock", "clock"),
        (Self::Asked, "asked", "asked"),
    ];

    /// The source with this name, and the sampling period: one event in so many is shown.
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
    /// The directory controller, at the machine's cost (Verghese §8.2).
    Hardware,
}

/// Which pages rules and policies place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// All pages.
    #[default]
    All,
    /// Those of the heap, of own mappings and of own static data that several threads use: what ARS distributes, monitors and
    /// moves (§3, §4). The others stay where they are first touched, and no policy is shown them.
    Shared,
}

/// How a policy is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// What the policy is shown.
    pub information: Information,
    /// Sampling period: one event in so many is shown.
    pub every: u32,
    /// For [`Information::Loads`]: least number of cycles of a load that is shown.
    pub latency_cycles_min: u64,
    /// A fixed cost for each page moved, in place of the machine's.
    pub move_ns: Option<u64>,
    /// Which pages are placed.
    pub pages: Pages,
    /// Which CPUs flush their TLBs.
    pub flush: Flush,
    /// Whether a CPU or the directory controller copies pages.
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
    /// Most movements of pages that are kept, together with a timeline; 0: neither is kept. Results do not depend on
    /// this.
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
    pub policy: SimulatedPolicy,
    /// Where pages start; absent: first touch, and for static policies where these put them.
    pub initial: Option<Initial>,
    /// How it is run.
    pub options: Options,
    /// Options that were set by name.
    given: Vec<&'static str>,
    /// Which thread runs where and when.
    pub schedule: Arc<Schedule>,
}

impl Job {
    /// A job with all options as published.
    pub fn new(policy: SimulatedPolicy) -> Self {
        let (information, every) = match policy {
            // It is to do with samples.
            SimulatedPolicy::Auto(_) => (Information::Cache, EVERY_SAMPLED),
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
            given: Vec::new(),
            schedule: Arc::default(),
        }
    }

    /// The job with the defaults for a machine with that many nodes.
    pub(crate) fn on(&self, nodes: usize) -> Cow<'_, Self> {
        let SimulatedPolicy::PushPull(monitor, parameters) = self.policy else {
            return Cow::Borrowed(self);
        };
        Cow::Owned(Self {
            policy: SimulatedPolicy::PushPull(monitor, parameters.on(monitor, nodes)),
            ..self.clone()
        })
    }

    /// Sets a parameter of the policy or an option; `false`: this job has none of that name.
    ///
    /// # Errors
    /// A value that it cannot have.
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

    /// Bytes of memory that a replay on that many nodes takes for each page.
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
        // Its object while its users are looked for, and whether it is shared.
        let entry = entry
            + if self.options.pages == Pages::Shared {
                17
            } else {
                0
            };
        // Misses by node; who mapped it, and what was in use.
        let moved = entry + 2 * nodes + mapped + used;
        match self.policy {
            SimulatedPolicy::Static(_) => entry,
            // A home.
            SimulatedPolicy::BlockNaive => entry + 4,
            // Counts by node, then a home.
            SimulatedPolicy::PostFacto => entry + 4 + 4 * nodes,
            // The same for each phase, and what is wanted then.
            SimulatedPolicy::Homes { ref plan, .. } => {
                let phases = 2 * size_of::<Option<Home>>() as u64 * plan.phases.len() as u64;
                // What `auto` has.
                let online_migration = plan.online_migration.map_or(0, |_| 6 + 2 * nodes);
                moved + 4 + 4 * nodes + phases + online_migration
            }
            // A row of counters.
            SimulatedPolicy::MigrateReplicate { .. } => {
                moved + (8 + 2 * nodes).next_multiple_of(32)
            }
            SimulatedPolicy::ReplicateOnFirstTouch => moved + 1,
            // Its place and home, counts by node, migrations.
            SimulatedPolicy::PushPull(..) => moved + 24 + 4 * nodes + 4,
            // Row of its samples, collapses, who replicated it and whether it is, stale copies.
            SimulatedPolicy::Carrefour(_) => moved + 4 + 4 + 2 + 1 + 8,
            // Its state, counts by node.
            SimulatedPolicy::Auto(_) => moved + 6 + 2 * nodes,
            // In its process, last fault, unmapped for the policy and for the replay.
            SimulatedPolicy::KernelBalancing(_) => moved + 16 + 12 + 2,
        }
    }

    /// The rule that pages start by.
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
