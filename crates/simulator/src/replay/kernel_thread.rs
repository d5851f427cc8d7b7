//! A kernel thread that moves pages while the program's threads run.

use std::collections::VecDeque;

use nearpage_machine::MoveCost;
use nearpage_online::{Action, ActionKind, OnlinePolicy};

use super::Replay;
use crate::figures::femtoseconds;
use crate::thread::State;
use crate::tournament::NEVER;

/// The kernel thread's queue of pages to move.
pub(super) struct KernelThread {
    queue: VecDeque<Action>,
    /// Time at which the first move of the queue is done; [`NEVER`]: the queue is empty.
    pub next: u64,
    /// Pages moved since the last flush of other CPUs' TLBs, and the CPUs that must flush.
    moved: u64,
    users: u64,
}

impl Default for KernelThread {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            next: NEVER,
            moved: 0,
            users: 0,
        }
    }
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    /// Is there a CPU that no thread has or waits for?
    pub(super) fn has_idle_cpu(&self) -> bool {
        let needs_cpu = |state| matches!(state, State::Arriving | State::Running | State::Queueing);
        let threads = self.threads.iter();
        let mut busy: Vec<u32> = threads
            .filter(|thread| needs_cpu(thread.state))
            .map(|thread| thread.cpu)
            .collect();
        busy.sort_unstable();
        busy.dedup();
        busy.len() < self.figures.cpus().count()
    }

    /// Hands the policy's actions to the kernel thread.
    pub(super) fn wake_kernel_thread(&mut self, now: u64) {
        let actions = std::mem::take(&mut self.actions);
        self.queue(actions, now);
    }

    fn queue(&mut self, actions: Vec<Action>, now: u64) {
        let was_idle = self.kernel_thread.queue.is_empty();
        self.kernel_thread.queue.extend(actions);
        if was_idle {
            self.start_next(now);
        }
    }

    /// Hands over the moves that a thread has not made before its end.
    pub(super) fn inherit(&mut self, number: usize, now: u64) {
        let thread = &mut self.threads[number];
        let mut left = std::mem::take(&mut thread.moving);
        left.append(&mut thread.hot);
        self.locked.retain(|_, holder| *holder != number);
        if !left.is_empty() {
            self.queue(left, now);
        }
    }

    /// Begins with the next action that is still to be done.
    fn start_next(&mut self, now: u64) {
        let action = loop {
            let Some(action) = self.kernel_thread.queue.pop_front() else {
                self.kernel_thread.next = NEVER;
                return;
            };
            if self.source(&action).is_some() {
                break action;
            }
        };
        let cost = match self.figures.moves {
            MoveCost::Fixed(ns) => femtoseconds(ns),
            MoveCost::Steps(steps) => {
                // A replica's mapping is not changed under the lock of page moves.
                let (locked_ns, unlocked_ns) = match action.kind {
                    ActionKind::Replicate => (0.0, steps.mapping_replica_ns + steps.end_replica_ns),
                    _ => (steps.mapping_migration_ns, steps.end_migration_ns),
                };
                let locked = femtoseconds(steps.allocation_ns + locked_ns);
                let flush_ns = steps.flush_ns / self.job.options.batch_pages.max(1) as f64;
                let rest = steps.decision_ns + steps.copy_ns + unlocked_ns + flush_ns;
                let wait = self.queues.lock.wait(now, locked);
                wait.saturating_add(locked)
                    .saturating_add(femtoseconds(rest))
            }
        };
        self.kernel_thread.queue.push_front(action);
        self.kernel_thread.next = now.saturating_add(cost);
    }

    /// Finishes the first move of the queue.
    #[cold]
    pub(super) fn move_in_background(&mut self) {
        let at = self.kernel_thread.next;
        let Some(action) = self.kernel_thread.queue.pop_front() else {
            self.kernel_thread.next = NEVER;
            return;
        };
        self.pages.set_now(at);
        if let Some(from) = self.source(&action)
            && self.carry_out(&action, at)
        {
            let users = self.users(action.page);
            if let MoveCost::Steps(steps) = self.figures.moves {
                self.queues
                    .copy(action.node, from, action.node, at, self.figures);
                self.kernel_thread.users |= users;
                self.kernel_thread.moved += 1;
                let batch_ends = self.kernel_thread.moved >= self.job.options.batch_pages;
                if batch_ends || self.kernel_thread.queue.is_empty() {
                    self.kernel_thread.moved = 0;
                    let users = std::mem::take(&mut self.kernel_thread.users);
                    let cost = femtoseconds(steps.flush_request_ns);
                    // The kernel thread's own CPU runs no program thread.
                    self.flush_others(u32::MAX, users, cost);
                }
            }
        }
        self.start_next(at);
    }
}
