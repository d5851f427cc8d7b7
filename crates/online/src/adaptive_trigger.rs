//! `migrate-replicate` with a trigger that adapts to lock contention and memory pressure.

use super::{Action, Copies, Epoch, MigrateReplicate, Observation, OnlinePolicy};

/// Verghese §6.2.2: "a more sophisticated policy implementation could be considered that varies [the trigger]
/// automatically at runtime (through feedback) to control the rate of migrations and replications to respond to
/// different situations, e.g., excessive memory pressure or lock contention"; §8.2: "based on the contention for kernel
/// resources". The thesis does not say how.
///
/// Here the trigger doubles after an epoch in which moves waited for the lock for more than a quarter of their time
/// (Table 8's lock contention costs the engineering workload a third of its overhead), or in which a replica was
/// reclaimed or refused for lack of memory. After any other epoch it halves, down to its initial value. The maximum is
/// sixteen times the initial value.
#[derive(Clone, Debug)]
pub struct AdaptiveTrigger {
    inner: MigrateReplicate,
    least: u16,
    most: u16,
}

/// Moves that wait for the lock for more than one part in this number of their time are contended.
const CONTENTION: u64 = 4;
/// Largest trigger, in multiples of the initial one.
const MOST: u16 = 16;

impl AdaptiveTrigger {
    /// Starts from the trigger of `inner`.
    pub fn new(inner: MigrateReplicate) -> Self {
        let least = inner.trigger();
        let most = least.saturating_mul(MOST).min(u16::MAX - 1);
        Self { inner, least, most }
    }

    /// The current trigger, in references that the policy is shown.
    pub fn trigger(&self) -> u16 {
        self.inner.trigger()
    }
}

impl OnlinePolicy for AdaptiveTrigger {
    fn epoch_ns(&self) -> Option<u64> {
        self.inner.epoch_ns()
    }

    #[inline]
    fn observe(&mut self, observation: &Observation, actions: &mut Vec<Action>) {
        self.inner.observe(observation, actions);
    }

    fn end_epoch(&mut self, epoch: &Epoch<'_>, actions: &mut Vec<Action>) {
        let contended = epoch.lock_wait_ns.saturating_mul(CONTENTION) > epoch.move_ns;
        let trigger = self.inner.trigger();
        let next = match contended || epoch.short_of_memory > 0 {
            true => trigger.saturating_mul(2).min(self.most),
            false => (trigger / 2).max(self.least),
        };
        self.inner.set_trigger(next);
        self.inner.end_epoch(epoch, actions);
    }

    fn forget(&mut self, page: u32) {
        self.inner.forget(page);
    }

    fn refused(&mut self, action: &Action, copies: Copies) {
        self.inner.refused(action, copies);
    }

    #[inline]
    fn fetch_ahead(&self, page: u32) {
        self.inner.fetch_ahead(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Setting, Thresholds};

    #[test]
    fn the_trigger_follows_contention_and_memory() {
        let setting = Setting {
            nodes: 4,
            pages: 1,
            memory_nodes: 0b1111,
            near_memory_nodes: 0b1111,
            cpus_per_node: 0,
            clock_ghz: 0.3,
            every: 1,
            seed: 0,
        };
        let inner = MigrateReplicate::new(&Thresholds::default(), &setting).expect("thresholds");
        let mut policy = AdaptiveTrigger::new(inner);
        let mut after = |lock_wait_ns, move_ns, short_of_memory| {
            let epoch = Epoch {
                lock_wait_ns,
                move_ns,
                short_of_memory,
                ..Epoch::default()
            };
            policy.end_epoch(&epoch, &mut Vec::new());
            policy.trigger()
        };
        assert_eq!(after(0, 0, 0), 128, "never below what was set");
        assert_eq!(after(250, 1000, 0), 128);
        assert_eq!(after(251, 1000, 0), 256);
        assert_eq!(after(0, 1000, 1), 512);
        assert_eq!(after(0, 1000, 0), 256);
        for _ in 0..10 {
            after(1000, 1000, 0);
        }
        assert_eq!(after(1000, 1000, 0), 16 * 128);
    }
}
