//! Placements that begin when a function of the program is first executed.
//!
//! A phase has rules of its own, which are tried beside the section's. An object that they recognise is remembered, and
//! placed by the section's rules until the phase begins. The phase begins when a thread is about to execute its function,
//! with a team or as a thread's start routine. That thread sets the policies and moves the pages that are present, once;
//! another thread that executes the function meanwhile does not wait. From then on, new objects are placed by the rules of
//! the phase that began last, if one of them fits. Objects that a phase leaves to first touch stay where they are: no
//! system call returns pages to first touch.
//!
//! If a phase has pins, threads change CPUs: the thread that begins the phase pins the running threads, by their ids, before
//! it moves pages. Threads that start later get the CPUs of the phase that began last. A thread that is no longer
//! pinned as the plan had it is left alone: the program, its runtime or a user has decided otherwise.
//!
//! In a forked process, the phases that had begun in its parent have begun, and pages are where they were moved.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*, fence};

use nearpage_wire::compact_plan::{self, NONE, PHASES_MAX, Pin, placement};

use super::counters::{count, discount};
use super::placed::{Objects, Waiting};
use super::{Object, Origin, RuleList, State};
use crate::modules::Module;
use crate::pin::RepinOutcome;
use crate::regions;

/// Phases of this process that have not begun.
static TO_BEGIN: AtomicU32 = AtomicU32::new(0);

/// Placements that begin when a function is first executed.
pub struct Phase {
    /// Module index of the function.
    pub(super) module: u32,
    /// Its virtual address in the module's file.
    pub(super) offset: u64,
    pub(super) list: RuleList,
    /// The phase's number in the plan.
    pub(super) number: u32,
    /// The section's pins with other CPUs; empty: threads stay.
    pub(super) pins: &'static [Pin],
    pub(super) threads: ThreadCounters,
    /// Objects that move when the phase begins.
    pub(super) waiting: &'static Objects<Waiting>,
    /// Its number among the phases that have begun, from 1; 0: it has not begun.
    pub(super) turn: AtomicU32,
}

/// What became of the threads that a phase moves.
#[derive(Default)]
pub struct ThreadCounters {
    /// Threads that were pinned to another CPU.
    pub changed: AtomicU64,
    /// Threads that were no longer pinned as the plan had it, and were left alone.
    pub left: AtomicU64,
    /// Threads that the kernel would not pin.
    pub failed: AtomicU64,
}

impl ThreadCounters {
    /// Sets all counters to 0: a forked process counts for itself.
    pub fn clear(&self) {
        for counter in [&self.changed, &self.left, &self.failed] {
            counter.store(0, Relaxed);
        }
    }
}

impl Phase {
    pub(super) fn new(
        phase: &compact_plan::Phase,
        number: u32,
        (list, pins): (RuleList, &'static [Pin]),
        waiting: &'static Objects<Waiting>,
    ) -> Self {
        Self {
            module: phase.module,
            offset: phase.offset,
            list,
            number,
            pins,
            threads: ThreadCounters::default(),
            waiting,
            turn: AtomicU32::new(0),
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.turn.load(SeqCst) != 0
    }

    /// Does its rule `index` move what it recognises?
    fn moves(&self, index: usize) -> bool {
        let rule = self.list.rules.get(index);
        rule.is_some_and(|rule| rule.placement != placement::LEAVE)
    }
}

/// For each phase: its turn when the object was recognised, and the rule that recognised it.
pub(super) type Recognised = [Option<(u32, usize)>; PHASES_MAX];

/// Is there a phase that has not begun?
#[inline]
pub fn awaits_function() -> bool {
    TO_BEGIN.load(Relaxed) != 0
}

impl State {
    pub(super) fn phases(&self) -> impl Iterator<Item = &Phase> {
        self.phases.iter().flatten()
    }

    /// The section's rules, and the rules of each phase.
    pub(super) fn lists(&self) -> impl Iterator<Item = &RuleList> {
        core::iter::once(&self.section).chain(self.phases().map(|phase| &phase.list))
    }

    /// Redirects calls to this library by which a phase's function may be entered.
    pub(super) fn start_phases(&self) {
        TO_BEGIN.store(self.phases().count() as u32, Relaxed);
        for phase in self.phases() {
            self.modules.all(|module| {
                if module.is(phase.module)
                    && let Some(function) = module.address(phase.offset, 1)
                {
                    regions::redirect_calls(function, self.plan.header.page_bytes as usize);
                }
            });
        }
    }

    /// A thread is about to execute a function: begins the phases that begin with it.
    pub(super) fn function_begins(&self, function: usize) {
        let Some(place) = self.modules.find(function) else {
            return;
        };
        for phase in self.phases() {
            if place.file_address == phase.offset
                && place.module.is(phase.module)
                && !phase.has_begun()
            {
                self.begin(phase);
            }
        }
    }

    fn begin(&self, phase: &Phase) {
        let turn = self.phases_begun.fetch_add(1, SeqCst) + 1;
        if phase
            .turn
            .compare_exchange(0, turn, SeqCst, SeqCst)
            .is_err()
        {
            return;
        }
        TO_BEGIN.fetch_sub(1, Relaxed);
        fence(SeqCst);
        self.change_places(phase);
        self.modules.all(|module| self.move_statics(phase, module));
        phase.waiting.take_all(|address, waiting| {
            let object = Object::allocated(waiting.origin, address, waiting.size_bytes);
            self.move_to_phase(phase, waiting.rule as usize, object);
        });
    }

    /// Moves the running threads to the CPUs that they have from this phase on.
    fn change_places(&self, phase: &Phase) {
        for number in 0..phase.pins.len().min(self.pin_rules.len()) {
            let given = |pins: &[Pin], cpu| pins.get(number).is_some_and(|pin| pin.cpu == cpu);
            let was_given = |cpu| {
                given(self.pin_rules, cpu) || self.phases().any(|phase| given(phase.pins, cpu))
            };
            let cpu_now = |number| self.cpu_now(number);
            match self.pins.change_place(number, cpu_now, was_given) {
                RepinOutcome::Stays => {}
                RepinOutcome::Changed => count(&phase.threads.changed),
                RepinOutcome::Left => count(&phase.threads.left),
                RepinOutcome::Failed => count(&phase.threads.failed),
            }
        }
    }

    /// The present CPU of a pin: that of the latest phase with pins, or the section's.
    pub(super) fn cpu_now(&self, number: usize) -> u32 {
        let phases = self.phases().filter_map(|phase| {
            let turn = phase.turn.load(SeqCst);
            Some((turn, phase.pins.get(number).filter(|_| turn > 0)?))
        });
        let newest = phases.max_by_key(|(turn, _)| *turn).map(|(_, pin)| pin);
        let pin = newest.or_else(|| self.pin_rules.get(number));
        pin.map_or(NONE, |pin| pin.cpu)
    }

    fn move_statics(&self, phase: &Phase, module: &Module) {
        self.statics(&phase.list, module, |index, rule| {
            if phase.moves(index)
                && let Some(object) = Object::of_module(module, rule)
            {
                self.move_to_phase(phase, index, object);
            }
        });
    }

    /// Moves an object that was remembered for a phase to its place.
    fn move_to_phase(&self, phase: &Phase, index: usize, object: Object) {
        if self.touches() {
            if let Some(counters) = phase.list.counters.get(index) {
                discount(&counters.waited);
                count(&counters.early);
            }
            return;
        }
        // The object no longer waits for the second thread.
        if object.origin.is_some()
            && let Some(waiting) = self.waiting.remove(object.address)
            && let Some(counters) = self.section.counters.get(waiting.rule as usize)
        {
            discount(&counters.waited);
        }
        self.switch(&phase.list, index, object);
    }

    /// A module was loaded, and the section's rules have placed its static objects.
    pub(super) fn statics_in_phases(&self, module: &Module) {
        for phase in self.phases() {
            self.statics(&phase.list, module, |index, rule| {
                let Some(counters) = phase.list.counters.get(index) else {
                    return;
                };
                match Object::of_module(module, rule) {
                    None => count(&counters.outside),
                    Some(_) if !phase.moves(index) => count(&counters.left),
                    Some(_) => count(&counters.waited),
                }
            });
        }
        // The phases move it in the order in which they began.
        for turn in 1..=self.phases_begun.load(SeqCst) {
            for phase in self.phases() {
                if phase.turn.load(SeqCst) == turn {
                    self.move_statics(phase, module);
                }
            }
        }
    }

    /// Is a static object, at this address in its module's file, one that a phase has moved?
    pub(super) fn is_moved(&self, module: &Module, offset: u64) -> bool {
        let begun = self.phases().filter(|phase| phase.has_begun());
        begun.into_iter().any(|phase| {
            let mut is_moved = false;
            self.statics(&phase.list, module, |index, rule| {
                is_moved |= rule.offset == offset && phase.moves(index);
            });
            is_moved
        })
    }

    /// Finds the rules of the phases that recognise a new object. Each list counts the object at its call site.
    pub(super) fn recognised(
        &self,
        origin: Origin,
        size_bytes: usize,
        frames: &[usize],
    ) -> Recognised {
        self.phases.each_ref().map(|phase| {
            let phase = phase.as_ref()?;
            let turn = phase.turn.load(SeqCst);
            let index = self
                .recogniser(&phase.list)
                .recognise(origin, size_bytes, frames)?;
            if !phase.moves(index)
                && let Some(counters) = phase.list.counters.get(index)
            {
                count(&counters.left);
                return None;
            }
            Some((turn, index))
        })
    }

    /// The rule among these that places the object: that of the phase that began last.
    pub(super) fn newest(&self, recognised: &Recognised) -> Option<(&Phase, usize)> {
        let phases = self.phases.iter().zip(recognised);
        let begun = phases
            .filter_map(|(phase, rule)| Some((phase.as_ref()?, (*rule)?)))
            .filter(|(_, (turn, _))| *turn > 0);
        let (phase, (_, index)) = begun.max_by_key(|(_, (turn, _))| *turn)?;
        if self.touches() {
            count(&phase.list.counters.get(index)?.early);
            return None;
        }
        Some((phase, index))
    }

    /// Remembers a new object, which is placed for now, for the phases that have not begun.
    pub(super) fn await_phases(&self, recognised: &Recognised, object: Object) {
        let Some(origin) = object.origin else { return };
        for (phase, rule) in self.phases.iter().zip(recognised) {
            let (Some(phase), Some((0, index))) = (phase, *rule) else {
                continue;
            };
            let Some(counters) = phase.list.counters.get(index) else {
                continue;
            };
            if self
                .extent(object.address, object.size_bytes)
                .pages()
                .is_none()
            {
                count(&counters.too_small);
                continue;
            }
            let waiting = Waiting {
                rule: index as u32,
                number: 0,
                size_bytes: object.size_bytes,
                origin,
            };
            count(&counters.waited);
            if !phase.waiting.insert(object.address, waiting) {
                discount(&counters.waited);
                count(&counters.no_room);
                continue;
            }
            fence(SeqCst);
            // The phase may have begun, and taken out the waiting objects, before this one was inserted.
            if phase.has_begun() && phase.waiting.remove(object.address).is_some() {
                self.move_to_phase(phase, index, object);
            }
        }
    }
}
