//! What is replayed.

use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::{StepBatch, Steps, TraceEvent, TracedThread};

pub use nearpage_recording::trace::FilePage;

/// A thread and what hands out its steps.
pub type ThreadSteps<'a> = (TracedThread, StepSource<'a>);

/// A trace that can be read any number of times, by several replays at once.
pub trait Trace: Sync {
    /// Pages that its steps name: their numbers are below this.
    fn pages(&self) -> usize;

    /// Number of a page in its address space: what round-robin goes by.
    fn page_number(&self, page: u32) -> u64 {
        page.into()
    }

    /// Process of a page, numbered from 0.
    fn page_application(&self, page: u32) -> u16 {
        let _ = page;
        0
    }

    /// Process of a thread, by its position.
    fn application(&self, thread: usize) -> u16 {
        let _ = thread;
        0
    }

    /// Where a page lies in its object: the object's first page number and how many pages it spans.
    /// `None`: it belongs to no object that could be distributed.
    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        let _ = page;
        Some((0, self.pages() as u64))
    }

    /// Is a page of the heap, of a mapping of the program's own or of its own static data? Code, stacks and what libraries
    /// have are not.
    fn is_data(&self, page: u32) -> bool {
        let _ = page;
        true
    }

    /// Pages that are a file's, and which of it: those of several programs are one page.
    fn file_pages(&self) -> Vec<(u32, FilePage)> {
        Vec::new()
    }

    /// Is a begin or end of the stable phase among its steps, or is that not known?
    fn may_be_marked(&self) -> bool {
        true
    }

    /// Programs that it is of.
    fn programs(&self) -> usize {
        1
    }

    /// Position of a thread's program, and the thread's number there.
    fn origin(&self, thread: ThreadIndex) -> (usize, ThreadIndex) {
        (0, thread)
    }

    /// Its threads with their steps, from the beginning.
    ///
    /// # Errors
    /// A trace that cannot be read.
    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error>;
}

/// A trace in memory, for tests and for what is generated.
#[derive(Clone, Debug, Default)]
pub struct MemoryTrace {
    /// Pages.
    pub pages: usize,
    /// Threads, with their batches.
    pub threads: Vec<(TracedThread, Vec<StepBatch>)>,
}

/// Is a begin or end of the stable phase among these steps?
pub fn is_marked(batch: &StepBatch) -> bool {
    let mut trace_events = batch.trace_events.iter();
    trace_events.any(|trace_event| matches!(trace_event.2, TraceEvent::Mark { .. }))
}

/// Hands out a thread's steps.
pub enum StepSource<'a> {
    /// They are read, batch by batch.
    Read(Box<dyn Steps + 'a>),
    /// They are in memory.
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
