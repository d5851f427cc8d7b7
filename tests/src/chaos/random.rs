//! Random numbers from a seed.

use nearpage_recording::fuzz::{Choices, Seeded};

/// A generator that gives the same numbers for the same seed.
pub struct Random(Seeded);

impl Random {
    /// The generator of an event; neighbouring numbers give unrelated sequences.
    pub fn new(seed: u64, number: u64) -> Self {
        Self(Seeded::new(seed, number))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// A random element.
    pub fn of<T: Copy>(&mut self, several: &[T]) -> T {
        several[self.0.position(several.len())]
    }
}
