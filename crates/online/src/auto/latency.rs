//! Time of references: unloaded latency, and waits at the controllers.

use super::Auto;

/// Distance of a node's own memory in the firmware's table (ACPI SLIT).
const LOCAL_DISTANCE: f64 = 10.0;

impl Auto {
    /// Scales latencies by the firmware's distances, in which a node's own memory has 10: `remote_ns` is then the
    /// saving of a reference to memory at distance 20. A matrix of another size is ignored.
    #[must_use]
    pub fn with_distances(mut self, distance: &[Vec<u32>]) -> Self {
        let nodes = self.nodes;
        if distance.len() != nodes || distance.iter().any(|row| row.len() != nodes) {
            return self;
        }
        for (node, row) in distance.iter().enumerate() {
            for (memory, &distance) in row.iter().enumerate().filter(|(at, _)| *at != node) {
                let farther = 1.0 - LOCAL_DISTANCE / f64::from(distance.max(10));
                self.latency_ns[node * self.wait_ns.len() + memory] *= 2.0 * farther;
            }
        }
        self
    }

    /// Unloaded time of a reference from a node to another's memory.
    #[inline]
    pub(super) fn latency(&self, node: usize, memory: usize) -> f64 {
        self.latency_ns[node * self.wait_ns.len() + memory]
    }

    #[inline]
    pub(super) fn loaded(&self, node: usize, memory: usize) -> f64 {
        self.latency(node, memory) + self.wait_ns[memory]
    }

    /// Computes waits from the load by the Pollaczek-Khinchine formula for equal service times. A wait is at most the
    /// service time of as many requests as there are nodes.
    pub(super) fn wait(&mut self) {
        let (length, service) = (self.check_ns as f64, self.service_ns);
        let most = self.nodes as f64 * service;
        for (wait, requests) in self.wait_ns.iter_mut().zip(&self.requests) {
            let busy = (requests * service / length).min(1.0);
            *wait = match 2.0 * (1.0 - busy) * most <= busy * service {
                true => most,
                false => busy * service / (2.0 * (1.0 - busy)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{AutoParameters, Setting};

    use super::*;

    #[test]
    fn slightly_nearer_memory_saves_little() {
        let parameters = AutoParameters {
            remote_ns: 1000,
            cost_ns: 10,
            ..AutoParameters::default()
        };
        let setting = Setting {
            nodes: 2,
            pages: 1,
            clock_ghz: 1.0,
            memory_nodes: 0b11,
            near_memory_nodes: 0b11,
            cpus_per_node: 1,
            every: 1,
            seed: 0,
        };
        let auto = || Auto::new(&parameters, &setting, None).unwrap();
        let remote_ns = |distance: &[Vec<u32>]| auto().with_distances(distance).latency(0, 1);
        assert_eq!(remote_ns(&[vec![10, 20], vec![20, 10]]), 1000.0);
        assert!((remote_ns(&[vec![10, 13], vec![13, 10]]) - 461.5).abs() < 0.1);
        for unknown in [&[][..], &[vec![10, 20]], &[vec![10], vec![10]]] {
            assert_eq!(remote_ns(unknown), 1000.0);
        }
        let auto = auto().with_distances(&[vec![10, 13], vec![13, 10]]);
        assert_eq!(auto.latency(1, 1), 0.0);
    }
}
