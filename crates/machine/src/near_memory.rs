//! Memory that is about as near to the CPUs as the memory beside them.

use crate::{Machine, NodeId};

/// A node without CPUs is far if its memory takes this many times as long as the memory beside CPUs does on average.
const FAR_WEIGHT_MIN: f64 = 1.25;

impl Machine {
    /// Whether the node with this number has CPUs.
    pub fn has_cpus(&self, id: NodeId) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.id == id && !node.cpus.is_empty())
    }

    /// Bit n is set: the node at position n is one of `nodes`. Positions from 64 on have no bit.
    pub fn position_bits(&self, nodes: &[NodeId]) -> u64 {
        let positions = nodes.iter().filter_map(|id| self.position(*id));
        let bits = positions.filter(|at| *at < 64).map(|at| 1 << at);
        bits.fold(0, |all, bit: u64| all | bit)
    }

    /// All nodes with memory, but for those that have no CPUs and whose memory is clearly farther from the CPUs than the
    /// other nodes' is: an expander's, not high-bandwidth memory. Pages that all threads use alike lose by lying there.
    pub fn nodes_with_near_memory(&self) -> Vec<NodeId> {
        let has_cpus = |id: &NodeId| self.has_cpus(*id);
        let ids = self.node_ids();
        let readers: Vec<&NodeId> = ids.iter().filter(|id| has_cpus(id)).collect();
        let mean_weight = |memory: &NodeId| {
            let weights = readers.iter().filter_map(|cpu| self.weight(**cpu, *memory));
            mean(weights.collect())
        };
        let mut nodes = self.nodes_with_memory();
        let beside_cpus = nodes.iter().filter(|id| has_cpus(id));
        // No number, so that no memory is far, if none is beside CPUs.
        let most = FAR_WEIGHT_MIN * mean(beside_cpus.map(mean_weight).collect());
        let is_far = |id: &NodeId| !has_cpus(id) && mean_weight(id) > most;
        nodes.retain(|id| !is_far(id));
        nodes
    }
}

fn mean(values: Vec<f64>) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset;

    /// Two nodes with CPUs at a distance of 15 on average, and one without CPUs at `distance` from both.
    fn three(distance: u32, cpus: [&str; 2]) -> Machine {
        let [one, other] = cpus;
        let text = format!(
            "name = \"three\"\npage_bytes = 4096\n\
             distance = [[10, 20, {distance}], [20, 10, {distance}], [{distance}, {distance}, 10]]\n\
             [[node]]\nid = 0\n{one}\n[[node]]\nid = 1\n{other}\n[[node]]\nid = 2\n"
        );
        Machine::from_toml(&text, "three").unwrap()
    }

    #[test]
    fn an_expander_is_far_and_memory_as_near_as_others_is_not() {
        let near = |machine: Machine| machine.nodes_with_near_memory();
        let ids = |ids: &[u16]| ids.iter().map(|&id| NodeId(id)).collect::<Vec<_>>();
        let cpus = ["cpus = \"0\"", "cpus = \"1\""];
        assert_eq!(near(three(18, cpus)), ids(&[0, 1, 2]));
        assert_eq!(near(three(30, cpus)), ids(&[0, 1]));
        // Node 1 has no CPUs either, and is at twice the distance of node 0.
        assert_eq!(near(three(18, [cpus[0], ""])), ids(&[0]));
        // A node with CPUs counts, however far from the others.
        assert_eq!(near(preset("epyc-9224-cxl").unwrap()), ids(&[0, 1, 2, 3]));
        let opteron = preset("opteron-4").unwrap();
        assert_eq!(
            opteron.nodes_with_near_memory(),
            opteron.nodes_with_memory()
        );
    }
}
