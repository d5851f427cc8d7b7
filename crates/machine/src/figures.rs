//! Latency and bandwidth from node to node, as matrices with gaps.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::validate::{entries, square};
use crate::{Fault, Machine, NodeId};

/// A square matrix by position in [`Machine::nodes`], `[CPU's node][memory's node]`. `None` (`nan` in TOML, `null` in
/// JSON): the figure is unknown, or the node has no CPUs that could access memory.
pub type Matrix = Vec<Vec<Option<f64>>>;

/// Bandwidth between nodes, in bytes that programs load or store per second with all CPUs of a node
/// at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Bandwidth {
    /// Loads alone.
    #[serde(
        deserialize_with = "optional_matrix",
        skip_serializing_if = "Option::is_none"
    )]
    pub read_bytes_per_s: Option<Matrix>,
    /// Stores alone.
    #[serde(
        deserialize_with = "optional_matrix",
        skip_serializing_if = "Option::is_none"
    )]
    pub write_bytes_per_s: Option<Matrix>,
    /// Two loads to a store.
    #[serde(
        deserialize_with = "optional_matrix",
        skip_serializing_if = "Option::is_none"
    )]
    pub mixed_bytes_per_s: Option<Matrix>,
}

impl Bandwidth {
    /// The known matrices: key, words, matrix.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = (&'static str, &'static str, &Matrix)> {
        [
            ("read_bytes_per_s", "read", &self.read_bytes_per_s),
            ("write_bytes_per_s", "write", &self.write_bytes_per_s),
            ("mixed_bytes_per_s", "2:1 mixed", &self.mixed_bytes_per_s),
        ]
        .into_iter()
        .filter_map(|(key, words, matrix)| Some((key, words, matrix.as_ref()?)))
    }

    /// The highest read bandwidth of any pair of nodes.
    pub(crate) fn greatest_read_bytes_per_s(&self) -> Option<f64> {
        let rates = self.read_bytes_per_s.iter().flatten().flatten();
        rates.copied().flatten().max_by(f64::total_cmp)
    }
}

/// Latency of a node's own memory while its other CPUs read from it (`[[loaded_latency]]`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadedLatency {
    /// The node of the CPUs and of the memory.
    pub node: NodeId,
    /// Bytes that the other CPUs read per second.
    pub bandwidth_bytes_per_s: f64,
    /// Latency of a load in nanoseconds.
    pub latency_ns: f64,
}

impl Machine {
    /// Checks that matrices are square and have positive figures.
    pub(crate) fn validate_figures(&self) -> Result<(), Fault> {
        let matrices = [
            ("latency_ns", &self.latency_ns),
            (
                "bandwidth.read_bytes_per_s",
                &self.bandwidth.read_bytes_per_s,
            ),
            (
                "bandwidth.write_bytes_per_s",
                &self.bandwidth.write_bytes_per_s,
            ),
            (
                "bandwidth.mixed_bytes_per_s",
                &self.bandwidth.mixed_bytes_per_s,
            ),
        ];
        for (key, matrix) in matrices {
            let Some(matrix) = matrix else { continue };
            square(key, matrix, self.nodes.len())?;
            if matrix.iter().flatten().all(Option::is_none) {
                return Err(Fault::NothingKnown { key });
            }
            for (row, column, &value) in entries(matrix) {
                if let Some(value) = value
                    && !(value > 0.0 && value.is_finite())
                {
                    return Err(Fault::NotPositive {
                        key,
                        row,
                        column,
                        value,
                    });
                }
            }
        }
        for point in &self.loaded_latencies {
            if self.position(point.node).is_none() {
                return Err(Fault::LoadOfUnknownNode(point.node));
            }
            for (key, value) in [
                (
                    "loaded_latency.bandwidth_bytes_per_s",
                    point.bandwidth_bytes_per_s,
                ),
                ("loaded_latency.latency_ns", point.latency_ns),
            ] {
                if !(value > 0.0 && value.is_finite()) {
                    return Err(Fault::Figure { key, value });
                }
            }
        }
        Ok(())
    }
}

/// The matrix, or `None` if it has no known figure.
pub fn if_known(matrix: Matrix) -> Option<Matrix> {
    let known = matrix.iter().flatten().any(Option::is_some);
    known.then_some(matrix)
}

/// Reads a matrix in which `nan` stands for an unknown figure, because TOML has no null.
pub(crate) fn optional_matrix<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Matrix>, D::Error> {
    let mut matrix = Option::<Matrix>::deserialize(deserializer)?;
    for value in matrix.iter_mut().flatten().flatten() {
        *value = value.filter(|value| !value.is_nan());
    }
    Ok(matrix)
}

#[cfg(test)]
mod tests {
    use crate::{Machine, NodeId};

    fn machine(more: &str) -> Machine {
        let text = format!(
            "name = \"three\"\npage_bytes = 4096\n{more}\n\
            [[node]]\nid = 0\ncpus = \"0\"\n[[node]]\nid = 1\ncpus = \"1\"\n[[node]]\nid = 2\n"
        );
        Machine::from_toml(&text, "three").expect("reads")
    }

    #[test]
    fn gaps_are_filled_from_the_opposite_direction_and_from_distances() {
        let machine = machine(
            "distance = [[10, 20, 40], [20, 10, 30], [40, 30, 10]]\n\
            latency_ns = [[90, nan, 300], [150, nan, nan], [nan, nan, nan]]",
        );
        let weight = |cpu, memory| machine.weight(NodeId(cpu), NodeId(memory)).expect("node");
        assert_eq!((weight(0, 0), weight(0, 2)), (90.0, 300.0));
        // Taken from the opposite direction.
        assert_eq!((weight(0, 1), weight(2, 0)), (150.0, 300.0));
        // Scaled from the distance: 9, 7.5 and 7.5 ns per unit.
        assert!((weight(1, 1) - 80.0).abs() < 1e-9);
        assert!((weight(1, 2) - 240.0).abs() < 1e-9);
        let timing = machine.timing().expect("timing");
        assert_eq!(timing.latency_ns, machine.weights());
        assert!(
            timing
                .assumed
                .iter()
                .any(|words| words.contains("opposite")),
            "{:?}",
            timing.assumed
        );
    }

    #[test]
    fn known_local_latency_sets_the_scale_of_its_row() {
        let machine = machine("latency_ns = [[80, nan, nan], [nan, 100, nan], [nan, nan, nan]]");
        let weight = |cpu, memory| machine.weight(NodeId(cpu), NodeId(memory)).expect("node");
        assert_eq!((weight(0, 1), weight(1, 0)), (160.0, 200.0));
    }

    #[test]
    fn the_best_read_limits_a_simulated_controller() {
        let machine = machine(
            "[bandwidth]\nread_bytes_per_s = [[5e9, 2e9, nan], [1e9, 6e9, nan], [nan, nan, nan]]",
        );
        let timing = machine.timing().expect("timing");
        assert_eq!(timing.memory_bandwidth_bytes_per_s, Some(6e9));
        let json = serde_json::to_value(&machine).expect("JSON");
        assert!(json["bandwidth"]["read_bytes_per_s"][0][2].is_null());
        assert_eq!(
            serde_json::from_value::<Machine>(json).expect("reads"),
            machine
        );
    }
}
