//! From what a policy wants done to pages that are to move.

use nearpage_machine::NodeId;
use nearpage_online::{Action, ActionKind};
use rustc_hash::FxHashMap;

use crate::free_memory::FreeMemory;
use crate::homes::Homes;
use crate::interleaved::Interleaved;
use crate::mover::PageMove;
use crate::pages::{HotPages, ProcessIndex};
use crate::process::TargetProcess;

/// What a policy wants of one process after an interval.
#[derive(Debug, Default)]
pub struct RequestedMoves {
    /// In the order in which it asked for them last.
    pub pages: Vec<PageMove>,
    /// How many of them stand for replicas.
    pub replications_interleaved: u64,
}

/// What the requested moves are made from.
pub struct MoveRequests<'a> {
    /// The machine's nodes, by position.
    pub nodes: &'a [NodeId],
    /// Bit n: the node at position n has memory.
    pub memory_nodes: u64,
    /// Size of a page.
    pub page_bytes: u64,
    /// What numbers stand for.
    pub pages: &'a HotPages,
    /// Where each page was seen last.
    pub homes: &'a Homes,
    /// How much room there is.
    pub free: &'a FreeMemory,
    /// Whose pages they are.
    pub processes: &'a FxHashMap<ProcessIndex, TargetProcess>,
}

impl MoveRequests<'_> {
    /// The last word on each page that is not where it should be. Those that are to be replicated are
    /// interleaved from now on.
    pub fn requested_moves(
        &self,
        actions: &[Action],
        interleaved: &mut Interleaved,
    ) -> FxHashMap<ProcessIndex, RequestedMoves> {
        let mut last: FxHashMap<u32, usize> = FxHashMap::default();
        for (at, action) in actions.iter().enumerate() {
            // There are no replicas to give up.
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
            return None; // It has become part of a huge page, which has a number of its own.
        }
        let to = match action.kind {
            // No stock kernel has replicas of one address in one process: readers on all nodes
            // get an equal share of the distance, and controllers of the load.
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

    /// The node on which the page of that number belongs when a process's pages are interleaved over
    /// the nodes that it may use.
    fn interleaved(&self, process: &TargetProcess, number: u64) -> Option<u16> {
        let usable: Vec<usize> = (0..self.nodes.len())
            .filter(|at| self.memory_nodes >> at & 1 == 1)
            .filter(|at| process.space().allows(self.nodes[*at]))
            .collect();
        let count = usable.len() as u64;
        (count > 0).then(|| usable[(number % count) as usize] as u16)
    }
}
