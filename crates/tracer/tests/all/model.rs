//! The tracer's caches against plain ones: random references to few lines, many machines.

use nearpage_tracer::caches::{Caches, Miss, Outcome};
use nearpage_wire::trace::{ReferenceKind, Served};
use nearpage_wire::tracer_setup::{FIRST_LINE, Setup};

use crate::plain;

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut value = *state;
    value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[test]
fn every_reference_is_served_as_in_the_plain_machine() {
    let machines = [
        // CPUs, their nodes, L1 bytes and ways, L2, L3 (bytes and ways, "" for none).
        ("0 1 2 3", "512 2", "2048 4", ""),
        ("0 0 1 1", "512 8", "1024 2", "l3 4096 4\n"),
        ("0 0 0 1 1 1", "64 1", "1024 1", "l3 3072 3\n"),
        // Each cache has one set.
        ("0 0 1", "128 2", "1024 16", "l3 2048 32\n"),
        // More holders than a slot's first word has bits, and sets that hash.
        (
            "0 0 0 0 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 1 1 1 1 2 2 2 2",
            "256 2",
            "1024 4",
            "l3 3072 6\n",
        ),
    ];
    for (number, (nodes, l1, l2, l3)) in machines.into_iter().enumerate() {
        let text = format!(
            "{FIRST_LINE}\npage_bytes 4096\nline_bytes 64\nl1_fetch {l1}\nl1_data {l1}\nl2 {l2}\n\
             {l3}tlb 8 8 0\ncpu_nodes {nodes}\nthread_cpus 0\nquantum 1000\n"
        );
        let setup = Setup::parse(&text).expect(&text);
        let caches = Caches::new(&setup);
        let mut plain = plain::Machine::new(&setup);
        let cpus = setup.cpu_nodes.iter().count() as u64;
        let mut seen = [0_u32; 7];
        for step in 0..60_000_u64 {
            let random = &mut (step << 8 | number as u64);
            let position = (next(random) % cpus) as usize;
            // Most go to few lines.
            let lines = if next(random).is_multiple_of(4) {
                400
            } else {
                24
            };
            let line = 1000 + next(random) % lines;
            let kind = match next(random) % 4 {
                0 => ReferenceKind::Fetch,
                1 => ReferenceKind::Store,
                _ => ReferenceKind::Load,
            };
            let expected = plain.reference(position, line, kind);
            let (fetch, store) = (kind == ReferenceKind::Fetch, kind == ReferenceKind::Store);
            let cpu = caches.cpu(position).expect("it is there");
            let l1 = if fetch { &cpu.l1_fetch } else { &cpu.l1_data };
            let hit = if store {
                l1.quick::<true>(line) || l1.access::<true>(line)
            } else {
                l1.quick::<false>(line) || l1.access::<false>(line)
            };
            let outcome = if hit {
                plain::Outcome {
                    served: Served::L1,
                    invalidations: 0,
                    write_backs: vec![],
                }
            } else {
                let miss = Miss {
                    cpu,
                    line,
                    fetch,
                    store,
                    allowed: true,
                };
                let mut missed = Outcome::default();
                assert!(caches.miss(&miss, &mut missed));
                plain::Outcome {
                    served: missed.served,
                    invalidations: missed.invalidations,
                    write_backs: missed.write_backs().to_vec(),
                }
            };
            assert_eq!(
                outcome, expected,
                "machine {number}, step {step}, line {line}"
            );
            seen[outcome.served as usize] += 1;
        }
        let kinds = seen.iter().filter(|count| **count > 0).count();
        assert_eq!(kinds, if l3.is_empty() { 5 } else { 6 }, "{seen:?}");
    }
}
