//! Tracking of the policy's actions: the policy is told where pages are when the actions are done or given up.

use nearpage_online::{Action, ActionKind};
use rustc_hash::FxHashMap;

use super::Daemon;
use crate::decide::PageHome;

/// Actions that are neither done nor given up, and pages to tell the policy about.
#[derive(Debug, Default)]
pub(super) struct PendingActions {
    /// Kind of the last action on each page, by the page's number.
    open: FxHashMap<u32, ActionKind>,
    /// Pages that were moved in this interval, including moves back.
    pub moved: Vec<u32>,
    settled: Vec<PageHome>,
}

impl PendingActions {
    /// Adds the policy's current actions.
    pub fn add(&mut self, actions: &[Action]) {
        let requested = actions.iter().map(|action| (action.page, action.kind));
        self.open.extend(requested);
    }

    /// Returns the pages that the policy has not been told about.
    pub fn take_settled(&mut self) -> Vec<PageHome> {
        std::mem::take(&mut self.settled)
    }
}

impl Daemon {
    /// Finds the actions that are done or given up, at the end of an interval's moves.
    pub(super) fn settle(&mut self) {
        let mut numbers = std::mem::take(&mut self.pending_actions.moved);
        for (&number, &kind) in &self.pending_actions.open {
            if kind == ActionKind::Collapse {
                // Without interleaving, the page may move to a single node again.
                self.interleaved.forget(number);
            }
            let is_pending = self.pages.page(number).is_some_and(|page| {
                let process = self.processes.get(&page.process);
                process.is_some_and(|process| process.is_pending(&page))
            });
            if !is_pending {
                numbers.push(number);
            }
        }
        numbers.extend(self.interleaved.take_ended());
        numbers.sort_unstable();
        numbers.dedup();
        for number in numbers {
            self.pending_actions.open.remove(&number);
            // A policy sees a page that is interleaved instead of replicated as a page with copies.
            let home = self.homes.of(number);
            if let Some(home) = home.filter(|_| !self.interleaved.has(number)) {
                let page = number;
                self.pending_actions.settled.push(PageHome { page, home });
            }
        }
    }
}
