//! A trace and what was found out about it, opened: accesses by chunk, and all that steps need.

use std::path::Path;
use std::sync::Arc;

use nearpage_machine::{Machine, NodeId, Timing};
use nearpage_wire::trace::{Record, Reference, Served};

use super::clock::{Clock, Moment};
use super::images::Images;
use super::pages::{PageLookup, PageRow, PageTable};
use super::steps::kind;
use super::survey::{Survey, is_access, walk};
use super::{Moved, Tracing};
use crate::log::LogReader;
use crate::{Access, AccessBatch, Error, Level, Metadata, Resolution, folder};

/// No node.
const NOWHERE: u16 = u16::MAX;

/// A trace that can be read.
#[derive(Debug)]
pub(crate) struct Traced {
    pub(super) images: Images,
    pub(super) pages: PageTable,
    pub(super) tracing: Tracing,
    clocks: Vec<Clock>,
    /// Position of the node of each page's first touch, by page.
    homes: Vec<u16>,
    /// Position of the node of each CPU, by number.
    node_of_cpu: Vec<u16>,
    nodes: Vec<NodeId>,
    timing: Timing,
    /// Image, thread and frame of each chunk, in order of time.
    chunks: Vec<(u32, u32, u32)>,
    access_count: u64,
}

impl Traced {
    /// Opens the trace in a recording's folder, makes the pass over it, and adds what it says to the
    /// recorder's log. `None`: there is no trace.
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
                .ok_or_else(|| Error::damaged(folder, "pages.parquet is not of this trace"))?;
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
        let mut chunks: Vec<(u64, u32, u32, u32)> = Vec::new();
        for &(image, number) in &images.order {
            let frames = &images.files[image].threads[number].frames;
            chunks.extend(
                frames.iter().enumerate().map(|(frame, found)| {
                    (found.time_ns, image as u32, number as u32, frame as u32)
                }),
            );
        }
        chunks.sort_unstable();
        Ok(Self {
            images,
            pages,
            tracing,
            clocks,
            homes,
            node_of_cpu,
            nodes: machine.node_ids(),
            timing,
            chunks: chunks
                .into_iter()
                .map(|(_, image, number, frame)| (image, number, frame))
                .collect(),
            access_count,
        })
    }

    pub(crate) fn access_count(&self) -> u64 {
        self.access_count
    }

    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Moments by image, to be kept.
    pub(crate) fn moments(&self) -> impl Iterator<Item = (u32, Moment)> {
        (0..)
            .zip(&self.clocks)
            .flat_map(|(image, clock)| clock.moments().iter().map(move |moment| (image, *moment)))
    }

    /// Traces that were cut short.
    pub(crate) fn cut_short(&self) -> Option<&Path> {
        let file = self.images.files.iter().find(|file| file.cut_short());
        file.map(|file| file.path.as_path())
    }

    /// Image and number of the thread that a chunk is of.
    pub(super) fn thread_of(&self, chunk: usize) -> (u32, u32) {
        let (image, number, _) = self.chunks[chunk];
        (image, number)
    }

    /// Replaces what is in `batch` by the accesses of a chunk, a frame of one thread. A damaged one
    /// is empty: it was counted.
    pub(crate) fn read_chunk(&self, number: usize, batch: &mut AccessBatch) -> Result<(), Error> {
        let keep_hits = self.tracing.keep_hits();
        let wanted = |reference: &Reference| is_access(reference, keep_hits);
        self.read_selected(number, batch, wanted, |_, _| Some(1.0))
    }

    /// The same for the references that are `wanted`, and then have a weight, given their virtual
    /// time and unloaded time in nanoseconds.
    #[inline]
    pub(super) fn read_selected(
        &self,
        number: usize,
        batch: &mut AccessBatch,
        wanted: impl Fn(&Reference) -> bool,
        mut weight: impl FnMut(u64, f32) -> Option<f32>,
    ) -> Result<(), Error> {
        batch.clear();
        let (image, number, frame) = self.chunks[number];
        let (image, number) = (image as usize, number as usize);
        let file = &self.images.files[image];
        let frames = &file.threads[number].frames;
        let thread = self.images.threads[image][number];
        let found = &frames[frame as usize];
        let after_ns = frames
            .get(frame as usize + 1)
            .map_or(u64::MAX, |next| next.time_ns);
        let mut buffer = Vec::new();
        let Some(payload) = file.payload(found, &mut buffer)? else {
            return Ok(());
        };
        let start = self.tracing.cpu(file.threads[number].cpu);
        let mut cpu =
            Moved::cpu_at(&self.tracing.moves, thread, found.virtual_time).unwrap_or(start);
        let clock = &self.clocks[image];
        let mut since = clock.seek(found.virtual_time);
        let mut own_ns = found.time_ns;
        // Accesses since the thread last knew the time.
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
                    distance_bytes: 0,
                    weight,
                    cost_ns: cost_ns * weight,
                    page_node: self.nodes.get(usize::from(home)).copied(),
                });
            }
            Record::Clock { time_ns } if *time_ns > own_ns => {
                // What came before is before what is logged now.
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

    /// Level and unloaded time in nanoseconds of an access by a CPU to a page that the node at
    /// position `home` has.
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

/// A trace that several readers share.
pub(crate) type SharedTrace = Arc<Traced>;
