//! Relative errors of the model's predicted times, by class of machines.

use nearpage_machine::Machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Results of `benches/accuracy` by class: median relative error, 90th percentile, [`ModelError::turns_below`], and
/// number of plans. They are of 2026-11-28, in docs/explain/accuracy.md.
const BENCHMARK: [(MachineClass, f64, f64, f64, u32); 3] = [
    (MachineClass::OneHop, 0.008, 0.068, 0.0, 700),
    (MachineClass::SeveralHops, 0.008, 0.073, 0.0005, 500),
    (MachineClass::MemoryOnlyNodes, 0.0, 0.0, 0.0, 0),
];
/// Predicted savings below this share of the time count as no saving.
const NO_SAVING: f64 = 0.0005;
/// Relative difference up to which distances of remote nodes count as equal.
const EVEN_DIFFERENCE_MAX: f64 = 0.15;
/// Measured pairs of a class from which on their errors replace those of the benchmark.
const PAIRS_MIN: usize = 20;

/// Class of machines that share one model error.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum MachineClass {
    /// All nodes have CPUs, and all remote nodes are equally far.
    OneHop,
    /// All nodes have CPUs, and some remote nodes are farther than others.
    SeveralHops,
    /// Some nodes have memory but no CPUs: CXL, GPUs.
    MemoryOnlyNodes,
}

impl MachineClass {
    /// The class of a machine.
    pub fn of(machine: &Machine) -> Self {
        let with_memory = machine.nodes_with_memory();
        if !with_memory.iter().all(|&id| machine.has_cpus(id)) {
            return Self::MemoryOnlyNodes;
        }
        let pairs = with_memory
            .iter()
            .flat_map(|&from| with_memory.iter().map(move |&to| (from, to)));
        let others = pairs.filter(|(from, to)| from != to);
        let distances: Vec<f64> = others
            .filter_map(|(from, to)| machine.weight(from, to))
            .collect();
        let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
        let most = distances.iter().copied().fold(0.0, f64::max);
        match most > (1.0 + EVEN_DIFFERENCE_MAX) * least {
            true => Self::SeveralHops,
            false => Self::OneHop,
        }
    }

    /// Words for messages, to follow "machines".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OneHop => "whose other nodes are all as far",
            Self::SeveralHops => "with several hops",
            Self::MemoryOnlyNodes => "with memory that has no CPUs",
        }
    }
}

/// Where a model error was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorSource {
    /// Predictions compared with replays by `benches/accuracy`.
    Benchmark,
    /// Predictions compared with runs that this user measured (`nearpage history`).
    History,
}

/// The model's relative errors on one class of machines.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub struct ModelError {
    /// The class of machines.
    pub class: MachineClass,
    /// Median relative error of predicted times; 0.1: 10 %.
    pub median: f64,
    /// 90th percentile of the relative errors.
    pub nine_in_ten: f64,
    /// Greatest predicted saving, as a share of the time, up to which most plans made runs slower; 0: there is none.
    pub turns_below: f64,
    /// Number of predictions that were compared.
    pub pairs: u32,
    /// Where the errors were measured.
    pub source: ErrorSource,
}

/// Predicted and measured change of time, as shares of the time under first touch; −0.2: a fifth less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Predicted change.
    pub predicted: f64,
    /// Measured or replayed change.
    pub measured: f64,
}

/// The model's errors by class of machines.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModelErrors {
    /// Errors from measured pairs, in the order of [`BENCHMARK`]; none: too few pairs.
    learned: [Option<ModelError>; BENCHMARK.len()],
}

impl ModelErrors {
    /// The benchmark's errors, except for classes with enough measured pairs.
    pub fn learned(measured: impl IntoIterator<Item = (MachineClass, Change)>) -> Self {
        let measured: Vec<(MachineClass, Change)> = measured.into_iter().collect();
        let of_class = |(class, ..): (MachineClass, f64, f64, f64, u32)| {
            let own = measured.iter().filter(|(other, _)| *other == class);
            let own: Vec<Change> = own.map(|(_, change)| *change).collect();
            (own.len() >= PAIRS_MIN).then(|| learned(class, &own))
        };
        Self {
            learned: BENCHMARK.map(of_class),
        }
    }

    /// The errors of a class.
    pub fn of(&self, class: MachineClass) -> ModelError {
        let is_it = |error: &&ModelError| error.class == class;
        if let Some(learned) = self.learned.iter().flatten().find(is_it) {
            return *learned;
        }
        let found = BENCHMARK.iter().find(|row| row.0 == class);
        let &(class, median, nine_in_ten, turns_below, pairs) = found.unwrap_or(&BENCHMARK[0]);
        ModelError {
            class,
            median,
            nine_in_ten,
            turns_below,
            pairs,
            source: ErrorSource::Benchmark,
        }
    }
}

/// Errors of one class from its measured pairs.
fn learned(class: MachineClass, pairs: &[Change]) -> ModelError {
    let error =
        |pair: &Change| ((1.0 + pair.predicted) / (1.0 + pair.measured).max(0.01) - 1.0).abs();
    let mut errors: Vec<f64> = pairs.iter().map(error).collect();
    errors.sort_by(f64::total_cmp);
    let quantile =
        |share: f64| errors[((errors.len() as f64 * share) as usize).min(errors.len() - 1)];
    ModelError {
        class,
        median: quantile(0.5),
        nine_in_ten: quantile(0.9),
        turns_below: turns_below(pairs),
        pairs: pairs.len() as u32,
        source: ErrorSource::History,
    }
}

/// Greatest predicted saving up to which most plans, and all of them together, lost time; 0 where there is none.
fn turns_below(pairs: &[Change]) -> f64 {
    let saves = pairs
        .iter()
        .copied()
        .filter(|one| one.predicted < -NO_SAVING);
    let mut savings: Vec<Change> = saves.collect();
    savings.sort_by(|one, other| other.predicted.total_cmp(&one.predicted));
    let (mut lost, mut sum, mut below) = (0, 0.0, 0.0);
    for (before, one) in savings.iter().enumerate() {
        lost += usize::from(one.measured > 0.0);
        sum += one.measured;
        if 2 * lost > before + 1 && sum > 0.0 {
            below = -one.predicted;
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use nearpage_machine::preset;

    use super::*;

    fn pairs(pairs: &[(f64, f64)]) -> Vec<Change> {
        let pair = |&(predicted, measured)| Change {
            predicted,
            measured,
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn machines_are_told_apart_by_their_distances() {
        for (name, class) in [
            ("xeon-2", MachineClass::OneHop),
            ("flash-8", MachineClass::OneHop),
            ("opteron-4", MachineClass::SeveralHops),
            ("epyc-9224-cxl", MachineClass::MemoryOnlyNodes),
        ] {
            assert_eq!(MachineClass::of(&preset(name).unwrap()), class, "{name}");
        }
    }

    #[test]
    fn small_savings_are_doubted_where_most_of_them_were_losses() {
        assert_eq!(turns_below(&pairs(&[(-0.01, -0.01), (-0.2, -0.1)])), 0.0);
        let lost = pairs(&[
            (-0.3, -0.3),
            (-0.01, 0.05),
            (-0.02, -0.01),
            (-0.03, 0.01),
            (0.1, 0.2),
        ]);
        assert_eq!(turns_below(&lost), 0.03);
        assert_eq!(turns_below(&[]), 0.0);
    }

    #[test]
    fn errors_are_those_of_the_benchmark_until_enough_is_measured() {
        let class = MachineClass::OneHop;
        let measured = |count| {
            let change = Change {
                predicted: -0.1,
                measured: -0.28,
            };
            ModelErrors::learned(vec![(class, change); count]).of(class)
        };
        assert_eq!(measured(PAIRS_MIN - 1), ModelErrors::default().of(class));
        let learned = measured(PAIRS_MIN);
        assert_eq!((learned.source, learned.pairs), (ErrorSource::History, 20));
        assert!((learned.median - 0.25).abs() < 1e-9, "{learned:?}");
    }
}
