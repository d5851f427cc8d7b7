//! Policies by name, with their parameters; what a plan says about pages.

use std::ops::Range;

use nearpage_machine::Timing;
use nearpage_online::{
    AutoParameters, CarrefourParameters, Initial, KernelBalancingParameters, Monitor, Parameter,
    ParameterError, PushPullParameters, Thresholds,
};
use nearpage_recording::ThreadIndex;

/// A policy, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum SimulatedPolicy {
    /// Pages stay where the rule puts them.
    Static(Initial),
    /// Pages stay on the node that makes the unloaded latency of all their misses least: the best
    /// static placement, with perfect knowledge and without contention (Verghese §6.2.1). Where a phase is
    /// marked, its misses alone count, as they do in every result.
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
        halves: MigrateReplicateMode,
        /// The trigger follows memory pressure and contention (§6.2.2, §8.2).
        adaptive: bool,
    },
    /// Copies for all who read (Verghese §6.2.1).
    ReplicateOnFirstTouch,
    /// One of ARS's algorithms.
    PushPull(Monitor, PushPullParameters),
    /// Carrefour.
    Carrefour(CarrefourParameters),
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
    /// Online migration: `auto` decides while the programs run, with these parameters, from one in [`crate::EVERY_SAMPLED`] of their misses, but
    /// for pages that are to have copies, or to move yet.
    pub online_migration: Option<AutoParameters>,
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

/// Halves of [`SimulatedPolicy::MigrateReplicate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrateReplicateMode {
    /// `migrate-replicate`.
    Both,
    /// `migrate`.
    Migrate,
    /// `replicate`.
    Replicate,
}

impl SimulatedPolicy {
    /// Names of the policies that [`SimulatedPolicy::from_name`] knows.
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
        "carrefour",
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
            "migrate" => Some(dynamic(MigrateReplicateMode::Migrate)),
            "replicate" => Some(dynamic(MigrateReplicateMode::Replicate)),
            "migrate-replicate" => Some(dynamic(MigrateReplicateMode::Both)),
            "block-naive" => Some(Self::BlockNaive),
            "replicate-on-first-touch" => Some(Self::ReplicateOnFirstTouch),
            // It was called `traffic`, and is so in older scripts.
            "carrefour" | "traffic" => Some(Self::Carrefour(CarrefourParameters::default())),
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
            Self::Carrefour(_) => "carrefour",
            Self::KernelBalancing(_) => "kernel-balancing",
            Self::Auto(_) => "auto",
            Self::MigrateReplicate {
                halves: MigrateReplicateMode::Both,
                ..
            } => "migrate-replicate",
            Self::MigrateReplicate {
                halves: MigrateReplicateMode::Migrate,
                ..
            } => "migrate",
            Self::MigrateReplicate {
                halves: MigrateReplicateMode::Replicate,
                ..
            } => "replicate",
        }
    }

    /// Does it decide while the program runs?
    pub fn is_online(&self) -> bool {
        match self {
            Self::Static(_) | Self::PostFacto | Self::BlockNaive => false,
            Self::Homes { plan, .. } => plan.online_migration.is_some(),
            _ => true,
        }
    }

    /// Why there is nothing for it to do on a machine; `None`: there may be.
    pub fn unsuitable_on(&self, timing: &Timing) -> Option<&'static str> {
        let memories = timing
            .capacity_pages
            .iter()
            .filter(|pages| **pages != Some(0));
        (self.is_online() && memories.count() < 2)
            .then_some("its memory is on one node, and no page could go elsewhere")
    }

    /// Does it say which references it wants to be shown?
    pub(crate) fn asks(&self) -> bool {
        matches!(self, Self::Carrefour(_) | Self::KernelBalancing(_))
    }

    /// Sets a parameter of its own; `false`: it has none of that name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        match self {
            Self::MigrateReplicate { adaptive, .. } if name == ADAPTIVE.name => {
                *adaptive = ADAPTIVE.read(value)? != 0;
                Ok(true)
            }
            Self::MigrateReplicate { thresholds, .. } => thresholds.set(name, value),
            Self::PushPull(_, parameters) => parameters.set(name, value),
            Self::Carrefour(parameters) => parameters.set(name, value),
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
            Self::Carrefour(_) => CarrefourParameters::PARAMETERS.to_vec(),
            Self::KernelBalancing(_) => KernelBalancingParameters::PARAMETERS.to_vec(),
            Self::Auto(_) => AutoParameters::PARAMETERS.to_vec(),
            _ => Vec::new(),
        }
    }

    /// Their names and values.
    pub(crate) fn values(&self) -> Vec<(&'static str, String)> {
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
            Self::Carrefour(parameters) => parameters.values().into_iter().map(text).collect(),
            Self::KernelBalancing(parameters) => {
                parameters.values().into_iter().map(text).collect()
            }
            Self::Homes {
                plan:
                    PlanHomes {
                        online_migration: Some(parameters),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;

    #[test]
    fn names_lead_back() {
        for name in SimulatedPolicy::NAMES {
            let policy = SimulatedPolicy::from_name(name).expect(name);
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
        assert_eq!(SimulatedPolicy::from_name("best"), None);
    }
}
