//! Mutates logs and traces: frames are repeated, removed, swapped or changed, and their checksums are made right.

use std::fs;
use std::ops::Range;
use std::path::Path;

use nearpage_wire::allocation_log as allocations;
use nearpage_wire::trace::{self, FRAME_HEADER_BYTES, FrameHeader};

use super::Choices;
use crate::error::IoContext;
use crate::{Error, log};

/// Size limit of a file; recordings that are mutated are smaller.
const BYTES_MAX: u64 = 256 << 20;

/// What kind of file a frame is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    RecorderLog,
    AllocationLog,
    Trace,
}

/// Changes a log or a trace. Returns a description of the change.
pub(super) fn mutate(path: &Path, choices: &mut dyn Choices) -> Result<String, Error> {
    let file = nearpage_files::read(path, BYTES_MAX).at(path, "read")?;
    let (kind, header_bytes) = match file.get(..8) {
        Some(magic) if magic == log::MAGIC => (FileKind::RecorderLog, log::FILE_HEADER_BYTES),
        Some(magic) if magic == allocations::SEGMENT_MAGIC => {
            (FileKind::AllocationLog, allocations::SEGMENT_HEADER_BYTES)
        }
        _ => (FileKind::Trace, trace::FILE_HEADER_BYTES),
    };
    let (header, rest) = file.split_at(header_bytes.min(file.len()));
    let (mut header, mut frames) = (header.to_vec(), split(kind, rest));
    let used: Vec<usize> = (0..frames.len())
        .filter(|&frame| !payload(kind, &frames[frame]).is_empty())
        .collect();
    let said = if used.is_empty() || choices.below(16) == 0 {
        change_word(&mut header, 8, choices)
    } else {
        let frame = used[choices.position(used.len())];
        let other = used[choices.position(used.len())];
        match choices.below(16) {
            0 => {
                let count = [1, 2, 100][choices.position(3)];
                let again = frames[frame].clone();
                frames.splice(frame..frame, std::iter::repeat_n(again, count));
                format!("frame {frame} comes {count} more times")
            }
            1 => {
                frames.remove(frame);
                format!("frame {frame} is gone")
            }
            2 => {
                frames.swap(frame, other);
                format!("frames {frame} and {other} change places")
            }
            3 => {
                // First byte of the header that may change: the thread id in the allocation log, thread and times in a
                // trace.
                let from = if kind == FileKind::AllocationLog {
                    4
                } else {
                    8
                };
                let said = change_word(&mut frames[frame], from, choices);
                seal(kind, &mut frames[frame]);
                format!("frame {frame}: {said}")
            }
            _ => {
                let range = payload(kind, &frames[frame]);
                let mut changed = frames[frame][range.clone()].to_vec();
                let said = change_word(&mut changed, 0, choices);
                frames[frame][range].copy_from_slice(&changed);
                seal(kind, &mut frames[frame]);
                format!("payload of frame {frame}: {said}")
            }
        }
    };
    for frame in frames {
        header.extend(frame);
    }
    fs::write(path, header).at(path, "write")?;
    Ok(said)
}

/// Changes 1, 2, 4 or 8 bytes at or after `from`. Returns a description of the change.
fn change_word(bytes: &mut [u8], from: usize, choices: &mut dyn Choices) -> String {
    let length = [1, 2, 4, 8, 8, 8][choices.position(6)];
    let Some(room) = bytes
        .len()
        .checked_sub(from + length - 1)
        .filter(|&room| room > 0)
    else {
        return "nothing".to_owned();
    };
    let mut at = from + choices.position(room);
    if choices.below(2) == 0 {
        at = from + (at - from) / 8 * 8;
    }
    let mut own = [0; 8];
    own[..length].copy_from_slice(&bytes[at..at + length]);
    let value = choices.extreme(u64::from_le_bytes(own));
    bytes[at..at + length].copy_from_slice(&value.to_le_bytes()[..length]);
    format!("{length} bytes at {at} become {value:#x}")
}

fn word(bytes: &[u8], at: usize) -> usize {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, |word| u32::from_le_bytes(word) as usize)
}

/// Splits a file into its frames.
fn split(kind: FileKind, mut rest: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let length = match kind {
            FileKind::RecorderLog => log::FRAME_HEADER_BYTES + word(rest, 8),
            FileKind::AllocationLog => allocations::BLOCK_BYTES,
            FileKind::Trace => {
                let header = FrameHeader::from_bytes(rest);
                let bytes = header.map_or(rest.len(), |header| header.payload_bytes as usize);
                FRAME_HEADER_BYTES.saturating_add(bytes)
            }
        };
        let (frame, after) = rest.split_at(length.min(rest.len()));
        frames.push(frame.to_vec());
        rest = after;
    }
    frames
}

/// Range of the records in a frame.
fn payload(kind: FileKind, frame: &[u8]) -> Range<usize> {
    let from = match kind {
        FileKind::RecorderLog => log::FRAME_HEADER_BYTES,
        FileKind::AllocationLog => allocations::BLOCK_HEADER_BYTES,
        FileKind::Trace => FRAME_HEADER_BYTES,
    };
    let to = match kind {
        FileKind::AllocationLog => from + word(frame, 8),
        _ => frame.len(),
    };
    from.min(frame.len())..to.min(frame.len()).max(from.min(frame.len()))
}

/// Updates the checksums of a frame.
fn seal(kind: FileKind, frame: &mut [u8]) {
    let records = payload(kind, frame);
    match kind {
        FileKind::RecorderLog if frame.len() >= log::FRAME_HEADER_BYTES => {
            let sum = crc32fast::hash(&frame[records]);
            frame[12..16].copy_from_slice(&sum.to_le_bytes());
            let own = crc32fast::hash(&frame[..16]);
            frame[16..20].copy_from_slice(&own.to_le_bytes());
        }
        // A block that is still open has no checksum.
        FileKind::AllocationLog if word(frame, 12) != 0 => {
            let sum = crc32fast::hash(&frame[records]);
            frame[12..16].copy_from_slice(&sum.to_le_bytes());
        }
        FileKind::Trace => {
            if let Some(header) = FrameHeader::from_bytes(frame) {
                header.seal(frame);
            }
        }
        _ => {}
    }
}
