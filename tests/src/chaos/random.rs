//! Numbers drawn from a seed.

use nearpage_recording::fuzz::{Choices, Seeded};

/// The same numbers after the same seed.
pub struct Random(Seeded);

impl Random {
    /// Of an event: neighbouring numbers have nothing in common.
    pub fn new(seed: u64, number: u64) -> Self {
        Self(Seeded::new(seed, number))
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// One of several.
    pub fn of<T: Copy>(&mut self, several: &[T]) -> T {
        several[self.0.position(several.len())]
    }
}
