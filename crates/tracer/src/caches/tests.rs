use std::thread;

use super::*;

/// Threads on as many CPUs work on the same few lines; whenever they stop, and in the middle of
/// it too, no modified line has a second holder, and directory and caches agree.
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
