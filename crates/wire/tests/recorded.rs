//! A trace of format version 1, which must stay readable. `fixtures/recorded.c` is the recorded program, and
//! `fixtures/recorded.setup` the tracer's setup.

use nearpage_wire::trace::{
    Counter, Decoder, Event, Events, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader,
    FrameHeader, FrameKind, Record, Reference, ReferenceKind, Served,
};
use nearpage_wire::tracer_setup::Setup;

const TRACE: &[u8] = include_bytes!("fixtures/recorded.trace");
const SETUP: &str = include_str!("fixtures/recorded.setup");

/// Pages and lines that the program stores to, in each of its two passes.
const PAGES: usize = 16;
const LINES: usize = PAGES * 64;

#[test]
fn a_trace_of_version_1_says_what_it_said() {
    let setup = Setup::parse(SETUP).expect("setup");
    let header = FileHeader::from_bytes(TRACE).expect("header");
    assert_eq!((header.page_bytes, header.line_bytes), (4096, 64));
    assert_eq!((header.quantum, header.parent_pid), (setup.quantum, 0));

    let (mut records, mut maps, mut ends, mut counters) = (vec![], vec![], vec![], None);
    let mut rest = &TRACE[FILE_HEADER_BYTES..];
    while !rest.is_empty() {
        let header = FrameHeader::from_bytes(rest).expect("frame");
        let (frame, behind) = rest.split_at(FRAME_HEADER_BYTES + header.payload_bytes as usize);
        rest = behind;
        assert!(FrameHeader::intact(frame));
        assert_eq!(header.thread, 0);
        let payload = &frame[FRAME_HEADER_BYTES..];
        match header.kind {
            FrameKind::Records => {
                records.extend(Decoder::new(payload).map(|record| record.expect("record")));
            }
            FrameKind::Events => {
                for event in Events::new(payload) {
                    match event.expect("event") {
                        Event::Map { path, .. } => maps.push(path),
                        Event::ThreadEnd { instructions, .. } => ends.push(instructions),
                        Event::Counters(values) => counters = Some(values),
                        _ => {}
                    }
                }
            }
        }
    }
    assert!(maps.contains(&&b"/tmp/recorded"[..]));
    let counters = counters.expect("counters");
    assert_eq!(ends, [counters[Counter::Instructions as usize]]);
    assert_eq!(counters[Counter::Records as usize], records.len() as u64);
    assert_eq!(counters[Counter::Stores as usize], 2 * LINES as u64);

    let marks = records.iter().filter_map(|(_, record)| match record {
        Record::Mark { begin } => Some(*begin),
        _ => None,
    });
    assert_eq!(marks.collect::<Vec<_>>(), [true, false]);
    let touches = records
        .iter()
        .filter(|(_, record)| matches!(record, Record::FirstTouch { .. }));
    // One page of code is touched, too.
    assert_eq!(touches.count(), PAGES + 1);

    let references = || {
        records.iter().filter_map(|(since, record)| match record {
            Record::Reference(reference) => Some((*since, *reference)),
            _ => None,
        })
    };
    let stores: Vec<(u64, Reference)> = references()
        .filter(|(_, reference)| {
            reference.kind == ReferenceKind::Store && reference.served == Served::Memory
        })
        .collect();
    assert_eq!(stores.len(), 2 * LINES);
    for (number, (_, store)) in stores.iter().enumerate() {
        let line = (number % LINES) as u64;
        assert_eq!(store.address, stores[0].1.address + 64 * line);
        assert_eq!(store.tlb_miss, line.is_multiple_of(64));
        assert_eq!(store.instruction >> 12, 0x401);
    }
    // All lines are written back except those in L2 at the end, of which code has two.
    let written_back = references().filter(|(_, reference)| reference.served == Served::WriteBack);
    let l2_lines = setup.l2.bytes as usize / 64;
    assert_eq!(written_back.count(), 2 * LINES - (l2_lines - 2));
    let instructions: u64 = records.iter().map(|(since, _)| since).sum();
    assert!(instructions <= ends[0]);
}
