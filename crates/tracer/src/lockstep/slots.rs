//! The state of each thread in the lockstep, and which thread has each CPU.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::Thread;

use super::Member;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It runs, or may run as soon as the host lets it.
    Running,
    /// It waits for a quantum, or for its CPU.
    Ready,
    /// It is left out: no thread waits for it.
    Blocked,
    /// It ended.
    Gone,
}

pub(super) struct Slot {
    pub(super) cpu: usize,
    pub(super) state: State,
    /// Virtual time, when it is not running.
    pub(super) time: u64,
    pub(super) tid: u32,
    pub(super) thread: Option<Thread>,
    /// How often in a row it was found asleep while it should run.
    pub(super) asleep: u32,
    pub(super) calls: Arc<AtomicBool>,
    /// It waits for threads created earlier.
    pub(super) waits: bool,
    /// How long it spins: twice as long as last time if the longest time would have been
    /// enough, otherwise half as long.
    pub(super) spin_ns: u64,
}

#[derive(Default)]
pub(super) struct Inner {
    pub(super) slots: Vec<Slot>,
    /// Threads of each CPU that can run; the first has the CPU.
    pub(super) queues: Vec<VecDeque<usize>>,
    /// Latest virtual time at which a thread left each CPU.
    pub(super) cpu_times: Vec<u64>,
    pub(super) running: usize,
    /// When the quantum begins, and when it ends, in virtual time.
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Length of the quantum, as a multiple of the shortest.
    pub(super) length: u64,
    /// No thread has interacted with another in this quantum so far.
    pub(super) independent: bool,
    pub(super) off: bool,
    /// When a thread last checked for sleepers.
    pub(super) looked_at: u64,
    /// How often a thread was notified.
    pub(super) changes: Arc<AtomicU64>,
    /// How often a blocked thread could run again.
    pub(super) joined: Arc<AtomicU64>,
}

impl Inner {
    pub(super) fn state(&self, member: Member) -> State {
        self.slots
            .get(member.0)
            .map_or(State::Gone, |slot| slot.state)
    }

    /// Takes in a blocked thread that can run.
    pub(super) fn join(&mut self, member: usize, time: u64) {
        let Some(slot) = self.slots.get_mut(member) else {
            return;
        };
        slot.state = State::Ready;
        slot.time = slot.time.max(time);
        slot.asleep = 0;
        self.joined.fetch_add(1, Relaxed);
        self.independent = false;
        let cpu = slot.cpu;
        if let Some(queue) = self.queues.get_mut(cpu) {
            queue.push_back(member);
            if queue.len() == 1 {
                self.start_first(cpu);
            }
        }
    }

    /// Takes a running or ready thread out of its CPU's queue.
    pub(super) fn leave(&mut self, member: Member, time: u64, state: State) {
        let Some(slot) = self.slots.get_mut(member.0) else {
            return;
        };
        if slot.state == State::Running {
            self.running -= 1;
            if let Some(latest) = self.cpu_times.get_mut(slot.cpu) {
                *latest = time.max(*latest);
            }
        }
        slot.state = state;
        slot.time = time;
        if let Some(queue) = self.queues.get_mut(slot.cpu) {
            queue.retain(|queued| *queued != member.0);
        }
        let later = self.slots.iter().skip(member.0);
        later
            .filter(|slot| slot.waits)
            .for_each(|slot| self.notify(slot));
    }

    /// Wakes the slot's thread, to check again whether it may go on.
    pub(super) fn notify(&self, slot: &Slot) {
        self.changes.fetch_add(1, Relaxed);
        if let Some(thread) = &slot.thread {
            thread.unpark();
        }
    }

    /// Gives this thread's CPU to the next thread of that CPU.
    pub(super) fn hand_over(&mut self, member: usize) {
        if let Some(slot) = self.slots.get(member) {
            self.start_first(slot.cpu);
        }
    }

    /// Lets the first thread of a CPU run, if there is time left in the quantum.
    pub(super) fn start_first(&mut self, cpu: usize) {
        let free_at = self.cpu_times.get(cpu).copied().unwrap_or(0);
        let first = self.queues.get(cpu).and_then(|queue| queue.front());
        let Some(&first) = first else { return };
        let Some(slot) = self.slots.get_mut(first) else {
            return;
        };
        if slot.state != State::Ready {
            return;
        }
        slot.time = slot.time.max(free_at);
        if slot.time < self.end {
            slot.state = State::Running;
            slot.asleep = 0;
            self.running += 1;
            if let Some(slot) = self.slots.get(first) {
                self.notify(slot);
            }
        }
    }
}
