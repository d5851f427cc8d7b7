//! All references of a program through plain caches: the same misses.

use std::collections::BTreeMap;

use nearpage_wire::trace::{Record, Reference, ReferenceKind, Segment, Served};
use nearpage_wire::tracer_setup::Setup;

use super::SMALL;
use super::case::{Case, Entry, Trace, serial_log, succeeded};
use crate::plain;

/// Counts all references of two threads again, plainly: the same misses.
fn recounted(name: &str, setup: &str) -> (Trace, Vec<Entry>) {
    let case = Case::new(name, "sharing", &[]);
    succeeded(&case.run(&[], setup, &["2000"]));
    let trace = case.trace();
    let setup = Setup::parse(setup).expect("it is right");
    let mut machine = plain::Machine::new(&setup);
    let mut expected: BTreeMap<u32, Vec<Reference>> = BTreeMap::new();
    let log = serial_log(&case);
    for Entry {
        step,
        cpu,
        thread,
        words: [address, instruction],
    } in &log
    {
        let kind = match step {
            0 => ReferenceKind::Load,
            1 => ReferenceKind::Store,
            2 => ReferenceKind::Fetch,
            _ => {
                machine.flush(*cpu, &(*address..*instruction));
                continue;
            }
        };
        let fetch = kind == ReferenceKind::Fetch;
        let tlb_miss = machine.tlb_misses(*cpu, address / 4096, fetch);
        let outcome = machine.reference(*cpu, address / 64, kind);
        let stream = expected.entry(*thread).or_default();
        let reference = Reference {
            address: *address,
            instruction: *instruction,
            kind,
            served: outcome.served,
            tlb_miss,
            sampled: false,
            kernel: false,
            segment: Segment::User,
        };
        if tlb_miss || outcome.served != Served::L1 {
            stream.push(reference);
        }
        stream.extend(outcome.write_backs.iter().map(|line| Reference {
            address: line * 64,
            kind: ReferenceKind::Store,
            served: Served::WriteBack,
            tlb_miss: false,
            ..reference
        }));
    }
    assert!(log.len() > 100_000, "{} entries", log.len());
    assert_eq!(expected.len(), 2);
    for (thread, expected) in expected {
        let references = trace.threads[&thread]
            .iter()
            .filter_map(|record| match record {
                Record::Reference(reference) => Some(*reference),
                _ => None,
            });
        let references: Vec<Reference> = references.collect();
        let differ = references
            .iter()
            .zip(&expected)
            .position(|(one, other)| one != other);
        assert_eq!(
            differ.map(|at| (references[at], expected[at])),
            None,
            "thread {thread}, at {differ:?}"
        );
        assert_eq!(references.len(), expected.len());
    }
    (trace, log)
}

#[test]
fn a_plain_recount_of_all_references_gives_the_same_misses() {
    recounted("recount", SMALL);
}

#[test]
fn threads_that_move_use_the_caches_of_where_they_are() {
    let (still, _) = recounted("moves", SMALL);
    let began = still.starts.iter().find(|(thread, _)| *thread == 1);
    let at = |after: u64| began.expect("two threads").1 + after;
    let moves = format!("1 {} 1 1 {} 0 0 {} 1", at(40_000), at(5_000), at(20_000));
    let (trace, log) = recounted("moves", &format!("{SMALL}thread_moves {moves}\n"));
    for (thread, expected) in [(0, vec![1]), (1, vec![0, 1])] {
        let moves = trace.threads[&thread]
            .iter()
            .filter_map(|record| match record {
                Record::Move { cpu } => Some(*cpu),
                _ => None,
            });
        assert_eq!(moves.collect::<Vec<u32>>(), expected, "thread {thread}");
        let mut cpus: Vec<usize> = log
            .iter()
            .filter(|entry| entry.thread == thread && entry.step <= 2)
            .map(|entry| entry.cpu)
            .collect();
        cpus.dedup();
        let all: Vec<usize> = std::iter::once(thread)
            .chain(expected)
            .map(|cpu| cpu as usize)
            .collect();
        assert_eq!(cpus, all, "thread {thread}");
    }
}
