//! Samples taken inside programs: none of them notices, and the rings say what happened.

use std::path::Path;
use std::process::Command;

use nearpage_wire::samples::{HEADER_BYTES, Header, Kind, SLOT_BYTES, Slot, offset};

use crate::harness::{Run, compile, folder, observed, same_behaviour};

/// A ring that a process left.
struct Ring {
    header: Header,
    slots: Vec<Slot>,
    dropped: u64,
    blocked_ns: u64,
    no_timer: u64,
    ended: u64,
}

impl Ring {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let header = Header::parse(&bytes, bytes.len() as u64).expect("a ring");
        let slots = (0..word(offset::HEAD)).map(|number| {
            let at = HEADER_BYTES + number as usize * SLOT_BYTES;
            assert_eq!(word(at), number + 1, "every slot is handed over");
            Slot::parse(&bytes[at..at + SLOT_BYTES]).expect("a slot")
        });
        Self {
            header,
            slots: slots.collect(),
            dropped: word(offset::DROPPED),
            blocked_ns: word(offset::BLOCKED_NS),
            no_timer: word(offset::NO_TIMER),
            ended: word(offset::ENDED) & 0xffff_ffff,
        }
    }

    fn of(&self, kind: Kind) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(move |slot| slot.kind == kind)
    }

    fn missed(&self) -> u32 {
        self.slots.iter().map(|slot| slot.missed).sum()
    }
}

/// Runs a mode of `sampled.c` as it is and sampled; nobody may see a difference. The rings, eldest
/// first.
fn sampled(arguments: &[&str], may_speak: bool) -> Option<(Run, Vec<Ring>)> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let folder = folder();
    let program = compile(folder.path(), "sampled.c", &[])?;
    let samples = folder.path().join("samples");
    std::fs::create_dir(&samples).unwrap();
    let command = || {
        let mut command = Command::new(&program);
        command.args(arguments);
        command
    };
    let environment = [
        ("NEARPAGE_SAMPLES", samples.to_str().unwrap()),
        ("NEARPAGE_SAMPLE_PERIOD_NS", "1000000"),
        ("NEARPAGE_SAMPLE_SLOTS", "65536"),
    ];
    let run = if may_speak {
        observed(&mut command(), &environment)
    } else {
        same_behaviour(command, &environment)
    };
    assert!(run.output.status.success(), "{}", run.errors());
    let entries = std::fs::read_dir(&samples).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_ring = |path: &std::path::PathBuf| path.extension().is_some_and(|end| end == "ring");
    let mut rings: Vec<Ring> = paths
        .filter(is_ring)
        .map(|path| Ring::read(&path))
        .collect();
    rings.sort_by_key(|ring| ring.header.start_ns);
    for ring in &rings {
        assert_eq!(ring.no_timer, 0);
    }
    Some((run, rings))
}

#[test]
fn every_thread_is_sampled() {
    let Some((_, rings)) = sampled(&["threads"], false) else {
        return;
    };
    let [ring] = rings.as_slice() else {
        panic!("{}", rings.len())
    };
    // A thread that begins while another makes the ring may take samples before it is there.
    assert!(
        ring.dropped < ring.of(Kind::Sample).count() as u64,
        "{}",
        ring.dropped
    );
    assert_eq!(ring.of(Kind::ThreadBegins).count(), 3);
    assert_eq!(ring.of(Kind::ThreadEnds).count(), 3);
    let mut threads: Vec<_> = ring.of(Kind::Sample).map(|slot| slot.tid).collect();
    threads.sort_unstable();
    threads.dedup();
    assert_eq!(threads.len(), 4);
    for slot in ring.of(Kind::Sample) {
        assert!(slot.time_ns >= ring.header.start_ns);
        assert!(slot.instruction != 0 && slot.thread_pointer != 0);
        // The stack pointer.
        assert_ne!(slot.registers[7], 0);
    }
    let pointers = |tid| {
        let of = ring.of(Kind::Sample).filter(move |slot| slot.tid == tid);
        let mut pointers: Vec<_> = of.map(|slot| slot.thread_pointer).collect();
        pointers.dedup();
        pointers
    };
    assert!(threads.iter().all(|tid| pointers(*tid).len() == 1));
}

#[test]
fn samples_that_the_program_blocks_are_counted() {
    if let Some((_, rings)) = sampled(&["unblocked"], false) {
        assert!(rings[0].missed() > 0);
    }
    if let Some((_, rings)) = sampled(&["blocked"], false) {
        // The program works for 200 periods. A timer that is due before it has blocked its signals makes a sample.
        let samples = rings[0].of(Kind::Sample).count();
        assert!(samples < 20, "{samples}");
        assert!(rings[0].blocked_ns > 0);
    }
}

#[test]
fn programs_that_wait_for_all_signals_never_get_ours() {
    sampled(&["sigwait"], false);
}

#[test]
fn programs_that_reset_all_signals_go_on_being_sampled() {
    if let Some((_, rings)) = sampled(&["defaults"], false) {
        assert_eq!(rings[0].ended, 0);
        assert!(rings[0].of(Kind::Sample).count() > 1);
    }
}

#[test]
fn a_program_that_takes_the_signal_has_it() {
    let Some((run, rings)) = sampled(&["takes"], true) else {
        return;
    };
    assert_eq!(run.text(), "0\n1\ndone\n");
    assert_eq!(run.said().lines().count(), 1, "{}", run.said());
    assert!(run.said().contains("takes signal"), "{}", run.said());
    assert_eq!(rings[0].ended, 1);
}

#[test]
fn profilers_and_alternate_stacks_work() {
    if let Some((_, rings)) = sampled(&["profiler"], false) {
        assert!(rings[0].of(Kind::Sample).count() > 0);
    }
}

#[test]
fn sleeps_are_not_cut_short() {
    sampled(&["sleeps"], false);
}

#[test]
fn thousands_of_threads_have_a_timer_each() {
    if let Some((_, rings)) = sampled(&["many", "4096"], false) {
        assert_eq!(rings[0].of(Kind::ThreadBegins).count(), 4096);
    }
}

#[test]
fn forked_children_and_later_programs_have_rings_of_their_own() {
    let Some((_, rings)) = sampled(&["forks"], false) else {
        return;
    };
    let forked: Vec<bool> = rings.iter().map(|ring| ring.header.forked).collect();
    assert_eq!(forked, [false, true, true, true, false]);
    assert_eq!(rings[0].header.pid, rings[4].header.pid);
    for child in &rings[1..4] {
        assert_eq!(child.header.parent_pid, rings[0].header.pid);
        assert!(
            child
                .of(Kind::Sample)
                .all(|slot| slot.tid == child.header.pid)
        );
    }
}
