//! References that the line and the page used last may settle, against the same looked at closely:
//! with `serial 1` all are.

use std::fs;
use std::path::Path;

use nearpage_tracer::process::Process;
use nearpage_tracer::qemu::AccessKind;
use nearpage_tracer::thread::{Code, Run, Thread};
use nearpage_wire::trace::{
    COUNTERS, Decoder, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, Record,
};
use nearpage_wire::tracer_setup::Setup;

/// Counters, and records with the instructions since the one before.
type Outcome = ([u64; COUNTERS], Vec<(u64, Record)>);

fn run(name: &str, setup: &str, seed: u64) -> Outcome {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("target folder");
    let setup = Setup::parse(setup.to_owned().leak()).expect("it is right");
    let process = Process::new(setup, &folder, 0).expect("own folder");
    let process: &'static Process = Box::leak(Box::new(process));
    let birth = process.take_new_thread();
    let mut thread = Thread::new(process, &birth).expect("CPU");

    let mut random = seed;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut streams = [0x1_0000_u64, 0x2_0040, 0x3_0080, 0x4_0000];
    for step in 0..8000 {
        let code = 0x40_0000 + next(3) * 0x1240;
        thread.block(Run::new(code, 9, 1 + next(3)));
        for number in 0..1 + next(8) {
            let kind = AccessKind::LOAD_AND_STORE[next(2) as usize];
            let address = match next(4) {
                // Words in turn, the same few lines, and anywhere.
                0 | 1 => {
                    let stream = &mut streams[next(4) as usize];
                    *stream += 8;
                    *stream
                }
                2 => 0x5_0000 + next(300) * 8,
                _ => 0x6_0000 + next(1 << 15) * 8,
            };
            thread.access(address, Code::new(code, number as usize, false), kind);
        }
        if step % 1000 == 999 {
            streams = streams.map(|stream| stream - 0x200);
        }
    }
    thread.flush();
    let counters = thread.counters;
    let file = fs::read_dir(&folder).expect("own folder").find_map(|file| {
        let path = file.expect("file").path();
        path.extension()
            .is_some_and(|kind| kind == "trace")
            .then_some(path)
    });
    let bytes = fs::read(file.expect("a trace")).expect("own file");
    let mut records = vec![];
    let mut at = FILE_HEADER_BYTES;
    while at < bytes.len() {
        let header = FrameHeader::from_bytes(&bytes[at..]).expect("a frame");
        let payload = at + FRAME_HEADER_BYTES;
        at = payload + header.payload_bytes as usize;
        if header.kind == FrameKind::Records {
            records.extend(Decoder::new(&bytes[payload..at]).map(|record| record.expect("whole")));
        }
    }
    fs::remove_dir_all(&folder).expect("own folder");
    (counters, records)
}

#[test]
fn the_fast_path_agrees_with_the_slow_one() {
    let machines = [
        "l1_fetch 1024 2\nl1_data 1024 2\nl2 4096 2\ntlb 8 8 0",
        "l1_fetch 512 1\nl1_data 2048 4\nl2 4096 4\nl3 12288 6\ntlb 8 2 0\ntlb_fetch 4 2 0\ntlb_second 16 4 0",
        "l1_fetch 32768 2\nl1_data 32768 2\nl2 65536 2\ntlb 64 64 8",
        "l1_fetch 32768 8\nl1_data 49152 12\nl2 49152 12\nl3 98304 12\ntlb 16 4 0",
    ];
    let mut seen = 0;
    for (number, machine) in machines.iter().enumerate() {
        for period in [0, 97] {
            let setup = |serial| {
                format!(
                    "nearpage tracer setup 1\npage_bytes 4096\nline_bytes 64\n{machine}\ncpu_nodes 0 0\n\
                     thread_cpus 0\nquantum 10000\nsample_period {period}\nserial {serial}\nkeep_hits 1\n"
                )
            };
            let seed = 0x9e37_79b9_7f4a_7c15 + number as u64;
            let name = format!("batches-{number}-{period}");
            let (counters, records) = run(&name, &setup(0), seed);
            let (one_by_one, expected) = run(&name, &setup(1), seed);
            assert_eq!(counters, one_by_one, "{machine}, samples every {period}");
            let differs = records
                .iter()
                .zip(&expected)
                .position(|(ours, theirs)| ours != theirs);
            assert_eq!(differs, None, "{machine}, samples every {period}");
            assert_eq!(records.len(), expected.len());
            seen += records.len();
        }
    }
    assert!(seen > 100_000, "{seen} records");
}
