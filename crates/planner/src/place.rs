//! Where threads run: the places that a page can be near to.

use nearpage_attribution::{Attribution, Cell};
use nearpage_machine::{CpuList, Machine, NodeId, ThreadPlacement, thread_cpus};
use nearpage_recording::{Thread, ThreadIndex};

use crate::holder::Holder;

/// The node of every thread of a recording, by [`ThreadIndex`], when the recording's program runs on
/// `machine` with its threads laid out by `placement`.
///
/// Thread `k` of a team of `T` runs where [`thread_cpus`] puts it; a thread of no team runs where the
/// first of its process does. With [`ThreadPlacement::None`] a thread stays on the node where it was
/// seen most, if the machine has that CPU.
pub fn thread_nodes(
    attribution: &Attribution,
    threads: &[Thread],
    machine: &Machine,
    placement: ThreadPlacement,
    allowed: Option<&CpuList>,
) -> Vec<NodeId> {
    let pinned = match placement {
        ThreadPlacement::None => ThreadPlacement::Compact,
        pinned => pinned,
    };
    let node_of_share = |index: usize, count: usize| {
        let cpus = thread_cpus(machine, count, pinned, allowed);
        cpus.get(index).and_then(|&cpu| machine.node_of(cpu))
    };
    let fallback = machine
        .nodes
        .iter()
        .find(|node| !node.cpus.is_empty())
        .map_or(NodeId(0), |node| node.id);
    let first = node_of_share(0, 1).unwrap_or(fallback);
    let mut nodes = vec![first; threads.len().max(attribution.threads.len())];
    for team in &attribution.teams {
        let cpus = thread_cpus(machine, team.threads.len(), pinned, allowed);
        for (thread, &cpu) in team.threads.iter().zip(&cpus) {
            if let (Some(slot), Some(node)) =
                (nodes.get_mut(thread.0 as usize), machine.node_of(cpu))
            {
                *slot = node;
            }
        }
    }
    if placement == ThreadPlacement::None {
        for (slot, totals) in nodes.iter_mut().zip(&attribution.threads) {
            let most = totals.cpus.iter().max_by(|a, b| a.1.total_cmp(&b.1));
            if let Some(node) = most.and_then(|&(cpu, _)| machine.node_of(cpu)) {
                *slot = node;
            }
        }
    }
    nodes
}

/// Places are the machine's nodes, by position. On a machine of one node there would be nothing to
/// decide, and the plan could not serve another machine: there, every thread is a place of its own.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Of each thread, by [`ThreadIndex`]; none for threads of other processes.
    of_thread: Vec<Option<usize>>,
    kind: Kind,
    /// Can a page be put there?
    holds: Vec<bool>,
}

#[derive(Clone, Debug)]
enum Kind {
    Nodes {
        ids: Vec<NodeId>,
        /// `[reader's place][memory's place]`.
        weights: Vec<Vec<f64>>,
    },
    Threads,
}

impl Places {
    /// The places of process `pid`'s threads.
    pub fn new(machine: &Machine, thread_nodes: &[NodeId], threads: &[Thread], pid: u32) -> Self {
        let ours = |thread: usize| threads.get(thread).is_some_and(|thread| thread.pid == pid);
        let count = thread_nodes.len();
        if machine.nodes.len() == 1 {
            return Self {
                of_thread: (0..count)
                    .map(|thread| ours(thread).then_some(thread))
                    .collect(),
                kind: Kind::Threads,
                holds: vec![true; count],
            };
        }
        let with_memory = machine.nodes_with_memory();
        Self {
            of_thread: thread_nodes
                .iter()
                .enumerate()
                .map(|(thread, &node)| ours(thread).then(|| machine.position(node)).flatten())
                .collect(),
            kind: Kind::Nodes {
                ids: machine.node_ids(),
                weights: machine.weights(),
            },
            holds: machine
                .nodes
                .iter()
                .map(|node| with_memory.contains(&node.id))
                .collect(),
        }
    }

    /// Where a thread runs; none for threads of other processes.
    pub fn of(&self, thread: ThreadIndex) -> Option<usize> {
        self.of_thread.get(thread.0 as usize).copied().flatten()
    }

    /// Is the thread one of the process that is being decided for?
    pub fn knows(&self, thread: ThreadIndex) -> bool {
        self.of(thread).is_some()
    }

    /// The node of a place, where places are nodes.
    pub fn node(&self, place: usize) -> Option<NodeId> {
        match &self.kind {
            Kind::Nodes { ids, .. } => ids.get(place).copied(),
            Kind::Threads => None,
        }
    }

    /// The place of a node, where places are nodes.
    pub fn position(&self, node: NodeId) -> Option<usize> {
        match &self.kind {
            Kind::Nodes { ids, .. } => ids.iter().position(|&id| id == node),
            Kind::Threads => None,
        }
    }

    /// The place of a page's holder; none for pages that are spread or copied.
    pub fn of_holder(&self, holder: Holder) -> Option<usize> {
        match holder {
            Holder::Thread(thread) => self.of(thread),
            Holder::Node(node) => self.position(node),
            Holder::Spread(_) | Holder::Everywhere => None,
        }
    }

    /// Are places threads, for want of a second node?
    pub fn are_threads(&self) -> bool {
        matches!(self.kind, Kind::Threads)
    }

    /// Weights `[reader][memory]`, where places are nodes.
    pub fn weights(&self) -> Option<&[Vec<f64>]> {
        match &self.kind {
            Kind::Nodes { weights, .. } => Some(weights),
            Kind::Threads => None,
        }
    }

    /// Can a page be put there, by place?
    pub fn holds(&self) -> &[bool] {
        &self.holds
    }

    /// The accesses of some cells by place: ascending, each place once.
    pub fn histogram(&self, cells: &[Cell]) -> Vec<(usize, f64)> {
        let mut counts: Vec<(usize, f64)> = cells
            .iter()
            .filter_map(|cell| Some((self.of(cell.thread)?, cell.accesses())))
            .collect();
        counts.sort_by_key(|&(place, _)| place);
        counts.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        counts
    }
}
