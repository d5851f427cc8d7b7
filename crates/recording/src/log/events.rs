//! Layout of events in a frame: a tag byte, then the fields in order, little-endian. A string is a 32-bit length and
//! UTF-8 bytes.

use nearpage_machine::CpuId;
use nearpage_perf_abi::FileId;

use crate::{Event, SampleCounts, ThreadIndex};

const MAP: u8 = 1;
const NAME: u8 = 2;
const FORK: u8 = 3;
const EXIT: u8 = 4;
const FIRST_TOUCH: u8 = 5;
const COUNTS: u8 = 6;
const LOST: u8 = 7;
const UNMAP: u8 = 8;
const MAP_SHARED: u8 = 9;

/// Longest path in Linux.
const PATH_BYTES_MAX: usize = 4096;
/// Upper bound of names of threads and of build-ids in hexadecimal.
const NAME_BYTES_MAX: usize = 256;

/// Appends `event` to `out`.
#[expect(
    clippy::too_many_lines,
    reason = "one arm for each kind of event, field by field, as `decode` has them"
)]
pub(super) fn encode(event: &Event, out: &mut Vec<u8>) {
    let mut out = Encoder(out);
    match event {
        Event::Map {
            time_ns,
            pid,
            address,
            length,
            file_offset,
            protection,
            shared,
            path,
            build_id,
        } => {
            out.u8(if shared.is_some() { MAP_SHARED } else { MAP })
                .u64(*time_ns)
                .u32(*pid)
                .u64(*address)
                .u64(*length)
                .u64(*file_offset)
                .u32(*protection);
            if let Some(file) = shared {
                out.u32(file.device.0).u32(file.device.1).u64(file.inode);
            }
            out.text(path).text(build_id);
        }
        Event::Name {
            time_ns,
            pid,
            thread,
            name,
            exec,
        } => {
            out.u8(NAME)
                .u64(*time_ns)
                .u32(*pid)
                .u32(thread.0)
                .u8(u8::from(*exec))
                .text(name);
        }
        Event::Fork {
            time_ns,
            pid,
            tid,
            thread,
            parent_pid,
        } => {
            out.u8(FORK)
                .u64(*time_ns)
                .u32(*pid)
                .u32(*tid)
                .u32(thread.0)
                .u32(*parent_pid);
        }
        Event::Exit { time_ns, thread } => {
            out.u8(EXIT).u64(*time_ns).u32(thread.0);
        }
        Event::FirstTouch {
            time_ns,
            thread,
            cpu,
            address,
        } => {
            out.u8(FIRST_TOUCH)
                .u64(*time_ns)
                .u32(thread.0)
                .u32(cpu.0)
                .u64(*address);
        }
        Event::Counts { thread, counts } => {
            out.u8(COUNTS).u32(thread.0);
            let SampleCounts {
                samples,
                accesses,
                compute,
                undecoded,
                kernel,
                lost,
            } = *counts;
            for count in [samples, accesses, compute, undecoded, kernel, lost] {
                out.u64(count);
            }
        }
        Event::Lost { time_ns, records } => {
            out.u8(LOST).u64(*time_ns).u64(*records);
        }
        Event::Unmap {
            time_ns,
            pid,
            address,
            length,
        } => {
            out.u8(UNMAP)
                .u64(*time_ns)
                .u32(*pid)
                .u64(*address)
                .u64(*length);
        }
    }
}

/// Reads all events of a frame; `None` if the bytes are invalid.
pub(super) fn decode(bytes: &[u8], mut each: impl FnMut(Event)) -> Option<()> {
    let mut input = Decoder(bytes);
    while !input.0.is_empty() {
        let tag = input.u8()?;
        each(match tag {
            MAP | MAP_SHARED => Event::Map {
                time_ns: input.u64()?,
                pid: input.u32()?,
                address: input.u64()?,
                length: input.u64()?,
                file_offset: input.u64()?,
                protection: input.u32()?,
                shared: match tag {
                    MAP => None,
                    _ => Some(FileId {
                        device: (input.u32()?, input.u32()?),
                        inode: input.u64()?,
                    }),
                },
                path: input.text(PATH_BYTES_MAX)?,
                build_id: input.text(NAME_BYTES_MAX)?,
            },
            NAME => {
                let (time_ns, pid, thread) =
                    (input.u64()?, input.u32()?, ThreadIndex(input.u32()?));
                let exec = input.u8()? != 0;
                Event::Name {
                    time_ns,
                    pid,
                    thread,
                    exec,
                    name: input.text(NAME_BYTES_MAX)?,
                }
            }
            FORK => Event::Fork {
                time_ns: input.u64()?,
                pid: input.u32()?,
                tid: input.u32()?,
                thread: ThreadIndex(input.u32()?),
                parent_pid: input.u32()?,
            },
            EXIT => Event::Exit {
                time_ns: input.u64()?,
                thread: ThreadIndex(input.u32()?),
            },
            FIRST_TOUCH => Event::FirstTouch {
                time_ns: input.u64()?,
                thread: ThreadIndex(input.u32()?),
                cpu: CpuId(input.u32()?),
                address: input.u64()?,
            },
            COUNTS => Event::Counts {
                thread: ThreadIndex(input.u32()?),
                counts: SampleCounts {
                    samples: input.u64()?,
                    accesses: input.u64()?,
                    compute: input.u64()?,
                    undecoded: input.u64()?,
                    kernel: input.u64()?,
                    lost: input.u64()?,
                },
            },
            LOST => Event::Lost {
                time_ns: input.u64()?,
                records: input.u64()?,
            },
            UNMAP => Event::Unmap {
                time_ns: input.u64()?,
                pid: input.u32()?,
                address: input.u64()?,
                length: input.u64()?,
            },
            _ => return None,
        });
    }
    Some(())
}

struct Encoder<'out>(&'out mut Vec<u8>);

impl Encoder<'_> {
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u32(text.len() as u32)
            .0
            .extend_from_slice(text.as_bytes());
        self
    }
}

struct Decoder<'log>(&'log [u8]);

impl<'log> Decoder<'log> {
    fn take(&mut self, count: usize) -> Option<&'log [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Reads a text, cut to `bytes_max` bytes. No kernel writes longer texts, and names and paths are copied to every
    /// thread and mapping that inherits them.
    fn text(&mut self, bytes_max: usize) -> Option<String> {
        let length = self.u32()? as usize;
        let text = self.take(length)?;
        Some(String::from_utf8_lossy(&text[..length.min(bytes_max)]).into_owned())
    }
}
