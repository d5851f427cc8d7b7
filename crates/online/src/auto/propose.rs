//! Proposal of the best action for a page, from its observed references.

use super::{Auto, LANES};
use crate::{ActionKind, Copies};

/// Saving of the observed references of a page if `node` had served them, and its variance.
pub(super) struct Saving {
    pub node: usize,
    pub saved_ns: f64,
    pub variance: f64,
}

/// A possible action on a page, and its saving.
pub(super) struct Proposal {
    pub kind: ActionKind,
    pub saving: Saving,
    /// Number of times that the cost is doubled, because the page was moved or collapsed before.
    pub doublings: u8,
    pub rule: &'static str,
}

impl Auto {
    /// The node that would have saved most for the observed references of a page; of equal nodes, the last.
    #[inline]
    fn best_home(&self, page: u32, copies: Copies) -> Saving {
        let row = &self.counts[page as usize * self.nodes..][..self.nodes];
        let used = row
            .iter()
            .rev()
            .fold(0u64, |used, &count| used << 1 | u64::from(count > 0));
        let mut best = Saving {
            node: 0,
            saved_ns: f64::NEG_INFINITY,
            variance: 0.0,
        };
        for first in (0..self.nodes).step_by(LANES) {
            let of_lanes = |all: &[f64]| *all.first_chunk::<LANES>().expect("whole lanes");
            let waits_ns = of_lanes(&self.wait_ns[first..]);
            let (mut saved_ns, mut variance) = ([0.0; LANES], [0.0; LANES]);
            let mut users = used & self.inhabited;
            while users != 0 {
                let node = users.trailing_zeros() as usize;
                users &= users - 1;
                let count = f64::from(row[node]);
                let now_ns = self.loaded(node, self.serving(node, copies));
                let waited_for = self.waited_for();
                let latencies_ns = of_lanes(&self.latency_ns[node * self.wait_ns.len() + first..]);
                for lane in 0..LANES {
                    let loaded_ns = latencies_ns[lane] + waits_ns[lane];
                    let each_ns = waited_for * (now_ns - loaded_ns);
                    saved_ns[lane] += count * each_ns;
                    variance[lane] += count * each_ns * each_ns;
                }
            }
            for lane in 0..LANES {
                let has_memory = self.memory_nodes >> (first + lane) & 1 == 1;
                if has_memory && saved_ns[lane] >= best.saved_ns {
                    best = Saving {
                        node: first + lane,
                        saved_ns: saved_ns[lane],
                        variance: variance[lane],
                    };
                }
            }
        }
        best
    }

    /// The best action for a page: a copy on `node`, or a move.
    #[inline]
    pub(super) fn propose(&self, page: u32, node: usize, copies: Copies) -> Proposal {
        let state = &self.pages[page as usize];
        let saving = self.best_home(page, copies);
        let may_copy = self.replication
            && state.stores == 0
            && self.memory_nodes >> node & 1 == 1
            && !copies.on(node as u16);
        if may_copy {
            // A copy saves only the references of its node; all others are served as before.
            let count = match self.inhabited >> node & 1 {
                0 => 0.0,
                _ => f64::from(self.counts[page as usize * self.nodes + node]),
            };
            let now_ns = self.loaded(node, self.serving(node, copies));
            let each_ns = self.waited_for() * (now_ns - self.loaded(node, node));
            // A move is preferred to an equal copy: a page with one user moves.
            if count * each_ns > saving.saved_ns {
                return Proposal {
                    kind: ActionKind::Replicate,
                    saving: Saving {
                        node,
                        saved_ns: count * each_ns,
                        variance: count * each_ns * each_ns,
                    },
                    doublings: state.collapses,
                    rule: "reads by a node without a copy would have paid for one, and no store was seen of late",
                };
            }
        }
        let (kind, rule) = match self.is_nearer(page, saving.node, copies) {
            true => (
                ActionKind::Migrate,
                "its references so far would have paid for moving it nearer",
            ),
            false => (
                ActionKind::Interleave,
                "its references so far would have paid for moving it to a less busy node",
            ),
        };
        Proposal {
            kind,
            saving,
            doublings: state.moves,
            rule,
        }
    }

    /// Would a page's references have taken less time on the node `target`, without waits at controllers?
    fn is_nearer(&self, page: u32, target: usize, copies: Copies) -> bool {
        let row = &self.counts[page as usize * self.nodes..][..self.nodes];
        let saved_ns = row.iter().enumerate().map(|(node, &count)| {
            let lives = f64::from(u8::from(self.inhabited >> node & 1 == 1));
            let nearer_ns =
                self.latency(node, self.serving(node, copies)) - self.latency(node, target);
            lives * f64::from(count) * nearer_ns
        });
        saved_ns.sum::<f64>() > 0.0
    }
}
