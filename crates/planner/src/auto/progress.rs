//! Progress of a search.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Progress of a search for placements, for a display.
#[derive(Debug, Default)]
pub struct SearchProgress {
    replayed: AtomicU64,
    steps: AtomicU64,
    steps_max: AtomicU64,
}

impl SearchProgress {
    /// Number of placements that were replayed.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Relaxed)
    }

    /// Steps taken, and the most possible steps. A step looks at one object; a search ends early if a round over all
    /// objects changes nothing. Both are 0 before the search begins.
    pub fn steps(&self) -> [u64; 2] {
        [&self.steps, &self.steps_max].map(|count| count.load(Relaxed))
    }

    /// Counts further placements as replayed.
    pub(crate) fn has_replayed(&self, placements: u64) {
        self.replayed.fetch_add(placements, Relaxed);
    }

    /// Begins another step. Work after the last step counts as part of it.
    pub(crate) fn is_at(&self, step: usize, steps_max: usize) {
        self.steps_max.store(steps_max as u64, Relaxed);
        self.steps.store(step as u64, Relaxed);
    }
}
