//! Placements that begin when the process creates its second thread.
//!
//! Objects of a rule with [`RULE_LATER`] are remembered and left to first touch until then; the creator of that
//! thread sets their policies and moves the pages that are there, before the thread exists. Nobody waits
//! for that but the creator. Nothing is undone when threads end: how long the one that is left will run alone is
//! not known then, and to move everything back and forth around each team of threads that is created and
//! joined could take longer than what it is for. A thread whose creation was not seen (a bare `clone`) counts from
//! the first event that it is met by. A forked process waits for a second thread of its own, with what waited
//! in its parent and what comes to be in it; static objects it places again.
//!
//! An object that another thread, one not seen, frees just then may leave its policy behind, until its memory is
//! placed or freed again: a policy says where pages come from, never what they hold.

use core::sync::atomic::{Ordering::*, fence};

use nearpage_wire::compact_plan::{RULE_LATER, Rule};

use super::counters::{RuleCounters, count, discount};
use super::placed::Waiting;
use super::recognise::Origin;
use super::{State, static_object};
use crate::sys;

impl State {
    /// The second thread is about to be created: places what waits for that. Once; a thread that comes by
    /// meanwhile does not wait.
    pub(super) fn second_thread(&self) {
        if self.has_second_thread.swap(true, SeqCst) || !self.has_later || self.touches() {
            return;
        }
        fence(SeqCst);
        self.modules.all(|module| {
            self.statics(module, |index, rule| {
                if rule.flags & RULE_LATER != 0
                    && let Some((address, size_bytes, is_writable)) = static_object(module, rule)
                {
                    self.switch(index, address, size_bytes, None, is_writable);
                }
            });
        });
        self.waiting.take_all(|address, object| {
            let Waiting {
                rule,
                size_bytes,
                origin,
            } = object;
            self.switch(
                rule as usize,
                address,
                size_bytes,
                Some(origin),
                origin == Origin::Heap,
            );
        });
    }

    /// Places an object that has waited for the second thread.
    fn switch(
        &self,
        index: usize,
        address: usize,
        size_bytes: usize,
        origin: Option<Origin>,
        is_writable: bool,
    ) {
        let Some(counters) = self.counters.get(index) else {
            return;
        };
        let moved = counters.moved.load(Relaxed);
        let began_ns = sys::monotonic_ns();
        if self.place(index, address, size_bytes, origin, is_writable) {
            count(&counters.switched);
        }
        let took_ns = sys::monotonic_ns().saturating_sub(began_ns);
        let moved = counters.moved.load(Relaxed).saturating_sub(moved);
        discount(&counters.waited);
        counters.switched_ns.fetch_add(took_ns, Relaxed);
        counters.switched_moved.fetch_add(moved, Relaxed);
    }

    /// Does an object of this rule wait for the second thread?
    pub(super) fn waits(&self, rule: &Rule) -> bool {
        rule.flags & RULE_LATER != 0 && !self.has_second_thread.load(Relaxed) && !self.touches()
    }

    /// Remembers an object until the second thread is created; static ones are found again without.
    pub(super) fn wait(
        &self,
        index: usize,
        address: usize,
        size_bytes: usize,
        origin: Option<Origin>,
        counters: &RuleCounters,
    ) {
        let Some(origin) = origin else {
            return count(&counters.waited);
        };
        let object = Waiting {
            rule: index as u32,
            size_bytes,
            origin,
        };
        count(&counters.waited);
        if !self.waiting.insert(address, object) {
            discount(&counters.waited);
            return count(&counters.no_room);
        }
        fence(SeqCst);
        // Those that waited may have been looked through before this one was there.
        if self.has_second_thread.load(Relaxed) && self.waiting.remove(address).is_some() {
            let is_writable = origin == Origin::Heap;
            self.switch(index, address, size_bytes, Some(origin), is_writable);
        }
    }
}
