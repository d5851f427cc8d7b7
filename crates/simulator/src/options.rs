//! What to simulate: a policy, where pages start, what the policy is shown, how pages are moved.

use std::sync::Arc;

use nearpage_policy::online::{Initial, Parameter, ParameterError, Thresholds};

use crate::schedule::Schedule;

/// A policy, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Pages stay where the rule puts them.
    Static(Initial),
    /// Pages stay on the node that makes the unloaded latency of all their misses least: the best
    /// static placement, with perfect knowledge and without contention (Verghese §6.2.1).
    PostFacto,
    /// Pages stay on given nodes (positions), by page number; where there is none, where they start.
    Homes {
        /// What it is called in results.
        name: String,
        /// By page number.
        homes: Vec<Option<u16>>,
    },
    /// Migration and replication (Verghese §3.2).
    MigrateReplicate {
        /// Thresholds, for full information.
        thresholds: Thresholds,
        /// Which of its halves are on.
        halves: Halves,
    },
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
    pub const NAMES: [&str; 7] = [
        "first-touch",
        "round-robin",
        "interleave",
        "post-facto",
        "migrate",
        "replicate",
        "migrate-replicate",
    ];

    /// The policy of that name, with its published parameters.
    pub fn from_name(name: &str) -> Option<Self> {
        let dynamic = |halves| Self::MigrateReplicate {
            thresholds: Thresholds::default(),
            halves,
        };
        match name {
            "post-facto" => Some(Self::PostFacto),
            "migrate" => Some(dynamic(Halves::Migrate)),
            "replicate" => Some(dynamic(Halves::Replicate)),
            "migrate-replicate" => Some(dynamic(Halves::Both)),
            _ => Initial::from_name(name).map(Self::Static),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Static(rule) => rule.as_str(),
            Self::PostFacto => "post-facto",
            Self::Homes { name, .. } => name,
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
}

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
}

impl Information {
    /// Words for it, of everything and of samples; for what is always sampled, the same.
    const WORDS: [(Self, &'static str, &'static str); 4] = [
        (Self::Cache, "cache", "sampled-cache"),
        (Self::Tlb, "tlb", "sampled-tlb"),
        (Self::Loads, "loads", "loads"),
        (Self::Clock, "clock", "clock"),
    ];

    /// What is shown, and one in how many of it.
    fn from_word(word: &str) -> Option<(Self, u32)> {
        let (information, all, _) = Self::WORDS
            .into_iter()
            .find(|(_, all, sampled)| word == *all || word == *sampled)?;
        let in_full = word == all && matches!(information, Self::Cache | Self::Tlb);
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
        debug_assert_eq!(move_ns, 0);
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
        }
    }
}

const fn number(
    name: &'static str,
    default: u64,
    least: u64,
    most: u64,
    meaning: &'static str,
) -> Parameter {
    Parameter {
        name,
        default,
        least,
        most,
        meaning,
    }
}

/// One in ten, where a sampled source is chosen and nothing else said (Verghese §7.2).
const EVERY_SAMPLED: u32 = 10;

/// Numbers among the options.
pub const NUMBERS: [Parameter; 8] = [
    number(
        "every",
        1,
        1,
        1_000_000,
        "the policy sees one reference in so many; 10 for sampled sources",
    ),
    number(
        "move_ns",
        0,
        0,
        1_000_000_000_000,
        "cost of moving a page, in place of the machine's",
    ),
    number(
        "batch_pages",
        5,
        1,
        1_000_000,
        "hot pages to an interrupt, where the machine has steps",
    ),
    number(
        "batch_ns",
        500_000,
        0,
        1_000_000_000_000,
        "the longest that a hot page waits for others",
    ),
    number(
        "memory_pages",
        u64::MAX,
        1,
        u64::MAX,
        "pages of memory in all",
    ),
    number(
        "slice_ns",
        10_000_000,
        1,
        1_000_000_000_000,
        "time slice of threads that share a CPU",
    ),
    number("seed", 0, 0, u64::MAX, "start of random draws"),
    number(
        "min_latency",
        128,
        0,
        1_000_000,
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
        Self {
            policy,
            initial: None,
            options: Options::default(),
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
            "source" => {
                (options.information, options.every) =
                    Information::from_word(value).ok_or_else(|| {
                        one_of("cache, sampled-cache, tlb, sampled-tlb, loads, clock")
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
            _ => {
                return match &mut self.policy {
                    Policy::MigrateReplicate { thresholds, .. } => thresholds.set(name, value),
                    _ => Ok(false),
                };
            }
        }
        Ok(true)
    }

    /// Every parameter that the result depends on, by name.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut parameters = vec![("initial", self.start().to_owned())];
        if let Policy::MigrateReplicate { thresholds, .. } = &self.policy {
            parameters.extend(
                thresholds
                    .values()
                    .map(|(name, value)| (name, value.to_string())),
            );
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
        match self.policy {
            Policy::Static(_) => entry,
            // Counts by node, then a home.
            Policy::PostFacto | Policy::Homes { .. } => entry + 4 + 4 * nodes,
            // Misses by node; a policy's row of counters; who mapped it, and what was in use.
            _ => {
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
                entry + 2 * nodes + (8 + 2 * nodes).next_multiple_of(32) + mapped + used
            }
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
            assert_eq!(Policy::from_name(name).expect(name).name(), name);
        }
        assert_eq!(Policy::from_name("best"), None);
    }
}
