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
                Record::Reference(reference) if !is_store_note(reference) => Some(*reference),
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

/// It says no more than that its page was stored to.
fn is_store_note(reference: &Reference) -> bool {
    (reference.kind, reference.served) == (ReferenceKind::Store, Served::L1)
        && !reference.tlb_miss
        && !reference.sampled
}

/// Every store to a page, hit or miss, comes at most 200,000 instructions after a record of one: two of the
/// intervals after which the tracer writes the first down again.
#[test]
fn stores_that_hit_are_noted_once_a_page_and_interval() {
    let case = Case::new("stores", "stores", &[]);
    let setup = SMALL.replace("keep_hits 1", "keep_hits 0");
    succeeded(&case.run(&[], &setup, &["40"]));
    let trace = case.trace();
    let mut at = 0;
    let records = trace.timed[&0].iter().filter_map(|(since, record)| {
        at += since;
        match record {
            Record::Reference(reference) => Some((at, *reference)),
            _ => None,
        }
    });
    let mut records = records
        .filter(|record| record.1.served != Served::WriteBack)
        .peekable();
    let (mut latest, mut notes, mut stores) = (BTreeMap::new(), BTreeMap::new(), 0);
    let mut now = 0;
    for Entry {
        step,
        thread,
        words: [address, instruction],
        ..
    } in serial_log(&case)
    {
        if step > 2 || thread != 0 {
            continue;
        }
        let page = address / 4096;
        let is_recorded = |record: &(u64, Reference)| {
            (record.1.address, record.1.instruction, record.1.kind as u8)
                == (address, instruction, step)
        };
        if let Some((time, reference)) = records.next_if(is_recorded) {
            now = time;
            if step == 1 {
                latest.insert(page, time);
                *notes.entry(page).or_insert(0) += u64::from(is_store_note(&reference));
            }
        }
        if step == 1 {
            stores += 1;
            let since = latest.get(&page).map(|latest| now - latest);
            assert!(
                since.is_some_and(|since| since <= 200_000),
                "{page:#x}: {since:?}"
            );
        }
    }
    assert_eq!(
        records.next(),
        None,
        "every record is of a reference in the log"
    );
    let most = notes.values().max().copied().unwrap_or(0);
    let intervals = now / 100_000;
    assert!(
        (intervals / 2..=intervals + 1).contains(&most),
        "{most} in {intervals}"
    );
    let notes: u64 = notes.values().sum();
    assert!(stores > 100 * notes, "{notes} notes of {stores} stores");
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
