//! One pass over all records of a trace: pages and their first touches, the relation of virtual time to
//! CLOCK_MONOTONIC, and each thread's accesses by CPU. The results are stored beside the trace.

use std::ops::Range;

use nearpage_machine::CpuId;
use nearpage_wire::trace::{Counter, Decoder, Record, Reference, Served};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::clock::{Clock, Moment};
use super::file::Frame;
use super::images::Images;
use super::pages::{self, FileRange, PageRow, SeenPages, SeenTouch};
use super::{CpuChange, Tracing};
use crate::log::LogReader;
use crate::{Error, FirstTouch, ThreadIndex};

/// Moments of a process that are closer than this many instructions are dropped, as they add nothing.
const MOMENTS_APART: u64 = 10_000;

/// Results of the pass.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) rows: Vec<PageRow>,
    /// Clocks by image.
    pub(super) clocks: Vec<Clock>,
    pub(crate) moves: Vec<CpuChange>,
    accesses_by_cpu: FxHashMap<(ThreadIndex, CpuId), u64>,
    /// CLOCK_MONOTONIC of the last record, by image and thread.
    ended_ns: Vec<Vec<u64>>,
    damaged: u64,
}

/// Most instructions between two records of a thread, enough for hours. A greater number is damage, and a reader would
/// take as long.
const SINCE_MAX: u64 = 1 << 44;

/// Calls `each` for every record of a frame, with its virtual time, the instructions since the record before, and the
/// record. Returns `false` if the frame is damaged from some record on.
#[inline]
pub(super) fn walk(
    payload: &[u8],
    virtual_time: u64,
    mut each: impl FnMut(u64, u64, &Record),
) -> bool {
    let mut at = virtual_time;
    for record in Decoder::new(payload) {
        let Ok((since, record)) = record else {
            return false;
        };
        if since > SINCE_MAX {
            return false;
        }
        at = at.saturating_add(since);
        each(at, since, &record);
        if let Record::Resume {
            waited_instructions,
            ..
        }
        | Record::Preempted {
            waited_instructions,
        } = record
        {
            at = at.saturating_add(waited_instructions);
        }
    }
    true
}

/// Whether a recording hands out the reference as an access: it missed all caches, or, if hits are kept, the second or
/// third level served it.
#[inline]
pub(super) fn is_access(reference: &Reference, keep_hits: bool) -> bool {
    match reference.served {
        Served::Memory | Served::OtherCache | Served::Upgrade => true,
        Served::L2 | Served::L3 => keep_hits,
        Served::L1 | Served::WriteBack => false,
    }
}

/// Results from one thread's records.
#[derive(Default)]
struct ThreadSurvey {
    image: usize,
    number: usize,
    seen: SeenPages,
    moments: Vec<Moment>,
    moves: Vec<CpuChange>,
    accesses_by_cpu: FxHashMap<CpuId, u64>,
    /// Virtual time of the last record, and the latest CLOCK_MONOTONIC that the thread knew.
    last: Moment,
    damaged: u64,
}

impl Survey {
    /// Surveys all threads, on all available CPUs.
    pub(super) fn of(images: &Images, tracing: &Tracing, page_bytes: u64) -> Result<Self, Error> {
        let of = |&(image, number)| of_thread(images, image, number, tracing, page_bytes);
        let parts: Result<Vec<ThreadSurvey>, Error> = images.order.par_iter().map(of).collect();
        let mut parts = parts?;
        parts.sort_by_key(|part| (part.image, part.number));
        Self::merge(images, parts, page_bytes)
    }

    fn merge(images: &Images, parts: Vec<ThreadSurvey>, page_bytes: u64) -> Result<Self, Error> {
        let mut survey = Self::default();
        let count = images.files.len();
        let mut seen = vec![SeenPages::default(); count];
        let mut moments: Vec<Vec<Moment>> = images
            .files
            .iter()
            .map(|file| vec![(0, file.header.start_ns)])
            .collect();
        let mut last = Vec::new();
        for part in parts {
            let thread = images.threads[part.image][part.number];
            seen[part.image].append(part.seen);
            moments[part.image].extend(part.moments);
            survey.moves.extend(part.moves);
            for (cpu, accesses) in part.accesses_by_cpu {
                *survey.accesses_by_cpu.entry((thread, cpu)).or_default() += accesses;
            }
            survey.damaged += part.damaged;
            last.push((part.image, part.number, part.last));
        }
        survey.clocks = moments
            .into_iter()
            .map(|moments| Clock::new(moments, MOMENTS_APART))
            .collect();
        survey.ended_ns = images
            .files
            .iter()
            .map(|file| vec![file.header.start_ns; file.threads.len()])
            .collect();
        for (image, number, (instructions, own_ns)) in last {
            let clock = &survey.clocks[image];
            let time_ns = clock.time_ns(instructions, &mut clock.seek(instructions));
            survey.ended_ns[image][number] = time_ns.max(own_ns);
        }
        let files: Vec<Vec<FileRange>> = images
            .files
            .iter()
            .map(|file| shared_files(&file.mapped))
            .collect();
        survey.rows = pages::number(page_bytes, seen, &files, &survey.clocks).ok_or_else(|| {
            let path = images.files.first().map(|file| file.path.clone());
            Error::damaged(
                &path.unwrap_or_default(),
                format!("more than {} pages", pages::PAGES_MAX),
            )
        })?;
        Ok(survey)
    }

    /// Adds the results to the recorder's log, so that tables are made from both.
    pub(super) fn add_to(&self, images: &Images, log: &mut LogReader) {
        log.events.extend(images.events(&self.ended_ns));
        let mut touches: Vec<FirstTouch> = self
            .rows
            .iter()
            .filter_map(|row| {
                row.first_touch.map(|touch| FirstTouch {
                    time_ns: touch.time_ns,
                    thread: touch.thread,
                    cpu: touch.cpu,
                    address: row.address,
                })
            })
            .collect();
        touches.sort_by_key(|touch| (touch.time_ns, touch.thread, touch.address));
        log.first_touches.extend(touches);
        for ((thread, cpu), accesses) in &self.accesses_by_cpu {
            log.accesses_by_cpu.insert((*thread, *cpu), *accesses);
            let counts = log.counts.entry(*thread).or_default();
            counts.samples += accesses;
            counts.accesses += accesses;
            log.access_count += accesses;
        }
        log.damaged_blocks += self.damaged;
        for file in &images.files {
            log.damaged_blocks += file.damaged;
            let counters = file.counters.unwrap_or_default();
            log.lost = log
                .lost
                .saturating_add(counters[Counter::RecordsDropped as usize]);
        }
    }
}

fn of_thread(
    images: &Images,
    image: usize,
    number: usize,
    tracing: &Tracing,
    page_bytes: u64,
) -> Result<ThreadSurvey, Error> {
    let file = &images.files[image];
    let thread = images.threads[image][number];
    let shift = page_bytes.trailing_zeros();
    let keep_hits = tracing.keep_hits();
    let mut part = ThreadSurvey {
        image,
        number,
        ..ThreadSurvey::default()
    };
    let mut cpu = tracing.cpu(file.threads[number].cpu);
    let mut buffer = Vec::new();
    for frame in &file.threads[number].frames {
        let Frame {
            virtual_time,
            time_ns,
            ..
        } = *frame;
        let Some(payload) = file.payload(frame, &mut buffer)? else {
            part.damaged += 1;
            continue;
        };
        part.moments.push((virtual_time, time_ns));
        part.last = (part.last.0.max(virtual_time), part.last.1.max(time_ns));
        let mut accesses = 0;
        let is_intact = walk(payload, virtual_time, |at, _, record| {
            part.last.0 = at;
            match record {
                Record::Reference(reference) => {
                    part.seen.see(reference.address >> shift);
                    accesses += u64::from(is_access(reference, keep_hits));
                }
                Record::FirstTouch { address, .. } => part.seen.touch(SeenTouch {
                    page: address >> shift,
                    instructions: at,
                    own_before_ns: part.last.1,
                    thread,
                    cpu,
                }),
                Record::Clock { time_ns } => {
                    part.last.1 = part.last.1.max(*time_ns);
                    part.moments.push((at, *time_ns));
                }
                Record::Move { cpu: position } => {
                    *part.accesses_by_cpu.entry(cpu).or_default() += accesses;
                    accesses = 0;
                    cpu = tracing.cpu(*position);
                    part.moves.push(CpuChange {
                        thread,
                        instructions: at,
                        cpu,
                    });
                }
                _ => {}
            }
        });
        *part.accesses_by_cpu.entry(cpu).or_default() += accesses;
        part.damaged += u64::from(!is_intact);
    }
    part.accesses_by_cpu.retain(|_, accesses| *accesses > 0);
    Ok(part)
}

/// File mappings whose pages other processes may share: shared mappings, and mappings that this process cannot write
/// to. A mapping lasts until it is unmapped or another mapping replaces it; a replaced part is cut out.
pub(super) fn shared_files(mapped: &[super::file::Mapped]) -> Vec<FileRange> {
    let mut ranges: Vec<FileRange> = Vec::new();
    let mut live: Vec<usize> = Vec::new();
    for change in mapped {
        let (start, end) = change.range;
        let mut kept = Vec::new();
        for position in live.drain(..) {
            let old = ranges[position];
            if old.range.1 <= start || end <= old.range.0 {
                kept.push(position);
                continue;
            }
            ranges[position].mapped.1 = change.virtual_time;
            let rests: [Range<u64>; 2] = [old.range.0..start, end..old.range.1];
            for rest in rests.into_iter().filter(|rest| !rest.is_empty()) {
                kept.push(ranges.len());
                ranges.push(FileRange {
                    range: (rest.start, rest.end),
                    mapped: (change.virtual_time, u64::MAX),
                    offset: old.offset.wrapping_add(rest.start - old.range.0),
                    ..old
                });
            }
        }
        live = kept;
        if let Some(by) = &change.by
            && let Some(file) = by.shared_file()
            && start < end
        {
            live.push(ranges.len());
            ranges.push(FileRange {
                range: (start, end),
                mapped: (change.virtual_time, u64::MAX),
                file,
                offset: by.offset,
            });
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use nearpage_wire::trace::{Encoder, RECORD_BYTES_MAX};

    use super::*;

    #[test]
    fn time_that_goes_backwards_is_damage() {
        let mut encoder = Encoder::new();
        let mut payload = Vec::new();
        for since in [3, SINCE_MAX, 0_u64.wrapping_sub(8), 5] {
            let mut room = [0; RECORD_BYTES_MAX];
            let bytes = encoder.encode(&mut room, since, &Record::Mark { begin: true });
            payload.extend(&room[..bytes]);
        }
        let mut times = Vec::new();
        assert!(!walk(&payload, 10, |at, _, _| times.push(at)));
        assert_eq!(times, [13, 13 + SINCE_MAX]);
    }
}
