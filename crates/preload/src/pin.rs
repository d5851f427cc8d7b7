//! Pins threads to CPUs by number: the n-th thread of a team, or of the process. A new thread gets the lowest number that no
//! running thread of its team has, so a thread that replaces an ended one works where that one did. The recorder
//! numbers threads in the same way (`recording/src/assemble/threads.rs`). A phase may change the CPUs of pins
//! ([`crate::place`]), so a CPU is looked up by the pin's number each time.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use nearpage_wire::compact_plan::{NONE, Pin};

use crate::modules::Modules;
use crate::place::memory::Zeroed;
use crate::place::order::spread;
use crate::sys;
use crate::touch::CpuSet;

/// Most start routines whose threads are numbered, and most numbers of one routine.
const TEAMS_MAX: usize = 256;
const MEMBERS_MAX: usize = 1 << 13;
/// Most threads whose number is remembered by their order of creation. A thread that still runs when so many others were
/// created after it keeps its number taken for good.
const CREATED_MAX: usize = 1 << 13;
/// Most pins whose threads are remembered.
const HOLDERS_MAX: usize = 1 << 13;

/// Counts of threads, and the affinity of the process before any was pinned. Zeroed memory is a
/// process of no threads.
pub struct Pins {
    routines: [AtomicUsize; TEAMS_MAX],
    /// For each start routine, a bit for each number that a running thread has.
    taken: [[AtomicU64; MEMBERS_MAX / 64]; TEAMS_MAX],
    /// For each thread, by creation order modulo the length: that order plus one in the high half, its number in the low half.
    created: [AtomicU64; CREATED_MAX],
    affinity: [AtomicU64; size_of::<CpuSet>() / 8],
    affinity_words: AtomicUsize,
    /// The main thread's pin, plus one; 0: it has none.
    main_pin: AtomicU32,
    /// For each pin, the id of the thread that has it; 0: none.
    holders: [AtomicU32; HOLDERS_MAX],
    /// Threads pinned.
    pub pinned: AtomicU64,
    /// Threads that the kernel would not pin: no such CPU here.
    pub failed: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Pins {}

/// What became of a thread that a phase moves to another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepinOutcome {
    /// No thread has this pin, or the thread's CPU is the same as before.
    Stays,
    /// The thread is pinned to another CPU.
    Changed,
    /// The program has changed the thread's affinity itself since this library set it; nothing was done.
    Left,
    /// The kernel refused.
    Failed,
}

impl Pins {
    /// Remembers the affinity that threads without a pin keep.
    pub fn start(&self) {
        let mut cpus: CpuSet = [0; 128];
        let bytes = sys::sched_getaffinity(0, &mut cpus).unwrap_or(0);
        for (to, from) in self.affinity.iter().zip(cpus) {
            to.store(from, Relaxed);
        }
        self.affinity_words.store(bytes / 8, Relaxed);
    }

    /// Numbers a thread in its team; called by its creator, so that the order of creation counts
    /// and not that of starting.
    pub fn created(&self, start_routine: usize, creation_order: u32) -> u32 {
        let index = self
            .team(start_routine)
            .and_then(take_lowest)
            .unwrap_or(NONE);
        let entry = (u64::from(creation_order) + 1) << 32 | u64::from(index);
        self.created[creation_order as usize % CREATED_MAX].store(entry, Relaxed);
        index
    }

    /// Frees the number of a thread that ended or could not be created.
    pub fn ended(&self, start_routine: usize, creation_order: u32) {
        let created = &self.created[creation_order as usize % CREATED_MAX];
        let entry = created.load(Relaxed);
        let index = entry as u32;
        if entry >> 32 == u64::from(creation_order) + 1
            && created.compare_exchange(entry, 0, Relaxed, Relaxed).is_ok()
            && index != NONE
            && let Some(taken) = self.team(start_routine)
        {
            taken[index as usize / 64].fetch_and(!(1 << (index % 64)), Relaxed);
        }
    }

    /// The numbers of a start routine's threads; `None` if there are too many routines.
    fn team(&self, start_routine: usize) -> Option<&[AtomicU64; MEMBERS_MAX / 64]> {
        let start = spread(start_routine as u64);
        let slot = (0..TEAMS_MAX)
            .map(|probe| (start + probe) % TEAMS_MAX)
            .find(|slot| {
                let routine = &self.routines[*slot];
                routine.load(Relaxed) == start_routine
                    || routine
                        .compare_exchange(0, start_routine, Relaxed, Relaxed)
                        .is_ok()
                    || routine.load(Relaxed) == start_routine
            })?;
        Some(&self.taken[slot])
    }

    /// The number of a thread in its team; a thread whose creation was not seen gets one now.
    fn index(&self, start_routine: usize, creation_order: u32) -> u32 {
        let entry = self.created[creation_order as usize % CREATED_MAX].load(Relaxed);
        if entry >> 32 == u64::from(creation_order) + 1 {
            entry as u32
        } else {
            self.created(start_routine, creation_order)
        }
    }

    /// Pins the calling thread as the plan says. A thread without a pin gets the affinity of the process instead of its
    /// creator's pin.
    pub fn thread_started(
        &self,
        pins: &[Pin],
        cpu_now: impl Fn(usize) -> u32,
        modules: &Modules,
        start_routine: usize,
        creation_order: u32,
    ) {
        if pins.is_empty() {
            return;
        }
        let index = self.index(start_routine, creation_order);
        let routine = modules.find(start_routine);
        let own = pins.iter().position(|pin| {
            if pin.module == NONE {
                return pin.index == creation_order;
            }
            index != NONE
                && pin.index == index
                && routine.is_some_and(|place| {
                    place.file_address == pin.offset && place.module.is(pin.module)
                })
        });
        match own {
            Some(number) => self.pin(number, pins, cpu_now),
            None => self.unpin(pins),
        }
    }

    /// Moves the main thread, number 0 of all threads, to its CPU without pinning it. It is pinned when it first creates a
    /// thread: until then, runtimes ask for its affinity to decide how many threads to create.
    pub fn main_started(&self, pins: &[Pin]) {
        let is_own = |pin: &Pin| pin.index == 0 && pin.module == NONE;
        let own = pins.iter().enumerate().find(|(_, pin)| is_own(pin));
        if let Some((number, pin)) = own {
            if bind(0, pin.cpu) {
                self.restore();
            }
            self.main_pin.store(number as u32 + 1, Relaxed);
        }
    }

    /// Pins the main thread: the first thread of the process that creates another.
    pub fn main_creates(&self, pins: &[Pin], cpu_now: impl Fn(usize) -> u32) {
        if self.main_pin.load(Relaxed) != 0
            && let Some(number) = self.main_pin.swap(0, Relaxed).checked_sub(1)
        {
            self.pin(number as usize, pins, cpu_now);
        }
    }

    /// Gives the calling thread a pin.
    fn pin(&self, number: usize, pins: &[Pin], cpu_now: impl Fn(usize) -> u32) {
        loop {
            let cpu = cpu_now(number);
            if !bind(0, cpu) {
                self.hold(number, 0);
                self.failed.fetch_add(1, Relaxed);
                return self.unpin(pins);
            }
            self.hold(number, sys::gettid());
            // A phase may have begun before this thread was listed as the pin's holder.
            if cpu_now(number) == cpu {
                break;
            }
        }
        self.pinned.fetch_add(1, Relaxed);
    }

    fn hold(&self, number: usize, tid: u32) {
        if let Some(holder) = self.holders.get(number) {
            holder.store(tid, SeqCst);
        }
    }

    /// Pins the holder of a pin to the pin's present CPU, if its affinity is still one that this library set.
    pub fn change_place(
        &self,
        number: usize,
        cpu_now: impl Fn(usize) -> u32,
        was_given: impl Fn(u32) -> bool,
    ) -> RepinOutcome {
        let holder = self.holders.get(number).map_or(0, |tid| tid.load(SeqCst));
        if holder == 0 {
            return RepinOutcome::Stays;
        }
        let mut moved = RepinOutcome::Stays;
        loop {
            let mut cpus: CpuSet = [0; 128];
            if !sys::has_thread(holder) || sys::sched_getaffinity(holder, &mut cpus).is_err() {
                return moved;
            }
            let cpu = cpu_now(number);
            match only_cpu(&cpus) {
                Some(current) if current == cpu => return moved,
                Some(current) if was_given(current) => {}
                _ => return RepinOutcome::Left,
            }
            if !bind(holder, cpu) {
                return RepinOutcome::Failed;
            }
            moved = RepinOutcome::Changed;
            // Another phase may have begun meanwhile.
            if cpu_now(number) == cpu {
                return moved;
            }
        }
    }

    /// Gives the calling thread the affinity that the process began with, if it inherited a pin.
    fn unpin(&self, pins: &[Pin]) {
        let mut cpus: CpuSet = [0; 128];
        let known = self.pinned.load(Relaxed) > 0 && sys::sched_getaffinity(0, &mut cpus).is_ok();
        let only = only_cpu(&cpus).filter(|_| known);
        if only.is_some_and(|cpu| pins.iter().any(|pin| pin.cpu == cpu)) {
            self.restore();
        }
    }

    /// Gives the calling thread the affinity that the process began with.
    fn restore(&self) {
        let mut cpus: CpuSet = [0; 128];
        for (to, from) in cpus.iter_mut().zip(&self.affinity) {
            *to = from.load(Relaxed);
        }
        if let Some(words) = cpus
            .get(..self.affinity_words.load(Relaxed))
            .filter(|words| !words.is_empty())
        {
            let _ = sys::sched_setaffinity(0, words);
        }
    }

    /// Forgets the parent's pins in a forked process: its main thread may run on all CPUs, and its teams are numbered anew.
    pub fn forked_child(&self, pins: &[Pin]) {
        if pins.is_empty() {
            return;
        }
        self.unpin(pins);
        self.main_pin.store(0, Relaxed);
        // Only used entries are written: each write makes the child copy a page.
        let teams = self.routines.iter().zip(&self.taken);
        let used = teams.filter(|(routine, _)| routine.load(Relaxed) != 0);
        used.flat_map(|(_, taken)| taken)
            .chain(&self.created)
            .filter(|entry| entry.load(Relaxed) != 0)
            .for_each(|entry| entry.store(0, Relaxed));
        let holders = self.holders.iter().take(pins.len());
        holders.for_each(|holder| holder.store(0, Relaxed));
        self.pinned.store(0, Relaxed);
        self.failed.store(0, Relaxed);
    }
}

/// Takes the lowest number whose bit is clear; `None` if all are taken.
fn take_lowest(taken: &[AtomicU64; MEMBERS_MAX / 64]) -> Option<u32> {
    for (first, word) in (0..).step_by(64).zip(taken) {
        loop {
            let free = word.load(Relaxed).trailing_ones();
            if free == 64 {
                break;
            }
            if word.fetch_or(1 << free, Relaxed) >> free & 1 == 0 {
                return Some(first + free);
            }
        }
    }
    None
}

/// The CPU of a set of one.
fn only_cpu(cpus: &CpuSet) -> Option<u32> {
    let mut words = (0..).zip(cpus).filter(|(_, word)| **word != 0);
    let (at, word) = words.next()?;
    (word.is_power_of_two() && words.next().is_none()).then(|| 64 * at + word.trailing_zeros())
}

/// Restricts a thread (0: the calling one) to a CPU; false where the kernel refuses.
fn bind(tid: u32, cpu: u32) -> bool {
    let mut cpus: CpuSet = [0; 128];
    if let Some(word) = cpus.get_mut(cpu as usize / 64) {
        *word = 1 << (cpu % 64);
    }
    sys::sched_setaffinity(tid, &cpus).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::memory::zeroed;

    #[test]
    fn teams_count_in_order_of_creation() {
        let pins = zeroed::<Pins>().unwrap();
        assert_eq!(
            [
                pins.created(10, 0),
                pins.created(20, 1),
                pins.created(10, 2)
            ],
            [0, 0, 1]
        );
        // Started in another order.
        assert_eq!(
            [pins.index(10, 2), pins.index(10, 0), pins.index(20, 1)],
            [1, 0, 0]
        );
        // Created unseen.
        assert_eq!([pins.index(10, 3), pins.index(10, 3)], [2, 2]);
        // These take the numbers of a thread that ended, and of one that did not come to be.
        pins.ended(10, 0);
        pins.ended(10, 0);
        pins.ended(10, 9999);
        assert_eq!([pins.created(10, 4), pins.created(10, 5)], [0, 3]);
        pins.ended(10, 5);
        assert_eq!([pins.created(20, 6), pins.created(10, 7)], [1, 3]);
        let elsewhere = Pin {
            module: NONE,
            index: 0,
            offset: 0,
            cpu: u32::MAX,
            reserved: 0,
        };
        pins.forked_child(&[elsewhere]);
        assert_eq!(pins.index(10, 1), 0);
        for routine in 0..TEAMS_MAX {
            pins.created(routine + 1, 5);
        }
        assert_eq!(pins.created(9999, 6), NONE, "one routine too many");
    }

    #[test]
    fn threads_beyond_the_limit_have_no_number() {
        let pins = zeroed::<Pins>().unwrap();
        for order in 0..MEMBERS_MAX as u32 {
            assert_eq!(pins.created(10, order), order);
        }
        assert_eq!(pins.created(10, MEMBERS_MAX as u32), NONE);
        pins.ended(10, 77);
        assert_eq!(pins.created(10, MEMBERS_MAX as u32 + 1), 77);
        // The thread runs on, but its number is not known any more.
        pins.ended(10, 1);
        assert_eq!(pins.created(10, MEMBERS_MAX as u32 + 2), NONE);
    }

    #[test]
    fn numbers_taken_at_once_are_all_different() {
        let pins = zeroed::<Pins>().unwrap();
        let taken = std::sync::Mutex::new(std::collections::BTreeSet::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let taken = &taken;
                scope.spawn(move || {
                    for round in 0..500 {
                        let order = thread + 4 * round;
                        let index = pins.created(10, order);
                        assert!(taken.lock().unwrap().insert(index), "{index} is another's");
                        assert!(index < 8, "{index}: at most two of each thread are taken");
                        if round % 2 == 1 {
                            for order in [order - 4, order] {
                                let entry =
                                    pins.created[order as usize % CREATED_MAX].load(Relaxed);
                                taken.lock().unwrap().remove(&(entry as u32));
                                pins.ended(10, order);
                            }
                        }
                    }
                });
            }
        });
        assert_eq!(pins.created(10, 2000), 0, "all are free");
    }

    #[test]
    fn a_set_of_one_cpu_is_told_from_others() {
        let set = |cpus: &[usize]| {
            let mut set: CpuSet = [0; 128];
            cpus.iter().for_each(|cpu| set[cpu / 64] |= 1 << (cpu % 64));
            set
        };
        assert_eq!(only_cpu(&set(&[0])), Some(0));
        assert_eq!(only_cpu(&set(&[200])), Some(200));
        assert_eq!(only_cpu(&set(&[])), None);
        assert_eq!(only_cpu(&set(&[3, 4])), None);
        assert_eq!(only_cpu(&set(&[3, 200])), None);
    }

    #[test]
    fn threads_go_where_their_pins_are_now_unless_they_left() {
        const NO_CPU: u32 = 8190;
        let may_run_on = |tid: u32| {
            let mut cpus: CpuSet = [0; 128];
            sys::sched_getaffinity(tid, &mut cpus).unwrap();
            cpus
        };
        let all = may_run_on(0);
        // A machine may have but one.
        let is_set = |cpu: &u32| all[*cpu as usize / 64] >> (cpu % 64) & 1 == 1;
        let first = (0..8192).find(is_set).unwrap();
        let last = (0..8192).rev().find(is_set).unwrap();
        let pins = zeroed::<Pins>().unwrap();
        let rules = [first; 2].map(|cpu| Pin {
            module: NONE,
            index: 0,
            offset: 0,
            cpu,
            reserved: 0,
        });
        let moves =
            |number, now, given| pins.change_place(number, |_| now, |current| current == given);
        assert_eq!(moves(1, last, first), RepinOutcome::Stays, "nobody has it");
        let (say, said) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                pins.pin(1, &rules, |_| first);
                say.send(sys::gettid()).unwrap();
                let _ = ended.recv();
            });
            let tid = said.recv().unwrap();
            let now = || may_run_on(tid);
            assert_eq!(only_cpu(&now()), Some(first));
            assert_eq!(moves(1, first, first), RepinOutcome::Stays, "it is there");
            assert_eq!(moves(1, NO_CPU, first), RepinOutcome::Failed);
            assert_eq!(only_cpu(&now()), Some(first));
            if first != last {
                assert_eq!(moves(1, last, first), RepinOutcome::Changed);
                assert_eq!(only_cpu(&now()), Some(last));
                assert_eq!(
                    moves(1, first, NO_CPU),
                    RepinOutcome::Left,
                    "on another CPU"
                );
                // A phase that began meanwhile has the last word.
                let asked = core::cell::Cell::new(0);
                let changes = |_| {
                    asked.set(asked.get() + 1);
                    if asked.get() == 1 { first } else { last }
                };
                let given = |current| [first, last].contains(&current);
                assert_eq!(pins.change_place(1, changes, given), RepinOutcome::Changed);
                assert_eq!(only_cpu(&now()), Some(last));
                sys::sched_setaffinity(tid, &all).unwrap();
                assert_eq!(
                    moves(1, first, last),
                    RepinOutcome::Left,
                    "let go by somebody"
                );
                assert_eq!(now(), all);
            }
            // In a forked child it is none of its threads.
            pins.forked_child(&rules);
            assert_eq!(moves(1, last, first), RepinOutcome::Stays);
            drop(end);
        });
        // An id that is another process's by now.
        pins.hold(1, sys::getppid());
        assert_eq!(moves(1, first, last), RepinOutcome::Stays);
    }
}
