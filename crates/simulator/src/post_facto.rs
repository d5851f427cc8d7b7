//! The best static placement, known afterwards.

use nearpage_policy::affinity::hop_sensitive;
use nearpage_recording::trace::{Happening, Served, StepBatch};

use crate::Error;
use crate::figures::Figures;
use crate::trace::Trace;

/// For each page the node on which its misses, over the whole trace, take the least unloaded
/// latency (Verghese §6.2.1); of several, the first. `None` for pages that are only touched. Under
/// contention no choice page by page is best: where many pages have the same best node, they share
/// its controller.
pub(crate) fn homes(
    trace: &dyn Trace,
    figures: &Figures,
    latency_ns: &[Vec<f64>],
) -> Result<Vec<Option<u16>>, Error> {
    let (pages, nodes) = (trace.pages(), figures.nodes);
    let mut misses = vec![0u32; pages * nodes];
    let mut batch = StepBatch::default();
    for (thread, mut steps) in trace.threads()? {
        let mut node = figures.node(thread.cpu)?;
        while steps.next(&mut batch)? {
            let mut moves = batch
                .happenings
                .iter()
                .filter_map(|&(before, _, what)| match what {
                    Happening::Move(cpu) => Some((before, cpu)),
                    _ => None,
                });
            let mut next = moves.next();
            for (position, miss) in batch.misses.iter().enumerate() {
                while let Some((_, cpu)) = next.filter(|&(before, _)| before <= position) {
                    node = figures.node(cpu)?;
                    next = moves.next();
                }
                if matches!(
                    miss.served,
                    Served::Memory | Served::OtherCache | Served::Upgrade
                ) {
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
    Ok(misses.chunks_exact(nodes).map(home).collect())
}
