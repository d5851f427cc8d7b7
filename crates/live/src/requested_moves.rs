//! Translates a policy's actions into moves of pages.

use nearpage_machine::NodeId;
use nearpage_online::{Action, ActionKind};
use rustc_hash::FxHashMap;

use crate::free_memory::FreeMemory;
use crate::homes::Homes;
use crate::interleaved::Interleaved;
use crate::mover::PageMove;
use crate::pages::{HotPages, ProcessIndex};
use crate::process::TargetProcess;

/// Moves that a policy requests of one process after an interval.
#[derive(Debug, Default)]
pub struct RequestedMoves {
    /// Moves in the order of the policy's last requests.
    pub pages: Vec<PageMove>,
    /// Number of moves that interleave instead of replicating.
    pub replications_interleaved: u64,
}

/// Data for the translation.
pub struct MoveRequests<'a> {
    /// Numbers of the machine's nodes, by position.
    pub nodes: &'a [NodeId],
    /// Bit n is set: the node at position n has memory, and is not a far node without CPUs.
    pub near_memory_nodes: u64,
    /// Page size in bytes.
    pub page_bytes: u64,
    /// Pages by number.
    pub pages: &'a HotPages,
    /// Last known node of each page.
    pub homes: &'a Homes,
    /// Free memory of the nodes.
    pub free: &'a FreeMemory,
    /// Processes of the pages.
    pub processes: &'a FxHashMap<ProcessIndex, TargetProcess>,
}

impl MoveRequests<'_> {
    /// The last action on each page that is not on its target node. Replications become interleaving.
    pub fn requested_moves(
        &self,
        actions: &[Action],
        interleaved: &mut Interleaved,
    ) -> FxHashMap<ProcessIndex, RequestedMoves> {
        let mut last: FxHashMap<u32, usize> = FxHashMap::default();
        for (at, action) in actions.iter().enumerate() {
            // No page has replicas that could be collapsed.
            if action.kind != ActionKind::Collapse {
                last.insert(action.page, at);
            }
        }
        let mut ordered: Vec<usize> = last.into_values().collect();
        ordered.sort_unstable();
        let mut requested_moves: FxHashMap<ProcessIndex, RequestedMoves> = FxHashMap::default();
        for at in ordered {
            let action = &actions[at];
            match action.kind {
                ActionKind::Replicate => interleaved.insert(action.page, self.nodes.len()),
                _ if interleaved.stays(action.page, action.node) => continue,
                _ => {}
            }
            if let Some(page_move) = self.page_move(action) {
                let requested_moves = requested_moves.entry(page_move.page.process).or_default();
                requested_moves.pages.push(page_move);
                requested_moves.replications_interleaved +=
                    u64::from(action.kind == ActionKind::Replicate);
            }
        }
        requested_moves
    }

    fn page_move(&self, action: &Action) -> Option<PageMove> {
        let page = self.pages.page(action.page)?;
        let home = self.homes.of(action.page)?;
        let process = self.processes.get(&page.process)?;
        let (start, bytes) = process.space().page(page.address, self.page_bytes);
        if start != page.address {
            return None; // The page has become part of a huge page with another number.
        }
        let to = match action.kind {
            // No stock kernel replicates one address in one process. Interleaving shares distances equally among
            // readers on all nodes, and load among controllers.
            ActionKind::Replicate => self.interleaved(process, start / bytes)?,
            _ => action.node,
        };
        let at = usize::from(to);
        (home != to && at < self.nodes.len() && !self.free.is_full(at)).then(|| PageMove {
            page,
            bytes,
            from: self.nodes[usize::from(home)],
            to: self.nodes[at],
        })
    }

    /// Node of the page with this number if a process's pages are interleaved over its allowed nodes.
    fn interleaved(&self, process: &TargetProcess, number: u64) -> Option<u16> {
        let usable: Vec<usize> = (0..self.nodes.len())
            .filter(|at| self.near_memory_nodes >> at & 1 == 1)
            .filter(|at| process.space().allows(self.nodes[*at]))
            .collect();
        let count = usable.len() as u64;
        (count > 0).then(|| usable[(number % count) as usize] as u16)
    }
}
