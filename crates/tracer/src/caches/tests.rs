use std::thread;

use super::*;

/// Threads on as many CPUs use the same few lines. Whenever they are stopped, no modified line has a second holder, and
/// directory and caches agree.
#[test]
fn many_threads_leave_the_caches_coherent() {
    // The last one's directory has large sets, with hash chains.
    let machines = [
        ("1024 4", ""),
        ("1024 4", "l3 3072 3\n"),
        ("1024 16", "l3 3072 3\n"),
    ];
    for (l2, l3) in machines {
        let text = format!(
            "nearpage tracer setup 1\npage_bytes 4096\nline_bytes 64\nl1_fetch 256 2\n\
                 l1_data 256 2\nl2 {l2}\n{l3}tlb 8 8 0\ncpu_nodes 0 0 1 1\nthread_cpus 0\n\
                 quantum 1000\n"
        );
        let setup = Setup::parse(&text).expect(&text);
        let caches = &Caches::new(&setup);
        let work = |position: usize| {
            let cpu = &caches.cpus()[position];
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(position as u64 + 1);
            for _ in 0..20_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let (line, store) = (random % 40, random >> 32 & 1 == 1);
                let hit = if store {
                    cpu.l1_data.quick::<true>(line) || cpu.l1_data.access::<true>(line)
                } else {
                    cpu.l1_data.quick::<false>(line) || cpu.l1_data.access::<false>(line)
                };
                if !hit {
                    let miss = Miss {
                        cpu,
                        line,
                        fetch: false,
                        store,
                        allowed: true,
                    };
                    assert!(caches.miss(&miss, &mut Outcome::default()));
                }
            }
        };
        thread::scope(|scope| {
            for position in 0..4 {
                scope.spawn(move || work(position));
            }
            for _ in 0..50 {
                assert_eq!(caches.incoherence(), None);
            }
        });
        assert_eq!(caches.incoherence(), None);
    }
}

impl Caches {
    /// Stops all threads and checks that the caches are coherent; returns what is not.
    fn incoherence(&self) -> Option<String> {
        use std::collections::HashMap;
        let sets: Vec<_> = (0..self.directory.sets())
            .map(|set| self.directory.lock::<false>(set))
            .collect();
        // The directory's entry of each line: its set, slot and holders.
        let mut listed = HashMap::new();
        for (number, set) in sets.iter().enumerate() {
            for slot in set.taken_slots() {
                let holders: Vec<usize> = set.holders(slot).collect();
                if set.find(set.entry(slot).line()) != Some(slot) || holders.is_empty() {
                    return Some(format!("set {number}, slot {slot}: {holders:?}"));
                }
                listed.insert(set.entry(slot).line(), (set, slot, holders));
            }
        }
        // The caches that have each line.
        let mut held: HashMap<u64, Vec<usize>> = HashMap::new();
        let orders = self.cpus.iter().map(|cpu| &cpu.l2).chain(&self.l3);
        for (holder, order) in orders.enumerate() {
            for (number, place) in order.slots.all().iter().enumerate() {
                let Some(slot) = place.load(Relaxed).checked_sub(1) else {
                    continue;
                };
                let own_set = (number / order.slots.ways()) as u64;
                let set = &sets[(own_set % self.directory.sets()) as usize];
                let line = set.entry(slot as usize).line();
                if line % order.sets != own_set {
                    return Some(format!("{holder}: line {line:#x} in set {own_set}"));
                }
                held.entry(line).or_default().push(holder);
            }
        }
        if listed.len() != held.len() {
            return Some(format!("{} lines known, {} held", listed.len(), held.len()));
        }
        for (line, holders) in &held {
            let Some((set, slot, listed)) = listed.get(line) else {
                return Some(format!("line {line:#x} is held by {holders:?}, unknown"));
            };
            if listed != holders {
                return Some(format!("line {line:#x}: {listed:?}, held by {holders:?}"));
            }
            let cpus = holders.iter().filter(|holder| **holder < self.cpus.len());
            let state = set.entry(*slot).state();
            if state >= EXCLUSIVE && cpus.count() != 1 {
                return Some(format!("line {line:#x} in state {state}: {holders:?}"));
            }
            let l3s = holders.iter().filter(|holder| **holder >= self.cpus.len());
            if set.entry(*slot).l3_modified() && l3s.count() != 1 {
                return Some(format!("line {line:#x} modified in L3: {holders:?}"));
            }
        }
        for (position, cpu) in self.cpus.iter().enumerate() {
            for tag in cpu.l1_data.tags().chain(cpu.l1_fetch.tags()) {
                let l2 = listed
                    .get(&(tag >> 2))
                    .filter(|(_, _, holders)| holders.contains(&position))
                    .map_or(0, |(set, slot, _)| set.entry(*slot).state());
                let too_much = tag & 3 == MODIFIED && l2 != MODIFIED;
                if tag != 0 && (l2 == 0 || too_much) {
                    return Some(format!("CPU {position}: L1 {tag:#x}, L2 {l2}"));
                }
            }
        }
        None
    }
}
