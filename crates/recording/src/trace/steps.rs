//! A full recording's threads, step by step, and its pages.

use std::sync::Arc;

use nearpage_wire::trace::{Record, ReferenceKind};

use super::pages::{PageLookup, PageTable};
use super::survey::{shared_files, walk};
use super::traced::Traced;
use super::{FilePage, Happening, Miss, PageIndex, StepBatch, Steps, TracedThread};
use crate::{AccessKind, Error};

/// Signals of different processes are told apart by this many high bits.
const SIGNAL_BITS: u32 = 40;

/// All misses of a program, to be replayed: [`crate::Recording::trace`].
#[derive(Clone, Debug)]
pub struct Trace {
    traced: Arc<Traced>,
    threads: Vec<TracedThread>,
}

impl Trace {
    pub(crate) fn new(traced: &Arc<Traced>) -> Self {
        let thread = |&(image, number): &(usize, usize)| {
            let thread = &traced.images.files[image].threads[number];
            TracedThread {
                thread: traced.images.threads[image][number],
                cpu: traced.tracing.cpu(thread.cpu),
                started_by: sequence(image, thread.started_by),
                start_instructions: thread.start_instructions,
            }
        };
        Self {
            threads: traced.images.order.iter().map(thread).collect(),
            traced: traced.clone(),
        }
    }

    /// The threads, in order of creation.
    pub fn threads(&self) -> &[TracedThread] {
        &self.threads
    }

    /// The pages.
    pub fn pages(&self) -> &PageTable {
        &self.traced.pages
    }

    /// Pages of files that are shared, or mapped without being writable: what other programs that map
    /// the file have too.
    pub fn file_pages(&self) -> Vec<(u32, FilePage)> {
        let files = self.traced.images.files.iter();
        let ranges: Vec<_> = files.map(|file| shared_files(&file.mapped)).collect();
        self.traced.pages.of_files(&ranges)
    }

    /// Process of a page's first place.
    pub fn pid(&self, page: PageIndex) -> u32 {
        let image = self.traced.pages.place(page).image;
        self.traced.images.files[image as usize].header.pid
    }

    /// What the thread at `position` of [`Trace::threads`] did, from the beginning. Holds one frame
    /// at a time. Panics where there is no such thread.
    pub fn steps(&self, position: usize) -> ThreadSteps {
        let (image, number) = self.traced.images.order[position];
        ThreadSteps {
            traced: self.traced.clone(),
            image,
            number,
            frame: 0,
            buffer: Vec::new(),
            lookup: PageLookup::new(image),
            pending: 0,
        }
    }
}

/// Numbers of signals are a process's own; the trace's are one for all.
fn sequence(image: usize, of_process: u64) -> u64 {
    match of_process {
        0 => 0,
        sequence => (image as u64) << SIGNAL_BITS | sequence,
    }
}

/// One thread's steps, in order.
#[derive(Clone, Debug)]
pub struct ThreadSteps {
    traced: Arc<Traced>,
    image: usize,
    number: usize,
    /// The next frame.
    frame: usize,
    buffer: Vec<u8>,
    lookup: PageLookup,
    /// Instructions since the last step.
    pending: u64,
}

impl Steps for ThreadSteps {
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, Error> {
        batch.misses.clear();
        batch.happenings.clear();
        while batch.misses.is_empty() && batch.happenings.is_empty() {
            if !self.decode(batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ThreadSteps {
    /// Decodes the next frame; a damaged one is left out, as it was counted. `false`: there is none.
    fn decode(&mut self, batch: &mut StepBatch) -> Result<bool, Error> {
        let traced = &*self.traced;
        let file = &traced.images.files[self.image];
        let Some(frame) = file.threads[self.number].frames.get(self.frame) else {
            return Ok(false);
        };
        self.frame += 1;
        let Some(payload) = file.payload(frame, &mut self.buffer)? else {
            return Ok(true);
        };
        let (pages, lookup, image) = (&traced.pages, &mut self.lookup, self.image);
        let offset_mask = pages.page_bytes() - 1;
        let mut pending = self.pending;
        let mut unknown = None;
        batch.misses.reserve(frame.records as usize);
        let misses = &mut batch.misses;
        let happenings = &mut batch.happenings;
        walk(payload, frame.virtual_time, |at, since, record| {
            pending += since;
            let mut take = |misses: &[Miss], happenings: &mut Vec<(usize, u32, Happening)>| {
                // More than the field can say: a step that changes nothing takes the rest.
                while pending > u64::from(u32::MAX) {
                    let nothing = Happening::Resume {
                        after: 0,
                        waited_instructions: 0,
                    };
                    happenings.push((misses.len(), u32::MAX, nothing));
                    pending -= u64::from(u32::MAX);
                }
                std::mem::take(&mut pending) as u32
            };
            let happening = match *record {
                Record::Reference(reference) => {
                    let Some(page) = lookup.find(pages, reference.address, at) else {
                        unknown = unknown.or(Some(reference.address));
                        return;
                    };
                    let instructions = take(misses, happenings);
                    misses.push(Miss {
                        instructions,
                        page,
                        offset: (reference.address & offset_mask) as u32,
                        kind: kind(reference.kind),
                        served: reference.served,
                        tlb_miss: reference.tlb_miss,
                        sampled: reference.sampled,
                    });
                    return;
                }
                Record::FirstTouch { address, .. } => match lookup.find(pages, address, at) {
                    Some(page) => Happening::FirstTouch(page),
                    None => {
                        unknown = unknown.or(Some(address));
                        return;
                    }
                },
                Record::Signal {
                    sequence: number, ..
                } => Happening::Signal {
                    sequence: sequence(image, number),
                },
                Record::Resume {
                    after,
                    waited_instructions,
                    ..
                } => Happening::Resume {
                    after: sequence(image, after),
                    waited_instructions,
                },
                Record::Move { cpu } => Happening::Move(traced.tracing.cpu(cpu)),
                Record::Mark { begin } => Happening::Mark { begin },
                Record::Clock { .. } | Record::Preempted { .. } => return,
            };
            let instructions = take(misses, happenings);
            happenings.push((misses.len(), instructions, happening));
        });
        self.pending = pending;
        match unknown {
            Some(address) => Err(Error::damaged(
                &file.path,
                format!("{address:#x} is on none of the recording's pages"),
            )),
            None => Ok(true),
        }
    }
}

/// The recording's word for it.
#[inline]
pub(super) fn kind(kind: ReferenceKind) -> AccessKind {
    match kind {
        ReferenceKind::Load => AccessKind::Load,
        ReferenceKind::Store => AccessKind::Store,
        ReferenceKind::Fetch => AccessKind::Fetch,
    }
}
