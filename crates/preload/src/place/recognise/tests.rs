use super::*;
use crate::place::memory::{zeroed, zeroed_slice};
use crate::plan::plan_file::{RULE, Tables, bytes, module};
use nearpage_wire::compact_plan::placement;
use std::vec::Vec;

fn first() {}

/// Calls `check` with a recogniser for these rules in this process. `ranges` are the rules' frames, around functions of
/// this program.
fn with(rules: Vec<Rule>, ranges: &[(usize, usize)], check: impl FnOnce(Recogniser<'_>)) {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().as_encoded_bytes();
    let mut names = Vec::new();
    let modules = std::vec![module(&mut names, &[], name)];
    let empty = Tables {
        modules: modules.clone(),
        names: names.clone(),
        ..Tables::default()
    }
    .encode();
    let table = zeroed::<Modules>().unwrap();
    table.refresh(&Plan::parse(bytes(&empty)).unwrap(), |_| {});
    let file_address = |address: usize| table.find(address).unwrap().file_address;
    let frames = ranges
        .iter()
        .map(|(low, high)| FrameRange {
            module: 0,
            reserved: 0,
            low: file_address(*low),
            high: file_address(*high),
        })
        .collect();
    let words = Tables {
        modules,
        names,
        rules,
        frames,
        nodes: std::vec![0, 1],
        ..Tables::default()
    }
    .encode();
    let plan = Plan::parse(bytes(&words)).unwrap();
    let section = nearpage_wire::compact_plan::Section {
        executable: NONE,
        rank: NONE,
        rules: [0, plan.header.rules.count],
        pins: [0, 0],
        phases: [0, 0],
    };
    let rules = plan.rules(&section);
    let recogniser = Recogniser {
        plan: &plan,
        rules,
        counters: zeroed_slice(rules.len()).unwrap(),
        modules: table,
        sites: zeroed().unwrap(),
        orders: zeroed().unwrap(),
        threads: zeroed().unwrap(),
    };
    recogniser.prepare();
    check(recogniser);
}

fn site(frames: [u32; 2]) -> Rule {
    Rule {
        subject: subject::CALL_SITE,
        placement: placement::BLOCK,
        nodes: [0, 2],
        frames,
        ..RULE
    }
}

#[test]
fn frames_lead_the_stack_and_runtimes_do_not_count() {
    let here = first as *const () as usize;
    let libc = std::process::exit as *const () as usize; // of this program
    let outside = crate::sys::reserve(4096).unwrap();
    with(
        std::vec![
            site([0, 2]),
            site([0, 1]),
            Rule {
                subject: subject::HEAP,
                ..site([0, 0])
            }
        ],
        &[(here, here + 4), (libc, libc)],
        |recogniser| {
            let rule = |frames: &[usize]| recogniser.recognise(Origin::Heap, 1 << 20, frames);
            unsafe extern "C" {
                fn abort() -> !;
            }
            let runtime = abort as *const () as usize;
            for _ in 0..2 {
                assert_eq!(rule(&[here, libc, here]), Some(0), "deeper is fine");
                assert_eq!(rule(&[runtime, here + 4, runtime, libc]), Some(0));
                assert_eq!(rule(&[here + 1, here]), Some(1));
                assert_eq!(rule(&[here + 5, here]), Some(2), "outside the range");
                assert_eq!(
                    rule(&[outside, here]),
                    Some(2),
                    "an unknown frame is a frame"
                );
                assert_eq!(rule(&[]), Some(2));
            }
            assert_eq!(
                recogniser.recognise(Origin::Mapping, 1 << 20, &[libc]),
                None
            );
            assert_eq!(
                recogniser.recognise(Origin::Mapping, 1 << 20, &[here, libc]),
                Some(0)
            );
        },
    );
}

#[test]
fn rules_match_order_and_thread() {
    let here = first as *const () as usize;
    let rule = |order, thread| Rule {
        order,
        thread,
        ..site([0, 1])
    };
    let small = Rule {
        size_bounds_bytes: [0, 9999],
        ..rule([0, 0], NONE)
    };
    with(
        std::vec![
            rule([1, 1], NONE),
            small,
            rule([0, 0], 0),
            rule([2, NONE], NONE)
        ],
        &[(here, here)],
        |recogniser| {
            recogniser.threads.started(crate::sys::gettid(), 0);
            let sizes = [20_000, 20_000, 9999, 20_000, 9999];
            let rules = sizes.map(|size| recogniser.recognise(Origin::Heap, size, &[here]));
            // The small objects have the numbers 2 and 4 in the wide size range, 0 and 1 in their own.
            assert_eq!(rules, [Some(2), Some(0), Some(1), Some(3), Some(3)]);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    recogniser.threads.started(crate::sys::gettid(), 1);
                    let rules = [20_000, 20_000]
                        .map(|size| recogniser.recognise(Origin::Heap, size, &[here]));
                    assert_eq!(
                        rules,
                        [None, Some(0)],
                        "thread 0's rule, and a count of its own"
                    );
                });
            });
        },
    );
}

#[test]
fn objects_take_turns() {
    let here = first as *const () as usize;
    let turn = |turn| Rule {
        turn: [turn, 3],
        ..site([0, 1])
    };
    let senseless = Rule {
        turn: [0, 0],
        ..site([0, 1])
    };
    let rules = std::vec![senseless, turn(0), turn(1), turn(2)];
    with(rules, &[(here, here)], |recogniser| {
        for number in 0..10 {
            let rule = recogniser.recognise(Origin::Heap, 8192, &[here]);
            assert_eq!(rule, Some(1 + number % 3));
        }
    });
}

#[test]
fn objects_are_dealt_in_shares() {
    let here = first as *const () as usize;
    let share = |turn| Rule {
        turn: [turn, 3],
        objects: 8,
        ..site([0, 1])
    };
    let rules = std::vec![share(0), share(1), share(2)];
    with(rules, &[(here, here)], |recogniser| {
        let found: Vec<_> = (0..10)
            .map(|_| recogniser.recognise(Origin::Heap, 8192, &[here]))
            .collect();
        // Eight objects are divided as OpenMP divides 8 iterations among 3 threads; further objects are the last thread's.
        let expected = [0, 0, 1, 1, 1, 2, 2, 2, 2, 2];
        assert_eq!(found, expected.map(Some));
    });
}

#[test]
fn more_rules_than_a_cached_site_holds() {
    let here = first as *const () as usize;
    let rules = (0..100u32)
        .map(|n| Rule {
            order: [n, n],
            ..site([0, 1])
        })
        .collect();
    with(rules, &[(here, here)], |recogniser| {
        for n in 0..100 {
            assert_eq!(recogniser.recognise(Origin::Heap, 8192, &[here]), Some(n));
        }
        assert_eq!(recogniser.recognise(Origin::Heap, 8192, &[here]), None);
    });
}

#[test]
fn sizes_outside_all_rules_are_not_recognised() {
    let rule = |subject, least| Rule {
        subject,
        size_bounds_bytes: [least, u64::MAX],
        ..site([0, 1])
    };
    let here = first as *const () as usize;
    with(std::vec![rule(subject::STATIC, 0)], &[], |it| {
        assert_eq!(it.size_bytes_min(), usize::MAX)
    });
    with(
        std::vec![rule(subject::HEAP, 1 << 20), rule(subject::MAPPING, 0)],
        &[],
        |it| {
            assert_eq!(it.size_bytes_min(), 4096);
        },
    );
    with(std::vec![rule(subject::HEAP, 1 << 20)], &[], |it| {
        assert_eq!(it.size_bytes_min(), 1 << 20)
    });
    with(
        std::vec![Rule {
            order: [3, 3],
            ..rule(subject::CALL_SITE, 100)
        }],
        &[(here, here)],
        |it| {
            assert_eq!(it.size_bytes_min(), 100);
        },
    );
}
