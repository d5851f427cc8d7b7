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

use super::counters::{RuleCounters, Switch, count, discount};
use super::placed::Waiting;
use super::{Object, RuleList, State};

impl State {
    /// The second thread is about to be created: places what waits for that. Once; a thread that comes by
    /// meanwhile does not wait.
    pub(super) fn second_thread(&self) {
        if self.has_second_thread.swap(true, SeqCst) || !self.has_later || self.touches() {
            return;
        }
        fence(SeqCst);
        self.modules.all(|module| {
            self.statics(&self.section, module, |index, rule| {
                if rule.flags & RULE_LATER == 0 {
                    return;
                }
                if self.is_moved(module, rule.offset) {
                    if let Some(counters) = self.section.counters.get(index) {
                        discount(&counters.waited);
                    }
                } else if let Some(object) = Object::of_module(module, rule) {
                    self.switch(&self.section, index, object);
                }
            });
        });
        self.place_heap_later();
        self.waiting.take_all(|address, waiting| {
            let object = Object::allocated(waiting.origin, address, waiting.size_bytes);
            self.switch(&self.section, waiting.rule as usize, object);
        });
        self.spread_later();
    }

    /// Places an object that has waited for the second thread, or for a phase.
    pub(super) fn switch(&self, list: &RuleList, index: usize, object: Object) {
        let Some(counters) = list.counters.get(index) else {
            return;
        };
        let switch = Switch::begin(counters);
        if self.place(list, index, object) {
            count(&counters.switched);
        }
        switch.end();
        discount(&counters.waited);
    }

    /// Does an object of this rule wait for the second thread?
    pub(super) fn waits(&self, rule: &Rule) -> bool {
        rule.flags & RULE_LATER != 0 && !self.has_second_thread.load(Relaxed) && !self.touches()
    }

    /// Remembers an object until the second thread is created; static ones are found again without.
    pub(super) fn wait(&self, index: usize, object: Object, counters: &RuleCounters) {
        count(&counters.waited);
        let Some(origin) = object.origin else {
            return;
        };
        let waiting = Waiting {
            rule: index as u32,
            size_bytes: object.size_bytes,
            origin,
        };
        if !self.waiting.insert(object.address, waiting) {
            discount(&counters.waited);
            return count(&counters.no_room);
        }
        fence(SeqCst);
        // Those that waited may have been looked through before this one was there.
        if self.has_second_thread.load(Relaxed) && self.waiting.remove(object.address).is_some() {
            self.switch(&self.section, index, object);
        }
    }
}
