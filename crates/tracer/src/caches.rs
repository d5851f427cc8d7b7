//! The machine's caches. Each CPU has an L1 for fetches, an L1 for data, and an L2 that includes both. Each node may have an
//! L3. A directory keeps all of them coherent by
//! the MESI protocol (Papamarcos and Patel 1984, with the directory of Censier and Feautrier 1978).
//!
//! # Who may change what
//! Several host threads use the caches at once, at most one for each CPU. The lines of an L2 or
//! L3, their states and their order change only while the lock of the line's directory set is held. L1s
//! keep their own tags ([`crate::l1`]). A line of an L1 changes its state or is removed only with that lock
//! held, too; but its own CPU's thread may replace it by another line without.
//!
//! The CPU's own thread reads its L1 without a lock: a hit changes no tag. A store hits in L1 only if
//! the line is modified there. A store that needs a line from other caches, or to a line that was invalidated, is
//! therefore a miss. So an L1 need not know who else has an unmodified line, and reads of other CPUs do not change the L1.
//!
//! # What is simplified
//! - Lines are known by guest virtual addresses: two mappings of one page have different lines, and
//!   unmapped memory leaves the caches only by eviction.
//! - A load served by another CPU's modified copy also updates memory, without a write-back in the trace.
//! - The eviction of a clean line is not traced.
//! - An L3 has the lines that memory sends and that its CPUs write back; its evictions remove no line from the L2s.
//! - A CPU's store does not invalidate the line in its own fetch cache.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nearpage_wire::trace::Served;
use nearpage_wire::tracer_setup::{Cache, Setup};

use crate::directory::{self, Directory, Holder};
use crate::l1::{EXCLUSIVE, L1, MODIFIED, SHARED};
use crate::sets::{Place, Sets};
use crate::tlb::Tlb;

/// The lines in each set of an L2 or L3, the most recently used first. A line is known by its
/// slot in the directory.
struct Order {
    sets: u64,
    /// ⌈2^64 ÷ sets⌉; 0 where their number is a power of two.
    inverse: u64,
    /// Slot + 1 of each line; 0: an empty entry, behind all lines of its set.
    slots: Sets<AtomicU32>,
}

impl Order {
    fn new(shape: &Cache, line_bytes: u32) -> Self {
        let sets = shape.sets(line_bytes);
        Self {
            sets,
            inverse: if sets.is_power_of_two() {
                0
            } else {
                u64::MAX / sets + 1
            },
            slots: Sets::new(sets, shape.ways as usize),
        }
    }

    #[inline]
    fn set(&self, line: u64) -> &[AtomicU32] {
        if self.inverse == 0 {
            return self.slots.of(line);
        }
        // line mod sets: exact as long as line × sets is below 2^64.
        let times = ((u128::from(line) * u128::from(self.inverse)) >> 64) as u64;
        self.slots.of(line - times * self.sets)
    }

    /// Makes the line in that slot the most recent of its set. Returns the slot of the line that is evicted.
    #[inline]
    fn put(&self, line: u64, slot: usize) -> Option<usize> {
        let arriving = slot as u32 + 1;
        if self.inverse == 0
            && let Some([recent, other]) = self.slots.exactly(line)
        {
            let first = recent.load(Relaxed);
            if first == arriving {
                return None;
            }
            recent.store(arriving, Relaxed);
            if first == 0 {
                return None;
            }
            let second = other.load(Relaxed);
            other.store(first, Relaxed);
            let stood_here = second == 0 || second == arriving;
            return (!stood_here).then(|| second as usize - 1);
        }
        let mut moving = arriving;
        // Moves entries back by one, as far as the line's own entry, or the first empty one if the line is new.
        for place in self.set(line) {
            let before = place.load(Relaxed);
            place.store(moving, Relaxed);
            if before == 0 || before == arriving {
                return None;
            }
            moving = before;
        }
        Some(moving as usize - 1)
    }

    /// Removes the line in that slot.
    fn remove(&self, line: u64, slot: usize) {
        let mut moving = 0;
        for place in self.set(line).iter().rev() {
            let here = place.load(Relaxed);
            place.store(moving, Relaxed);
            if here == slot as u32 + 1 {
                return;
            }
            moving = here;
        }
    }
}

/// One CPU's caches and TLBs.
#[repr(align(128))]
pub struct Cpu {
    /// The L1 for fetches.
    pub l1_fetch: L1,
    /// The L1 for loads and stores.
    pub l1_data: L1,
    /// The first-level TLB; it serves fetches, too, if `tlb_fetch` is `None`.
    pub tlb: Tlb,
    /// The first-level TLB for fetches.
    pub tlb_fetch: Option<Tlb>,
    /// The second-level TLB.
    pub tlb_second: Option<Tlb>,
    /// How many of the process's unmappings have been removed from its TLBs.
    pub unmappings_seen: AtomicU64,
    /// Its position among the machine's CPUs.
    number: usize,
    /// Its L2 in the directory.
    holder: Holder,
    node: usize,
    /// Its node's L3 in the directory, even if the machine has none.
    l3_holder: Holder,
    l2: Order,
}

impl Cpu {
    /// The TLB that serves fetches.
    #[inline]
    pub fn fetch_tlb(&self) -> &Tlb {
        self.tlb_fetch.as_ref().unwrap_or(&self.tlb)
    }

    /// Where the host has the sets of its L2, for prefetching. Wrong, and useless, if the number of sets is no power of two.
    pub fn l2_place(&self) -> Place {
        self.l2.slots.place()
    }

    /// Changes the line's state in the L1s that have it.
    #[inline]
    fn change(&self, line: u64, state: u64) {
        self.l1_fetch.change(line, state);
        self.l1_data.change(line, state);
    }
}

/// How a reference that missed in L1 was served.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// What served it; `L1` if a store made an exclusive line there a modified one.
    pub served: Served,
    /// Copies taken away from other CPUs.
    pub invalidations: u32,
    write_backs: [u64; 4],
    write_back_count: usize,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            served: Served::L2,
            invalidations: 0,
            write_backs: [0; 4],
            write_back_count: 0,
        }
    }
}

impl Outcome {
    /// Lines written back to memory.
    #[inline]
    pub fn write_backs(&self) -> &[u64] {
        let written = self.write_backs.get(..self.write_back_count);
        written.unwrap_or_default()
    }

    #[inline]
    fn write_back(&mut self, line: u64) {
        if let Some(place) = self.write_backs.get_mut(self.write_back_count) {
            *place = line;
            self.write_back_count += 1;
        }
    }
}

/// A reference that missed in L1.
#[derive(Clone, Copy)]
pub struct Miss<'a> {
    /// Its CPU.
    pub cpu: &'a Cpu,
    /// The line.
    pub line: u64,
    /// It is an instruction fetch.
    pub fetch: bool,
    /// It writes.
    pub store: bool,
    /// May it change the caches of other CPUs?
    pub allowed: bool,
}

/// The copies that other caches had of a line.
struct OtherCopies {
    /// One of the other CPUs had the line modified.
    modified: bool,
    /// Another cache still has a copy.
    have_it: bool,
}

/// All caches of the machine.
pub struct Caches {
    cpus: Box<[Cpu]>,
    l3: Box<[Order]>,
    directory: Directory,
    /// The directory is simple, and there is no L3.
    simple: bool,
}

impl Caches {
    /// Empty caches.
    pub fn new(setup: &Setup) -> Self {
        let nodes: Vec<usize> = setup.cpu_nodes.iter().collect();
        let line_bytes = setup.line_bytes;
        let node_count = nodes.iter().max().map_or(0, |last| last + 1);
        let cpus: Box<[Cpu]> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| Cpu {
                l1_fetch: L1::new(&setup.l1_fetch, line_bytes),
                l1_data: L1::new(&setup.l1_data, line_bytes),
                tlb: Tlb::new(&setup.tlb),
                tlb_fetch: setup.tlb_fetch.as_ref().map(Tlb::new),
                tlb_second: setup.tlb_second.as_ref().map(Tlb::new),
                unmappings_seen: AtomicU64::new(0),
                number,
                holder: Holder::new(number),
                node: *node,
                l3_holder: Holder::new(nodes.len() + node),
                l2: Order::new(&setup.l2, line_bytes),
            })
            .collect();
        let l2_sets = setup.l2.sets(line_bytes);
        // The largest power of two that divides both numbers of sets.
        let sets = setup.l3.map_or(l2_sets, |l3| {
            l2_sets.min(1 << l3.sets(line_bytes).trailing_zeros())
        });
        let l2_lines = l2_sets * u64::from(setup.l2.ways) * cpus.len() as u64;
        let l3_lines = setup.l3.map_or(0, |l3| {
            l3.sets(line_bytes) * u64::from(l3.ways) * node_count as u64
        });
        let l3_nodes = if setup.l3.is_some() { node_count } else { 0 };
        let lines_of_set = ((l2_lines + l3_lines) / sets) as usize;
        let directory = Directory::new(sets, lines_of_set, cpus.len() + l3_nodes);
        Self {
            simple: directory.is_simple() && l3_nodes == 0,
            directory,
            l3: (0..l3_nodes)
                .filter_map(|_| setup.l3.as_ref())
                .map(|l3| Order::new(l3, line_bytes))
                .collect(),
            cpus,
        }
    }

    /// A CPU, by position.
    pub fn cpu(&self, position: usize) -> Option<&Cpu> {
        self.cpus.get(position)
    }

    /// CPUs, by position.
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Where the host has the directory's sets, for prefetching.
    pub fn directory_place(&self) -> Place {
        self.directory.place()
    }

    /// Serves a reference that missed in L1, and stores in `outcome` how. Does nothing and returns `false` if it would change
    /// another CPU's caches and is not allowed to.
    #[inline]
    pub fn miss(&self, miss: &Miss, outcome: &mut Outcome) -> bool {
        if self.simple {
            self.serve::<true>(miss, outcome)
        } else {
            self.serve_general(miss, outcome)
        }
    }

    #[inline(never)]
    fn serve_general(&self, miss: &Miss, outcome: &mut Outcome) -> bool {
        self.serve::<false>(miss, outcome)
    }

    /// `SIMPLE`: the directory is simple, and there is no L3.
    #[inline(always)]
    fn serve<const SIMPLE: bool>(&self, miss: &Miss, outcome: &mut Outcome) -> bool {
        let Miss {
            cpu, line, store, ..
        } = *miss;
        let l1 = if miss.fetch {
            &cpu.l1_fetch
        } else {
            &cpu.l1_data
        };
        outcome.invalidations = 0;
        outcome.write_back_count = 0;
        let set = self.directory.lock::<SIMPLE>(line);
        let (slot, state) = match set.find(line) {
            None => {
                outcome.served = Served::Memory;
                let state = if store { MODIFIED } else { EXCLUSIVE };
                (set.add(line, state, cpu.holder), state)
            }
            Some(slot) => {
                let state = set.entry(slot).state();
                let own = set.has(slot, cpu.holder);
                if own && !(store && state == SHARED) {
                    // No other cache is concerned.
                    let state = if store { MODIFIED } else { state };
                    outcome.served = if store && l1.has(line) {
                        Served::L1
                    } else {
                        Served::L2
                    };
                    set.set_state(slot, state);
                    cpu.l2.put(line, slot);
                    l1.fill(line, state);
                    return true;
                }
                if !miss.allowed
                    && (store || state == MODIFIED)
                    && set
                        .holders(slot)
                        .any(|holder| holder != cpu.number && holder < self.cpus.len())
                {
                    return false;
                }
                let others = self.ask_others(&set, slot, miss, outcome);
                outcome.served = if own {
                    Served::Upgrade
                } else if others.modified {
                    Served::OtherCache
                } else if set.has(slot, cpu.l3_holder) {
                    Served::L3
                } else {
                    Served::Memory
                };
                let state = match (store, others.have_it) {
                    (true, _) => MODIFIED,
                    (false, true) => SHARED,
                    (false, false) => EXCLUSIVE,
                };
                set.set_state(slot, state);
                set.set(slot, cpu.holder);
                (slot, state)
            }
        };
        if !SIMPLE
            && let Some(l3) = self.l3.get(cpu.node)
            && outcome.served != Served::Upgrade
        {
            let evicted = l3.put(line, slot);
            set.set(slot, cpu.l3_holder);
            self.evicted_from_l3(&set, evicted, cpu, outcome);
        }
        if let Some(evicted) = cpu.l2.put(line, slot) {
            self.evicted_from_l2(&set, evicted, cpu, outcome);
        }
        l1.fill(line, state);
        true
    }

    /// Invalidates the line in all other caches for a store, or makes it shared there for a load.
    #[inline(never)]
    fn ask_others<const SIMPLE: bool>(
        &self,
        set: &directory::Set<SIMPLE>,
        slot: usize,
        miss: &Miss,
        outcome: &mut Outcome,
    ) -> OtherCopies {
        let cpu = miss.cpu;
        let entry = set.entry(slot);
        let state = entry.state();
        let mut others = OtherCopies {
            modified: state == MODIFIED,
            have_it: false,
        };
        if entry.l3_modified() {
            // After a store, the line is modified in the CPU's L2 instead of the L3.
            let own = set.has(slot, cpu.l3_holder);
            others.modified |= !own;
            set.set_l3_modified(slot, own && !miss.store);
        }
        for number in set.holders(slot) {
            if number == cpu.number || number == self.cpus.len() + cpu.node {
                continue;
            }
            others.have_it |= !miss.store;
            if let Some(other) = self.cpus.get(number) {
                if miss.store {
                    other.l2.remove(miss.line, slot);
                    other.change(miss.line, 0);
                    outcome.invalidations += 1;
                } else if state == MODIFIED {
                    other.change(miss.line, SHARED);
                }
            } else if let Some(l3) = self.l3.get(number - self.cpus.len())
                && miss.store
            {
                l3.remove(miss.line, slot);
            }
            if miss.store {
                set.clear(slot, Holder::new(number));
            }
        }
        others
    }

    #[inline]
    fn evicted_from_l2<const SIMPLE: bool>(
        &self,
        set: &directory::Set<SIMPLE>,
        slot: usize,
        cpu: &Cpu,
        outcome: &mut Outcome,
    ) {
        let entry = set.entry(slot);
        let line = entry.line();
        cpu.change(line, 0);
        if entry.state() == MODIFIED {
            match self.l3.get(cpu.node).filter(|_| !SIMPLE) {
                None => outcome.write_back(line),
                Some(l3) => {
                    let evicted = l3.put(line, slot);
                    set.set(slot, cpu.l3_holder);
                    set.set_l3_modified(slot, true);
                    self.evicted_from_l3(set, evicted, cpu, outcome);
                }
            }
        }
        // Any other L2 that has the line has it shared.
        set.give_up(slot, cpu.holder, SHARED);
    }

    #[inline]
    fn evicted_from_l3<const SIMPLE: bool>(
        &self,
        set: &directory::Set<SIMPLE>,
        slot: Option<usize>,
        cpu: &Cpu,
        outcome: &mut Outcome,
    ) {
        let Some(slot) = slot else { return };
        let entry = set.entry(slot);
        if entry.l3_modified() {
            set.set_l3_modified(slot, false);
            outcome.write_back(entry.line());
        }
        set.give_up(slot, cpu.l3_holder, entry.state());
    }
}

#[cfg(test)]
mod tests;
