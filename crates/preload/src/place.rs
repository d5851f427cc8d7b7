//! Plan enforcement: puts the pages of the program's objects where the compact plan says.
//!
//! The hooks call the functions here with the recursion token held. None of them allocates through
//! the C library, waits for a lock, or fails: what cannot be placed is counted and left to first
//! touch. Without a plan every call returns at once.
//!
//! # Memory that is freed
//! When a heap object is freed, its pages get the policy of the process again: the next object in the same memory may have
//! no rule, and must not be placed by accident. If it has a rule, the pages that are present are moved. Policies vanish with
//! memory that the C library unmaps. In the heap, however, a range that once had its own policy may stay a mapping of its
//! own in the kernel. Such mappings count against the plan's limit until the real number is counted again.
//!
//! # Bounds
//! - 1024 modules, and the threads of 8 Ki pins
//! - 32 Ki heap objects and mappings at a time that are placed, as many that are touched, and as many that wait for the
//!   second thread and for each phase
//! - for the section and for each phase, 4096 cached call sites and 16 Ki numbered pairs of call site and thread
//!
//! What exceeds a bound is handled more slowly, or is not placed, and counted.

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::*};

use nearpage_wire::compact_plan::{FLAG_SUMMARY, PHASES_MAX, Pin, Rule, mechanism, subject};
pub use nearpage_wire::pieces;
use nearpage_wire::{PLAN_VARIABLE, SUMMARY_VARIABLE};

use crate::modules::{Module, Modules};
use crate::pin::Pins;
use crate::plan::Plan;
use crate::sys::{self, Errno};
use crate::touch::{self, Group, ObjectToTouch};
use crate::{environment, message};

pub mod bind;
pub mod brk_heap;
pub mod counters;
mod later;
pub mod memory;
mod movement;
mod object;
mod opening;
pub mod order;
mod phases;
pub mod placed;
pub mod recognise;
pub mod remap;
pub mod summary;
pub mod touched;
pub mod unmatched_memory;

pub use phases::awaits_function;

use counters::{RuleCounters, count};
use object::Object;
use order::{Orders, Threads};
use phases::Phase;
use pieces::{Extent, NodeSet};
use placed::{Mappings, Objects, Placed, Waiting};
use recognise::{CallSites, Origin, Recogniser};
use touched::TouchedObjects;
use unmatched_memory::UnmatchedMemory;

const PATH_BYTES_MAX: usize = 4096;

/// Rules of which the first that fits an object wins, and what they did.
pub struct RuleList {
    rules: &'static [Rule],
    counters: &'static [RuleCounters],
    sites: &'static CallSites,
    orders: &'static Orders,
    /// These are rules of a phase: they hold from its beginning, also for objects that are placed already.
    is_of_phase: bool,
}

/// Everything that enforcing the plan of this process needs.
pub struct State {
    plan: Plan<'static>,
    section: RuleList,
    /// Placements that begin when certain functions are executed.
    phases: [Option<Phase>; PHASES_MAX],
    phases_begun: AtomicU32,
    pin_rules: &'static [Pin],
    rank: Option<u32>,
    modules: &'static Modules,
    threads: &'static Threads,
    placed: &'static Objects<Placed>,
    /// Objects whose placement begins later.
    waiting: &'static Objects<Waiting>,
    mappings: &'static Mappings,
    group: &'static Group,
    touched: TouchedObjects,
    pins: &'static Pins,
    allowed: NodeSet,
    huge_pages: bool,
    can_populate: bool,
    /// Memory that no rule for an object places.
    unmatched: Option<UnmatchedMemory>,
    /// Some rules' objects are placed when the second thread is created.
    has_later: bool,
    /// A second thread was about to be created, or was met.
    has_second_thread: AtomicBool,
    /// Error number with which the kernel refused memory policies; 0: it has not refused any.
    bind_refused: AtomicU32,
    is_finished: AtomicBool,
    summary_path: [u8; PATH_BYTES_MAX],
    summary_path_bytes: usize,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(core::ptr::null_mut());
/// Size of the smallest object that any rule concerns.
static WANTED_BYTES_MIN: AtomicUsize = AtomicUsize::new(usize::MAX);

fn state() -> Option<&'static State> {
    // SAFETY: null, or a state that was written before and is never freed.
    unsafe { STATE.load(Acquire).as_ref() }
}

/// Reads the plan that the environment names, if it does, places static objects and pins the main
/// thread. A plan that cannot be used is named in a line, and nothing is placed.
pub fn initialise() {
    let Some(path) = environment::variable(PLAN_VARIABLE) else {
        return;
    };
    match State::read(path) {
        Ok(Some(state)) => state.start(),
        Ok(None) => {}
        Err(why) => {
            let path = core::str::from_utf8(path).unwrap_or("named by NEARPAGE_PLAN");
            message::line(format_args!(
                "nothing is placed: the compact plan {path} cannot be used: {why}"
            ));
        }
    }
}

/// Modules were loaded or unloaded: places the static objects of those that are new. Call it after
/// `dlopen` and `dlclose`.
pub fn modules_changed() {
    if let Some(state) = state() {
        state
            .modules
            .refresh(&state.plan, |module| state.place_statics(module));
    }
}

/// Must [`allocated`] and [`mapped`] be called for objects of `size` bytes?
#[inline]
pub fn wants(size: usize) -> bool {
    size >= WANTED_BYTES_MIN.load(Relaxed)
}

/// A heap object was allocated; `frames` are return addresses, innermost first.
pub fn allocated(address: usize, size: usize, frames: &[usize]) {
    if let Some(state) = state().filter(|_| address != 0 && wants(size)) {
        state.place_new(Origin::Heap, address, size, frames);
    }
}

/// The program mapped private anonymous memory that it may write to.
pub fn mapped(address: usize, length: usize, frames: &[usize]) {
    if let Some(state) = state().filter(|_| wants(length)) {
        state.place_new(Origin::Mapping, address, length, frames);
    }
}

/// A heap object is about to be freed or resized (call [`allocated`] for it after resizing),
/// or a mapping was unmapped. `size` is 0 where it is unknown.
#[inline]
pub fn freed(address: usize, size: usize) {
    if (size == 0 || wants(size))
        && let Some(state) = state()
    {
        state.freed(address);
    }
}

/// The system's page in bytes, where there is a plan.
fn page_bytes() -> Option<usize> {
    state().map(|state| state.plan.header.page_bytes as usize)
}

/// The calling thread is about to create another. Threads for which this is not called are numbered in their team by the
/// order in which they start.
pub fn thread_created(start_routine: usize, creation_order: u32) {
    if let Some(state) = state() {
        state.second_thread();
        if awaits_function() {
            state.function_begins(start_routine);
        }
        state.flush_group();
        if !state.pin_rules.is_empty() {
            let cpu_now = |number| state.cpu_now(number);
            state.pins.main_creates(state.pin_rules, cpu_now);
            state.pins.created(start_routine, creation_order);
        }
    }
}

/// The calling thread is about to enter a parallel region whose body is this function.
pub fn function_begins(function: usize) {
    if let Some(state) = state() {
        state.function_begins(function);
    }
}

/// The calling thread is not the process's first, and its creation was not seen.
pub fn unannounced_thread() {
    if let Some(state) = state() {
        state.second_thread();
    }
}

/// The calling thread begins; `start_routine` is 0 for the main thread.
pub fn thread_started(start_routine: usize, creation_order: u32, tid: u32) {
    let Some(state) = state() else { return };
    state.threads.started(tid, creation_order);
    if start_routine != 0 {
        state.pins.thread_started(
            state.pin_rules,
            |number| state.cpu_now(number),
            state.modules,
            start_routine,
            creation_order,
        );
    }
}

/// A thread ended, or could not be created.
pub fn thread_ended(start_routine: usize, creation_order: u32) {
    if let Some(state) = state()
        && start_routine != 0
        && !state.pin_rules.is_empty()
    {
        state.pins.ended(start_routine, creation_order);
    }
}

/// The calling process was just forked: its counters begin at 0, and its threads are not pinned.
pub fn forked_child() {
    let Some(state) = state() else { return };
    state.modules.forked_child();
    state.has_second_thread.store(false, Relaxed);
    state.forked_unmatched();
    state.touched.forked_child();
    state.pins.forked_child(state.pin_rules);
    for list in state.lists() {
        list.orders.clear();
        list.counters.iter().for_each(RuleCounters::clear);
    }
    state.phases().for_each(|phase| phase.threads.clear());
    state.is_finished.store(false, Relaxed);
}

/// The process ends: appends its summary.
pub fn finish() {
    if let Some(state) = state()
        && !state.is_finished.swap(true, Relaxed)
    {
        state.append_summary();
    }
}

/// The process is about to execute another program: appends its summary, and sets the counters to 0, in
/// case that fails and the process goes on.
pub fn replacing() {
    if let Some(state) = state() {
        state.append_summary();
        for list in state.lists() {
            list.counters.iter().for_each(RuleCounters::clear);
        }
        state.phases().for_each(|phase| phase.threads.clear());
        state.pins.pinned.store(0, Relaxed);
        state.pins.failed.store(0, Relaxed);
    }
}

impl State {
    fn start(&'static self) {
        self.append(summary::append_began);
        for list in self.lists() {
            self.recogniser(list).prepare();
        }
        self.mappings.start(self.plan.header.mappings_max.into());
        self.pins.start();
        // Where objects are placed by touching, they are placed at their allocation: touching moves no page that is present.
        if (self.has_later || self.phases().any(|phase| !phase.list.rules.is_empty()))
            && !self.touches()
            && let Some(error) = bind::refusal()
        {
            self.refused(error);
        }
        self.start_unmatched();
        self.threads.started(sys::gettid(), 0);
        STATE.store((&raw const *self).cast_mut(), Release);
        let wanted = self
            .lists()
            .map(|list| self.recogniser(list).size_bytes_min());
        WANTED_BYTES_MIN.store(wanted.min().unwrap_or(usize::MAX), Relaxed);
        self.start_heap();
        self.modules.all(|module| self.place_statics(module));
        self.start_phases();
        self.pins.main_started(self.pin_rules);
    }

    fn append(&self, append: impl FnOnce(&[u8]) -> Result<(), Errno>) {
        if self.plan.header.flags & FLAG_SUMMARY == 0 || self.summary_path_bytes == 0 {
            return;
        }
        let path = self
            .summary_path
            .get(..=self.summary_path_bytes)
            .unwrap_or_default();
        if let Err(Errno(error)) = append(path) {
            message::line(format_args!(
                "what was placed cannot be reported: error {error} on the file of {SUMMARY_VARIABLE}"
            ));
        }
    }

    fn append_summary(&self) {
        self.append(|path| summary::append(self, path));
    }

    fn recogniser<'a>(&'a self, list: &'a RuleList) -> Recogniser<'a> {
        Recogniser {
            plan: &self.plan,
            rules: list.rules,
            counters: list.counters,
            modules: self.modules,
            sites: list.sites,
            orders: list.orders,
            threads: self.threads,
        }
    }

    fn touches(&self) -> bool {
        self.plan.header.mechanism == mechanism::TOUCH || self.bind_refused.load(Relaxed) != 0
    }

    fn extent(&self, address: usize, size_bytes: usize) -> Extent {
        let (page, huge) = (
            self.plan.header.page_bytes as usize,
            self.plan.header.huge_page_bytes as usize,
        );
        let unit_bytes = if self.huge_pages && size_bytes >= 2 * huge {
            huge
        } else {
            page
        };
        Extent {
            address,
            size_bytes,
            page_bytes: page,
            unit_bytes,
        }
    }

    /// Places a module's static objects.
    fn place_statics(&self, module: &Module) {
        let list = &self.section;
        self.statics(list, module, |index, rule| {
            match (Object::of_module(module, rule), list.counters.get(index)) {
                (Some(object), _) => _ = self.place(list, index, object),
                (None, Some(counters)) => count(&counters.outside),
                (None, None) => {}
            }
        });
        self.statics_in_phases(module);
    }

    /// Calls `found` with each rule of a list that applies to a static object of the module: the first rule for an object wins.
    fn statics(&self, list: &RuleList, module: &Module, mut found: impl FnMut(usize, &Rule)) {
        let ours = |rule: &Rule| rule.subject == subject::STATIC && module.is(rule.module);
        for (index, rule) in list.rules.iter().enumerate().filter(|(_, rule)| ours(rule)) {
            let sound = |index: usize| {
                list.counters
                    .get(index)
                    .is_some_and(|own| own.ignored.load(Relaxed) == 0)
            };
            let taken = || {
                let earlier = list.rules.iter().take(index).enumerate();
                earlier
                    .filter(|(_, other)| other.offset == rule.offset)
                    .any(|(other, rule)| sound(other) && ours(rule))
            };
            if sound(index) && !taken() {
                found(index, rule);
            }
        }
    }

    fn place_new(&self, origin: Origin, address: usize, size_bytes: usize, frames: &[usize]) {
        let object = Object::allocated(origin, address, size_bytes);
        let in_section = self
            .recogniser(&self.section)
            .recognise(origin, size_bytes, frames);
        let in_phases = self.recognised(origin, size_bytes, frames);
        match (self.newest(&in_phases), in_section) {
            (Some((phase, index)), _) => _ = self.place(&phase.list, index, object),
            (None, Some(index)) => {
                if self.place(&self.section, index, object) {
                    self.await_count(index, object);
                }
            }
            (None, None) => {}
        }
        self.await_phases(&in_phases, object);
    }

    /// The kernel refuses memory policies: from now on, objects are placed by touching their pages.
    fn refused(&self, Errno(number): Errno) {
        if self.bind_refused.swap(number as u32, Relaxed) == 0 {
            message::line(format_args!(
                "memory policies are refused here (mbind: error {number}, perhaps a container's seccomp \
                 profile): pages are placed by touching them instead; allow mbind to have pages moved too"
            ));
        }
    }

    fn freed(&self, address: usize) {
        self.group.forget(address);
        self.touched.freed(address);
        self.waiting.remove(address);
        for phase in self.phases() {
            phase.waiting.remove(address);
        }
        let Some(placed) = self.placed.remove(address) else {
            return;
        };
        // The memory may be unmapped already, and other memory mapped at its address.
        if placed.is_unmapped {
            self.mappings.give_back(placed.mappings.into());
        } else {
            bind::reset(placed.start, placed.length);
            self.return_to_heap(placed.start, placed.length, placed.mappings);
        }
    }

    fn touch_later(&self, index: u32, object: &ObjectToTouch<'_>) {
        let address = object.extent.address;
        match self.group.add(index, address, object.extent.size_bytes) {
            Some(waiting) if waiting < self.plan.header.touch_group as usize => {}
            Some(_) => self.flush_group(),
            None => {
                self.flush_group();
                touch::touch(&[*object], self.can_populate);
            }
        }
    }

    /// Touches the objects that wait for a round of visits.
    fn flush_group(&self) {
        if self.group.is_empty() {
            return;
        }
        let waiting = self.group.take_all();
        let touched = |(index, address, size_bytes): (u32, usize, usize)| {
            let rule = self.section.rules.get(index as usize)?;
            Some(ObjectToTouch {
                extent: self.extent(address, size_bytes),
                pattern: self.plan.pattern(rule)?,
                counters: self.section.counters.get(index as usize)?,
                is_writable: false,
                // An object waits only if all of its pages may be touched.
                pages_max: u64::MAX,
            })
        };
        let mut objects = waiting.map(|object| object.and_then(touched));
        // Moves the objects to the array's front.
        let mut length = 0;
        for at in 0..objects.len() {
            if objects[at].is_some() {
                objects.swap(at, length);
                length += 1;
            }
        }
        if let Some(first) = objects[0] {
            let objects = objects.map(|object| object.unwrap_or(first));
            touch::touch(&objects[..length], self.can_populate);
        }
    }
}
