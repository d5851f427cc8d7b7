//! Notes of stores in a trace collapse copies and have no other effect.

use proptest::prelude::*;

use super::properties::traces;
use super::*;

/// A note of a store to `page`.
fn note(miss: Miss, instructions: u32, page: PageIndex) -> Miss {
    Miss {
        instructions,
        page,
        kind: AccessKind::Store,
        served: Served::L1,
        tlb_miss: false,
        sampled: false,
        ..miss
    }
}

/// The trace without notes, and with a note before each miss: a store to the page of the thread's miss before.
fn without_and_with_notes(mut without: MemoryTrace) -> (MemoryTrace, MemoryTrace) {
    let mut with = without.clone();
    for (plain, noted) in without.threads.iter_mut().zip(&mut with.threads) {
        let mut page = None;
        for (plain, noted) in plain.1.iter_mut().zip(&mut noted.1) {
            plain
                .misses
                .iter_mut()
                .filter(|miss| miss.is_store_note())
                .for_each(|miss| miss.sampled = true);
            let mut places = Vec::new();
            noted.misses.clear();
            for miss in &plain.misses {
                places.push(noted.misses.len());
                let half = miss.instructions / 2;
                if let Some(page) = page.replace(miss.page) {
                    noted.misses.push(note(*miss, half, page));
                    noted.misses.push(Miss {
                        instructions: miss.instructions - half,
                        ..*miss
                    });
                } else {
                    noted.misses.push(*miss);
                }
            }
            places.push(noted.misses.len());
            noted
                .trace_events
                .iter_mut()
                .for_each(|what| what.0 = places[what.0]);
        }
    }
    (without, with)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Without copies, notes change no times, misses, samples or moves. (This excludes policies with epochs, which
    /// decide at the first step after a time, because notes are steps.)
    #[test]
    fn notes_of_stores_change_nothing_where_no_page_is_copied(trace in traces()) {
        let (without, with) = without_and_with_notes(trace);
        let machine = preset("flash-8").expect("preset");
        let low = [("trigger", "8"), ("hold", "2"), ("migrate", "2")];
        let mut jobs = vec![job("first-touch", &[]), job("round-robin", &[]), job("post-facto", &[])];
        for source in ["cache", "tlb", "sampled-cache", "loads", "clock"] {
            jobs.push(job("migrate", &[&low[..], &[("source", source)]].concat()));
        }
        // Samples before any decision.
        let settings = [("early_samples", "1"), ("sample_cost_cycles", "7"), ("fast_cycles", "500"),
            ("slow_cycles", "500")];
        jobs.push(job("carrefour", &settings));
        let plain = simulate(&without, &machine, &jobs, 1).expect("simulates");
        let noted = simulate(&with, &machine, &jobs, 1).expect("simulates");
        for (plain, noted) in plain.iter().zip(&noted) {
            prop_assert_eq!(plain, noted, "{}", plain.policy);
        }
    }
}

#[test]
fn a_note_of_a_store_takes_copies_away_and_costs_no_more_than_that() {
    let machine = machine(4, CLOCK);
    // Nodes 0 and 1 load a page until both have a copy; then node 1 makes stores that hit in its cache.
    let outcome = |notes: usize| {
        let mut misses = vec![load(10, 0); 400];
        misses.extend(vec![note(load(0, 0), 100, PageIndex(0)); notes]);
        misses.extend(vec![load(10, 0); 10]);
        let first = batch(
            vec![load(10, 0); 100],
            vec![(100, 0, TraceEvent::Signal { sequence: 1 })],
        );
        let trace = trace(
            1,
            vec![
                thread(0, 0, 0, first),
                thread(1, 4, 1, batch(misses, vec![])),
            ],
        );
        one(&trace, &machine, job("replicate", &[("move_ns", "3000")]))
    };
    let (without, with) = (outcome(0), outcome(3));
    assert_eq!((without.replicated, without.collapsed), (1, 0));
    assert_eq!(
        (with.replicated, with.collapsed),
        (1, 1),
        "one takes the copy, the others find none"
    );
    assert_eq!(with.misses, without.misses);
    assert_eq!(with.split.move_ns, without.split.move_ns + 3000.0);
    assert_eq!(with.split.compute_ns, without.split.compute_ns + 300.0);
}
