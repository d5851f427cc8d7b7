//! Hands out a trace's threads step by step, and its pages.

use std::sync::Arc;

use nearpage_wire::trace::{CHILD_ENDED, PIPE_SIGNAL, Record, ReferenceKind};

use super::images::Images;
use super::pages::{PageLookup, PageTable};
use super::survey::{shared_files, walk};
use super::traced::OpenedTrace;
use super::{FilePage, Miss, PageIndex, StepBatch, Steps, TraceEvent, TracedThread};
use crate::{AccessKind, Error};

/// Bits of a signal's number in its process; the bits above tell processes apart.
const SIGNAL_BITS: u32 = 40;
/// Signals for the fork and the end of a process; processes number no signals of their own like this.
const FORKED: u64 = (1 << SIGNAL_BITS) - 2;
const ENDED: u64 = (1 << SIGNAL_BITS) - 1;
/// Stands in the place of an image in numbers of signals that all processes share.
const OF_ALL: u64 = (1 << 16) - 1;

/// All misses of a program, for replay; made by [`crate::Recording::trace`].
#[derive(Clone, Debug)]
pub struct Trace {
    traced: Arc<OpenedTrace>,
    threads: Vec<TracedThread>,
    /// By thread: image and number in each of the programs that the thread ran.
    programs: Vec<Vec<(usize, usize)>>,
    only: Option<Mode>,
}

/// Who made a reference, in a guest that was traced with its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The kernel.
    Kernel,
    /// Programs.
    User,
}

impl Trace {
    pub(crate) fn new(traced: &Arc<OpenedTrace>) -> Self {
        let images = &traced.images;
        let mut programs: Vec<Vec<(usize, usize)>> = Vec::new();
        for &(image, number) in &images.order {
            // Threads are numbered in the order in which they began.
            let index = images.threads[image][number].0 as usize;
            match programs.get_mut(index) {
                Some(earlier) => earlier.push((image, number)),
                None => programs.push(vec![(image, number)]),
            }
        }
        let thread = |programs: &Vec<(usize, usize)>| {
            let (image, number) = programs[0];
            let thread = &images.files[image].threads[number];
            TracedThread {
                thread: images.threads[image][number],
                cpu: traced.tracing.cpu(thread.cpu),
                started_by: match is_child(images, programs) {
                    true => sequence(image, FORKED),
                    false => sequence(image, thread.started_by),
                },
                start_instructions: thread.start_instructions,
            }
        };
        Self {
            threads: programs.iter().map(thread).collect(),
            programs,
            traced: traced.clone(),
            only: None,
        }
    }

    /// Whether the trace is of a guest with its kernel.
    pub fn is_of_whole_system(&self) -> bool {
        self.traced.is_of_whole_system()
    }

    /// Leaves out misses of the other mode from now on. Its instructions and its first touches stay.
    pub fn only(&mut self, mode: Mode) {
        self.only = Some(mode);
    }

    /// The threads, in order of creation.
    pub fn threads(&self) -> &[TracedThread] {
        &self.threads
    }

    /// The pages.
    pub fn pages(&self) -> &PageTable {
        &self.traced.pages
    }

    /// Pages of files that are shared, or mapped without being writable: other programs that map the file have them,
    /// too.
    pub fn file_pages(&self) -> Vec<(u32, FilePage)> {
        let files = self.traced.images.files.iter();
        let ranges: Vec<_> = files.map(|file| shared_files(&file.mapped)).collect();
        self.traced.pages.of_files(&ranges)
    }

    /// Process id of a page's first place.
    pub fn pid(&self, page: PageIndex) -> u32 {
        let image = self.traced.pages.place(page).image;
        self.traced.images.files[image as usize].header.pid
    }

    /// Steps of the thread at `position` of [`Trace::threads`], from the beginning, in all programs that the thread
    /// ran. Holds one frame at a time. Panics if there is no such thread.
    pub fn steps(&self, position: usize) -> ThreadSteps {
        let programs = self.programs[position].iter().rev().copied().collect();
        let mut steps = ThreadSteps {
            traced: self.traced.clone(),
            without: self.only.map(|mode| mode == Mode::User),
            image: 0,
            number: 0,
            is_child: is_child(&self.traced.images, &self.programs[position]),
            programs,
            frame: 0,
            forks: Vec::new(),
            buffer: Vec::new(),
            lookup: PageLookup::new(0),
            pending: 0,
        };
        steps.next_program();
        steps
    }
}

/// Whether the thread that runs these programs is the first of a forked process.
fn is_child(images: &Images, programs: &[(usize, usize)]) -> bool {
    let first = programs.first();
    first.is_some_and(|&(image, number)| number == 0 && images.parent(image).is_some())
}

/// Takes the instructions since the last step. If they exceed a field's range, steps that change nothing take the
/// excess.
fn take(
    pending: &mut u64,
    misses: &[Miss],
    trace_events: &mut Vec<(usize, u32, TraceEvent)>,
) -> u32 {
    while *pending > u64::from(u32::MAX) {
        trace_events.push((misses.len(), u32::MAX, NOTHING));
        *pending -= u64::from(u32::MAX);
    }
    std::mem::take(pending) as u32
}

/// A step that changes nothing.
const NOTHING: TraceEvent = TraceEvent::Resume {
    after: 0,
    waited_instructions: 0,
};

/// Number of a signal in the trace, from its number in a process.
fn sequence(image: usize, of_process: u64) -> u64 {
    match of_process {
        0 => 0,
        PIPE_SIGNAL.. => OF_ALL << SIGNAL_BITS | (of_process - PIPE_SIGNAL) & ENDED,
        sequence => (image as u64) << SIGNAL_BITS | sequence,
    }
}

/// One thread's steps, in order.
#[derive(Clone, Debug)]
pub struct ThreadSteps {
    traced: Arc<OpenedTrace>,
    /// Whether misses of the kernel (`true`) or of programs (`false`) are left out.
    without: Option<bool>,
    /// Image of the current program, and number of the thread in it.
    image: usize,
    number: usize,
    /// Programs that the thread runs afterwards, the next program last.
    programs: Vec<(usize, usize)>,
    /// Whether the thread is the first of a forked process whose end was not reported yet.
    is_child: bool,
    /// Position of the next frame.
    frame: usize,
    /// Remaining forks: virtual time, and first image of the child; the next fork last.
    forks: Vec<(u64, usize)>,
    buffer: Vec<u8>,
    lookup: PageLookup,
    /// Instructions since the last step.
    pending: u64,
}

impl Steps for ThreadSteps {
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, Error> {
        batch.misses.clear();
        batch.trace_events.clear();
        while batch.misses.is_empty() && batch.trace_events.is_empty() {
            if !self.decode(batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ThreadSteps {
    /// Goes on to the next program. Returns `false` if there is none.
    fn next_program(&mut self) -> bool {
        let Some((image, number)) = self.programs.pop() else {
            return false;
        };
        let images = &self.traced.images;
        (self.image, self.number, self.frame) = (image, number, 0);
        self.lookup = PageLookup::new(image);
        let forks = images.files[image].forks.iter();
        self.forks = forks
            .filter(|fork| fork.thread as usize == number)
            .filter_map(|fork| Some((fork.virtual_time, images.child(image, fork.child)?)))
            .collect();
        self.forks.sort_by_key(|&(at, _)| std::cmp::Reverse(at));
        true
    }

    /// Reports the remaining forks of a program that has no more frames, and after the last program the end of the
    /// process. Returns `false` if nothing is left.
    fn end(&mut self, batch: &mut StepBatch) -> bool {
        let forked = self.forks.drain(..).rev();
        let mut signals: Vec<u64> = forked.map(|(_, child)| sequence(child, FORKED)).collect();
        if self.programs.is_empty() && std::mem::take(&mut self.is_child) {
            signals.push(sequence(self.image, ENDED));
        }
        for sequence in signals {
            let since = take(&mut self.pending, &batch.misses, &mut batch.trace_events);
            let signal = TraceEvent::Signal { sequence };
            batch.trace_events.push((batch.misses.len(), since, signal));
        }
        if self.programs.is_empty() && self.pending > 0 {
            let since = take(&mut self.pending, &batch.misses, &mut batch.trace_events);
            batch
                .trace_events
                .push((batch.misses.len(), since, NOTHING));
        }
        self.next_program() || !batch.trace_events.is_empty()
    }

    /// Decodes the next frame; a damaged frame is left out, as it is already counted. Returns `false` if there is none.
    #[expect(
        clippy::too_many_lines,
        reason = "the loop that replaying spends its time in: one arm for each kind of record, on borrows of single fields"
    )]
    fn decode(&mut self, batch: &mut StepBatch) -> Result<bool, Error> {
        let traced = &*self.traced;
        let file = &traced.images.files[self.image];
        let Some(frame) = file.threads[self.number].frames.get(self.frame) else {
            return Ok(self.end(batch));
        };
        self.frame += 1;
        let Some(payload) = file.payload(frame, &mut self.buffer)? else {
            return Ok(true);
        };
        let (pages, lookup, image) = (&traced.pages, &mut self.lookup, self.image);
        let (images, forks) = (&traced.images, &mut self.forks);
        let offset_mask = pages.page_bytes() - 1;
        let without = self.without;
        let mut pending = self.pending;
        let mut unknown = None;
        // No processor runs 65,536 instructions ahead, so a dependence over more is ignored.
        let mut depends_on = 0;
        batch.misses.reserve(frame.records as usize);
        let misses = &mut batch.misses;
        let trace_events = &mut batch.trace_events;
        walk(payload, frame.virtual_time, |at, mut since, record| {
            while let Some((fork_at, child)) = forks.pop_if(|fork| fork.0 <= at) {
                let after = (at - fork_at).min(since);
                pending += since - after;
                since = after;
                let instructions = take(&mut pending, misses, trace_events);
                let forked = TraceEvent::Signal {
                    sequence: sequence(child, FORKED),
                };
                trace_events.push((misses.len(), instructions, forked));
            }
            pending += since;
            let trace_event = match *record {
                Record::Reference(reference) if without == Some(reference.kernel) => return,
                Record::Reference(reference) => {
                    let Some(page) = lookup.find(pages, reference.address, at) else {
                        unknown = unknown.or(Some(reference.address));
                        return;
                    };
                    let instructions = take(&mut pending, misses, trace_events);
                    misses.push(Miss {
                        instructions,
                        page,
                        offset: (reference.address & offset_mask) as u32,
                        kind: kind(reference.kind),
                        served: reference.served,
                        tlb_miss: reference.tlb_miss,
                        sampled: reference.sampled,
                        depends_on: std::mem::take(&mut depends_on),
                    });
                    return;
                }
                Record::FirstTouch { address, .. } => match lookup.find(pages, address, at) {
                    Some(page) => TraceEvent::FirstTouch(page),
                    None => {
                        unknown = unknown.or(Some(address));
                        return;
                    }
                },
                Record::Signal {
                    sequence: number, ..
                } => TraceEvent::Signal {
                    sequence: sequence(image, number),
                },
                Record::Resume {
                    after,
                    waited_instructions,
                    ..
                } => TraceEvent::Resume {
                    after: match after.checked_sub(CHILD_ENDED) {
                        None => sequence(image, after),
                        Some(child) => images
                            .last_of_child(image, child as u32)
                            .map_or(0, |last| sequence(last, ENDED)),
                    },
                    waited_instructions,
                },
                Record::Move { cpu } => TraceEvent::Move(traced.tracing.cpu(cpu)),
                Record::Mark { begin } => TraceEvent::Mark { begin },
                Record::Depends { on } => {
                    depends_on = u16::try_from(on).unwrap_or(0);
                    return;
                }
                Record::Clock { .. } | Record::Preempted { .. } => return,
            };
            let instructions = take(&mut pending, misses, trace_events);
            trace_events.push((misses.len(), instructions, trace_event));
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

/// Converts the tracer's kind of a reference to the recording's.
#[inline]
pub(super) fn kind(kind: ReferenceKind) -> AccessKind {
    match kind {
        ReferenceKind::Load => AccessKind::Load,
        ReferenceKind::Store => AccessKind::Store,
        ReferenceKind::Fetch => AccessKind::Fetch,
    }
}
