//! Budget of moves: a small share of the time, plus the time that earlier moves have saved.

use nearpage_recording::ThreadIndex;

use crate::ThreadCounts;

/// A thread that was idle for more than this share of an epoch has waited for others at a barrier. Short-held locks
/// delay a thread for less.
const WAIT_SHARE: f64 = 0.01;

/// Program time that moves may still cost.
///
/// Threads wait for each other at barriers, which may be several epochs apart. Between two barriers the program lasts as
/// long as its busiest thread. A move delays the thread that makes it. Threads move pages side by side, so together
/// their moves cost as much as those of the thread that moves most. Moves save the program the busy time that the
/// busiest thread would have had without them, less the busy time of the thread that is now busiest. Cost and saving are
/// provisional until threads have met at a barrier: until all but one have waited in an epoch.
///
/// Pages may have to go back one after the other when threads have ended, while no other thread works. The budget holds
/// the time for that in reserve, for each page that is away.
#[derive(Clone, Debug)]
pub(super) struct MigrationBudget {
    /// Balance of program time.
    pub balance_ns: f64,
    /// Reserve for all pages that are away to go back.
    pub reserve_ns: f64,
    /// Reserve for all threads that are away to go back.
    pub threads_reserve_ns: f64,
    /// Share of the time that moves may cost.
    budget: f64,
    /// Total cost and saving of moves so far.
    paid_ns: f64,
    saved_ns: f64,
    /// Part of the saving since threads last met at a barrier.
    since_met_ns: f64,
    /// By thread, since threads last met.
    threads: Vec<ThreadBudget>,
    longest_ns: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ThreadBudget {
    moving_ns: f64,
    busy_ns: f64,
    /// Saved by moves; negative if moves lose time.
    saved_ns: f64,
}

impl MigrationBudget {
    pub fn new(budget: f64) -> Self {
        Self {
            balance_ns: 0.0,
            reserve_ns: 0.0,
            threads_reserve_ns: 0.0,
            budget,
            paid_ns: 0.0,
            saved_ns: 0.0,
            since_met_ns: 0.0,
            threads: Vec::new(),
            longest_ns: 0.0,
        }
    }

    /// Program time that a thread's next move costs.
    pub fn price_ns(&self, thread: ThreadIndex, move_ns: f64) -> f64 {
        let known = self.threads.get(thread.0 as usize);
        let own_ns = known.map_or(0.0, |thread| thread.moving_ns);
        (own_ns + move_ns - self.longest_ns).max(0.0)
    }

    /// Time that moves may spend now.
    pub fn free_ns(&self) -> f64 {
        self.balance_ns - self.reserve_ns - self.threads_reserve_ns
    }

    /// Pays for a move that a thread makes.
    pub fn pay(&mut self, thread: ThreadIndex, move_ns: f64) {
        self.charge(self.price_ns(thread, move_ns));
        let thread = self.of(thread);
        thread.moving_ns += move_ns;
        let own_ns = thread.moving_ns;
        self.longest_ns = self.longest_ns.max(own_ns);
    }

    /// Charges program time that earlier moves cost.
    pub fn charge(&mut self, program_ns: f64) {
        self.balance_ns -= program_ns;
        self.paid_ns += program_ns;
    }

    /// Adds time that a thread has saved or, if negative, lost.
    pub fn saved(&mut self, thread: ThreadIndex, thread_ns: f64) {
        self.of(thread).saved_ns += thread_ns;
    }

    /// Share of the cost of moves that they have saved since, from 0 to 1, once the next move is paid, too.
    pub fn paid_back(&self, move_ns: f64) -> f64 {
        (self.saved_ns / (self.paid_ns + move_ns)).clamp(0.0, 1.0)
    }

    /// Ends an epoch in which these threads existed.
    pub fn end_epoch(&mut self, duration_ns: u64, threads: &[ThreadCounts]) {
        let duration_ns = duration_ns as f64;
        let mut waited = 0;
        for thread in threads {
            let busy_ns = thread.busy_ns as f64;
            self.of(thread.thread).busy_ns += busy_ns;
            waited += usize::from(busy_ns < (1.0 - WAIT_SHARE) * duration_ns);
        }
        let (mut with_ns, mut without_ns) = (0.0f64, 0.0f64);
        for thread in &self.threads {
            with_ns = with_ns.max(thread.busy_ns);
            without_ns = without_ns.max(thread.busy_ns + thread.saved_ns);
        }
        let since_met_ns = without_ns - with_ns;
        let more_ns = since_met_ns - std::mem::replace(&mut self.since_met_ns, since_met_ns);
        self.saved_ns += more_ns;
        self.balance_ns += more_ns + self.budget * duration_ns;
        if waited + 1 >= threads.len() {
            self.threads.fill(ThreadBudget::default());
            self.longest_ns = 0.0;
            self.since_met_ns = 0.0;
        }
    }

    fn of(&mut self, thread: ThreadIndex) -> &mut ThreadBudget {
        let at = thread.0 as usize;
        if at >= self.threads.len() {
            self.threads.resize(at + 1, ThreadBudget::default());
        }
        &mut self.threads[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(thread: u32, busy_ns: u64) -> ThreadCounts {
        ThreadCounts {
            thread: ThreadIndex(thread),
            application: 0,
            node: 0,
            busy_ns,
            reads: 0,
            writes: 0,
        }
    }

    const EPOCH_NS: u64 = 1_000_000;

    #[test]
    fn overlapping_moves_cost_as_much_as_the_longest() {
        let [a, b] = [ThreadIndex(0), ThreadIndex(7)];
        let mut budget = MigrationBudget::new(0.005);
        budget.end_epoch(1_000_000, &[]);
        assert_eq!(budget.balance_ns, 5000.0);
        budget.pay(a, 1000.0);
        budget.pay(a, 1000.0);
        assert_eq!(budget.balance_ns, 3000.0);
        assert_eq!(budget.price_ns(b, 1000.0), 0.0);
        budget.pay(b, 1000.0);
        budget.pay(b, 1500.0);
        assert_eq!(budget.balance_ns, 2500.0, "b moves for 2500 ns, a for 2000");
        // In another epoch, another thread has the longest moves.
        budget.end_epoch(0, &[]);
        assert_eq!(budget.price_ns(b, 1000.0), 1000.0);
        budget.reserve_ns = 2000.0;
        assert_eq!(budget.free_ns(), 500.0);
    }

    /// Program time saved in an epoch in which two threads were busy for `busy_ns` and saved `saved_ns`.
    fn saves(busy_ns: [u64; 2], saved_ns: [f64; 2]) -> f64 {
        let mut budget = MigrationBudget::new(0.0);
        for (thread, saved_ns) in (0..).zip(saved_ns) {
            budget.saved(ThreadIndex(thread), saved_ns);
        }
        budget.end_epoch(EPOCH_NS, &[busy(0, busy_ns[0]), busy(1, busy_ns[1])]);
        budget.balance_ns
    }

    #[test]
    fn the_thread_that_others_wait_for_says_what_is_saved() {
        assert_eq!(saves([1000, 1000], [400.0, 400.0]), 400.0);
        assert_eq!(saves([1000, 300], [0.0, 400.0]), 0.0, "it had waited");
        assert_eq!(saves([1000, 800], [0.0, 400.0]), 200.0, "for a part of it");
        assert_eq!(saves([1000, 0], [-400.0, 0.0]), -400.0);
        assert_eq!(saves([1000, 900], [-400.0, 0.0]), -100.0);
    }

    #[test]
    fn threads_that_take_turns_between_two_barriers_save_as_much_as_one() {
        let (both, last) = (
            [busy(0, EPOCH_NS), busy(1, EPOCH_NS)],
            [busy(0, EPOCH_NS), busy(1, 500_000)],
        );
        let mut budget = MigrationBudget::new(0.0);
        let mut saves = |thread, threads: &[ThreadCounts]| {
            budget.saved(ThreadIndex(thread), 400.0);
            budget.end_epoch(EPOCH_NS, threads);
            budget.balance_ns
        };
        assert_eq!(saves(0, &both), 400.0);
        assert_eq!(saves(1, &both), 400.0, "the other is as late without");
        assert_eq!(saves(0, &last), 800.0, "they meet");
        assert_eq!(saves(1, &both), 1200.0);
        assert_eq!(saves(1, &last), 800.0, "it waits for longer than it saved");
        // A lock that is held for a moment is no barrier.
        let lock = [busy(0, EPOCH_NS), busy(1, EPOCH_NS - 5000)];
        assert_eq!(saves(0, &lock), 1200.0);
        assert_eq!(saves(1, &lock), 1200.0);
        assert_eq!(budget.paid_back(2400.0), 0.5, "that is what it says");
    }

    #[test]
    fn moves_between_two_barriers_overlap() {
        let [a, b] = [ThreadIndex(0), ThreadIndex(1)];
        let mut budget = MigrationBudget::new(0.0);
        budget.pay(a, 1000.0);
        budget.end_epoch(EPOCH_NS, &[busy(0, EPOCH_NS), busy(1, EPOCH_NS)]);
        budget.pay(b, 1000.0);
        assert_eq!(budget.balance_ns, -1000.0);
        budget.end_epoch(EPOCH_NS, &[busy(0, EPOCH_NS), busy(1, 0)]);
        budget.pay(b, 1000.0);
        assert_eq!(budget.balance_ns, -2000.0, "they have met");
    }

    #[test]
    fn savings_pay_back_moves() {
        let mut budget = MigrationBudget::new(0.0);
        assert_eq!(budget.paid_back(1000.0), 0.0);
        budget.pay(ThreadIndex(0), 1000.0);
        budget.saved(ThreadIndex(0), 500.0);
        budget.end_epoch(1_000_000, &[busy(0, 1_000_000)]);
        assert_eq!(
            budget.paid_back(1000.0),
            0.25,
            "one made, and one to be made"
        );
        budget.saved(ThreadIndex(0), 5000.0);
        budget.end_epoch(1_000_000, &[busy(0, 1_000_000)]);
        assert_eq!(budget.paid_back(1000.0), 1.0);
        budget.charge(10_000.0);
        assert!(budget.paid_back(1000.0) < 0.5);
    }
}
