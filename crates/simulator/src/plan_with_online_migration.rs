//! A plan with online migration on top: the plan's own changes, and the decisions of `auto` from samples.

use nearpage_online::{
    Action, Auto, Copies, Epoch, Observation, OnlinePolicy, Place, Planned, Survivor, ThreadMove,
};

use crate::replay::Distances;

/// `auto` decides about all pages but those that the plan itself moves or copies; `auto` is shown no misses of these.
pub(crate) struct PlanWithOnlineMigration {
    pub planned: Planned,
    pub auto: Auto,
    /// Selects the references that `auto` is shown.
    pub shown: Distances,
}

impl OnlinePolicy for PlanWithOnlineMigration {
    fn epoch_ns(&self) -> Option<u64> {
        self.auto.epoch_ns()
    }

    fn place(&mut self, page: u32, place: Place) {
        self.planned.place(page, place);
    }

    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        self.planned.observe(observation, actions);
        let is_shown = self.shown.is_selected(observation.node);
        if is_shown && !self.planned.holds(observation.page) {
            self.auto.observe(observation, actions);
        }
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, actions: &mut Vec<Action>) {
        self.planned.end_epoch(epoch, actions);
        self.auto.end_epoch(epoch, actions);
    }

    fn thread_moves(&mut self) -> Vec<ThreadMove> {
        let mut moves = self.planned.thread_moves();
        moves.extend(self.auto.thread_moves());
        moves
    }

    fn fetched(&mut self, page: u32, offset_bytes: u32) {
        self.planned.fetched(page, offset_bytes);
    }

    fn forget(&mut self, page: u32) {
        self.planned.forget(page);
        self.auto.forget(page);
    }

    fn collapse(&mut self, page: u32) -> Survivor {
        match self.planned.holds(page) {
            true => self.planned.collapse(page),
            false => self.auto.collapse(page),
        }
    }

    fn is_still_requested(&self, action: &Action) -> bool {
        self.planned.is_still_requested(action)
    }

    fn refused(&mut self, action: &Action, copies: Copies) {
        if !self.planned.holds(action.page) {
            self.auto.refused(action, copies);
        }
    }
}
