//! Common parts of the fuzz targets: a folder for parsers that read files, and containers with right lengths and
//! checksums, so that mutations reach their contents.

use std::fs;
use std::path::{Path, PathBuf};

/// This process's folder under `TMPDIR`, which should be in memory. libFuzzer ends processes without
/// running destructors, so the caller that sets `TMPDIR` removes it.
pub struct Scratch(PathBuf);

impl Default for Scratch {
    fn default() -> Self {
        let folder = std::env::temp_dir().join(format!("nearpage-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("TMPDIR can be written to");
        Self(folder)
    }
}

impl Scratch {
    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("it has a folder")).expect("folder");
        fs::write(&path, contents).expect("file");
        path
    }
}

/// Pieces of an input: a tag byte, a length (`u16`), and that many bytes, or as many as are left.
pub fn pieces(mut input: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = input.split_first_chunk::<3>()?;
        let length = usize::from(u16::from_le_bytes([head[1], head[2]]));
        let (piece, rest) = rest.split_at(length.min(rest.len()));
        input = rest;
        Some((head[0], piece))
    })
}

/// Tag bit of a piece that goes into a container unframed, even if the container is then damaged.
const RAW: u8 = 0x80;

/// A recorder's log (`nearpage_recording::log`) with a frame for each piece; a tag is the frame's kind.
pub fn recorder_log<'a>(pieces: impl Iterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let mut log = b"NPRECLOG\x01\0\0\0\0\0\0\0".to_vec();
    for (tag, payload) in pieces {
        if tag & RAW == 0 {
            let start = log.len();
            log.extend(b"NPFR");
            log.extend(u32::from(tag & 3).to_le_bytes());
            log.extend((payload.len() as u32).to_le_bytes());
            log.extend(crc32fast::hash(payload).to_le_bytes());
            log.extend(crc32fast::hash(&log[start..]).to_le_bytes());
        }
        log.extend(payload);
    }
    log
}

/// Block size of [`allocation_segment`], small so that inputs fill several blocks.
const BLOCK_BYTES: usize = 512;

/// A segment of an allocation log (`nearpage_wire::allocation_log`) with a block for each piece. A tag is the
/// block's thread; its lowest bit says whether the block is closed.
pub fn allocation_segment<'a>(pieces: impl Iterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let mut segment = b"NPALLOC\x01".to_vec();
    segment.resize(32, 0);
    segment.extend((BLOCK_BYTES as u64).to_le_bytes());
    segment.resize(4096, 0);
    for (tag, records) in pieces {
        let start = segment.len();
        let records = &records[..records.len().min(BLOCK_BYTES - 16)];
        if tag & RAW == 0 {
            let checksum = if tag & 1 == 1 {
                crc32fast::hash(records)
            } else {
                0
            };
            segment.extend(b"NPBK");
            segment.extend((100 + u32::from(tag >> 1)).to_le_bytes());
            segment.extend((records.len() as u32).to_le_bytes());
            segment.extend(checksum.to_le_bytes());
        }
        segment.extend(records);
        segment.resize(start + BLOCK_BYTES, 0);
    }
    segment
}

/// A trace (`nearpage_wire::trace`) with a frame for each piece: of events for odd tags, of records for even tags. The
/// other bits of a tag are the thread. Totals at the end make the trace complete.
pub fn trace_file<'a>(pieces: impl Iterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    use nearpage_wire::trace::{
        COUNTERS, EVENT_BYTES_MAX, Event, FRAME_HEADER_BYTES, FileHeader, FrameHeader, FrameKind,
    };
    let header = FileHeader {
        pid: 100,
        page_bytes: 4096,
        line_bytes: 64,
        sample_period: 0,
        start_ns: 4,
        quantum: 10_000,
        parent_pid: 0,
        whole_system: false,
        dependences: false,
    };
    let mut trace = header.to_bytes().to_vec();
    let frame = |trace: &mut Vec<u8>, kind, thread, payload: &[u8]| {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        frame.extend_from_slice(payload);
        let time = trace.len() as u64;
        let header = FrameHeader {
            kind,
            thread,
            records: payload.len() as u32,
            payload_bytes: payload.len() as u32,
            virtual_time: time,
            time_ns: 4 + time,
        };
        header.seal(&mut frame);
        trace.extend_from_slice(&frame);
    };
    for (tag, payload) in pieces {
        match tag {
            tag if tag & RAW != 0 => trace.extend_from_slice(payload),
            tag if tag & 1 != 0 => frame(&mut trace, FrameKind::Events, 0, payload),
            tag => frame(
                &mut trace,
                FrameKind::Records,
                u32::from(tag >> 1 & 3),
                payload,
            ),
        }
    }
    let mut totals = vec![0; EVENT_BYTES_MAX];
    let length = Event::Counters([0; COUNTERS]).encode(&mut totals);
    frame(&mut trace, FrameKind::Events, 0, &totals[..length]);
    trace
}
