//! Arm's Statistical Profiling Extension: decodes packets in the AUX area into samples.
//!
//! The hardware writes a record of packets for each sampled operation. An end or a timestamp packet closes the record
//! (Arm Architecture Reference Manual, "Statistical Profiling Extension sample record specification"):
//!
//! ```text
//! 0x00                        padding           01ss0010  events        010010cc  operation type
//! 0x01                        end               01ss0011  data source   011001ii  context
//! 0x71                        timestamp         10110iii  address       10011iii  counter
//! 001000ee 10110iii/10011iii  the same two with a longer index
//! 001000aa 0x00               alignment: padding up to a multiple of 2^(a+1) bytes
//! ```
//!
//! A header is followed by 2^s bytes, where s is in bits 4 and 5 of the header (of its second byte, if it has two).
//! PERF_RECORD_AUX tells the position of new packets, and its trailer tells their thread, as the kernel ends a stretch
//! when it takes a thread off the CPU. Packets have no time that is comparable with other records, so an access gets
//! the time of its stretch's end.
//!
//! Data sources differ between CPU models. Levels come from the events alone, which the architecture defines.

mod packet;

use std::ops::Range;

use nearpage_perf_abi::data_src::{Operation as Access, level_number};
use nearpage_perf_abi::{AuxStretch, DataSource, Sideband, header};

use self::packet::{Packet, packet};
use super::sample::Precise;
use crate::record::{self, Identifiers, RecordBody};

/// One sampled operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Operation {
    /// Address of the instruction; 0 if the record has none.
    pub ip: u64,
    pub address: u64,
    /// Cycles from dispatch to completion.
    pub latency_cycles: u32,
    /// For a load, a store or an atomic operation: the payload of the operation type packet.
    pub memory: Option<u8>,
    pub events: u64,
}

/// Bits of the events packet.
mod event {
    pub const L1_ACCESS: u64 = 1 << 2;
    pub const L1_REFILL: u64 = 1 << 3;
    pub const TLB_ACCESS: u64 = 1 << 4;
    pub const TLB_WALK: u64 = 1 << 5;
    pub const LAST_LEVEL_ACCESS: u64 = 1 << 8;
    pub const LAST_LEVEL_MISS: u64 = 1 << 9;
    pub const REMOTE: u64 = 1 << 10;
    /// Newer cores only, from this bit on.
    pub const L2_ACCESS: u64 = 1 << 19;
    pub const L2_MISS: u64 = 1 << 20;
    /// The line was already being fetched.
    pub const RECENTLY_FETCHED: u64 = 1 << 22;
}

impl Operation {
    /// `data_src` of a load or store.
    fn data_src(&self, operation: u8) -> DataSource {
        use level_number::{L1, L2, L3, LINE_FILL_BUFFER, RAM};
        let has = |bits| self.events & bits != 0;
        let remote = has(event::REMOTE);
        let number = if has(event::LAST_LEVEL_MISS) {
            RAM
        } else if has(event::LAST_LEVEL_ACCESS) {
            L3
        } else if remote {
            RAM
        } else if has(event::L1_ACCESS) && !has(event::L1_REFILL) {
            L1
        } else if has(event::RECENTLY_FETCHED) {
            LINE_FILL_BUFFER
        } else if has(event::L2_ACCESS) && !has(event::L2_MISS) {
            L2
        } else {
            0
        };
        let access = match operation & 1 {
            0 => Access::Load,
            _ => Access::Store,
        };
        let source = DataSource::new(access)
            .served_by(number)
            .on_other_node(remote);
        match has(event::TLB_ACCESS | event::TLB_WALK) {
            true => source.with_tlb_miss(has(event::TLB_WALK)),
            false => source,
        }
    }
}

/// Passes the operations in `bytes` to `each`, and returns the number of bytes that were no packets. After such a
/// byte, the remainder of the record is skipped, and so are incomplete records.
pub(crate) fn decode(bytes: &[u8], mut each: impl FnMut(&Operation)) -> u64 {
    let mut operation = Operation::default();
    let (mut at, mut bad, mut lost) = (0, 0, false);
    while at < bytes.len() {
        let Some((packet, length)) = packet(&bytes[at..], at) else {
            (at, bad, lost) = (at + 1, bad + 1, true);
            continue;
        };
        match packet {
            Packet::End => {
                if !std::mem::take(&mut lost) && operation != Operation::default() {
                    each(&operation);
                }
                operation = Operation::default();
            }
            Packet::Instruction(ip) => operation.ip = ip,
            Packet::DataAddress(address) => operation.address = address,
            Packet::Latency(cycles) => operation.latency_cycles = cycles,
            Packet::Memory(kind) => operation.memory = Some(kind),
            Packet::Events(events) => operation.events = events,
            Packet::Other => {}
        }
        at += length;
    }
    bad
}

/// The complete records in `bytes`, without those whose instruction address `moved` does not know. Addresses are
/// replaced by those from `moved`; contexts, times and physical addresses are removed.
pub(crate) fn rebased(bytes: &[u8], moved: impl Fn(u64) -> Option<u64>) -> Vec<Vec<u8>> {
    let (mut found, mut record, mut known) = (Vec::new(), Vec::new(), false);
    let mut at = 0;
    while at < bytes.len() {
        let Some((packet, length)) = packet(&bytes[at..], at) else {
            (at, record, known) = (at + 1, Vec::new(), false);
            continue;
        };
        let mut address = |header: u8, address: Option<u64>| {
            record.push(header);
            record.extend(address.unwrap_or(0).to_le_bytes());
        };
        match packet {
            Packet::End => {
                record.push(0x01);
                let record = std::mem::take(&mut record);
                found.extend(std::mem::take(&mut known).then_some(record));
            }
            Packet::Instruction(ip) => {
                known = moved(ip).is_some();
                address(0xb0, moved(ip));
            }
            Packet::DataAddress(data) => address(0xb2, moved(data)),
            // Keeps the data source packet, too.
            Packet::Other if bytes[at] & 0xcf != 0x43 => {}
            _ => record.extend_from_slice(&bytes[at..at + length]),
        }
        at += length;
    }
    found
}

/// Appends, for each PERF_RECORD_AUX among the records at `new` in `records`, its operations as precise samples of the
/// event `id`. `aux` reads a stretch's bytes. Returns the number of bytes that were no packets.
pub(crate) fn append_samples(
    records: &mut Vec<u8>,
    new: Range<usize>,
    id: u64,
    period: u64,
    mut aux: impl FnMut(AuxStretch, &mut Vec<u8>),
) -> u64 {
    let identifiers = Identifiers::default();
    let (mut at, mut bad, mut packets) = (new.start, 0, Vec::new());
    while at < new.end {
        // The reader of the records counts malformed ones.
        let Ok(length) = header::record_bytes(&records[at..new.end]) else {
            break;
        };
        if let Ok(record) = record::parse(&records[at..at + length], &identifiers)
            && let RecordBody::Sideband(Sideband::Aux(stretch)) = record.body
        {
            let origin = record.origin;
            packets.clear();
            aux(stretch, &mut packets);
            bad += decode(&packets, |operation| {
                let Some(memory) = operation.memory else {
                    return;
                };
                let sample = Precise {
                    id,
                    ip: operation.ip,
                    pid: origin.pid,
                    tid: origin.tid,
                    time_ns: origin.time_ns,
                    address: operation.address,
                    cpu: origin.cpu.0,
                    period,
                    latency_cycles: operation.latency_cycles,
                    data_src: operation.data_src(memory).0,
                };
                header::append_user_sample(records, &sample.body());
            });
        }
        at += length;
    }
    bad
}

#[cfg(test)]
pub(crate) mod tests {
    use nearpage_machine::CpuId;
    use nearpage_recording::{AccessKind, Level};
    use proptest::prelude::*;

    use super::*;
    use crate::pmu::sample::{Form, Observation};

    const ADDRESS: u64 = 0xffff_8012_3456;

    fn packets(packets: &[(&[u8], u64, usize)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (header, payload, length) in packets {
            bytes.extend(*header);
            bytes.extend(&payload.to_le_bytes()[..*length]);
        }
        bytes
    }

    /// A record in the layout of a Neoverse core: 64 bytes, padded.
    pub(crate) fn load(events: u64, latency: u64, store: u64) -> Vec<u8> {
        let mut bytes = packets(&[
            // Program counter (EL0, non-secure), context, operation, counters, address and source.
            (&[0xb0], 0x8000_0000_0040_1234, 8),
            (&[0x65], 77, 4),
            (&[0x49], store, 1),
            (&[0x52], events, 2),
            (&[0x99], 20, 2),
            (&[0x98], latency, 2),
            (&[0xb2], 0xb4 << 56 | ADDRESS, 8),
            (&[0x9a], 3, 2),
            (&[0x43], 0x0d, 1),
            (&[0x71], 123_456_789, 8),
        ]);
        bytes.resize(64, 0);
        bytes
    }

    fn operations(bytes: &[u8]) -> (Vec<Operation>, u64) {
        let mut operations = Vec::new();
        let bad = decode(bytes, |operation| operations.push(*operation));
        (operations, bad)
    }

    #[test]
    fn reads_a_record() {
        let (read, bad) = operations(&load(0x40e, 350, 1));
        let expected = Operation {
            ip: 0x40_1234,
            address: ADDRESS,
            latency_cycles: 350,
            memory: Some(1),
            events: 0x40e,
        };
        assert_eq!((read, bad), (vec![expected], 0));
    }

    #[test]
    fn rebased_records_tell_of_the_loop_alone() {
        let mut bytes = load(0x40e, 350, 1);
        // A record of other code, and a record that is cut off.
        let mut other = load(0x40e, 20, 0);
        other[1] = 0xff;
        bytes.extend(other);
        bytes.extend(&load(0x40e, 30, 0)[..20]);
        let moved = |address| match address {
            0x40_1234 => Some(0x1000),
            ADDRESS => Some(0x2000),
            _ => None,
        };
        let records = rebased(&bytes, moved);
        assert_eq!(records.len(), 1);
        let (read, bad) = operations(&records[0]);
        let expected = Operation {
            ip: 0x1000,
            address: 0x2000,
            latency_cycles: 350,
            memory: Some(1),
            events: 0x40e,
        };
        assert_eq!((read, bad), (vec![expected], 0));
        // Neither the context nor the time is kept.
        let has = |pattern: &[u8]| {
            records[0]
                .windows(pattern.len())
                .any(|window| window == pattern)
        };
        assert!(!has(&77u32.to_le_bytes()) && !has(&123_456_789u64.to_le_bytes()));
        assert!(has(&[0x43, 0x0d]));
    }

    #[test]
    fn long_headers_alignment_and_end_are_understood() {
        let mut bytes = vec![0x00, 0x23, 0x00];
        // Alignment up to the next multiple of 16.
        bytes.resize(16, 0xff);
        // The long form of index 2 is the data address; index 10 is not used.
        bytes.extend(packets(&[
            (&[0x20, 0xb2], 0x1000, 8),
            (&[0x21, 0xb2], 0x2000, 8),
            (&[0x20, 0x98], 9, 2),
            (&[0x49], 0, 1),
            (&[0x01], 0, 0),
        ]));
        let (read, bad) = operations(&bytes);
        assert_eq!(bad, 0);
        assert_eq!(
            read,
            [Operation {
                address: 0x1000,
                latency_cycles: 9,
                memory: Some(0),
                ..Operation::default()
            }]
        );
    }

    #[test]
    fn finds_back_after_damage() {
        let good = load(0x0e, 40, 0);
        let (one, _) = operations(&good);
        // A record without its first bytes, then two whole records.
        let cut = [&[0xff; 5], &good[5..], &good, &good].concat();
        let (read, bad) = operations(&cut);
        assert!(bad >= 5);
        assert_eq!(read, [one[0], one[0]]);
        // A record that is cut off is skipped.
        assert_eq!(operations(&good[..20]).0, []);
    }

    #[test]
    fn levels_follow_from_the_events() {
        for (events, expected) in [
            (event::L1_ACCESS, Level::L1),
            (event::L1_ACCESS | event::L1_REFILL, Level::Unknown),
            (event::L1_REFILL | event::LAST_LEVEL_ACCESS, Level::L3),
            (
                event::LAST_LEVEL_ACCESS | event::LAST_LEVEL_MISS,
                Level::LocalMemory,
            ),
            (event::LAST_LEVEL_MISS | event::REMOTE, Level::RemoteMemory),
            (event::LAST_LEVEL_ACCESS | event::REMOTE, Level::RemoteCache),
            (event::L1_REFILL | event::REMOTE, Level::RemoteMemory),
            (
                event::L1_ACCESS | event::L1_REFILL | event::L2_ACCESS,
                Level::L2,
            ),
            (
                event::L1_REFILL | event::L2_ACCESS | event::L2_MISS,
                Level::Unknown,
            ),
            (
                event::L1_REFILL | event::RECENTLY_FETCHED,
                Level::LineFillBuffer,
            ),
            (event::L1_ACCESS | event::RECENTLY_FETCHED, Level::L1),
            (0, Level::Unknown),
        ] {
            let operation = Operation {
                events,
                ..Operation::default()
            };
            assert_eq!(
                Level::from(operation.data_src(0).level()),
                expected,
                "{events:#x}"
            );
        }
    }

    #[test]
    fn stretches_become_samples_of_their_thread() {
        let aux_area = [vec![0; 64], load(0x0e, 40, 0), load(0x30e, 300, 1)].concat();
        let origin = record::Origin {
            cpu: CpuId(3),
            ..record::Origin::new(12, 13, 99)
        };
        let mut records = Vec::new();
        for (offset, bytes, incomplete) in [(64, 128, false), (0, 0, true)] {
            let stretch = AuxStretch {
                offset,
                bytes,
                incomplete,
            };
            origin.append(Sideband::Aux(stretch), &mut records);
        }
        let new = 0..records.len();
        let end = new.end;
        let mut stretches = Vec::new();
        let bad = append_samples(&mut records, new, 7, 4096, |stretch, out| {
            stretches.push(stretch);
            let begin = stretch.offset as usize;
            out.extend_from_slice(&aux_area[begin..begin + stretch.bytes as usize]);
        });
        assert_eq!((bad, stretches.len()), (0, 2));
        assert!(stretches[1].incomplete && !stretches[0].incomplete);
        let identifiers = Identifiers {
            memory: vec![(7, Form::Precise(AccessKind::Load))],
            ..Identifiers::default()
        };
        let mut seen = Vec::new();
        let mut rest = &records[end..];
        while !rest.is_empty() {
            let (one, later) = rest.split_at(header::record_bytes(rest).unwrap());
            rest = later;
            let read = record::parse(one, &identifiers).unwrap();
            assert_eq!((read.origin.pid, read.origin.tid), (12, 13));
            assert_eq!((read.origin.time_ns, read.origin.cpu.0), (99, 3));
            let RecordBody::Memory(sample) = read.body else {
                panic!("{read:?}")
            };
            assert!(sample.user && sample.period == 4096);
            seen.push(sample.observation);
        }
        let access = |kind, level, latency_cycles| Observation::Access {
            ip: 0x40_1234,
            address: ADDRESS,
            kind,
            level,
            latency_cycles,
        };
        assert_eq!(
            seen,
            [
                access(AccessKind::Load, Level::Unknown, 40),
                access(AccessKind::Store, Level::LocalMemory, 300),
            ]
        );
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut count = 0;
            let bad = decode(&bytes, |_| count += 1);
            prop_assert!(bad as usize + count <= bytes.len());
        }

        #[test]
        fn whole_records_survive_what_comes_before(junk in prop::collection::vec(any::<u8>(), 0..100)) {
            let good = load(0x0e, 40, 0);
            let (one, _) = operations(&good);
            // Three records: junk may swallow the beginning of the first as a payload, and its remaining packets may
            // be misread until its end.
            let (read, _) = operations(&[&junk[..], &good, &good, &good].concat());
            prop_assert_eq!(read.last(), Some(&one[0]));
        }
    }
}
