//! Counts of an epoch, which a policy gets at the epoch's end.

use nearpage_online::{Epoch, OnlinePolicy, ThreadCounts};

use super::Replay;
use crate::figures::FS;
use crate::thread::{State, Thread};

/// Counts of an epoch: misses by node of the CPU, and requests by controller.
#[derive(Default)]
pub(super) struct EpochCounts {
    pub local: Vec<u64>,
    pub remote: Vec<u64>,
    pub reads: u64,
    /// Instructions executed before the epoch.
    instructions: u64,
    pub requests: Vec<u64>,
    /// Time waited for the lock of page moves, in femtoseconds.
    pub lock_wait: u64,
    /// Time that all threads had spent moving pages before the epoch, in femtoseconds.
    moving: u64,
}

impl EpochCounts {
    pub fn new(nodes: usize) -> Self {
        Self {
            local: vec![0; nodes],
            remote: vec![0; nodes],
            requests: vec![0; nodes],
            ..Self::default()
        }
    }
}

impl<P: OnlinePolicy, const ACTIVE: bool> Replay<'_, P, ACTIVE> {
    #[cold]
    pub(super) fn end_epoch(&mut self, number: usize, now: u64) {
        self.pages.set_now(now);
        let instructions = self.threads.iter().map(Thread::executed).sum::<u64>();
        let requests: Vec<u64> = self
            .queues
            .controllers
            .iter()
            .map(|server| server.requests)
            .collect();
        let served = requests.iter().zip(&self.epoch.requests);
        let controller_requests: Vec<u64> = served
            .map(|(after, before)| after.saturating_sub(*before))
            .collect();
        let threads: Vec<ThreadCounts> = (0..self.threads.len())
            .filter_map(|number| self.thread_counts(number))
            .collect();
        let moving = self.threads.iter().map(|thread| thread.watched.moved).sum();
        let short_of_memory = self.pages.end_epoch();
        self.notify_of_given_up();
        let epoch = Epoch {
            duration_ns: self.epoch_length / FS as u64,
            controller_requests: &controller_requests,
            local: &self.epoch.local,
            remote: &self.epoch.remote,
            reads: self.epoch.reads,
            instructions: instructions.saturating_sub(self.epoch.instructions),
            free_share: self.pages.free_share(self.figures),
            threads: &threads,
            lock_wait_ns: self.epoch.lock_wait / FS as u64,
            move_ns: (moving - self.epoch.moving) / FS as u64,
            // The number of moves is for measuring their cost; policies know the modelled machine's cost.
            moves: 0,
            short_of_memory,
        };
        self.policy.end_epoch(&epoch, &mut self.actions);
        self.epoch.lock_wait = 0;
        self.epoch.moving = moving;
        self.epoch.local.fill(0);
        self.epoch.remote.fill(0);
        self.epoch.reads = 0;
        self.epoch.instructions = instructions;
        self.epoch.requests = requests;
        self.next_epoch = self.next_epoch.saturating_add(self.epoch_length);
        if self.policy.has_kernel_thread() && self.has_idle_cpu() {
            self.wake_kernel_thread(now);
        } else if !self.actions.is_empty() {
            self.threads[number].time = self.threads[number].time.max(now);
            self.request(number);
            self.turns.set(number, self.threads[number].time);
        }
        self.carry_out_requests(number);
    }

    /// Counts of a thread in the epoch; `None` if the thread is not alive.
    fn thread_counts(&mut self, number: usize) -> Option<ThreadCounts> {
        let thread = &mut self.threads[number];
        let watched = &mut thread.watched;
        let now = (thread.time, watched.waited);
        let before = std::mem::replace(&mut watched.epoch, now);
        let [loads, stores] = std::mem::take(&mut watched.served);
        let written = stores.max(std::mem::take(&mut watched.written_back));
        let writes = written.min(loads + stores);
        let passed = now.0.saturating_sub(before.0);
        let counts = ThreadCounts {
            thread: thread.index,
            application: self.applications[number],
            node: thread.node,
            busy_ns: passed.saturating_sub(now.1 - before.1) / FS as u64,
            reads: loads + stores - writes,
            writes,
        };
        (!matches!(thread.state, State::Unborn | State::Ended)).then_some(counts)
    }
}
