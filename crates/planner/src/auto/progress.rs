//! How far a search is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// How far a search of placements is, for a display of progress.
#[derive(Debug, Default)]
pub struct SearchProgress {
    replayed: AtomicU64,
    steps: AtomicU64,
    steps_max: AtomicU64,
}

impl SearchProgress {
    /// Placements that were replayed.
    pub fn replayed(&self) -> u64 {
        self.replayed.load(Relaxed)
    }

    /// Steps that were taken, and the most that there can be: looks at an object. A search in which a round over all objects
    /// changes nothing ends earlier. No steps where the search has not begun.
    pub fn steps(&self) -> [u64; 2] {
        [&self.steps, &self.steps_max].map(|count| count.load(Relaxed))
    }

    /// Further placements were replayed.
    pub(crate) fn has_replayed(&self, placements: u64) {
        self.replayed.fetch_add(placements, Relaxed);
    }

    /// The search takes another step. What follows the last step belongs to it.
    pub(crate) fn is_at(&self, step: usize, steps_max: usize) {
        self.steps_max.store(steps_max as u64, Relaxed);
        self.steps.store(step as u64, Relaxed);
    }
}
