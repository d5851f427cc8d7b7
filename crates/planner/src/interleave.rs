//! Interleaving: the baseline of Marathe §9.3, and the placement of objects that all threads share.

use std::collections::BTreeSet;

use nearpage_attribution::ObjectGroup;
use nearpage_machine::NodeId;
use nearpage_plan::Placement;

use crate::context::Context;

/// Round-robin over all nodes. Nodes are not named, so the plan serves machines with other nodes; also, it depends on
/// chance which threads were sampled on an object. `None` if all its threads run on one of several nodes: first touch
/// by any of them is local already.
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
    (users.len() > 1 || users.len() == with_cpus).then(everywhere)
}

/// Round-robin over all nodes with memory.
pub(crate) fn everywhere() -> Placement {
    Placement::Interleave { nodes: Vec::new() }
}
