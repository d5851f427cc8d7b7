//! Policies by name, their parameters, and the homes that a plan gives to pages.

use std::ops::Range;

use nearpage_machine::Timing;
use nearpage_online::{
    AutoParameters, CarrefourParameters, Initial, KernelBalancingParameters, Monitor, Parameter,
    ParameterError, PushPullParameters, Thresholds,
};
use nearpage_recording::ThreadIndex;

/// A placement policy with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum SimulatedPolicy {
    /// Pages stay on the node that the rule selects at first touch.
    Static(Initial),
    /// The best static placement with perfect knowledge and without contention (Verghese §6.2.1): each page stays on
    /// the node that minimises the sum of its misses' unloaded latencies. Only misses of marked phases count.
    PostFacto,
    /// Each object is split into as many blocks as there are nodes with memory, one block per node (NumaMMA §4.1.3).
    /// The rule places pages of smaller objects and of no object.
    BlockNaive,
    /// Pages go where a plan puts them; pages that the plan does not name are placed by the rule.
    Homes {
        /// Name of the plan in results.
        name: String,
        /// Homes, phases and online migration of the plan.
        plan: PlanHomes,
    },
    /// Migration and replication (Verghese §3.2).
    MigrateReplicate {
        /// Thresholds, for a policy that sees every miss.
        thresholds: Thresholds,
        /// Whether the policy migrates, replicates, or both.
        mode: MigrateReplicateMode,
        /// The trigger adapts to memory pressure and lock contention (Verghese §6.2.2, §8.2).
        adaptive: bool,
    },
    /// Every node that reads a page gets a copy (Verghese §6.2.1).
    ReplicateOnFirstTouch,
    /// One of the five policies of ARS.
    PushPull(Monitor, PushPullParameters),
    /// Carrefour.
    Carrefour(CarrefourParameters),
    /// Linux's automatic NUMA balancing.
    KernelBalancing(KernelBalancingParameters),
    /// nearpage's online migration.
    Auto(AutoParameters),
}

/// Effect of a plan on the pages of one trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlanHomes {
    /// Home of each page, by the page's number in the trace.
    pub homes: Vec<Option<Home>>,
    /// Changes of homes and threads at the start of program phases.
    pub phases: Vec<PhaseHomes>,
    /// Parameters of online migration, if the plan enables it: `auto` is shown one in [`crate::EVERY_SAMPLED`] misses,
    /// without misses to pages that the plan still has to move or copy.
    pub online_migration: Option<AutoParameters>,
}

impl PlanHomes {
    /// A plan without decisions for `pages` pages.
    pub fn nothing(pages: usize) -> Self {
        Self {
            homes: vec![None; pages],
            ..Self::default()
        }
    }
}

/// Home of a page in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// The node with this position.
    Node(u16),
    /// A copy on every node that reads the page, from its first read on.
    Copies,
    /// The node with this position, from the moment when a second thread of the program runs: the page moves at its
    /// next reference. Before, the page is placed by the rule. `None`: the node of that reference.
    Later(Option<u16>),
    /// As [`Home::Later`], whenever several threads of the program run. When one thread has run alone for a while, the
    /// page moves to that thread's node at its next reference.
    Parallel(Option<u16>),
}

/// Homes of pages from the first execution of an instruction on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PhaseHomes {
    /// Code at the start of the phase, as pages and byte ranges in them: the first fetch of any byte begins the phase.
    pub entry: Vec<(u32, Range<u32>)>,
    /// By page number: the node that the page moves to at its next reference ([`Home::Later`] of `None`: the node of
    /// that reference). `None`: the page does not move.
    pub homes: Vec<Option<Home>>,
    /// Threads that move, and the positions of their new nodes.
    pub threads: Vec<(ThreadIndex, u16)>,
}

/// Variants of [`SimulatedPolicy::MigrateReplicate`].
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

    /// The policy with this name and its published parameters.
    pub fn from_name(name: &str) -> Option<Self> {
        let dynamic = |mode| Self::MigrateReplicate {
            thresholds: Thresholds::default(),
            mode,
            adaptive: false,
        };
        match name {
            "post-facto" => Some(Self::PostFacto),
            "migrate" => Some(dynamic(MigrateReplicateMode::Migrate)),
            "replicate" => Some(dynamic(MigrateReplicateMode::Replicate)),
            "migrate-replicate" => Some(dynamic(MigrateReplicateMode::Both)),
            "block-naive" => Some(Self::BlockNaive),
            "replicate-on-first-touch" => Some(Self::ReplicateOnFirstTouch),
            // Earlier versions called `carrefour` `traffic`, and scripts still do.
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

    /// Name of the policy.
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
                mode: MigrateReplicateMode::Both,
                ..
            } => "migrate-replicate",
            Self::MigrateReplicate {
                mode: MigrateReplicateMode::Migrate,
                ..
            } => "migrate",
            Self::MigrateReplicate {
                mode: MigrateReplicateMode::Replicate,
                ..
            } => "replicate",
        }
    }

    /// Does the policy decide while the program runs?
    pub fn is_online(&self) -> bool {
        match self {
            Self::Static(_) | Self::PostFacto | Self::BlockNaive => false,
            Self::Homes { plan, .. } => plan.online_migration.is_some(),
            _ => true,
        }
    }

    /// Reason why the policy can do nothing on a machine; `None`: the policy may have an effect.
    pub fn unsuitable_on(&self, timing: &Timing) -> Option<&'static str> {
        let memories = timing
            .capacity_pages
            .iter()
            .filter(|pages| **pages != Some(0));
        (self.is_online() && memories.count() < 2)
            .then_some("its memory is on one node, so no page can move")
    }

    /// Does the policy request samples or hinting faults itself?
    pub(crate) fn requests_samples(&self) -> bool {
        matches!(self, Self::Carrefour(_) | Self::KernelBalancing(_))
    }

    /// Sets a parameter of the policy; `false`: the policy has no parameter of that name.
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

    /// Parameters of the policy that can be set.
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

    /// Names and values of the policy's parameters.
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

/// Parameter of `migrate-replicate`, `migrate` and `replicate`.
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
            // Each parameter of the policy can be set to its default, which changes nothing.
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
