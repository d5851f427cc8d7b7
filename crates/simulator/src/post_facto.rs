//! The placement `post-facto`: the best static placement, computed from the misses of the whole trace.

use nearpage_online::best_node::hop_sensitive;
use nearpage_online::{Action, Epoch, Observation, OnlinePolicy};
use nearpage_recording::trace::{Served, StepBatch, Steps, TraceEvent};

use crate::Error;
use crate::figures::Figures;
use crate::trace::Trace;

/// Misses of each page by node, indexed `[page × nodes + node]`.
pub(crate) type Misses = Vec<u32>;

/// Does memory or another cache serve the miss?
fn counts(served: Served) -> bool {
    matches!(
        served,
        Served::Memory | Served::OtherCache | Served::Upgrade
    )
}

/// Counts all misses in the trace, by the nodes on which threads were traced.
pub(crate) fn traced(trace: &dyn Trace, figures: &Figures) -> Result<Misses, Error> {
    let (pages, nodes) = (trace.pages(), figures.nodes);
    let mut misses = vec![0u32; pages * nodes];
    let mut batch = StepBatch::default();
    for (thread, mut steps) in trace.threads()? {
        let mut node = figures.node(thread.cpu)?;
        while steps.next(&mut batch)? {
            let mut moves = batch
                .trace_events
                .iter()
                .filter_map(|&(before, _, what)| match what {
                    TraceEvent::Move(cpu) => Some((before, cpu)),
                    _ => None,
                });
            let mut next = moves.next();
            for (position, miss) in batch.misses.iter().enumerate() {
                while let Some((_, cpu)) = next.filter(|&(before, _)| before <= position) {
                    node = figures.node(cpu)?;
                    next = moves.next();
                }
                if counts(miss.served) {
                    let at = miss.page.0 as usize * nodes + usize::from(node);
                    let page = miss.page.0;
                    let count = misses
                        .get_mut(at)
                        .ok_or(Error::NoSuchPage { page, pages })?;
                    *count = count.saturating_add(1);
                }
            }
            for (_, cpu) in next.into_iter().chain(moves) {
                node = figures.node(cpu)?;
            }
        }
    }
    Ok(misses)
}

/// Counts the misses of a replay: those of its marked phases, or all if no phase is marked.
pub(crate) struct Watching<'a> {
    misses: &'a mut Misses,
    nodes: usize,
    /// Misses count at the moment.
    counts: bool,
    /// A marked phase has begun.
    is_marked: bool,
}

impl<'a> Watching<'a> {
    pub fn new(misses: &'a mut Misses, nodes: usize) -> Self {
        Self {
            misses,
            nodes,
            counts: true,
            is_marked: false,
        }
    }
}

impl OnlinePolicy for Watching<'_> {
    fn epoch_ns(&self) -> Option<u64> {
        None
    }

    fn observe(&mut self, observation: &Observation, _: &mut Vec<Action>) {
        let at = observation.page as usize * self.nodes + usize::from(observation.node);
        if self.counts
            && counts(observation.served)
            && let Some(count) = self.misses.get_mut(at)
        {
            *count = count.saturating_add(1);
        }
    }

    fn end_epoch(&mut self, _: &Epoch<'_>, _: &mut Vec<Action>) {}

    fn forget(&mut self, _: u32) {}

    // Misses before the first marker do not count.
    fn marked(&mut self, begins: bool) {
        if begins && !std::mem::replace(&mut self.is_marked, true) {
            self.misses.fill(0);
        }
        self.counts = begins;
    }
}

/// The node of each page on which its counted misses take the least unloaded latency (Verghese §6.2.1); of equal nodes,
/// the first. `None` for pages without counted misses. With contention, this choice page by page is not the best: pages
/// with the same best node share its controller.
pub(crate) fn homes(
    misses: &Misses,
    figures: &Figures,
    latency_ns: &[Vec<f64>],
) -> Vec<Option<u16>> {
    let nodes = figures.nodes;
    let with_memory: Vec<bool> = (0..nodes as u16)
        .map(|node| figures.memory_nodes.contains(&node))
        .collect();
    let mut users = Vec::with_capacity(nodes);
    let home = |row: &[u32]| {
        users.clear();
        users.extend(
            row.iter()
                .enumerate()
                .filter(|user| *user.1 > 0)
                .map(|(node, &count)| (node, f64::from(count))),
        );
        hop_sensitive(&users, latency_ns, &with_memory).map(|node| node as u16)
    };
    misses.chunks_exact(nodes).map(home).collect()
}
