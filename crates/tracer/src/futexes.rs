//! Which thread wakes which: the futex calls of the process, and the wake-ups when its threads end.
//!
//! Futexes are known by address within the process; a thread that another process wakes resumes without a signal. Threads wake
//! in the order of waiting, as in the kernel. A thread whose wait returns at once does not keep others from being woken.

use std::collections::HashMap;

use crate::lockstep::Member;

#[derive(Clone, Copy)]
struct Waiter {
    member: Member,
    /// The signal that says that it waits; none if it waits otherwise than at barriers.
    arrival: Option<u64>,
}

#[derive(Default)]
struct Futex {
    waiting: Vec<Waiter>,
    /// How many of the waiting threads have been woken and have not resumed.
    let_go: usize,
    sequence: u64,
    time: u64,
}

/// All futexes for which threads wait.
#[derive(Default)]
pub struct Futexes {
    futexes: HashMap<u64, Futex>,
    /// Number of signals so far.
    signals: u64,
}

/// A moment from which other threads may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number in the process, from 1.
    pub sequence: u64,
    /// The threads that certainly go on.
    pub woken: Vec<Member>,
}

impl Futexes {
    /// A number for a signal without a futex: a thread's creation.
    pub fn number(&mut self) -> u64 {
        self.signals += 1;
        self.signals
    }

    /// Notes that the thread is about to wait. If it may be at a barrier, returns the number of a signal, which says that
    /// it has arrived.
    pub fn wait(&mut self, address: u64, member: Member, at_barrier: bool) -> Option<u64> {
        let arrival = at_barrier.then(|| self.number());
        let futex = self.futexes.entry(address).or_default();
        futex.waiting.push(Waiter { member, arrival });
        arrival
    }

    /// The arrivals of the threads that wait at a barrier and have not been woken.
    pub fn arrivals(&self, address: u64) -> Vec<u64> {
        let Some(futex) = self.futexes.get(&address) else {
            return Vec::new();
        };
        let waiting = futex.waiting.iter().skip(futex.let_go);
        waiting.filter_map(|one| one.arrival).collect()
    }

    /// Wakes up to `count` threads at this virtual time; `None` if none waits.
    pub fn wake(&mut self, address: u64, count: usize, time: u64) -> Option<Signal> {
        let futex = self.futexes.get_mut(&address)?;
        if futex.waiting.is_empty() || count == 0 {
            return None;
        }
        self.signals += 1;
        futex.sequence = self.signals;
        futex.time = time;
        let all = futex.waiting.len();
        futex.let_go = futex.let_go.saturating_add(count).min(all);
        Some(Signal {
            sequence: self.signals,
            woken: if count >= all {
                futex.waiting.iter().map(|one| one.member).collect()
            } else {
                vec![]
            },
        })
    }

    /// Lets up to `count` threads that wait at one address wait at another from now on.
    pub fn requeue(&mut self, from: u64, to: u64, count: usize) {
        let Some(futex) = self.futexes.get_mut(&from) else {
            return;
        };
        let first = futex.let_go.min(futex.waiting.len());
        let end = first.saturating_add(count).min(futex.waiting.len());
        let moved: Vec<Waiter> = futex.waiting.drain(first..end).collect();
        self.futexes.entry(to).or_default().waiting.extend(moved);
    }

    /// Notes that the thread waits no longer. If it was woken, returns the signal's number and virtual time, if
    /// a thread of this process gave the signal.
    pub fn resume(&mut self, member: Member, woken: bool) -> Option<(u64, u64)> {
        let (&address, futex) = self
            .futexes
            .iter_mut()
            .find(|(_, futex)| futex.waiting.iter().any(|one| one.member == member))?;
        futex.waiting.retain(|one| one.member != member);
        let after = (woken && futex.let_go > 0).then_some((futex.sequence, futex.time));
        if after.is_some() {
            futex.let_go -= 1;
        }
        futex.let_go = futex.let_go.min(futex.waiting.len());
        if futex.waiting.is_empty() {
            self.futexes.remove(&address);
        }
        after
    }
}
