//! Placement of one object, by memory policy or by touching its pages.

use core::sync::atomic::Ordering::*;

use nearpage_wire::compact_plan::{RULE_LATER, RULE_WEAK, Rule};
use nearpage_wire::pieces::{Extent, Pattern, Pieces};

use super::bind::{self, Outcome};
use super::counters::{Request, RuleCounters, count};
use super::placed::Placed;
use super::recognise::Origin;
use super::{RuleList, State};
use crate::modules::Module;
use crate::touch::{self, ObjectToTouch};

/// An object that is to be placed.
#[derive(Clone, Copy)]
pub(super) struct Object {
    pub(super) address: usize,
    pub(super) size_bytes: usize,
    /// `None` for a static object.
    pub(super) origin: Option<Origin>,
    /// May this library write to it? False for a mapping, whose protection is unknown.
    pub(super) is_writable: bool,
}

impl Object {
    pub(super) fn allocated(origin: Origin, address: usize, size_bytes: usize) -> Self {
        Self {
            address,
            size_bytes,
            origin: Some(origin),
            is_writable: origin == Origin::Heap,
        }
    }

    /// A rule's static object; `None` if the module is not loaded, or ends before it.
    pub(super) fn of_module(module: &Module, rule: &Rule) -> Option<Self> {
        let address = module.address(rule.offset, rule.size_bytes)?;
        let size_bytes = rule.size_bytes as usize;
        Some(Self {
            address,
            size_bytes,
            origin: None,
            is_writable: module.is_writable(address, address.saturating_add(size_bytes)),
        })
    }
}

impl State {
    /// Places one object by rule `index` of a list, or has it wait for the second thread. Returns whether it was placed.
    pub(super) fn place(&self, list: &RuleList, index: usize, object: Object) -> bool {
        let Object {
            address,
            size_bytes,
            origin,
            ..
        } = object;
        let (Some(rule), Some(counters)) = (list.rules.get(index), list.counters.get(index)) else {
            return false;
        };
        let Some(pattern) = self.plan.pattern(rule) else {
            return false;
        };
        let extent = self.extent(address, size_bytes);
        if pattern == Pattern::Leave {
            count(&counters.left);
            self.keep_local(extent, counters, origin);
            return false;
        }
        let Some((start, end)) = extent.pages() else {
            count(&counters.too_small);
            return false;
        };
        let pages = ((end - start) / extent.page_bytes) as u64;
        let mut placed_pages = pages;
        if !list.is_of_phase && self.waits(rule) {
            self.keep_local(extent, counters, origin);
            self.wait(index, object, counters);
            return false;
        }
        let is_moved = list.is_of_phase;
        if !self.touches()
            && !self.bind(extent, (start, end), pattern, counters, (origin, is_moved))
        {
            return false;
        }
        if self.touches() {
            if list.is_of_phase {
                count(&counters.early);
                return false;
            }
            if rule.flags & RULE_LATER != 0 && !self.has_second_thread.load(Relaxed) {
                count(&counters.early);
            }
            self.keep_local(extent, counters, origin);
            placed_pages = self.touch(index, object, (start, end), pattern, counters);
            if placed_pages == 0 {
                return false;
            }
        }
        count(&counters.objects);
        counters.pages.fetch_add(placed_pages, Relaxed);
        let placed_bytes = if placed_pages == pages {
            size_bytes as u64
        } else {
            placed_pages * extent.page_bytes as u64
        };
        counters.bytes.fetch_add(placed_bytes, Relaxed);
        if rule.flags & RULE_WEAK != 0 {
            count(&counters.weak);
        }
        true
    }

    /// Touches an object's pages, or has the object wait for others. Returns how many pages are touched, from the first on.
    fn touch(
        &self,
        index: usize,
        object: Object,
        (start, end): (usize, usize),
        pattern: Pattern<'_>,
        counters: &RuleCounters,
    ) -> u64 {
        let extent = self.extent(object.address, object.size_bytes);
        let pages = ((end - start) / extent.page_bytes) as u64;
        let claim = match object.origin {
            Some(_) => self.touched.claim(index, object.address, (start, end)),
            None if object.is_writable => Some(self.touched.claim_static(pages)),
            None => Some(0),
        };
        let Some(granted) = claim else {
            count(&counters.no_room);
            return 0;
        };
        counters.untouched.fetch_add(pages - granted, Relaxed);
        let touched = ObjectToTouch {
            extent,
            pattern,
            counters,
            is_writable: object.is_writable,
            pages_max: granted,
        };
        let waits = object.origin == Some(Origin::Heap)
            && self.plan.header.touch_group > 1
            && self.can_populate
            && granted == pages;
        match granted {
            0 => {}
            _ if waits => self.touch_later(index as u32, &touched),
            _ => touch::touch(&[touched], self.can_populate),
        }
        granted
    }

    /// Places by memory policy; false if a limit was reached. If the object `is_moved`, its earlier policies are removed.
    fn bind(
        &self,
        extent: Extent,
        (start, end): (usize, usize),
        pattern: Pattern<'_>,
        counters: &RuleCounters,
        (origin, is_moved): (Option<Origin>, bool),
    ) -> bool {
        let exact = Pieces::new(extent, pattern);
        // Each piece may become a mapping of its own, and so may the rest of the old mapping behind them.
        let wanted = exact.count_up_to(self.mappings.max()).saturating_add(1);
        let Some(granted) = self.claim(extent.address, (start, end), wanted, counters, origin)
        else {
            return false;
        };
        if is_moved {
            bind::reset(start, end - start);
        }
        let (pieces, coarsened) = exact.at_most(granted - 1);
        counters.coarsened.fetch_add(coarsened, Relaxed);
        let nodes = (&self.allowed, self.spreads_at(extent.address));
        let mut outcome = bind::place(extent, pieces, nodes, counters);
        if outcome == Outcome::LargerPages {
            // These are explicit huge pages: the kernel does not split a mapping within one.
            let extent = Extent {
                unit_bytes: self.plan.header.huge_page_bytes as usize,
                ..extent
            };
            let (pieces, _) = Pieces::new(extent, pattern).at_most(granted - 1);
            outcome = bind::place(extent, pieces, nodes, counters);
        }
        match outcome {
            Outcome::Placed | Outcome::LargerPages => {}
            Outcome::Exhausted => self.mappings.exhaust(),
            Outcome::Refused(error) => {
                counters.failures.add(Request::Bind, error, 1);
                if origin.is_some() {
                    self.placed.remove(extent.address);
                }
                self.mappings.give_back(granted);
                self.refused(error);
            }
        }
        true
    }

    /// Grants an object at least 2 and up to `wanted` mappings, and remembers it with these unless it is static. `None` if a
    /// limit is reached.
    pub(super) fn claim(
        &self,
        address: usize,
        (start, end): (usize, usize),
        wanted: u64,
        counters: &RuleCounters,
        origin: Option<Origin>,
    ) -> Option<u64> {
        // An object that waited was kept local, and one that is moved had another place: it may be listed already.
        if origin.is_some()
            && let Some(before) = self.placed.remove(address)
        {
            self.mappings.give_back(before.mappings.into());
        }
        let granted = self.mappings.take(wanted, 2);
        if granted < 2 {
            count(&counters.no_room);
            return None;
        }
        if let Some(origin) = origin {
            let placed = Placed {
                start,
                length: end - start,
                mappings: granted as u32,
                is_unmapped: origin == Origin::Mapping || is_own_mapping(address),
            };
            if !self.placed.insert(address, placed) {
                self.mappings.give_back(granted);
                count(&counters.no_room);
                return None;
            }
        }
        Some(granted)
    }
}

/// Will the C library unmap this live heap object when it is freed? Its malloc gives large objects a
/// mapping of their own, 16 bytes into a page, and says so in bit 1 of the word before them.
fn is_own_mapping(address: usize) -> bool {
    const IS_MMAPPED: usize = 2;
    // SAFETY: 16 bytes into a page, the word before is in the object's own page.
    address & 0xfff == 0x10 && unsafe { ((address - 8) as *const usize).read() } & IS_MMAPPED != 0
}
