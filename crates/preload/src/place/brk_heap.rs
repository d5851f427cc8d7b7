//! The heap that `brk` extends, apart from objects with rules of their own: pages full of small objects, placed by their
//! distance from the heap's start.
//!
//! The heap grows without a call that could be hooked, as the C library calls the kernel directly. So its end is checked whenever
//! a thread has used up 64 KiB of small allocations, and after each large allocation beyond the placed part. Pages
//! that were touched before are moved. The kernel never merges a mapping that has a policy with memory that `brk` adds.
//! So each check that finds growth costs a mapping: with the C library's steps of 132 KiB, some 8,000 for a GiB. Once the
//! plan's limit of mappings is reached, further heap is left to first touch.
//!
//! Heap that shrinks loses its policies with its pages. The next check notices, unless the heap has grown back to its old size by
//! then. Memory of a freed object with a placement of its own gets the heap's placement. An object that another thread
//! places in a part that has just grown may end up with the heap's policy. A forked process has its parent's policies.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use nearpage_wire::compact_plan::{RULE_LATER, Rule, subject};

use super::bind::{self, Outcome};
use super::counters::{Request, RuleCounters, Switch, count};
use super::pieces::{Extent, Pattern, Pieces};
use super::remap::each_mapping;
use super::{State, state};
use crate::{bounds, sys};

/// Bytes of small allocations of a thread after which the heap's end is checked: half of what the C library extends it by.
const GROWTH_BYTES: i64 = 64 << 10;

/// First byte of the heap; all ones: the plan does not place the heap.
static START: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Bytes of the heap that the plan places, from its start.
static PLANNED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// End of the part that is placed so far.
static PLACED_END: AtomicUsize = AtomicUsize::new(0);

/// The planned part of the heap, and its rule.
#[derive(Clone, Copy)]
struct Heap<'a> {
    extent: Extent,
    pattern: Pattern<'a>,
    counters: &'a RuleCounters,
    is_later: bool,
}

/// Does the plan place the heap?
#[inline]
pub fn is_planned() -> bool {
    PLANNED_BYTES.load(Relaxed) != 0
}

/// Bytes of small allocations of a thread after which it is to call [`place_growth`].
pub fn gap_bytes() -> i64 {
    if is_planned() {
        GROWTH_BYTES
    } else {
        i64::MAX / 2
    }
}

/// An object was allocated: places the heap's growth, if the object lies beyond the placed part.
#[inline]
pub fn used(address: usize, size_bytes: usize) {
    if address.wrapping_sub(START.load(Relaxed)) < PLANNED_BYTES.load(Relaxed)
        && address.saturating_add(size_bytes) > PLACED_END.load(Relaxed)
    {
        place_growth();
    }
}

/// Places what the heap has grown by since the last check.
#[cold]
pub fn place_growth() {
    if let Some(state) = state().filter(|_| is_planned()) {
        state.place_heap_growth();
    }
}

impl State {
    /// Finds the heap's start, if a rule is about the heap, and places the heap as it is now.
    pub(super) fn start_heap(&self) {
        let Some((rule, _)) = self.heap_rule() else {
            return;
        };
        let start = bounds::heap_start();
        if start == 0 {
            return;
        }
        START.store(start, Relaxed);
        PLACED_END.store(start, Relaxed);
        PLANNED_BYTES.store(usize::try_from(rule.size_bytes).unwrap_or(0), Release);
        self.place_heap_growth();
    }

    /// The first sound rule about the heap.
    fn heap_rule(&self) -> Option<(&Rule, &RuleCounters)> {
        let mut rules = self.section.rules.iter().zip(self.section.counters);
        rules.find(|(rule, counters)| {
            rule.subject == subject::BRK_HEAP && counters.ignored.load(Relaxed) == 0
        })
    }

    fn heap(&self) -> Option<Heap<'_>> {
        let (rule, counters) = self.heap_rule().filter(|_| is_planned())?;
        Some(Heap {
            extent: self.extent(START.load(Relaxed), PLANNED_BYTES.load(Relaxed)),
            pattern: self.plan.pattern(rule)?,
            counters,
            is_later: rule.flags & RULE_LATER != 0,
        })
    }

    /// Does an address lie in the placed part of the heap?
    pub(super) fn is_in_placed_heap(&self, address: usize) -> bool {
        let placed = START.load(Relaxed)..PLACED_END.load(Relaxed);
        is_planned() && placed.contains(&address)
    }

    fn place_heap_growth(&self) {
        let Some(heap) = self.heap() else { return };
        if heap.is_later && !self.has_second_thread.load(Relaxed) && !self.touches() {
            return;
        }
        let (before, end) = self.take_growth(&heap);
        if before == heap.extent.address && before < end {
            count(match heap.pattern {
                Pattern::Leave => &heap.counters.left,
                _ => &heap.counters.objects,
            });
        }
        if before < end {
            self.place_in_heap(&heap, (before, end), None);
        } else if end < before {
            // The heap may have grown again since it shrank.
            self.place_where_no_policy_is(&heap, (heap.extent.address, end));
        }
    }

    /// The end of the placed part, and the end of the heap, which counts as placed from now on.
    fn take_growth(&self, heap: &Heap<'_>) -> (usize, usize) {
        let end = sys::program_break() & !(heap.extent.page_bytes - 1);
        let end = end.max(heap.extent.address);
        (PLACED_END.swap(end, AcqRel), end)
    }

    /// Places the heap, if its placement begins with the second thread, which is about to be created.
    pub(super) fn place_heap_later(&self) {
        let Some(heap) = self.heap().filter(|heap| heap.is_later) else {
            return;
        };
        let switch = Switch::begin(heap.counters);
        let grown = self.take_growth(&heap);
        self.place_where_no_policy_is(&heap, grown);
        count(&heap.counters.objects);
        count(&heap.counters.switched);
        switch.end();
    }

    /// Places the mappings between two addresses that have no policy: a mapping with a policy belongs to an object.
    fn place_where_no_policy_is(&self, heap: &Heap<'_>, (start, end): (usize, usize)) {
        let known = each_mapping(|mapping| {
            let range = (mapping.start.max(start), mapping.end.min(end));
            if range.0 < range.1 && bind::has_no_policy(range.0) {
                self.place_in_heap(heap, range, None);
            }
        });
        if let Err(error) = known {
            heap.counters.failures.add(Request::Bind, error, 1);
        }
    }

    /// Gives the memory of a freed object with its own placement the heap's placement, in at most `mappings` mappings.
    pub(super) fn return_to_heap(&self, start: usize, length: usize, mappings: u32) {
        if self.is_in_placed_heap(start)
            && let Some(heap) = self.heap()
        {
            self.place_in_heap(&heap, (start, start + length), Some(mappings.into()));
        }
    }

    /// Places a part of the heap; `granted` is the number of mappings that were already granted for it.
    fn place_in_heap(&self, heap: &Heap<'_>, (start, end): (usize, usize), granted: Option<u64>) {
        let Heap {
            extent,
            pattern,
            counters,
            ..
        } = *heap;
        let Some((planned_start, planned_end)) = extent.pages() else {
            return count(&counters.too_small);
        };
        let (start, end) = (start.max(planned_start), end.min(planned_end));
        if start >= end {
            return;
        }
        let pages = ((end - start) / extent.page_bytes) as u64;
        if self.touches() {
            counters.untouched.fetch_add(pages, Relaxed);
            return;
        }
        if pattern == Pattern::Leave {
            if self.spreads()
                && let Err(error) = bind::keep_local(start, end)
            {
                counters.failures.add(Request::Bind, error, 1);
            }
            return;
        }
        let exact = Pieces::new(extent, pattern).within(start, end);
        let room = match granted {
            Some(granted) => granted,
            None => self
                .mappings
                .take(exact.count_up_to(self.mappings.max()), 1),
        };
        if room == 0 {
            return count(&counters.no_room);
        }
        let (pieces, coarsened) = exact.at_most(room);
        counters.coarsened.fetch_add(coarsened, Relaxed);
        let nodes = (&self.allowed, self.spreads());
        match bind::place(extent, pieces, nodes, counters) {
            Outcome::Placed | Outcome::LargerPages => {}
            Outcome::Exhausted => self.mappings.exhaust(),
            Outcome::Refused(error) => {
                counters.failures.add(Request::Bind, error, 1);
                self.refused(error);
            }
        }
        if granted.is_none() {
            counters.pages.fetch_add(pages, Relaxed);
            counters
                .bytes
                .fetch_add(pages * extent.page_bytes as u64, Relaxed);
        }
    }
}
