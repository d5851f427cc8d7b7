//! Latency of memory as a function of load.
//!
//! A measured curve (`[[loaded_latency]]`) is interpolated. Without a curve, the latency follows from three figures:
//! the idle latency L, the peak bandwidth B, and one constant for all machines:
//!
//! ```text
//! latency(b) = L × (1 + KNEE × u ÷ √(1 − u)),   u = b ÷ B
//! ```
//!
//! Below half of the peak, busy memory banks delay requests in proportion to the load. Near the peak, requests queue.
//! The divisor is √(1 − u) as in published curves, not 1 − u: processors limit their outstanding requests.
//!
//! `KNEE` was fitted to curves that Intel's Memory Latency Checker printed on four machines (Xeon Platinum 8180, Xeon
//! Silver 4110, a two-socket server, a machine with one node). Each of their fourteen points between 30 % and 85 % of
//! the peak gives a constant from 0.27 to 0.44, 0.36 on average. The points nearest to the peak, which matter most,
//! give 0.27 to 0.35. `crates/machine/tests/load.rs` compares the model with these curves; `tests/real.rs` compares it
//! with a fifth curve, which was not used to fit the constant but was known when the formula was chosen.
//!
//! Plans and simulations use another model of load: a queue that serves one line at a time. Messages about a measured
//! curve therefore state the errors of both models.

use nearpage_amount::percent;

use crate::{LoadedLatency, Machine, NodeId};

/// Factor of u ÷ √(1 − u): the latency that load adds, as a share of the idle latency.
const KNEE: f64 = 1.0 / 3.0;
/// Share of the peak above which the model assumes constant latency.
const UTILISATION_MAX: f64 = 0.99;
/// Share of the peak up to which the model is compared with curves.
const JUDGED_UTILISATION_MAX: f64 = 0.85;

/// Latency of one node's memory for the CPUs of one node, as a function of load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadModel {
    /// Latency without load, in nanoseconds.
    pub idle_ns: f64,
    /// Peak bandwidth, in bytes per second.
    pub peak_bytes_per_s: f64,
    /// Bytes that a request transfers.
    pub line_bytes: u32,
    /// Measured points in bytes per second and nanoseconds, ascending in bandwidth. Empty: the formula applies.
    pub curve: Vec<(f64, f64)>,
}

/// Errors of a model against a measured curve, over the points up to 85 % of the peak.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadModelError {
    /// Median of the absolute relative errors.
    pub median: f64,
    /// Greatest absolute relative error.
    pub worst: f64,
    /// Number of points compared.
    pub points: usize,
}

impl LoadModel {
    /// Latency in nanoseconds at a load of `bytes_per_s`.
    pub fn latency_ns(&self, bytes_per_s: f64) -> f64 {
        let after = self.curve.iter().position(|point| point.0 >= bytes_per_s);
        match (self.curve.as_slice(), after) {
            ([], _) => self.knee_ns(bytes_per_s),
            // Below the first point, the curve begins at the idle latency.
            ([first, ..], Some(0)) => {
                between((0.0, self.idle_ns.min(first.1)), *first, bytes_per_s)
            }
            (curve, Some(at)) => between(curve[at - 1], curve[at], bytes_per_s),
            (curve, None) => curve[curve.len() - 1].1,
        }
    }

    /// Latency in nanoseconds by the formula, without the measured curve.
    pub fn knee_ns(&self, bytes_per_s: f64) -> f64 {
        let utilisation = (bytes_per_s / self.peak_bytes_per_s).clamp(0.0, UTILISATION_MAX);
        self.idle_ns * (1.0 + KNEE * utilisation / (1.0 - utilisation).sqrt())
    }

    /// Latency in nanoseconds by the queue that plans and simulations use (Pollaczek and Khinchine). Requests arrive at
    /// random, and the controller is busy with each for the time of a line at the peak bandwidth.
    pub fn queue_ns(&self, bytes_per_s: f64) -> f64 {
        let utilisation = (bytes_per_s / self.peak_bytes_per_s).clamp(0.0, UTILISATION_MAX);
        let line_ns = f64::from(self.line_bytes) / self.peak_bytes_per_s * 1e9;
        self.idle_ns + line_ns / 2.0 * utilisation / (1.0 - utilisation)
    }
}

/// Linear interpolation between two points.
fn between(before: (f64, f64), after: (f64, f64), at: f64) -> f64 {
    let width = after.0 - before.0;
    match width > 0.0 {
        true => before.1 + (after.1 - before.1) * ((at - before.0) / width).clamp(0.0, 1.0),
        false => after.1,
    }
}

impl Machine {
    /// Latency as a function of load, from the CPUs of one node to the memory of another; `None` if no latency in
    /// nanoseconds or no read bandwidth is known between the nodes.
    pub fn load_model(&self, cpu_node: NodeId, memory_node: NodeId) -> Option<LoadModel> {
        let (row, column) = (self.position(cpu_node)?, self.position(memory_node)?);
        self.latency_ns.as_ref()?;
        let read = self.bandwidth.read_bytes_per_s.as_ref();
        let known = read.and_then(|read| read[row][column]);
        let local = self.memory.bandwidth_bytes_per_s.filter(|_| row == column);
        let mut curve: Vec<(f64, f64)> = match row == column {
            true => self.curve_of(memory_node).collect(),
            false => Vec::new(),
        };
        curve.sort_by(|one, other| one.0.total_cmp(&other.0));
        let measured = curve.last().map(|point| point.0);
        Some(LoadModel {
            idle_ns: self.weight(cpu_node, memory_node)?,
            peak_bytes_per_s: known.or(local).or(measured)?,
            line_bytes: self.line_bytes(),
            curve,
        })
    }

    /// Measured points of a node, in bytes per second and nanoseconds.
    fn curve_of(&self, node: NodeId) -> impl Iterator<Item = (f64, f64)> {
        let of_node = self
            .loaded_latencies
            .iter()
            .filter(move |point| point.node == node);
        of_node.map(|point: &LoadedLatency| (point.bandwidth_bytes_per_s, point.latency_ns))
    }

    /// Errors of [`LoadModel::knee_ns`] or [`LoadModel::queue_ns`] against measured curves; `None` without curves.
    pub fn load_model_error(&self, model_ns: fn(&LoadModel, f64) -> f64) -> Option<LoadModelError> {
        let mut errors = Vec::new();
        for node in self.node_ids() {
            let Some(model) = self.load_model(node, node) else {
                continue;
            };
            for &(bytes_per_s, ns) in &model.curve {
                if bytes_per_s <= JUDGED_UTILISATION_MAX * model.peak_bytes_per_s {
                    errors.push((model_ns(&model, bytes_per_s) / ns - 1.0).abs());
                }
            }
        }
        errors.sort_by(f64::total_cmp);
        Some(LoadModelError {
            median: *errors.get(errors.len() / 2)?,
            worst: *errors.last()?,
            points: errors.len(),
        })
    }

    /// The errors of both models in words, for users who measure or import a machine.
    pub fn load_model_error_in_words(&self) -> Option<String> {
        let knee = self.load_model_error(LoadModel::knee_ns)?;
        let queue = self.load_model_error(LoadModel::queue_ns)?;
        Some(format!(
            "latency under load differs from the model of idle latency and bandwidth by {} (median) and {} (worst) \
             over {} points up to 85 % of the peak, and from the queue that plans and simulations have by {} and {}",
            percent(knee.median),
            percent(knee.worst),
            knee.points,
            percent(queue.median),
            percent(queue.worst)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(curve: &[(f64, f64)]) -> LoadModel {
        LoadModel {
            idle_ns: 90.0,
            peak_bytes_per_s: 100e9,
            line_bytes: 64,
            curve: curve.to_vec(),
        }
    }

    #[test]
    fn latency_grows_with_load_from_the_idle_latency_on() {
        let model = model(&[]);
        assert_eq!(model.latency_ns(0.0), 90.0);
        let mut before = 0.0;
        for load in 0..150 {
            let latency = model.latency_ns(f64::from(load) * 1e9);
            assert!(
                latency >= before && latency.is_finite(),
                "{load}: {latency}"
            );
            before = latency;
        }
        // The expected value is 90 × (1 + 0.75 ÷ 3 ÷ √0.25).
        assert_eq!(model.latency_ns(75e9), 135.0);
        // The expected value is 90 + 0.64 ÷ 2 × 0.75 ÷ 0.25.
        assert!((model.queue_ns(75e9) - 90.96).abs() < 1e-9);
    }

    #[test]
    fn a_curve_is_followed() {
        let model = model(&[(10e9, 100.0), (30e9, 120.0), (30e9, 125.0), (60e9, 200.0)]);
        for (load, latency) in [
            (0.0, 90.0),
            (5e9, 95.0),
            (20e9, 110.0),
            (45e9, 162.5),
            (90e9, 200.0),
        ] {
            assert_eq!(model.latency_ns(load), latency, "{load}");
        }
    }
}
