//! The places that a page can be near to: nodes, or threads on a machine of one node.

use std::collections::BTreeSet;

use nearpage_attribution::{Attribution, Cell};
use nearpage_machine::{Machine, NodeId};
use nearpage_recording::{Thread, ThreadIndex};

/// Places are the machine's nodes, by position. On a machine of one node every thread is a place of its own: nodes
/// would leave nothing to decide, and the plan could not serve another machine.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    /// Place of each thread, by [`ThreadIndex`]; none for threads that do not matter.
    of_thread: Vec<Option<usize>>,
    kind: Kind,
    /// Whether a page can be put at each place.
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
    /// The places of process `pid`'s threads, and of other processes' threads that access memory which it shares.
    /// `attribution` is the process's ([`Attribution::of_process`]) if there are any.
    pub fn new(
        machine: &Machine,
        thread_nodes: &[NodeId],
        threads: &[Thread],
        attribution: &Attribution,
        pid: u32,
    ) -> Self {
        let shared = attribution.objects.iter();
        let shared = shared.filter(|group| group.is_shared_memory);
        let users: BTreeSet<usize> = shared
            .flat_map(|group| &group.threads)
            .map(|one| one.0.0 as usize)
            .collect();
        let matters = |thread: usize| {
            threads.get(thread).is_some_and(|known| known.pid == pid) || users.contains(&thread)
        };
        let count = thread_nodes.len();
        if machine.nodes.len() == 1 {
            return Self {
                of_thread: (0..count)
                    .map(|thread| matters(thread).then_some(thread))
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
                .map(|(thread, &node)| matters(thread).then(|| machine.position(node)).flatten())
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

    /// The place where a thread runs; none for threads that do not matter.
    pub fn of(&self, thread: ThreadIndex) -> Option<usize> {
        self.of_thread.get(thread.0 as usize).copied().flatten()
    }

    /// True for threads of the process that is being decided for, and for others that access memory which it shares.
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

    /// True on machines of one node, where places are threads.
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

    /// Whether a page can be put at each place.
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
