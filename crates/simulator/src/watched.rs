//! A trace that reports how much of it has been read.

use std::sync::atomic::{AtomicU64, Ordering};

use nearpage_recording::ThreadIndex;
use nearpage_recording::trace::{StepBatch, Steps};

use crate::trace::{FilePage, StepSource, ThreadSteps, Trace};

/// A wrapper of a trace that counts the misses which replays read.
pub struct Watched<'a> {
    trace: &'a dyn Trace,
    misses: AtomicU64,
    watch: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Watched<'a> {
    /// `watch` is called after each batch, with the number of misses that all replays together have read.
    pub fn new(trace: &'a dyn Trace, watch: &'a (dyn Fn(u64) + Sync)) -> Self {
        Self {
            trace,
            misses: AtomicU64::new(0),
            watch,
        }
    }
}

struct WatchedSteps<'a> {
    steps: StepSource<'a>,
    watched: &'a Watched<'a>,
}

impl Steps for WatchedSteps<'_> {
    fn next(&mut self, batch: &mut StepBatch) -> Result<bool, nearpage_recording::Error> {
        let has_more = self.steps.next(batch)?;
        if has_more {
            let misses = batch.misses.len() as u64;
            let before = self.watched.misses.fetch_add(misses, Ordering::Relaxed);
            (self.watched.watch)(before + misses);
        }
        Ok(has_more)
    }
}

impl Trace for Watched<'_> {
    fn pages(&self) -> usize {
        self.trace.pages()
    }

    fn page_number(&self, page: u32) -> u64 {
        self.trace.page_number(page)
    }

    fn page_application(&self, page: u32) -> u16 {
        self.trace.page_application(page)
    }

    fn application(&self, thread: usize) -> u16 {
        self.trace.application(thread)
    }

    fn extent(&self, page: u32) -> Option<(u64, u64)> {
        self.trace.extent(page)
    }

    fn is_data(&self, page: u32) -> bool {
        self.trace.is_data(page)
    }

    fn file_pages(&self) -> Vec<(u32, FilePage)> {
        self.trace.file_pages()
    }

    fn may_be_marked(&self) -> bool {
        self.trace.may_be_marked()
    }

    fn programs(&self) -> usize {
        self.trace.programs()
    }

    fn origin(&self, thread: ThreadIndex) -> (usize, ThreadIndex) {
        self.trace.origin(thread)
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        let threads = self.trace.threads()?.into_iter();
        Ok(threads
            .map(|(thread, steps)| {
                let watched = WatchedSteps {
                    steps,
                    watched: self,
                };
                (thread, StepSource::Read(Box::new(watched)))
            })
            .collect())
    }
}
