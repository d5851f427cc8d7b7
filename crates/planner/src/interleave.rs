//! Interleaving: the baseline of Marathe §9.3, and the placement of objects that all threads share.

use std::collections::BTreeSet;

use nearpage_attribution::ObjectGroup;
use nearpage_machine::{Machine, NodeId};
use nearpage_plan::Placement;

use crate::context::Context;

/// Round-robin over all nodes whose memory is about as near as that of the others ([`near`]). `None` if all its threads
/// run on one of several nodes: first touch by any of them is local already.
pub(crate) fn unless_users_share_a_node(
    context: &Context,
    group: &ObjectGroup,
) -> Option<Placement> {
    let users: BTreeSet<NodeId> = group
        .threads
        .iter()
        .filter(|(thread, ..)| context.places.knows(*thread))
        .filter_map(|(thread, ..)| context.thread_nodes.get(thread.0 as usize).copied())
        .collect();
    let with_cpus = context.machine.nodes.iter();
    let with_cpus = with_cpus.filter(|node| !node.cpus.is_empty()).count();
    let is_for_several = users.len() > 1 || users.len() == with_cpus;
    is_for_several.then(|| near(context.machine)).flatten()
}

/// Round-robin over all nodes but far ones without CPUs ([`Machine::nodes_with_near_memory`]). If there are none, no node
/// is named, so that the plan serves machines with other nodes, and does not depend on which threads happened to be
/// sampled. `None` if far nodes leave one: first touch puts pages there.
pub(crate) fn near(machine: &Machine) -> Option<Placement> {
    let near = machine.nodes_with_near_memory();
    match near.len() {
        all if all == machine.nodes_with_memory().len() => Some(everywhere()),
        0 | 1 => None,
        _ => Some(Placement::Interleave {
            nodes: near.into_iter().map(|id| (id, 1)).collect(),
        }),
    }
}

/// Round-robin over all nodes with memory.
pub(crate) fn everywhere() -> Placement {
    Placement::Interleave { nodes: Vec::new() }
}

/// Accesses that differ less than this between nodes count as even.
const EVEN_DIFFERENCE_MAX: f64 = 0.25;
/// Largest weight of a node, the most exact first.
const WEIGHTS_MAX: [f64; 3] = [8.0, 4.0, 2.0];

/// Interleaving with weights by the nodes' accesses; `None` if accesses come evenly from all nodes with CPUs, or from one
/// alone. Each node gets as many pages in turn as its weight says, and an object with fewer pages than all weights together
/// would lie on the first nodes alone. So such an object gets smaller weights, or none.
pub(crate) fn weighted(context: &Context, group: &ObjectGroup) -> Option<Placement> {
    let with_memory = context.machine.nodes_with_memory();
    let mut by_node: Vec<(NodeId, f64)> = with_memory.iter().map(|&node| (node, 0.0)).collect();
    for cell in &group.affinity.cells {
        let reader = context.node_position(cell.thread);
        let node = reader.and_then(|at| context.machine.nodes.get(at))?.id;
        if let Some(entry) = by_node.iter_mut().find(|entry| entry.0 == node) {
            entry.1 += cell.accesses();
        }
    }
    let most = by_node.iter().map(|node| node.1).fold(0.0, f64::max);
    let with_cpus = by_node
        .iter()
        .filter(|node| context.machine.has_cpus(node.0));
    let least = with_cpus.map(|node| node.1).fold(f64::MAX, f64::min);
    if most <= 0.0 || least >= (1.0 - EVEN_DIFFERENCE_MAX) * most {
        return None;
    }
    let pages = group.size_bytes / context.page_bytes;
    let weights = |weight_max: f64| -> Vec<(NodeId, u32)> {
        let by_node = by_node.iter();
        by_node
            .map(|&(node, count)| (node, (weight_max * count / most).round() as u32))
            .filter(|node| node.1 > 0)
            .collect()
    };
    let fits = |nodes: &Vec<(NodeId, u32)>| {
        nodes.len() > 1 && nodes.iter().map(|node| u64::from(node.1)).sum::<u64>() <= pages
    };
    let nodes = WEIGHTS_MAX.into_iter().map(weights).find(fits)?;
    Some(Placement::Interleave { nodes })
}
