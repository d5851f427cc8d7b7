//! What moves may cost: a small share of the time, and what earlier moves have saved.

use std::collections::BTreeMap;

use nearpage_recording::ThreadIndex;

/// Time of the program that moves may still take.
///
/// Threads wait for each other: a move is taken to hold up the program for as long as the thread that
/// makes it. What several threads move in an epoch goes on side by side, and costs as much as the one
/// that moves most. What moves save, all threads save together: the program saves the mean.
#[derive(Clone, Debug)]
pub(super) struct Purse {
    /// Of the program's time.
    pub balance_ns: f64,
    /// Share of the time that may be lost.
    budget: f64,
    /// Threads that ran in the last epoch.
    running: f64,
    /// By thread, in this epoch.
    moving_ns: BTreeMap<ThreadIndex, f64>,
    longest_ns: f64,
}

impl Purse {
    pub fn new(budget: f64) -> Self {
        Self {
            balance_ns: 0.0,
            budget,
            running: 1.0,
            moving_ns: BTreeMap::new(),
            longest_ns: 0.0,
        }
    }

    /// What the program loses by a thread's next move.
    pub fn price_ns(&self, thread: ThreadIndex, move_ns: f64) -> f64 {
        let own_ns = self.moving_ns.get(&thread).copied().unwrap_or(0.0);
        (own_ns + move_ns - self.longest_ns).max(0.0)
    }

    /// A thread makes a move.
    pub fn pay(&mut self, thread: ThreadIndex, move_ns: f64) {
        self.balance_ns -= self.price_ns(thread, move_ns);
        let own_ns = self.moving_ns.entry(thread).or_default();
        *own_ns += move_ns;
        self.longest_ns = self.longest_ns.max(*own_ns);
    }

    /// A thread has saved time, or, below 0, lost it.
    pub fn saved(&mut self, thread_ns: f64) {
        self.balance_ns += thread_ns / self.running;
    }

    /// An epoch has passed in which so many threads ran.
    pub fn end_epoch(&mut self, duration_ns: u64, running: usize) {
        self.balance_ns += self.budget * duration_ns as f64;
        self.running = running.max(1) as f64;
        self.moving_ns.clear();
        self.longest_ns = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_moved_side_by_side_costs_as_much_as_the_longest() {
        let [a, b] = [ThreadIndex(0), ThreadIndex(7)];
        let mut purse = Purse::new(0.005);
        purse.end_epoch(1_000_000, 4);
        assert_eq!(purse.balance_ns, 5000.0);
        purse.pay(a, 1000.0);
        purse.pay(a, 1000.0);
        assert_eq!(purse.balance_ns, 3000.0);
        assert_eq!(purse.price_ns(b, 1000.0), 0.0);
        purse.pay(b, 1000.0);
        purse.pay(b, 1500.0);
        assert_eq!(purse.balance_ns, 2500.0, "b moves for 2500 ns, a for 2000");
        // Another epoch, another longest.
        purse.end_epoch(0, 4);
        assert_eq!(purse.price_ns(b, 1000.0), 1000.0);
        // Four threads run: a thread's nanosecond is a quarter of the program's.
        purse.saved(400.0);
        assert_eq!(purse.balance_ns, 2600.0);
        purse.saved(-800.0);
        assert_eq!(purse.balance_ns, 2400.0);
    }
}
