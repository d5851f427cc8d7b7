//! Counters and sizes of traces: `trace_summary FILE…`, a `name value` a line for each.

use std::collections::BTreeMap;
use std::{env, fs, process};

use nearpage_wire::trace::{
    COUNTERS, Decoder, Event, Events, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader,
    FrameHeader, FrameKind, Record, Served,
};

const NAMES: [&str; COUNTERS] = [
    "instructions",
    "loads",
    "stores",
    "fetched_lines",
    "data_l1_misses",
    "fetch_l1_misses",
    "l2_hits",
    "l3_hits",
    "memory",
    "other_cache",
    "upgrades",
    "write_backs",
    "invalidations",
    "data_tlb_misses",
    "fetch_tlb_misses",
    "second_tlb_hits",
    "first_touches",
    "samples",
    "records",
    "records_dropped",
    "left_lockstep",
    "spun_quanta",
    "execs",
    "forks",
    "untraced_programs",
    "kernel_instructions",
    "kernel_loads",
    "kernel_stores",
    "device_references",
];

fn main() {
    for path in env::args().skip(1) {
        if let Err(what) = summary(&path) {
            eprintln!("{path}: {what}");
            process::exit(1);
        }
    }
}

fn summary(path: &str) -> Result<(), String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let header = FileHeader::from_bytes(&bytes).ok_or("no trace")?;
    println!("pid {}", header.pid);
    let mut at = FILE_HEADER_BYTES;
    let mut payload_bytes = 0;
    let mut frames = 0;
    let mut tally = BTreeMap::new();
    while at < bytes.len() {
        let frame_header = FrameHeader::from_bytes(&bytes[at..]).ok_or("damaged frame")?;
        let end = at + FRAME_HEADER_BYTES + frame_header.payload_bytes as usize;
        let frame = bytes.get(at..end).ok_or("frame cut short")?;
        if !FrameHeader::intact(frame) {
            return Err(format!("frame at {at} is damaged"));
        }
        let payload = &frame[FRAME_HEADER_BYTES..];
        frames += 1;
        match frame_header.kind {
            FrameKind::Records => {
                payload_bytes += frame.len();
                let mut count = 0;
                for record in Decoder::new(payload) {
                    let (_, record) = record.map_err(|_| "damaged record")?;
                    count += 1;
                    let what = match record {
                        Record::Reference(reference) if reference.served == Served::L1 => {
                            match reference.tlb_miss || reference.sampled {
                                true => "of_tlb_or_sample",
                                false => "of_store",
                            }
                        }
                        Record::Reference(_) => "misses",
                        Record::FirstTouch { .. } => "first_touch",
                        Record::Signal { .. } => "signal",
                        Record::Resume { after: 0, .. } => "resume_by_others",
                        Record::Resume { .. } => "resume",
                        Record::Clock { .. } => "clock",
                        Record::Move { .. } => "move",
                        Record::Mark { .. } => "mark",
                        Record::Preempted { .. } => "preempted",
                        Record::Depends { .. } => "depends",
                    };
                    *tally.entry(what).or_insert(0_u64) += 1;
                }
                if count != frame_header.records {
                    return Err(format!("{count} records, not {}", frame_header.records));
                }
            }
            FrameKind::Events => {
                for event in Events::new(payload) {
                    match event.map_err(|_| "damaged event")? {
                        Event::Counters(counters) => {
                            for (name, counter) in NAMES.iter().zip(counters) {
                                println!("{name} {counter}");
                            }
                        }
                        event if env::var_os("EVENTS").is_some() => println!("# {event:?}"),
                        _ => {}
                    }
                }
            }
        }
        at = end;
    }
    println!("frames {frames}");
    println!("stream_bytes {payload_bytes}");
    for (what, count) in &tally {
        println!("record_{what} {count}");
    }
    let misses = tally.get("misses").copied().unwrap_or(0);
    println!("bytes_per_miss {:.2}", payload_bytes as f64 / misses as f64);
    Ok(())
}
