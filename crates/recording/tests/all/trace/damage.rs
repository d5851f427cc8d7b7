//! Recordings that are damaged, of a killed recorder, or no traces.

use super::*;

#[test]
fn damage_is_counted_and_named() {
    let scratch = tempfile::tempdir().unwrap();
    let opened = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let folder = scratch.path().join(name);
        let mut trace = two_threads();
        change(&mut trace.bytes);
        finish(record(&folder, &TraceOptions::default(), &[trace]));
        Recording::open(&folder).unwrap()
    };
    let whole = opened("whole", &|_| {});
    assert_eq!(whole.metadata.damaged_blocks, 0);
    assert!(whole.trace().is_ok());

    let cut = opened("cut", &|bytes| bytes.truncate(bytes.len() - 10));
    let error = cut.trace().unwrap_err();
    assert!(matches!(error, Error::CutShort(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("trace-100-1000.trace: cut short"),
        "{error}"
    );
    assert!(
        cut.metadata
            .notes
            .iter()
            .any(|note| note.contains("cut short"))
    );
    assert_eq!(cut.access_count(), 5);

    // If a byte of the second thread's frame is wrong, only this frame is left out.
    let flipped = opened("flipped", &|bytes| {
        let last = bytes.len() - 300;
        bytes[last] ^= 0x10;
    });
    assert!(flipped.metadata.damaged_blocks >= 1);
    assert!(flipped.access_count() < 5);
    assert_eq!(accesses(&flipped).len() as u64, flipped.access_count());

    let empty = opened("empty", &|bytes| bytes.truncate(20));
    assert!(
        empty
            .metadata
            .notes
            .iter()
            .any(|note| note.contains("cut short before its first frame"))
    );
    assert_eq!(empty.access_count(), 0);
}

#[test]
fn moves_and_untraced_threads_are_noted() {
    let scratch = tempfile::tempdir().unwrap();
    let notes = |name: &str, moved: &[u32], left_lockstep: u64, untraced: u64| {
        let folder = scratch.path().join(name);
        let moves = moved.iter().map(|&thread| TracedMove {
            thread,
            instructions: 20,
            cpu: CpuId(5),
        });
        let options = TraceOptions {
            moves: moves.collect(),
            ..TraceOptions::default()
        };
        let mut counters = [0; COUNTERS];
        counters[Counter::LeftLockstep as usize] = left_lockstep;
        counters[Counter::UntracedPrograms as usize] = untraced;
        let mut trace = two_threads();
        trace.events(0, 1_000, &[Event::Counters(counters)]);
        finish(record(&folder, &options, &[trace]));
        let mut notes = Recording::open(&folder).unwrap().metadata.notes;
        // Notes about the missing program, and about threads that never ended, do not matter here.
        notes.retain(|note| !note.contains("(program)") && !note.contains(PROGRAM));
        notes
    };
    // Thread 1 moved.
    assert_eq!(notes("nothing", &[1], 0, 0), [""; 0]);
    let once = [
        "1 time a thread slept where the tracer could not know: what depends on that differs from run to run",
        "1 program ran without being traced: set-user-ID, or not for x86-64",
        "moves of the schedule that were made: 1 of 2; the other threads were not there, or had ended",
    ];
    assert_eq!(notes("once", &[1, 9], 1, 1), once);
    let often = notes("often", &[1], 3, 2);
    assert!(often[0].starts_with("3 times a thread slept") && often[1].starts_with("2 programs"));
}

#[test]
fn samples_alone_are_no_trace() {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1-tables");
    let recording = Recording::open(&fixture).unwrap();
    let error = recording.trace().unwrap_err();
    assert!(error.to_string().contains("samples only"), "{error}");
}

#[test]
fn a_recording_that_was_killed_opens_from_its_trace() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("r");
    drop(record(&folder, &TraceOptions::default(), &[two_threads()]));
    let recording = Recording::open(&folder).unwrap();
    assert!(!recording.is_complete());
    assert_eq!(accesses(&recording).len(), 5);
    // The results are the same whether the log became tables or not.
    let finished = scratch.path().join("s");
    finish(record(
        &finished,
        &TraceOptions::default(),
        &[two_threads()],
    ));
    assert!(!finished.join("accesses.parquet").exists());
    assert_eq!(
        accesses(&Recording::open(&finished).unwrap()),
        accesses(&recording)
    );
}

/// A record of one of a few pages.
fn any_record() -> impl Strategy<Value = Record> {
    let address = (0u64..8, 0u64..4096).prop_map(|(page, byte)| HEAP + page * 4096 + byte);
    prop_oneof![
        6 => (address.clone(), 0u8..3, 0u8..7, any::<bool>(), any::<bool>()).prop_map(
            |(address, kind, served, tlb_miss, sampled)| {
                let Record::Reference(found) = reference(
                    address,
                    [ReferenceKind::Load, ReferenceKind::Store, ReferenceKind::Fetch][usize::from(kind)],
                    [
                        Served::L1, Served::L2, Served::L3, Served::Memory, Served::OtherCache, Served::Upgrade,
                        Served::WriteBack,
                    ][usize::from(served)],
                ) else {
                    unreachable!()
                };
                Record::Reference(nearpage_wire::trace::Reference { tlb_miss, sampled, ..found })
            }
        ),
        1 => address.prop_map(touch),
        1 => (1u64..9).prop_map(|sequence| Record::Signal { sequence, address: 0 }),
        1 => (0u64..9, 0u64..5000).prop_map(|(after, waited_instructions)| Record::Resume {
            after, address: 0, waited_instructions,
        }),
        1 => (0u64..9000).prop_map(|time_ns| Record::Clock { time_ns }),
        1 => (0u32..8).prop_map(|cpu| Record::Move { cpu }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every reference becomes a step and every miss an access, whatever the frames. A recording that is opened again
    /// has the same contents.
    #[test]
    fn all_records_of_a_trace_are_read(
        threads in prop::collection::vec(
            prop::collection::vec(prop::collection::vec((0u64..1000, any_record()), 0..20), 0..6), 1..4),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("r");
        let mut trace = TraceFile::of(100, 1_000);
        for (number, frames) in threads.iter().enumerate() {
            trace.events(0, 1_000, &[start(number as u32, 100 + number as u32, number as u32, 0, 0)]);
            let mut virtual_time = 0;
            for (position, frame) in frames.iter().enumerate() {
                trace.records(number as u32, virtual_time, 1_000 + 100 * position as u64, frame);
                virtual_time += frame.iter().map(|(since, record)| since + match record {
                    Record::Resume { waited_instructions, .. } => *waited_instructions,
                    _ => 0,
                }).sum::<u64>();
            }
        }
        trace.end();
        finish(record(&folder, &TraceOptions::default(), &[trace]));
        let recording = Recording::open(&folder).unwrap();
        let trace = recording.trace().unwrap();
        prop_assert_eq!(trace.threads().len(), threads.len());
        let mut misses = 0;
        for (position, thread) in trace.threads().iter().enumerate() {
            let frames = &threads[thread.thread.0 as usize];
            let written: Vec<_> = frames.iter().flatten().collect();
            let found = steps(&trace, position);
            let references = written.iter().filter_map(|(_, record)| match record {
                Record::Reference(reference) => Some(reference),
                _ => None,
            });
            let references: Vec<_> = references.collect();
            prop_assert_eq!(found.misses.len(), references.len());
            for (miss, reference) in found.misses.iter().zip(&references) {
                let place = trace.pages().place(miss.page);
                prop_assert_eq!(place.address + u64::from(miss.offset), reference.address);
                prop_assert_eq!((miss.served, miss.tlb_miss, miss.sampled), (reference.served, reference.tlb_miss, reference.sampled));
                misses += u64::from(matches!(reference.served, Served::Memory | Served::OtherCache | Served::Upgrade));
            }
            // No instruction is lost: those of steps and events add up.
            let instructions: u64 = written.iter().map(|(since, _)| since).sum();
            let of_misses: u64 = found.misses.iter().map(|miss| u64::from(miss.instructions)).sum();
            let of_trace_events: u64 = found.trace_events.iter().map(|(_, since, _)| u64::from(*since)).sum();
            prop_assert_eq!(of_misses + of_trace_events, instructions);
        }
        prop_assert_eq!(recording.access_count(), misses);
        prop_assert_eq!(accesses(&recording).len() as u64, misses);
        for (chunk, batch) in recording.accesses().enumerate() {
            let batch = batch.unwrap();
            prop_assert!(batch.time_ns.is_sorted());
            // Data kept from the chunk before and data read without it are equal.
            let mut alone = AccessBatch::default();
            recording.read_chunk(chunk, ColumnSelection::ALL, &mut alone).unwrap();
            prop_assert_eq!(batch, alone);
        }
    }

    /// Changed or missing bytes anywhere never cause a panic, and no data is invented.
    #[test]
    fn damage_never_panics(at in 0usize..900, bit in 0u32..8, keep in 0usize..900) {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("r");
        let mut trace = two_threads();
        let at = at % trace.bytes.len();
        trace.bytes[at] ^= 1 << bit;
        trace.bytes.truncate(keep.max(1));
        drop(record(&folder, &TraceOptions::default(), &[trace]));
        match Recording::open(&folder) {
            Ok(recording) => prop_assert!(accesses(&recording).len() <= 5),
            Err(error) => prop_assert!(matches!(error, Error::Version { .. }), "{}", error),
        }
    }
}
