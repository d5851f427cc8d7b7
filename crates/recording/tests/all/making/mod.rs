//! Parts of recordings for tests.
#![allow(dead_code, reason = "an example uses some")]

pub mod trace;

use std::path::Path;
use std::time::UNIX_EPOCH;

use nearpage_machine::{CpuId, Machine, NodeId};
use nearpage_recording::{
    Access, AccessBatch, AccessKind, Event, Level, LogWriter, Metadata, Resolution, Source, Status,
    ThreadIndex,
};
use nearpage_wire::allocation_log::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_MAGIC, Kind, SEGMENT_HEADER_BYTES, SEGMENT_MAGIC, head,
};

pub fn machine() -> Machine {
    toml::from_str("name = \"test\"\npage_bytes = 4096\n[[node]]\nid = 0\ncpus = [0, 1]\n").unwrap()
}

pub fn metadata() -> Metadata {
    Metadata {
        status: Status::Complete,
        recorder: "test".into(),
        command: vec!["program".into(), "--secret=argument".into()],
        begin_ns: 10,
        rate_hz: 997.0,
        calibration: "before".into(),
        ..Metadata::begun(Source::Clock, UNIX_EPOCH, vec![NodeId(0)])
    }
}

/// An access of thread `thread` at `time_ns`.
pub fn access(time_ns: u64, thread: u32, address: u64) -> Access {
    Access {
        time_ns,
        thread: ThreadIndex(thread),
        cpu: CpuId(thread % 2),
        address,
        instruction: 0x40_1000 + time_ns % 16,
        kind: AccessKind::Load,
        level: Level::Unknown,
        resolution: Resolution::Exact,
        skid_bytes: 4,
        weight: 1.0,
        cost_ns: 1000.0,
        page_node: (!time_ns.is_multiple_of(3)).then_some(NodeId(1)),
    }
}

pub fn batch(accesses: &[Access]) -> AccessBatch {
    let mut batch = AccessBatch::default();
    accesses.iter().for_each(|access| batch.push(*access));
    batch
}

pub fn fork(time_ns: u64, pid: u32, tid: u32, thread: u32, parent_pid: u32) -> Event {
    Event::Fork {
        time_ns,
        pid,
        tid,
        thread: ThreadIndex(thread),
        parent_pid,
    }
}

pub fn name(time_ns: u64, pid: u32, thread: u32, name: &str, exec: bool) -> Event {
    Event::Name {
        time_ns,
        pid,
        thread: ThreadIndex(thread),
        name: name.into(),
        exec,
    }
}

pub fn exit(time_ns: u64, thread: u32) -> Event {
    Event::Exit {
        time_ns,
        thread: ThreadIndex(thread),
    }
}

pub fn map(
    time_ns: u64,
    pid: u32,
    address: u64,
    length: u64,
    protection: u32,
    path: &str,
) -> Event {
    Event::Map {
        time_ns,
        pid,
        address,
        length,
        file_offset: 0,
        protection,
        shared: None,
        path: path.into(),
        build_id: String::new(),
    }
}

/// An unfinished recorder's log in `folder` with these events and accesses.
pub fn record(folder: &Path, events: &[Event], accesses: &[Access]) -> LogWriter {
    let mut log = LogWriter::create(folder, metadata(), &machine()).unwrap();
    log.events(events).unwrap();
    log.accesses(&batch(accesses)).unwrap();
    log
}

/// Records of one thread's block, as the preload library writes them.
pub struct Block {
    tid: u32,
    words: Vec<u64>,
}

impl Block {
    pub fn of(tid: u32) -> Self {
        Self {
            tid,
            words: Vec::new(),
        }
    }

    pub fn record(mut self, kind: Kind, argument: u32, words: &[u64]) -> Self {
        self.words
            .push(head(kind, words.len() as u8 + 1, 0, argument));
        self.words.extend_from_slice(words);
        self
    }

    pub fn thread(self, time_ns: u64, start: u64, order: u64) -> Self {
        let (tid, stack) = (self.tid, 0x7000_0000 + 0x10_0000 * order);
        let words = [
            time_ns,
            start,
            order,
            stack,
            stack + 0x8_0000,
            stack + 0x7_f000,
            stack + 0x8_0000,
            1,
        ];
        self.record(Kind::Thread, tid, &words)
    }

    pub fn thread_ends(self, time_ns: u64) -> Self {
        let tid = self.tid;
        self.record(Kind::ThreadExit, tid, &[time_ns])
    }

    pub fn allocate(self, time_ns: u64, address: u64, size_bytes: u64, call_site: u32) -> Self {
        self.record(
            Kind::Allocate,
            call_site,
            &[time_ns, address, size_bytes, 1000],
        )
    }

    pub fn free(self, time_ns: u64, address: u64) -> Self {
        self.record(Kind::Free, 0, &[time_ns, address])
    }

    /// Bytes of the block so far, header included.
    pub fn bytes_used(&self) -> usize {
        BLOCK_HEADER_BYTES + 8 * self.words.len()
    }

    /// The bytes of the closed block.
    pub fn bytes(&self) -> Vec<u8> {
        let records: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let mut bytes = vec![0; BLOCK_BYTES];
        bytes[..4].copy_from_slice(&BLOCK_MAGIC);
        bytes[4..8].copy_from_slice(&self.tid.to_le_bytes());
        bytes[8..12].copy_from_slice(&(records.len() as u32).to_le_bytes());
        bytes[12..16].copy_from_slice(&crc32fast::hash(&records).to_le_bytes());
        bytes[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + records.len()].copy_from_slice(&records);
        bytes
    }
}

/// Writes a segment of process `pid`, as the preload library does.
pub fn segment(log_folder: &Path, pid: u32, start_ns: u64, blocks: &[Vec<u8>]) {
    let mut bytes = vec![0; SEGMENT_HEADER_BYTES];
    bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
    bytes[8..12].copy_from_slice(&pid.to_le_bytes());
    bytes[16..24].copy_from_slice(&start_ns.to_le_bytes());
    bytes[32..40].copy_from_slice(&(BLOCK_BYTES as u64).to_le_bytes());
    bytes.extend(blocks.concat());
    bytes.resize(bytes.len() + BLOCK_BYTES, 0);
    std::fs::write(
        log_folder.join(format!("alloc-{pid}-{start_ns}-0.log")),
        bytes,
    )
    .unwrap();
}
