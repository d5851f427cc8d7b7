//! Reads the segments of a log folder.

use std::collections::BTreeMap;
use std::path::Path;

use nearpage_wire::allocation_log::{
    BLOCK_BYTES, BLOCK_HEADER_BYTES, BLOCK_MAGIC, Kind, Records, SEGMENT_HEADER_BYTES,
    SEGMENT_MAGIC,
};

/// A process image: pid and start.
pub type Process = (u32, u64);

/// A record, with where it was.
#[derive(Clone, Debug)]
pub struct Record {
    /// The process image: pid and start.
    pub process: Process,
    /// The thread that wrote it.
    pub tid: u32,
    /// The field as the log has it.
    pub kind: Kind,
    /// The field as the log has it.
    pub flags: u16,
    /// The field as the log has it.
    pub argument: u32,
    /// The words after the first.
    pub words: Vec<u64>,
}

/// Where the library leaves what it has to say, beside its log.
pub const MESSAGES: &str = "messages";

/// All records of a folder.
#[derive(Debug, Default)]
pub struct Log {
    /// In the order of segments and blocks.
    pub records: Vec<Record>,
    /// Number of segments.
    pub segments: usize,
}

impl Log {
    /// Reads a folder; panics at whatever is not as specified.
    pub fn read(folder: &Path) -> Self {
        let mut log = Self::default();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name == MESSAGES {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            // A segment that was made in advance, and not needed.
            if bytes[..8] == [0; 8] {
                continue;
            }
            assert_eq!(bytes[..8], SEGMENT_MAGIC, "{name}");
            let process = (u32_at(8), u64_at(16));
            assert_eq!(
                name,
                format!("alloc-{}-{}-{}.log", process.0, process.1, u32_at(12))
            );
            assert_eq!(u64_at(24), bytes.len() as u64);
            assert_eq!(u64_at(32), BLOCK_BYTES as u64);
            log.segments += 1;
            for (index, block) in bytes[SEGMENT_HEADER_BYTES..]
                .chunks(BLOCK_BYTES)
                .enumerate()
            {
                if block[..4] != BLOCK_MAGIC {
                    continue;
                }
                let at = SEGMENT_HEADER_BYTES + index * BLOCK_BYTES;
                let mut tid = u32_at(at + 4);
                let mut records = Records::new(
                    &block[BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + u32_at(at + 8) as usize],
                );
                for record in &mut records {
                    if record.kind == Kind::Thread {
                        tid = record.argument;
                    }
                    log.records.push(Record {
                        process,
                        tid,
                        kind: record.kind,
                        flags: record.flags,
                        argument: record.argument,
                        words: (0..record.len()).map(|word| record.word(word)).collect(),
                    });
                }
                assert_eq!(records.rest(), 0, "{name}: a malformed record");
            }
        }
        log
    }

    /// The records of one kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Record> {
        self.records
            .iter()
            .filter(move |record| record.kind == kind)
    }

    /// The allocations of exactly `size` bytes.
    pub fn allocations(&self, size: u64) -> Vec<&Record> {
        self.of(Kind::Allocate)
            .filter(|record| record.words[2] == size)
            .collect()
    }

    /// Frames by process and call site.
    pub fn call_sites(&self) -> BTreeMap<(Process, u32), Vec<u64>> {
        let mut sites = BTreeMap::new();
        for record in self.of(Kind::CallSite) {
            assert!(!record.words.is_empty());
            sites.insert((record.process, record.argument), record.words.clone());
        }
        sites
    }

    /// Checks what holds for every log: known call sites, and objects that begin and end in turn.
    pub fn check(&self) {
        let sites = self.call_sites();
        for counters in self.of(Kind::Counters) {
            assert_eq!(counters.words[7], 0, "records were dropped");
        }
        let mut events: BTreeMap<(Process, u64), Vec<(u64, Kind)>> = BTreeMap::new();
        for record in &self.records {
            if matches!(record.kind, Kind::Allocate | Kind::Map) && record.argument != 0 {
                assert!(
                    sites.contains_key(&(record.process, record.argument)),
                    "{record:?}"
                );
            }
            if matches!(record.kind, Kind::Allocate | Kind::Free) {
                events
                    .entry((record.process, record.words[1]))
                    .or_default()
                    .push((record.words[0], record.kind));
            }
        }
        for (place, mut events) in events {
            events.sort_by_key(|(time, _)| *time);
            for pair in events.windows(2) {
                assert!(
                    pair[0].1 != pair[1].1 || pair[0].1 == Kind::Free,
                    "two allocations of {place:x?}: {pair:?}"
                );
            }
        }
    }
}
