//! The policies that can run live, by name.
//!
//! They are the simulator's policies, without those that need kernel features that stock kernels lack.

use nearpage_online::{
    Action, Auto, AutoParameters, Carrefour, CarrefourParameters, Epoch, MigrateReplicate, Monitor,
    Observation, OnlinePolicy, ParameterError, PushPull, PushPullParameters, Setting, Thresholds,
};

/// A policy with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum LivePolicy {
    /// Migration of hot pages (Verghese §3.2), and replication as far as a stock kernel supports it.
    MigrateReplicate {
        /// Thresholds in numbers of samples.
        thresholds: Thresholds,
        /// `migrate-replicate` if set, otherwise `migrate`.
        replicates: bool,
    },
    /// The ARS policies (§4.1, §5.4).
    PushPull {
        /// Variant of ARS.
        monitor: Monitor,
        /// Parameters of the variant.
        parameters: PushPullParameters,
    },
    /// Carrefour (§3).
    Carrefour(CarrefourParameters),
    /// nearpage's policy `auto`.
    Auto(AutoParameters),
    /// No decisions, for machines with nothing to decide.
    Watch,
}

struct Watch;

impl OnlinePolicy for Watch {
    fn epoch_ns(&self) -> Option<u64> {
        None
    }

    fn observe(&mut self, _: &Observation, _: &mut Vec<Action>) {}

    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {}

    fn forget(&mut self, _: u32) {}
}

/// Number of samples that make a page hot, instead of 128 misses: samples do not tell how many misses each stands for.
const TRIGGER_SAMPLES: u64 = 4;
const HOLD_SAMPLES: u64 = 1;
/// A second between checks and ten between resets of counters, instead of the milliseconds for full information. Cycles
/// assume a clock of 2.5 GHz.
const CHECK_NS: u64 = 1_000_000_000;
const RESET_CYCLES: u64 = 25_000_000_000;

/// Assumed saving of a sampled remote access if remote memory takes twice as long as local memory: some tenths of the
/// milliseconds of waiting that a sample stands for. `MOVE_NS`: cost of moving a page, until measured.
const REMOTE_SAMPLE_NS: u64 = 500_000;
const MOVE_NS: u64 = 10_000;

impl LivePolicy {
    /// The policy with this name, with parameters for samples.
    pub fn from_name(name: &str) -> Option<Self> {
        let replicates = match name {
            "migrate" => Some(false),
            "migrate-replicate" => Some(true),
            _ => None,
        };
        if let Some(replicates) = replicates {
            let thresholds = Thresholds {
                trigger: TRIGGER_SAMPLES,
                hold: HOLD_SAMPLES,
                reset_cycles: RESET_CYCLES,
                ..Thresholds::default()
            };
            return Some(Self::MigrateReplicate {
                thresholds,
                replicates,
            });
        }
        if name == "watch" {
            return Some(Self::Watch);
        }
        // Earlier versions called `carrefour` `traffic`; logs and scripts still do.
        if name == "carrefour" || name == "traffic" {
            return Some(Self::Carrefour(CarrefourParameters {
                // Threads are left to the scheduler unless the user allows moves.
                clustering: 0,
                ..CarrefourParameters::default()
            }));
        }
        if name == "auto" {
            return Some(Self::Auto(AutoParameters {
                check_ns: CHECK_NS,
                remote_ns: REMOTE_SAMPLE_NS,
                cost_ns: MOVE_NS,
                move_threads: 0,
                ..AutoParameters::default()
            }));
        }
        let monitor = Monitor::ALL
            .into_iter()
            .find(|monitor| monitor.as_str() == name)?;
        let parameters = PushPullParameters {
            check_ns: CHECK_NS,
            ..PushPullParameters::default()
        };
        Some(Self::PushPull {
            monitor,
            parameters,
        })
    }

    /// All names.
    pub fn names() -> Vec<&'static str> {
        let mut names = vec!["carrefour", "auto", "migrate", "migrate-replicate"];
        names.extend(Monitor::ALL.map(Monitor::as_str));
        names.push("watch");
        names
    }

    /// Name of the policy.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MigrateReplicate {
                replicates: false, ..
            } => "migrate",
            Self::MigrateReplicate { .. } => "migrate-replicate",
            Self::PushPull { monitor, .. } => monitor.as_str(),
            Self::Carrefour(_) => "carrefour",
            Self::Auto(_) => "auto",
            Self::Watch => "watch",
        }
    }

    /// Minimum latency of sampled loads in cycles, if the hardware reports latencies; `None`: the sampler's default.
    /// Carrefour also samples first-level hits, which include prefetched lines (§3.3.1).
    pub fn min_latency_cycles(&self) -> Option<u32> {
        matches!(self, Self::Carrefour(_)).then_some(0)
    }

    /// Allows the policy to move threads; `false`: the policy never moves threads.
    pub fn allow_thread_moves(&mut self) -> bool {
        match self {
            Self::Carrefour(parameters) => parameters.clustering = 1,
            Self::Auto(parameters) => parameters.move_threads = 1,
            _ => return false,
        }
        true
    }

    /// Sets a parameter by name; `false`: there is no parameter of that name.
    ///
    /// # Errors
    /// A value outside its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<bool, ParameterError> {
        match self {
            Self::MigrateReplicate { thresholds, .. } => thresholds.set(name, value),
            Self::PushPull { parameters, .. } => parameters.set(name, value),
            Self::Carrefour(parameters) => parameters.set(name, value),
            Self::Auto(parameters) => parameters.set(name, value),
            Self::Watch => Ok(false),
        }
    }

    /// Names and values of the policy's parameters.
    pub fn parameters(&self) -> Vec<(String, String)> {
        match self {
            Self::MigrateReplicate { thresholds, .. } => thresholds
                .values()
                .map(|(name, value)| (name.to_owned(), value.to_string()))
                .into(),
            Self::PushPull { parameters, .. } => parameters
                .values()
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            Self::Carrefour(parameters) => parameters
                .values()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_string()))
                .collect(),
            Self::Auto(parameters) => parameters
                .values()
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_string()))
                .collect(),
            Self::Watch => Vec::new(),
        }
    }

    /// The policy, ready to decide. `distance` has the firmware's distances between nodes, or is empty.
    ///
    /// # Errors
    /// Parameters contradict each other, or the policy does not suit the machine.
    pub fn start(
        &self,
        setting: &Setting,
        distance: &[Vec<u32>],
    ) -> Result<Box<dyn OnlinePolicy>, ParameterError> {
        Ok(match self {
            Self::MigrateReplicate {
                thresholds,
                replicates,
            } => {
                let policy = MigrateReplicate::new(thresholds, setting)?;
                Box::new(match replicates {
                    true => policy,
                    false => policy.migrate_only(),
                })
            }
            Self::PushPull {
                monitor,
                parameters,
            } => Box::new(PushPull::new(*monitor, parameters, setting)?),
            Self::Carrefour(parameters) => Box::new(Carrefour::new(parameters, setting)?),
            Self::Auto(parameters) => {
                Box::new(Auto::new(parameters, setting, None)?.with_distances(distance))
            }
            Self::Watch => Box::new(Watch),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_and_parameters_come_back_as_they_were() {
        let setting = Setting {
            nodes: 4,
            pages: 10,
            clock_ghz: 2.0,
            memory_nodes: 0b1111,
            near_memory_nodes: 0b1111,
            cpus_per_node: 0,
            every: 1,
            seed: 0,
        };
        for name in LivePolicy::names() {
            let mut policy = LivePolicy::from_name(name).expect(name);
            assert_eq!(policy.name(), name);
            let parameters = policy.parameters();
            for (name, value) in &parameters {
                assert_eq!(policy.set(name, value), Ok(true), "{name}");
            }
            assert_eq!(policy.parameters(), parameters);
            assert_eq!(policy.set("nothing", "1"), Ok(false));
            policy.start(&setting, &[]).expect(name);
        }
        assert_eq!(LivePolicy::from_name("best"), None);
        let formerly = LivePolicy::from_name("traffic").expect("its former name");
        assert_eq!(formerly.name(), "carrefour");
    }
}
