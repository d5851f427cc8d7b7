//! Allocations, frees and mappings.

use core::sync::atomic::Ordering;

use nearpage_wire::LARGE_ALLOCATION_BYTES;
use nearpage_wire::allocation_log::{FLAG_NO_STACK, FLAG_SAMPLED, Kind, head};

use super::records::Count;
use super::{Observed, Tracker};
use crate::call_site::{Caller, Site};
use crate::large::{self, Logged};
use crate::left_out::LeftOut;
use crate::sample_heap::{LENGTH, SAMPLE_HEAP};
use crate::thread::Thread;
use crate::{place, sampling, sys};

/// The arguments and result of an `mmap`.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Its first byte.
    pub start: usize,
    /// Its length in bytes.
    pub length: usize,
    /// `PROT_…`.
    pub protection: u32,
    /// `MAP_…`.
    pub map_flags: u32,
    /// The file, or −1.
    pub fd: i32,
}

impl Tracker {
    pub(super) fn logs_every_allocation(&self) -> bool {
        self.small_sample_bytes.load(Ordering::Relaxed) == 1
    }

    pub(super) fn next_gap(&self, thread: &mut Thread) -> i64 {
        match self.small_sample_bytes.load(Ordering::Relaxed) {
            1 => i64::MIN / 2,
            period if period > 0 && LENGTH.load(Ordering::Relaxed) > 0 && self.log.is_on() => {
                sampling::gap_bytes(period, thread.next_random())
            }
            _ => place::brk_heap::gap_bytes(),
        }
    }

    /// Did the allocation of `size` bytes, which `thread` has subtracted from its countdown, use
    /// it up?
    fn is_sampled(&self, thread: &mut Thread) -> bool {
        if thread.loading_at == 0 {
            return thread.countdown <= 0;
        }
        // While a dlopen runs, the countdown is kept at 0: the next allocation enters here and notices its end.
        thread.countdown_aside = thread
            .countdown_aside
            .saturating_add(core::mem::take(&mut thread.countdown));
        thread.countdown_aside <= 0
    }

    /// Serves a small allocation that used up the countdown, as a sample. `None`: it is no sample, and the
    /// real allocator is to serve it.
    pub fn allocate_sample(
        &self,
        observed: &mut Observed,
        caller: Caller,
        size: usize,
        alignment: usize,
        flags: u16,
    ) -> Option<usize> {
        let _left_out = LeftOut::begin();
        let thread = &mut *observed.thread;
        if !self.is_sampled(thread) || self.logs_every_allocation() {
            return None;
        }
        place::brk_heap::place_growth();
        let gap = self.next_gap(thread);
        if thread.loading_at == 0 {
            thread.countdown = gap
        } else {
            thread.countdown_aside = gap
        }
        if self.logs.load(Ordering::Relaxed) == 0 || !self.log.is_on() {
            return None;
        }
        let Some(address) = SAMPLE_HEAP.allocate(size, alignment) else {
            self.count(thread, Count::WithoutRoom, 1);
            return None;
        };
        let weight =
            sampling::weight_thousandths(self.small_sample_bytes.load(Ordering::Relaxed), size);
        self.count(
            thread,
            Count::SmallPassedThousandths,
            weight.saturating_sub(1000),
        );
        let now = sys::clock_ns();
        let site = self.site(thread, caller, place::wants(size), now);
        let object = [address, size];
        self.log_allocation(thread, site, now, object, flags | FLAG_SAMPLED, weight);
        if place::wants(size) {
            place::allocated(address, size, site.frames);
        }
        Some(address)
    }

    /// Must an allocation of this size be reported to [`Self::allocated`]? Other small allocations are sampled.
    pub fn wants(&self, size: usize) -> bool {
        size >= LARGE_ALLOCATION_BYTES || self.logs_every_allocation()
    }

    /// Must this allocation be reported to [`Self::allocated`], so that it is logged? Call it once for each allocation: it counts.
    #[inline]
    pub fn is_due(&self, caller: Caller, size: usize) -> bool {
        if size >= LARGE_ALLOCATION_BYTES {
            large::is_due(caller, size)
        } else {
            self.logs_every_allocation()
        }
    }

    /// Logs and places an allocation that [`Self::is_due`], or only places one.
    pub fn allocated(
        &self,
        observed: &mut Observed,
        caller: Caller,
        address: usize,
        size: usize,
        flags: u16,
        is_due: bool,
    ) {
        let _left_out = LeftOut::begin();
        // The heap is placed before the object, which may have a rule of its own.
        place::brk_heap::used(address, size);
        let placed = place::wants(size);
        let logged = is_due && self.logs.load(Ordering::Relaxed) != 0;
        if !logged && !placed {
            return;
        }
        let thread = &mut *observed.thread;
        let now = sys::clock_ns();
        let site = self.site(thread, caller, placed, now);
        if logged && self.logs_every_allocation() {
            self.log_allocation(thread, site, now, [address, size], flags, 1000);
        } else if logged {
            let weight = large::weigh(thread, &self.budgets, caller, size, now);
            let sampled = if weight > 1000 { FLAG_SAMPLED } else { 0 };
            self.count(thread, Count::LargePassedThousandths, weight - 1000);
            if self.alive.insert(address, Logged::new(thread, caller, now)) {
                let flags = flags | sampled;
                self.log_allocation(thread, site, now, [address, size], flags, weight);
            } else {
                self.count(thread, Count::WithoutRoom, 1);
            }
        }
        if placed {
            place::allocated(address, size, site.frames);
        }
    }

    fn log_allocation(
        &self,
        thread: &mut Thread,
        site: Site,
        now_ns: u64,
        [address, size]: [usize; 2],
        flags: u16,
        weight: u64,
    ) {
        let flags = flags | if site.no_stack { FLAG_NO_STACK } else { 0 };
        self.count(thread, Count::Allocations, 1);
        self.record(
            thread,
            &[
                head(Kind::Allocate, 5, flags, site.number),
                now_ns,
                address as u64,
                size as u64,
                weight,
            ],
        );
    }

    /// Is the object at `address`, which is no sample of small allocations, in the log?
    #[inline(always)]
    pub fn is_logged(&self, address: usize) -> bool {
        self.logs_every_allocation() || self.alive.contains(address)
    }

    /// Takes the object at `address`, which is about to be freed, out of the table of logged objects. Pass the answer to
    /// [`Self::freed`].
    pub fn logged(&self, address: usize) -> Option<Logged> {
        if self.logs_every_allocation() || SAMPLE_HEAP.contains(address) {
            return Some(Logged::UNCHARGED);
        }
        self.alive.remove(address)
    }

    /// The object at `address`, of about `size` bytes, is about to be freed.
    pub fn freed(
        &self,
        observed: &mut Observed,
        address: usize,
        size: usize,
        logged: Option<Logged>,
        flags: u16,
    ) {
        let _left_out = LeftOut::begin();
        if let Some(logged) = logged {
            let thread = &mut *observed.thread;
            let now = sys::clock_ns();
            logged.freed(&self.budgets, now);
            self.count(thread, Count::Frees, 1);
            self.record(
                thread,
                &[head(Kind::Free, 3, flags, 0), now, address as u64],
            );
        }
        if place::wants(size) {
            place::freed(address, size);
        }
    }

    /// Memory was mapped.
    pub fn mapped(&self, observed: &mut Observed, caller: Caller, mapping: &Mapping, flags: u16) {
        let _left_out = LeftOut::begin();
        let thread = &mut *observed.thread;
        let now = sys::clock_ns();
        let anonymous = mapping.fd < 0 || mapping.map_flags as usize & sys::MAP_ANONYMOUS != 0;
        let placed = anonymous && place::wants(mapping.length);
        if self.logs.load(Ordering::Relaxed) == 0 && !placed {
            return;
        }
        let site = self.site(thread, caller, placed, now);
        let flags = flags | if site.no_stack { FLAG_NO_STACK } else { 0 };
        let how = u64::from(mapping.protection) | u64::from(mapping.map_flags) << 32;
        let (start, length) = (mapping.start as u64, mapping.length as u64);
        self.record(
            thread,
            &[
                head(Kind::Map, 6, flags, site.number),
                now,
                start,
                length,
                how,
                mapping.fd as i64 as u64,
            ],
        );
        if placed {
            place::mapped(mapping.start, mapping.length, site.frames);
        }
    }

    /// Memory is about to be unmapped: another thread may have it before the call returns.
    pub fn unmapping(&self, range: [usize; 2]) {
        if place::wants(range[1]) {
            place::freed(range[0], range[1]);
        }
    }

    /// Memory was unmapped; `time_ns` is before that.
    pub fn unmapped(&self, observed: &mut Observed, range: [usize; 2], time_ns: u64, flags: u16) {
        let _left_out = LeftOut::begin();
        self.record(
            observed.thread,
            &[
                head(Kind::Unmap, 4, flags, 0),
                time_ns,
                range[0] as u64,
                range[1] as u64,
            ],
        );
    }

    /// Logs that the program moved the end of its heap.
    pub fn break_moved(&self, observed: &mut Observed, caller: Caller, old: usize, new: usize) {
        let _left_out = LeftOut::begin();
        if self.logs.load(Ordering::Relaxed) == 0 {
            return;
        }
        let now = sys::clock_ns();
        let site = self.site(observed.thread, caller, false, now);
        self.record(
            observed.thread,
            &[
                head(Kind::Break, 4, 0, site.number),
                now,
                old as u64,
                new as u64,
            ],
        );
    }
}
