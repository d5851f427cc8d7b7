//! The interface to a trace.

use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::{StepBatch, Steps, TraceEvent, TracedThread};

pub use nearpage_recording::trace::FilePage;

/// A thread and the source of its steps.
pub type ThreadSteps<'a> = (TracedThread, StepSource<'a>);

/// A trace that can be read any number of times, by several replays at once.
pub trait Trace: Sync {
    /// Number of pages; the page numbers in steps are below this number.
    fn pages(&self) -> usize;

    /// Number of a page in its address space, which round-robin placement uses.
    fn page_number(&self, page: u32) -> u64 {
        page.into()
    }

    /// Process of a page, numbered from 0.
    fn page_application(&self, page: u32) -> u16 {
        let _ = page;
        0
    }

    /// Process of a thread, by the thread's position.
    fn application(&self, thread: usize) -> u16 {
        let _ = thread;
        0
    }

    /// Position of a page's object: the object's first page number and its number of pages. `None`: the page belongs to
    /// no object that could be distributed.
    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        let _ = page;
        Some((0, self.pages() as u64))
    }

    /// Is the page in the program's heap, own mappings or own static data, and not in code, stacks or libraries' data?
    fn is_data(&self, page: u32) -> bool {
        let _ = page;
        true
    }

    /// Pages of files and their places in the files. Programs share pages with the same place.
    fn file_pages(&self) -> Vec<(u32, FilePage)> {
        Vec::new()
    }

    /// May the steps contain the begin or end of a marked phase? `true` where this is not known.
    fn may_be_marked(&self) -> bool {
        true
    }

    /// Number of programs.
    fn programs(&self) -> usize {
        1
    }

    /// Position of a thread's program, and the thread's number in that program's trace.
    fn origin(&self, thread: ThreadIndex) -> (usize, ThreadIndex) {
        (0, thread)
    }

    /// All threads with their steps, from the beginning.
    ///
    /// # Errors
    /// The trace cannot be read.
    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error>;
}

/// A trace in memory, for tests and generated traces.
#[derive(Clone, Debug, Default)]
pub struct MemoryTrace {
    /// Number of pages.
    pub pages: usize,
    /// Threads with their batches.
    pub threads: Vec<(TracedThread, Vec<StepBatch>)>,
}

/// Do the steps contain the begin or end of a marked phase?
pub fn is_marked(batch: &StepBatch) -> bool {
    let mut trace_events = batch.trace_events.iter();
    trace_events.any(|trace_event| matches!(trace_event.2, TraceEvent::Mark { .. }))
}

/// Source of a thread's steps.
pub enum StepSource<'a> {
    /// Steps that are read batch by batch.
    Read(Box<dyn Steps + 'a>),
    /// Steps in memory.
    Kept(std::slice::Iter<'a, StepBatch>),
}

impl Steps for StepSource<'_> {
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, nearpage_recording::Error> {
        match self {
            Self::Read(steps) => steps.next(batch),
            Self::Kept(batches) => Ok(batches.next().map(|next| batch.clone_from(next)).is_some()),
        }
    }
}

impl Trace for MemoryTrace {
    fn pages(&self) -> usize {
        self.pages
    }

    fn may_be_marked(&self) -> bool {
        let mut batches = self.threads.iter().flat_map(|thread| &thread.1);
        batches.any(is_marked)
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        let mut threads: Vec<ThreadSteps<'_>> = Vec::new();
        for (thread, batches) in &self.threads {
            threads.push((thread.clone(), StepSource::Kept(batches.iter())));
        }
        Ok(threads)
    }
}
