//! An opened trace and its survey: accesses by chunk, and the data that a replay of steps needs.

use std::path::Path;
use std::sync::Arc;

use nearpage_machine::{Machine, NodeId, Timing};
use nearpage_wire::trace::{Record, Reference, Served};

use super::clock::{Clock, Moment};
use super::images::Images;
use super::pages::{PageLookup, PageRow, PageTable};
use super::steps::kind;
use super::survey::{Survey, is_access, walk};
use super::{CpuChange, Tracing};
use crate::log::LogReader;
use crate::{Access, AccessBatch, ColumnSelection, Error, Level, Metadata, Resolution, folder};

/// Position of an unknown node.
const NOWHERE: u16 = u16::MAX;

/// A trace that was opened for reading.
#[derive(Debug)]
pub(crate) struct OpenedTrace {
    pub(super) images: Images,
    pub(super) pages: PageTable,
    pub(super) tracing: Tracing,
    pub(super) clocks: Vec<Clock>,
    /// Position of the node of each page's first touch, by page.
    homes: Vec<u16>,
    /// Position of the node of each CPU, by number.
    node_of_cpu: Vec<u16>,
    nodes: Vec<NodeId>,
    timing: Timing,
    /// All frames, sorted by the time at which they begin.
    frames: Vec<TimedFrame>,
    chunks: Vec<Chunk>,
    access_count: u64,
}

impl OpenedTrace {
    /// Whether the trace is of a guest with its kernel.
    pub(super) fn is_of_whole_system(&self) -> bool {
        let mut files = self.images.files.iter();
        files.any(|file| file.header.whole_system)
    }

    /// Opens the trace in a recording's folder, surveys it, and adds the results to the
    /// recorder's log. `None` if there is no trace.
    pub(crate) fn survey(
        folder: &Path,
        machine: &Machine,
        metadata: &mut Metadata,
        log: &mut LogReader,
    ) -> Result<Option<(Self, Survey)>, Error> {
        let folder = folder.join(folder::TRACE_FOLDER);
        if !folder.is_dir() {
            return Ok(None);
        }
        let images = Images::open(&folder)?;
        let mut tracing = metadata.tracing.clone().unwrap_or_default();
        let survey = Survey::of(&images, &tracing, machine.page_bytes)?;
        survey.add_to(&images, log);
        tracing.moves.clone_from(&survey.moves);
        tracing.count(&images);
        for note in images.notes.iter().cloned().chain(tracing.notes(&images)) {
            if !metadata.notes.contains(&note) {
                metadata.notes.push(note);
            }
        }
        metadata.tracing = Some(tracing.clone());
        let clocks = survey.clocks.clone();
        let count = log.access_count;
        let traced = Self::new(
            &folder,
            images,
            machine,
            tracing,
            &survey.rows,
            clocks,
            count,
        )?;
        Ok(Some((traced, survey)))
    }

    /// Opens the trace of a recording that has its tables.
    pub(crate) fn open(
        folder: &Path,
        machine: &Machine,
        metadata: &Metadata,
        rows: &[PageRow],
        moments: &[(u32, Moment)],
    ) -> Result<Self, Error> {
        let folder = folder.join(folder::TRACE_FOLDER);
        let images = Images::open(&folder)?;
        let clocks = (0..images.files.len() as u32)
            .map(|image| {
                let first = moments.partition_point(|(other, _)| *other < image);
                let of_image = moments[first..]
                    .iter()
                    .take_while(|(other, _)| *other == image);
                Clock::new(of_image.map(|(_, moment)| *moment).collect(), 1)
            })
            .collect();
        let tracing = metadata.tracing.clone().unwrap_or_default();
        let count = metadata.counts.accesses;
        Self::new(&folder, images, machine, tracing, rows, clocks, count)
    }

    fn new(
        folder: &Path,
        images: Images,
        machine: &Machine,
        tracing: Tracing,
        rows: &[PageRow],
        clocks: Vec<Clock>,
        access_count: u64,
    ) -> Result<Self, Error> {
        let mut pages = PageTable::new(machine.page_bytes, images.files.len());
        for row in rows {
            pages
                .push(row)
                .ok_or_else(|| Error::damaged(folder, "pages.parquet belongs to another trace"))?;
        }
        let timing = machine
            .timing()
            .map_err(|fault| Error::damaged(&folder.with_file_name(folder::MACHINE_FILE), fault))?;
        let mut node_of_cpu = Vec::new();
        for (position, node) in machine.nodes.iter().enumerate() {
            for cpu in node.cpus.iter().filter(|cpu| cpu.0 < 1 << 20) {
                let at = cpu.0 as usize;
                node_of_cpu.resize(node_of_cpu.len().max(at + 1), NOWHERE);
                node_of_cpu[at] = position as u16;
            }
        }
        let home = |page: usize| {
            let place = pages.place(super::PageIndex(page as u32));
            let cpu = place.first_touch.map(|touch| touch.cpu.0 as usize);
            cpu.and_then(|cpu| node_of_cpu.get(cpu).copied())
                .unwrap_or(NOWHERE)
        };
        let homes = (0..pages.len()).map(home).collect();
        let mut frames = Vec::new();
        for &(image, number) in &images.order {
            let thread = &images.files[image].threads[number];
            for (position, found) in thread.frames.iter().enumerate() {
                let end_ns = match (thread.frames.get(position + 1), thread.end_instructions) {
                    (Some(next), _) => next.time_ns,
                    (None, Some(end)) => {
                        let clock = &clocks[image];
                        let mut since = clock.seek(end);
                        1 + clock.between(end, &mut since, found.time_ns, u64::MAX - 1)
                    }
                    (None, None) => u64::MAX,
                };
                frames.push(TimedFrame {
                    begin_ns: found.time_ns,
                    end_ns,
                    image: image as u32,
                    thread: number as u32,
                    position: position as u32,
                });
            }
        }
        frames.sort_unstable();
        Ok(Self {
            images,
            pages,
            tracing,
            clocks,
            homes,
            node_of_cpu,
            nodes: machine.node_ids(),
            timing,
            chunks: chunks(&frames),
            frames,
            access_count,
        })
    }

    /// Number of threads.
    pub(crate) fn threads(&self) -> usize {
        let all = self.images.threads.iter().flatten();
        let began = all.filter(|thread| thread.0 != u32::MAX);
        began.map(|thread| thread.0 as usize + 1).max().unwrap_or(0)
    }

    pub(crate) fn access_count(&self) -> u64 {
        self.access_count
    }

    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Moments for storage, each with its image.
    pub(crate) fn moments(&self) -> impl Iterator<Item = (u32, Moment)> {
        (0..)
            .zip(&self.clocks)
            .flat_map(|(image, clock)| clock.moments().iter().map(move |moment| (image, *moment)))
    }

    /// The first trace file that was cut short, if any.
    pub(crate) fn cut_short(&self) -> Option<&Path> {
        let file = self.images.files.iter().find(|file| file.cut_short());
        file.map(|file| file.path.as_path())
    }

    /// Number of frames.
    pub(super) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Image and number of the thread to which a frame belongs.
    pub(super) fn thread_of(&self, frame: usize) -> (u32, u32) {
        (self.frames[frame].image, self.frames[frame].thread)
    }

    /// Replaces the contents of `batch` by the selected columns of a chunk, in order of time. A damaged frame has no
    /// accesses; it is already counted.
    pub(crate) fn read_chunk(
        &self,
        number: usize,
        columns: ColumnSelection,
        batch: &mut AccessBatch,
        open: &mut OpenFrames,
    ) -> Result<(), Error> {
        let keep_hits = self.tracing.keep_hits();
        let wanted = |reference: &Reference| is_access(reference, keep_hits);
        let chunk = &self.chunks[number];
        let mut known = std::mem::take(&mut open.0);
        let (mut spare, mut inside) = (AccessBatch::default(), Vec::new());
        let (mut accesses, mut order) = (AccessBatch::default(), Vec::new());
        // The time is needed to order the accesses.
        let with_time = ColumnSelection {
            time_ns: true,
            ..columns
        };
        for &frame in &chunk.frames {
            let TimedFrame {
                begin_ns, end_ns, ..
            } = self.frames[frame as usize];
            let found = match known.iter().position(|one| one.0 == frame) {
                Some(at) => known.swap_remove(at).1,
                None => {
                    let mut found = std::mem::take(&mut spare);
                    self.read_selected(frame as usize, &mut found, wanted, |_, _| Some(1.0))?;
                    found
                }
            };
            // Each access belongs to one chunk, even if its thread's clock was off.
            let last_ns = end_ns.saturating_sub(1).max(begin_ns);
            let is_inside = |time_ns: u64| {
                (chunk.begin_ns..chunk.end_ns).contains(&time_ns.clamp(begin_ns, last_ns))
            };
            let rows = (0..).zip(&found.time_ns);
            inside.clear();
            inside.extend(rows.filter(|row| is_inside(*row.1)).map(|row| row.0));
            accesses.gather(&found, &inside, with_time);
            if end_ns > chunk.end_ns && open.0.len() < FRAMES_MAX {
                open.0.push((frame, found));
            } else {
                spare = found;
            }
        }
        order.extend(
            (0..)
                .zip(&accesses.time_ns)
                .map(|(row, &time_ns)| (time_ns, row)),
        );
        // Accesses come in sorted runs, one for each frame.
        order.sort_by_key(|access| access.0);
        let rows: Vec<u32> = order.into_iter().map(|access| access.1).collect();
        batch.clear();
        batch.gather(&accesses, &rows, columns);
        Ok(())
    }

    /// Replaces the contents of `batch` by the references of a frame that are `wanted` and get a weight from `weight`,
    /// which is called with virtual time and unloaded latency in nanoseconds.
    #[inline]
    pub(super) fn read_selected(
        &self,
        number: usize,
        batch: &mut AccessBatch,
        wanted: impl Fn(&Reference) -> bool,
        mut weight: impl FnMut(u64, f32) -> Option<f32>,
    ) -> Result<(), Error> {
        batch.clear();
        let frame = self.frames[number];
        let (image, number) = (frame.image as usize, frame.thread as usize);
        let file = &self.images.files[image];
        let frames = &file.threads[number].frames;
        let thread = self.images.threads[image][number];
        let found = &frames[frame.position as usize];
        let after_ns = frames
            .get(frame.position as usize + 1)
            .map_or(u64::MAX, |next| next.time_ns);
        let mut buffer = Vec::new();
        let Some(payload) = file.payload(found, &mut buffer)? else {
            return Ok(());
        };
        let start = self.tracing.cpu(file.threads[number].cpu);
        let mut cpu =
            CpuChange::cpu_at(&self.tracing.moves, thread, found.virtual_time).unwrap_or(start);
        let clock = &self.clocks[image];
        let mut since = clock.seek(found.virtual_time);
        let mut own_ns = found.time_ns;
        // Position in `batch` of the first access since the thread last read the clock.
        let mut open = 0;
        let mut lookup = PageLookup::new(image);
        walk(payload, found.virtual_time, |at, _, record| match record {
            Record::Reference(reference) if wanted(reference) => {
                let page = lookup.find(&self.pages, reference.address, at);
                let home = page.map_or(NOWHERE, |page| self.homes[page.0 as usize]);
                let (level, cost_ns) = self.served(reference, cpu.0, home);
                let Some(weight) = weight(at, cost_ns) else {
                    return;
                };
                batch.push(Access {
                    time_ns: clock.between(at, &mut since, own_ns, after_ns),
                    thread,
                    cpu,
                    address: reference.address,
                    instruction: reference.instruction,
                    kind: kind(reference.kind),
                    level,
                    resolution: Resolution::Exact,
                    skid_bytes: 0,
                    weight,
                    cost_ns: cost_ns * weight,
                    page_node: self.nodes.get(usize::from(home)).copied(),
                });
            }
            Record::Clock { time_ns } if *time_ns > own_ns => {
                // Earlier accesses must stay before objects that the thread logs from now on.
                for earlier in &mut batch.time_ns[open..] {
                    *earlier = (*earlier).min(time_ns - 1);
                }
                (own_ns, open) = (*time_ns, batch.time_ns.len());
            }
            Record::Move { cpu: position } => cpu = self.tracing.cpu(*position),
            _ => {}
        });
        Ok(())
    }

    /// Level, and unloaded latency in nanoseconds, of an access by `cpu` to a page on the node at position `home`.
    #[inline]
    pub(super) fn served(&self, reference: &Reference, cpu: u32, home: u16) -> (Level, f32) {
        let node = self.node_of_cpu.get(cpu as usize).copied();
        let node = node.filter(|node| *node != NOWHERE).unwrap_or(0);
        let hit = |level: usize| self.timing.hit_ns.get(level).copied().unwrap_or(0.0) as f32;
        let memory = match home {
            NOWHERE => Level::Unknown,
            home if home == node => Level::LocalMemory,
            _ => Level::RemoteMemory,
        };
        let home = if home == NOWHERE { node } else { home };
        let memory_ns = self.timing.latency_ns[usize::from(node)][usize::from(home)] as f32;
        match reference.served {
            Served::L1 => (Level::L1, hit(1)),
            Served::L2 => (Level::L2, hit(2)),
            Served::L3 => (Level::L3, hit(3)),
            Served::OtherCache => (Level::RemoteCache, memory_ns),
            Served::Memory | Served::Upgrade | Served::WriteBack => (memory, memory_ns),
        }
    }

    pub(super) fn timing(&self) -> &Timing {
        &self.timing
    }
}

/// A frame of one thread, and the time that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TimedFrame {
    begin_ns: u64,
    /// Exclusive end: the begin of the thread's next frame, or just after the thread's end.
    end_ns: u64,
    image: u32,
    thread: u32,
    /// Position among the thread's frames.
    position: u32,
}

/// A stretch of time, and the frames that overlap it.
#[derive(Debug, PartialEq, Eq)]
struct Chunk {
    begin_ns: u64,
    end_ns: u64,
    frames: Vec<u32>,
}

/// Decoded frames that continue in the next chunk, by number.
#[derive(Debug, Default)]
pub(crate) struct OpenFrames(Vec<(u32, AccessBatch)>);

/// Most frames that begin in a chunk, and most that are kept for the next chunk: a frame becomes about 3 MiB of
/// accesses.
const FRAMES_MAX: usize = 32;

/// Divides time into chunks. A chunk ends when as many frames have begun as there are threads, so that few frames are
/// in more than two chunks, or when [`FRAMES_MAX`] frames have begun.
fn chunks(frames: &[TimedFrame]) -> Vec<Chunk> {
    let threads = frames.iter().filter(|frame| frame.position == 0).count();
    let mut chunks = Vec::new();
    // Frames that continue after the last cut.
    let mut open: Vec<u32> = Vec::new();
    let mut next = 0;
    while next < frames.len() {
        let begin_ns = if next == 0 { 0 } else { frames[next].begin_ns };
        let mut past = (next + threads.clamp(8, FRAMES_MAX)).min(frames.len());
        // Frames that begin at the same time stay together.
        while past < frames.len() && frames[past].begin_ns == frames[past - 1].begin_ns {
            past += 1;
        }
        let end_ns = frames.get(past).map_or(u64::MAX, |frame| frame.begin_ns);
        open.extend(next as u32..past as u32);
        let going_on = |frame: &u32| frames[*frame as usize].end_ns > end_ns;
        let kept = open.iter().copied().filter(going_on).collect();
        chunks.push(Chunk {
            begin_ns,
            end_ns,
            frames: std::mem::replace(&mut open, kept),
        });
        next = past;
    }
    chunks
}

/// A trace that several readers share.
pub(crate) type SharedTrace = Arc<OpenedTrace>;

#[cfg(test)]
mod tests {
    use nearpage_machine::CpuId;
    use proptest::prelude::*;

    use super::*;
    use crate::ThreadIndex;

    #[test]
    fn a_thread_is_where_it_moved_last_whatever_the_order_of_threads() {
        // As in a recording: threads in order of creation, which may differ from the order of their numbers.
        let moves =
            [(4, 100, 1), (4, 300, 2), (1, 200, 5)].map(|(thread, instructions, cpu)| CpuChange {
                thread: ThreadIndex(thread),
                instructions,
                cpu: CpuId(cpu),
            });
        let at =
            |thread, instructions| CpuChange::cpu_at(&moves, ThreadIndex(thread), instructions);
        assert_eq!(at(1, 199), None);
        assert_eq!(at(1, 200), Some(CpuId(5)));
        assert_eq!(at(4, 299), Some(CpuId(1)));
        assert_eq!(at(4, 300), Some(CpuId(2)));
    }

    proptest! {
        /// Every moment of every frame belongs to one chunk, which has the frame.
        #[test]
        fn chunks_cover_every_frame(
            lengths in proptest::collection::vec(proptest::collection::vec(0u64..1000, 1..30), 1..12),
        ) {
            let mut frames = Vec::new();
            for (thread, lengths) in lengths.iter().enumerate() {
                let mut begin_ns = 100 * thread as u64;
                for (position, length) in lengths.iter().enumerate() {
                    let end_ns = begin_ns + length;
                    let (thread, position) = (thread as u32, position as u32);
                    frames.push(TimedFrame { begin_ns, end_ns, image: 0, thread, position });
                    begin_ns = end_ns;
                }
            }
            frames.sort_unstable();
            let chunks = chunks(&frames);
            prop_assert!(chunks.windows(2).all(|pair| pair[0].end_ns == pair[1].begin_ns));
            for (number, frame) in frames.iter().enumerate() {
                for moment in [frame.begin_ns, frame.end_ns.saturating_sub(1).max(frame.begin_ns)] {
                    let here = |chunk: &&Chunk| (chunk.begin_ns..chunk.end_ns).contains(&moment);
                    let found: Vec<&Chunk> = chunks.iter().filter(here).collect();
                    prop_assert_eq!(found.len(), 1);
                    prop_assert!(found[0].frames.contains(&(number as u32)));
                }
            }
        }
    }
}
