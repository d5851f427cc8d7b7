//! Moves of threads to the memory that they use, where this saves more than moving the pages one by one.
//!
//! The observations of a thread show how long its references would have taken from another node. The thread moves once
//! the saving would have paid for refilling the caches of another CPU, with the same certainty as for pages. Each
//! further move of a thread costs twice as much. A thread takes a CPU that no thread has, or swaps with a thread that
//! gains by the exchange as well, because others soon wait for a thread that loses. Threads move only to nodes on which
//! threads have run before; for other nodes it is unknown whether the threads may use the CPUs.

use nearpage_recording::ThreadIndex;

use super::migration_budget::MigrationBudget;
use super::{BACK_MOVES, DOUBLINGS_MAX, NONE};
use crate::{Epoch, ThreadCounts, ThreadMove};

#[derive(Clone, Debug)]
pub(super) struct Threads {
    nodes: usize,
    /// 0: unknown, and no CPU counts as free.
    cpus_per_node: u32,
    refill: Refill,
    /// By thread.
    known: Vec<KnownThread>,
    /// Observations by the node that served them, `[thread × nodes + node]`.
    seen: Vec<u32>,
    /// Bit n: threads have run on node n.
    ran_on: u64,
    /// Maximum number of threads on each node at once, not counting threads that were moved there.
    own_at_once: Vec<i64>,
    /// Some thread has moved.
    pub any_moved: bool,
    thread_moves: Vec<ThreadMove>,
}

/// Cost of filling the caches of another CPU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Refill {
    /// Number of references, at the thread's usual mix of nodes, from its new node.
    References(f64),
    Ns(f64),
}

#[derive(Clone, Copy, Debug)]
struct KnownThread {
    /// Node on which the thread was first seen.
    first: u8,
    /// Node to which the thread was sent last.
    node: u8,
    /// The thread has not been seen on `node` yet.
    on_its_way: bool,
    moves: u8,
    /// Cost of the thread's last move.
    refill_ns: f64,
}

const UNKNOWN: KnownThread = KnownThread {
    first: NONE,
    node: NONE,
    on_its_way: false,
    moves: 0,
    refill_ns: 0.0,
};

impl KnownThread {
    fn is_away(&self) -> bool {
        self.node != self.first
    }
}

/// A thread that could move to another node.
#[derive(Clone, Copy, Debug)]
struct MoveCandidate {
    /// Position among the epoch's threads.
    thread: usize,
    /// Target node.
    node: usize,
    refill_ns: f64,
    /// Certain saving less the cost.
    net_ns: f64,
}

/// Cost of moving a thread to a node, and the certain saving there less that cost.
struct Prospect {
    refill_ns: f64,
    net_ns: f64,
}

/// Figures of the machine and of the moves so far.
pub(super) struct Weighing<'a> {
    /// Unloaded latency, `[CPU's node × wait_ns.len() + memory's node]`.
    pub latency_ns: &'a [f64],
    /// Wait at each controller.
    pub wait_ns: &'a [f64],
    /// Number of references that an observation stands for.
    pub every: f64,
    /// Standard errors by which a gain must exceed its cost.
    pub errors: f64,
}

impl Weighing<'_> {
    /// Time of a reference from a node to another's memory, including the wait.
    fn loaded_ns(&self, node: usize, memory: usize) -> f64 {
        self.unloaded_ns(node, memory) + self.wait_ns[memory]
    }

    fn unloaded_ns(&self, node: usize, memory: usize) -> f64 {
        self.latency_ns[node * self.wait_ns.len() + memory]
    }
}

impl Threads {
    pub fn new(nodes: usize, cpus_per_node: u32, refill: Refill) -> Self {
        Self {
            nodes,
            cpus_per_node,
            refill,
            known: Vec::new(),
            seen: Vec::new(),
            ran_on: 0,
            own_at_once: vec![0; nodes],
            any_moved: false,
            thread_moves: Vec::new(),
        }
    }

    /// Notes a thread's reference from a node to memory on `serving`; returns the node of the thread without its moves.
    #[inline]
    pub fn observe(&mut self, thread: ThreadIndex, node: usize, serving: usize) -> usize {
        let at = thread.0 as usize;
        if at >= self.known.len() {
            self.known.resize(at + 1, UNKNOWN);
            self.seen.resize((at + 1) * self.nodes, 0);
        }
        self.ran_on |= 1 << node;
        let count = &mut self.seen[at * self.nodes + serving];
        *count = count.saturating_add(1);
        let known = &mut self.known[at];
        if known.first == NONE {
            (known.first, known.node) = (node as u8, node as u8);
        }
        match known.is_away() {
            true => usize::from(known.first),
            false => node,
        }
    }

    /// Halves the weight of past observations.
    pub fn halve(&mut self) {
        self.seen.iter_mut().for_each(|count| *count >>= 1);
    }

    pub fn take_moves(&mut self) -> Vec<ThreadMove> {
        std::mem::take(&mut self.thread_moves)
    }

    /// Decides about moves of threads that pay; returns a bit for each node that a thread leaves.
    pub fn decide(
        &mut self,
        epoch: &Epoch<'_>,
        weighing: &Weighing<'_>,
        budget: &mut MigrationBudget,
    ) -> u64 {
        let threads = epoch.threads;
        let mut at: Vec<usize> = threads.iter().map(|one| usize::from(one.node)).collect();
        let mut room = self.room(threads);
        if self.ran_on.count_ones() < 2 {
            return 0;
        }
        let mut prospects: Vec<Option<Vec<Prospect>>> = (threads.iter().zip(&at))
            .map(|(one, &from)| self.prospect(one.thread, from, weighing))
            .collect();
        let mut left = 0;
        while let Some(moving) = self.best(threads, &at, &room, &prospects) {
            let (mut price_ns, mut longest_ns) = (0.0f64, 0.0f64);
            for one in &moving {
                let thread = threads[one.thread].thread;
                price_ns = price_ns.max(budget.price_ns(thread, one.refill_ns));
                longest_ns = longest_ns.max(one.refill_ns);
            }
            // All threads could go back in parallel, so the reserve covers the longest way back.
            let reserve_ns = (BACK_MOVES * longest_ns - budget.threads_reserve_ns).max(0.0);
            let goes_back = |one: &MoveCandidate| {
                usize::from(self.of(threads[one.thread].thread).first) == one.node
            };
            let affordable = budget.free_ns() >= price_ns + reserve_ns;
            if !affordable && !moving.iter().all(goes_back) {
                break;
            }
            if let [one] = moving.as_slice() {
                room[one.node] -= 1;
            }
            for one in moving {
                let index = threads[one.thread].thread;
                prospects[one.thread] = None;
                budget.pay(index, one.refill_ns);
                left |= 1 << at[one.thread];
                at[one.thread] = one.node;
                let known = &mut self.known[index.0 as usize];
                known.node = one.node as u8;
                known.on_its_way = true;
                known.refill_ns = one.refill_ns;
                known.moves = known.moves.saturating_add(1);
                self.any_moved = true;
                self.thread_moves.push(ThreadMove {
                    thread: index,
                    node: one.node as u16,
                    rule: "its references so far would have paid for moving it to the memory that they went to",
                });
            }
            let away = self.known.iter().filter(|known| known.is_away());
            let longest_ns = away.map(|known| known.refill_ns).fold(0.0, f64::max);
            budget.threads_reserve_ns = BACK_MOVES * longest_ns;
        }
        left
    }

    /// Number of free CPUs of each node: CPUs that no thread has, is about to get, or had before it ended or was moved
    /// away. A thread may return to such a CPU, or another thread may be started there.
    fn room(&mut self, threads: &[ThreadCounts]) -> Vec<i64> {
        let (mut own, mut guests) = (vec![0; self.nodes], vec![0; self.nodes]);
        for one in threads {
            let node = usize::from(one.node);
            self.ran_on |= 1 << node;
            if let Some(known) = self.known.get_mut(one.thread.0 as usize) {
                known.on_its_way &= usize::from(known.node) != node;
            }
            let known = self.of(one.thread);
            match known.is_away() || known.on_its_way {
                true => guests[node] += 1,
                false => own[node] += 1,
            }
            if known.is_away() && known.on_its_way {
                guests[usize::from(known.node)] += 1;
            }
        }
        for (most, own) in self.own_at_once.iter_mut().zip(own) {
            *most = own.max(*most);
        }
        let taken = self.own_at_once.iter().zip(guests);
        taken
            .map(|(own, guests)| i64::from(self.cpus_per_node) - own - guests)
            .collect()
    }

    fn of(&self, thread: ThreadIndex) -> KnownThread {
        let known = self.known.get(thread.0 as usize);
        known.copied().unwrap_or(UNKNOWN)
    }

    /// Prospects of moving a thread to each node; `None` for a thread that was never seen or is still on its way.
    fn prospect(
        &self,
        thread: ThreadIndex,
        from: usize,
        weighing: &Weighing<'_>,
    ) -> Option<Vec<Prospect>> {
        let known = self.of(thread);
        if known.first == NONE || known.on_its_way {
            return None;
        }
        let seen = &self.seen[thread.0 as usize * self.nodes..][..self.nodes];
        let all: f64 = seen.iter().map(|&count| f64::from(count)).sum();
        let to = |node: usize| {
            let (mut saved_ns, mut variance, mut taken_ns) = (0.0, 0.0, 0.0);
            for (memory, &count) in seen.iter().enumerate().filter(|(_, count)| **count > 0) {
                let each_ns = weighing.every
                    * (weighing.loaded_ns(from, memory) - weighing.loaded_ns(node, memory));
                saved_ns += f64::from(count) * each_ns;
                variance += f64::from(count) * each_ns * each_ns;
                taken_ns += f64::from(count) * weighing.unloaded_ns(node, memory);
            }
            let refill_ns = match self.refill {
                Refill::Ns(ns) => ns,
                Refill::References(count) => count * taken_ns / all.max(1.0),
            };
            let doublings = match usize::from(known.first) == node {
                true => 0,
                false => known.moves.min(DOUBLINGS_MAX),
            };
            let cost_ns = refill_ns * f64::from(1u32 << doublings);
            Prospect {
                refill_ns,
                net_ns: saved_ns - weighing.errors * f64::sqrt(variance) - cost_ns,
            }
        };
        Some((0..self.nodes).map(to).collect())
    }

    /// The most profitable moves: a thread to a node with room, or two threads that swap.
    fn best(
        &self,
        threads: &[ThreadCounts],
        at: &[usize],
        room: &[i64],
        prospects: &[Option<Vec<Prospect>>],
    ) -> Option<Vec<MoveCandidate>> {
        let mut leaving: Vec<Option<MoveCandidate>> = vec![None; self.nodes * self.nodes];
        for (thread, (&from, prospect)) in at.iter().zip(prospects).enumerate() {
            for (node, to) in prospect.iter().flatten().enumerate() {
                let most = &mut leaving[from * self.nodes + node];
                if most.is_none_or(|most| to.net_ns > most.net_ns) {
                    *most = Some(MoveCandidate {
                        thread,
                        node,
                        refill_ns: to.refill_ns,
                        net_ns: to.net_ns,
                    });
                }
            }
        }
        let mut best = (0.0, None);
        for from in 0..self.nodes {
            for to in (0..self.nodes).filter(|&to| to != from && self.ran_on >> to & 1 == 1) {
                let Some(leaver) = leaving[from * self.nodes + to] else {
                    continue;
                };
                let other = leaving[to * self.nodes + from].filter(|other| other.net_ns > 0.0);
                let first = self.of(threads[leaver.thread].thread).first;
                let (net_ns, back) = if room[to] + i64::from(usize::from(first) == to) > 0 {
                    (leaver.net_ns, None)
                } else if let Some(other) = other.filter(|_| leaver.net_ns > 0.0) {
                    (leaver.net_ns + other.net_ns, Some(other))
                } else {
                    continue;
                };
                if net_ns > best.0 {
                    best = (net_ns, Some((leaver, back)));
                }
            }
        }
        let (there, back) = best.1?;
        Some(std::iter::once(there).chain(back).collect())
    }
}

#[cfg(test)]
mod tests;
