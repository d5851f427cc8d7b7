//! The tracer's machine once more, written to be read: lists, no directory (everybody is asked), one
//! reference at a time. What it says, the tracer must say.

use nearpage_wire::trace::{ReferenceKind, Served};
use nearpage_wire::tracer_setup::{self, Setup};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Shared,
    Exclusive,
    Modified,
}

/// Sets of lines with their states, the one used last in front.
struct Cache {
    sets: Vec<Vec<(u64, State)>>,
    ways: usize,
}

impl Cache {
    fn new(shape: &tracer_setup::Cache, line_bytes: u32) -> Self {
        Self {
            sets: vec![vec![]; shape.sets(line_bytes) as usize],
            ways: shape.ways as usize,
        }
    }

    fn set(&mut self, line: u64) -> &mut Vec<(u64, State)> {
        let count = self.sets.len() as u64;
        &mut self.sets[(line % count) as usize]
    }

    fn state(&mut self, line: u64) -> Option<State> {
        let found = self.set(line).iter().find(|entry| entry.0 == line);
        found.map(|entry| entry.1)
    }

    fn put(&mut self, line: u64, state: State) -> Option<(u64, State)> {
        self.remove(line);
        self.set(line).insert(0, (line, state));
        let ways = self.ways;
        if self.set(line).len() > ways {
            self.set(line).pop()
        } else {
            None
        }
    }

    fn change(&mut self, line: u64, state: State) {
        for entry in self.set(line) {
            if entry.0 == line {
                entry.1 = state;
            }
        }
    }

    fn remove(&mut self, line: u64) {
        self.set(line).retain(|entry| entry.0 != line);
    }
}

/// A TLB: sets of pages, the one used last in front.
struct Tlb {
    sets: Vec<Vec<u64>>,
    ways: usize,
}

impl Tlb {
    fn new(shape: &tracer_setup::Tlb) -> Self {
        Self {
            sets: vec![vec![]; shape.sets() as usize],
            ways: shape.usable_ways() as usize,
        }
    }

    fn access(&mut self, page: u64) -> bool {
        let count = self.sets.len() as u64;
        let set = &mut self.sets[(page % count) as usize];
        let found = set.contains(&page);
        set.retain(|entry| *entry != page);
        set.insert(0, page);
        set.truncate(self.ways);
        found
    }

    fn flush(&mut self, pages: &std::ops::Range<u64>) {
        for set in &mut self.sets {
            set.retain(|page| !pages.contains(page));
        }
    }
}

struct Cpu {
    node: usize,
    l1_fetch: Cache,
    l1_data: Cache,
    l2: Cache,
    tlb: Tlb,
    tlb_fetch: Option<Tlb>,
    tlb_second: Option<Tlb>,
}

/// What a reference did.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub served: Served,
    pub invalidations: u32,
    pub write_backs: Vec<u64>,
}

pub struct Machine {
    cpus: Vec<Cpu>,
    l3: Vec<Cache>,
}

impl Machine {
    pub fn new(setup: &Setup) -> Self {
        let cpus: Vec<Cpu> = setup
            .cpu_nodes
            .iter()
            .map(|node| Cpu {
                node,
                l1_fetch: Cache::new(&setup.l1_fetch, setup.line_bytes),
                l1_data: Cache::new(&setup.l1_data, setup.line_bytes),
                l2: Cache::new(&setup.l2, setup.line_bytes),
                tlb: Tlb::new(&setup.tlb),
                tlb_fetch: setup.tlb_fetch.as_ref().map(Tlb::new),
                tlb_second: setup.tlb_second.as_ref().map(Tlb::new),
            })
            .collect();
        let nodes = cpus.iter().map(|cpu| cpu.node + 1).max().unwrap_or(0);
        let l3 = setup
            .l3
            .iter()
            .flat_map(|shape| (0..nodes).map(|_| Cache::new(shape, setup.line_bytes)));
        Self {
            l3: l3.collect(),
            cpus,
        }
    }

    /// Did all TLBs miss?
    pub fn tlb_misses(&mut self, cpu: usize, page: u64, fetch: bool) -> bool {
        let cpu = &mut self.cpus[cpu];
        let tlb = match &mut cpu.tlb_fetch {
            Some(tlb) if fetch => tlb,
            _ => &mut cpu.tlb,
        };
        !tlb.access(page) && !cpu.tlb_second.as_mut().is_some_and(|tlb| tlb.access(page))
    }

    pub fn flush(&mut self, cpu: usize, pages: &std::ops::Range<u64>) {
        let cpu = &mut self.cpus[cpu];
        cpu.tlb.flush(pages);
        cpu.tlb_fetch.iter_mut().for_each(|tlb| tlb.flush(pages));
        cpu.tlb_second.iter_mut().for_each(|tlb| tlb.flush(pages));
    }

    pub fn reference(&mut self, position: usize, line: u64, kind: ReferenceKind) -> Outcome {
        let mut outcome = Outcome {
            served: Served::L1,
            invalidations: 0,
            write_backs: vec![],
        };
        let store = kind == ReferenceKind::Store;
        let node = self.cpus[position].node;
        let cpu = &mut self.cpus[position];
        let own = cpu.l2.state(line);
        let l1 = cpu.l1(kind);
        // The first level knows how the line stood when it last looked.
        let in_l1 = l1.state(line);
        let hit = if store {
            in_l1 == Some(State::Modified)
        } else {
            in_l1.is_some()
        };
        if hit {
            let state = in_l1.unwrap_or(State::Shared);
            l1.put(line, state);
            return outcome;
        }
        if let Some(state) = own
            && !(store && state == State::Shared)
        {
            let state = if store { State::Modified } else { state };
            if !(store && in_l1.is_some()) {
                outcome.served = Served::L2;
            }
            l1.put(line, state);
            cpu.l2.put(line, state);
            return outcome;
        }
        let others = self.ask_others(position, line, store, &mut outcome);
        outcome.served = if own.is_some() {
            Served::Upgrade
        } else if others.modified {
            Served::OtherCache
        } else if others.in_own_l3.is_some() {
            Served::L3
        } else {
            Served::Memory
        };
        if own.is_none()
            && let Some(l3) = self.l3.get_mut(node)
            && let Some((line, State::Modified)) =
                l3.put(line, others.in_own_l3.unwrap_or(State::Shared))
        {
            outcome.write_backs.push(line);
        }
        let state = match (store, others.have_it) {
            (true, _) => State::Modified,
            (false, true) => State::Shared,
            (false, false) => State::Exclusive,
        };
        self.put(position, line, state, &mut outcome);
        self.cpus[position].l1(kind).put(line, state);
        outcome
    }

    /// Takes the line from all other caches, for a store, or has them share it.
    fn ask_others(
        &mut self,
        position: usize,
        line: u64,
        store: bool,
        outcome: &mut Outcome,
    ) -> Others {
        let node = self.cpus[position].node;
        let mut others = Others::default();
        for (number, other) in self.cpus.iter_mut().enumerate() {
            let Some(state) = other.l2.state(line).filter(|_| number != position) else {
                continue;
            };
            others.modified |= state == State::Modified;
            if store {
                outcome.invalidations += 1;
                other.l2.remove(line);
                other.l1_data.remove(line);
                other.l1_fetch.remove(line);
            } else {
                others.have_it = true;
                other.l2.change(line, State::Shared);
                other.l1_data.change(line, State::Shared);
                other.l1_fetch.change(line, State::Shared);
            }
        }
        for (number, l3) in self.l3.iter_mut().enumerate() {
            let Some(state) = l3.state(line) else {
                continue;
            };
            if number == node {
                if store {
                    l3.change(line, State::Shared);
                }
                others.in_own_l3 = l3.state(line);
                continue;
            }
            others.modified |= state == State::Modified;
            if store {
                l3.remove(line);
            } else {
                others.have_it = true;
                l3.change(line, State::Shared);
            }
        }
        others
    }

    /// Puts the line into the CPU's L2.
    fn put(&mut self, position: usize, line: u64, state: State, outcome: &mut Outcome) {
        let cpu = &mut self.cpus[position];
        let Some((evicted, state)) = cpu.l2.put(line, state) else {
            return;
        };
        cpu.l1_data.remove(evicted);
        cpu.l1_fetch.remove(evicted);
        if state != State::Modified {
            return;
        }
        match self.l3.get_mut(cpu.node) {
            None => outcome.write_backs.push(evicted),
            Some(l3) => {
                if let Some((line, State::Modified)) = l3.put(evicted, state) {
                    outcome.write_backs.push(line);
                }
            }
        }
    }
}

/// What other caches than a CPU's own had of a line.
#[derive(Default)]
struct Others {
    modified: bool,
    have_it: bool,
    in_own_l3: Option<State>,
}

impl Cpu {
    fn l1(&mut self, kind: ReferenceKind) -> &mut Cache {
        match kind {
            ReferenceKind::Fetch => &mut self.l1_fetch,
            _ => &mut self.l1_data,
        }
    }
}
