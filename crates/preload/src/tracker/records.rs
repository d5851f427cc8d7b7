//! Writes records, call sites and counters into the log.

use core::sync::atomic::{AtomicU64, Ordering};

use nearpage_wire::allocation_log::{Kind, head};

use super::Tracker;
use crate::call_site::{Caller, Site};
use crate::sys;
use crate::thread::Thread;

/// Events that are counted, by their position in a shard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Allocations,
    Frees,
    SmallPassedThousandths,
    StacksCached,
    WithoutRoom,
    LargePassedThousandths,
}

/// Counters of some of the threads, in a cache line of their own.
#[repr(align(64))]
pub(super) struct Shard(pub(super) [AtomicU64; 6]);

pub(super) const SHARDS: usize = 32;

impl Tracker {
    /// Writes the counters, unless the process has no log yet: counters alone are no reason to make one.
    pub(super) fn record_counters(&self, thread: &mut Thread) {
        if self.log.blocks_claimed.load(Ordering::Relaxed) > 0 {
            let counters = self.counters();
            self.record(thread, &counters);
        }
    }

    pub(super) fn site(
        &self,
        thread: &mut Thread,
        caller: Caller,
        whole: bool,
        now_ns: u64,
    ) -> Site {
        let [low, high] = thread.stack;
        let stack_top = if (low..high).contains(&caller.at) {
            high
        } else {
            0
        };
        let unwound = self.sites.unwound.load(Ordering::Relaxed);
        let site = self.sites.site(caller, stack_top, whole, now_ns);
        if site.is_new {
            self.define(thread, &site);
        } else if !site.no_stack && self.sites.unwound.load(Ordering::Relaxed) == unwound {
            self.count(thread, Count::StacksCached, 1);
        }
        site
    }

    fn define(&self, thread: &mut Thread, site: &Site) {
        let mut words = [0u64; 1 + nearpage_wire::CALL_SITE_DEPTH_MAX];
        let length = 1 + site.frames.len().min(nearpage_wire::CALL_SITE_DEPTH_MAX);
        words[0] = head(Kind::CallSite, length as u8, 0, site.number);
        for (word, frame) in words.iter_mut().skip(1).zip(site.frames) {
            *word = *frame as u64;
        }
        self.record(thread, words.get(..length).unwrap_or_default());
    }

    pub(super) fn count(&self, thread: &Thread, what: Count, by: u64) {
        if let Some(counter) = self
            .shards
            .get(thread.tid as usize % SHARDS)
            .and_then(|shard| shard.0.get(what as usize))
        {
            counter.fetch_add(by, Ordering::Relaxed);
        }
    }

    fn total(&self, what: Count) -> u64 {
        self.shards
            .iter()
            .filter_map(|shard| shard.0.get(what as usize))
            .map(|counter| counter.load(Ordering::Relaxed))
            .sum()
    }

    pub(super) fn counters(&self) -> [u64; 11] {
        [
            head(Kind::Counters, 11, 0, sys::gettid()),
            sys::clock_ns(),
            self.total(Count::Allocations),
            self.total(Count::Frees),
            self.total(Count::SmallPassedThousandths) / 1000,
            self.sites.unwound.load(Ordering::Relaxed),
            self.total(Count::StacksCached),
            self.sites.left_out.load(Ordering::Relaxed),
            self.log.dropped.load(Ordering::Relaxed),
            self.total(Count::WithoutRoom),
            self.total(Count::LargePassedThousandths) / 1000,
        ]
    }

    /// Writes the thread's Thread record, with which it gets a block.
    pub(super) fn announce(&self, thread: &mut Thread) {
        self.make_room(thread, 0);
    }

    /// Appends a record to the log, if there is one.
    pub(super) fn record(&self, thread: &mut Thread, words: &[u64]) {
        if self.make_room(thread, words.len()) {
            self.log.append(thread, words);
        }
    }

    pub(super) fn make_room(&self, thread: &mut Thread, words: usize) -> bool {
        if self.logs.load(Ordering::Relaxed) == 0 {
            return false;
        }
        if !self.log.needs_block(thread, words) {
            return true;
        }
        let announced =
            thread.announced && thread.generation == self.log.generation.load(Ordering::Relaxed);
        thread.announced = false;
        if !self.log.claim(thread, !announced) {
            self.log.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        thread.announced = true;
        if announced {
            let counters = self.counters();
            self.log.append(thread, &counters);
        } else {
            let thread_record = [
                head(Kind::Thread, 11, 0, thread.number),
                sys::clock_ns(),
                thread.start_routine as u64,
                thread.order.into(),
                thread.stack[0] as u64,
                thread.stack[1] as u64,
                thread.local_storage[0] as u64,
                thread.local_storage[1] as u64,
                thread.creator.into(),
                thread.callable.run as u64,
                thread.callable.function as u64,
            ];
            self.log.append(thread, &thread_record);
        }
        true
    }
}
