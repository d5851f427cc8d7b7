//! Sources of choices: a seed, or a fuzzer's bytes.

/// Source of choices.
pub trait Choices {
    /// A number below `bound`; 0 if `bound` is 0.
    fn below(&mut self, bound: u64) -> u64;

    /// A position in a list with `length` elements.
    fn position(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number at the edge of an integer or address range, or next to `own`.
    fn extreme(&mut self, own: u64) -> u64 {
        const EDGES: [u64; 20] = [
            0,
            1,
            7,
            255,
            4095,
            65_535,
            1 << 20,
            1 << 31,
            u32::MAX as u64 - 1,
            u32::MAX as u64,
            1 << 32,
            1 << 40,
            (1 << 47) - 4096,
            1 << 47,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 4096,
            u64::MAX - 4095,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.below(8) {
            0 => own.wrapping_add(1),
            1 => own.wrapping_sub(1),
            2 => own ^ 1 << self.below(64),
            3 => 1 << self.below(64),
            _ => EDGES[self.position(EDGES.len())],
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): the same seed gives the same choices.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// Choices for recording `number` of a seed. Neighbouring numbers give unrelated choices.
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
}

impl Choices for Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

/// Choices from a fuzzer's bytes, as few as each bound takes; zeros once the bytes are used up.
#[derive(Clone, Debug)]
pub struct Drawn<'a>(pub &'a [u8]);

impl Choices for Drawn<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let bytes = (u64::BITS - bound.leading_zeros()).div_ceil(8) as usize;
        let (taken, rest) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = rest;
        let number = taken
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        number.checked_rem(bound).unwrap_or(0)
    }
}
