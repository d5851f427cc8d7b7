//! Counters, per rule and per process, of what was placed, what was not, and why.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::memory::Zeroed;
use crate::sys::{self, Errno};

/// A request that the kernel may refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    /// A memory policy.
    Bind = 1,
    /// The move of a page that was present.
    Move = 2,
    /// The first touch of a page.
    Touch = 3,
    /// Another CPU for the calling thread.
    Visit = 4,
    /// A memory policy for the process.
    MemoryPolicy = 5,
}

impl Request {
    /// Its name in the summary.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bind => "mbind",
            Self::Move => "move_pages",
            Self::Touch => "touch",
            Self::Visit => "sched_setaffinity",
            Self::MemoryPolicy => "set_mempolicy",
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [
            Self::Bind,
            Self::Move,
            Self::Touch,
            Self::Visit,
            Self::MemoryPolicy,
        ]
        .into_iter()
        .find(|request| *request as u32 == number)
    }
}

/// Kinds of failure that are counted separately, per rule.
const FAILURES_MAX: usize = 8;

/// How often each request failed with each error number.
#[derive(Default)]
pub struct Failures {
    keys: [AtomicU32; FAILURES_MAX],
    counts: [AtomicU64; FAILURES_MAX],
}

impl Failures {
    /// Counts `times` failures. Kinds beyond the eighth are counted as the eighth.
    pub fn add(&self, request: Request, error: Errno, times: u64) {
        let wanted = (request as u32) << 16 | (error.0 as u32 & 0xffff);
        let slot = self.keys.iter().position(|key| {
            key.compare_exchange(0, wanted, Relaxed, Relaxed).is_ok() || key.load(Relaxed) == wanted
        });
        if let Some(count) = self.counts.get(slot.unwrap_or(FAILURES_MAX - 1)) {
            count.fetch_add(times, Relaxed);
        }
    }

    /// Request, error number and count of each kind.
    pub fn iter(&self) -> impl Iterator<Item = (Request, i32, u64)> + '_ {
        self.keys
            .iter()
            .zip(&self.counts)
            .filter_map(|(key, count)| {
                let key = key.load(Relaxed);
                Some((
                    Request::from_number(key >> 16)?,
                    (key & 0xffff) as i32,
                    count.load(Relaxed),
                ))
            })
    }

    fn clear(&self) {
        self.keys.iter().for_each(|key| key.store(0, Relaxed));
        self.counts.iter().for_each(|count| count.store(0, Relaxed));
    }
}

/// What became of one rule's objects.
#[derive(Default)]
pub struct RuleCounters {
    /// 1: the rule is invalid and ignored.
    pub ignored: AtomicU32,
    /// The rule whose order counter this rule uses.
    pub group: AtomicU32,
    /// Objects placed, at least in part.
    pub objects: AtomicU64,
    /// The pages of these objects.
    pub pages: AtomicU64,
    /// The bytes of these objects.
    pub bytes: AtomicU64,
    /// Pages that were present already, on their planned node.
    pub in_place: AtomicU64,
    /// Pages that were present already and were moved.
    pub moved: AtomicU64,
    /// Pages that were present already and can't be moved: a device or the kernel holds them.
    pub pinned: AtomicU64,
    /// Objects of a rebuilt program that were recognised by a weaker key.
    pub weak: AtomicU64,
    /// Objects that were left to first touch, or left in place by a phase, as planned.
    pub left: AtomicU64,
    /// Objects that waited for the second thread or for a phase, and were freed before, or when the process ended.
    pub waited: AtomicU64,
    /// Objects placed when the second thread was created, or their phase began.
    pub switched: AtomicU64,
    /// Pages of these objects that were on another node, and were moved.
    pub switched_moved: AtomicU64,
    /// Time that this took the thread that created the second thread, or began the phase.
    pub switched_ns: AtomicU64,
    /// Objects that were placed at their allocation instead of later, or that a phase has left in place, because pages
    /// cannot be moved here.
    pub early: AtomicU64,
    /// Objects recognised but smaller than two pages.
    pub too_small: AtomicU64,
    /// Pieces that were merged with others, because the limit of mappings was reached.
    pub coarsened: AtomicU64,
    /// Objects that were not placed, because a limit of mappings or of remembered objects was reached.
    pub no_room: AtomicU64,
    /// Pages planned for nodes on which this process may have no memory.
    pub missing_node_pages: AtomicU64,
    /// Pages that `touch` left alone: beyond its cap, or not safe to touch.
    pub untouched: AtomicU64,
    /// Static objects that would lie outside their module.
    pub outside: AtomicU64,
    /// Requests that the kernel refused.
    pub failures: Failures,
}

// SAFETY: atomics only.
unsafe impl Zeroed for RuleCounters {}

impl RuleCounters {
    /// The counters that the summary shows where they are not 0, by name.
    pub fn shown(&self) -> [(&'static str, &AtomicU64); 19] {
        [
            ("objects", &self.objects),
            ("pages", &self.pages),
            ("bytes", &self.bytes),
            ("in_place", &self.in_place),
            ("moved", &self.moved),
            ("pinned", &self.pinned),
            ("weak", &self.weak),
            ("left", &self.left),
            ("waited", &self.waited),
            ("switched", &self.switched),
            ("switched_moved", &self.switched_moved),
            ("switched_ns", &self.switched_ns),
            ("early", &self.early),
            ("too_small", &self.too_small),
            ("coarsened", &self.coarsened),
            ("no_room", &self.no_room),
            ("missing_node_pages", &self.missing_node_pages),
            ("untouched", &self.untouched),
            ("outside", &self.outside),
        ]
    }

    /// Discounts one object, which another rule places and counts from now on.
    pub fn placed_elsewhere(&self, pages: u64, bytes: u64) {
        for (counter, less) in [
            (&self.objects, 1),
            (&self.pages, pages),
            (&self.bytes, bytes),
        ] {
            let _ = counter.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(less));
        }
    }

    /// Sets all counters to 0: a forked process counts for itself.
    pub fn clear(&self) {
        self.shown()
            .iter()
            .for_each(|(_, counter)| counter.store(0, Relaxed));
        self.failures.clear();
    }
}

/// Counts pages and time while an object is moved that has waited for the second thread or a phase.
pub struct Switch<'a> {
    counters: &'a RuleCounters,
    began_ns: u64,
    moved: u64,
}

impl<'a> Switch<'a> {
    /// The move begins now.
    pub fn begin(counters: &'a RuleCounters) -> Self {
        Self {
            counters,
            began_ns: sys::monotonic_ns(),
            moved: counters.moved.load(Relaxed),
        }
    }

    /// The move is done.
    pub fn end(self) {
        let moved = self.counters.moved.load(Relaxed).saturating_sub(self.moved);
        let took_ns = sys::monotonic_ns().saturating_sub(self.began_ns);
        self.counters.switched_moved.fetch_add(moved, Relaxed);
        self.counters.switched_ns.fetch_add(took_ns, Relaxed);
    }
}

/// Subtracts one, unless the counter is 0: a forked process's counters begin at 0, below what its parent counted.
pub fn discount(counter: &AtomicU64) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
}

/// Adds one.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn failures_are_kept_apart() {
        let failures = Failures::default();
        failures.add(Request::Bind, Errno(22), 1);
        failures.add(Request::Move, Errno(22), 5);
        failures.add(Request::Bind, Errno(22), 2);
        assert_eq!(
            failures.iter().collect::<Vec<_>>(),
            [(Request::Bind, 22, 3), (Request::Move, 22, 5)]
        );
        for error in 1..20 {
            failures.add(Request::Touch, Errno(error), 1);
        }
        assert_eq!(
            failures.iter().map(|(_, _, count)| count).sum::<u64>(),
            27,
            "none is lost"
        );
    }
}
