//! What becomes of the actions that the policy asks for: it is told where pages are in the end.

use nearpage_online::{Action, ActionKind};
use rustc_hash::FxHashMap;

use super::Daemon;
use crate::decide::PageHome;

/// Actions that are neither done nor given up, and pages to tell the policy of.
#[derive(Debug, Default)]
pub(super) struct PendingActions {
    /// The last action on each page, by number.
    open: FxHashMap<u32, ActionKind>,
    /// Pages that were moved in this interval, forth or back.
    pub moved: Vec<u32>,
    settled: Vec<PageHome>,
}

impl PendingActions {
    /// What the policy asks for now.
    pub fn ask(&mut self, actions: &[Action]) {
        let asked = actions.iter().map(|action| (action.page, action.kind));
        self.open.extend(asked);
    }

    /// Pages that the policy has not been told of.
    pub fn take_settled(&mut self) -> Vec<PageHome> {
        std::mem::take(&mut self.settled)
    }
}

impl Daemon {
    /// Finds out which actions are done or given up, now that all was done that can be in this interval.
    pub(super) fn settle(&mut self) {
        let mut numbers = std::mem::take(&mut self.fates.moved);
        for (&number, &kind) in &self.fates.open {
            if kind == ActionKind::Collapse {
                // It may go to one node from now on.
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
            self.fates.open.remove(&number);
            // To a policy what is interleaved in place of being copied has copies.
            let home = self.homes.of(number);
            if let Some(home) = home.filter(|_| !self.interleaved.has(number)) {
                let page = number;
                self.fates.settled.push(PageHome { page, home });
            }
        }
    }
}
