use nearpage_recording::{AccessKind, Level};
use proptest::prelude::*;

use super::*;
use crate::architecture::GENERAL_REGISTERS;
use crate::discovery::Members;
use crate::processes::Processes;
use crate::record::tests::{record, sideband};

fn fork(time_ns: u64, pid: u32, tid: u32, parent_pid: u32) -> Vec<u8> {
    let fork = Sideband::Fork {
        pid,
        tid,
        parent_pid,
    };
    sideband(parent_pid, parent_pid, time_ns, fork)
}

fn exit(time_ns: u64, pid: u32, tid: u32) -> Vec<u8> {
    sideband(pid, tid, time_ns, Sideband::Exit { pid, tid })
}

fn sample(time_ns: u64, pid: u32, tid: u32, user: bool) -> Vec<u8> {
    let tids = u64::from(pid) | u64::from(tid) << 32;
    let mut body: Vec<u8> = [0, 0x1234, tids, time_ns, 1, 1000, 2]
        .iter()
        .flat_map(|word: &u64| word.to_le_bytes())
        .collect();
    body.extend([0; 8 * GENERAL_REGISTERS]);
    record(9, if user { 2 } else { 1 }, &body)
}

#[test]
fn threads_are_numbered_and_every_sample_counted() {
    let mut follower = Follower::new(SkidSide::Before, Identifiers::default());
    follower.begin(1, 10, 10, 1);
    for bytes in [
        fork(2, 10, 11, 10),
        sample(3, 10, 11, true),
        sample(4, 10, 11, false),
        exit(5, 10, 11),
        fork(6, 10, 11, 10),
        sample(7, 10, 11, true),
        // The thread's beginning was lost.
        sample(8, 10, 12, true),
        record(9, 2, &[0; 3]),
    ] {
        follower.follow(&bytes);
    }
    let counts: Vec<_> = follower
        .threads
        .all()
        .iter()
        .map(|t| (t.tid, t.counts.samples, t.counts.kernel))
        .collect();
    assert_eq!(counts, [(10, 0, 0), (11, 1, 1), (11, 1, 0), (12, 1, 0)]);
    assert_eq!(
        (follower.undecoded.no_code, follower.records.malformed),
        (3, 1)
    );
    assert_eq!(follower.undecoded_places(1).len(), 1);
    let forks = follower
        .events
        .iter()
        .filter(|event| matches!(event, Event::Fork { .. }))
        .count();
    assert_eq!(forks, 4);
}

#[test]
fn hardware_samples_become_accesses_with_weight_and_cost() {
    use crate::pmu::{Form, Precise};
    let identifiers = Identifiers {
        memory: vec![(7, Form::Precise(AccessKind::Load))],
        ..Identifiers::default()
    };
    let mut follower = Follower::new(SkidSide::Before, identifiers);
    follower.hardware.min_latency_cycles = 30;
    let load = Precise {
        id: 7,
        ip: 0x40_1000,
        pid: 10,
        tid: 11,
        time_ns: 5,
        address: 0x7f00,
        cpu: 3,
        period: 1000,
        // 100 ns at the assumed 2.5 GHz.
        latency_cycles: 250,
        data_src: 0x102 | 0xd << 33 | 1 << 37,
    };
    let quick = Precise {
        latency_cycles: 29,
        ..load
    };
    let store = Precise {
        latency_cycles: 0,
        data_src: 0x104,
        ..load
    };
    let nowhere = Precise { address: 0, ..load };
    // A number of hops that no kernel defines yet.
    let later = Precise {
        latency_cycles: 20,
        data_src: load.data_src | 5 << 43,
        ..load
    };
    for (misc, sample) in [
        (2, load),
        (2, quick),
        (2, store),
        (2, nowhere),
        (2, later),
        (1, load),
    ] {
        follower.follow(&record(9, misc, &sample.body()));
    }
    let counts = follower.threads.all()[0].counts;
    assert_eq!((counts.samples, counts.accesses, counts.compute), (5, 2, 2));
    assert_eq!((counts.undecoded, counts.kernel), (1, 1));
    assert_eq!(follower.undecoded.no_address, 1);
    let records = follower.records;
    assert_eq!(
        (records.unknown_sources, records.unknown_source),
        (1, later.data_src)
    );
    assert_eq!(follower.accesses.len(), 2);
    let (load, store) = (follower.accesses[0], follower.accesses[1]);
    assert_eq!(
        (load.address, load.instruction, load.cpu.0),
        (0x7f00, 0x40_1000, 3)
    );
    assert_eq!((load.weight, load.cost_ns), (1000.0, 100_000.0));
    assert_eq!(
        (load.kind, load.level),
        (AccessKind::Load, Level::RemoteMemory)
    );
    assert_eq!((store.kind, store.cost_ns), (AccessKind::Store, 0.0));
}

#[test]
fn only_selected_accesses_are_kept() {
    use crate::filter::AccessSelection;
    use crate::pmu::{Form, Precise};
    let identifiers = Identifiers {
        memory: vec![(7, Form::Precise(AccessKind::Load))],
        ..Identifiers::default()
    };
    let load = |address, data_src| {
        let precise = Precise {
            id: 7,
            pid: 10,
            tid: 10,
            time_ns: 5,
            address,
            period: 100,
            latency_cycles: 250,
            data_src,
            ..Precise::default()
        };
        record(9, 2, &precise.body())
    };
    // TLB hit, TLB miss, unknown.
    let (hit, miss, silent) = (0x102_6810_0142, 0x104_5010_0442, 0x508_0022);
    let followed = |selection: AccessSelection, event| {
        let mut follower = Follower::new(SkidSide::Before, identifiers.clone());
        follower.filter = Filter::new(selection);
        follower.hardware.event = event;
        for data_src in [hit, miss, silent] {
            for address in [0x1000, 0x2000] {
                follower.follow(&load(address, data_src));
            }
        }
        let counts = follower.threads.all()[0].counts;
        assert_eq!(counts.samples, counts.accesses);
        assert_eq!(counts.accesses, follower.accesses.len() as u64);
        (counts.accesses, follower.records.left_out)
    };
    let range = AccessSelection {
        ranges: std::iter::once(0x1800..0x2001).collect(),
        objects: Vec::new(),
    };
    assert_eq!(
        followed(AccessSelection::default(), PmuEvent::Access),
        (6, 0)
    );
    assert_eq!(followed(range.clone(), PmuEvent::Access), (3, 3));
    assert_eq!(
        followed(AccessSelection::default(), PmuEvent::DtlbMiss),
        (2, 4)
    );
    assert_eq!(followed(range, PmuEvent::DtlbMiss), (1, 5));
}

/// A `/proc` with process 10, which has two threads and a heap, and a kernel thread.
fn running_process() -> tempfile::TempDir {
    let proc_root = tempfile::tempdir().unwrap();
    for (path, text) in [
        (
            "10/stat",
            "10 (app) S 1 10 10 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 3\n",
        ),
        ("10/task/10/comm", "app\n"),
        ("10/task/11/comm", "worker\n"),
        ("10/maps", "1000-3000 rw-p 00000000 00:00 0 [heap]\n"),
        (
            "2/stat",
            "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 3\n",
        ),
    ] {
        let path = proc_root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    proc_root
}

/// A process in `/proc` is met by its records.
#[test]
fn processes_from_before_are_entered_at_their_first_record() {
    let proc_root = running_process();
    let following = |members| {
        let mut follower = Follower::new(SkidSide::Before, Identifiers::default());
        let processes = Processes::new(proc_root.path());
        follower.discovery = Some(Discovery::new(processes, members));
        for bytes in [
            // The idle task, a kernel thread, and a process at its end.
            sample(1, 0, 0, false),
            sample(2, 2, 2, false),
            sample(3, u32::MAX, u32::MAX, true),
            sample(4, 10, 11, true),
            // The thread's record comes after the thread was met.
            fork(5, 10, 11, 10),
            fork(6, 20, 20, 10),
            sample(7, 20, 20, true),
            fork(8, 31, 31, 30),
            exit(9, 20, 20),
        ] {
            follower.follow(&bytes);
        }
        follower
    };
    let mut follower = following(Members::All);
    let threads = |follower: &Follower| -> Vec<_> {
        let all = follower.threads.all().iter();
        all.map(|thread| (thread.pid, thread.tid, thread.counts.samples))
            .collect()
    };
    let mut found = threads(&follower);
    found.sort_unstable();
    assert_eq!(found, [(10, 10, 0), (10, 11, 1), (20, 20, 1), (31, 31, 0)]);
    let first = follower.events.first();
    assert!(
        matches!(
            first,
            Some(Event::Map {
                time_ns: 0,
                pid: 10,
                address: 0x1000,
                ..
            })
        ),
        "{first:?}"
    );
    // At the second look, half of the mapping is gone, and new memory has a name.
    follower.events.clear();
    let now = |path: &str, begin, end| Mapping {
        begin,
        end,
        file_offset: 0,
        protection: 3,
        shared: None,
        path: path.to_owned(),
    };
    let (heap, big) = ("[heap]", "[anon:big]");
    let all = [now(heap, 0x1000, 0x2000), now(big, 0x8000, 0x9000)];
    follower.mapped_now(50, 10, &all);
    follower.mapped_now(60, 10, &all);
    assert!(
        matches!(
            follower.events.as_slice(),
            [
                Event::Unmap {
                    time_ns: 50,
                    pid: 10,
                    address: 0x2000,
                    length: 0x1000
                },
                Event::Map {
                    time_ns: 50,
                    address: 0x8000,
                    ..
                },
            ]
        ),
        "{:?}",
        follower.events
    );
    // Of the whole machine, only one process and its descendants.
    let none = following(Members::Processes(std::iter::once(30).collect()));
    assert_eq!(threads(&none), [(31, 31, 0)]);
    let started = following(Members::Processes(std::iter::once(10).collect()));
    assert_eq!(threads(&started).len(), 3);
}

#[test]
fn samples_of_threads_that_take_turns_stand_for_more() {
    use crate::pmu::{Form, Precise};
    let identifiers = Identifiers {
        memory: vec![(7, Form::Precise(AccessKind::Load))],
        ..Identifiers::default()
    };
    let mut follower = Follower::new(SkidSide::Before, identifiers);
    follower.weights.insert(11, 8.0);
    for tid in [11, 12] {
        let precise = Precise {
            id: 7,
            pid: 10,
            tid,
            address: 0x1000,
            period: 100,
            latency_cycles: 250,
            ..Precise::default()
        };
        follower.follow(&record(9, 2, &precise.body()));
    }
    let of = |row: usize| {
        (
            follower.accesses[row].weight,
            follower.accesses[row].cost_ns,
        )
    };
    assert_eq!(of(0), (800.0, 80_000.0));
    assert_eq!(of(1), (100.0, 10_000.0));
}

#[test]
fn losses_beyond_counting_stay_at_the_end_of_the_scale() {
    let mut follower = Follower::new(SkidSide::Before, Identifiers::default());
    let lost = sideband(10, 10, 1, Sideband::Lost { records: u64::MAX });
    follower.follow(&lost);
    follower.follow(&lost);
    assert_eq!(follower.records.lost, u64::MAX);
}

#[test]
fn refusal_by_a_sink_is_an_error() {
    struct Full;
    impl Sink for Full {
        fn accesses(&mut self, _: &[Access]) -> io::Result<()> {
            Ok(())
        }
        fn events(&mut self, _: &[Event]) -> io::Result<()> {
            Err(io::Error::other("disk full"))
        }
    }
    let mut follower = Follower::new(SkidSide::Before, Identifiers::default());
    assert!(follower.hand_over(&mut Full).is_ok());
    follower.begin(1, 10, 10, 1);
    assert!(follower.hand_over(&mut Full).is_err());
    assert!(follower.events.is_empty());
}

/// Applies an event to a program, by kind: a fork, an exit, an exec, a new name, samples, weights, further members.
fn happen(follower: &mut Follower, time_ns: u64, kind: u8, pid: u32, tid: u32) {
    match kind {
        0 => follower.follow(&fork(time_ns, pid, tid, 1 + tid % 3)),
        1 => follower.follow(&exit(time_ns, pid, tid)),
        2 | 3 => {
            let name = Sideband::Name {
                pid,
                tid,
                name: b"name",
                exec: kind == 2,
            };
            follower.follow(&sideband(pid, tid, time_ns, name));
        }
        4 => follower.weigh([(tid, time_ns as f32)].into_iter().collect()),
        5 => follower.include([pid]),
        6 => {
            // Enters the result as an event, so that it can be compared.
            let seen = follower.take_seen();
            let text = format!("{seen:?}");
            follower.found(time_ns, 100, 1000 + time_ns as u32, text);
        }
        _ => follower.follow(&sample(time_ns, pid, tid, kind.is_multiple_of(2))),
    }
}

proptest! {
    #[test]
    fn caches_between_samples_change_no_result(
        trace_events in prop::collection::vec((0u8..16, 1u32..4, 1u32..6), 0..200),
        attached in any::<bool>(),
    ) {
        let no_processes = tempfile::tempdir().unwrap();
        let [mut kept, mut forgetful] = [0, 1].map(|_| {
            let mut follower = Follower::new(SkidSide::Before, Identifiers::default());
            follower.discovery = attached.then(|| {
                let members = Members::Processes([1].into_iter().collect());
                Discovery::new(Processes::new(no_processes.path()), members)
            });
            follower
        });
        for (time_ns, (kind, pid, tid)) in trace_events.into_iter().enumerate() {
            happen(&mut kept, time_ns as u64, kind, pid, tid);
            forgetful.lookaside.clear();
            happen(&mut forgetful, time_ns as u64, kind, pid, tid);
        }
        prop_assert_eq!(kept.threads.all(), forgetful.threads.all());
        prop_assert_eq!(kept.events, forgetful.events);
        prop_assert_eq!(kept.undecoded, forgetful.undecoded);
    }
}
