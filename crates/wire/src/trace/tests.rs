extern crate std;

use std::vec;
use std::vec::Vec;

use super::*;

/// splitmix64: every seed is as good as any other.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ value >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Draws a number of any magnitude.
    fn word(&mut self) -> u64 {
        let bits = self.below(64);
        self.next() >> bits
    }

    fn record(&mut self) -> Record {
        match self.below(12) {
            0 => Record::FirstTouch {
                address: self.word(),
                instruction: self.word(),
            },
            1 => Record::Signal {
                sequence: self.word(),
                address: self.word(),
            },
            2 => Record::Resume {
                after: self.word(),
                address: self.word(),
                waited_instructions: self.word(),
            },
            3 => match self.below(5) {
                0 => Record::Clock {
                    time_ns: self.word(),
                },
                1 => Record::Move {
                    cpu: self.word() as u32,
                },
                4 => Record::Depends { on: self.word() },
                2 => Record::Mark {
                    begin: self.below(2) == 0,
                },
                _ => Record::Preempted {
                    waited_instructions: self.word(),
                },
            },
            kind => Record::Reference(Reference {
                address: if kind < 6 { self.next() } else { self.word() },
                instruction: if kind < 5 {
                    self.word()
                } else {
                    0x40_1000 + self.below(40)
                },
                kind: ReferenceKind::from_number(self.below(3) as u8).unwrap(),
                served: Served::from_number(self.below(7) as u8).unwrap(),
                tlb_miss: self.below(2) == 0,
                sampled: self.below(8) == 0,
                kernel: self.below(8) == 0,
                segment: Segment::from_number(self.below(8) as u8 * self.below(2) as u8).unwrap(),
            }),
        }
    }
}

fn encoded(records: &[(u64, Record)]) -> Vec<u8> {
    let mut encoder = Encoder::new();
    let mut bytes = Vec::new();
    for (since, record) in records {
        let mut room = [0; RECORD_BYTES_MAX];
        let length = encoder.encode(&mut room, *since, record);
        assert!((1..RECORD_BYTES_MAX).contains(&length));
        bytes.extend(&room[..length]);
    }
    bytes
}

#[test]
fn records_come_back_as_written() {
    for seed in 0..200 {
        let random = &mut Random(seed);
        let records: Vec<_> = (0..random.below(400))
            .map(|_| (random.word(), random.record()))
            .collect();
        let bytes = encoded(&records);
        let back: Result<Vec<_>, _> = Decoder::new(&bytes).collect();
        assert_eq!(back, Ok(records));
    }
}

#[test]
fn damage_ends_the_records_and_nothing_else() {
    for seed in 0..2000 {
        let random = &mut Random(seed);
        let bytes: Vec<u8> = (0..300).map(|_| random.next() as u8).collect();
        let records: Vec<_> = Decoder::new(&bytes).map_while(Result::ok).collect();
        let again: Result<Vec<_>, _> = Decoder::new(&encoded(&records)).collect();
        assert_eq!(again, Ok(records));
        let damaged = Decoder::new(&bytes).filter(Result::is_err).count();
        assert!(damaged <= 1);
        let damaged = Events::new(&bytes).filter(|event| event.is_err()).count();
        assert!(damaged <= 1);
    }
    let cut = encoded(&[(
        3,
        Record::Signal {
            sequence: 1,
            address: 1 << 40,
        },
    )]);
    let mut decoder = Decoder::new(&cut[..cut.len() - 1]);
    assert_eq!(decoder.next(), Some(Err(Damaged)));
    assert_eq!(decoder.next(), None);
}

#[test]
fn a_stream_with_a_gather_takes_less_than_five_bytes_a_record() {
    // Misses of triad and gather: three streams that miss once a line, one of them written back, and random reads of a
    // table.
    let random = &mut Random(7);
    let mut records = Vec::new();
    let mut miss = |since, instruction, address, kind, served| {
        records.push((
            since,
            Record::Reference(Reference {
                address,
                instruction,
                kind,
                served,
                tlb_miss: false,
                sampled: false,
                kernel: false,
                segment: Segment::User,
            }),
        ));
    };
    for element in 0..20_000 {
        let line = element % 8 == 0;
        if line {
            for (stream, at) in [(1_u64, 0x4011a0), (2, 0x4011a6)] {
                let address = (stream << 28) + element * 8;
                miss(3, at, address, ReferenceKind::Load, Served::Memory);
            }
        }
        let address = (5 << 28) + random.below(1 << 25) * 8;
        miss(10, 0x4011b0, address, ReferenceKind::Load, Served::Memory);
        if line {
            let address = (3 << 28) + element * 8;
            miss(2, 0x4011b8, address, ReferenceKind::Store, Served::Memory);
            let evicted = address - (1 << 19);
            miss(
                0,
                0x4011b8,
                evicted,
                ReferenceKind::Store,
                Served::WriteBack,
            );
        }
    }
    let bytes = encoded(&records).len() as f64 / records.len() as f64;
    assert!(bytes < 5.0, "{bytes} bytes a record");
}

#[test]
fn no_room_writes_nothing() {
    let mut room = [0; RECORD_BYTES_MAX - 1];
    let record = Record::Mark { begin: true };
    assert_eq!(Encoder::new().encode(&mut room, 1, &record), 0);
    assert_eq!(room, [0; RECORD_BYTES_MAX - 1]);
    assert_eq!(Event::Exec { virtual_time: 1 }.encode(&mut [0; 8]), 0);
}

#[test]
fn events_come_back_as_written() {
    let mut counters = [0; COUNTERS];
    counters[Counter::Forks as usize] = 9;
    let events = [
        Event::ThreadStart {
            thread: 1,
            tid: 2,
            cpu: 3,
            started_by: 4,
            virtual_time: 5,
            start_routine: 6,
        },
        Event::Map {
            protection: 1,
            flags: 2,
            virtual_time: 3,
            address: 4,
            length: 5,
            offset: 6,
            device: 7,
            inode: 8,
            path: b"/usr/lib/libc.so.6",
        },
        Event::Unmap {
            virtual_time: 1,
            address: 2,
            length: 3,
        },
        Event::Exec { virtual_time: 8 },
        Event::Fork {
            child: 7,
            virtual_time: 8,
        },
        Event::Counters(counters),
        Event::ThreadEnd {
            thread: 1,
            virtual_time: 2,
            instructions: 3,
        },
    ];
    let mut bytes = vec![];
    for event in &events {
        let mut room = [0; EVENT_BYTES_MAX];
        let length = event.encode(&mut room);
        bytes.extend(&room[..length]);
    }
    let back: Result<Vec<_>, _> = Events::new(&bytes).collect();
    assert_eq!(back.as_deref(), Ok(&events[..]));
    bytes.pop();
    assert_eq!(Events::new(&bytes).last(), Some(Err(Damaged)));
}

#[test]
fn an_unfinished_frame_is_finished_with_what_is_there() {
    let records = [
        (3, Record::Mark { begin: true }),
        (4, Record::Move { cpu: 1 }),
    ];
    let payload = encoded(&records);
    let header = FrameHeader {
        kind: FrameKind::Records,
        thread: 1,
        records: 2,
        payload_bytes: payload.len() as u32,
        virtual_time: 7,
        time_ns: 8,
    };
    // The bytes behind the counted payload must not matter.
    let mut file = vec![0x55; 200];
    header.begin(&mut file);
    file[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + payload.len()].copy_from_slice(&payload);
    let counts = u64::from_le_bytes(file[FRAME_COUNTS_OFFSET..][..8].try_into().unwrap());
    assert_eq!(counts, (payload.len() as u64) << 32 | 2);

    let mut sealed = [&[0; FRAME_HEADER_BYTES][..], &payload].concat();
    header.seal(&mut sealed);
    assert_eq!(finish_frame(&mut file.clone()), Some(&sealed[..]));
    assert!(FrameHeader::intact(&sealed));

    assert_eq!(finish_frame(&mut file[..FRAME_HEADER_BYTES + 1]), None);
    assert_eq!(finish_frame(&mut [0; 100]), None);
    let nothing = FrameHeader {
        records: 0,
        payload_bytes: 0,
        ..header
    };
    nothing.begin(&mut file);
    assert_eq!(finish_frame(&mut file), None);
}

#[test]
fn headers_come_back_and_notice_a_flipped_bit() {
    let file = FileHeader {
        pid: 1,
        page_bytes: 4096,
        line_bytes: 64,
        sample_period: 997,
        start_ns: 5,
        quantum: 10_000,
        parent_pid: 7,
        whole_system: false,
        dependences: false,
    };
    assert_eq!(FileHeader::from_bytes(&file.to_bytes()), Some(file));
    assert_eq!(FileHeader::from_bytes(&file.to_bytes()[..63]), None);

    let header = FrameHeader {
        kind: FrameKind::Events,
        thread: 3,
        records: 2,
        payload_bytes: 5,
        virtual_time: 1 << 40,
        time_ns: 1 << 50,
    };
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    frame.extend(b"12345");
    header.seal(&mut frame);
    assert_eq!(FrameHeader::from_bytes(&frame), Some(header));
    assert!(FrameHeader::intact(&frame));
    for bit in 32..8 * frame.len() {
        frame[bit / 8] ^= 1 << (bit % 8);
        assert!(!FrameHeader::intact(&frame));
        frame[bit / 8] ^= 1 << (bit % 8);
    }
}
