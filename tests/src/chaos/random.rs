//! Numbers drawn from a seed.

/// SplitMix64 (Steele, Lea, Flood 2014): the same numbers after the same seed.
pub struct Random(u64);

impl Random {
    /// Of an event: neighbouring numbers have nothing in common.
    pub fn new(seed: u64, number: u64) -> Self {
        let mut first = Self(seed);
        Self(first.next() ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of several.
    pub fn of<T: Copy>(&mut self, several: &[T]) -> T {
        several[self.below(several.len() as u64) as usize]
    }
}
