//! Pinning threads to CPUs by what they are: the n-th thread of a team, or the n-th of the process.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use nearpage_wire::compact_plan::{NONE, Pin};

use crate::modules::Modules;
use crate::place::memory::Zeroed;
use crate::place::order::spread;
use crate::sys;
use crate::touch::CpuSet;

/// Start routines whose threads are counted, and threads created but not started yet.
const TEAMS_MAX: usize = 256;
const CREATED_MAX: usize = 1 << 13;

/// Counts of threads, and the affinity of the process before any was pinned. Zeroed memory is a
/// process of no threads.
pub struct Pins {
    routines: [AtomicUsize; TEAMS_MAX],
    sizes: [AtomicU32; TEAMS_MAX],
    /// By creation order: that order plus one in the high half, the index in its team in the low.
    created: [AtomicU64; CREATED_MAX],
    affinity: [AtomicU64; size_of::<CpuSet>() / 8],
    affinity_words: AtomicUsize,
    /// CPU that the main thread is to be pinned to, plus one.
    main_cpu: AtomicU32,
    /// Threads pinned.
    pub pinned: AtomicU64,
    /// Threads that the kernel would not pin: no such CPU here.
    pub failed: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Zeroed for Pins {}

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
            });
        let index = slot.map_or(NONE, |slot| self.sizes[slot].fetch_add(1, Relaxed));
        let entry = (u64::from(creation_order) + 1) << 32 | u64::from(index);
        self.created[creation_order as usize % CREATED_MAX].store(entry, Relaxed);
        index
    }

    /// The index of a thread in its team, whether or not its creator was seen.
    fn index(&self, start_routine: usize, creation_order: u32) -> u32 {
        let entry = self.created[creation_order as usize % CREATED_MAX].load(Relaxed);
        if entry >> 32 == u64::from(creation_order) + 1 {
            entry as u32
        } else {
            self.created(start_routine, creation_order)
        }
    }

    /// Pins the calling thread as the plan says. A thread without a pin does not keep the pin of
    /// the one that created it.
    pub fn thread_started(
        &self,
        pins: &[Pin],
        modules: &Modules,
        start_routine: usize,
        creation_order: u32,
    ) {
        if pins.is_empty() {
            return;
        }
        let index = self.index(start_routine, creation_order);
        let routine = modules.find(start_routine);
        let own = pins.iter().find(|pin| {
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
            Some(pin) => self.pin(pin.cpu, pins),
            None => self.unpin(pins),
        }
    }

    /// Moves the main thread, number 0 of all threads, to its CPU, where it stays
    /// unless the scheduler knows better. It is pinned when it creates a thread: until then runtimes
    /// ask it how many CPUs there are, to have as many threads.
    pub fn main_started(&self, pins: &[Pin]) {
        let own = pins.iter().find(|pin| pin.index == 0 && pin.module == NONE);
        if let Some(pin) = own {
            if bind(pin.cpu) {
                self.restore();
            }
            self.main_cpu.store(pin.cpu.saturating_add(1), Relaxed);
        }
    }

    /// The calling thread is about to create one: the first to do so is the main thread.
    pub fn main_creates(&self, pins: &[Pin]) {
        if self.main_cpu.load(Relaxed) != 0
            && let Some(cpu) = self.main_cpu.swap(0, Relaxed).checked_sub(1)
        {
            self.pin(cpu, pins);
        }
    }

    fn pin(&self, cpu: u32, pins: &[Pin]) {
        if bind(cpu) {
            self.pinned.fetch_add(1, Relaxed);
        } else {
            self.failed.fetch_add(1, Relaxed);
            self.unpin(pins);
        }
    }

    /// Gives the calling thread the affinity that the process began with, where it inherited a pin.
    fn unpin(&self, pins: &[Pin]) {
        let mut cpus: CpuSet = [0; 128];
        let known = self.pinned.load(Relaxed) > 0 && sys::sched_getaffinity(0, &mut cpus).is_ok();
        let only = cpus.iter().map(|word| word.count_ones()).sum::<u32>() == 1;
        let of = |cpu: u32| {
            cpus.get(cpu as usize / 64)
                .is_some_and(|word| word >> (cpu % 64) & 1 == 1)
        };
        if !known || !only || !pins.iter().any(|pin| of(pin.cpu)) {
            return;
        }
        self.restore();
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

    /// A forked process is one of its own: its main thread is free, and its teams are counted anew.
    pub fn forked_child(&self, pins: &[Pin]) {
        if pins.is_empty() {
            return;
        }
        self.unpin(pins);
        self.main_cpu.store(0, Relaxed);
        self.sizes.iter().for_each(|size| size.store(0, Relaxed));
        self.created
            .iter()
            .filter(|entry| entry.load(Relaxed) != 0)
            .for_each(|entry| entry.store(0, Relaxed));
        self.pinned.store(0, Relaxed);
        self.failed.store(0, Relaxed);
    }
}

/// Restricts the calling thread to a CPU; false where the kernel refuses.
fn bind(cpu: u32) -> bool {
    let mut cpus: CpuSet = [0; 128];
    if let Some(word) = cpus.get_mut(cpu as usize / 64) {
        *word = 1 << (cpu % 64);
    }
    sys::sched_setaffinity(0, &cpus).is_ok()
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
}
