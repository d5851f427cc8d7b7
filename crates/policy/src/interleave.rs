//! Interleaving: the baseline of Marathe §9.3, and what suits objects that all threads share.

use std::collections::BTreeSet;

use nearpage_attribution::ObjectGroup;
use nearpage_machine::NodeId;
use nearpage_plan::Placement;

use crate::plan::Context;

/// Round-robin over the nodes that the object's threads run on: over all nodes, written without
/// their names, where threads run on all of them or there is one node only (so that the plan serves
/// other machines). `None` where all its threads run on one of several nodes: first touch by any of
/// them is local already.
pub(crate) fn over_users(context: &Context, group: &ObjectGroup) -> Option<Placement> {
    let users: BTreeSet<NodeId> = group
        .threads
        .iter()
        .filter(|(thread, ..)| context.places.knows(*thread))
        .filter_map(|(thread, ..)| context.thread_nodes.get(thread.0 as usize).copied())
        .collect();
    let machine = context.machine;
    let with_cpus = machine
        .nodes
        .iter()
        .filter(|node| !node.cpus.is_empty())
        .count();
    if users.len() == with_cpus {
        return Some(everywhere());
    }
    let memory = machine.nodes_with_memory();
    let nodes: Vec<_> = users
        .iter()
        .filter(|node| memory.contains(node))
        .map(|&node| (node, 1))
        .collect();
    (nodes.len() > 1).then_some(Placement::Interleave { nodes })
}

/// Round-robin over all nodes with memory.
pub(crate) fn everywhere() -> Placement {
    Placement::Interleave { nodes: Vec::new() }
}
