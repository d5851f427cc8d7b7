//! A recording's trace as the simulator takes it.

use nearpage_recording::trace::PageIndex;
use nearpage_simulator::{FilePage, ThreadSteps, Trace};

/// A trace to be replayed.
pub struct Replayed(pub nearpage_recording::trace::Trace);

impl Trace for Replayed {
    fn pages(&self) -> usize {
        self.0.pages().len()
    }

    fn page_number(&self, page: u32) -> u64 {
        let pages = self.0.pages();
        pages.place(PageIndex(page)).address / pages.page_bytes()
    }

    fn file_pages(&self) -> Vec<(u32, FilePage)> {
        self.0.file_pages()
    }

    fn threads(&self) -> Result<Vec<ThreadSteps<'_>>, nearpage_recording::Error> {
        let mut threads: Vec<ThreadSteps<'_>> = Vec::new();
        for (position, thread) in self.0.threads().iter().enumerate() {
            threads.push((thread.clone(), Box::new(self.0.steps(position))));
        }
        Ok(threads)
    }
}
