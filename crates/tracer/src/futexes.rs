//! Who waits for whom: the futex calls of the process, and what its threads' ends wake.
//!
//! Futexes are known by address within the process; a thread that another process wakes resumes without a signal. Threads wake
//! in the order of waiting, as in the kernel. A thread whose wait returned at once has blocked no other.

use std::collections::HashMap;

use crate::lockstep::Member;

#[derive(Default)]
struct Futex {
    waiting: Vec<Member>,
    /// Of the waiting, how many the latest wakes let go.
    let_go: usize,
    sequence: u64,
    time: u64,
}

/// All futexes that somebody waits for.
#[derive(Default)]
pub struct Futexes {
    futexes: HashMap<u64, Futex>,
    /// Signals given so far.
    signals: u64,
}

/// A signal: from here on others may go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number in the process, from 1.
    pub sequence: u64,
    /// Who surely goes on.
    pub woken: Vec<Member>,
}

impl Futexes {
    /// A number for something that is no futex: a thread's creation.
    pub fn number(&mut self) -> u64 {
        self.signals += 1;
        self.signals
    }

    /// The thread is about to wait.
    pub fn wait(&mut self, address: u64, member: Member) {
        self.futexes
            .entry(address)
            .or_default()
            .waiting
            .push(member);
    }

    /// A thread is about to wake up to `count`, at this virtual time; `None`: nobody waits.
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
                futex.waiting.clone()
            } else {
                vec![]
            },
        })
    }

    /// Up to `count` of those that wait at one address wait at another from now on.
    pub fn requeue(&mut self, from: u64, to: u64, count: usize) {
        let Some(futex) = self.futexes.get_mut(&from) else {
            return;
        };
        let first = futex.let_go.min(futex.waiting.len());
        let end = first.saturating_add(count).min(futex.waiting.len());
        let moved: Vec<Member> = futex.waiting.drain(first..end).collect();
        self.futexes.entry(to).or_default().waiting.extend(moved);
    }

    /// The thread waits no more. If it was woken: the signal's number and its virtual time, where
    /// the process itself gave one.
    pub fn resume(&mut self, member: Member, woken: bool) -> Option<(u64, u64)> {
        let (&address, futex) = self
            .futexes
            .iter_mut()
            .find(|(_, futex)| futex.waiting.contains(&member))?;
        futex.waiting.retain(|waiting| *waiting != member);
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
