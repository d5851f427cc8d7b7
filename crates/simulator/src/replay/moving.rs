//! Page moves and their cost (Verghese §8.1).

use nearpage_machine::MoveCost;
use nearpage_online::{Action, ActionKind, Copies, OnlinePolicy, Reason, Survivor};
use nearpage_recording::AccessKind;
use nearpage_recording::trace::{Miss, Served};

use super::Replay;
use crate::Error;
use crate::figures::{FS, femtoseconds};
use crate::thread::{MovePart, State};
use crate::tournament::NEVER;

/// Was the reference served by the CPU's own caches?
#[inline]
pub(super) fn is_hit(served: Served) -> bool {
    matches!(served, Served::L1 | Served::L2 | Served::L3)
}

/// Is the reference a store to a line that the CPU's caches hold with write permission?
#[inline]
pub(super) fn is_store_hit(miss: Miss) -> bool {
    miss.kind == AccessKind::Store && is_hit(miss.served)
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    /// Node whose copy an action would be made from. `None`, after telling the policy: the action has nothing to do, or
    /// the policy does not want it any more.
    pub(super) fn source(&mut self, action: &Action) -> Option<u16> {
        let wanted = self.policy.is_still_requested(action);
        let from = self.pages.source(action, self.figures);
        let from = from.filter(|_| wanted);
        if from.is_none() {
            self.settle(action, false);
        }
        from
    }

    /// Carries out an action and tells the policy the result; `false`: there was no memory for it.
    pub(super) fn carry_out(&mut self, action: &Action, now: u64) -> bool {
        let done = self.pages.apply(action, now, self.figures);
        if let Some(mappings) = self.mappings.as_mut().filter(|_| done) {
            mappings.process(action.page);
        }
        self.settle(action, done);
        done
    }

    fn settle(&mut self, action: &Action, done: bool) {
        if !done {
            let copies = self.pages.copies(action.page);
            self.policy.refused(action, copies);
        }
        self.notify_policy(action.page);
        self.notify_of_given_up();
    }

    fn notify_policy(&mut self, page: u32) {
        if !self.pages.is_touched(page) {
            return;
        }
        let (copies, stale) = (self.pages.copies(page), self.pages.stale(page));
        self.policy.settled(page, copies, stale);
    }

    /// Tells the policy which pages' replicas were reclaimed.
    pub(super) fn notify_of_given_up(&mut self) {
        for page in self.pages.take_given_up() {
            self.notify_policy(page);
        }
    }

    /// Handles the policy's actions: moves with a fixed cost are made at once, others are collected into batches.
    #[cold]
    pub(super) fn request(&mut self, number: usize) {
        let actions = std::mem::take(&mut self.actions);
        self.pages.set_now(self.now);
        match self.figures.moves {
            MoveCost::Fixed(ns) => {
                for action in &actions {
                    let now = self.threads[number].time;
                    if self.source(action).is_some() && self.carry_out(action, now) {
                        self.mapped
                            .get_mut(action.page as usize)
                            .into_iter()
                            .for_each(|cpus| *cpus = 0);
                        self.threads[number].spend_moving(femtoseconds(ns));
                    }
                }
            }
            MoveCost::Steps(_) => {
                let thread = &mut self.threads[number];
                thread.hot.extend(actions);
                if thread.hot.len() as u64 >= self.job.options.batch_pages {
                    thread.deadline = 0;
                } else if thread.deadline == NEVER {
                    thread.deadline = thread
                        .time
                        .saturating_add(self.job.options.batch_ns * FS as u64);
                }
                self.rearm(number);
            }
        }
    }

    /// Copies of a page. The first reference, by a CPU on `node`, places the page. The kernel allocates it under the lock
    /// (Verghese §8.1: memlock is "used for … allocation and deallocation of page frames"), and moves wait for that. Traces
    /// do not have the time of page faults, so the touching thread is not delayed, and its faults do not queue up.
    #[inline]
    pub(super) fn find(&mut self, page: u32, node: u16, now: u64) -> Result<Copies, Error> {
        if self.mappings.is_some()
            && !self.pages.is_touched(page)
            && let MoveCost::Steps(steps) = self.figures.moves
        {
            let locked = femtoseconds(steps.allocation_ns);
            self.queues.lock.occupy(now, locked);
        }
        self.pages.find(page, node, now, self.figures)
    }

    /// Interrupts the CPU to move the collected hot pages (step 2 of Verghese's Figure 8.1).
    pub(super) fn interrupt(&mut self, number: usize) {
        let MoveCost::Steps(steps) = self.figures.moves else {
            return;
        };
        let thread = &mut self.threads[number];
        thread.deadline = NEVER;
        thread.moving = std::mem::take(&mut thread.hot);
        thread.moved = 0;
        thread.spend_moving_by([
            (MovePart::Interrupt, steps.interrupt_ns),
            (MovePart::Decision, steps.decision_ns),
        ]);
    }

    /// Does the next step of an interrupt: takes one page through the lock or, after the last page, does the flush, the
    /// copies and the end.
    pub(super) fn move_on(&mut self, number: usize) {
        let MoveCost::Steps(steps) = self.figures.moves else {
            return;
        };
        let thread = &mut self.threads[number];
        let replica = |action: &Action| action.kind == ActionKind::Replicate;
        if let Some(action) = thread.moving.get(thread.moved).cloned() {
            // The decision (step 3) was made before; another CPU may have moved the page since then.
            let remapped = self.remap(number, &action);
            let settled = remapped || self.refuse_locked(number, &action);
            let has_source = !settled && self.source(&action).is_some();
            let thread = &mut self.threads[number];
            if remapped {
                thread.spend_moving_by([(MovePart::Mapping, steps.mapping_replica_ns)]);
            }
            if !has_source {
                thread.moving.remove(thread.moved);
            } else {
                // A replica's mapping is not changed under the lock of page moves.
                let (mapping_ns, locked_ns) = if replica(&action) {
                    (steps.mapping_replica_ns, steps.allocation_ns)
                } else {
                    let mapping_ns = steps.mapping_migration_ns;
                    (mapping_ns, steps.allocation_ns + mapping_ns)
                };
                let locked = femtoseconds(locked_ns);
                let wait = self.queues.lock.wait(thread.time, locked);
                self.epoch.lock_wait += wait;
                thread.spend_moving_on(MovePart::Lock, wait);
                thread.spend_moving_by([
                    (MovePart::Allocation, steps.allocation_ns),
                    (MovePart::Mapping, mapping_ns),
                ]);
                thread.moved += 1;
                self.locked.insert(action.page, number);
            }
            let thread = &mut self.threads[number];
            if thread.moved < thread.moving.len() {
                thread.spend_moving_by([(MovePart::Decision, steps.decision_ns)]);
            }
            return;
        }
        let moving = std::mem::take(&mut thread.moving);
        if moving.is_empty() {
            return;
        }
        self.pages.set_now(self.now);
        let (cpu, node) = (thread.cpu, thread.node);
        thread.spend_moving_by([(MovePart::Flush, steps.flush_ns)]);
        let mut users = 0;
        for action in &moving {
            self.locked.remove(&action.page);
            let now = self.threads[number].time;
            let Some(from) = self.source(action).filter(|_| self.carry_out(action, now)) else {
                continue;
            };
            let thread = &mut self.threads[number];
            let copied = self
                .queues
                .copy(node, from, action.node, thread.time, self.figures);
            let end_ns = if replica(action) {
                steps.end_replica_ns
            } else {
                steps.end_migration_ns
            };
            thread.spend_moving_on(MovePart::Copy, copied);
            thread.spend_moving_by([(MovePart::Copy, steps.copy_ns), (MovePart::End, end_ns)]);
            users |= self.users(action.page);
        }
        self.flush_others(cpu, users, femtoseconds(steps.flush_request_ns));
    }

    /// "The pager routine will ignore a page if its page-level lock is currently held by another processor" (Verghese
    /// §8.3). If so, tells the policy that the action was not done, and returns `true`. The thread itself may make several
    /// copies of a page.
    fn refuse_locked(&mut self, number: usize, action: &Action) -> bool {
        let holder = self.locked.get(&action.page);
        let is_locked = holder.is_some_and(|&holder| holder != number);
        if is_locked {
            self.settle(action, false);
        }
        is_locked
    }

    /// Drops a hot page's mappings if the page has a copy on the target node already, so that each thread maps its
    /// nearest copy. `true`: the page needed this and nothing else.
    fn remap(&mut self, number: usize, action: &Action) -> bool {
        let moves = matches!(action.kind, ActionKind::Migrate | ActionKind::Replicate);
        let has_copy = self.pages.copies(action.page).on(action.node);
        let Some(mappings) = self.mappings.as_mut().filter(|_| moves && has_copy) else {
            return false;
        };
        let stale = mappings.leads_elsewhere(action.page, number, action.node);
        if stale {
            mappings.process(action.page);
            self.settle(action, false);
        }
        stale
    }

    /// Node of the copy that a thread uses.
    #[inline]
    pub(super) fn copy_in_use(&mut self, number: usize, page: u32, copies: Copies) -> u16 {
        let nearest = self
            .figures
            .nearest_copy(self.threads[number].node, copies.nodes);
        match &mut self.mappings {
            Some(mappings) if ACTIVE => mappings.copy(page, number, nearest, copies.nodes),
            _ => nearest,
        }
    }

    /// CPUs (modulo 64) that must flush for a page; removes them from the page's users.
    pub(super) fn users(&mut self, page: u32) -> u64 {
        self.mapped
            .get_mut(page as usize)
            .map_or(u64::MAX, std::mem::take)
    }

    /// Flushes the TLBs of `cpu` and of the CPUs `users`, which lose `cost` each.
    pub(super) fn flush_others(&mut self, cpu: u32, users: u64, cost: u64) {
        for thread in &mut self.threads {
            let asked = users >> (thread.cpu % 64) & 1 == 1;
            if thread.state != State::Running || !(asked || thread.cpu == cpu) {
                continue;
            }
            thread.flush_translations();
            if thread.cpu != cpu {
                thread.penalty = thread.penalty.saturating_add(cost);
                thread.alarm = 0;
            }
        }
    }

    /// Does a reference fault because its page is replicated or its node's copy is stale? A store faults even where its
    /// line is in a cache, because replicated pages are mapped read-only.
    #[inline]
    pub(super) fn faults(&mut self, number: usize, miss: Miss, copies: Copies) -> bool {
        let thread = &mut self.threads[number];
        let page = miss.page.0;
        // A store completes right after its fault, whatever others do to the page meanwhile. Otherwise a writer and a
        // reader could fault in turns for ever.
        if std::mem::take(&mut thread.faulted) {
            return false;
        }
        if self.pages.is_stale(page, thread.node) {
            self.refresh(number, page, copies);
            return true;
        }
        let collapses = miss.kind == AccessKind::Store && !copies.nodes.is_power_of_two();
        if collapses {
            thread.faulted = true;
            self.collapse(number, page, copies);
        }
        collapses
    }

    /// Handles a store to a replicated page: a protection fault that leaves one copy, the master's (Verghese §8.1) or
    /// the writer's (Carrefour §3.3.2).
    #[cold]
    pub(super) fn collapse(&mut self, number: usize, page: u32, copies: Copies) {
        self.pages.set_now(self.now);
        let survivor = self.policy.collapse(page);
        let thread = &self.threads[number];
        let (node, now) = (thread.node, thread.time);
        match survivor {
            Survivor::Master => self.collapse_to_master(number, page, copies),
            Survivor::Writer => self.pages.collapse_to(page, node, true, now),
            Survivor::WriterAlone => self.pages.collapse_to(page, node, false, now),
        }
        self.notify_policy(page);
        self.pay_for_collapse(number, page);
    }

    fn collapse_to_master(&mut self, number: usize, page: u32, copies: Copies) {
        let reason = Reason {
            writes: 1,
            ..Reason::rule("a store to replicated page")
        };
        let action = Action {
            page,
            kind: ActionKind::Collapse,
            node: copies.home,
            reason,
        };
        let now = self.threads[number].time;
        self.pages.apply(&action, now, self.figures);
    }

    fn pay_for_collapse(&mut self, number: usize, page: u32) {
        let thread = &mut self.threads[number];
        match self.figures.moves {
            MoveCost::Fixed(ns) => thread.spend_moving(femtoseconds(ns)),
            MoveCost::Steps(steps) => {
                // The frames of the replicas are freed under the lock.
                let locked = femtoseconds(steps.collapse_locked_ns());
                let wait = self.queues.lock.wait(thread.time, locked);
                self.epoch.lock_wait += wait;
                thread.spend_moving_on(MovePart::Lock, wait);
                thread.spend_moving_on(MovePart::Mapping, locked);
                thread.spend_moving_by([
                    (MovePart::Fault, steps.fault_ns),
                    (MovePart::Flush, steps.flush_ns),
                    (MovePart::End, steps.end_migration_ns),
                ]);
                let cpu = thread.cpu;
                let users = self.users(page);
                self.flush_others(cpu, users, femtoseconds(steps.flush_request_ns));
            }
        }
    }

    /// Handles a reference from a node whose copy a store has made stale: a protection fault, after which the node has
    /// a fresh copy. The cost is that of a replica.
    #[cold]
    pub(super) fn refresh(&mut self, number: usize, page: u32, copies: Copies) {
        self.pages.set_now(self.now);
        let thread = &self.threads[number];
        let (node, now) = (thread.node, thread.time);
        let is_fresh = self.pages.refresh(page, node, now, self.figures);
        self.notify_policy(page);
        if !is_fresh {
            return;
        }
        let thread = &mut self.threads[number];
        match self.figures.moves {
            MoveCost::Fixed(ns) => thread.spend_moving(femtoseconds(ns)),
            MoveCost::Steps(steps) => {
                let locked = femtoseconds(steps.allocation_ns);
                let wait = self.queues.lock.wait(now, locked);
                self.epoch.lock_wait += wait;
                let from = self.figures.nearest_copy(node, copies.nodes);
                let copied = self.queues.copy(node, from, node, now, self.figures);
                thread.spend_moving_on(MovePart::Lock, wait);
                thread.spend_moving_on(MovePart::Allocation, locked);
                thread.spend_moving_on(MovePart::Copy, copied);
                thread.spend_moving_by([
                    (MovePart::Fault, steps.fault_ns),
                    (MovePart::Mapping, steps.mapping_replica_ns),
                    (MovePart::Copy, steps.copy_ns),
                    (MovePart::End, steps.end_replica_ns),
                ]);
            }
        }
    }
}
