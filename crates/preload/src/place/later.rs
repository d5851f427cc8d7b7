//! Placements that begin when the process creates its second thread.
//!
//! Objects of a rule with [`RULE_LATER`] are remembered and left to first touch until then. The creator of that thread sets
//! their policies and moves their present pages before the thread exists; no other thread waits for that. Nothing is
//! undone when threads end. How long the remaining thread will run alone is not known then, and moving everything
//! back and forth around each team of threads could take longer than it saves. A thread whose creation was not
//! observed (a bare `clone`) counts from its first hooked call on. A forked process waits for a second thread of its own,
//! with the objects that waited in its parent and its own new ones; it places static objects again.
//!
//! Objects that are divided among threads by their number are placed from the beginning, for the number of objects in the plan. They
//! are remembered, too: if their number has turned out different by then, they are divided again.
//!
//! If an unobserved thread frees an object at that very moment, the object's policy may stay until its memory is placed or freed
//! again. That is harmless: a policy says where pages come from, never what they hold.

use core::sync::atomic::{Ordering::*, fence};

use nearpage_wire::compact_plan::{NONE, RULE_LATER, Rule, share_of_object};

use super::counters::{RuleCounters, Switch, count, discount};
use super::placed::Waiting;
use super::{Object, RuleList, State};

impl State {
    /// Places the objects that wait for the second thread, which is about to be created. Only the first call does so; a
    /// thread that calls meanwhile does not wait.
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
            match self.section.rules.get(waiting.rule as usize) {
                Some(rule) if rule.objects != 0 && rule.flags & RULE_LATER == 0 => {
                    self.deal_anew(rule, &waiting, object)
                }
                _ => self.switch(&self.section, waiting.rule as usize, object),
            }
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

    /// Remembers an object whose place depends on the number of objects of its call site, until that number is known. If
    /// there is no room, the object stays where it is.
    pub(super) fn await_count(&self, index: usize, object: Object) {
        let (Some(rule), Some(origin)) = (self.section.rules.get(index), object.origin) else {
            return;
        };
        let is_late = rule.flags & RULE_LATER != 0;
        if rule.objects == 0 || is_late || self.has_second_thread.load(Relaxed) || self.touches() {
            return;
        }
        let Some(number) = self.counted(rule, index).checked_sub(1) else {
            return;
        };
        let waiting = Waiting {
            rule: index as u32,
            number,
            size_bytes: object.size_bytes,
            origin,
        };
        self.waiting.insert(object.address, waiting);
    }

    /// The number of objects so far at a rule's call site.
    fn counted(&self, rule: &Rule, index: usize) -> u32 {
        let thread = match rule.thread {
            NONE => self.threads.current().unwrap_or(NONE),
            thread => thread,
        };
        let group = self.section.counters.get(index);
        group.map_or(0, |counters| {
            let group = counters.group.load(Relaxed);
            self.section.orders.counted(group, thread)
        })
    }

    /// Moves an object to another thread's share, if the real number of objects puts it there.
    fn deal_anew(&self, rule: &Rule, waiting: &Waiting, object: Object) {
        let index = waiting.rule as usize;
        let [share, shares] = rule.turn;
        let now = share_of_object(waiting.number, self.counted(rule, index), shares);
        let to = (index + now as usize).checked_sub(share as usize);
        if let (Some(to), Some(before)) = (to, self.section.counters.get(index))
            && now != share
        {
            self.switch(&self.section, to, object);
            let extent = self.extent(object.address, object.size_bytes);
            let pages = extent
                .pages()
                .map_or(0, |(start, end)| (end - start) / extent.page_bytes);
            before.placed_elsewhere(pages as u64, object.size_bytes as u64);
        }
    }

    /// Does an object of this rule wait for the second thread?
    pub(super) fn waits(&self, rule: &Rule) -> bool {
        rule.flags & RULE_LATER != 0 && !self.has_second_thread.load(Relaxed) && !self.touches()
    }

    /// Remembers an object until the second thread is created. Static objects are not remembered: the rules find them again.
    pub(super) fn wait(&self, index: usize, object: Object, counters: &RuleCounters) {
        count(&counters.waited);
        let Some(origin) = object.origin else {
            return;
        };
        let waiting = Waiting {
            rule: index as u32,
            number: 0,
            size_bytes: object.size_bytes,
            origin,
        };
        if !self.waiting.insert(object.address, waiting) {
            discount(&counters.waited);
            return count(&counters.no_room);
        }
        fence(SeqCst);
        // The second thread's creator may have taken out the waiting objects before this one was inserted.
        if self.has_second_thread.load(Relaxed) && self.waiting.remove(object.address).is_some() {
            self.switch(&self.section, index, object);
        }
    }
}
